"""What decides how many pods with some claims a node has devices for; nodes that are alike in this share one search.

Names of devices and attributes that nothing reads, such as UUIDs, are no part of it.
"""

from collections.abc import Iterable, Mapping, Sequence

from topo_scheduler.scheduling.devices.allocator import DeviceCandidates
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery
from topo_scheduler.state.devices.inventory import DevicesInUse
from topo_scheduler.state.devices.pools import DeviceId, Pool, PublishedDevice


def hardware_signature(candidates: DeviceCandidates, claims: Sequence[ClaimQuery]) -> object:
    """Return a value that is equal for nodes whose devices serve these claims equally, as long as none is in use."""
    attributes = sorted({constraint.attribute for claim in claims for constraint in claim.constraints})
    selected = [{candidate.device.id for candidate in candidates.of(query)} for query in candidates.queries]
    requests_capacity = any(query.capacity for query in candidates.queries)
    pools = tuple((pool.problem, tuple(sorted(pool.counters.items()))) for pool in candidates.pools)
    numbers = {pool.id: number for number, pool in enumerate(candidates.pools)}
    devices = tuple(
        (
            numbers[device.id[:2]],
            tuple(device.id in ids for ids in selected),
            tuple(query.tolerates(device) for query in candidates.queries),
            tuple(device.attributes.get(name) for name in attributes),
            device.consumption,
            tuple(sorted(device.capacity.items())) if device.shared or requests_capacity else (),
            device.shared,
        )
        for device in (candidate.device for candidate in candidates.everything)
    )
    others = tuple((numbers[device.id[:2]], device.consumption) for device in _others(candidates.pools))
    unsupported = tuple(candidates.unsupported(query) for query in candidates.queries)
    return pools, devices, others, unsupported, tuple(candidates.failures.values())


def use_signature(pools: Sequence[Pool], used: DevicesInUse) -> object:
    """Return which devices of the pools of a node are in use, and which of these no claim has yet, by position."""
    if not used.whole and not used.shares:
        return (), ()
    if all(pool.layout is not None for pool in pools):
        return tuple([_used_positions(pool, used) for pool in pools])
    devices = [*(device for pool in pools if pool.usable for device in pool.devices), *_others(pools)]
    whole = tuple(number for number, device in enumerate(devices) if device.id in used.whole)
    shares = tuple(
        (number, tuple(sorted(used.shares[device.id].items())))
        for number, device in enumerate(devices)
        if device.id in used.shares
    )
    promised = tuple(number for number, device in enumerate(devices) if device.id in used.promised)
    return whole, shares, promised


def _used_positions(pool: Pool, used: DevicesInUse) -> object:
    positions = pool.layout.positions if pool.layout is not None else {}
    whole = _positions_of(used.whole, pool, positions)
    promised = _positions_of(used.promised, pool, positions) if used.promised else ()
    shares = tuple(
        sorted(
            (positions[id_[2]], tuple(sorted(parts.items())))
            for id_, parts in used.shares.items()
            if id_[2] in positions and id_[:2] == pool.id
        )
    )
    return whole, shares, promised


def _positions_of(ids: Iterable[DeviceId], pool: Pool, positions: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sorted([positions[id_[2]] for id_ in ids if id_[2] in positions and id_[:2] == pool.id]))


def _others(pools: Sequence[Pool]) -> Iterable[PublishedDevice]:
    """Yield the devices for other nodes that consume counters of the node's pools."""
    return (device for pool in pools for device in pool.others if device.counters)
