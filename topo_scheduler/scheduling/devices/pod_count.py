"""How many pods with equal claims the free devices of a node suffice for, one after another."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from topo_scheduler.scheduling.devices.allocator import DeviceAllocationError, DeviceCandidates, Grant, allocate
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery
from topo_scheduler.scheduling.devices.close_rule import CloseRule
from topo_scheduler.state.devices.inventory import DeviceInventory, DevicesInUse
from topo_scheduler.state.devices.pools import Pool
from topo_scheduler.state.pods.classes import NO_LIMIT

MAX_PODS_PER_NODE: Final = 64
"""Pods of a class with claims that are counted on one node."""


def count_pods(
    candidates: DeviceCandidates,
    once: Sequence[ClaimQuery],
    each: Sequence[ClaimQuery],
    used: DevicesInUse,
    rule: CloseRule | None = None,
) -> tuple[int, str]:
    """Return how many pods fit, and the reason if the search was given up.

    Args:
        candidates: devices of the node.
        once: claims that the pods share.
        each: claims that each of them has.
        used: devices in use; those of the pods are added.
        rule: how close the GPUs of each pod must be; None if that does not matter.
    """
    count = 0
    try:
        grants = allocate(candidates, [*once, *each], used, rule)
        if grants is None:
            return 0, ""
        if not each:
            return NO_LIMIT, ""
        use(used, grants[: len(once)])
        if rule is not None:
            rule = rule.holding(
                grant.device.id for grant in chain(*grants[: len(once)]) if not grant.query.admin_access
            )
        grants = grants[len(once) :]
        while grants is not None and count < MAX_PODS_PER_NODE:
            count += 1
            if not use(used, grants):
                return MAX_PODS_PER_NODE, ""  # admin access uses nothing
            grants = allocate(candidates, each, used, rule)
    except DeviceAllocationError as error:
        return count, str(error)
    return count, ""


def used_of(inventory: DeviceInventory, pools: Iterable[Pool]) -> DevicesInUse:
    """Return which devices of some pools are in use."""
    return inventory.use_of_pools(pool.id for pool in pools)


def use(used: DevicesInUse, grants: Iterable[Iterable[Grant]]) -> bool:
    """Count granted devices as used; return whether any was not used before."""
    any_new = False
    for grant in (grant for of_claim in grants for grant in of_claim):
        id_ = grant.device.id
        if grant.query.admin_access:
            continue
        any_new = True
        if grant.part is None:
            used.whole.add(id_)
            continue
        shares = used.shares.setdefault(id_, {})
        for name, part in grant.part.items():
            shares[name] = shares.get(name, 0) + part.value
    return any_new
