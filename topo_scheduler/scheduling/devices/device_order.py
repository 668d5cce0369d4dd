"""In which order the search tries devices: those first whose use leaves the most for pods that come later.

- **Partitions**, such as MIG instances: those with which the GPU loses the least capacity, as its counters say. So
  partitions go to GPUs that are split already, and to the slots that overlap the fewest larger ones. Of equal ones,
  that on the GPU with the most partitions in use comes first: it will be the last to be whole again.
- **Shared devices**: those that have shares already, the fullest first.
- **Whole devices**: those of the PCIe root that has just enough of them.

What is feasible does not depend on the order.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from string import digits
from typing import Final, NamedTuple

from topo_scheduler.scheduling.devices.allocator import DeviceCandidate, DeviceCandidates
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery, DeviceQuery
from topo_scheduler.state.devices.device_survey import PCIE_ROOT
from topo_scheduler.state.devices.inventory import DevicesInUse
from topo_scheduler.state.devices.pools import (
    CounterSetForm,
    DeviceId,
    DeviceKind,
    NodeScope,
    Number,
    Pool,
    PoolLayout,
    PublishedDevice,
)
from topo_scheduler.state.operation_budget import charge

_UNIT: Final = 840_000
"""Losses and shares are integers. Up to 8 places of a profile divide a slice without a remainder."""
MAX_KNOWN_LOSSES: Final = 16_384
"""Uses of a GPU for which losses are kept, by the form of the GPU: an H100 has 723 without media extensions."""
MAX_BESIDE: Final = 31
"""Devices in use on a GPU up to which their number decides between equal losses."""


def in_order(
    candidates: DeviceCandidates, used: DevicesInUse, preferred: Collection[DeviceId] = ()
) -> DeviceCandidates:
    """Return the devices of each request, ``preferred`` ones first, then the best.

    Of equal ones the order of pools and slices decides.
    """
    losses: dict[DeviceId, int] = {}
    for pool in candidates.pools:
        if pool.usable and pool.counters:
            losses |= {id_: loss.rank for id_, loss in capacity_lost(pool, used).items()}
    ordered: dict[DeviceQuery, list[DeviceCandidate]] = {}
    for query in candidates.queries:
        matching = candidates.of(query)
        roots = _roots(query, matching, used)
        if (
            not preferred
            and not losses
            and not roots
            and not any(_is_special(candidate.device) for candidate in matching)
        ):
            continue  # all are equal: the order of pools and slices decides
        keys = [
            (candidate.device.id not in preferred, _key(candidate.device, losses, used, roots))
            for candidate in matching
        ]
        ordered[query] = [matching[number] for number in sorted(range(len(matching)), key=keys.__getitem__)]
    return candidates.reordered(ordered)


def _is_special(device: PublishedDevice) -> bool:
    return device.shared or bool(device.kind.binding_conditions)


def _key(
    device: PublishedDevice, losses: Mapping[DeviceId, int], used: DevicesInUse, roots: Mapping[object, tuple[int, int]]
) -> tuple[object, ...]:
    shares = used.shares.get(device.id) if device.shared else None
    fullest = max((_share(device, name, amount) for name, amount in (shares or {}).items()), default=0)
    later = bool(device.kind.binding_conditions)
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
    query: DeviceQuery, matching: Sequence[DeviceCandidate], used: DevicesInUse
) -> Mapping[object, tuple[int, int]]:
    """Return a rank for each PCIe root: first the one with the fewest free devices that suffice, then the largest."""
    free: dict[object, list[int]] = {}
    for number, candidate in enumerate(matching):
        root = candidate.device.attributes.get(PCIE_ROOT)
        if root is not None and candidate.device.id not in used.whole:
            free.setdefault(root, []).append(number)
    sizes = {root: len(numbers) for root, numbers in free.items()}
    return {
        root: (size if size >= query.count else 2 * len(matching) - size, free[root][0]) for root, size in sizes.items()
    }


# ---------------------------------------------------------------- partitions


class CapacityLoss(NamedTuple):
    """What is lost with a partition. The lowest rank is best; ``thousandths``: of the capacity of an unused GPU."""

    rank: int
    thousandths: int


NO_LOSS: Final = CapacityLoss(0, 0)


def capacity_lost(pool: Pool, used: DevicesInUse) -> dict[DeviceId, CapacityLoss]:
    """Return for each free device of a pool how much capacity its GPU loses with it."""
    return _losses(pool, used) if pool.layout is None else _laid_out_losses(pool, pool.layout, used)


def _laid_out_losses(pool: Pool, layout: PoolLayout, used: DevicesInUse) -> dict[DeviceId, CapacityLoss]:
    """Return what `_losses` does, computed once for all GPUs that are alike and in the same use."""
    if not layout.sets:
        return _losses(pool, used)
    whole: list[list[int]] = [[] for _ in layout.sets]
    shares: list[list[int]] = [[] for _ in layout.sets]
    for of_set, ids in ((whole, used.whole), (shares, used.shares)):
        for id_ in ids:
            position = layout.positions.get(id_[2], -1) if id_[:2] == pool.id else -1
            if position in layout.places:
                number, index = layout.places[position]
                of_set[number].append(index)
    losses: dict[DeviceId, CapacityLoss] = {}
    for number, counter_set in enumerate(layout.sets):
        charge(4)
        indexed_losses = _losses_of_form(counter_set.form, tuple(sorted(whole[number])), tuple(sorted(shares[number])))
        losses |= {pool.devices[counter_set.positions[index]].id: loss for index, loss in indexed_losses}
    return losses


@lru_cache(maxsize=MAX_KNOWN_LOSSES)
def _losses_of_form(
    form: CounterSetForm, whole: tuple[int, ...], shares: tuple[int, ...]
) -> tuple[tuple[int, CapacityLoss], ...]:
    """Return the losses on one GPU by the numbers of its devices, of which some are in use."""
    devices = [
        PublishedDevice(
            ("", "", str(number)),
            DeviceKind(
                counters={("", name): amount for name, amount in amounts},
                counter_sets=frozenset(("",)),
                consumption=tuple((("", name), amount) for name, amount in amounts),
            ),
            {},
            NodeScope(),
        )
        for number, amounts in enumerate(form.devices)
    ]
    pool = Pool(("", ""), tuple(devices), counters={("", name): amount for name, amount in form.counters})
    used = DevicesInUse({devices[number].id for number in whole}, {devices[number].id: {} for number in shares})
    return tuple((int(id_[2]), loss) for id_, loss in _losses(pool, used).items())


def _losses(pool: Pool, used: DevicesInUse) -> dict[DeviceId, CapacityLoss]:
    """Return for each free device of a pool how much capacity its GPU loses with it, by a look at all of them.

    A GPU's capacity is a sum over profiles: the share of their places that are free, times the slices of the profile.
    `mig_slots` has the same rule by tables. Of equal losses, that on the GPU with more devices in use is lower.
    """
    left = dict(pool.counters)
    in_use: Counter[str] = Counter()
    for device in (*pool.devices, *pool.others):
        if device.id in used.whole or device.id in used.shares:
            in_use.update(device.counter_sets)
            for counter, wanted in device.counters.items():
                left[counter] -= wanted
    partitions = [device for device in pool.devices if device.counters]
    places = Counter((set_, _profile(device.consumption)) for device in partitions for set_ in device.counter_sets)
    total: Counter[str] = Counter()
    for set_, profile in places:
        total[set_] += _UNIT * profile.slices
    by_set: dict[str, list[tuple[PublishedDevice, int]]] = {}
    open_devices = [
        device for device in partitions if device.id not in used.whole and _fits(device.counters.items(), left)
    ]
    for device in open_devices:
        profile = _profile(device.consumption)
        for set_ in {set_ for set_, _ in device.counters}:
            by_set.setdefault(set_, []).append((device, _UNIT * profile.slices // max(1, places[set_, profile])))
    by_device = {}
    for device in open_devices:
        loss = _loss(device, by_set, left)
        beside = min(sum(in_use[set_] for set_ in device.counter_sets), MAX_BESIDE)
        whole = sum(total[set_] for set_ in device.counter_sets)
        by_device[device.id] = CapacityLoss(
            (MAX_BESIDE + 1) * loss + MAX_BESIDE - beside, 1_000 * loss // max(1, whole)
        )
    return by_device


def least_lost(candidates: DeviceCandidates, claims: Sequence[ClaimQuery], used: DevicesInUse) -> CapacityLoss:
    """Return the least capacity that a GPU loses with one pod; nothing unless its claims ask for one partition."""
    requests = [request for claim in claims for request in claim.requests]
    if len(requests) != 1 or len(requests[0]) != 1 or requests[0][0].count != 1 or requests[0][0].admin_access:
        return NO_LOSS
    partitions = [candidate.device for candidate in candidates.of(requests[0][0]) if candidate.device.counters]
    pools = {device.id[:2] for device in partitions}
    losses = [capacity_lost(pool, used) for pool in candidates.pools if pool.id in pools and pool.usable]
    lost = [of_pool[device.id] for device in partitions for of_pool in losses if device.id in of_pool]
    return min(lost, default=NO_LOSS)


def _fits(wanted: Iterable[tuple[tuple[str, str], Number]], left: Mapping[tuple[str, str], Number]) -> bool:
    return all(left[counter] >= amount for counter, amount in wanted)


class _PartitionKind(NamedTuple):
    """What devices of one profile take, wherever they start on a GPU; ``slices``: how many slices of it."""

    slices: int
    amounts: tuple[tuple[str, Number], ...]


@lru_cache(maxsize=4096)
def _profile(consumption: tuple[tuple[tuple[str, str], Number], ...]) -> _PartitionKind:
    """Return the profile of a device that consumes these counters.

    Counters whose names differ only in a number at the end, such as memory slices, are slices of a GPU.
    """
    names = [(name.rstrip(digits), name, amount) for (_, name), amount in consumption]
    numbered = Counter(kind for kind, name, _ in names if kind != name)
    return _PartitionKind(max(numbered.values(), default=1), tuple(sorted((kind, amount) for kind, _, amount in names)))


def _loss(
    device: PublishedDevice,
    by_set: Mapping[str, Sequence[tuple[PublishedDevice, int]]],
    left: Mapping[tuple[str, str], Number],
) -> int:
    lost: dict[DeviceId, int] = {}
    for set_ in sorted({set_ for set_, _ in device.counters}):
        charge(1 + len(by_set[set_]) // 4)
        for other, weight in by_set[set_]:
            if other is device or any(
                left[counter] - device.counters.get(counter, 0) < amount for counter, amount in other.counters.items()
            ):
                lost[other.id] = weight
    return sum(lost.values())
