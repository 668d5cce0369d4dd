"""The pods of a placement that get devices, and what they ask of their GPUs."""

from collections.abc import Mapping, Sequence

from topo_scheduler.scheduling.devices.device_choice import PlacedPod
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext
from topo_scheduler.scheduling.rules.gpu_rules import asks_close_gpus
from topo_scheduler.state.pods.workloads import MembersByClass


def pods_with_claims(
    context: PlanningContext, groups: MembersByClass, group_rows: Sequence[Sequence[int]]
) -> Mapping[str, PlacedPod]:
    """Return the placed members with claims, by uid. ``group_rows`` are the rows of the members of each group."""
    names = context.nodes.names
    placed: dict[str, PlacedPod] = {}
    for (cls, members), rows in zip(groups, group_rows, strict=True):
        if not cls.claims:
            continue
        needs = cls.gpu_needs if cls.gpu_needs is not None and (cls.gpu_needs.close or cls.gpu_needs.of_each) else None
        of_requests = asks_close_gpus(cls)
        for member, row in zip(members, rows, strict=True):
            close = None if of_requests and not context.nodes.has_backed_gpus(row) else needs
            placed[member.uid] = PlacedPod(
                cls.claims, member.claims, row, names[row], member.mappings, member.uid, close
            )
    return placed
