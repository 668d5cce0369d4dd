"""What a report compares: each policy, as things are and after each change, from its runs to lines of figures."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topo_scheduler.simulation.report.fabric_map import MapRun, map_run
from topo_scheduler.simulation.results.figures import order_of_size, size_of
from topo_scheduler.simulation.results.model import Result, Run
from topo_scheduler.simulation.virtual.history import RunHistory

Floats = NDArray[np.float64]
Read = Callable[[Run], RunHistory]

POINTS: Final = 200
"""Moments of a line."""


@dataclass(slots=True)
class SeriesLine:
    """Values at all moments: the mean of the seeds, and the least and the most of them."""

    mean: Floats
    low: Floats
    high: Floats


@dataclass(slots=True)
class Side:
    """A policy under a change, or none. ``colour`` by policy, ``dash`` by change: positions, from 0."""

    policy: str
    what_if: str | None
    colour: int
    dash: int
    runs: list[Run]
    lines: dict[str, SeriesLine] = field(default_factory=dict)
    placed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Workloads by size: how many ran whole, and how many there were."""
    map: MapRun | None = None
    """Of its first seed."""

    @property
    def name(self) -> str:
        """What it is called in pictures."""
        return f"{self.policy}, {self.what_if}" if self.what_if else self.policy


@dataclass(frozen=True, slots=True)
class Course:
    """All sides over the same moments.

    ``moments`` seconds, or in a fill GPUs asked for in percent of those there are. ``used`` in a stream is a mean from
    the moment before up to each; all else is what is so at a moment.
    """

    fill: bool
    moments: Floats
    sides: list[Side]


USED: Final = "used"
"""GPUs held, in percent of all."""
BROKEN: Final = "broken"
"""GPUs that are free on nodes of which others are held, in percent of all."""
ROOM: Final = "room"
"""Most GPUs on nodes that are free as a whole, in one leaf."""


def course_of(result: Result, read: Read) -> Course:
    """Return what a report shows; one run's placements are in memory at a time.

    Args:
        result: with at least one run.
        read: returns the placements of a run.
    """
    runs = result.runs
    fill = runs[0].fill
    end = max((run.end_seconds or 0.0 for run in runs), default=0.0)
    moments = np.linspace(0.0, 100 * fill if fill is not None else end, POINTS + 1)
    sides = _sides(runs)
    for side in sides:
        found: dict[str, list[Floats]] = defaultdict(list)
        placed: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for run in side.runs:
            history = read(run)
            at = _arrivals(history, moments) if history.order else moments
            for name, values in _lines(history, at).items():
                found[name].append(values)
            for outcome in history.outcomes:
                counts = placed[size_of(outcome.milli)]
                counts[0] += outcome.started < inf
                counts[1] += 1
            if run is side.runs[0]:
                side.map = map_run(history, max(history.end, 0.0) if history.order else end)
        side.lines = {name: _line(values) for name, values in found.items()}
        side.placed = {size: (placed[size][0], placed[size][1]) for size in sorted(placed, key=order_of_size)}
    return Course(fill is not None, moments, sides)


def _sides(runs: Sequence[Run]) -> list[Side]:
    policies = list(dict.fromkeys(run.policy for run in runs))
    changes = list(dict.fromkeys([None, *(run.what_if for run in runs)]))
    groups: dict[tuple[str, str | None], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.policy, run.what_if].append(run)
    return [
        Side(policy, change, policies.index(policy), changes.index(change), groups[policy, change])
        for policy in policies
        for change in changes
        if (policy, change) in groups
    ]


def _line(values: Sequence[Floats]) -> SeriesLine:
    stacked = np.stack(values)
    return SeriesLine(stacked.mean(axis=0), stacked.min(axis=0), stacked.max(axis=0))


# ---------------------------------------------------------------- one run


def _arrivals(history: RunHistory, asked: Floats) -> Floats:
    """Return the number of the last arrival by which so much was asked for, in percent of the GPUs there are."""
    told = np.cumsum([outcome.milli for outcome in history.outcomes] or [0])
    whole = max(1, sum(history.capacity))
    return np.searchsorted(told, asked * whole / 100 - 1e-6, side="left").astype(np.float64)


