"""Which pods the scheduler evicts so that a workload of higher priority fits: one plan, or none.

`Candidates.key` compares sets of victims, part by part. The search opens priority levels from the lowest up. The first
level with a plan is therefore the lowest that its highest victim can have. The ordinary planner checks each set of
victims on a copy of the state before it is accepted.

How the search finds the cheapest set:

- One pod: node by node, every set of at most `EXHAUSTIVE_CANDIDATES` pods. On a node with more candidates, all are
  removed and then reprieved one by one, as in kube-scheduler.
- A gang: domain by domain. In a domain of at most `EXHAUSTIVE_DOMAIN_CANDIDATES` candidates every set is tried. In a
  larger domain the search first chooses the gangs that may be broken, smaller choices first. Then it computes for each
  node the cost of its first, second, ... member. Dynamic programming finds the least sum of these costs. The result is
  exact except for budgets and for the number of members that a gang can lose.
- By trial: all candidates of a node or domain are removed. They are reprieved one by one as long as the ordinary
  planner finds a place. The search does this for pods whose place depends on other pods, for gangs of different pods
  and gangs in segments. It also does so for gangs that lack only bandwidth.

Source of the order of reprieves: ``pkg/scheduler/framework/plugins/defaultpreemption`` of kube-scheduler.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.clearing import Clearing, VictimSet
from topo_scheduler.scheduling.preemption.reprieve import by_trial
from topo_scheduler.scheduling.preemption.shares import ReservationShare, ReservationShares
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidate, Candidates, Key
from topo_scheduler.scheduling.rules.interpod_filters import looks_around
from topo_scheduler.state.topology.fabric import Layout

MAX_OPTIONS: Final = 16
"""Maximum number of options of one level that are tried on the copy before the next level is opened."""


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """Victims, and where the workload goes once they have ended.

    ``awaited`` are pods on those nodes that are being deleted already. A plan without victims only waits for them.
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
    """Choose victims for a workload that cannot be placed in the current state.

    Args:
        planner: on the current state, which is not changed.
        ask: the placement query that failed.
        layout: the fabric.
        candidates: the pods that may be evicted for it.
        now: seconds.
        shares: what reservations take of the room that candidates leave.

    Returns:
        None if no set of candidates makes room, or the search found none.
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
        for option in islice(options(trial, ask, layout, candidates, level), MAX_OPTIONS):
            victims = tuple(candidates.pods[number] for number in option.victims)
            placed = trial.place_without(victims, ask)
            if placed is not None:
                return _plan(victims, candidates, placed, option.key)
    return None


def _by_clearing(
    trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates, level: int
) -> Iterator[VictimSet]:
    victim_sets: list[VictimSet] = []
    for view in trial.planner.views_for(ask):
        victim_sets += Clearing(trial.planner, view, ask, layout, candidates, level, trial.shares).options()
    return iter(sorted(victim_sets, key=lambda option: option.key))


def _plan(
    victims: tuple[Candidate, ...], candidates: Candidates, placement: Placement, key: Key | None = None
) -> PreemptionPlan:
    rows = {row for group in placement.rows for row in group}
    leaving = tuple(pod for pod in candidates.leaving if pod.row in rows)
    # If only pods elsewhere prevented the placement, the plan waits for them as well.
    return PreemptionPlan(victims, leaving if leaving or victims else tuple(candidates.leaving), placement, key)
