"""The table that compares choosers of MIG slots."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from topo_scheduler.simulation.devices.mig_replay import MigFigures


def mig_table(runs: Sequence[tuple[str, int, Sequence[MigFigures]]]) -> Table:
    """Return a table of what became of workloads that ask for MIG instances.

    Args:
        runs: change of the case (empty for none), seed, and the figures of each chooser.
    """
    table = Table(title="workloads that ask for MIG instances", title_justify="left")
    if any(change for change, _, _ in runs):
        table.add_column("what if")
    table.add_column("seed", justify="right")
    table.add_column("slots chosen by")
    for heading in ("workloads", "blocked only by fragmentation: %", "no room: %", "mean wait: s", "never ran"):
        table.add_column(heading, justify="right")
    for change, seed, figures in runs:
        for row in figures:
            cells = [str(seed), row.policy, format(row.workloads, ",")]
            unsure = f" (+{_percent(row.undecided, row)} not known)" if row.undecided else ""
            wait = "-" if row.mean_wait_seconds is None else format(row.mean_wait_seconds, ",.1f")
            cells += [_percent(row.blocked, row) + unsure, _percent(row.full, row), wait, format(row.never, ",")]
            table.add_row(*([Text(change)] if len(table.columns) > len(cells) else []), *cells)
    return table


def _percent(count: int, row: MigFigures) -> str:
    return format(100 * count / row.workloads, ".2f") if row.workloads else "-"
