"""Why a node has no devices for some claims even if all of them were free, where one cause can be named."""

from collections.abc import Sequence

from topo_scheduler.scheduling.devices.allocator import DeviceCandidates
from topo_scheduler.scheduling.devices.attribute_agreement import agreement_text, most_in_agreement
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery, DeviceQuery
from topo_scheduler.state.operation_budget import charge


def shortage(candidates: DeviceCandidates, claims: Sequence[ClaimQuery]) -> str:
    """Return the cause for the first request that no device can serve; empty if devices are only too few.

    The text has no name of a node or of its pool, so that nodes with the same problem are counted together.
    """
    for request in (request for claim in claims for request in claim.requests):
        if cause := _cause(candidates, request):
            return cause
    for claim in claims:
        for request in claim.requests:
            if cause := _disagreement(candidates, claim, request):
                return cause
    return ""


def _cause(candidates: DeviceCandidates, request: Sequence[DeviceQuery]) -> str:
    matching = [(query, candidate.device) for query in request for candidate in candidates.of(query)]
    name = f"request {request[0].request}"
    unsupported = next((field for query in request if (field := candidates.unsupported(query))), "")
    if any(query.tolerates(device) for query, device in matching):
        return _unsupported(name, unsupported) if unsupported and _too_few(candidates, request) else ""
    if matching:
        return f"{name}: the devices that match have taints that it does not tolerate"
    if unsupported:
        return _unsupported(name, unsupported)
    if problem := next((pool.problem for pool in candidates.pools if pool.problem), ""):
        return problem
    if not candidates.everything:
        return "no driver publishes devices for the node"
    return f"{name}: no device matches its class and selectors"


def _too_few(candidates: DeviceCandidates, request: Sequence[DeviceQuery]) -> bool:
    """Return whether fewer devices match each alternative of a request than it asks for."""
    return all(len(candidates.of(query)) < query.count for query in request)


def _unsupported(name: str, field: str) -> str:
    return f"{name}: devices that match have {field}, which is not supported"


def _disagreement(candidates: DeviceCandidates, claim: ClaimQuery, request: Sequence[DeviceQuery]) -> str:
    """Return which constraints of a claim leave a request too few devices, although enough match."""
    text = ""
    for query in request:
        constraints = [constraint for constraint in claim.constraints if constraint.concerns(query)]
        matching = [candidate.device for candidate in candidates.of(query) if query.tolerates(candidate.device)]
        charge(len(matching) * len(constraints))
        count = query.count or len(matching)
        if not constraints or len(matching) < count or most_in_agreement(matching, constraints) >= count:
            return ""
        match = [constraint.attribute for constraint in constraints if not constraint.distinct]
        distinct = [constraint.attribute for constraint in constraints if constraint.distinct]
        text = text or f"request {query.request}: too few devices that match {agreement_text(match, distinct)}"
    return text
