"""The sides that a report compares, one for each policy and change, with their values over time."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topo_scheduler.simulation.report.charts import Series
from topo_scheduler.simulation.report.fabric_map import MapRun, map_run
from topo_scheduler.simulation.results.figures import order_of_size, size_of
from topo_scheduler.simulation.results.model import Result, Run
from topo_scheduler.simulation.virtual.history import RunHistory

Floats = NDArray[np.float64]
Read = Callable[[Run], RunHistory]

INTERVAL_COUNT: Final = 200
"""Number of intervals of a line."""


@dataclass(slots=True)
class Side:
    """A policy with a change or without one. ``colour`` is the index of the policy, ``dash`` that of the change."""

    policy: str
    what_if: str | None
    colour: int
    dash: int
    runs: list[Run]
    lines: dict[str, Series] = field(default_factory=dict)
    placed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By size: number of workloads of which all pods ran, and number of workloads."""
    map: MapRun | None = None
    """The map of its first seed."""

    @property
    def name(self) -> str:
        """Its name in charts."""
        return f"{self.policy}, {self.what_if}" if self.what_if else self.policy


@dataclass(frozen=True, slots=True)
class Course:
    """All sides over the same times.

    ``moments`` are in seconds, or in a fill in requested percent of all GPUs. `USED` in a stream is the mean since the
    previous time; all other values are those at the time.
    """

    fill: bool
    moments: Floats
    sides: list[Side]


USED: Final = "used"
"""Allocated GPUs, in percent of all."""
BROKEN: Final = "broken"
"""GPUs that are free on partly allocated nodes, in percent of all."""
ROOM: Final = "room"
"""Largest number of GPUs on empty nodes of one leaf."""


def course_of(result: Result, read: Read) -> Course:
    """Return the values of a report. Only the placements of one run are in memory at a time.

    Args:
        result: a result with at least one run.
        read: returns the placements of a run.
    """
    runs = result.runs
    fill = runs[0].fill
    end = max((run.end_seconds or 0.0 for run in runs), default=0.0)
    moments = np.linspace(0.0, 100 * fill if fill is not None else end, INTERVAL_COUNT + 1)
    sides = _sides(runs)
    for side in sides:
        values_by_line: dict[str, list[Floats]] = defaultdict(list)
        placed: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for run in side.runs:
            history = read(run)
            times = _arrivals(history, moments) if history.order else moments
            for name, values in _lines(history, times).items():
                values_by_line[name].append(values)
            for outcome in history.outcomes:
                counts = placed[size_of(outcome.milli)]
                counts[0] += outcome.started < inf
                counts[1] += 1
            if run is side.runs[0]:
                side.map = map_run(history, max(history.end, 0.0) if history.order else end)
        side.lines = {name: _line(values) for name, values in values_by_line.items()}
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


def _line(values: Sequence[Floats]) -> Series:
    stacked = np.stack(values)
    return Series(stacked.mean(axis=0).tolist(), stacked.min(axis=0).tolist(), stacked.max(axis=0).tolist())


# ---------------------------------------------------------------- one run


def _arrivals(history: RunHistory, percents: Floats) -> Floats:
    """Return for each requested percentage of all GPUs the number of the arrival that reaches it."""
    requested = np.cumsum([outcome.milli for outcome in history.outcomes] or [0])
    capacity = max(1, sum(history.capacity))
    return np.searchsorted(requested, percents * capacity / 100 - 1e-6, side="left").astype(np.float64)


def _lines(history: RunHistory, times: Floats) -> dict[str, Floats]:
    capacity = max(1, sum(history.capacity))
    broken, room = _free(history, times)
    used = _held(history, times) if history.order else _held_between(history, times)
    return {USED: 100 * used / capacity, BROKEN: 100 * broken / capacity, ROOM: room / 1000}


def _held(history: RunHistory, times: Floats) -> Floats:
    """Return the allocated thousandths of GPUs at times (float64[times])."""
    total = np.zeros(len(times))
    for event_times, milli in _edges(history):
        sums = np.concatenate(([0], np.cumsum(milli)))
        total += sums[np.searchsorted(event_times, times, side="right")]
    return total


