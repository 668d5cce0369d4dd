"""Devices that come free with victims: what a workload gets of them, and which claims must be deallocated before."""

from collections.abc import Collection, Mapping, Sequence

from topo_scheduler.api.devices import Allocation
from topo_scheduler.scheduling.devices.device_choice import DeviceChoiceError, choose_devices
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.scheduling.placing.context.pods_with_claims import pods_with_claims
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.state.devices.claim_writes import ClaimChoice
from topo_scheduler.state.devices.inventory import ClaimKey
from topo_scheduler.state.devices.trial_use import DevicesOnTrial
from topo_scheduler.state.pods.workloads import MembersByClass

ChosenDevices = Mapping[str, tuple[ClaimChoice, ...]]
"""What the claims of pods will get, by uid of the pod."""
NominatedDevices = Mapping[str, tuple[Allocation, ...]]
"""The devices among it that no claim has yet."""


def choose_freed(planner: Planner, groups: MembersByClass, group_rows: Sequence[Sequence[int]]) -> ChosenDevices | None:
    """Return the devices of each member with claims; None if they can't all have theirs.

    Args:
        planner: on a trial that the victims have left.
        groups: the members.
        group_rows: the rows of the members of each group.
    """
    devices = planner.around.devices
    if devices is None:
        return None
    try:
        placed = pods_with_claims(planner, groups, group_rows)
        chosen = choose_devices(devices, list(placed.values()), planner.around.gpu_sets)
        return dict(zip(placed, chosen, strict=True))
    except DeviceChoiceError:
        return None


def nominated(chosen: ChosenDevices) -> NominatedDevices:
    """Return the devices that no claim has yet."""
    return {
        uid: tuple(choice.allocation for choice in choices if choice.allocation is not None)
        for uid, choices in chosen.items()
    }


def freed_on(devices: NodeDevices, rows: Collection[int] | None) -> dict[ClaimKey, str]:
    """Return the claims that are free on a trial only, with their uids: those with devices that some rows can use.

    ``rows``: None for all claims.
    """
    inventory = devices.inventory
    if not isinstance(inventory, DevicesOnTrial):
        return {}
    pools = None if rows is None else {pool.id for row in rows for pool in devices.pools_of(row)}
    return {
        key: inventory.claims[key].metadata.uid
        for key in inventory.freed
        if pools is None or not pools.isdisjoint(inventory.pools_of_claim(key))
    }
