"""The data of the fabric map: the GPUs of each workload, and the frames in which it has them.

Frames are evenly spaced times. A pod that starts and ends between two frames appears in none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import Any, Final

import numpy as np

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.simulation.virtual.history import RunHistory, Stay
from topo_scheduler.state.topology.natural_sort import natural_key

FRAME_COUNT: Final = 401
MAX_ROWS: Final = 120_000
"""Largest number of rows of all maps of a report; a row takes some 25 bytes."""
_MIN_FRAMES: Final = 26


@dataclass(slots=True)
class MapRun:
    """The map of one run. ``end`` is in seconds, or in a fill an arrival number.

    Each row has seven integers: job (-1 ran before the first arrival), node, first GPU, number of GPUs, thousandths of
    each, first frame, and the first frame after its end. Nodes are positions among those with GPUs, in fabric order.
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
    """Return the map of a run, with `FRAME_COUNT` frames from 0 to ``end``."""
    order = sorted(
        (node for node, milli in enumerate(history.capacity) if milli),
        key=lambda node: ([natural_key(part) for part in history.paths[node]], natural_key(history.nodes[node])),
    )
    position = {node: number for number, node in enumerate(order)}
    moments = np.linspace(0.0, end, FRAME_COUNT)
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
        [history.capacity[node] // WHOLE_GPU for node in order],
        sorted(position[node] for node in history.cordoned if node in position),
        [outcome.name for outcome in history.outcomes],
        [outcome.pods for outcome in history.outcomes],
        end,
        rows,
    )


def _frames(stay: Stay, moments: Any) -> tuple[int, int]:
    first = int(np.searchsorted(moments, stay.start, side="left"))
    return first, len(moments) if stay.end == inf else int(np.searchsorted(moments, stay.end, side="left"))


def seats(history: RunHistory) -> list[tuple[Stay, list[tuple[int, int, int]]]]:
    """Return the GPUs of each stay as runs of adjacent GPUs: first index, number, and thousandths of each.

    If the scheduler named the GPUs, these are used. Otherwise the function takes the first free GPUs, as a device
    plugin might do; the choice has no effect then.
    """
    taken = [[0] * (milli // WHOLE_GPU) for milli in history.capacity]
    events = [(stay.start, 1, number) for number, stay in enumerate(history.stays)]
    events += [(stay.end, 0, number) for number, stay in enumerate(history.stays) if stay.end < inf]
    held: dict[int, list[tuple[int, int]]] = {}
    runs_by_stay: list[list[tuple[int, int, int]]] = [[] for _ in history.stays]
    ended: set[int] = set()
    for _, begins, number in sorted(events):
        stay = history.stays[number]
        gpus = taken[stay.node]
        if not begins:
            ended.add(number)
            for slot, milli in held.pop(number, ()):
                gpus[slot] -= milli
        elif number not in ended and stay.milli:
            held[number] = _seat(stay, gpus)
            for slot, milli in held[number]:
                gpus[slot] += milli
            runs_by_stay[number] = _runs(held[number])
    return list(zip(history.stays, runs_by_stay, strict=True))


def _seat(stay: Stay, gpus: Sequence[int]) -> list[tuple[int, int]]:
    if stay.devices:
        milli_each = stay.milli // len(stay.devices)
        return [(slot, milli_each) for slot in sorted(stay.devices) if slot < len(gpus)]
    count = max(1, stay.milli // WHOLE_GPU)
    milli_each = stay.milli // count
    # Free GPUs first; a node without named GPUs always has enough of them.
    chosen = sorted(range(len(gpus)), key=lambda slot: (gpus[slot] + milli_each > WHOLE_GPU, slot))[:count]
    return [(slot, milli_each) for slot in sorted(chosen)]


def _runs(slots: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    runs: list[tuple[int, int, int]] = []
    for slot, milli in slots:
        if runs and runs[-1][0] + runs[-1][1] == slot and runs[-1][2] == milli:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, milli)
        else:
            runs.append((slot, 1, milli))
    return runs


# ---------------------------------------------------------------- the data of all maps


@dataclass(frozen=True, slots=True)
class Maps:
    """Data for the script of the page, and names of the maps left out to limit the size of the page."""

    data: dict[str, Any]
    left_out: list[str]


def maps_of(runs: Sequence[tuple[str, MapRun]], *, fill: bool, max_rows: int = MAX_ROWS) -> Maps:
    """Return the maps of named runs, with as many frames and as many runs as fit into ``max_rows``.

    Args:
        runs: names and maps, all with the same number of frames.
        fill: whether times are arrival numbers.
        max_rows: largest number of rows of all maps together.
    """
    step = 1
    while (FRAME_COUNT - 1) // step + 1 > _MIN_FRAMES and sum(_count(run, step) for _, run in runs) > max_rows:
        step *= 2
    run_data: list[dict[str, Any]] = []
    fabrics: list[dict[str, Any]] = []
    workloads: list[dict[str, Any]] = []
    left_out, total = [], 0
    for name, run in runs:
        total += _count(run, step)
        if total > max_rows:
            left_out.append(name)
            continue
        fabric = {"nodes": run.nodes, "paths": _places(run.paths), "gpus": run.gpus, "cordoned": run.cordoned}
        jobs = {"names": run.jobs, "pods": run.pods}
        run_data.append(
            {
                "name": name,
                "fabric": _position(fabrics, fabric),
                "jobs": _position(workloads, jobs),
                "end": run.end,
                "rows": _columns(_kept(run, step)),
            }
        )
    frames = (FRAME_COUNT - 1) // step + 1
    data = {"fill": fill, "frames": frames, "fabrics": fabrics, "workloads": workloads, "runs": run_data}
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
    """Return runs of adjacent nodes in the same leaf: path of the leaf, and number of nodes."""
    return [[list(path), len(list(nodes))] for path, nodes in groupby(paths)]


def _position(known: list[dict[str, Any]], entry: dict[str, Any]) -> int:
    if entry not in known:
        known.append(entry)
    return known.index(entry)