def _held_between(history: RunHistory, times: Floats) -> Floats:
    """Return the mean allocated thousandths of GPUs since the previous time; the first value repeats the second."""
    gpu_time = np.zeros(len(times))
    for event_times, milli in _edges(history):
        sums = np.concatenate(([0], np.cumsum(milli)))
        weighted = np.concatenate(([0.0], np.cumsum(milli * event_times)))
        events_before = np.searchsorted(event_times, times, side="right")
        gpu_time += sums[events_before] * times - weighted[events_before]
    gaps = np.diff(times)
    means = np.divide(np.diff(gpu_time), gaps, out=np.zeros(len(gaps)), where=gaps > 0)
    return np.concatenate((means[:1], means)) if len(means) else np.zeros(len(times))


def _edges(history: RunHistory) -> Iterable[tuple[Floats, Floats]]:
    """Yield times and thousandths of GPUs of all allocations, then of all releases, as negative numbers."""
    for sign, times in ((1.0, [stay.start for stay in history.stays]), (-1.0, [stay.end for stay in history.stays])):
        all_times = np.array(times, np.float64)
        milli = sign * np.array([stay.milli for stay in history.stays], np.float64)
        finite = np.isfinite(all_times)
        order = np.argsort(all_times[finite], kind="stable")
        yield all_times[finite][order], milli[finite][order]


def _free(history: RunHistory, times: Floats) -> tuple[Floats, Floats]:
    """Return thousandths of GPUs at times: free on partly allocated nodes, and most on empty nodes of one leaf."""
    free = list(history.capacity)
    cordoned = frozenset(history.cordoned)
    leaf_of = _leaves(history)
    empty_by_leaf = Counter[int]()
    broken = 0
    for node, capacity in enumerate(history.capacity):
        if node not in cordoned:
            empty_by_leaf[leaf_of[node]] += capacity
    events = [(stay.start, 1, stay.node, stay.milli) for stay in history.stays]
    events += [(stay.end, 0, stay.node, -stay.milli) for stay in history.stays if stay.end < inf]
    events.sort()
    broken_at, room_at = np.zeros(len(times)), np.zeros(len(times))
    position = 0
    for number, moment in enumerate(times.tolist()):
        while position < len(events) and events[position][0] <= moment:
            _, _, node, milli = events[position]
            position += 1
            if not milli or node in cordoned:
                continue
            before, capacity = free[node], history.capacity[node]
            after = free[node] = before - milli
            broken += _part(after, capacity) - _part(before, capacity)
            empty_by_leaf[leaf_of[node]] += capacity * ((after == capacity) - (before == capacity))
        broken_at[number] = broken
        room_at[number] = max(empty_by_leaf.values(), default=0)
    return broken_at, room_at


def _part(free: int, capacity: int) -> int:
    return free if 0 < free < capacity else 0


def _leaves(history: RunHistory) -> list[int]:
    number: dict[object, int] = {}
    return [number.setdefault(path, len(number)) for path in history.paths]


def by_size(sides: Iterable[Side]) -> list[str]:
    """Return all sizes of workloads, in order."""
    return sorted({size for side in sides for size in side.placed}, key=order_of_size)


def waits_of(side: Side) -> Mapping[str, list[float | None]]:
    """Return p50, p95 and p99 of waits in seconds by size, as means over the seeds."""
    values_by_size: dict[str, list[list[float]]] = {}
    for run in side.runs:
        for wait in run.wait:
            columns = values_by_size.setdefault(wait.gpus, [[], [], []])
            for column, value in zip(columns, (wait.p50, wait.p95, wait.p99), strict=True):
                if value is not None:
                    column.append(value)
    return {
        size: [sum(column) / len(column) if column else None for column in columns]
        for size, columns in values_by_size.items()
    }


def spans_of(side: Side) -> Counter[int]:
    """Return the number of gangs by the number of leaves that they span, over all seeds."""
    gangs_by_leaves = Counter[int]()
    for run in side.runs:
        gangs_by_leaves.update({int(leaves): count for leaves, count in run.span.leaves.items()})
    return gangs_by_leaves
