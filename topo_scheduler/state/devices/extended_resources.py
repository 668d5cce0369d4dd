"""Extended resources that devices back: what a pod's ``nvidia.com/gpu: 2`` asks of DeviceClasses.

The rules are those of ``extendeddynamicresources.go`` in kube-scheduler 1.36. A DeviceClass backs the resource that it
names in ``spec.extendedResourceName``, and ``deviceclass.resource.kubernetes.io/NAME``. On a node whose allocatable has
none of a resource, the pod gets devices instead. The scheduler makes one claim for all such resources of a pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from topo_scheduler.api.devices import (
    CLASS_RESOURCE_PREFIX,
    EXACT_COUNT,
    EXTENDED_RESOURCE_CLAIM,
    POD_CLAIM_NAME,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from topo_scheduler.api.objects import Container, Pod
from topo_scheduler.api.quantity import QuantityError, parse_exact

MAX_BASE_CHARACTERS: Final = 58
"""Characters of a pod's name and suffix in the name of its claim, as in names that Kubernetes generates."""
_SUFFIX: Final = "-extended-resources-"


@dataclass(frozen=True, slots=True)
class RequestMapping:
    """Which request of the claim gives a container its resource: an entry of ``requestMappings``."""

    container: str
    resource: str
    request: str


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """A request of the claim: devices of a class, for one resource."""

    name: str
    resource: str
    device_class: str
    count: int


@dataclass(frozen=True, slots=True)
class ExtendedRequests:
    """What a pod asks of DeviceClasses by extended resources, sorted by name of the request."""

    requests: tuple[DeviceCount, ...] = ()
    mappings: tuple[RequestMapping, ...] = ()

    @property
    def resources(self) -> tuple[str, ...]:
        """The resource of each request."""
        return tuple(request.resource for request in self.requests)

    def specification(self) -> ResourceClaimSpec:
        """Return the specification of the claim."""
        return ResourceClaimSpec(
            DeviceClaim(
                [
                    DeviceRequest(
                        name=request.name,
                        exactly=ExactDeviceRequest(
                            device_class_name=request.device_class, allocation_mode=EXACT_COUNT, count=request.count
                        ),
                    )
                    for request in self.requests
                ]
            )
        )


@lru_cache(maxsize=1024)
def may_be_backed(name: str) -> bool:
    """Return whether devices may back a resource of this name."""
    if name.startswith(CLASS_RESOURCE_PREFIX):
        return True
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, str]:
    """Return the DeviceClass of each extended resource: the newest that names it, of equally old ones the first."""
    chosen: dict[str, DeviceClass] = {}
    for item in sorted(classes, key=lambda item: item.metadata.name):
        name = item.spec.extended_resource_name
        if not name or not may_be_backed(name):
            continue
        known = chosen.get(name)
        if known is None or _created(item) > _created(known):
            chosen[name] = item
    return {name: item.metadata.name for name, item in sorted(chosen.items())}


def _created(item: DeviceClass) -> str:
    return item.metadata.creation_timestamp or ""


def class_of_resource(name: str, named: Mapping[str, str], classes: Mapping[str, DeviceClass]) -> str:
    """Return the DeviceClass that backs a resource, or an empty string.

    Args:
        name: the resource.
        named: what `classes_by_resource` returns.
        classes: all classes by name.
    """
    if name.startswith(CLASS_RESOURCE_PREFIX):
        implied = name.removeprefix(CLASS_RESOURCE_PREFIX)
        return implied if implied in classes else ""
    return named.get(name, "")


# ---------------------------------------------------------------- pods


