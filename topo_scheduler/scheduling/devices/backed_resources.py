"""How many devices each node has for extended resources, so that nodes, leaves and quotas count them as GPUs.

On a node that offers none of a resource itself, its devices count as ``allocatable``. Pods that request the resource
are charged for it, whichever scheduler allocated their devices. Devices that pods hold by claims of their own are
charged to the node. So the columns of the node table are an upper bound, and `NodeDevices` decides which pods really
find devices.
"""

from collections.abc import Iterable
from typing import Final

from topo_scheduler.api.devices import (
    CLASS_RESOURCE_PREFIX,
    EXACT_COUNT,
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from topo_scheduler.api.quantity import QuantityError
from topo_scheduler.scheduling.devices.allocator import DeviceCandidates
from topo_scheduler.scheduling.devices.capacity_share import consumed, fits
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery, ClaimQueryError, DeviceQuery, claim_query
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.state.devices.extended_resources import extended_claim_owner
from topo_scheduler.state.devices.inventory import ClaimKey
from topo_scheduler.state.devices.pools import Number, PublishedDevice
from topo_scheduler.state.nodes.node_table import CountedDevices, NodeTable
from topo_scheduler.state.operation_budget import limited

MAX_SHARES: Final = 64
"""Shares of one device that are counted."""


class BackedResources:
    """Counts devices for extended resources, and keeps the counts in the node table up to date."""

    def __init__(self, nodes: NodeTable, devices: NodeDevices) -> None:
        self._nodes = nodes
        self._devices = devices
        self._classes: dict[str, str] = {}
        self._classes_version = -1
        self._columns = 0
        self._queries: dict[str, ClaimQuery] = {}
        self._due: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._classes)

    def note(self, nodes: Iterable[str]) -> None:
        """Note nodes of which devices, their use, or the node itself changed."""
        if self._classes or self._is_outdated():
            self._due |= dict.fromkeys(nodes)

    def _is_outdated(self) -> bool:
        inventory = self._devices.inventory
        if inventory.classes_version != self._classes_version:
            return True
        return bool(inventory.classes) and len(self._nodes.resources) != self._columns

    def settle(self) -> list[int]:
        """Count again where something changed; return the rows where that made a difference."""
        if self._is_outdated():
            self._read_classes()
        if not self._due:
            return []
        due, self._due = self._due, {}
        row_of = self._nodes.row_of
        rows = [row_of[name] for name in due if name in row_of]
        with limited(None):  # of no single workload
            return [row for row in rows if self._nodes.put_devices(row, self._counts(row))]

    def _read_classes(self) -> None:
        """Find out which resources devices back: those that classes name, and those of classes that pods request."""
        inventory, resources = self._devices.inventory, self._nodes.resources
        rejected = resources.offer(inventory.class_of_resource)
        classes = {name: item for name, item in inventory.class_of_resource.items() if name not in rejected}
        implied = (name for name in resources.names if name.startswith(CLASS_RESOURCE_PREFIX))
        classes |= {name: item for name in implied if (item := inventory.backing_class(name))}
        changed = classes != self._classes or inventory.classes_version != self._classes_version
        self._classes, self._classes_version, self._columns = classes, inventory.classes_version, len(resources)
        if not changed:
            return
        self._queries = {}
        for name, item in classes.items():
            try:
                self._queries[name] = claim_query(_one_device(item), inventory.classes)
            except (ClaimQueryError, QuantityError):
                continue  # the decision on its pods reports why
        if self._queries or self._nodes.device_counts:
            self._due |= dict.fromkeys(self._nodes.row_of)

    def _counts(self, row: int) -> dict[str, CountedDevices]:
        counts: dict[str, CountedDevices] = {}
        if not self._queries:
            return counts
        candidates = DeviceCandidates(
            self._devices.pools_of(row), list(self._queries.values()), self._devices.selectors.matches
        )
        for name, query in self._queries.items():
            ((request,),) = query.requests
            devices = [candidate.device for candidate in candidates.of(request)]
            if request in candidates.failures:  # the decision on its pods reports why
                devices = [candidate.device for candidate in candidates.everything]
            if count := sum(self._shares(request, device) for device in devices):
                counts[name] = CountedDevices(count, sum(map(self._is_claimed, devices)))
        return counts

    def _shares(self, request: DeviceQuery, device: PublishedDevice) -> int:
        """Return how many requests for one device a device can serve if it is free."""
        if not device.shared:
            return 1
        part, used, count = consumed(request.capacity, device), dict[str, Number](), 0
        while part is not None and count < MAX_SHARES and fits(part, device, used):
            count += 1
            for name, taken in part.items():
                used[name] = used.get(name, 0) + taken.value
        return count

    def _is_claimed(self, device: PublishedDevice) -> bool:
        """Return whether pods hold a device that is not shared by claims of their own."""
        users = () if device.shared else self._devices.inventory.users_of(device.id)
        return any(map(self._is_by_claim, users))

    def _is_by_claim(self, key: ClaimKey) -> bool:
        """Return whether pods hold a claim by their ``resourceClaims``; one that is to be made is not such a claim."""
        claim = self._devices.inventory.claims.get(key)
        return claim is not None and not extended_claim_owner(claim)


def _one_device(device_class: str) -> ResourceClaimSpec:
    request = ExactDeviceRequest(device_class_name=device_class, allocation_mode=EXACT_COUNT, count=1)
    return ResourceClaimSpec(DeviceClaim([DeviceRequest("device", request)]))
