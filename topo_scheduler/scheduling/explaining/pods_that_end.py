"""Waiting for pods that end, or ending some."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from topo_scheduler.scheduling.explaining.ending import fits_without, offer_to_end, wait_for
from topo_scheduler.scheduling.explaining.ending_by_trial import by_trial
from topo_scheduler.scheduling.explaining.freeing import Board
from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.explaining.ways import Scene
from topo_scheduler.scheduling.rules.neighbours import looks_around
from topo_scheduler.state.decision import SizeRule

VERIFIED: Final = 6
"""Sets of pods to end that the planner is asked about, the cheapest first."""


def pods_that_end(scene: Scene, running: Running) -> Iterator[None]:
    """Wait until pods end of which that is known, or end some."""
    if scene.rule is not None and running.pods:
        alike = len(scene.ask.groups) == 1 and not looks_around(scene.ask.groups[0][0])
        if alike and not scene.ask.in_segments:
            yield from _by_arrays(scene, scene.rule, running)
        else:
            yield from by_trial(scene, scene.rule, running)


def _by_arrays(scene: Scene, rule: SizeRule, running: Running) -> Iterator[None]:
    planner = scene.what_if.planner
    boards = []
    for view in planner.views_for(scene.ask):
        boards.append(Board(planner, view, scene.ask, scene.layout, rule, running))
        yield
    yield from _until_they_end(scene, boards, running)
    cleared: list[tuple[tuple[int, int], int, int, tuple[int, ...]]] = []
    for number, board in enumerate(boards):
        for one in board.clearances():
            if one is not None:
                cleared.append((one.cost, number, one.region, one.units))
            yield
    exact = all(board.exact for board in boards)
    for at, (_, _, _, units) in enumerate(sorted(cleared)[:VERIFIED]):
        if (yield from fits_without(scene, running, units)):
            offer_to_end(scene, running, units, least=exact and at == 0)
            return


def _until_they_end(scene: Scene, boards: Sequence[Board], running: Running) -> Iterator[None]:
    """The time at which enough has ended of what is known to end."""
    # What should have ended by now tells nothing any more.
    ends = np.where(running.ends > scene.wall, running.ends, np.inf)
    times = np.unique(ends[np.isfinite(ends)])
    of_pod = ends[running.unit]
    yield
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if any(board.any_holds(board.fits(of_pod <= times[middle])) is not None for board in boards):
            high = middle
        else:
            low = middle + 1
        yield
    for moment in times[low : low + 3].tolist():
        for board in boards:
            region = board.any_holds(board.fits(of_pod <= moment))
            yield
            if region is None:
                continue
            inside = np.zeros(scene.what_if.planner.nodes.rows, np.bool_)
            inside[region.rows] = True
            near = running.units_on(inside, ends <= moment)
            yield
            if (yield from wait_for(scene, running, near)):
                return
