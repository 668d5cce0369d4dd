"""Draw charts as SVG: lines, bars and ranges. Colours and dashes are classes of the page's style sheet.

Each chart is drawn twice, wide and narrow, so that text has the same size on phones and on large screens. The style
sheet shows one of them. The charts need no script.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

from topo_scheduler.simulation.report.markup import Markup, join, number, tag

COLOUR_COUNT: Final = 10
DASH_COUNT: Final = 5
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 12, 44
_BAND_OPACITY: Final = 0.14
"""Opacity of the bands of up to three sides; more sides share the total of three, so bands never hide lines."""
SHORTEST_SECONDS: Final = 1.0
"""Start of a logarithmic axis, in seconds; smaller values are drawn there."""


@dataclass(frozen=True, slots=True)
class Look:
    """The style of one side: indexes of its colour and its dash."""

    name: str
    colour: int
    dash: int

    @property
    def classes(self) -> str:
        """Its classes in the style sheet."""
        return f"c{self.colour % COLOUR_COUNT} d{self.dash % DASH_COUNT}"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its title, its end, and its ticks with their labels."""

    title: str
    top: float
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        if self.logarithmic:
            return log10(max(value, SHORTEST_SECONDS) / SHORTEST_SECONDS) / max(
                log10(self.top / SHORTEST_SECONDS), 1e-9
            )
        return value / self.top if self.top else 0.0


def even(title: str, highest: float, *, unit: float = 1.0, lowest_end: float = 0.0, whole: bool = False) -> Axis:
    """Return an axis from 0 to at least a value, with round ticks.

    Args:
        title: title of the axis.
        highest: the largest value.
        unit: unit of the labels, in units of the values.
        lowest_end: lower bound of the end of the axis.
        whole: whether ticks are whole numbers only.
    """
    units = max(highest, lowest_end, 1e-9) / unit
    step = _round_step(units / 5)
    step = max(1.0, ceil(step)) if whole else step
    count = ceil(units / step - 1e-9)
    digits = max(0, -floor(log10(step) + 1e-9))
    # Steps such as 2.5 and 0.25 need one more digit than their magnitude.
    digits += abs(round(step, digits) - step) > step / 100
    return Axis(
        title, count * step * unit, [(index * step * unit, f"{index * step:,.{digits}f}") for index in range(count + 1)]
    )


def exact(axis: Axis, top: float) -> Axis:
    """Return an axis cut at ``top``, with the ticks up to there."""
    return Axis(axis.title, top, [tick for tick in axis.ticks if tick[0] <= top * (1 + 1e-9)])


def seconds(title: str, highest: float) -> Axis:
    """Return a logarithmic axis from one second to at least ``highest`` seconds."""
    marks = ((1, "≤ 1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (36_000, "10 h"))
    days = ((4 * 86_400, "4 d"), (40 * 86_400, "40 d"), (400 * 86_400, "400 d"), (4000 * 86_400, "4,000 d"))
    ticks = [(float(value), label) for value, label in (*marks, *days)]
    top = next((value for value, _ in ticks[1:] if value >= highest), highest)
    return Axis(title, top, [tick for tick in ticks if tick[0] <= top], logarithmic=True)


def _round_step(raw: float) -> float:
    power = 10.0 ** floor(log10(raw))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))


# ---------------------------------------------------------------- frames


@dataclass(frozen=True, slots=True)
class _Frame:
    """The dimensions of a chart, in pixels at full size."""

    width: float
    height: float
    kind: str

    @property
    def inner(self) -> tuple[float, float]:
        return self.width - _LEFT - _RIGHT, self.height - _TOP - _BOTTOM

    def x(self, share: float) -> float:
        return _LEFT + share * self.inner[0]

    def y(self, share: float) -> float:
        return _TOP + (1 - share) * self.inner[1]


_WIDE: Final = _Frame(860, 340, "wide")
_NARROW: Final = _Frame(370, 300, "narrow")


def _drawn(title: str, draw: Callable[[_Frame], Markup]) -> Markup:
    return join(
        *(
            tag(
                "svg",
                tag("title", title),
                draw(frame),
                class_=f"chart {frame.kind}",
                viewBox=f"0 0 {number(frame.width)} {number(frame.height)}",
                role="img",
            )
            for frame in (_WIDE, _NARROW)
        )
    )


def _rules(frame: _Frame, y: Axis) -> Markup:
    lines = []
    for value, label in y.ticks:
        y_position = frame.y(y.share(value))
        lines.append(tag("line", class_="rule", x1=_LEFT, x2=frame.width - _RIGHT, y1=y_position, y2=y_position))
        lines.append(tag("text", label, class_="tick", x=_LEFT - 6, y=y_position + 4, text_anchor="end"))
    return join(*lines)


