"""Checks of voluntary moves, which no failure or request demands: a workload moves completely, or not at all.

Each check runs on a copy of the state: whether a pending gang fits once other pods have left, and these pods fit
elsewhere; whether a gang gets into fewer leaves; whether a block of free nodes grows.
"""

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from topo_scheduler.recovery.model.seating import (
    MovingPod,
    as_candidate,
    by_workload,
    groups_and_query,
    place_group,
    place_members,
    trial_without,
    unread_pod,
)
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.moving.plan import as_candidates
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.workloads import Member, Workload

MAX_READ_PODS: Final = 256
"""Pods that are read at once, at most, to learn whether they can move."""
CHECKED_PODS_OF_SLICE: Final = 512
"""Pods or workloads that are checked in one slice of work."""


def group_by_workload(moving_pods: Iterable[MovingPod]) -> list[list[MovingPod]]:
    """Return pods grouped by workloads that move together, those with the most GPUs per pod first."""
    return sorted(
        by_workload(moving_pods).values(),
        key=lambda group: (-max(pod.entry.amount(GPU) for pod in group), group[0].workload.id),
    )


def gang_seats(
    view: SchedulerView,
    workload: Workload,
    members: Sequence[Member],
    leaving_pods: Sequence[MovingPod],
    avoided: Collection[str],
    migration: str,
    now: float,
) -> Mapping[str, str]:
    """Return a node for each pending member of a gang, by uid, if other pods left theirs; empty without room for all.

    Args:
        view: provides the state.
        workload: the gang.
        members: pending members, to be placed together.
        leaving_pods: pods of no higher priority that would leave their nodes.
        avoided: nodes that are no target.
        migration: key of the Migration, whose own seats do not count.
        now: seconds.
    """
    own = f"seat:{migration}:"
    trial = view.planning.trial(
        map(as_candidate, leaving_pods),
        avoided,
        now,
        priority=min([workload.priority, *(pod.workload.priority for pod in leaving_pods)]),
        mine=lambda uid: uid.startswith(own) or uid in workload.members,
    )
    try:
        asked = view.planning.gang_query(workload, members, now)
        if asked is None:
            return {}
        groups, query = asked
        placement = trial.place(query)
    except PluginError:
        return {}
    if placement is None:
        return {}
    profiles = [[member.profile for member in group_members] for _, group_members in groups]
    trial.restore(as_candidates(query, placement, profiles))
    if not _all_seated(view, trial, leaving_pods):
        return {}
    return {uid: view.nodes.names[row] for uid, row in place_members(groups, placement).items()}


def have_seats(view: SchedulerView, moving_pods: Sequence[MovingPod], avoided: Collection[str], now: float) -> bool:
    """Return whether all pods fit elsewhere. ``avoided`` are nodes that are no target."""
    lowest = min(pod.workload.priority for pod in moving_pods)
    trial = view.planning.trial(map(as_candidate, moving_pods), avoided, now, priority=lowest)
    return _all_seated(view, trial, moving_pods)


def _all_seated(view: SchedulerView, trial: Trial, moving_pods: Sequence[MovingPod]) -> bool:
    """Return whether all pods fit, none of them on a node that one of them leaves."""
    trial.fill({pod.entry.node for pod in moving_pods})
    return all(place_group(view, trial, group) is not None for group in group_by_workload(moving_pods))


def find_pods_to_read(
    view: SchedulerView, uids: Iterable[str], read: set[str]
) -> Generator[None, None, tuple[PodRef, ...]]:
    """Return the first few pods that an earlier process placed and of which too little is known to move them.

    Args:
        view: provides the state.
        uids: pods.
        read: uids of pods that need not be read again; checked pods are added.
    """
    pods: list[PodRef] = []
    for number, uid in enumerate(uids):
        if number % CHECKED_PODS_OF_SLICE == CHECKED_PODS_OF_SLICE - 1:
            yield
        if uid in read:
            continue
        entry = view.entry(uid)
        if entry is None or entry.occupant is None:
            continue  # its bind is in flight
        read.add(uid)
        if (pod := unread_pod(view, uid)) is not None:
            pods.append(pod)
            if len(pods) == MAX_READ_PODS:
                break
    return tuple(pods)


# ---------------------------------------------------------------- leaves of a gang


def leaves_of(view: SchedulerView, nodes: Iterable[str]) -> int:
    """Return the number of leaves with these nodes."""
    return len({view.leaf_of(node) for node in nodes})


def fewer_leaves(view: SchedulerView, moving_pods: Sequence[MovingPod], targets: Mapping[str, str]) -> bool:
    """Return whether a gang lies in fewer leaves once some of its members are on their targets."""
    members = moving_pods[0].workload.members.values()
    before = [member.node for member in members if member.node]
    after = [targets.get(member.uid, member.node) for member in members if member.node]
    return leaves_of(view, after) < leaves_of(view, before)


def seats_of_whole(
    view: SchedulerView, members: Sequence[MovingPod], avoided: Collection[str], now: float
) -> dict[str, str]:
    """Return a node for each member of a gang as if it were placed now, by uid; empty without room.

    Members with equal requests stay on their nodes where the placement uses these nodes.

    Args:
        view: provides the state.
        members: all of the gang.
        avoided: nodes that are no target, also for members on them.
        now: seconds.
    """
    trial = trial_without(view, members, avoided, "", now, neighbours=True)
    try:
        groups, query = groups_and_query(view, members)
        placement = trial.place(query)
    except PluginError:
        return {}
    if placement is None:
        return {}
    names = view.nodes.names
    nodes: dict[str, str] = {}
    for (_, group_members), rows in zip(groups, placement.rows, strict=True):
        unfilled = Counter(names[row] for row in rows)
        moving: list[str] = []
        for member in group_members:
            if unfilled[member.node] > 0:
                unfilled[member.node] -= 1
                nodes[member.uid] = member.node
            else:
                moving.append(member.uid)
        nodes |= dict(zip(moving, unfilled.elements(), strict=True))
    return nodes


# ---------------------------------------------------------------- free nodes of a leaf


def free_nodes(view: SchedulerView) -> Int64:
    """Return the free GPUs of each row with a usable node on which no GPU is in use: int64[rows]."""
    nodes = view.nodes
    held = view.gpus_in_use()
    usable = nodes.exists & nodes.ready & ~nodes.unschedulable
    return np.where(usable & (held == 0), nodes.allocatable[:, GPU], 0)


def largest_block(view: SchedulerView, free: Int64) -> int:
    """Return the largest number of GPUs of free nodes in one leaf. ``free`` is as `free_nodes` returns it."""
    layout = view.layout
    if not len(layout.order):
        return 0
    return int(np.add.reduceat(free[layout.order], layout.offsets[:-1]).max())


def block_after(view: SchedulerView, moving_pods: Sequence[MovingPod], targets: Mapping[str, str]) -> int:
    """Return the largest block of free nodes once pods are on their targets."""
    free = free_nodes(view)
    nodes, held = view.nodes, view.gpus_in_use().copy()
    for pod in moving_pods:
        held[pod.entry.row] -= pod.entry.amount(GPU)
    for row in {pod.entry.row for pod in moving_pods}:
        usable = nodes.ready[row] and not nodes.unschedulable[row]
        free[row] = nodes.allocatable[row, GPU] if usable and held[row] == 0 else 0
    for pod in moving_pods:
        target = nodes.row_of.get(targets.get(pod.member.uid, ""))
        if pod.entry.amount(GPU) and target is not None:
            free[target] = 0
    return largest_block(view, free)