def extended_requests(pod: Pod, backed: Mapping[str, str]) -> ExtendedRequests:
    """Return what a pod asks of devices if its node has none of the resources itself.

    A container that starts before others gets their devices too, as it ends before they start: it asks only for more.

    Args:
        pod: the pod.
        backed: the DeviceClass of each resource that devices back, among those that the pod requests.
    """
    containers = [*pod.spec.init_containers, *pod.spec.containers]
    ends = [
        number < len(pod.spec.init_containers) and container.restart_policy != "Always"
        for number, container in enumerate(containers)
    ]
    requests: list[DeviceCount] = []
    mappings: list[RequestMapping] = []
    for resource, device_class in sorted(backed.items()):
        of_resource, mapped = _requests_of(containers, ends, resource, device_class)
        requests += of_resource
        mappings += mapped
    return ExtendedRequests(tuple(sorted(requests, key=lambda request: request.name)), tuple(mappings))


def _requests_of(
    containers: Sequence[Container], ends: Sequence[bool], resource: str, device_class: str
) -> tuple[list[DeviceCount], list[RequestMapping]]:
    lasting: list[DeviceCount | None] = [None] * len(containers)
    mappings: list[RequestMapping] = []
    for number, container in enumerate(containers):
        if not ends[number] and (count := _count(container, resource)):
            lasting[number] = request = DeviceCount(
                _request_name(number, container, resource), resource, device_class, count
            )
            mappings.append(RequestMapping(container.name, resource, request.name))
    largest: DeviceCount | None = None
    short: list[tuple[str, str]] = []
    own: set[str] = set()
    for number, container in enumerate(containers):
        if not ends[number] or not (wanted := _count(container, resource)):
            continue
        for reused in lasting[number:]:
            if reused is not None and wanted > 0:
                wanted -= reused.count
                short.append((container.name, reused.name))
        if wanted > 0:
            request = DeviceCount(_request_name(number, container, resource), resource, device_class, wanted)
            short.append((container.name, request.name))
            own.add(request.name)
            if largest is None or largest.count < request.count:
                largest = request
    for name, wanted_request in short:  # containers that end share the largest of their requests
        shared = largest.name if largest is not None and wanted_request in own else wanted_request
        mappings.append(RequestMapping(name, resource, shared))
    return [*([largest] if largest is not None else []), *filter(None, lasting)], mappings


def _count(container: Container, resource: str) -> int:
    quantity = container.resources.requests.get(resource)
    if quantity is None:
        return 0
    try:
        amount = parse_exact(quantity, 1)
    except QuantityError:
        return 0  # reported with the requests of the pod
    return amount if isinstance(amount, int) else 0


def _request_name(number: int, container: Container, resource: str) -> str:
    return f"container-{number}-request-{sorted(container.resources.requests).index(resource)}"


def requested_resources(pod: Pod) -> list[str]:
    """Return the extended resources that a pod requests, each once, in order of name."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    names = {name for container in containers for name in container.resources.requests if may_be_backed(name)}
    return sorted(names)


# ---------------------------------------------------------------- the claim


def extended_claim_name(pod_name: str, pod_uid: str) -> str:
    """Return the name of the claim for a pod's extended resources.

    kube-scheduler lets the API server generate it. A name that follows from the pod keeps a pod from ever having two:
    the API server refuses the second, also if the answer to the first was lost.
    """
    digest = blake2b(pod_uid.encode(), digest_size=5).hexdigest()
    return extended_claim_base(pod_name)[:MAX_BASE_CHARACTERS] + digest


def extended_claim_base(pod_name: str) -> str:
    """Return ``generateName`` of the claim for a pod's extended resources."""
    return f"{pod_name}{_SUFFIX}"


def extended_claim_owner(claim: ResourceClaim) -> str:
    """Return the uid of the pod for whose extended resources a scheduler made a claim; empty for other claims."""
    annotations = claim.metadata.annotations
    if annotations.get(EXTENDED_RESOURCE_CLAIM) != "true" or POD_CLAIM_NAME in annotations:
        return ""  # templates of tenants may have any annotation
    controller = claim.metadata.controller
    return controller.uid if controller is not None and controller.kind == "Pod" else ""
