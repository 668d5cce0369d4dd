"""What is in a pool of devices: which are free, which claims have the others, what partitions are still possible.

For views and metrics only; decisions read pools themselves.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from topo_scheduler.state.devices.hardware import NUMA_ATTRIBUTES
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceInventory, DevicesInUse
from topo_scheduler.state.devices.pool_problems import DeviceProblem, gone, left, pool_problems, taken_twice
from topo_scheduler.state.devices.pools import DeviceId, Number, Pool, PoolId, PublishedDevice

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
PREVENTING: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep devices from pods without a toleration."""
WHOLE: Final = "whole"
"""Profile of devices that are no partitions."""
_PRODUCT: Final = ("productName", "deviceName", "model")
_MEMORY: Final = "memory"
MEMORY_SLICE: Final = "memory-slice-"


class DeviceState(StrEnum):
    """Whether a device can be allocated now."""

    FREE = "free"
    ALLOCATED = "allocated"
    SHARED = "shared"
    """Claims have parts of it."""
    BLOCKED = "blocked"
    """Partitions that are allocated take what it needs."""
    UNAVAILABLE = "unavailable"
    """It has a taint, or its pool is incomplete or invalid."""


@dataclass(frozen=True, slots=True)
class SurveyedDevice:
    """A device.

    Attributes:
        id: driver, pool and name.
        node: the node that has it; empty if several nodes can use it.
        state: whether it can be allocated now.
        profile: of a partition, such as ``1g.10gb``; `WHOLE` otherwise.
        board: what its partitions share: the counter set, empty for a device without counters.
        product: name of the product, as its driver reports it; empty if it does not.
        memory: quantity as the driver wrote it; empty if it did not.
        pcie_root: such as ``pci0000:10``; empty if unknown.
        numa_node: None if unknown.
        taints: key, value and effect of each.
        claims: claims that have it.
    """

    id: DeviceId
    node: str
    state: DeviceState
    profile: str = WHOLE
    board: str = ""
    product: str = ""
    memory: str = ""
    pcie_root: str = ""
    numa_node: int | None = None
    taints: tuple[tuple[str, str, str], ...] = ()
    claims: tuple[ClaimKey, ...] = ()

    @property
    def partition(self) -> bool:
        """Whether it is a part of another device."""
        return self.profile != WHOLE


def survey_pool(pool: Pool, inventory: DeviceInventory) -> list[SurveyedDevice]:
    """Return the devices of a pool in their order; nothing of one that is incomplete or invalid."""
    used = inventory.use_of(device.id for device in (*pool.devices, *pool.others))
    left = counters_left(pool, used)
    return [_surveyed(device, inventory, used, left) for device in pool.devices]


def counters_left(pool: Pool, used: DevicesInUse) -> dict[tuple[str, str], Number]:
    """Return what is left of each counter of a pool."""
    left = dict(pool.counters)
    if left:
        for device in (*pool.devices, *pool.others):
            if device.id in used.whole or device.id in used.shares:
                for counter, amount in device.counters.items():
                    left[counter] -= amount
    return left


def state_of(
    device: PublishedDevice, used: DevicesInUse, left: Mapping[tuple[str, str], Number], *, tainted: bool
) -> DeviceState:
    """Return whether a device can be allocated now.

    Args:
        device: the device.
        used: devices in use.
        left: what is left of the counters of its pool.
        tainted: whether it has a taint that keeps the pod in question off.
    """
    if device.id in used.whole:
        return DeviceState.ALLOCATED
    if device.id in used.shares:
        return DeviceState.SHARED
    if tainted:
        return DeviceState.UNAVAILABLE
    if any(left.get(counter, 0) < amount for counter, amount in device.counters.items()):
        return DeviceState.BLOCKED
    return DeviceState.FREE


def _surveyed(
    device: PublishedDevice,
    inventory: DeviceInventory,
    used: DevicesInUse,
    left: Mapping[tuple[str, str], Number],
) -> SurveyedDevice:
    tainted = any(effect in PREVENTING for _, _, effect in device.taints)
    numa = attribute(device, *NUMA_ATTRIBUTES)
    return SurveyedDevice(
        device.id,
        device.scope.node,
        state_of(device, used, left, tainted=tainted),
        profile_of(device),
        min(device.counter_sets, default=""),
        str(attribute(device, *_PRODUCT) or ""),
        next((item.total.text for name, item in device.capacity.items() if name.rpartition("/")[2] == _MEMORY), ""),
        str(attribute(device, PCIE_ROOT) or ""),
        numa if isinstance(numa, int) and not isinstance(numa, bool) else None,
        device.taints,
        tuple(sorted(inventory.users_of(device.id))),
    )


