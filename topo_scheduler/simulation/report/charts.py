"""Pictures as SVG: lines, bars and ranges. Colours and dashes are classes that the page's style sheet knows.

Each is drawn twice, wide and narrow, so that its letters are as large on a phone as on a desk; the style sheet shows
one of them. Nothing in them needs a script.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

from topo_scheduler.simulation.report.markup import Markup, join, number, tag

COLOURS: Final = 10
DASHES: Final = 5
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 12, 44
_BAND: Final = 0.14
"""How opaque the bands of up to three sides are; of more all together, so that none hides the lines."""
SHORTEST: Final = 1.0
"""What a logarithmic axis begins with, in seconds: all below is drawn there."""


@dataclass(frozen=True, slots=True)
class Look:
    """How one side is drawn: positions of its colour and its dash."""

    name: str
    colour: int
    dash: int

    @property
    def classes(self) -> str:
        """What the style sheet knows it by."""
        return f"c{self.colour % COLOURS} d{self.dash % DASHES}"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: what it tells, its end, and the ticks on it with their labels."""

    title: str
    top: float
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Return where a value is, from 0 to 1."""
        if self.logarithmic:
            return log10(max(value, SHORTEST) / SHORTEST) / max(log10(self.top / SHORTEST), 1e-9)
        return value / self.top if self.top else 0.0


def even(title: str, most: float, *, unit: float = 1.0, least: float = 0.0, whole: bool = False) -> Axis:
    """Return an axis from 0 to at least a value, with round ticks.

    Args:
        title: what it tells.
        most: the largest value.
        unit: of the labels, in units of the values.
        least: where it may not end below.
        whole: of whole numbers alone.
    """
    reach = max(most, least, 1e-9) / unit
    step = _round_step(reach / 5)
    step = max(1.0, ceil(step)) if whole else step
    count = ceil(reach / step - 1e-9)
    digits = max(0, -floor(log10(step) + 1e-9))
    digits += abs(round(step, digits) - step) > step / 100  # 2.5, 0.25: one more than their size tells
    return Axis(title, count * step * unit, [(at * step * unit, f"{at * step:,.{digits}f}") for at in range(count + 1)])


def exact(axis: Axis, top: float) -> Axis:
    """Return an axis that ends where values end, with the ticks that are left."""
    return Axis(axis.title, top, [tick for tick in axis.ticks if tick[0] <= top * (1 + 1e-9)])


def seconds(title: str, most: float) -> Axis:
    """Return a logarithmic axis of seconds up to at least a value; it begins with a second."""
    marks = ((1, "≤ 1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (36_000, "10 h"))
    days = ((4 * 86_400, "4 d"), (40 * 86_400, "40 d"), (400 * 86_400, "400 d"), (4000 * 86_400, "4,000 d"))
    every = [(float(at), told) for at, told in (*marks, *days)]
    top = next((at for at, _ in every[1:] if at >= most), most)
    return Axis(title, top, [tick for tick in every if tick[0] <= top], logarithmic=True)


def _round_step(raw: float) -> float:
    power = 10.0 ** floor(log10(raw))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))


# ---------------------------------------------------------------- frames


@dataclass(frozen=True, slots=True)
class _Frame:
    """A picture's inside, in units that are pixels at its full size."""

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
    for value, told in y.ticks:
        at = frame.y(y.share(value))
        lines.append(tag("line", class_="rule", x1=_LEFT, x2=frame.width - _RIGHT, y1=at, y2=at))
        lines.append(tag("text", told, class_="tick", x=_LEFT - 6, y=at + 4, text_anchor="end"))
    return join(*lines)


def _below(frame: _Frame, ticks: Sequence[tuple[float, str]], title: str) -> Markup:
    # Labels that would run into each other are left out, every second or third of them.
    widest = max((7 * len(told) for _, told in ticks), default=0)
    every = max(1, ceil(widest * len(ticks) / max(1.0, frame.inner[0])))
    labels = [
        tag("text", told, class_="tick", x=frame.x(at), y=frame.height - _BOTTOM + 17, text_anchor="middle")
        for at, told in list(ticks)[::every]
    ]
    middle = frame.x(0.5)
    return join(*labels, tag("text", title, class_="axis", x=middle, y=frame.height - 6, text_anchor="middle"))


def legend(looks: Sequence[Look], *, bars: bool = False) -> Markup:
    """Return which line or bar is whose."""
    items = []
    for look in looks:
        shape = (
            tag("rect", class_=f"bar {look.classes}", x=2, y=2, width=20, height=10)
            if bars
            else join(tag("line", class_=f"line {look.classes}", x1=0, x2=34, y1=7, y2=7), _mark(look, 17, 7))
        )
        wide = 24 if bars else 34
        sample = tag("svg", shape, viewBox=f"0 0 {wide} 14", width=wide, height=14, aria_hidden="true")
        items.append(tag("li", sample, look.name))
    return tag("ul", *items, class_="legend")


def _mark(look: Look, x: float, y: float, size: float = 4, said: str = "") -> Markup:
    """Return the mark of a side, a shape by its colour: who can't tell colours apart can tell these."""
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
    title = tag("title", said) if said else None
    hollow = " hollow" if look.dash else ""
    if points is None:
        return tag("circle", title, class_=f"mark {look.classes}{hollow}", cx=x, cy=y, r=size)
    told = " ".join(f"{number(x + dx * size)},{number(y + dy * size)}" for dx, dy in points)
    return tag("polygon", title, class_=f"mark {look.classes}{hollow}", points=told)


# ---------------------------------------------------------------- pictures


