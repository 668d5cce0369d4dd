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
- With resource claims: the same, but each set of victims of a node is also checked against the devices that their
  claims leave (`DeviceClearing`).
- By trial: all candidates of a node or domain are removed. They are reprieved one by one as long as the ordinary
  planner finds a place. It serves pods whose place depends on other pods, pods that require close GPUs, and pods that
  a kubelet aligns to NUMA nodes. It also serves gangs of different pods, gangs in segments, and gangs that lack only
  bandwidth.

Source of the order of reprieves: ``pkg/scheduler/framework/plugins/defaultpreemption`` of kube-scheduler.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.clearing import Clearing, VictimSet
from topo_scheduler.scheduling.preemption.device_clearing import DeviceClearing
from topo_scheduler.scheduling.preemption.freed_devices import (
    ChosenDevices,
    NominatedDevices,
    choose_freed,
    freed_on,
    nominated,
)
from topo_scheduler.scheduling.preemption.reprieve import by_trial
from topo_scheduler.scheduling.preemption.shares import ReservationShare, ReservationShares
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidate, Candidates, Key
from topo_scheduler.scheduling.rules.interpod_filters import looks_around
from topo_scheduler.scheduling.rules.numa import rejecting_node
from topo_scheduler.scheduling.rules.volume_choice import have_volumes
from topo_scheduler.state.devices.inventory import ClaimKey
from topo_scheduler.state.pods.workloads import MembersByClass
from topo_scheduler.state.topology.fabric import Layout

MAX_OPTIONS: Final = 16
"""Maximum number of options of one level that are tried on the copy before the next level is opened."""


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """Victims, and where the workload goes once they have ended.

    ``awaited`` are pods on those nodes that are being deleted already. A plan without victims only waits for them.
    ``devices`` are what the claims of the workload's pods get then, by uid. ``freed`` are the claims that must be
    deallocated before, with their uids.
    """

    victims: tuple[Candidate, ...]
    awaited: tuple[Candidate, ...]
    placement: Placement
    key: Key | None
    devices: NominatedDevices = field(default_factory=dict)
    freed: Mapping[ClaimKey, str] = field(default_factory=dict)


def plan_preemption(
    planner: Planner,
    ask: PlacementQuery,
    layout: Layout,
    candidates: Candidates,
    now: float,
    shares: Sequence[ReservationShare] = (),
    groups: MembersByClass = (),
    stuck: Iterable[ClaimKey] = (),
    permits: Callable[[ChosenDevices, Placement], bool] = lambda devices, placement: True,
) -> PreemptionPlan | None:
    """Choose victims for a workload that cannot be placed in the current state.

    Args:
        planner: on the current state, which is not changed.
        ask: the placement query that failed.
        layout: the fabric.
        candidates: the pods that may be evicted for it.
        now: seconds.
        shares: what reservations take of the room that candidates leave.
        groups: the members by class, as in the query, for their volumes and devices.
        stuck: claims that Kubernetes has not deallocated in time; the plan does not wait for them.
        permits: whether quotas permit these devices on the nodes of a placement.

    Returns:
        None if no set of candidates makes room, or the search found none.
    """
    trial = _trial_for(planner, ask, layout, now, shares, stuck)
    neighbours = any(looks_around(cls) for cls, _ in ask.groups)
    links = ask.traffic is not None
    trial.remove(candidates.leaving)
    if (candidates.leaving or trial.frees_claims) and (
        plan := _try(trial, ask, groups, candidates, permits)
    ) is not None:
        return plan
    only_bandwidth = links and isinstance(planner.plan_anywhere(ask, layout, now), Placement)
    close = any(map(trial.depends_on_sets, (cls for cls, _ in ask.groups)))
    for level in candidates.levels:
        several = len(ask.groups) > 1 or ask.in_segments
        options = by_trial if neighbours or only_bandwidth or several or close else _by_clearing
        for option in islice(options(trial, ask, layout, candidates, level), MAX_OPTIONS):
            victims = tuple(candidates.pods[number] for number in option.victims)
            trial.remove(victims)
            try:
                plan = _try(trial, ask, groups, candidates, permits, victims, option.key)
            finally:
                trial.restore(victims)
            if plan is not None:
                return plan
    return None


def plan_waiting(
    planner: Planner,
    ask: PlacementQuery,
    layout: Layout,
    candidates: Candidates,
    now: float,
    shares: Sequence[ReservationShare] = (),
    groups: MembersByClass = (),
    stuck: Iterable[ClaimKey] = (),
    permits: Callable[[ChosenDevices, Placement], bool] = lambda devices, placement: True,
) -> PreemptionPlan | None:
    """Return a plan that evicts no pod: it waits for pods that are being deleted already, and for their devices.

    Arguments are as for `plan_preemption`. None if that makes no room.
    """
    trial = _trial_for(planner, ask, layout, now, shares, stuck)
    trial.remove(candidates.leaving)
    plan = _try(trial, ask, groups, candidates, permits)
    return plan if plan is not None and (plan.awaited or plan.freed) else None


def _trial_for(
    planner: Planner,
    ask: PlacementQuery,
    layout: Layout,
    now: float,
    shares: Sequence[ReservationShare],
    stuck: Iterable[ClaimKey],
) -> Trial:
    return Trial(
        planner,
        layout,
        now,
        neighbours=any(looks_around(cls) for cls, _ in ask.groups),
        links=ask.traffic is not None,
        shares=ReservationShares(shares),
        devices=any(cls.claims for cls, _ in ask.groups),
        stuck=stuck,
    )


def _by_clearing(
    trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates, level: int
) -> Iterator[VictimSet]:
    victim_sets: list[VictimSet] = []
    for view in trial.planner.views_for(ask):
        if view.cls.claims and trial.inventory is not None:
            victim_sets += DeviceClearing(trial, view, ask, layout, candidates, level).options()
        else:
            victim_sets += Clearing(trial.planner, view, ask, layout, candidates, level, trial.shares).options()
    return iter(sorted(victim_sets, key=lambda option: option.key))


def _try(
    trial: Trial,
    ask: PlacementQuery,
    groups: MembersByClass,
    candidates: Candidates,
    permits: Callable[[ChosenDevices, Placement], bool],
    victims: tuple[Candidate, ...] = (),
    key: Key | None = None,
) -> PreemptionPlan | None:
    """Return the plan if the workload has a place, with all its devices, on a trial that the victims have left."""
    placement = trial.place(ask)
    if placement is None:
        return None
    placed = [(cls, rows) for (cls, _), rows in zip(ask.groups, placement.rows, strict=True)]
    if len(placed) > 1 and rejecting_node(trial.planner.around, placed):
        return None
    if groups and not have_volumes(trial.planner.around, groups, placement.rows):
        return None
    devices: ChosenDevices | None = {}
    if trial.devices is not None and any(cls.claims for cls, _ in groups):
        devices = choose_freed(trial.planner, groups, placement.rows)
    if devices is None or not permits(devices, placement):
        return None
    rows = {row for group in placement.rows for row in group}
    leaving = tuple(pod for pod in candidates.leaving if pod.row in rows)
    freed = freed_on(trial.devices, rows) if trial.devices is not None else {}
    if not (leaving or victims or freed):
        # Only pods elsewhere prevented the placement: the plan waits for them.
        leaving = tuple(candidates.leaving)
        freed = freed_on(trial.devices, None) if trial.devices is not None else {}
    return PreemptionPlan(victims, leaving, placement, key, nominated(devices), freed)
