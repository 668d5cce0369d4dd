"""The pictures of a report, each with what it tells in a sentence and in a table."""

from collections.abc import Mapping, Sequence
from typing import Final

from topo_scheduler.simulation.report import charts
from topo_scheduler.simulation.report.charts import Axis, Look, Series
from topo_scheduler.simulation.report.markup import Markup, tag
from topo_scheduler.simulation.report.sides import BROKEN, ROOM, USED, Course, Side, by_size, spans_of, waits_of
from topo_scheduler.simulation.results.figures import ALL
from topo_scheduler.simulation.results.table import written

_UNITS: Final = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_ROWS: Final = 10
"""Moments of a table of lines."""
_SINGLE: Final = 8
"""Most leaves that have a bar of their own; above, powers of two share one."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> Markup:
    """Return a table whose first column names its rows."""
    head = tag("tr", *(tag("th", name, scope="col") for name in header))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", one) for one in row[1:])) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body), class_=kind or None), class_="scroll")


def cell(value: float | None, form: str) -> str:
    """Return a number as a table tells it."""
    return "–" if value is None else written(value, form)


def utilisation(course: Course) -> Markup:
    """Return GPUs in use over time; in a fill, allocated against asked for."""
    if course.fill:
        heading, about = (
            "GPUs allocated",
            (
                "GPUs allocated against GPUs asked for so far, both in percent of those there are. Nobody leaves; the"
                " dotted line is what was asked for."
            ),
        )
    else:
        heading, about = "Utilisation over time", "GPUs in use, in percent of those there are."
    picture = _lines(course, heading, USED, charts.exact(charts.even("GPUs in use %", 100), 100), ".1f")
    return _section(heading, about + _bands(course), *picture)


def waits(course: Course) -> Markup:
    """Return how long workloads of each size waited."""
    found = [waits_of(side) for side in course.sides]
    sizes = [size for size in by_size(course.sides) if any(size in one for one in found)]
    most = max((value or 0.0 for one in found for values in one.values() for value in values), default=0.0)
    values = [
        [_range(side, size, one.get(size)) for size in sizes] for side, one in zip(course.sides, found, strict=True)
    ]
    looks = _looks(course)
    axes = ("GPUs of the workload", charts.seconds("wait", most))
    drawn = charts.ranges("Queue wait by gang size", sizes, looks, values, axes)
    picture: tuple[Markup, ...] = (charts.legend(looks), _of(axes[1]), drawn)
    if most <= charts.SHORTEST:
        ran = any(one.get(ALL, [None])[0] is not None for one in found)
        picture = (tag("p", "Nobody waited for longer than a second." if ran else "No workload ran."),)
    rows = [
        [side.name, name, *(_waited(column.get(size)) for size in [ALL, *sizes])]
        for side, one in zip(course.sides, [_columns(one) for one in found], strict=True)
        for name, column in one.items()
    ]
    rows += [
        [side.name, "never ran", *(f"{_never(side, size):,}" for size in [ALL, *sizes])]
        for side in course.sides
        if _never(side, ALL)
    ]
    rows.sort(key=lambda row: [side.name for side in course.sides].index(row[0]))
    about = (
        "From arrival until all pods of the workload ran: the mark is the median, the ticks above it are the 95th and"
        " the 99th percentile. Who never ran is in none of them, and counted in the table."
    )
    told = table(["policy", "", "all", *sizes], rows)
    return _section("Queue wait by gang size", about, *picture, told)


def placed(course: Course) -> Markup:
    """Return how many workloads of each size were placed: what a fill tells in place of waits."""
    sizes, looks = by_size(course.sides), _looks(course)
    values, rows = [], []
    for side in course.sides:
        shares = [_share(side.placed.get(size, (0, 0))) for size in sizes]
        named = zip(shares, sizes, strict=True)
        values.append([(one, f"{side.name}, {size} GPUs: {one:.1f} %") for one, size in named])
        rows.append([side.name, *(f"{one:.1f}" for one in shares)])
    axis = charts.exact(charts.even("placed %", 100), 100)
    picture = charts.bars("Workloads placed by size", sizes, looks, values, ("GPUs of the workload", axis))
    about = "Workloads that were placed as a whole, in percent of those that came. Small ones find room to the last."
    told = table(["% placed", *sizes], rows)
    return _section("Workloads placed by size", about, charts.legend(looks, bars=True), _of(axis), picture, told)


def spans(course: Course) -> Markup:
    """Return over how many leaves gangs lie."""
    counts = [spans_of(side) for side in course.sides]
    if not any(counts):
        return _section("Leaves a gang spans", "No workload of more than one pod ran: there are no gangs to tell of.")
    top = max(max(one, default=0) for one in counts)
    groups = _leaf_groups(top)
    looks, values, rows = _looks(course), [], []
    for side, one in zip(course.sides, counts, strict=True):
        many = [sum(count for leaves, count in one.items() if low <= leaves <= high) for low, high in groups]
        shares = [100 * count / max(1, one.total()) for count in many]
        told = [f"{side.name}: {count:,} gangs, {share:.1f} %" for count, share in zip(many, shares, strict=True)]
        values.append(list(zip(shares, told, strict=True)))
        rows.append([side.name, *(f"{count:,} ({share:.1f} %)" for count, share in zip(many, shares, strict=True))])
    names = [str(low) if low == high else f"{low}-{high}" for low, high in groups]
    axis = charts.even("gangs %", max(share for one in values for share, _ in one))
    picture = charts.bars("Leaves a gang spans", names, looks, values, ("leaves", axis))
    about = "Gangs, workloads of more than one pod, in percent, by how many leaves they lie over. One is best."
    told_rows = table(["gangs over", *(f"{name} {'leaf' if name == '1' else 'leaves'}" for name in names)], rows)
    return _section("Leaves a gang spans", about, charts.legend(looks, bars=True), _of(axis), picture, told_rows)


def fragmentation(course: Course) -> list[Markup]:
    """Return what is free, and of how little use it is."""
    broken = max((float(side.lines[BROKEN].high.max()) for side in course.sides), default=0.0)
    room = max((float(side.lines[ROOM].high.max()) for side in course.sides), default=0.0)
    return [
        _section(
            "Fragmentation",
            "GPUs that are free on nodes of which others are in use, in percent of all GPUs: no workload that wants a"
            " whole node can have them. Less is better." + _bands(course),
            *_lines(course, "Fragmentation", BROKEN, charts.even("free on broken nodes %", broken, least=1.0), ".1f"),
        ),
        _section(
            "Room for a gang in one leaf",
            "GPUs of the largest gang of whole nodes that one leaf has room for. More is better: a larger gang must"
            " wait, or lie over several leaves." + _bands(course),
            *_lines(course, "Room for a gang in one leaf", ROOM, charts.even("GPUs", room, least=1.0), ",.0f"),
        ),
    ]


# ---------------------------------------------------------------- parts


def _section(heading: str, about: str, *parts: Markup) -> Markup:
    return tag("section", tag("h2", heading), tag("p", about), *parts)


def _of(axis: Axis) -> Markup:
    """Return what an upright axis tells; it stands above the picture."""
    return tag("p", axis.title, class_="of")


def _bands(course: Course) -> str:
    seeds = max(len(side.runs) for side in course.sides)
    return f" Lines are means of {seeds} seeds, bands from the least to the most of them." if seeds > 1 else ""


def _looks(course: Course) -> list[Look]:
    return [Look(side.name, side.colour, side.dash) for side in course.sides]


def _lines(course: Course, title: str, name: str, y: Axis, form: str) -> tuple[Markup, ...]:
    looks = _looks(course)
    moments = course.moments.tolist()
    end = moments[-1]
    if end <= 0:
        ran = any(run.started for side in course.sides for run in side.runs)
        why = "what ran began at once and stays" if ran else "as no workload ran"
        return (tag("p", f"No time passed, {why}: there is nothing to draw."),)
    if course.fill:
        x, unit = charts.exact(charts.even("GPUs asked for %", end), end), 1.0
    else:
        unit, called = next((one for one in _UNITS if end >= 2 * one[0]), _UNITS[-1])
        x = charts.exact(charts.even(called, end, unit=unit), end)
    drawn = [
        Series(look, side.lines[name].mean.tolist(), side.lines[name].low.tolist(), side.lines[name].high.tolist())
        for look, side in zip(looks, course.sides, strict=True)
    ]
    picture = charts.lines(title, moments, drawn, (x, y), diagonal=course.fill and name == USED)
    step = max(1, (len(moments) - 1) // _ROWS)
    at = range(step, len(moments), step)
    header = [x.title, *(f"{moments[one] / unit:,.1f}" for one in at)]
    rows = [[one.look.name, *(format(one.values[position], form) for position in at)] for one in drawn]
    return charts.legend(looks), _of(y), picture, table(header, rows)


def _range(side: Side, size: str, found: Sequence[float | None] | None) -> tuple[float, float, float, str] | None:
    if found is None or found[0] is None:
        return None
    low, middle, high = (value or 0.0 for value in found)
    said = f"{side.name}, {size} GPUs: median {readable(low)}, p95 {readable(middle)}, p99 {readable(high)}"
    return low, middle, high, said


def _columns(found: Mapping[str, Sequence[float | None]]) -> dict[str, dict[str, float | None]]:
    return {name: {size: one[at] for size, one in found.items()} for at, name in enumerate(("p50", "p95", "p99"))}


def _waited(value: float | None) -> str:
    return "–" if value is None else readable(value)


def _never(side: Side, size: str) -> int:
    return sum(wait.never for run in side.runs for wait in run.wait if wait.gpus == size)


def readable(value: float) -> str:
    """Return seconds as people say them, in two digits or more."""
    if value < 60:
        return f"{value:.0f} s" if value >= 10 or value == int(value) else f"{value:.1f} s"
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if value >= unit:
            return f"{value / unit:.1f} {name}" if value < 10 * unit else f"{value / unit:,.0f} {name}"
    raise AssertionError(value)


def _share(counts: tuple[int, int]) -> float:
    return 100 * counts[0] / counts[1] if counts[1] else 0.0


def _leaf_groups(top: int) -> list[tuple[int, int]]:
    if top <= _SINGLE:
        return [(leaves, leaves) for leaves in range(1, top + 1)]
    found, low = [(1, 1), (2, 2)], 3
    while low <= top:
        found.append((low, 2 * (low - 1)))
        low = 2 * (low - 1) + 1
    return found
