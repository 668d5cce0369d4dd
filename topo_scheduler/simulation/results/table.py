"""The table that compares policies, split into several tables where the terminal is too narrow."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Final

from rich.table import Table
from rich.text import Text

from topo_scheduler.simulation.results.model import Run

Value = Callable[[Run], float | None]
Column = tuple[str, Value, str]

_COUNT_FORMAT: Final = ",.10g"
"""Format of counts: whole numbers; means over several seeds may have one decimal."""

_FILL_COLUMNS: Final[Sequence[Column]] = (
    ("GPUs allocated %", lambda run: run.gpu_allocated_percent, ".2f"),
    ("pods placed", lambda run: run.pods_placed, _COUNT_FORMAT),
)
_STREAM_COLUMNS: Final[Sequence[Column]] = (
    ("utilisation %", lambda run: run.utilisation_percent, ".2f"),
    ("while arriving %", lambda run: run.utilisation_while_arriving_percent, ".2f"),
    ("wait p50 s", lambda run: run.wait[0].p50 if run.wait else None, ",.0f"),
    ("wait p95 s", lambda run: run.wait[0].p95 if run.wait else None, ",.0f"),
    ("wait p99 s", lambda run: run.wait[0].p99 if run.wait else None, ",.0f"),
    ("never ran", lambda run: run.wait[0].never_ran if run.wait else None, _COUNT_FORMAT),
)
_GANG_COLUMNS: Final[Sequence[Column]] = (
    ("leaves a gang", lambda run: run.span.leaves_mean, ".2f"),
    ("most leaves", lambda run: run.span.leaves_max, _COUNT_FORMAT),
    ("spines a gang", lambda run: run.span.spines_mean, ".2f"),
    ("gangs across leaves", lambda run: run.span.crossing_leaf, _COUNT_FORMAT),
)
_SLOWDOWN_COLUMNS: Final[Sequence[Column]] = (
    ("slowdown", lambda run: run.slowdown.mean if run.slowdown else None, ".3f"),
    ("slowdown p95", lambda run: run.slowdown.p95 if run.slowdown else None, ".3f"),
)
_COMMON_COLUMNS: Final[Sequence[Column]] = (
    ("decisions/s", lambda run: run.decisions_per_s, ",.0f"),
    ("wall s", lambda run: run.wall_s, ".1f"),
)

_POLICY: Final = "policy"
_DIFFERENCE: Final = "  difference"
_BORDER_CHARACTERS: Final = 3
"""Width of borders and padding of a cell, in characters."""


def columns_of(runs: Sequence[Run]) -> list[Column]:
    """Return the columns for tables of runs: heading, function that returns the value of a run, and format."""
    columns = [*(_FILL_COLUMNS if runs and runs[0].fill is not None else _STREAM_COLUMNS)]
    columns += _GANG_COLUMNS if any(run.span.gangs for run in runs) else ()
    columns += _SLOWDOWN_COLUMNS if _estimated(runs) else ()
    return columns


def _estimated(runs: Iterable[Run]) -> bool:
    return any(run.slowdown is not None and run.slowdown.gangs for run in runs)


def title_of(run: Run) -> str:
    """Return the title of a table: the workload, the cluster, and the target of a fill."""
    fill = f", filled to {run.fill:g} of its GPUs" if run.fill is not None else ""
    return f"{run.workload} on {run.cluster}{fill}"


def note_on(runs: Sequence[Run]) -> str:
    """Return the footnote of a table of runs; may be empty."""
    seeds = len({run.seed for run in runs})
    notes = [f"means of {seeds} seeds"] if seeds > 1 else []
    if _estimated(runs):
        share = runs[0].slowdown_assumes.communication
        notes.append(f"slowdown: estimated for steps that are {share:.0%} all-reduce")
    return "; ".join(notes)


def by_policy(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return runs by their policy, in order."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.policy].append(run)
    return groups


def by_change(runs: Iterable[Run]) -> dict[str | None, list[Run]]:
    """Return runs by their what-if change, in order; None stands for the unchanged case."""
    groups: dict[str | None, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.what_if].append(run)
    return groups


def mean_of(runs: Iterable[Run], value: Value) -> float | None:
    """Return the mean over runs with a value; None if no run has one."""
    values = [number for run in runs if (number := value(run)) is not None]
    return mean(values) if values else None


def comparison(runs: Sequence[Run], width: int) -> list[Table]:
    """Return a table with a row for each policy: means over its seeds.

    Args:
        runs: the runs of all policies.
        width: characters of a line; further columns go to another table.
    """
    columns = [*columns_of(runs), *_COMMON_COLUMNS]
    rows = [
        [policy, *(_cell(mean_of(policy_runs, value), form) for _, value, form in columns)]
        for policy, policy_runs in by_policy(runs).items()
    ]
    return _tables(title_of(runs[0]), note_on(runs), columns, rows, width)


def differences(before: Sequence[Run], after: Sequence[Run], width: int) -> list[Table]:
    """Return a table of the effect of a change on each policy: without it, with it, and the difference.

    Args:
        before: runs without the change.
        after: runs with the change, of the same policies and seeds.
        width: characters of a line, as in `comparison`.
    """
    columns = columns_of([*before, *after])
    runs_before = by_policy(before)
    rows = []
    for policy, changed_runs in by_policy(after).items():
        lines = differing(runs_before.get(policy, []), changed_runs, columns)
        rows += [[name, *line] for name, line in zip((policy, "  with", _DIFFERENCE), lines, strict=True)]
    return _tables(f"what if {after[0].what_if}", note_on(after), columns, rows, width)


def differing(before: Sequence[Run], after: Sequence[Run], columns: Sequence[Column]) -> tuple[list[str], ...]:
    """Return the cells of three rows: without a change, with it, and the difference.

    Seeds that only one side has, because a run was lost, do not count.
    """
    common_seeds = {run.seed for run in before} & {run.seed for run in after}
    rows: tuple[list[str], ...] = ([], [], [])
    for _, value, form in columns:
        old, new = (mean_of((run for run in side if run.seed in common_seeds), value) for side in (before, after))
        delta = None if old is None or new is None else new - old
        cells = (_cell(old, form), _cell(new, form), _signed(delta, form))
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    return rows


def _tables(title: str, note: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[Table]:
    """Return tables no wider than a line; each has the row names and some of the columns."""
    policy_width = min(max(len(row[0]) for row in [[_POLICY], *rows]), width // 2)
    room = width - policy_width - _BORDER_CHARACTERS - 1
    names = [name for name, _, _ in columns]
    number_widths = [max(len(row[position]) for row in rows) for position in range(1, len(names) + 1)]
    # A heading may wrap between words, a number may not.
    least_widths = [
        max(number_width, *map(len, name.split())) for name, number_width in zip(names, number_widths, strict=True)
    ]
    tables: list[Table] = []
    for positions in _parted(least_widths, room):
        # Text objects, because rich interprets brackets in strings as markup.
        table_title = None if tables else Text(title)
        table = Table(title=table_title, caption=(note or None) if not tables else None)
        table.add_column(_POLICY, overflow="fold", width=policy_width)
        spare = room - sum(least_widths[position] + _BORDER_CHARACTERS for position in positions)
        for position in positions:
            extra = max(0, min(spare, len(names[position]) - least_widths[position]))
            spare -= extra
            table.add_column(names[position], justify="right", width=least_widths[position] + extra)
        for row in rows:
            table.add_row(
                Text(row[0]), *(row[position + 1] for position in positions), end_section=row[0] == _DIFFERENCE
            )
        tables.append(table)
    return tables


def _parted(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return groups of column positions, each as many as fit in ``room`` characters."""
    parts: list[list[int]] = []
    free_width = 0
    for position, width in enumerate(widths):
        if not parts or width + _BORDER_CHARACTERS > free_width:
            parts.append([])
            free_width = room
        parts[-1].append(position)
        free_width -= width + _BORDER_CHARACTERS
    return parts


def written(value: float, form: str) -> str:
    """Return a value in the format of its column."""
    return format(round(value, 1) if form.endswith("g") else value, form)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else written(value, form)


def _signed(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    text = written(value, "+" + form)
    return text.lstrip("+-") if not text.strip("+-0.,") else text
