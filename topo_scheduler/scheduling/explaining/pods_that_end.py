"""Remedies that wait for pods to end, or that end pods."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from topo_scheduler.scheduling.explaining.ending import fits_without, offer_to_end, wait_for
from topo_scheduler.scheduling.explaining.ending_by_trial import by_trial
from topo_scheduler.scheduling.explaining.freeing import Board
from topo_scheduler.scheduling.explaining.remedies import Scene
from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.rules.interpod_filters import looks_around
from topo_scheduler.state.decision import SizeRule

MAX_VERIFIED_SETS: Final = 6
"""Sets of pods to end that the search verifies with the planner at most, the cheapest first."""


def pods_that_end(scene: Scene, running: Running) -> Iterator[None]:
    """Offer to wait for pods whose end is known, or to end pods."""
    if scene.rule is not None and running.pods:
        one_class = len(scene.ask.groups) == 1 and not looks_around(scene.ask.groups[0][0])
        if one_class and not scene.ask.in_segments:
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
    for board_number, board in enumerate(boards):
        for clearance in board.clearances():
            if clearance is not None:
                cleared.append((clearance.cost, board_number, clearance.region, clearance.units))
            yield
    exact = all(board.exact for board in boards)
    for rank, (_, _, _, units) in enumerate(sorted(cleared)[:MAX_VERIFIED_SETS]):
        if (yield from fits_without(scene, running, units)):
            offer_to_end(scene, running, units, least=exact and rank == 0)
            return


def _until_they_end(scene: Scene, boards: Sequence[Board], running: Running) -> Iterator[None]:
    """Find the time at which enough of the pods with a known end have ended."""
    # An expected end in the past says nothing about when the pods end.
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
    for time in times[low : low + 3].tolist():
        for board in boards:
            region = board.any_holds(board.fits(of_pod <= time))
            yield
            if region is None:
                continue
            inside = np.zeros(scene.what_if.planner.nodes.rows, np.bool_)
            inside[region.rows] = True
            near = running.units_on(inside, ends <= time)
            yield
            if (yield from wait_for(scene, running, near)):
                return
