"""The one table that compares policies, in as many parts below each other as a terminal is narrow."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Final

from rich.table import Table
from rich.text import Text

from topo_scheduler.simulation.results.model import Run

Value = Callable[[Run], float | None]
Column = tuple[str, Value, str]

_COUNT: Final = ",.10g"
"""The form of counts: whole, but for means of several seeds, which have a decimal where they need one."""

_FILL: Final[Sequence[Column]] = (
    ("GPUs allocated %", lambda run: run.gpu_allocated_percent, ".2f"),
    ("pods placed", lambda run: run.pods_placed, _COUNT),
)
_STREAM: Final[Sequence[Column]] = (
    ("utilisation %", lambda run: run.utilisation_percent, ".2f"),
    ("while arriving %", lambda run: run.utilisation_while_arriving_percent, ".2f"),
    ("wait p50 s", lambda run: run.wait[0].p50 if run.wait else None, ",.0f"),
    ("wait p95 s", lambda run: run.wait[0].p95 if run.wait else None, ",.0f"),
    ("wait p99 s", lambda run: run.wait[0].p99 if run.wait else None, ",.0f"),
    ("never ran", lambda run: run.wait[0].never if run.wait else None, _COUNT),
)
_GANGS: Final[Sequence[Column]] = (
    ("leaves a gang", lambda run: run.span.leaves_mean, ".2f"),
    ("most leaves", lambda run: run.span.leaves_max, _COUNT),
    ("spines a gang", lambda run: run.span.spines_mean, ".2f"),
    ("gangs across leaves", lambda run: run.span.crossing_leaf, _COUNT),
)
_SLOWDOWN: Final[Sequence[Column]] = (
    ("slow-down", lambda run: run.slowdown.mean if run.slowdown else None, ".3f"),
    ("slow-down p95", lambda run: run.slowdown.p95 if run.slowdown else None, ".3f"),
)
_ALWAYS: Final[Sequence[Column]] = (
    ("decisions/s", lambda run: run.decisions_per_s, ",.0f"),
    ("wall s", lambda run: run.wall_s, ".1f"),
)

_POLICY: Final = "policy"
_DIFFERENCE: Final = "  difference"
_BORDER: Final = 3
"""Characters around a cell."""


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


def comparison(runs: Sequence[Run], width: int) -> list[Table]:
    """Return a table with a row for each policy: means over its seeds, as its caption says.

    Args:
        runs: of all policies.
        width: characters of a line; what goes beyond it is another table.
    """
    columns = [*columns_of(runs), *_ALWAYS]
    rows = [
        [policy, *(_cell(mean_of(some, value), form) for _, value, form in columns)]
        for policy, some in by_policy(runs).items()
    ]
    return _tables(title_of(runs[0]), note_on(runs), columns, rows, width)


def differences(before: Sequence[Run], after: Sequence[Run], width: int) -> list[Table]:
    """Return a table of what a change makes of each policy: without it, with it, and the difference.

    Args:
        before: runs as things are.
        after: runs after the change, of the same policies and seeds.
        width: as of `comparison`.
    """
    columns = columns_of([*before, *after])
    old = by_policy(before)
    rows = []
    for policy, some in by_policy(after).items():
        lines = differing(old.get(policy, []), some, columns)
        rows += [[name, *line] for name, line in zip((policy, "  with", _DIFFERENCE), lines, strict=True)]
    return _tables(f"what if {after[0].what_if}", note_on(after), columns, rows, width)


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


def _tables(title: str, note: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[Table]:
    """Return the columns in tables that are no wider than a line, each with the names of the rows."""
    first = min(max(len(row[0]) for row in [[_POLICY], *rows]), width // 2)
    room = width - first - _BORDER - 1
    names = [name for name, _, _ in columns]
    numbers = [max(len(row[at]) for row in rows) for at in range(1, len(names) + 1)]
    # A heading may be broken between words, a number never.
    least = [max(most, *map(len, name.split())) for name, most in zip(names, numbers, strict=True)]
    found: list[Table] = []
    for some in _parted(least, room):
        # Names are text: in a string rich reads what is in brackets as markup.
        head = None if found else Text(title)
        table = Table(title=head, caption=(note or None) if not found else None)
        table.add_column(_POLICY, overflow="fold", width=first)
        spare = room - sum(least[at] + _BORDER for at in some)
        for at in some:
            more = max(0, min(spare, len(names[at]) - least[at]))
            spare -= more
            table.add_column(names[at], justify="right", width=least[at] + more)
        for row in rows:
            table.add_row(Text(row[0]), *(row[at + 1] for at in some), end_section=row[0] == _DIFFERENCE)
        found.append(table)
    return found


def _parted(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return positions of columns, as many together as there is room for."""
    parts: list[list[int]] = []
    left = 0
    for at, width in enumerate(widths):
        if not parts or width + _BORDER > left:
            parts.append([])
            left = room
        parts[-1].append(at)
        left -= width + _BORDER
    return parts


def written(value: float, form: str) -> str:
    """Return a value in the form of its column."""
    return format(round(value, 1) if form.endswith("g") else value, form)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else written(value, form)


def _signed(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    told = written(value, "+" + form)
    return told.lstrip("+-") if not told.strip("+-0.,") else told