@dataclass(frozen=True, slots=True)
class Series:
    """Values of a side at all moments, and between what they lie over the seeds."""

    look: Look
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def lines(
    title: str,
    xs: Sequence[float],
    series: Sequence[Series],
    axes: tuple[Axis, Axis],
    *,
    diagonal: bool = False,
) -> Markup:
    """Return lines over moments.

    Args:
        title: what it shows.
        xs: the moments.
        series: of all sides.
        axes: of moments and of values.
        diagonal: draw where both are equal.
    """
    x, y = axes

    def draw(frame: _Frame) -> Markup:
        def at(moment: float, value: float) -> tuple[float, float]:
            return frame.x(x.share(moment)), frame.y(y.share(value))

        parts = [_rules(frame, y), _below(frame, [(x.share(value), told) for value, told in x.ticks], x.title)]
        opacity = min(_BAND, 3 * _BAND / max(1, len(series)))
        if diagonal:
            reach = min(x.top, y.top)
            (x1, y1), (x2, y2) = at(0, 0), at(reach, reach)
            told = tag("title", "all that was asked for")
            parts.append(tag("line", told, class_="ideal", x1=x1, y1=y1, x2=x2, y2=y2))
        for one in series:
            if list(one.low) != list(one.high):
                there = [at(*point) for point in zip(xs, one.high, strict=True)]
                back = [at(*point) for point in zip(xs, one.low, strict=True)]
                band = _path([*there, *reversed(back)]) + "Z"
                parts.append(tag("path", class_=f"band {one.look.classes}", opacity=opacity, d=band))
        for number_, one in enumerate(series):
            points = [at(*point) for point in zip(xs, one.values, strict=True)]
            parts.append(tag("path", tag("title", one.look.name), class_=f"line {one.look.classes}", d=_path(points)))
            shift = (2 * number_ + 1) / (2 * len(series))
            for part in range(6):
                position = min(len(points) - 1, int((part + shift) * len(points) / 6))
                said = f"{one.look.name}: {one.values[position]:,.1f} at {_told(x, xs[position])}"
                parts.append(_mark(one.look, *points[position], said=said))
        return join(*parts)

    return _drawn(title, draw)


def _told(axis: Axis, value: float) -> str:
    unit = next((at / float(told.replace(",", "")) for at, told in axis.ticks if at), 1.0)
    return f"{value / unit:,.1f} {axis.title}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return a path in whole pixels and tenths; points in the middle of a straight line are left out."""
    told: list[tuple[float, float]] = []
    for x, y in ((round(x, 1), round(y, 1)) for x, y in points):
        if len(told) > 1 and told[-1][1] == y == told[-2][1]:
            told[-1] = (x, y)
        else:
            told.append((x, y))
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in told)


def bars(
    title: str,
    groups: Sequence[str],
    looks: Sequence[Look],
    values: Sequence[Sequence[tuple[float, str]]],
    axes: tuple[str, Axis],
) -> Markup:
    """Return bars of all sides, group by group.

    Args:
        title: what it shows.
        groups: their names.
        looks: of the sides.
        values: of each side in each group, and what to say of each.
        axes: the title below, and the axis of values.
    """
    below, y = axes

    def draw(frame: _Frame) -> Markup:
        parts = [_rules(frame, y)]
        room = 1 / max(1, len(groups))
        each = room * 0.8 / max(1, len(looks))
        for group in range(len(groups)):
            for number_, look in enumerate(looks):
                value, said = values[number_][group]
                left = frame.x(group * room + room * 0.1 + number_ * each)
                top, bottom = frame.y(y.share(value)), frame.y(0)
                width = max(0.5, each * frame.inner[0] - (1 if each * frame.inner[0] > 4 else 0))
                bar = tag("rect", tag("title", said), class_=f"bar {look.classes}", x=left, y=top, width=width,
                          height=max(0.0, bottom - top))  # fmt: skip
                parts.append(bar)
        parts.append(_below(frame, [((at + 0.5) * room, name) for at, name in enumerate(groups)], below))
        return join(*parts)

    return _drawn(title, draw)


def ranges(
    title: str,
    groups: Sequence[str],
    looks: Sequence[Look],
    values: Sequence[Sequence[tuple[float, float, float, str] | None]],
    axes: tuple[str, Axis],
) -> Markup:
    """Return ranges of all sides, group by group: a mark at the first value, ticks at the second and the third.

    Args:
        title: what it shows.
        groups: their names.
        looks: of the sides.
        values: three of each side in each group and what to say of them; None where there are none.
        axes: the title below, and the axis of values.
    """
    below, y = axes

    def draw(frame: _Frame) -> Markup:
        parts = [_rules(frame, y)]
        room = 1 / max(1, len(groups))
        for group in range(len(groups)):
            if group % 2:
                left, right = frame.x(group * room), frame.x((group + 1) * room)
                parts.append(tag("rect", class_="stripe", x=left, y=_TOP, width=right - left, height=frame.inner[1]))
        for group in range(len(groups)):
            for number_, look in enumerate(looks):
                found = values[number_][group]
                if found is None:
                    continue
                at = frame.x(room * (group + 0.12 + 0.76 * (number_ + 0.5) / len(looks)))
                low, middle, high = (frame.y(y.share(value)) for value in found[:3])
                half = min(5.0, 0.3 * room * frame.inner[0] / len(looks))
                parts.append(tag("line", class_=f"range {look.classes}", x1=at, x2=at, y1=low, y2=high))
                kind, x1, x2 = f"range {look.classes}", at - half, at + half
                parts += [tag("line", class_=kind, x1=x1, x2=x2, y1=level, y2=level) for level in (middle, high)]
                parts.append(_mark(look, at, low, min(4.0, half + 1), found[3]))
        parts.append(_below(frame, [((at + 0.5) * room, name) for at, name in enumerate(groups)], below))
        return join(*parts)

    return _drawn(title, draw)
