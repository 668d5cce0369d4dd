"""Which pods would have to end for gangs in segments, and gangs whose pods differ or look at other pods.

Whether these fit is known to the planner alone. Domains are looked at in order of what making room there costs at
least, until that is no less than what was found. In one with few units sets of them are tried in order of what they
cost, but for those that free too little whatever the planner would do with it. In others units are left out by halves,
and then sets are tried where there are not too many of them. Where the search ends at a bound nothing is told to end
without need, and the way out says that a smaller set may do.
"""

import sys
from collections.abc import Iterator, Sequence
from math import comb, inf
from typing import Final

import numpy as np

from topo_scheduler.scheduling.explaining.cheapest_sets import GangRegion, places_for
from topo_scheduler.scheduling.explaining.ending import fits_without, offer_to_end, place_without, wait_for
from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.explaining.ways import Scene
from topo_scheduler.scheduling.rules.neighbours import looks_around
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.operation_budget import charge

TRIALS: Final = 48
"""How often the planner is asked when units are left out by halves."""
MOST_TRIALS: Final = 128
"""How often the planner was asked when no further place, or set of units, is tried."""
EVERY_SET: Final = 8
"""Units of a place up to which every set of them is tried."""
MOST_SETS: Final = 4_096
"""Sets that are looked at in the search for the least."""
SETS_AT_ONCE: Final = 50
"""Sets that are looked at between two pauses."""
SET_OPERATIONS: Final = 30
"""What it costs to see whether a set frees enough."""
FEW_TIMES: Final = 12
"""Times up to which each is asked about. Of more it is taken that what fits at one fits at all that follow."""

Units = Sequence[int]


def by_trial(scene: Scene, rule: SizeRule, running: Running) -> Iterator[None]:
    """Wait until pods end of which that is known, or end some, by asking the planner a bounded number of times."""
    yield from _until_they_end(scene, running)
    places = yield from places_for(scene, rule, running)
    search = _EndingSearch(scene, running)
    yield from search.run(places)
    if search.units:
        offer_to_end(scene, running, search.units, least=search.certain)


def _until_they_end(scene: Scene, running: Running) -> Iterator[None]:
    """The time at which enough has ended of what is known to end."""
    eligible = np.full(scene.what_if.planner.nodes.rows, _look_around(scene))
    for cls, _ in scene.ask.groups:
        eligible |= scene.what_if.planner.views.get(cls).eligible
    known = (running.ends > scene.wall) & (running.ends < inf)
    timed = running.units_on(eligible, known)
    times = sorted({running.units[n].ends for n in timed})
    low = 0
    if len(times) > FEW_TIMES:
        high = len(times) - 1
        while low < high:
            middle = (low + high) // 2
            if (yield from fits_without(scene, running, _ended_by(running, timed, times[middle]))):
                high = middle
            else:
                low = middle + 1
        times = times[: low + 1]
    for moment in times[low:]:
        if (yield from wait_for(scene, running, _ended_by(running, timed, moment))):
            return


def _look_around(scene: Scene) -> bool:
    return any(looks_around(cls) for cls, _ in scene.ask.groups)


def _ended_by(running: Running, units: Units, moment: float) -> list[int]:
    return [n for n in units if running.units[n].ends <= moment]


class _EndingSearch:
    """The cheapest units without which a workload has a place, over all places where it may be."""

    def __init__(self, scene: Scene, running: Running) -> None:
        self._scene = scene
        self._running = running
        self._asked_before = scene.what_if.asked
        self._sets = 0
        constraints = [cls.constraints for cls, _ in scene.ask.groups if cls.constraints is not None]
        self._wants_others = any(one.affinity or one.spread for one in constraints)
        """Whether there may be room with others there, and none without them."""
        self.units: Units = ()
        """The cheapest that were found."""
        self._cost: tuple[int, ...] = (sys.maxsize,)
        self.certain = True
        """Whether no cheaper ones were overlooked."""

    def run(self, places: Sequence[GangRegion]) -> Iterator[None]:
        """Look in all places that may be cheaper than what was found in those before."""
        useful = sorted({unit for place in places for unit in place.units})
        if not useful or not (self._wants_others or (yield from fits_without(self._scene, self._running, useful))):
            return
        for place in places:
            if place.bound >= self._cost:
                return
            if self._exhausted:
                self.certain = False
                return
            yield from self._look_in(place)

    @property
    def _exhausted(self) -> bool:
        return self._scene.what_if.asked - self._asked_before >= MOST_TRIALS

    def _look_in(self, place: GangRegion) -> Iterator[None]:
        if len(place.units) > EVERY_SET:
            yield from self._by_halves(place)
            if place.bound >= self._cost or not (self.units or self._wants_others):
                return
            many = len(self.units) if self.units else len(place.units)
            if sum(comb(len(place.units), size) for size in range(1, many + 1)) > MOST_SETS:
                self.certain = False
                return
        yield from self._by_sets(place)

    def _by_sets(self, place: GangRegion) -> Iterator[None]:
        """Try every set of units that is cheaper than what was found, the cheapest first."""
        for cost, units in place.sets():
            if cost >= self._cost:
                return
            if self._sets >= MOST_SETS or self._exhausted:
                self.certain = False
                return
            self._sets += 1
            if self._sets % SETS_AT_ONCE == 0:
                yield
            if any(part < least for part, least in zip(cost, place.bound, strict=True)):
                continue
            charge(SET_OPERATIONS)
            if place.may_hold(units) and (yield from fits_without(self._scene, self._running, units)):
                self.units, self._cost = units, cost
                return

    def _by_halves(self, place: GangRegion) -> Iterator[None]:
        """Of the units on nodes where the gang would go let as many stay as can; what remains is not the least."""
        scene, running = self._scene, self._running
        decision = yield from place_without(scene, running, place.units)
        if decision is None:
            return
        rows = {seat.row for seat in decision.seats}
        units = [n for n in place.units if any(pod.row in rows for pod in running.units[n].pods)]
        if not units or not (yield from fits_without(scene, running, units)):
            units = list(place.units)
        units.sort(key=lambda n: (running.units[n].cost, n), reverse=True)
        left, parts = set(units), [units]
        began = scene.what_if.asked
        while parts and scene.what_if.asked - began < TRIALS:
            part = parts.pop()
            rest = left - set(part)
            if rest and (yield from fits_without(scene, running, sorted(rest))):
                left = rest
            elif len(part) > 1:
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]
        cost = place.cost(sorted(left))
        if cost < self._cost:
            self.units, self._cost = sorted(left), cost
