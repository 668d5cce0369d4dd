"""The pods of a placement that get devices, and which devices they prefer because they ask for close GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topo_scheduler.scheduling.devices.device_choice import PlacedPod
from topo_scheduler.scheduling.placing.context.gpu_choice import choose_gpus
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext
from topo_scheduler.scheduling.rules.gpu_rules import asks_close_gpus, needs_close_gpus
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.workloads import Member


def pods_with_claims(
    context: PlanningContext, groups: Sequence[tuple[PodClass, Sequence[Member]]], group_rows: Sequence[Sequence[int]]
) -> Mapping[str, PlacedPod]:
    """Return the placed members with claims, by uid. ``group_rows`` are the rows of the members of each group.

    Raises:
        DeviceChoiceError: members can't have GPUs that are as close as they ask on these nodes together.
    """
    names = context.nodes.names
    placed: dict[str, PlacedPod] = {}
    close: dict[str, PodClass] = {}
    for (cls, members), rows in zip(groups, group_rows, strict=True):
        if not cls.claims:
            continue
        for member, row in zip(members, rows, strict=True):
            placed[member.uid] = PlacedPod(cls.claims, member.claims, row, names[row], member.mappings, member.uid)
            if cls.gpu_needs is not None and asks_close_gpus(cls):
                close[member.uid] = cls
    sets = context.around.gpu_sets
    if not close or sets is None or sets.claimed is None:
        return placed
    gpus = choose_gpus(context, [(cls, placed[uid].row) for uid, cls in close.items()])
    for (uid, cls), indexes in zip(close.items(), gpus, strict=True):
        pod = placed[uid]
        if context.nodes.has_backed_gpus(pod.row):
            devices = sets.claimed.devices_of(pod.row, pod.node, indexes)
            placed[uid] = replace(pod, preferred=devices, only_preferred=needs_close_gpus(cls))
    return placed
