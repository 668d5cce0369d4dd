"""ResourceClaims and their templates in a case, and how many GPUs the devices of ResourceSlices are."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from msgspec import field

from topo_scheduler.api.base import Base
from topo_scheduler.api.devices import ResourceClaim, ResourceClaimSpec
from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.objects import ApiObject
from topo_scheduler.kube.connection.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from topo_scheduler.simulation.cases.amounts import node_milli
from topo_scheduler.simulation.cases.documents import Document, convert
from topo_scheduler.simulation.cases.model import Arrival, ClaimTemplates, ClusterCase
from topo_scheduler.state.devices import device_survey
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.devices.pools import DeviceId, PublishedDevice, whole_pool


class ClaimTemplateSpec(Base):
    """``spec`` of a template."""

    spec: ResourceClaimSpec = field(default_factory=ResourceClaimSpec)


class ClaimTemplate(ApiObject):
    """A ResourceClaimTemplate."""

    spec: ClaimTemplateSpec = field(default_factory=ClaimTemplateSpec)


def templates_of(documents: Iterable[Document]) -> ClaimTemplates:
    """Return what the templates among documents ask for, by namespace and name.

    Raises:
        CaseError: a template can't be read.
    """
    templates = [convert(document, ClaimTemplate) for document in documents if document.kind == "ResourceClaimTemplate"]
    return {(item.metadata.namespace, item.metadata.name): item.spec.spec for item in templates}


def with_claims(arrivals: Iterable[Arrival], documents: Iterable[Document]) -> list[Arrival]:
    """Return workloads with the claims and templates that their pods name.

    Raises:
        CaseError: a claim or template can't be read.
    """
    documents = list(documents)
    templates = templates_of(documents)
    read = [convert(document, ResourceClaim) for document in documents if document.kind == RESOURCE_CLAIMS.kind]
    claims = {(claim.metadata.namespace, claim.metadata.name): claim for claim in read}
    return [_with_claims(arrival, templates, claims) for arrival in arrivals]


def _with_claims(
    arrival: Arrival, templates: ClaimTemplates, claims: Mapping[tuple[str, str], ResourceClaim]
) -> Arrival:
    entries = [(pod.metadata.namespace, entry) for pod in arrival.pods for entry in pod.spec.resource_claims]
    named = {(namespace, entry.resource_claim_name or ""): None for namespace, entry in entries}
    made = {
        (pod.metadata.namespace, status.resource_claim_name or ""): None
        for pod in arrival.pods
        for status in pod.status.resource_claim_statuses
    }
    of_template = {(namespace, entry.resource_claim_template_name or "") for namespace, entry in entries}
    return replace(
        arrival,
        templates={key: spec for key, spec in templates.items() if key in of_template},
        claims=tuple(claims[key] for key in {**named, **made} if key in claims),
    )


# ---------------------------------------------------------------- GPUs of slices


def gpus_of_slices(cluster: ClusterCase) -> dict[DeviceId, tuple[str, int]]:
    """Return the node of each GPU and GPU partition in ResourceSlices, with its size in thousandths of a GPU.

    A device is a GPU if its driver reports a memory capacity, a product name, or the type ``gpu`` or ``mig``. A
    partition is as large as its share of the memory slices. Nodes that also offer GPUs as a resource are left out,
    since these are the same GPUs.
    """
    inventory = DeviceInventory()
    for item in cluster.storage.get(RESOURCE_SLICES.plural, ()):
        inventory.put(inventory.slices, item.metadata.name, item)
    counted_otherwise = {node.metadata.name for node in cluster.nodes if node_milli(node)}
    gpus: dict[DeviceId, tuple[str, int]] = {}
    for id_ in inventory.pools():
        pool = whole_pool(inventory.slices_of_pool(id_))
        for device in pool.devices if pool is not None else ():
            if device.scope.node and device.scope.node not in counted_otherwise and _is_gpu(device):
                assert pool is not None
                gpus[device.id] = device.scope.node, _milli(device, pool.counters)
    return gpus


def capacity_of_slices(cluster: ClusterCase) -> dict[str, int]:
    """Return the GPUs of each node that exist only in ResourceSlices, in thousandths. Partitions are not added."""
    milli: dict[str, int] = {}
    for node, size in gpus_of_slices(cluster).values():
        if size == WHOLE_GPU:
            milli[node] = milli.get(node, 0) + WHOLE_GPU
    return milli


def _is_gpu(device: PublishedDevice) -> bool:
    if device_survey.attribute(device, "type") in ("gpu", "mig"):
        return True
    has_memory = any(name.rpartition("/")[2] == "memory" for name in device.capacity)
    return has_memory or device_survey.attribute(device, "productName", "profile") is not None


def _milli(device: PublishedDevice, counters: Mapping[tuple[str, str], object]) -> int:
    if device_survey.profile_of(device) == device_survey.WHOLE:
        return WHOLE_GPU
    taken = sum(counter.startswith(device_survey.MEMORY_SLICE) for _, counter in device.counters)
    every = sum(set_ in device.counter_sets and name.startswith(device_survey.MEMORY_SLICE) for set_, name in counters)
    # Less than a whole GPU in any case: the whole GPU is a device of its own.
    return min(WHOLE_GPU - 1, WHOLE_GPU * taken // every) if every else 0
