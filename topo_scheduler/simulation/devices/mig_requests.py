"""Which GPUs of a case can be split by MIG, and which MIG instances its pods ask for."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.annotations import MIG_PROFILE
from topo_scheduler.api.devices import ExactDeviceRequest, ResourceClaimSpec
from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.labels import GPU_RESOURCES
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.api.quantity import QuantityError, parse_quantity
from topo_scheduler.kube.connection.resources import RESOURCE_SLICES
from topo_scheduler.simulation.cases.amounts import node_milli
from topo_scheduler.simulation.cases.model import Arrival, CaseError, ClusterCase
from topo_scheduler.state.devices import device_survey
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.devices.mig import MigGeometry, geometry_of
from topo_scheduler.state.devices.node_hardware import describe
from topo_scheduler.state.devices.pools import whole_pool

_RESOURCE: Final = "nvidia.com/mig-"
_PROFILE: Final = re.compile(r"\.profile\s*==\s*(['\"])([^'\"]+)\1")
MAX_INSTANCES: Final = 1_024
"""Instances that one pod may ask for: a node has fewer."""


@dataclass(frozen=True, slots=True)
class MigGpus:
    """GPUs of one geometry. ``nodes``: the index of the node of each GPU, ascending."""

    geometry: MigGeometry
    nodes: tuple[int, ...]


def gpus_of(cluster: ClusterCase) -> list[MigGpus]:
    """Return the GPUs whose geometry is known, by geometry in the order of nodes.

    A node has those that its ResourceSlices publish; without them, those of its labels and of its resources.

    Raises:
        CaseError: there are none.
    """
    inventory = DeviceInventory()
    for item in cluster.storage.get(RESOURCE_SLICES.plural, ()):
        inventory.put(inventory.slices, item.metadata.name, item)
    by_geometry: dict[MigGeometry, list[int]] = {}
    for number, node in enumerate(cluster.nodes):
        boards = _boards(inventory, node.metadata.name)
        if not boards and (described := _of_labels(node)) is not None:
            boards = [described[0]] * described[1]
        for geometry in boards:
            by_geometry.setdefault(geometry, []).append(number)
    if not by_geometry:
        raise CaseError(
            f"--mig-policy: {cluster.name} has no GPUs of which the MIG geometry is known; name their product by the"
            " label nvidia.com/gpu.product, or for a generated cluster by the option model, such as model=H100-80GB"
        )
    return [MigGpus(geometry, tuple(nodes)) for geometry, nodes in by_geometry.items()]


def _boards(inventory: DeviceInventory, node: str) -> list[MigGeometry]:
    """Return the geometry of each GPU that the slices of a node publish."""
    boards: dict[tuple[object, str], MigGeometry] = {}
    for id_ in dict.fromkeys(item.pool for item in inventory.slices_of(node)):
        pool = whole_pool(inventory.slices_of_pool(id_))
        for device in pool.devices if pool is not None else ():
            if device.scope.node != node or device_survey.profile_of(device) != device_survey.WHOLE:
                continue
            memory = next((item.total.value for name, item in device.capacity.items() if _is_memory(name)), 0)
            geometry = geometry_of(str(device_survey.attribute(device, "productName") or ""), int(memory))
            if geometry is not None:
                boards[id_, min(device.counter_sets, default=device.id[2])] = geometry
    return list(boards.values())


def _is_memory(name: str) -> bool:
    return name.rpartition("/")[2] == "memory"


def _of_labels(node: Node) -> tuple[MigGeometry, int] | None:
    """Return the geometry and the number of the GPUs of a node, by its labels and resources; None if not known."""
    offered: dict[str, int] = {
        name: node_milli(node) // WHOLE_GPU for name in GPU_RESOURCES if name in node.status.allocatable
    }
    gpus, _ = describe(node.metadata.labels, offered)
    if gpus is None or not gpus.count:
        return None
    geometry = geometry_of(gpus.model, gpus.memory_bytes)
    return None if geometry is None else (geometry, gpus.count)


# ---------------------------------------------------------------- pods


def instances_of(arrival: Arrival) -> list[tuple[str, ...]]:
    """Return the profiles that each pod of a workload asks for; pods that ask for none are left out.

    A pod asks by its resources, or by claims whose selectors compare the attribute ``profile`` with a text. With limits
    on whole GPUs (MIG strategy ``single``) it asks by the annotation for the profile.

    Raises:
        CaseError: a pod asks for too many.
    """
    instances = []
    for pod in arrival.pods:
        asked = _by_resources(pod) or _by_annotation(pod, arrival) or _by_claims(pod, arrival)
        if asked.total() > MAX_INSTANCES:
            raise CaseError(
                f"{arrival.source or arrival.name}: pod {pod.metadata.name} asks for {asked.total()} MIG instances;"
                f" make it {MAX_INSTANCES} at most"
            )
        if asked:
            instances.append(tuple(sorted(asked.elements())))
    return instances


def _by_resources(pod: Pod) -> Counter[str]:
    asked: Counter[str] = Counter()
    for name, amount in _limits(pod).items():
        if name.startswith(_RESOURCE) and amount:
            asked[name.removeprefix(_RESOURCE).replace(".me", "+me")] += amount
    return asked


def _by_annotation(pod: Pod, arrival: Arrival) -> Counter[str]:
    annotations = [pod.metadata.annotations, *(owner.metadata.annotations for owner in arrival.owners.values())]
    profile = next((item[MIG_PROFILE].strip() for item in annotations if item.get(MIG_PROFILE, "").strip()), "")
    count = sum(amount for name, amount in _limits(pod).items() if name in GPU_RESOURCES)
    return Counter({profile: count}) if profile and count else Counter()


def _limits(pod: Pod) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for container in pod.spec.containers:
        for name, quantity in container.resources.limits.items():
            if name.startswith(_RESOURCE) or name in GPU_RESOURCES:
                try:
                    total[name] += parse_quantity(quantity)
                except QuantityError:
                    continue  # the run reports it
    return total


def _by_claims(pod: Pod, arrival: Arrival) -> Counter[str]:
    namespace = pod.metadata.namespace
    claims = {(claim.metadata.namespace, claim.metadata.name): claim.spec for claim in arrival.claims}
    asked: Counter[str] = Counter()
    for entry in pod.spec.resource_claims:
        spec = arrival.templates.get((namespace, entry.resource_claim_template_name or ""))
        spec = spec or claims.get((namespace, entry.resource_claim_name or ""))
        if spec is not None:
            asked += _by_claim(spec)
    return asked


def _by_claim(spec: ResourceClaimSpec) -> Counter[str]:
    asked: Counter[str] = Counter()
    for request in spec.devices.requests:
        exact = request.exactly or next(iter(request.first_available), None)
        profile = _profile(exact) if exact is not None else ""
        if exact is not None and profile:
            asked[profile] += max(1, exact.count)
    return asked


def _profile(request: ExactDeviceRequest) -> str:
    texts = (selector.cel.expression for selector in request.selectors if selector.cel is not None)
    return next((match[2] for text in texts if (match := _PROFILE.search(text))), "")
