"""Resource requests of a pod, counted as Kubernetes counts them (``k8s.io/component-helpers/resource``)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final

from topo_scheduler.api.objects import Container, Pod, Quantity
from topo_scheduler.api.quantity import MAX_VALUE, QuantityError
from topo_scheduler.state.nodes.resources import CPU, MEMORY, PODS, KnownResources, ReadableResources, ResourceTable

_RESIZED: Final = ("cpu", "memory")
_BY_POD: Final = ("cpu", "memory")
_HUGE: Final = "hugepages-"
_PLAIN: Final = ("cpu", "memory", "ephemeral-storage")
_COUNTED: Final = (_HUGE, "attachable-volumes-")
"""Prefixes of names without a slash that are resources of nodes."""
_QUOTA: Final = "requests."
"""Prefix of names that only quotas have."""


Exact = dict[int, int | Fraction]
"""Amounts by column, before they are rounded."""
Resources = ResourceTable | KnownResources
"""Tables that read quantities."""


@dataclass(frozen=True, slots=True)
class _ResizedResources:
    """Resources of a running pod by its status while it is resized; ``refused``: the node can never resize it.

    Only CPU and memory can be resized. A pod holds what it requests of all others, whatever its status says.
    """

    containers: Mapping[str, Exact] = field(default_factory=dict)
    pod: Exact | None = None
    refused: bool = False

    def with_requests(self, requests: Exact, held: Exact | None) -> Exact:
        if held is None:
            return requests
        result = dict(held)
        fixed = {column: amount for column, amount in requests.items() if column not in (CPU, MEMORY)}
        _raise_to(result, fixed if self.refused else requests)
        return result


_NOTHING_HELD: Final = _ResizedResources()


def pod_amounts(table: Resources, pod: Pod) -> dict[int, int]:
    """Return the requests of a pod, or what it holds if it runs and is being resized.

    Containers and sidecars (init containers that restart) are summed. An ordinary init container needs its own amount
    plus that of the sidecars started before it. The larger of both counts, plus the overhead of the runtime class.
    Pod-level requests replace the sum for the resources they name. Requests count, not limits: the API server sets
    the requests of a pod that has only limits.

    Raises:
        QuantityError: names container, resource and value. `ReadableResources` leave out what can't be read instead.
    """
    spec = pod.spec
    status = pod.status
    has_status_resources = status.container_statuses or status.init_container_statuses or status.resources
    held = _held(table, pod) if has_status_resources else _NOTHING_HELD
    total: Exact = {}
    for container in spec.containers:
        _add(total, _container(table, container, held))
    if spec.init_containers:
        sidecars: Exact = {}
        peak: Exact = {}
        for container in spec.init_containers:
            sidecar = container.restart_policy == "Always"
            amounts = _container(table, container, held if sidecar else _NOTHING_HELD)
            # For resources that this container does not request, the sidecars before it already set the peak.
            with_sidecars = {column: amount + sidecars.get(column, 0) for column, amount in amounts.items()}
            if sidecar:
                _add(total, amounts)
                sidecars |= with_sidecars
            _raise_to(peak, with_sidecars)
        _raise_to(total, peak)
    if spec.resources is not None:
        requests = {name: value for name, value in spec.resources.requests.items() if _is_by_pod(name)}
        pod_requests = table.exact(requests)
        pod_level = held.with_requests(pod_requests, held.pod)
        total.update({column: pod_level.get(column, 0) for column in pod_requests})
    if spec.overhead:
        _add(total, table.exact(counted(spec.overhead)))
    # As in Kubernetes, the sum is rounded up once.
    rounded = {column: amount if type(amount) is int else math.ceil(amount) for column, amount in total.items()}
    rounded[PODS] = 1
    largest = max(rounded, key=rounded.__getitem__)
    if rounded[largest] > MAX_VALUE:
        if isinstance(table, ReadableResources):
            return {column: amount for column, amount in rounded.items() if amount <= MAX_VALUE}
        raise QuantityError(f"{table.names[largest]}: its containers together ask for more than any node can have")
    return rounded


def counted(quantities: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
    """Return the quantities whose names are resources of nodes."""
    if all(_is_counted(name) for name in quantities):
        return quantities
    return {name: value for name, value in quantities.items() if _is_counted(name)}


@lru_cache(maxsize=1024)
def _is_counted(name: str) -> bool:
    if name in _PLAIN or name.startswith(_COUNTED) or "kubernetes.io/" in name:
        return True
    return "/" in name and not name.startswith(_QUOTA)


def _is_by_pod(name: str) -> bool:
    return name in _BY_POD or name.startswith(_HUGE)


def _container(table: Resources, container: Container, held: _ResizedResources) -> Exact:
    requests = container.resources.requests
    allocated = held.containers.get(container.name)
    if not requests and allocated is None:
        return {}
    try:
        return held.with_requests(table.exact(counted(requests)), allocated)
    except QuantityError as error:
        raise type(error)(f"container {container.name}: {error}") from None


def _held(table: Resources, pod: Pod) -> _ResizedResources:
    status = pod.status
    pending = next((item for item in status.conditions if item.type == "PodResizePending"), None)
    containers = {
        item.name: _largest_resized(table, item.resources.requests, item.allocated_resources)
        for item in (*status.container_statuses, *status.init_container_statuses)
        if item.resources is not None
    }
    in_pod = status.resources
    pod_level = _largest_resized(table, in_pod.requests, status.allocated_resources) if in_pod else None
    return _ResizedResources(containers, pod_level, pending is not None and pending.reason == "Infeasible")


def _largest_resized(table: Resources, *quantities: Mapping[str, Quantity]) -> Exact:
    amounts: Exact = {}
    for quantities_of_source in quantities:
        resized = {name: quantities_of_source[name] for name in _RESIZED if name in quantities_of_source}
        _raise_to(amounts, table.exact(resized))
    return amounts


def _add(total: Exact, amounts: Mapping[int, int | Fraction]) -> None:
    for column, amount in amounts.items():
        total[column] = total.get(column, 0) + amount


def _raise_to(total: Exact, amounts: Mapping[int, int | Fraction]) -> None:
    for column, amount in amounts.items():
        if amount > total.get(column, 0):
            total[column] = amount
