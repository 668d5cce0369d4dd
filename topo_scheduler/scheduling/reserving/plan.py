"""The earliest place for a workload that has no room, if pods end as expected and no others are added.

The plan removes the pods that are expected to end from a copy of the state, in order of their ends. The ordinary
planner then searches for a place, and bisection finds the earliest time at which there is one. The result is exact as
far as the expected ends are, for members that do not depend on other pods. For members that do, a place may exist a
little earlier.

If there is no such time, the plan also removes pods without a known end, domain by domain. Domains in which the fewest
members lack room come first. Within a domain, the nodes on which such pods hold the fewest GPUs come first.

Source of the idea: Lifka, The ANL/IBM SP scheduling system, JSSPP 1995 (EASY backfilling), with domains of a fabric in
place of a number of processors.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.regions import regions_for
from topo_scheduler.scheduling.preemption.trial import DepartingPods, Trial, leaving_in_order
from topo_scheduler.scheduling.preemption.victims import Candidate
from topo_scheduler.scheduling.rules.interpod_filters import looks_around
from topo_scheduler.scheduling.rules.volume_choice import have_volumes
from topo_scheduler.state.nodes.resources import GPU, amount_in
from topo_scheduler.state.pods.workloads import MembersByClass
from topo_scheduler.state.topology.fabric import Layout

MAX_TRIALS: Final = 64
"""Maximum number of calls to the planner for one plan; lower for a gang that is placed member by member."""
MAX_DOMAINS: Final = 16
"""Maximum number of domains that are tried if ends are not known."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A bound pod and when it is expected to end, in seconds; infinite if that is not known."""

    pod: Candidate
    end: float


@dataclass(frozen=True, slots=True)
class Prospect:
    """A place that comes free.

    ``start`` is when all pods in ``waits`` have ended, in seconds; infinite if that is not known.
    """

    start: float
    placement: Placement
    waits: tuple[Ending, ...]


