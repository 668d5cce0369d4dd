"""Who gives way so that a workload of higher priority fits: one plan, or none.

Sets of victims are compared by what `Candidates.key` says, part by part. Priorities are opened from the lowest up: the
first at which there is a plan is the lowest that its highest victim can have. Whatever is found is tried on a copy
with the ordinary planner before it is believed.

How the cheapest set is found:

- One pod: node by node, every set of at most `EXACT` pods; where a node has more, all go and are then let stay one by
  one, as kube-scheduler does.
- A gang: domain by domain. In a domain of at most `EXACT` candidates every set is tried. In a larger one the gangs
  that may be broken are chosen first, few before many; then for each node what its first, second, ... member costs, and
  the least sum of those by dynamic programming, which is exact but for budgets and for what a gang can spare.
- Pods whose place depends on other pods, gangs of different pods, gangs in segments, and gangs that lack nothing but
  bandwidth: all candidates of a node or domain go, and are let stay one by one as long as the ordinary planner finds a
  place.

Source of the order in which pods are let stay: ``pkg/scheduler/framework/plugins/defaultpreemption`` of kube-scheduler.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from topo_scheduler.scheduling.placing.ask import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.clearing import Clearing, VictimSet
from topo_scheduler.scheduling.preemption.reprieve import by_trial
from topo_scheduler.scheduling.preemption.shares import ReservationShare, ReservationShares
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidate, Candidates, Key
from topo_scheduler.scheduling.rules.neighbours import looks_around
from topo_scheduler.state.fabric import Layout

TRIES: Final = 16
"""Options of one level that are tried on the copy before the next level is opened."""


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """Victims, and where the workload goes once they are gone.

    ``awaited`` pods on those nodes that are being deleted already; without victims it only waits for them.
    """

    victims: tuple[Candidate, ...]
    awaited: tuple[Candidate, ...]
    placement: Placement
    key: Key | None


def plan_preemption(
    planner: Planner,
    ask: PlacementQuery,
    layout: Layout,
    candidates: Candidates,
    now: float,
    shares: Sequence[ReservationShare] = (),
) -> PreemptionPlan | None:
    """Choose victims for a workload that can't be placed as things are.

    Args:
        planner: on the state as it is. Nothing of it is changed.
        ask: what can't be placed.
        layout: the fabric.
        candidates: who may give way to it.
        now: seconds.
        shares: what reservations take of the room that candidates leave.

    Returns:
        None when no set of candidates makes room, or none was found.
    """
    neighbours = any(looks_around(cls) for cls, _ in ask.groups)
    links = ask.traffic is not None
    trial = Trial(planner, layout, now, neighbours=neighbours, links=links, shares=ReservationShares(shares))
    trial.remove(candidates.leaving)
    if candidates.leaving and (placement := trial.place(ask)) is not None:
        return _plan((), candidates, placement)
    only_bandwidth = links and isinstance(planner.plan_anywhere(ask, layout, now), Placement)
    for level in candidates.levels:
        several = len(ask.groups) > 1 or ask.in_segments
        options = by_trial if neighbours or only_bandwidth or several else _by_clearing
        for option in islice(options(trial, ask, layout, candidates, level), TRIES):
            victims = tuple(candidates.pods[number] for number in option.victims)
            placed = trial.place_without(victims, ask)
            if placed is not None:
                return _plan(victims, candidates, placed, option.key)
    return None


def _by_clearing(
    trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates, level: int
) -> Iterator[VictimSet]:
    found: list[VictimSet] = []
    for view in trial.planner.views_for(ask):
        found += Clearing(trial.planner, view, ask, layout, candidates, level, trial.shares).options()
    return iter(sorted(found, key=lambda option: option.key))


def _plan(
    victims: tuple[Candidate, ...], candidates: Candidates, placement: Placement, key: Key | None = None
) -> PreemptionPlan:
    rows = {row for group in placement.rows for row in group}
    there = tuple(pod for pod in candidates.leaving if pod.row in rows)
    # What only pods elsewhere prevented is waited for as well.
    return PreemptionPlan(victims, there if there or victims else tuple(candidates.leaving), placement, key)
