"""The members of a gang that reserve bandwidth. The others send nothing that counts, wherever they are."""

from collections.abc import Sequence

from topo_scheduler.scheduling.intake.gpu_annotations import holds_devices
from topo_scheduler.state.devices.pod_claims import devices_asked
from topo_scheduler.state.nodes.resources import ResourceTable
from topo_scheduler.state.pods.classes import PodClass


def reserves_bandwidth(cls: PodClass, resources: ResourceTable) -> bool:
    """Return whether members of a class reserve the bandwidth that their gang asks for."""
    return cls.bandwidth > 0 or holds_devices(cls.amounts, resources) or devices_asked(cls.claims) > 0


def reserving_rows(
    groups: Sequence[tuple[PodClass, int]], rows: Sequence[Sequence[int]], resources: ResourceTable
) -> list[int]:
    """Return the rows of the members that reserve bandwidth, given the rows of each group."""
    return [
        row
        for (cls, _), group_rows in zip(groups, rows, strict=True)
        if reserves_bandwidth(cls, resources)
        for row in group_rows
    ]