def _below(frame: _Frame, ticks: Sequence[tuple[float, str]], title: str) -> Markup:
    # If labels would overlap, show only every second, third or further one.
    widest = max((7 * len(label) for _, label in ticks), default=0)
    stride = max(1, ceil(widest * len(ticks) / max(1.0, frame.inner[0])))
    labels = [
        tag("text", label, class_="tick", x=frame.x(position), y=frame.height - _BOTTOM + 17, text_anchor="middle")
        for position, label in list(ticks)[::stride]
    ]
    middle = frame.x(0.5)
    return join(*labels, tag("text", title, class_="axis", x=middle, y=frame.height - 6, text_anchor="middle"))


def legend(looks: Sequence[Look], *, bars: bool = False) -> Markup:
    """Return the legend: the line or bar of each side with its name."""
    items = []
    for look in looks:
        shape = (
            tag("rect", class_=f"bar {look.classes}", x=2, y=2, width=20, height=10)
            if bars
            else join(tag("line", class_=f"line {look.classes}", x1=0, x2=34, y1=7, y2=7), _mark(look, 17, 7))
        )
        width = 24 if bars else 34
        sample = tag("svg", shape, viewBox=f"0 0 {width} 14", width=width, height=14, aria_hidden="true")
        items.append(tag("li", sample, look.name))
    return tag("ul", *items, class_="legend")


def _mark(look: Look, x: float, y: float, size: float = 4, tooltip: str = "") -> Markup:
    """Return the mark of a side. Each colour has its own shape, so colour vision is not needed to distinguish sides."""
    shapes = (
        None,
        ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
        ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
        ((0, 1.3), (1.2, -0.9), (-1.2, -0.9)),
        ((-1.4, -0.5), (1.4, -0.5), (1.4, 0.5), (-1.4, 0.5)),
        ((-0.5, -1.4), (0.5, -1.4), (0.5, 1.4), (-0.5, 1.4)),
        ((-1.3, -0.3), (0, -1.4), (1.3, -0.3), (0.8, 1.2), (-0.8, 1.2)),
        ((-1.3, 0), (0.9, -1.2), (0.9, 1.2)),
        ((1.3, 0), (-0.9, -1.2), (-0.9, 1.2)),
    )
    points = shapes[look.colour % len(shapes)]
    title = tag("title", tooltip) if tooltip else None
    hollow = " hollow" if look.dash else ""
    if points is None:
        return tag("circle", title, class_=f"mark {look.classes}{hollow}", cx=x, cy=y, r=size)
    outline = " ".join(f"{number(x + dx * size)},{number(y + dy * size)}" for dx, dy in points)
    return tag("polygon", title, class_=f"mark {look.classes}{hollow}", points=outline)


# ---------------------------------------------------------------- charts


@dataclass(frozen=True, slots=True)
class Series:
    """Values of a side at all times: the mean, the lowest and the highest over the seeds."""

    mean: list[float]
    low: list[float]
    high: list[float]


def lines(
    title: str,
    xs: Sequence[float],
    looks: Sequence[Look],
    series: Sequence[Series],
    axes: tuple[Axis, Axis],
    *,
    diagonal: bool = False,
) -> Markup:
    """Return a line chart over time.

    Args:
        title: title of the chart.
        xs: the times.
        looks: styles of the sides.
        series: values of all sides.
        axes: the axis of times and the axis of values.
        diagonal: whether to draw the line of equal x and y.
    """
    x, y = axes

    def draw(frame: _Frame) -> Markup:
        def place(moment: float, value: float) -> tuple[float, float]:
            return frame.x(x.share(moment)), frame.y(y.share(value))

        elements = [_rules(frame, y), _below(frame, [(x.share(value), label) for value, label in x.ticks], x.title)]
        opacity = min(_BAND_OPACITY, 3 * _BAND_OPACITY / max(1, len(series)))
        if diagonal:
            diagonal_end = min(x.top, y.top)
            (x1, y1), (x2, y2) = place(0, 0), place(diagonal_end, diagonal_end)
            diagonal_title = tag("title", "all that was asked for")
            elements.append(tag("line", diagonal_title, class_="ideal", x1=x1, y1=y1, x2=x2, y2=y2))
        for look, side in zip(looks, series, strict=True):
            if side.low != side.high:
                upper_edge = [place(*point) for point in zip(xs, side.high, strict=True)]
                lower_edge = [place(*point) for point in zip(xs, side.low, strict=True)]
                band = _path([*upper_edge, *reversed(lower_edge)]) + "Z"
                elements.append(tag("path", class_=f"band {look.classes}", opacity=opacity, d=band))
        for side_number, (look, side) in enumerate(zip(looks, series, strict=True)):
            points = [place(*point) for point in zip(xs, side.mean, strict=True)]
            elements.append(tag("path", tag("title", look.name), class_=f"line {look.classes}", d=_path(points)))
            shift = (2 * side_number + 1) / (2 * len(series))
            for mark_number in range(6):
                position = min(len(points) - 1, int((mark_number + shift) * len(points) / 6))
                tooltip = f"{look.name}: {side.mean[position]:,.1f} at {_labelled(x, xs[position])}"
                elements.append(_mark(look, *points[position], tooltip=tooltip))
        return join(*elements)

    return _drawn(title, draw)


