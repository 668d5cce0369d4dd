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

MAX_REQUESTS: Final = 32
"""Requests of one claim, as in Kubernetes."""
MAX_MAPPINGS: Final = 256
"""Pairs of a container and a request that gives it devices, of one pod."""
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


class _TooManyError(Exception):
    """A pod asks for more than one claim can say. The message is the reason for users."""


@dataclass(frozen=True, slots=True)
class ExtendedRequests:
    """What a pod asks of DeviceClasses by extended resources, sorted by name of the request.

    ``excess``: why no claim can be made for it. There are no ``requests`` and ``mappings`` then.
    """

    resources: tuple[str, ...] = ()
    """The resource of each request; with ``excess`` each resource once."""
    requests: tuple[DeviceCount, ...] = ()
    mappings: tuple[RequestMapping, ...] = ()
    excess: str = ""

    def specification(self) -> ResourceClaimSpec:
        """Return the specification of the claim."""
        if self.excess:
            return ResourceClaimSpec(excess=self.excess)
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
    try:
        for resource, device_class in sorted(backed.items()):
            _read(_Requested(containers, ends, resource, device_class), requests, mappings)
    except _TooManyError as error:
        return ExtendedRequests(tuple(sorted(backed)), excess=str(error))
    requests.sort(key=lambda request: request.name)
    return ExtendedRequests(tuple(request.resource for request in requests), tuple(requests), tuple(mappings))


@dataclass(frozen=True, slots=True)
class _Requested:
    """What containers request of one resource. ``ends``: whether each ends before later ones start."""

    containers: Sequence[Container]
    ends: Sequence[bool]
    resource: str
    device_class: str

    def request(self, number: int, count: int) -> DeviceCount:
        """Return the request of a container."""
        name = _request_name(number, self.containers[number], self.resource)
        return DeviceCount(name, self.resource, self.device_class, count)


def _read(asked: _Requested, requests: list[DeviceCount], mappings: list[RequestMapping]) -> None:
    """Add requests and mappings of one resource.

    Raises:
        _TooManyError: they are too many.
    """
    lasting: list[DeviceCount | None] = [None] * len(asked.containers)
    for number, container in enumerate(asked.containers):
        if not asked.ends[number] and (count := _count(container, asked.resource)):
            lasting[number] = request = asked.request(number, count)
            _add(requests, request)
            _map(mappings, container, asked, request.name)
    largest: DeviceCount | None = None
    short: list[tuple[Container, str]] = []
    own: set[str] = set()
    for number, container in enumerate(asked.containers):
        if not asked.ends[number] or not (wanted := _count(container, asked.resource)):
            continue
        for reused in lasting[number:]:
            if reused is not None and wanted > 0:
                wanted -= reused.count
                short.append((container, reused.name))
        if wanted > 0:
            request = asked.request(number, wanted)
            short.append((container, request.name))
            own.add(request.name)
            if largest is None or largest.count < request.count:
                largest = request
        if len(mappings) + len(short) > MAX_MAPPINGS:
            raise _too_many_mappings()
    if largest is not None:
        _add(requests, largest)
    for container, wanted_request in short:  # containers that end share the largest of their requests
        shared = largest.name if largest is not None and wanted_request in own else wanted_request
        _map(mappings, container, asked, shared)


def _add(requests: list[DeviceCount], request: DeviceCount) -> None:
    if len(requests) >= MAX_REQUESTS:
        raise _TooManyError(
            f"its containers make more than {MAX_REQUESTS} requests for extended resources that devices back, and a"
            f" ResourceClaim has {MAX_REQUESTS} at most; request them in fewer containers"
        )
    requests.append(request)


def _map(mappings: list[RequestMapping], container: Container, asked: _Requested, request: str) -> None:
    if len(mappings) >= MAX_MAPPINGS:
        raise _too_many_mappings()
    mappings.append(RequestMapping(container.name, asked.resource, request))


def _too_many_mappings() -> _TooManyError:
    return _TooManyError(
        f"its init containers reuse devices of its other containers in more than {MAX_MAPPINGS} ways; request extended"
        " resources in fewer containers"
    )


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