class CountingPlanner:
    """The planner on a copy of the current state; counts its calls."""

    def __init__(
        self, planner: Planner, ask: PlacementQuery, layout: Layout, now: float, groups: MembersByClass
    ) -> None:
        """Copy what pods hold. The rest of the planner's state is shared, and must not change as long as this is used.

        Args:
            planner: on the current state, which is not changed.
            ask: the placement query that has no room.
            layout: the fabric.
            now: seconds.
            groups: the members by class, as in the query, for their volumes.
        """
        self._groups = groups
        neighbours = any(looks_around(cls) for cls, _ in ask.groups)
        devices = any(cls.claims for cls, _ in ask.groups)
        self.trial = Trial(planner, layout, now, neighbours=neighbours, devices=devices)
        self.last = Trial(planner, layout, now, neighbours=False, links=False, devices=True) if devices else None
        """A copy on which the devices of the workload are chosen at the end; None if it has no claims."""
        self.ask = ask
        self.layout = layout
        constrained = ask.gang and is_constrained(ask.groups)
        self.left = max(8, 240 // max(1, ask.members)) if constrained else MAX_TRIALS

    def place(self) -> Placement | None:
        """Return where the workload would go, with volumes for all of its members."""
        self.left -= 1
        placement = self.trial.place(self.ask)
        if placement is None or not have_volumes(self.trial.planner.around, self._groups, placement.rows):
            return None
        return placement

    def first(
        self, leaving: DepartingPods, cuts: Sequence[int], placement: Placement
    ) -> Generator[None, None, tuple[int, Placement]]:
        """Return the least number of cuts after which there is a place, and that place. Yields after each part.

        Args:
            leaving: pods that have all left already, which makes room as ``placement`` shows.
            cuts: how many of the pods have left after each cut, ascending.
            placement: the place when all have left.
        """
        low, high = 0, len(cuts)
        while low < high and self.left > 0:
            middle = (low + high) // 2
            yield from self.trial.let_go(leaving, cuts[middle - 1] if middle else 0)
            place = self.place()
            yield
            if place is None:
                low = middle + 1
            else:
                high, placement = middle, place
        return high, placement


def plan_reservation(
    planner: CountingPlanner, dated: Sequence[Ending], undated: Sequence[Ending]
) -> Generator[None, None, Prospect | None]:
    """Choose the place that comes free first. Yields after each part of the work.

    Args:
        planner: a planner on a copy of the state.
        dated: pods whose end is known.
        undated: pods that end at an unknown time; used if the others do not suffice.

    Returns:
        None if there is no such place, or the workload has room already.

    Raises:
        PluginError: a plugin failed, so that there is no result.
    """
    dated = _in_order(dated)
    yield
    leaving = yield from leaving_in_order([ending.pod for ending in dated])
    yield from planner.trial.let_go(leaving, len(dated))
    placement = planner.place()
    yield
    if placement is None:
        return (yield from _without_dates(planner, dated, undated)) if undated else None
    all_ends = np.array([ending.end for ending in dated], np.float64)
    ends = np.unique(all_ends)
    cuts: list[int] = np.searchsorted(all_ends, ends, side="right").tolist()
    number, placement = yield from planner.first(leaving, cuts, placement)
    if not number:
        return None
    return Prospect(float(ends[number - 1]), placement, _on(placement, dated[: cuts[number - 1]]))


def _in_order(dated: Sequence[Ending]) -> list[Ending]:
    """Return pods in order of their ends, and those with the same end in order of row and name."""
    ends = np.array([ending.end for ending in dated], np.float64)
    rows = np.array([ending.pod.row for ending in dated], np.int64)
    order = np.lexsort((rows, ends))
    ordered = [dated[at] for at in order.tolist()]
    alike = (np.diff(ends[order]) == 0) & (np.diff(rows[order]) == 0)
    first = -1
    for at in np.flatnonzero(alike).tolist():
        if at < first:
            continue
        last = at + 1
        while last < len(alike) and alike[last]:
            last += 1
        ordered[at : last + 1] = sorted(ordered[at : last + 1], key=lambda ending: ending.pod.occupant.key)
        first = last
    return ordered


def _without_dates(
    counting: CountingPlanner, dated: Sequence[Ending], undated: Sequence[Ending]
) -> Generator[None, None, Prospect | None]:
    ask, layout = counting.ask, counting.layout
    rule = counting.trial.rule(ask)
    if rule is None:
        return None
    planner = counting.trial.planner
    regions = regions_for(ask, layout, rule)
    free = np.max([view.fit for view in planner.views_for(ask)], axis=0)
    lack = [max(0, ask.members - int(free[region.rows].sum())) for region in regions]
    yield
    by_row: dict[int, list[Ending]] = {}
    for ending in undated:
        by_row.setdefault(ending.pod.row, []).append(ending)
    yield
    gpus = {row: sum(amount_in(ending.pod.amounts, GPU) for ending in pods) for row, pods in by_row.items()}
    yield
    for at in sorted(range(len(regions)), key=lambda at: (lack[at], at))[:MAX_DOMAINS]:
        rows = [row for row in regions[at].rows.tolist() if row in by_row]
        rows.sort(key=lambda row: gpus[row])
        pods = [ending for row in rows for ending in by_row[row]]
        if not pods or counting.left <= 0:
            continue
        leaving = yield from leaving_in_order([ending.pod for ending in pods])
        yield from counting.trial.let_go(leaving, len(pods))
        placement = counting.place()
        yield
        if placement is not None:
            cuts = np.cumsum([len(by_row[row]) for row in rows]).tolist()
            number, placement = yield from counting.first(leaving, cuts, placement)
            return Prospect(inf, placement, _on(placement, [*dated, *pods[: cuts[number - 1] if number else 0]]))
        yield from counting.trial.let_go(leaving, 0)
    return None


def _on(placement: Placement, pods: Sequence[Ending]) -> tuple[Ending, ...]:
    rows = {row for group in placement.rows for row in group}
    return tuple(pod for pod in pods if pod.pod.row in rows)