def attribute(device: PublishedDevice, *names: str) -> int | bool | str | None:
    """Return the first of some attributes that a device has; names without a domain are those of its driver."""
    for name in names:
        typed_value = device.attributes.get(name if "/" in name else f"{device.id[0]}/{name}")
        if typed_value is not None:
            return typed_value[1]
    return None


def profile_of(device: PublishedDevice) -> str:
    """Return the profile of a partition, or `WHOLE`."""
    profile = attribute(device, "profile")
    return profile if isinstance(profile, str) and profile else WHOLE


# ---------------------------------------------------------------- sums


@dataclass(frozen=True, slots=True)
class PoolSums:
    """What metrics need of a pool.

    Attributes:
        devices: number by driver, profile and state.
        slices: for each driver and profile of partitions: free memory slices of boards that can have the profile, and
            how many of them no instance of it can use now.
    """

    devices: Mapping[tuple[str, str, str], int]
    slices: Mapping[tuple[str, str], tuple[int, int]]


def sums_of(pool: Pool, inventory: DeviceInventory) -> PoolSums:
    """Return the sums of a pool; nothing of one that is incomplete or invalid."""
    counts: dict[tuple[str, str, str], int] = {}
    used = inventory.use_of(device.id for device in (*pool.devices, *pool.others))
    left = counters_left(pool, used)
    usable: dict[tuple[str, str], set[tuple[str, str]]] = {}
    boards: dict[tuple[str, str], set[str]] = {}
    for device in pool.devices:
        profile = profile_of(device)
        tainted = any(effect in PREVENTING for _, _, effect in device.taints)
        state = state_of(device, used, left, tainted=tainted)
        key = pool.id[0], profile, state.value
        counts[key] = counts.get(key, 0) + 1
        if profile != WHOLE:
            covered = usable.setdefault((pool.id[0], profile), set())
            boards.setdefault((pool.id[0], profile), set()).update(device.counter_sets)
            if state is DeviceState.FREE:
                covered.update(counter for counter in device.counters if _is_memory_slice(counter))
    free = {counter for counter, amount in left.items() if _is_memory_slice(counter) and amount > 0}
    slices = {}
    for profile_key, covered in usable.items():
        concerned = {counter for counter in free if counter[0] in boards[profile_key]}
        slices[profile_key] = len(concerned), len(concerned - covered)
    return PoolSums(counts, slices)


def _is_memory_slice(counter: tuple[str, str]) -> bool:
    return counter[1].startswith(MEMORY_SLICE)


# ---------------------------------------------------------------- problems


def problems_of(inventory: DeviceInventory, pool: PoolId) -> list[DeviceProblem]:
    """Return what is wrong with the slices of a pool."""
    return pool_problems(inventory.slices_of_pool(pool))


def problems_of_use(inventory: DeviceInventory, devices: Iterable[DeviceId]) -> list[DeviceProblem]:
    """Return what is wrong with the use of some devices.

    No slice publishes them, several claims have them, or their claims are still allocated for pods that have ended.
    """
    by_pool: dict[PoolId, list[DeviceId]] = {}
    for device in devices:
        by_pool.setdefault(device[:2], []).append(device)
    problems: list[DeviceProblem] = []
    for pool, used in by_pool.items():
        published = {device.id for item in inventory.slices_of_pool(pool) for device in item.devices}
        if any(item.unreadable for item in inventory.slices_of_pool(pool)):
            published |= set(used)  # reported already
        lost = [(device, _claims(inventory, device)) for device in used if device not in published]
        if problem := gone(pool, lost):
            problems.append(problem)
        departed = set(inventory.consumers.departed)
        if departed and (ended := _claims_of_ended(inventory, used, departed)):
            problems.append(left(pool, ended))
        for device in used:
            claims = _claims(inventory, device)
            if len(claims) > 1 and device in inventory.use_of([device]).whole:
                problems.append(taken_twice(device, claims))
    return problems


def _claims_of_ended(
    inventory: DeviceInventory, devices: Iterable[DeviceId], departed: Collection[str]
) -> Sequence[ClaimKey]:
    """Return the claims of devices that are reserved for pods that have ended, and for no others."""
    keys = {key for device in devices for key in inventory.users_of(device)}
    claims = ((key, inventory.claims.get(key)) for key in sorted(keys))
    return [key for key, claim in claims if claim is not None and inventory.consumers.is_only_for(claim, departed)]


def _claims(inventory: DeviceInventory, device: DeviceId) -> Sequence[ClaimKey]:
    return sorted(inventory.users_of(device))


def all_problems(inventory: DeviceInventory) -> list[DeviceProblem]:
    """Return all problems, in order of their kind and object."""
    problems = [problem for pool in inventory.pools() for problem in problems_of(inventory, pool)]
    return sorted([*problems, *problems_of_use(inventory, inventory.devices_in_use())])