def _lines(history: RunHistory, at: Floats) -> dict[str, Floats]:
    whole = max(1, sum(history.capacity))
    broken, room = _free(history, at)
    used = _held(history, at) if history.order else _held_between(history, at)
    return {USED: 100 * used / whole, BROKEN: 100 * broken / whole, ROOM: room / 1000}


def _held(history: RunHistory, at: Floats) -> Floats:
    """Return the thousandths of GPUs that are held at moments."""
    total = np.zeros(len(at))
    for times, milli in _edges(history):
        sums = np.concatenate(([0], np.cumsum(milli)))
        total += sums[np.searchsorted(times, at, side="right")]
    return total


def _held_between(history: RunHistory, at: Floats) -> Floats:
    """Return the thousandths of GPUs that were held on average from each moment before; the first is the second."""
    area = np.zeros(len(at))
    for times, milli in _edges(history):
        sums = np.concatenate(([0], np.cumsum(milli)))
        weighted = np.concatenate(([0.0], np.cumsum(milli * times)))
        before = np.searchsorted(times, at, side="right")
        area += sums[before] * at - weighted[before]
    gaps = np.diff(at)
    means = np.divide(np.diff(area), gaps, out=np.zeros(len(gaps)), where=gaps > 0)
    return np.concatenate((means[:1], means)) if len(means) else np.zeros(len(at))


def _edges(history: RunHistory) -> Iterable[tuple[Floats, Floats]]:
    """Yield when GPUs are taken and how many, then when they are given back, as negative numbers."""
    for sign, times in ((1.0, [one.start for one in history.stays]), (-1.0, [one.end for one in history.stays])):
        known = np.array(times, np.float64)
        milli = sign * np.array([one.milli for one in history.stays], np.float64)
        finite = np.isfinite(known)
        order = np.argsort(known[finite], kind="stable")
        yield known[finite][order], milli[finite][order]


def _free(history: RunHistory, at: Floats) -> tuple[Floats, Floats]:
    """Return thousandths of GPUs at moments: free on nodes in part held, and most on free nodes of one leaf."""
    free = list(history.capacity)
    shut = frozenset(history.cordoned)
    leaf_of = _leaves(history)
    rooms = Counter[int]()
    broken = 0
    for node, capacity in enumerate(history.capacity):
        if node not in shut:
            rooms[leaf_of[node]] += capacity
    events = [(one.start, 1, one.node, one.milli) for one in history.stays]
    events += [(one.end, 0, one.node, -one.milli) for one in history.stays if one.end < inf]
    events.sort()
    found_broken, found_room = np.zeros(len(at)), np.zeros(len(at))
    position = 0
    for number, moment in enumerate(at.tolist()):
        while position < len(events) and events[position][0] <= moment:
            _, _, node, milli = events[position]
            position += 1
            if not milli or node in shut:
                continue
            before, capacity = free[node], history.capacity[node]
            after = free[node] = before - milli
            broken += _part(after, capacity) - _part(before, capacity)
            rooms[leaf_of[node]] += capacity * ((after == capacity) - (before == capacity))
        found_broken[number] = broken
        found_room[number] = max(rooms.values(), default=0)
    return found_broken, found_room


def _part(free: int, capacity: int) -> int:
    return free if 0 < free < capacity else 0


def _leaves(history: RunHistory) -> list[int]:
    number: dict[object, int] = {}
    return [number.setdefault(path, len(number)) for path in history.paths]


def by_size(sides: Iterable[Side]) -> list[str]:
    """Return all sizes of workloads, in order."""
    return sorted({size for side in sides for size in side.placed}, key=order_of_size)


def waits_of(side: Side) -> Mapping[str, list[float | None]]:
    """Return p50, p95 and p99 of waits in seconds by size: means over the seeds, as tables tell them."""
    found: dict[str, list[list[float]]] = {}
    for run in side.runs:
        for wait in run.wait:
            columns = found.setdefault(wait.gpus, [[], [], []])
            for column, value in zip(columns, (wait.p50, wait.p95, wait.p99), strict=True):
                if value is not None:
                    column.append(value)
    return {
        size: [sum(column) / len(column) if column else None for column in columns] for size, columns in found.items()
    }


def spans_of(side: Side) -> Counter[int]:
    """Return how many gangs span so many leaves, over all seeds."""
    found = Counter[int]()
    for run in side.runs:
        found.update({int(leaves): count for leaves, count in run.span.leaves.items()})
    return found
