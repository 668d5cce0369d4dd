"""The one table that compares policies."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Final

from rich.table import Table

from topo_scheduler.simulation.results.model import Run

_FILL: Final[Sequence[tuple[str, Callable[[Run], float | None], str]]] = (
    ("GPUs allocated %", lambda run: run.gpu_allocated_percent, ".2f"),
    ("pods placed", lambda run: run.pods_placed, ",.0f"),
)
_STREAM: Final[Sequence[tuple[str, Callable[[Run], float | None], str]]] = (
    ("utilisation %", lambda run: run.utilisation_percent, ".2f"),
    ("while arriving %", lambda run: run.utilisation_while_arriving_percent, ".2f"),
    ("wait p50 s", lambda run: run.wait[0].p50 if run.wait else None, ",.0f"),
    ("p95 s", lambda run: run.wait[0].p95 if run.wait else None, ",.0f"),
    ("p99 s", lambda run: run.wait[0].p99 if run.wait else None, ",.0f"),
    ("never ran", lambda run: run.wait[0].never if run.wait else None, ",.0f"),
)
_GANGS: Final[Sequence[tuple[str, Callable[[Run], float | None], str]]] = (
    ("leaves a gang", lambda run: run.span.leaves_mean, ".2f"),
    ("most", lambda run: run.span.leaves_max, ".0f"),
    ("spines", lambda run: run.span.spines_mean, ".2f"),
    ("gangs across leaves", lambda run: run.span.crossing_leaf, ",.0f"),
)
_SLOWDOWN: Final[Sequence[tuple[str, Callable[[Run], float | None], str]]] = (
    ("slow-down", lambda run: run.slowdown.mean if run.slowdown else None, ".3f"),
    ("p95", lambda run: run.slowdown.p95 if run.slowdown else None, ".3f"),
)
_ALWAYS: Final[Sequence[tuple[str, Callable[[Run], float | None], str]]] = (
    ("decisions/s", lambda run: run.decisions_per_s, ",.0f"),
    ("wall s", lambda run: run.wall_s, ".1f"),
)


def comparison(runs: Sequence[Run]) -> Table:
    """Return a table with a row for each policy: means over its seeds, as its caption says."""
    columns = [*(_FILL if runs and runs[0].fill is not None else _STREAM)]
    columns += _GANGS if any(run.span.gangs for run in runs) else ()
    estimated = any(run.slowdown is not None and run.slowdown.gangs for run in runs)
    columns += _SLOWDOWN if estimated else ()
    columns += _ALWAYS
    first = runs[0]
    fill = f", filled to {first.fill:g} of its GPUs" if first.fill is not None else ""
    seeds = len({run.seed for run in runs})
    told = [f"means of {seeds} seeds"] if seeds > 1 else []
    if estimated:
        share = first.slowdown_assumes.communication
        told.append(f"slow-down: estimated for steps that are {share:.0%} all-reduce")
    table = Table(title=f"{first.workload} on {first.cluster}{fill}", caption="; ".join(told) or None)
    table.add_column("policy")
    for name, _, _ in columns:
        table.add_column(name, justify="right")
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.policy].append(run)
    for policy, some in groups.items():
        table.add_row(policy, *(_cell((value(run) for run in some), form) for _, value, form in columns))
    return table


def _cell(values: Iterable[float | None], form: str) -> str:
    found = [value for value in values if value is not None]
    return format(mean(found), form) if found else "-"
