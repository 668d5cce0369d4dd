"""A run as its map needs it: which GPUs a workload holds, from one frame to another.

A map is drawn at evenly spaced moments only, its frames; what begins and ends between two of them is in none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

from topo_scheduler.api.fractions import WHOLE
from topo_scheduler.simulation.virtual.history import RunHistory, Stay
from topo_scheduler.state.natural import natural_key

FRAMES: Final = 401
MOST_ROWS: Final = 120_000
"""Of all maps of a report: some 25 bytes each."""
_FEWEST: Final = 26


@dataclass(slots=True)
class MapRun:
    """Rows of seven integers: job (-1 ran before), node, first GPU, how many, thousandths of each, first frame, end.

    The frame ``end`` is the first without it. Nodes are positions among those with GPUs, in the order of the fabric.
    """

    nodes: list[str]
    paths: list[tuple[str, ...]]
    gpus: list[int]
    cordoned: list[int]
    jobs: list[str]
    pods: list[int]
    end: float
    rows: list[tuple[int, ...]]


def map_run(history: RunHistory, end: float) -> MapRun:
    """Return a run as its map needs it, with `FRAMES` frames from 0 to a moment."""
    order = sorted(
        (node for node, milli in enumerate(history.capacity) if milli),
        key=lambda node: ([natural_key(part) for part in history.paths[node]], natural_key(history.nodes[node])),
    )
    position = {node: number for number, node in enumerate(order)}
    moments = np.linspace(0.0, end, FRAMES)
    rows: list[tuple[int, ...]] = [
        (stay.job, position[stay.node], *run, first, last)
        for stay, slots in seats(history)
        if stay.node in position
        for first, last in [_frames(stay, moments)]
        if first < last
        for run in slots
    ]
    rows.sort(key=lambda row: (row[5], *row))
    return MapRun(
        [history.nodes[node] for node in order],
        [history.paths[node] for node in order],
        [history.capacity[node] // WHOLE for node in order],
        sorted(position[node] for node in history.cordoned if node in position),
        [one.name for one in history.outcomes],
        [one.pods for one in history.outcomes],
        end,
        rows,
    )


def _frames(stay: Stay, moments: Any) -> tuple[int, int]:
    first = int(np.searchsorted(moments, stay.start, side="left"))
    return first, len(moments) if stay.end == inf else int(np.searchsorted(moments, stay.end, side="left"))


def seats(history: RunHistory) -> list[tuple[Stay, list[tuple[int, int, int]]]]:
    """Return the GPUs of each stay as runs of neighbours: the first, how many, and thousandths of each.

    They are those that the scheduler named, where it did; else the first that are free, as a device plugin might have
    chosen: which ones makes no difference then.
    """
    taken = [[0] * (milli // WHOLE) for milli in history.capacity]
    events = [(one.start, 1, number) for number, one in enumerate(history.stays)]
    events += [(one.end, 0, number) for number, one in enumerate(history.stays) if one.end < inf]
    held: dict[int, list[tuple[int, int]]] = {}
    found: list[list[tuple[int, int, int]]] = [[] for _ in history.stays]
    over: set[int] = set()
    for _, begins, number in sorted(events):
        stay = history.stays[number]
        gpus = taken[stay.node]
        if not begins:
            over.add(number)
            for slot, milli in held.pop(number, ()):
                gpus[slot] -= milli
        elif number not in over and stay.milli:
            held[number] = _seat(stay, gpus)
            for slot, milli in held[number]:
                gpus[slot] += milli
            found[number] = _runs(held[number])
    return list(zip(history.stays, found, strict=True))


def _seat(stay: Stay, gpus: Sequence[int]) -> list[tuple[int, int]]:
    if stay.devices:
        each = stay.milli // len(stay.devices)
        return [(slot, each) for slot in sorted(stay.devices) if slot < len(gpus)]
    count = max(1, stay.milli // WHOLE)
    each = stay.milli // count
    # Free ones first; of a node whose GPUs are not told apart there are always enough.
    chosen = sorted(range(len(gpus)), key=lambda slot: (gpus[slot] + each > WHOLE, slot))[:count]
    return [(slot, each) for slot in sorted(chosen)]


def _runs(slots: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for slot, milli in slots:
        if found and found[-1][0] + found[-1][1] == slot and found[-1][2] == milli:
            found[-1] = (found[-1][0], found[-1][1] + 1, milli)
        else:
            found.append((slot, 1, milli))
    return found


# ---------------------------------------------------------------- the data of all maps


@dataclass(frozen=True, slots=True)
class Maps:
    """What the script of the page draws, and which maps are left out since the page would grow too large."""

    data: dict[str, Any]
    left_out: list[str]


def maps_of(runs: Sequence[tuple[str, MapRun]], *, fill: bool, most: int = MOST_ROWS) -> Maps:
    """Return the maps of named runs, with as many frames and of as many runs as fit.

    Args:
        runs: with equal numbers of frames.
        fill: moments are numbers of arrivals.
        most: rows that all may have together.
    """
    step = 1
    while (FRAMES - 1) // step + 1 > _FEWEST and sum(_count(run, step) for _, run in runs) > most:
        step *= 2
    shown: list[dict[str, Any]] = []
    fabrics: list[dict[str, Any]] = []
    workloads: list[dict[str, Any]] = []
    left_out, total = [], 0
    for name, run in runs:
        total += _count(run, step)
        if total > most:
            left_out.append(name)
            continue
        fabric = {"nodes": run.nodes, "paths": _places(run.paths), "gpus": run.gpus, "cordoned": run.cordoned}
        jobs = {"names": run.jobs, "pods": run.pods}
        shown.append(
            {
                "name": name,
                "fabric": _position(fabrics, fabric),
                "jobs": _position(workloads, jobs),
                "end": run.end,
                "rows": _columns(_kept(run, step)),
            }
        )
    frames = (FRAMES - 1) // step + 1
    data = {"fill": fill, "frames": frames, "fabrics": fabrics, "workloads": workloads, "runs": shown}
    return Maps(data, left_out)


def _count(run: MapRun, step: int) -> int:
    return sum(-(-row[5] // step) < -(-row[6] // step) for row in run.rows)


def _kept(run: MapRun, step: int) -> list[tuple[int, ...]]:
    thinned = ((*row[:5], -(-row[5] // step), -(-row[6] // step)) for row in run.rows)
    return [row for row in thinned if row[5] < row[6]]


def _columns(rows: Sequence[tuple[int, ...]]) -> list[list[int]]:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(7)]
    firsts = columns[5]
    columns[5] = [after - before for before, after in zip([0, *firsts], firsts, strict=False)]
    return columns


def _places(paths: Sequence[tuple[str, ...]]) -> list[list[Any]]:
    """Return runs of nodes of one leaf: its path, and how many."""
    found: list[list[Any]] = []
    for path in paths:
        if found and found[-1][0] == list(path):
            found[-1][1] += 1
        else:
            found.append([list(path), 1])
    return found


def _position(known: list[dict[str, Any]], one: dict[str, Any]) -> int:
    if one not in known:
        known.append(one)
    return known.index(one)
