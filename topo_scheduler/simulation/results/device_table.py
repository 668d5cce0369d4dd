"""The table that compares choosers of GPUs inside nodes."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from topo_scheduler.simulation.devices.replay import POLICIES, DeviceFigures
from topo_scheduler.simulation.results.model import Run


def device_table(runs: Sequence[tuple[Run, Sequence[DeviceFigures]]], gpus: int) -> Table:
    """Return a table of the bandwidth that pods with several GPUs get on nodes with so many GPUs: rows for each run."""
    table = Table(title=f"bandwidth inside nodes of {gpus} GPUs", title_justify="left")
    table.add_column("policy")
    table.add_column("seed", justify="right")
    table.add_column("GPUs chosen by", no_wrap=True, min_width=max(map(len, POLICIES)))
    for heading in ("pods", "% of an empty node's", "best possible: % of pods"):
        table.add_column(heading, justify="right")
    for run, figures in runs:
        name = f"{run.policy}, what if {run.what_if}" if run.what_if else run.policy
        for row in figures:
            cells = [format(100 * value, ".1f") if value is not None else "-" for value in (row.share, row.ideal)]
            table.add_row(Text(name), str(run.seed), row.policy, format(row.pods, ","), *cells)
    return table
