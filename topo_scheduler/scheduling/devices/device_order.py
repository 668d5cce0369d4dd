"""In which order the search tries devices: those first whose use leaves the most for pods that come later.

- **Partitions**, such as MIG instances: those that take and block the least of what could be allocated now. So
  partitions go to GPUs that are split already, and to the slots that overlap the fewest larger ones.
- **Shared devices**: those that have shares already, the fullest first.
- **Whole devices**: those of the PCIe root that has just enough of them.

What is feasible does not depend on the order.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from topo_scheduler.scheduling.devices.allocator import DeviceCandidate, DeviceCandidates
from topo_scheduler.scheduling.devices.claim_query import DeviceQuery
from topo_scheduler.state.devices.inventory import DevicesInUse
from topo_scheduler.state.devices.pools import DeviceId, Number, Pool, PublishedDevice
from topo_scheduler.state.operation_budget import charge

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
_UNIT: Final = 1_000_000
"""Losses are integers, in millionths of the counters of a pool."""


def in_order(candidates: DeviceCandidates, used: DevicesInUse) -> DeviceCandidates:
    """Return the devices of each request, best first. Of equal ones the order of pools and slices decides."""
    losses: dict[DeviceId, int] = {}
    for pool in candidates.pools:
        if pool.usable and pool.counters:
            losses |= _losses(pool, used)
    ordered: dict[DeviceQuery, list[DeviceCandidate]] = {}
    for query in candidates.queries:
        found = candidates.of(query)
        roots = _roots(query, found, used)
        if not losses and not roots and not any(_is_special(candidate.device) for candidate in found):
            continue  # all are equal: the order of pools and slices decides
        keys = [_key(candidate.device, losses, used, roots) for candidate in found]
        ordered[query] = [found[number] for number in sorted(range(len(found)), key=keys.__getitem__)]
    return candidates.reordered(ordered)


def _is_special(device: PublishedDevice) -> bool:
    return device.shared or bool(device.binding_conditions)


def _key(
    device: PublishedDevice, losses: Mapping[DeviceId, int], used: DevicesInUse, roots: Mapping[object, tuple[int, int]]
) -> tuple[object, ...]:
    shares = used.shares.get(device.id) if device.shared else None
    fullest = max((_share(device, name, amount) for name, amount in (shares or {}).items()), default=0)
    later = bool(device.binding_conditions)
    return (
        later,
        losses.get(device.id, 0),
        shares is None,
        -fullest,
        roots.get(device.attributes.get(PCIE_ROOT), (0, 0)),
    )


def _share(device: PublishedDevice, name: str, amount: Number) -> int:
    total = device.capacity[name].total.value if name in device.capacity else 0
    return int(Fraction(amount) * _UNIT / total) if total else 0


def _roots(
    query: DeviceQuery, found: Sequence[DeviceCandidate], used: DevicesInUse
) -> Mapping[object, tuple[int, int]]:
    """Return a rank for each PCIe root: first the one with the fewest free devices that suffice, then the largest."""
    free: dict[object, list[int]] = {}
    for number, candidate in enumerate(found):
        root = candidate.device.attributes.get(PCIE_ROOT)
        if root is not None and candidate.device.id not in used.whole:
            free.setdefault(root, []).append(number)
    sizes = {root: len(numbers) for root, numbers in free.items()}
    return {
        root: (size if size >= query.count else 2 * len(found) - size, free[root][0]) for root, size in sizes.items()
    }


# ---------------------------------------------------------------- partitions


def _losses(pool: Pool, used: DevicesInUse) -> dict[DeviceId, int]:
    """Return for each device of a pool how much of the devices that are free now its allocation takes or blocks."""
    left = dict(pool.counters)
    for device in (*pool.devices, *pool.others):
        if device.id in used.whole or device.id in used.shares:
            for counter, wanted in device.counters.items():
                left[counter] -= wanted
    open_devices = [
        device
        for device in pool.devices
        if device.counters and device.id not in used.whole and _fits(device.counters.items(), left)
    ]
    by_set: dict[str, list[tuple[PublishedDevice, int]]] = {}
    for device in open_devices:
        for set_ in {set_ for set_, _ in device.counters}:
            by_set.setdefault(set_, []).append((device, _weight(device, pool)))
    return {device.id: _loss(device, by_set, left) for device in open_devices}


def _fits(wanted: Iterable[tuple[tuple[str, str], Number]], left: Mapping[tuple[str, str], Number]) -> bool:
    return all(left[counter] >= amount for counter, amount in wanted)


def _weight(device: PublishedDevice, pool: Pool) -> int:
    """Return which part of its counter sets a device is."""
    parts = [
        Fraction(amount) / pool.counters[counter]
        for counter, amount in device.counters.items()
        if pool.counters[counter]
    ]
    return int(sum(parts, Fraction(0)) * _UNIT)


def _loss(
    device: PublishedDevice,
    by_set: Mapping[str, Sequence[tuple[PublishedDevice, int]]],
    left: Mapping[tuple[str, str], Number],
) -> int:
    blocked: dict[DeviceId, int] = {}
    for set_ in sorted({set_ for set_, _ in device.counters}):
        charge(1 + len(by_set[set_]) // 4)
        for other, weight in by_set[set_]:
            if other is device or any(
                left[counter] - device.counters.get(counter, 0) < amount for counter, amount in other.counters.items()
            ):
                blocked[other.id] = weight
    return sum(blocked.values())
