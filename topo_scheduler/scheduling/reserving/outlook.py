"""Converts the ledger to the input of a reservation plan, and a plan to a reservation."""

from collections import Counter
from collections.abc import Container, Generator, Sequence
from math import inf
from typing import Final

from topo_scheduler.api.text import few_of
from topo_scheduler.scheduling.preemption.victims import NO_GANG, Candidate
from topo_scheduler.scheduling.reserving.ends import Ends
from topo_scheduler.scheduling.reserving.holds import Reservation
from topo_scheduler.scheduling.reserving.plan import Ending, Prospect
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.resources import Amounts
from topo_scheduler.state.pods.victim_info import VictimInfo
from topo_scheduler.state.pods.workloads import MembersByClass, Workload, Workloads

PODS_PER_PART: Final = 512
"""Pods that are processed in one part."""


def endings_on(
    usable: Sequence[bool],
    ends: Ends,
    left_out: Container[str],
    never: Container[str] | None,
    now: float,
    not_of: str = "",
) -> Generator[None, None, tuple[list[Ending], list[Ending]]]:
    """Return the pods on some nodes whose end is known, and others that end at an unknown time.

    Yields after each part of them.

    Args:
        usable: which rows to include.
        ends: the pods that hold room, and when they are expected to end.
        left_out: pods to leave out, by uid.
        never: pods that are assumed never to end; None to return none of the others.
        now: seconds.
        not_of: a namespace whose pods are left out, too; empty for none.
    """
    dated: list[Ending] = []
    undated: list[Ending] = []
    for number, (uid, entry) in enumerate(list(ends.world.ledger.items())):
        if number % PODS_PER_PART == PODS_PER_PART - 1:
            yield
        occupant = entry.occupant or _arriving(ends.workloads, uid)
        if occupant is None or occupant.fixed or entry.row < 0 or not usable[entry.row] or uid in left_out:
            continue
        if occupant.namespace == not_of:
            continue
        end = ends.of(uid, entry, now)
        counted = never is not None and not occupant.service and uid not in never
        if end < inf or counted:
            pod = Candidate(occupant, entry.row, entry.amounts, entry.profile, 0, NO_GANG, -1)
            (dated if end < inf else undated).append(Ending(pod, end))
    return dated, undated


def _arriving(workloads: Workloads, uid: str) -> VictimInfo | None:
    """Return the victim information of a pod whose bind is in progress; None if it is unknown."""
    membership = workloads.of_pod(uid)
    return membership[1].as_victim(0.0) if membership is not None else None


def reservation_of(
    world: World, workload: Workload, groups: MembersByClass, prospect: Prospect, now: float
) -> Reservation:
    """Return the reservation for a workload.

    Args:
        world: the nodes and the fabric of the plan.
        workload: the workload of the plan.
        groups: the members that the plan was made for, by class.
        prospect: the plan.
        now: seconds.
    """
    names, layout = world.nodes.names, world.layout
    taken: dict[str, Counter[int]] = {}
    for (_, members), rows in zip(groups, prospect.placement.rows, strict=True):
        for member, row in zip(members, rows, strict=True):
            taken.setdefault(names[row], Counter()).update(dict(member.cls.amounts))
    nodes: dict[str, Amounts] = {node: tuple(sorted(amounts.items())) for node, amounts in taken.items()}
    if workload.gang:
        paths = ["/".join(layout.paths[leaf]) for leaf in prospect.placement.leaves]
    else:
        paths = [f"node {node}" for node in nodes]
    domain = few_of(paths)
    known_ends = [ending.end for ending in prospect.waits if ending.end < inf]
    return Reservation(
        workload=workload.id,
        name=f"{'gang' if workload.gang else 'pod'} {workload.namespace}/{workload.name}",
        priority=workload.priority,
        domain=domain,
        nodes=nodes,
        waits={ending.pod.occupant.uid: (names[ending.pod.row], ending.pod.occupant.key) for ending in prospect.waits},
        start=prospect.start,
        latest=max(known_ends, default=now),
        since=now,
        moved_on=now,
        namespace=workload.namespace,
    )
