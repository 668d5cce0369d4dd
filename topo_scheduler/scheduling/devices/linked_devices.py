"""Which GPUs of a node the claims of a pod should have: those with the best links, or as close as the pod asks.

Selectors, constraints and counters decide which devices claims may have. Of those, the search tries first what this
module returns. Where all GPUs of a node are linked alike, only pods that ask for close GPUs prefer some to others.
"""

from collections.abc import Sequence
from typing import Final

from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.scheduling.devices.allocator import DeviceCandidates
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery
from topo_scheduler.scheduling.devices.gpu_sets import GpuSets
from topo_scheduler.state.devices.inventory import DevicesInUse
from topo_scheduler.state.devices.pools import DeviceId
from topo_scheduler.state.operation_budget import charge

NO_NEEDS: Final = GpuNeeds(required=False)


def linked_devices(
    sets: GpuSets,
    row: int,
    claims: Sequence[ClaimQuery],
    candidates: DeviceCandidates,
    used: DevicesInUse,
    needs: GpuNeeds | None,
) -> frozenset[DeviceId]:
    """Return the whole GPUs that a pod should get; nothing if any will do, or if no free ones are as close as it asks.

    Args:
        sets: the free GPUs of nodes.
        row: the node.
        claims: what the pod asks for and does not have yet.
        candidates: the devices of the node that match.
        used: devices of the node that are in use, or that other pods of the decision get.
        needs: how close the GPUs of the pod must or should be; None if it does not ask.
    """
    claimed, gpus = sets.claimed, sets.hardware.of(row)
    if claimed is None or gpus is None or not (needs is not None or sets.is_uneven(row)):
        return frozenset()
    whole = claimed.whole_gpus_of(row)
    size, matching = _asked(claims, candidates, {gpu.id: index for index, gpu in enumerate(whole)}, gpus.count)
    if not 0 < size <= matching.bit_count():
        return frozenset()
    taken = claimed.indexes(row, {*used.whole, *used.shares}, gpus.count)
    if taken < 0:  # it is not known which GPUs are in use
        return frozenset()
    chosen = sets.choose(needs or NO_NEEDS, size, row, taken | (gpus.all_gpus & ~matching), exact=True)
    return frozenset(gpu.id for index, gpu in enumerate(whole) if chosen > 0 and chosen >> index & 1)


def _asked(
    claims: Sequence[ClaimQuery], candidates: DeviceCandidates, index_of: dict[DeviceId, int], count: int
) -> tuple[int, int]:
    """Return how many whole GPUs claims ask for, and those that match, as bits."""
    size, matching = 0, 0
    for request in (request for claim in claims for request in claim.requests):
        for query in request:
            if query.admin_access or not query.count:
                continue
            indexes = [index_of.get(candidate.device.id, count) for candidate in candidates.of(query)]
            charge(len(indexes))
            bits = sum(1 << index for index in indexes if index < count)
            if bits.bit_count() >= query.count:
                size, matching = size + query.count, matching | bits
                break
    return size, matching
