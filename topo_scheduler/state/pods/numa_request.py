"""What the kubelet of a node aligns to NUMA nodes for a pod.

These are exclusive CPUs and memory of pods of the QoS class Guaranteed, and devices of any pod. The kubelet decides by
the containers in their order, so a request keeps them apart.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

from topo_scheduler.api.objects import Container, Pod, Quantity
from topo_scheduler.api.quantity import QuantityError, parse_quantity
from topo_scheduler.state.nodes.numa_report import NumaAmounts

_MILLI_CPU: Final = 1000
"""A CPU, in thousandths of a CPU."""
MAX_KEPT_CONTAINERS: Final = 32
MAX_KEPT_AMOUNTS: Final = 128
"""Pairs of container and resource of a pod."""
MAX_KEPT_CHARACTERS: Final = 4_096
"""Characters of the names in all these pairs."""
_SMALL_AMOUNTS: Final = 16
_SMALL_CHARACTERS: Final = 512


class ContainerKind(StrEnum):
    """Kinds of containers: one that ends before the next starts, one that starts early and stays, and all others."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


_Containers: TypeAlias = tuple[tuple[ContainerKind, NumaAmounts], ...]


@dataclass(frozen=True, slots=True)
class NumaContainer:
    """A container with resources that the kubelet aligns."""

    kind: ContainerKind
    amounts: NumaAmounts


@dataclass(frozen=True, slots=True)
class NumaRequest:
    """Containers of a pod with resources that the kubelet aligns, init containers first.

    ``total`` is what the pod holds of them, which is also what the kubelet aligns under the scope ``pod``.
    """

    containers: tuple[NumaContainer, ...]
    total: NumaAmounts = field(init=False, compare=False)
    _hash: int = field(init=False, compare=False, repr=False)
    """Each pod that is placed is counted by its request."""
    is_large: bool = field(init=False, compare=False, repr=False)
    """Whether it is beyond the caps of what is kept of a pod with a node."""

    def __post_init__(self) -> None:
        running: Counter[str] = Counter()
        peak: Counter[str] = Counter()
        for container in self.containers:
            amounts = Counter(dict(container.amounts))
            if container.kind is ContainerKind.INIT:
                peak |= running + amounts
            else:
                running += amounts
        object.__setattr__(self, "total", tuple(sorted((peak | running).items())))
        object.__setattr__(self, "_hash", hash(self.containers))
        amounts_of = [container.amounts for container in self.containers]
        large = len(amounts_of) > MAX_KEPT_CONTAINERS or _exceeds(amounts_of, MAX_KEPT_AMOUNTS, MAX_KEPT_CHARACTERS)
        object.__setattr__(self, "is_large", large)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return NumaRequest, (self.containers,)  # hashes of text differ between processes


def numa_request(pod: Pod) -> NumaRequest | None:
    """Return what the kubelet aligns for a pod; None for nothing.

    Quantities that can't be read count as nothing: the pod is refused for them elsewhere.
    """
    spec = pod.spec
    containers = (*spec.init_containers, *spec.containers)
    has_devices = any("/" in name for container in containers for name in container.resources.limits)
    exclusive = spec.resources is None and _is_guaranteed(containers)
    if not has_devices and not exclusive:
        return None
    of_containers = []
    for index, container in enumerate(containers):
        if amounts := _amounts(container, exclusive=exclusive):
            kind = ContainerKind.MAIN
            if index < len(spec.init_containers):
                kind = ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT
            of_containers.append((kind, amounts))
    if not of_containers:
        return None
    amounts_of = [amounts for _, amounts in of_containers]
    if not _exceeds(amounts_of, _SMALL_AMOUNTS, _SMALL_CHARACTERS):
        return _request(tuple(of_containers))
    if not _exceeds(amounts_of, MAX_KEPT_AMOUNTS, MAX_KEPT_CHARACTERS):
        return _longer_request(tuple(of_containers))
    return _made(tuple(of_containers))


def kept_request(request: NumaRequest | None) -> NumaRequest | None:
    """Return what is kept of the request of a pod with a node: nothing of a large one.

    Then it is not known what the kubelet aligned for the pod, as of a pod that can't be read.
    """
    return None if request is None or request.is_large else request


def _made(containers: _Containers) -> NumaRequest:
    return NumaRequest(tuple(NumaContainer(kind, amounts) for kind, amounts in containers))


@lru_cache(maxsize=4096)
def _request(containers: _Containers) -> NumaRequest:
    return _made(containers)


@lru_cache(maxsize=256)
def _longer_request(containers: _Containers) -> NumaRequest:
    return _made(containers)


def forget_requests() -> None:
    """Forget requests that were read; equal requests of later pods are new objects."""
    _request.cache_clear()
    _longer_request.cache_clear()


def _exceeds(amounts_of: Sequence[NumaAmounts], max_amounts: int, max_characters: int) -> bool:
    if sum(map(len, amounts_of)) > max_amounts:
        return True
    return sum(len(name) for amounts in amounts_of for name, _ in amounts) > max_characters


def _is_guaranteed(containers: tuple[Container, ...]) -> bool:
    """Return whether a pod has the QoS class Guaranteed."""
    for container in containers:
        limits, requests = container.resources.limits, container.resources.requests
        for name in ("cpu", "memory"):
            if name not in limits:
                return False
            amount = _read(name, limits[name])
            if not amount or (name in requests and _read(name, requests[name]) != amount):
                return False
    return True


def _amounts(container: Container, *, exclusive: bool) -> NumaAmounts:
    limits: Mapping[str, Quantity] = container.resources.limits
    amounts: dict[str, int] = {}
    for name, value in limits.items():
        is_device = "/" in name
        if not is_device and not (exclusive and (name in ("cpu", "memory") or name.startswith("hugepages-"))):
            continue
        amount = _read(name, value)
        if name == "cpu" and amount % _MILLI_CPU:
            continue  # such a container shares its CPUs
        if amount:
            amounts[name] = amount
    return tuple(sorted(amounts.items()))


def _read(name: str, value: Quantity) -> int:
    try:
        return parse_quantity(value, _MILLI_CPU if name == "cpu" else 1)
    except QuantityError:
        return 0
