"""The allocation of a claim, as it is written to its status."""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID, uuid5

from topo_scheduler.api.devices import (
    AllocatedConfiguration,
    AllocatedDevice,
    Allocation,
    DeviceAllocation,
)
from topo_scheduler.api.objects import Quantity
from topo_scheduler.api.selectors import NodeSelector, NodeSelectorTerm, Requirement
from topo_scheduler.scheduling.devices.allocator import Grant
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery, DeviceQuery

_SHARES: Final = UUID("6f0d7a3c-0c9e-5a63-9d5f-2b8f2f3f8a11")
"""Namespace of the ids of shares."""


def allocation_of(claim: ClaimQuery, grants: Sequence[Grant], uid: str, node: str) -> Allocation:
    """Return the allocation of a claim.

    Drivers read only the allocation. So the configuration of classes and of the claim, tolerations and binding
    conditions are copied into it.

    Args:
        claim: what was asked for.
        grants: its devices, in order of its requests.
        uid: the claim's, from which the ids of shares are made: the same decision gives the same ids.
        node: the chosen node.
    """
    results = [_result(grant, _share_id(uid, number, grant)) for number, grant in enumerate(grants)]
    return Allocation(DeviceAllocation(results, _configuration(claim, grants)), _node_selector(grants, node))


def _share_id(uid: str, number: int, grant: Grant) -> str | None:
    return str(uuid5(_SHARES, f"{uid}/{number}")) if grant.device.shared else None


def _result(grant: Grant, share: str | None) -> AllocatedDevice:
    driver, pool, name = grant.device.id
    consumed: Mapping[str, Quantity] = {key: part.text for key, part in (grant.part or {}).items()}
    return AllocatedDevice(
        request=grant.query.name,
        driver=driver,
        pool=pool,
        device=name,
        admin_access=True if grant.query.admin_access else None,
        tolerations=list(grant.query.tolerations),
        binding_conditions=list(grant.device.kind.binding_conditions or ()),
        binding_failure_conditions=list(grant.device.kind.binding_failure_conditions),
        share_id=share,
        consumed_capacity=dict(consumed) or None,
    )


def _configuration(claim: ClaimQuery, grants: Sequence[Grant]) -> list[AllocatedConfiguration]:
    """Return the configuration of each class once, with the requests that name it, then that of the claim."""
    granted = {grant.query for grant in grants}
    chosen = [query for request in claim.requests for query in request if query in granted]
    by_class: dict[str, list[DeviceQuery]] = {}
    for query in chosen:
        by_class.setdefault(query.class_name, []).append(query)
    entries = [
        AllocatedConfiguration("FromClass", [query.name for query in queries], entry.opaque)
        for queries in by_class.values()
        for entry in queries[0].class_config
    ]
    names = {name for query in chosen for name in (query.request, query.name)}
    entries += [
        AllocatedConfiguration("FromClaim", list(entry.requests), entry.opaque)
        for entry in claim.config
        if not entry.requests or names.intersection(entry.requests)
    ]
    return entries


def _node_selector(grants: Sequence[Grant], node: str) -> NodeSelector | None:
    """Return the nodes that can use all devices, None if all nodes can."""
    fields: list[Requirement] = []
    expressions: list[Requirement] = []
    for grant in grants:
        scope = grant.device.scope
        if scope.node or grant.device.kind.binds_to_node:
            return NodeSelector((NodeSelectorTerm((), (Requirement("metadata.name", "In", (node,)),)),))
        for term in scope.selector.node_selector_terms if scope.selector is not None else ():
            fields += [entry for entry in term.match_fields if not _is_known(entry, fields)]
            expressions += [entry for entry in term.match_expressions if not _is_known(entry, expressions)]
    if not fields and not expressions:
        return None
    return NodeSelector((NodeSelectorTerm(tuple(expressions), tuple(fields)),))


def _is_known(entry: Requirement, known: Sequence[Requirement]) -> bool:
    return any(
        (entry.key, entry.operator, set(entry.values)) == (other.key, other.operator, set(other.values))
        for other in known
    )
