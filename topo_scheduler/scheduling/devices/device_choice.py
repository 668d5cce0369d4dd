"""Choice of devices for the pods of a decision.

Filters decide how many pods of a class a node has devices for. This module chooses the devices once each pod has a
node, for all pods of a decision together, so that no device is given twice.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from topo_scheduler.api.devices import Allocation
from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.devices.allocation import allocation_of
from topo_scheduler.scheduling.devices.allocator import DeviceAllocationError, DeviceCandidates, Grant, allocate
from topo_scheduler.scheduling.devices.claim_query import ClaimQueryError
from topo_scheduler.scheduling.devices.close_gpus import CloseGpus
from topo_scheduler.scheduling.devices.close_rule import CloseRule
from topo_scheduler.scheduling.devices.device_order import in_order
from topo_scheduler.scheduling.devices.gpu_closeness import closeness_text
from topo_scheduler.scheduling.devices.gpu_sets import GpuSets
from topo_scheduler.scheduling.devices.known_choices import Granted
from topo_scheduler.scheduling.devices.linked_devices import linked_devices
from topo_scheduler.scheduling.devices.node_devices import NodeDevices, PodClaims
from topo_scheduler.scheduling.devices.pod_count import use, used_of
from topo_scheduler.state.devices.claim_writes import ClaimChoice, ExtendedClaim
from topo_scheduler.state.devices.extended_resources import RequestMapping
from topo_scheduler.state.devices.inventory import ClaimKey, DevicesInUse
from topo_scheduler.state.devices.pod_claims import PodClaim
from topo_scheduler.state.devices.pools import DeviceId, PoolId


class DeviceChoiceError(Exception):
    """The pods can't have their devices on these nodes together, although each pod alone could."""


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod of a decision: its claims, what they ask for, its row and its node.

    ``mappings``: which container gets which request of the claim for extended resources, of the pod with this ``uid``.
    ``needs``: what its GPUs must or should be like, and how close to each other; None if it does not ask.
    """

    claims: PodClaims
    keys: tuple[ClaimKey, ...]
    row: int
    node: str
    mappings: tuple[RequestMapping, ...] = ()
    uid: str = ""
    needs: GpuNeeds | None = None

    @property
    def requires_of_gpus(self) -> bool:
        """Whether it may have no GPUs that are not as it asks."""
        return self.needs is not None and self.needs.required


@dataclass(slots=True)
class _Chosen:
    """What was given so far: devices in use by row, allocations of shared claims, devices that matter to many nodes.

    ``as_counted``: devices are tried in the order in which the filters counted pods, and not the best ones first.
    """

    as_counted: bool = False
    used: dict[int, DevicesInUse] = field(default_factory=dict)
    allocations: dict[ClaimKey, Allocation] = field(default_factory=dict)
    everywhere: list[Grant] = field(default_factory=list)


def choose_devices(
    devices: NodeDevices, pods: Sequence[PlacedPod], sets: GpuSets | None = None
) -> list[tuple[ClaimChoice, ...]]:
    """Return for each pod what its claims get.

    Args:
        devices: the devices of nodes.
        pods: the pods, in the order in which they choose.
        sets: the free GPUs of nodes with their links; without it, links do not count.

    Raises:
        DeviceChoiceError: the devices of a node do not suffice, or a claim changed since it was read.
    """
    try:
        return _choose_all(devices, pods, _Chosen(), sets)
    except DeviceChoiceError:
        if not any(pod.requires_of_gpus for pod in pods):
            raise
        # The best GPUs for the first pods may leave none that are close for others.
        return _choose_all(devices, pods, _Chosen(as_counted=True), sets)


def _choose_all(
    devices: NodeDevices, pods: Sequence[PlacedPod], chosen: _Chosen, sets: GpuSets | None
) -> list[tuple[ClaimChoice, ...]]:
    try:
        return [_choose(devices, pod, chosen, sets) for pod in pods]
    except (DeviceAllocationError, ClaimQueryError) as error:
        raise DeviceChoiceError(f"{NodeReason.DEVICES}: {error}") from error


def _choose(devices: NodeDevices, pod: PlacedPod, chosen: _Chosen, sets: GpuSets | None) -> tuple[ClaimChoice, ...]:
    inventory = devices.inventory
    pod = _at_its_node(devices, pod)
    wanted: list[int] = []
    for number, (claim, key) in enumerate(zip(pod.claims, pod.keys, strict=True)):
        if claim.resources:
            wanted.append(number)
            continue
        if key not in inventory.claims:
            raise DeviceChoiceError(f'resourceclaim "{key[1]}" was deleted')
        allocation = chosen.allocations.get(key) or inventory.allocation_of(key)
        if allocation is None:
            wanted.append(number)
        elif not devices.is_allowed(allocation, pod.row):
            raise DeviceChoiceError(f'resourceclaim "{key[1]}" has its devices on other nodes than {pod.node}')
    made = _allocate(devices, pod, wanted, chosen, sets) if wanted or pod.requires_of_gpus else {}
    return tuple(
        ClaimChoice(key, "", made[key], _to_make(claim, pod))
        if claim.resources
        else ClaimChoice(key, inventory.claims[key].metadata.uid, made.get(key))
        for claim, key in zip(pod.claims, pod.keys, strict=True)
    )


def _at_its_node(devices: NodeDevices, pod: PlacedPod) -> PlacedPod:
    """Return a pod with the claims that apply to its node."""
    claims = devices.claims_at(pod.claims, pod.row)
    if len(claims) == len(pod.claims):
        return replace(pod, claims=claims)
    keys = (key for claim, key in zip(pod.claims, pod.keys, strict=True) if not claim.resources)
    return replace(pod, claims=claims, keys=tuple(keys))


def _to_make(claim: PodClaim, pod: PlacedPod) -> ExtendedClaim:
    spec = claim.specification
    names = {request.name for request in spec.devices.requests}
    return ExtendedClaim(spec, tuple(mapping for mapping in pod.mappings if mapping.request in names))


def _allocate(
    devices: NodeDevices, pod: PlacedPod, wanted: Sequence[int], chosen: _Chosen, sets: GpuSets | None
) -> dict[ClaimKey, Allocation]:
    """Return allocations for some of a pod's claims, by their numbers."""
    asked, candidates = devices.candidates(pod.claims, pod.row)
    queries = [asked[number] for number in wanted]
    used = chosen.used.get(pod.row)
    if used is None:
        used = chosen.used[pod.row] = used_of(devices.inventory, candidates.pools)
        use(used, [chosen.everywhere])

    rule = _close_rule(devices, pod, wanted, candidates, used, chosen, sets)
    linked: frozenset[DeviceId] = frozenset()
    if sets is not None and not chosen.as_counted:
        needs = pod.needs.closeness() if pod.needs is not None and pod.needs.close else None
        linked = linked_devices(sets, pod.row, queries, candidates, used, needs)

    def search() -> Granted | None:
        ordered = candidates if chosen.as_counted else in_order(candidates, used, linked)
        return allocate(ordered, queries, used, rule)

    # Which devices are close is known of this node alone: what is found with them says nothing about others.
    is_general = not linked and rule is None and not chosen.as_counted
    grants = devices.grants(pod.claims, pod.row, tuple(wanted), used, search) if is_general else search()
    if grants is None:
        text = closeness_text(rule.needs) if rule is not None else ""
        what = f"GPUs that are {text}" if text else "devices"
        raise DeviceChoiceError(f"node {pod.node} has too few {what} for all of these pods")
    _give(pod.row, grants, chosen, {pool.id for pool in candidates.pools if pool.others})
    made = {}
    for number, query, granted in zip(wanted, queries, grants, strict=True):
        key = pod.keys[number]
        uid = pod.uid if pod.claims[number].resources else devices.inventory.claims[key].metadata.uid
        made[key] = chosen.allocations[key] = allocation_of(query, granted, uid, pod.node)
    return made


