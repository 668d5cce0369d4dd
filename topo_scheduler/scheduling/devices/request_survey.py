"""For each request of a pending pod's claims: which devices of which nodes match, and why the others can't be had.

For `explain`, which asks once. The filters of a decision stop at the first reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.scheduling.devices.allocator import DeviceCandidates, SelectorFailure
from topo_scheduler.scheduling.devices.attribute_agreement import most_in_agreement
from topo_scheduler.scheduling.devices.capacity_share import consumed, fits
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery, DeviceQuery
from topo_scheduler.scheduling.devices.node_devices import NodeDevices, PodClaims
from topo_scheduler.scheduling.devices.pod_count import used_of
from topo_scheduler.state.devices.device_survey import counters_left
from topo_scheduler.state.devices.inventory import ClaimKey, DevicesInUse
from topo_scheduler.state.devices.pools import Number, Pool, PublishedDevice

FREE: Final = "free"
IN_USE: Final = "inUse"
TAINTED: Final = "tainted"
BLOCKED: Final = "blocked"
TOO_SMALL: Final = "tooSmall"
CAUSES: Final = (FREE, IN_USE, TAINTED, BLOCKED, TOO_SMALL)
"""What becomes of a device that matches: free, in use by claims, with a taint that the request does not tolerate,
overlapped by partitions in use, or with less capacity than requested."""


@dataclass(slots=True)
class MatchingDevices:
    """Devices of a node that match a request.

    Attributes:
        node: name of the node.
        counts: number by cause, of those in `CAUSES`.
        together: free devices that satisfy the constraints of the request, at most; None without a constraint.
        problem: why none of a pool of the node, or not all devices that match, may be allocated; empty if they may.
    """

    node: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    together: int | None = None
    problem: str = ""

    @property
    def matching(self) -> int:
        """Devices that match."""
        return sum(self.counts.values())


@dataclass(slots=True)
class Rejection:
    """A selector and the devices that it rejects. ``failure``: why it fails on the first device on which it does."""

    of_class: bool
    expression: str
    devices: int = 0
    failure: str = ""


@dataclass(slots=True)
class SurveyedRequest:
    """A request, or an alternative of one.

    Attributes:
        claim: namespace and name of its claim.
        request: name, as in results of an allocation.
        class_name: its DeviceClass.
        count: devices that it asks for; 0 for all that match.
        match_attributes: attributes of which all its devices must have one value.
        distinct_attributes: attributes of which each of its devices must have another value.
        nodes: those with devices that match or with pools that can't be used, most free devices first.
        rejections: its selectors that reject devices.
    """

    claim: ClaimKey
    request: str
    class_name: str
    count: int
    match_attributes: tuple[str, ...]
    distinct_attributes: tuple[str, ...]
    nodes: list[MatchingDevices] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)


def survey_requests(
    devices: NodeDevices, claims: PodClaims, keys: Sequence[ClaimKey], rows: Sequence[tuple[str, int]]
) -> list[SurveyedRequest]:
    """Return each request of the claims that are not allocated yet.

    Args:
        devices: of all nodes.
        claims: of the pod.
        keys: their namespaces and names.
        rows: nodes by name, with their rows.

    Raises:
        ClaimQueryError: a claim can't be allocated on any node as it is.
    """
    surveys = []
    for claim, key in zip(claims, keys, strict=True):
        if devices.inventory.allocation_of(key) is not None:
            continue
        query = devices.query(claim)
        surveys += [
            _request(devices, key, query, alternative, rows) for request in query.requests for alternative in request
        ]
    return surveys


def _request(
    devices: NodeDevices, key: ClaimKey, claim: ClaimQuery, query: DeviceQuery, rows: Sequence[tuple[str, int]]
) -> SurveyedRequest:
    constraints = [constraint for constraint in claim.constraints if constraint.concerns(query)]
    match = tuple(constraint.attribute for constraint in constraints if not constraint.distinct)
    distinct = tuple(constraint.attribute for constraint in constraints if constraint.distinct)
    surveyed = SurveyedRequest(key, query.name, query.class_name, query.count, match, distinct)
    of_class = len(devices.inventory.classes[query.class_name].spec.selectors)
    rejections = [Rejection(number < of_class, text) for number, text in enumerate(query.expressions)]
    for name, row in rows:
        pools = devices.pools_of(row)
        node = MatchingDevices(name, problem=next((pool.problem for pool in pools if pool.problem), ""))
        free = [device for pool in pools for device in _free(devices, pool, query, node, rejections)]
        node.problem = node.problem or _unsupported(devices, query, pools)
        if constraints:
            node.together = most_in_agreement(free, constraints)
        if node.matching or node.problem:
            surveyed.nodes.append(node)
    surveyed.nodes.sort(key=lambda node: (-node.counts[FREE], -node.matching))
    surveyed.rejections = [rejection for rejection in rejections if rejection.devices]
    return surveyed


def _free(
    devices: NodeDevices, pool: Pool, query: DeviceQuery, node: MatchingDevices, rejections: Sequence[Rejection]
) -> list[PublishedDevice]:
    """Count the devices of a pool; return those that are free."""
    if not pool.usable:
        return []
    used = DevicesInUse() if query.admin_access else used_of(devices.inventory, [pool])
    left = counters_left(pool, used)
    free = []
    for device in pool.devices:
        if not _matches(devices, query, device, rejections):
            continue
        cause = _cause(query, device, used, left)
        node.counts[cause] += 1
        if cause == FREE:
            free.append(device)
    return free


def _unsupported(devices: NodeDevices, query: DeviceQuery, pools: Sequence[Pool]) -> str:
    candidates = DeviceCandidates(pools, [], devices.selectors.matches)
    unsupported = candidates.unsupported(query)
    return f"devices that match have {unsupported}, which is not supported" if unsupported else ""


def _matches(
    devices: NodeDevices, query: DeviceQuery, device: PublishedDevice, rejections: Sequence[Rejection]
) -> bool:
    for expression, rejection in zip(query.expressions, rejections, strict=True):
        try:
            if devices.selectors.matches(expression, device):
                continue
        except SelectorFailure as error:
            rejection.failure = rejection.failure or str(error)
        rejection.devices += 1
        return False
    return True


def _cause(query: DeviceQuery, device: PublishedDevice, used: DevicesInUse, left: dict[tuple[str, str], Number]) -> str:
    if device.id in used.whole:
        return IN_USE
    if not query.tolerates(device):
        return TAINTED
    part = consumed(query.capacity, device)
    if part is None or not fits(part, device, {}):
        return TOO_SMALL
    shares = used.shares.get(device.id)
    if shares is not None:
        return FREE if fits(part, device, shares) else IN_USE
    if any(left.get(counter, 0) < amount for counter, amount in device.counters.items()):
        return BLOCKED
    return FREE
