"""The sections of a report: each has a chart, an explanation and a table."""

from collections.abc import Mapping, Sequence
from typing import Final

from topo_scheduler.simulation.report import charts
from topo_scheduler.simulation.report.charts import Axis, Look
from topo_scheduler.simulation.report.markup import Markup, tag
from topo_scheduler.simulation.report.sides import BROKEN, ROOM, USED, Course, Side, by_size, spans_of, waits_of
from topo_scheduler.simulation.results.figures import ALL
from topo_scheduler.simulation.results.table import written

_UNITS: Final = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_TABLE_ROWS: Final = 10
"""Number of times in the table of a line chart."""
_MAX_SINGLE_LEAVES: Final = 8
"""Largest number of leaves with a bar of its own; larger numbers share bars up to powers of two."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> Markup:
    """Return a table with row headers in the first column."""
    head = tag("tr", *(tag("th", name, scope="col") for name in header))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", text) for text in row[1:])) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body), class_=kind or None), class_="scroll")


def cell(value: float | None, form: str) -> str:
    """Return a number as text for a table."""
    return "–" if value is None else written(value, form)


def utilisation(course: Course) -> Markup:
    """Return the section on GPUs in use over time; in a fill, allocated against requested GPUs."""
    if course.fill:
        heading, explanation = (
            "GPUs allocated",
            (
                "GPUs allocated against GPUs requested so far, both in percent of the GPUs of the cluster. Jobs never"
                " finish; the dotted line is the requested GPUs."
            ),
        )
    else:
        heading, explanation = "Utilisation over time", "GPUs in use, in percent of the GPUs of the cluster."
    picture = _lines(course, heading, USED, charts.exact(charts.even("GPUs in use %", 100), 100), ".1f")
    return _section(heading, explanation + _bands(course), *picture)


def waits(course: Course) -> Markup:
    """Return the section on waits of workloads by size."""
    waits_by_side = [waits_of(side) for side in course.sides]
    sizes = [size for size in by_size(course.sides) if any(size in side_waits for side_waits in waits_by_side)]
    longest = max(
        (value or 0.0 for side_waits in waits_by_side for values in side_waits.values() for value in values),
        default=0.0,
    )
    values = [
        [_range(side, size, side_waits.get(size)) for size in sizes]
        for side, side_waits in zip(course.sides, waits_by_side, strict=True)
    ]
    looks = _looks(course)
    axes = ("GPUs of the workload", charts.seconds("wait", longest))
    chart = charts.ranges("Queue wait by gang size", sizes, looks, values, axes)
    picture: tuple[Markup, ...] = (charts.legend(looks), _axis_title(axes[1]), chart)
    if longest <= charts.SHORTEST_SECONDS:
        ran = any(side_waits.get(ALL, [None])[0] is not None for side_waits in waits_by_side)
        picture = (tag("p", "No workload waited for longer than a second." if ran else "No workload ran."),)
    rows = [
        [side.name, name, *(_waited(column.get(size)) for size in [ALL, *sizes])]
        for side, side_waits in zip(course.sides, [_columns(side_waits) for side_waits in waits_by_side], strict=True)
        for name, column in side_waits.items()
    ]
    rows += [
        [side.name, "never ran", *(f"{_never(side, size):,}" for size in [ALL, *sizes])]
        for side in course.sides
        if _never(side, ALL)
    ]
    rows.sort(key=lambda row: [side.name for side in course.sides].index(row[0]))
    explanation = (
        "From arrival until all pods of the workload ran: the mark is the median, the ticks above it are the 95th and"
        " the 99th percentile. Workloads that never ran are not included; the table counts them."
    )
    waits_table = table(["policy", "", "all", *sizes], rows)
    return _section("Queue wait by gang size", explanation, *picture, waits_table)


def placed(course: Course) -> Markup:
    """Return the section on placed workloads by size, which a fill shows instead of waits."""
    sizes, looks = by_size(course.sides), _looks(course)
    values, rows = [], []
    for side in course.sides:
        shares = [_share(side.placed.get(size, (0, 0))) for size in sizes]
        sized_shares = zip(shares, sizes, strict=True)
        values.append([(percent, f"{side.name}, {size} GPUs: {percent:.1f} %") for percent, size in sized_shares])
        rows.append([side.name, *(f"{percent:.1f}" for percent in shares)])
    axis = charts.exact(charts.even("placed %", 100), 100)
    picture = charts.bars("Workloads placed by size", sizes, looks, values, ("GPUs of the workload", axis))
    explanation = (
        "Workloads that were placed as a whole, in percent of those that came. Small ones find room to the last."
    )
    shares_table = table(["% placed", *sizes], rows)
    legend = charts.legend(looks, bars=True)
    return _section("Workloads placed by size", explanation, legend, _axis_title(axis), picture, shares_table)


def spans(course: Course) -> Markup:
    """Return the section on the number of leaves that gangs span."""
    counts = [spans_of(side) for side in course.sides]
    if not any(counts):
        return _section("Leaves a gang spans", "No workload of more than one pod ran: there are no gangs to show.")
    top = max(max(side_counts, default=0) for side_counts in counts)
    groups = _leaf_groups(top)
    looks, values, rows = _looks(course), [], []
    for side, side_counts in zip(course.sides, counts, strict=True):
        gang_counts = [
            sum(count for leaves, count in side_counts.items() if low <= leaves <= high) for low, high in groups
        ]
        shares = [100 * count / max(1, side_counts.total()) for count in gang_counts]
        tooltips = [
            f"{side.name}: {count:,} gangs, {share:.1f} %" for count, share in zip(gang_counts, shares, strict=True)
        ]
        values.append(list(zip(shares, tooltips, strict=True)))
        rows.append(
            [side.name, *(f"{count:,} ({share:.1f} %)" for count, share in zip(gang_counts, shares, strict=True))]
        )
    names = [str(low) if low == high else f"{low}-{high}" for low, high in groups]
    axis = charts.even("gangs %", max(share for side_values in values for share, _ in side_values))
    picture = charts.bars("Leaves a gang spans", names, looks, values, ("leaves", axis))
    explanation = (
        "Gangs, workloads of more than one pod, in percent, by the number of leaves that they span. One is best."
    )
    gangs_table = table(["gangs over", *(f"{name} {'leaf' if name == '1' else 'leaves'}" for name in names)], rows)
    return _section(
        "Leaves a gang spans", explanation, charts.legend(looks, bars=True), _axis_title(axis), picture, gangs_table
    )


def fragmentation(course: Course) -> list[Markup]:
    """Return the sections on fragmentation: GPUs free on partly used nodes, and room for a gang in one leaf."""
    broken = max((max(side.lines[BROKEN].high) for side in course.sides), default=0.0)
    room = max((max(side.lines[ROOM].high) for side in course.sides), default=0.0)
    return [
        _section(
            "Fragmentation",
            "GPUs that are free on nodes of which others are in use, in percent of all GPUs: no workload that"
            " requests whole nodes can use them. Less is better." + _bands(course),
            *_lines(
                course, "Fragmentation", BROKEN, charts.even("free on broken nodes %", broken, lowest_end=1.0), ".1f"
            ),
        ),
        _section(
            "Room for a gang in one leaf",
            "GPUs of the largest gang of whole nodes that one leaf has room for. More is better: a larger gang stays"
            " pending or spans several leaves." + _bands(course),
            *_lines(course, "Room for a gang in one leaf", ROOM, charts.even("GPUs", room, lowest_end=1.0), ",.0f"),
        ),
    ]


# ---------------------------------------------------------------- parts


def _section(heading: str, explanation: str, *parts: Markup) -> Markup:
    return tag("section", tag("h2", heading), tag("p", explanation), *parts)


def _axis_title(axis: Axis) -> Markup:
    """Return the title of the y axis, which stands above the chart."""
    return tag("p", axis.title, class_="of")


def _bands(course: Course) -> str:
    seeds = max(len(side.runs) for side in course.sides)
    return f" Lines are means of {seeds} seeds, bands from the lowest to the highest of them." if seeds > 1 else ""


def _looks(course: Course) -> list[Look]:
    return [Look(side.name, side.colour, side.dash) for side in course.sides]


def _lines(course: Course, title: str, name: str, y: Axis, form: str) -> tuple[Markup, ...]:
    looks = _looks(course)
    moments = course.moments.tolist()
    end = moments[-1]
    if end <= 0:
        ran = any(run.started for side in course.sides for run in side.runs)
        explanation = "what ran began at once and stays" if ran else "as no workload ran"
        return (tag("p", f"No time passed, {explanation}: there is nothing to draw."),)
    if course.fill:
        x, unit = charts.exact(charts.even("GPUs asked for %", end), end), 1.0
    else:
        unit, unit_name = next((unit_entry for unit_entry in _UNITS if end >= 2 * unit_entry[0]), _UNITS[-1])
        x = charts.exact(charts.even(unit_name, end, unit=unit), end)
    series = [side.lines[name] for side in course.sides]
    picture = charts.lines(title, moments, looks, series, (x, y), diagonal=course.fill and name == USED)
    step = max(1, (len(moments) - 1) // _TABLE_ROWS)
    indexes = range(step, len(moments), step)
    header = [x.title, *(f"{moments[index] / unit:,.1f}" for index in indexes)]
    rows = [
        [side.name, *(format(side.lines[name].mean[position], form) for position in indexes)] for side in course.sides
    ]
    return charts.legend(looks), _axis_title(y), picture, table(header, rows)


def _range(side: Side, size: str, percentiles: Sequence[float | None] | None) -> tuple[float, float, float, str] | None:
    if percentiles is None or percentiles[0] is None:
        return None
    low, middle, high = (value or 0.0 for value in percentiles)
    tooltip = f"{side.name}, {size} GPUs: median {readable(low)}, p95 {readable(middle)}, p99 {readable(high)}"
    return low, middle, high, tooltip


def _columns(waits: Mapping[str, Sequence[float | None]]) -> dict[str, dict[str, float | None]]:
    return {
        name: {size: percentiles[index] for size, percentiles in waits.items()}
        for index, name in enumerate(("p50", "p95", "p99"))
    }


def _waited(value: float | None) -> str:
    return "–" if value is None else readable(value)


def _never(side: Side, size: str) -> int:
    return sum(wait.never_ran for run in side.runs for wait in run.wait if wait.gpus == size)


def readable(value: float) -> str:
    """Return seconds in a readable unit, with at least two digits."""
    if value < 60:
        return f"{value:.0f} s" if value >= 10 or value == int(value) else f"{value:.1f} s"
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if value >= unit:
            return f"{value / unit:.1f} {name}" if value < 10 * unit else f"{value / unit:,.0f} {name}"
    raise AssertionError(value)


def _share(counts: tuple[int, int]) -> float:
    return 100 * counts[0] / counts[1] if counts[1] else 0.0


def _leaf_groups(top: int) -> list[tuple[int, int]]:
    if top <= _MAX_SINGLE_LEAVES:
        return [(leaves, leaves) for leaves in range(1, top + 1)]
    groups, low = [(1, 1), (2, 2)], 3
    while low <= top:
        groups.append((low, 2 * (low - 1)))
        low = 2 * (low - 1) + 1
    return groups