def _close_rule(
    devices: NodeDevices,
    pod: PlacedPod,
    wanted: Sequence[int],
    candidates: DeviceCandidates,
    used: DevicesInUse,
    chosen: _Chosen,
    sets: GpuSets | None,
) -> CloseRule | None:
    """Return how close the GPUs of a pod must be, with those of its allocated claims; None if that does not matter."""
    if sets is None or pod.needs is None or not pod.requires_of_gpus:
        return None
    close = CloseGpus(sets, pod.row, pod.needs)
    places = close.places(candidates.pools)
    keys = [key for number, key in enumerate(pod.keys) if number not in wanted]
    allocations = [chosen.allocations.get(key) or devices.inventory.allocation_of(key) for key in keys]
    held = close.held(places, filter(None, allocations))
    queries = devices.queries(pod.claims)
    return close.rule(places, held, candidates, [queries[number] for number in wanted], used)


def _give(row: int, grants: Sequence[Sequence[Grant]], chosen: _Chosen, spanning: Container[PoolId]) -> None:
    """Count granted devices as used, also on other nodes that can use them or that have devices of their pool.

    ``spanning``: pools with devices of several nodes, which may consume the same counters.
    """
    use(chosen.used[row], grants)
    if common := [
        grant
        for of_claim in grants
        for grant in of_claim
        if not grant.device.scope.node or (grant.device.counters and grant.device.id[:2] in spanning)
    ]:
        chosen.everywhere += common
        for other, used in chosen.used.items():
            if other != row:
                use(used, [common])
