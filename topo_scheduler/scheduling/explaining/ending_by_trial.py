"""Which pods would have to end for gangs in segments, and for gangs of several classes or with inter-pod rules.

Only the planner can decide whether these gangs fit. The search visits domains in order of a lower bound of their cost,
until the bound reaches the cost of the best set found. In a domain with few units it tries sets in order of cost,
without those that certainly free too little. In a larger domain it first leaves out units by halves, and then tries
sets if there are not too many. If the search stops at a limit, it still returns no unit without need. The remedy then
says that a smaller set may be enough.
"""

import sys
from collections.abc import Iterator, Sequence
from math import comb, inf
from typing import Final

import numpy as np

from topo_scheduler.scheduling.explaining.cheapest_sets import GangRegion, places_for
from topo_scheduler.scheduling.explaining.ending import fits_without, offer_to_end, place_without, wait_for
from topo_scheduler.scheduling.explaining.remedies import Scene
from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.rules.interpod_filters import looks_around
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.operation_budget import charge

HALVING_QUERIES: Final = 48
"""Queries to the planner while the search leaves out units by halves."""
MAX_QUERIES: Final = 128
"""Queries to the planner after which the search tries no further region or set of units."""
EXHAUSTIVE_UNITS: Final = 8
"""Units of a region up to which the search tries every set of them."""
MAX_SETS: Final = 4_096
"""Sets that the search for the cheapest set checks at most."""
SETS_PER_PART: Final = 50
"""Sets that one part of the work checks, between two pauses."""
SET_OPERATIONS: Final = 30
"""Operations charged to check whether a set frees enough."""
EXHAUSTIVE_TIMES: Final = 12
"""End times up to which the search checks each. With more it assumes that what fits at one time fits later too."""

Units = Sequence[int]


def by_trial(scene: Scene, rule: SizeRule, running: Running) -> Iterator[None]:
    """Offer to wait for pods whose end is known, or to end pods, with a bounded number of queries to the planner."""
    yield from _until_they_end(scene, running)
    regions = yield from places_for(scene, rule, running)
    search = _EndingSearch(scene, running)
    yield from search.run(regions)
    if search.units:
        offer_to_end(scene, running, search.units, least=search.certain)


def _until_they_end(scene: Scene, running: Running) -> Iterator[None]:
    """Find the time at which enough of the pods with a known end have ended."""
    around = any(looks_around(cls) for cls, _ in scene.ask.groups)
    eligible = np.full(scene.what_if.planner.nodes.rows, around)
    for cls, _ in scene.ask.groups:
        eligible |= scene.what_if.planner.views.get(cls).eligible
    has_end = (running.ends > scene.wall) & (running.ends < inf)
    ending = running.units_on(eligible, has_end)
    times = sorted({running.units[number].ends for number in ending})
    low = 0
    if len(times) > EXHAUSTIVE_TIMES:
        high = len(times) - 1
        while low < high:
            middle = (low + high) // 2
            if (yield from fits_without(scene, running, _ended_by(running, ending, times[middle]))):
                high = middle
            else:
                low = middle + 1
        times = times[: low + 1]
    for time in times[low:]:
        if (yield from wait_for(scene, running, _ended_by(running, ending, time))):
            return


def _ended_by(running: Running, units: Units, time: float) -> list[int]:
    return [number for number in units if running.units[number].ends <= time]


class _EndingSearch:
    """Search for the cheapest units without which a workload has a place, over all regions that it may use."""

    def __init__(self, scene: Scene, running: Running) -> None:
        self._scene = scene
        self._running = running
        self._queries_before = scene.what_if.queries
        self._sets = 0
        constraints = [cls.constraints for cls, _ in scene.ask.groups if cls.constraints is not None]
        self._may_need_pods = any(constraint.affinity or constraint.spread for constraint in constraints)
        """Whether the gang may fit only while other pods are there."""
        self.units: Units = ()
        """The cheapest set found so far."""
        self._cost: tuple[int, ...] = (sys.maxsize,)
        self.certain = True
        """Whether the search certainly missed no cheaper set."""

    def run(self, regions: Sequence[GangRegion]) -> Iterator[None]:
        """Search all regions that may be cheaper than the best set found before."""
        useful = sorted({unit for region in regions for unit in region.units})
        if not useful or not (self._may_need_pods or (yield from fits_without(self._scene, self._running, useful))):
            return
        for region in regions:
            if region.bound >= self._cost:
                return
            if self._exhausted:
                self.certain = False
                return
            yield from self._look_in(region)

    @property
    def _exhausted(self) -> bool:
        return self._scene.what_if.queries - self._queries_before >= MAX_QUERIES

    def _look_in(self, region: GangRegion) -> Iterator[None]:
        if len(region.units) > EXHAUSTIVE_UNITS:
            yield from self._by_halves(region)
            if region.bound >= self._cost or not (self.units or self._may_need_pods):
                return
            most_units = len(self.units) if self.units else len(region.units)
            if sum(comb(len(region.units), size) for size in range(1, most_units + 1)) > MAX_SETS:
                self.certain = False
                return
        yield from self._by_sets(region)

    def _by_sets(self, region: GangRegion) -> Iterator[None]:
        """Try every set of units that is cheaper than the best found so far, the cheapest first."""
        for cost, units in region.sets():
            if cost >= self._cost:
                return
            if self._sets >= MAX_SETS or self._exhausted:
                self.certain = False
                return
            self._sets += 1
            if self._sets % SETS_PER_PART == 0:
                yield
            if any(part < bound for part, bound in zip(cost, region.bound, strict=True)):
                continue
            charge(SET_OPERATIONS)
            if region.may_hold(units) and (yield from fits_without(self._scene, self._running, units)):
                self.units, self._cost = units, cost
                return

    def _by_halves(self, region: GangRegion) -> Iterator[None]:
        """Start from the units on the nodes that the gang would use, and keep as many running as possible.

        The result is not necessarily the cheapest.
        """
        scene, running = self._scene, self._running
        decision = yield from place_without(scene, running, region.units)
        if decision is None:
            return
        rows = {seat.row for seat in decision.seats}
        units = [number for number in region.units if any(pod.row in rows for pod in running.units[number].pods)]
        if not units or not (yield from fits_without(scene, running, units)):
            units = list(region.units)
        units.sort(key=lambda number: (running.units[number].cost, number), reverse=True)
        needed, parts = set(units), [units]
        queries_before = scene.what_if.queries
        while parts and scene.what_if.queries - queries_before < HALVING_QUERIES:
            part = parts.pop()
            fewer = needed - set(part)
            if fewer and (yield from fits_without(scene, running, sorted(fewer))):
                needed = fewer
            elif len(part) > 1:
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]
        cost = running.cost(needed)
        if cost < self._cost:
            self.units, self._cost = sorted(needed), cost
