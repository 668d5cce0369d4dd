"""The one table that compares policies."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Final

from rich.table import Table

from topo_scheduler.simulation.results.model import Run

Value = Callable[[Run], float | None]
Column = tuple[str, Value, str]

_FILL: Final[Sequence[Column]] = (
    ("GPUs allocated %", lambda run: run.gpu_allocated_percent, ".2f"),
    ("pods placed", lambda run: run.pods_placed, ",.0f"),
)
_STREAM: Final[Sequence[Column]] = (
    ("utilisation %", lambda run: run.utilisation_percent, ".2f"),
    ("while arriving %", lambda run: run.utilisation_while_arriving_percent, ".2f"),
    ("wait p50 s", lambda run: run.wait[0].p50 if run.wait else None, ",.0f"),
    ("p95 s", lambda run: run.wait[0].p95 if run.wait else None, ",.0f"),
    ("p99 s", lambda run: run.wait[0].p99 if run.wait else None, ",.0f"),
    ("never ran", lambda run: run.wait[0].never if run.wait else None, ",.0f"),
)
_GANGS: Final[Sequence[Column]] = (
    ("leaves a gang", lambda run: run.span.leaves_mean, ".2f"),
    ("most", lambda run: run.span.leaves_max, ".0f"),
    ("spines", lambda run: run.span.spines_mean, ".2f"),
    ("gangs across leaves", lambda run: run.span.crossing_leaf, ",.0f"),
)
_SLOWDOWN: Final[Sequence[Column]] = (
    ("slow-down", lambda run: run.slowdown.mean if run.slowdown else None, ".3f"),
    ("p95", lambda run: run.slowdown.p95 if run.slowdown else None, ".3f"),
)
_ALWAYS: Final[Sequence[Column]] = (
    ("decisions/s", lambda run: run.decisions_per_s, ",.0f"),
    ("wall s", lambda run: run.wall_s, ".1f"),
)


def columns_of(runs: Sequence[Run]) -> list[Column]:
    """Return what tables tell of runs: a heading, the value of a run, and its form."""
    columns = [*(_FILL if runs and runs[0].fill is not None else _STREAM)]
    columns += _GANGS if any(run.span.gangs for run in runs) else ()
    columns += _SLOWDOWN if _estimated(runs) else ()
    return columns


def _estimated(runs: Iterable[Run]) -> bool:
    return any(run.slowdown is not None and run.slowdown.gangs for run in runs)


def title_of(run: Run) -> str:
    """Return what a run is one of: the workload, the cluster, and how far it is filled."""
    fill = f", filled to {run.fill:g} of its GPUs" if run.fill is not None else ""
    return f"{run.workload} on {run.cluster}{fill}"


def note_on(runs: Sequence[Run]) -> str:
    """Return what must be known to read a table of runs; may be empty."""
    seeds = len({run.seed for run in runs})
    told = [f"means of {seeds} seeds"] if seeds > 1 else []
    if _estimated(runs):
        share = runs[0].slowdown_assumes.communication
        told.append(f"slow-down: estimated for steps that are {share:.0%} all-reduce")
    return "; ".join(told)


def by_policy(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return runs by their policy, in order."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.policy].append(run)
    return groups


def by_change(runs: Iterable[Run]) -> dict[str | None, list[Run]]:
    """Return runs by what was changed before, in order; those of None ran with things as they are."""
    groups: dict[str | None, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.what_if].append(run)
    return groups


def mean_of(runs: Iterable[Run], value: Value) -> float | None:
    """Return the mean of those runs that have a value; None where none has."""
    found = [one for run in runs if (one := value(run)) is not None]
    return mean(found) if found else None


def comparison(runs: Sequence[Run]) -> Table:
    """Return a table with a row for each policy: means over its seeds, as its caption says."""
    table = _table(title_of(runs[0]), runs, [*columns_of(runs), *_ALWAYS])
    for policy, some in by_policy(runs).items():
        table.add_row(policy, *(_cell(mean_of(some, value), form) for _, value, form in [*columns_of(runs), *_ALWAYS]))
    return table


def differences(before: Sequence[Run], after: Sequence[Run]) -> Table:
    """Return a table of what a change makes of each policy: without it, with it, and the difference.

    Args:
        before: runs as things are.
        after: runs after the change, of the same policies and seeds.
    """
    columns = columns_of([*before, *after])
    table = _table(f"what if {after[0].what_if}", after, columns)
    old = by_policy(before)
    for policy, some in by_policy(after).items():
        lines = differing(old.get(policy, []), some, columns)
        for name, line in zip((policy, "  with", "  difference"), lines, strict=True):
            table.add_row(name, *line, end_section=name == "  difference")
    return table


def differing(before: Sequence[Run], after: Sequence[Run], columns: Sequence[Column]) -> tuple[list[str], ...]:
    """Return the cells of three rows: without a change, with it, and the difference.

    Of seeds that only one side has, as a lost run leaves them, neither side's count.
    """
    both = {run.seed for run in before} & {run.seed for run in after}
    rows: tuple[list[str], ...] = ([], [], [])
    for _, value, form in columns:
        old, new = (mean_of((run for run in some if run.seed in both), value) for some in (before, after))
        delta = None if old is None or new is None else new - old
        cells = (_cell(old, form), _cell(new, form), _signed(delta, form))
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    return rows


def _table(title: str, runs: Sequence[Run], columns: Sequence[Column]) -> Table:
    table = Table(title=title, caption=note_on(runs) or None)
    table.add_column("policy")
    for name, _, _ in columns:
        table.add_column(name, justify="right")
    return table


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _signed(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    told = format(value, "+" + form)
    return told.lstrip("+-") if not told.strip("+-0.,") else told