def _labelled(axis: Axis, value: float) -> str:
    unit = next((position / float(label.replace(",", "")) for position, label in axis.ticks if position), 1.0)
    return f"{value / unit:,.1f} {axis.title}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return an SVG path in tenths of pixels; points inside a horizontal line are left out."""
    kept: list[tuple[float, float]] = []
    for x, y in ((round(x, 1), round(y, 1)) for x, y in points):
        if len(kept) > 1 and kept[-1][1] == y == kept[-2][1]:
            kept[-1] = (x, y)
        else:
            kept.append((x, y))
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in kept)


def bars(
    title: str,
    groups: Sequence[str],
    looks: Sequence[Look],
    values: Sequence[Sequence[tuple[float, str]]],
    axes: tuple[str, Axis],
) -> Markup:
    """Return a chart with bars of all sides, group by group.

    Args:
        title: title of the chart.
        groups: names of the groups.
        looks: styles of the sides.
        values: value and tooltip of each side in each group.
        axes: the title of the x axis, and the axis of values.
    """
    x_title, y = axes

    def draw(frame: _Frame) -> Markup:
        elements = [_rules(frame, y)]
        group_share = 1 / max(1, len(groups))
        bar_share = group_share * 0.8 / max(1, len(looks))
        for group in range(len(groups)):
            for side_number, look in enumerate(looks):
                value, tooltip = values[side_number][group]
                left = frame.x(group * group_share + group_share * 0.1 + side_number * bar_share)
                top, bottom = frame.y(y.share(value)), frame.y(0)
                width = max(0.5, bar_share * frame.inner[0] - (1 if bar_share * frame.inner[0] > 4 else 0))
                bar = tag("rect", tag("title", tooltip), class_=f"bar {look.classes}", x=left, y=top, width=width,
                          height=max(0.0, bottom - top))  # fmt: skip
                elements.append(bar)
        elements.append(
            _below(frame, [((position + 0.5) * group_share, name) for position, name in enumerate(groups)], x_title)
        )
        return join(*elements)

    return _drawn(title, draw)


def ranges(
    title: str,
    groups: Sequence[str],
    looks: Sequence[Look],
    values: Sequence[Sequence[tuple[float, float, float, str] | None]],
    axes: tuple[str, Axis],
) -> Markup:
    """Return a chart with ranges of all sides: a mark at the first value, ticks at the second and the third.

    Args:
        title: title of the chart.
        groups: names of the groups.
        looks: styles of the sides.
        values: three values and a tooltip of each side in each group; None without values.
        axes: the title of the x axis, and the axis of values.
    """
    x_title, y = axes

    def draw(frame: _Frame) -> Markup:
        elements = [_rules(frame, y)]
        group_share = 1 / max(1, len(groups))
        for group in range(len(groups)):
            if group % 2:
                left, right = frame.x(group * group_share), frame.x((group + 1) * group_share)
                elements.append(tag("rect", class_="stripe", x=left, y=_TOP, width=right - left, height=frame.inner[1]))
        for group in range(len(groups)):
            for side_number, look in enumerate(looks):
                range_values = values[side_number][group]
                if range_values is None:
                    continue
                x_position = frame.x(group_share * (group + 0.12 + 0.76 * (side_number + 0.5) / len(looks)))
                low, middle, high = (frame.y(y.share(value)) for value in range_values[:3])
                half = min(5.0, 0.3 * group_share * frame.inner[0] / len(looks))
                elements.append(
                    tag("line", class_=f"range {look.classes}", x1=x_position, x2=x_position, y1=low, y2=high)
                )
                kind, x1, x2 = f"range {look.classes}", x_position - half, x_position + half
                elements += [tag("line", class_=kind, x1=x1, x2=x2, y1=level, y2=level) for level in (middle, high)]
                elements.append(_mark(look, x_position, low, min(4.0, half + 1), range_values[3]))
        elements.append(
            _below(frame, [((position + 0.5) * group_share, name) for position, name in enumerate(groups)], x_title)
        )
        return join(*elements)

    return _drawn(title, draw)
