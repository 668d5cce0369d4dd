"""Claims by name that still have the devices of the pod that leaves, while its replacement has a seat elsewhere.

Kubernetes deallocates them once the pod is gone. Until then the replacement could only have the devices that the
Migration moves it away from.
"""

from typing import Final

from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.scheduling.reserving.replacements import Replacements
from topo_scheduler.state.devices.inventory import ClaimKey
from topo_scheduler.state.pods.workloads import MembersByClass, Workload

WAITS_FOR_CLAIM: Final = (
    'A Migration moves the pod to other devices: it waits until Kubernetes releases those of resourceclaim "{}".'
)
LOOK_AGAIN_SECONDS: Final = 2.0
"""How often a waiting workload is tried again if its claim does not change. Its seat may have ended meanwhile."""


def claim_to_be_freed(
    devices: NodeDevices, replacements: Replacements, workload: Workload, groups: MembersByClass
) -> ClaimKey | None:
    """Return a claim of members with seats, if it is allocated only for pods that leave.

    Args:
        devices: the devices of nodes.
        replacements: all seats.
        workload: the workload of the members.
        groups: the members, by class.
    """
    inventory = devices.inventory
    keys = {claim.key: None for cls, _ in groups for claim in cls.claims if claim.key is not None}
    allocated = [key for key in keys if inventory.allocation_of(key) is not None and not inventory.is_held(key)]
    if not allocated:
        return None
    leaving = {*replacements.nodes_for(workload), *inventory.consumers.departed}
    freed = (key for key in allocated if inventory.consumers.is_freed_without(inventory.claims[key], leaving))
    return next(freed, None)
