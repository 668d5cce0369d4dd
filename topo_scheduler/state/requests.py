"""What a pod asks of its node, counted as Kubernetes counts it (``k8s.io/component-helpers/resource``)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final

from topo_scheduler.api.objects import Container, Pod, Quantity
from topo_scheduler.api.quantity import MAX_VALUE, QuantityError
from topo_scheduler.state.resources import PODS, KnownResources, ResourceTable

_BY_POD: Final = ("cpu", "memory")
_HUGE: Final = "hugepages-"
_PLAIN: Final = ("cpu", "memory", "ephemeral-storage")
_COUNTED: Final = (_HUGE, "attachable-volumes-")
"""Beginnings of the names without a slash that are resources of nodes."""
_QUOTA: Final = "requests."
"""Beginning of names that only quotas have."""


Exact = dict[int, int | Fraction]
"""Amounts by column, before they are rounded."""
Resources = ResourceTable | KnownResources
"""What reads quantities."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What a running pod holds by its status while it is resized; ``refused`` when the node can never do it."""

    containers: Mapping[str, Exact] = field(default_factory=dict)
    pod: Exact | None = None
    refused: bool = False

    def with_asked(self, asked: Exact, held: Exact | None) -> Exact:
        if held is None:
            return asked
        result = dict(held)
        if not self.refused:
            _raise_to(result, asked)
        return result


_NOTHING_HELD: Final = _Held()


def pod_amounts(table: Resources, pod: Pod) -> dict[int, int]:
    """Return what a pod asks, or holds where it runs and is being resized.

    Containers and sidecars (init containers that restart) are summed; an ordinary init container needs its own amount
    beside the sidecars started before it; the larger of both counts, plus the overhead of the runtime class. Pod-level
    requests replace the sum for the resources they name. Requests count, not limits: the API server has written the
    one where a pod gave only the other.

    Raises:
        QuantityError: names container, resource and value.
    """
    spec = pod.spec
    status = pod.status
    told = status.container_statuses or status.init_container_statuses or status.resources
    held = _held(table, pod) if told else _NOTHING_HELD
    total: Exact = {}
    for container in spec.containers:
        _add(total, _container(table, container, held))
    if spec.init_containers:
        sidecars: Exact = {}
        peak: Exact = {}
        for container in spec.init_containers:
            sidecar = container.restart_policy == "Always"
            amounts = _container(table, container, held if sidecar else _NOTHING_HELD)
            # Of what this one does not ask for, the peak is that of the sidecars before it already.
            beside = {column: amount + sidecars.get(column, 0) for column, amount in amounts.items()}
            if sidecar:
                _add(total, amounts)
                sidecars |= beside
            _raise_to(peak, beside)
        _raise_to(total, peak)
    if spec.resources is not None:
        requests = {name: value for name, value in spec.resources.requests.items() if _is_by_pod(name)}
        asked = table.exact(requests)
        whole = held.with_asked(asked, held.pod)
        total.update({column: whole.get(column, 0) for column in asked})
    if spec.overhead:
        _add(total, table.exact(counted(spec.overhead)))
    # As in Kubernetes, what is asked together is rounded up once.
    rounded = {column: amount if type(amount) is int else math.ceil(amount) for column, amount in total.items()}
    rounded[PODS] = 1
    most = max(rounded, key=rounded.__getitem__)
    if rounded[most] > MAX_VALUE:
        raise QuantityError(f"{table.names[most]}: its containers together ask for more than any node can have")
    return rounded


def counted(quantities: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
    """Return the quantities without names that are no resources of nodes."""
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


def _container(table: Resources, container: Container, held: _Held) -> Exact:
    requests = container.resources.requests
    now = held.containers.get(container.name)
    if not requests and now is None:
        return {}
    try:
        return held.with_asked(table.exact(counted(requests)), now)
    except QuantityError as error:
        raise type(error)(f"container {container.name}: {error}") from None


def _held(table: Resources, pod: Pod) -> _Held:
    status = pod.status
    pending = next((one for one in status.conditions if one.type == "PodResizePending"), None)
    containers = {
        one.name: _most(table, one.resources.requests, one.allocated_resources)
        for one in (*status.container_statuses, *status.init_container_statuses)
        if one.resources is not None
    }
    whole = _most(table, status.resources.requests, status.allocated_resources) if status.resources else None
    return _Held(containers, whole, pending is not None and pending.reason == "Infeasible")


def _most(table: Resources, *quantities: Mapping[str, Quantity]) -> Exact:
    most: Exact = {}
    for one in quantities:
        _raise_to(most, table.exact(counted(one)))
    return most


def _add(into: Exact, amounts: Mapping[int, int | Fraction]) -> None:
    for column, amount in amounts.items():
        into[column] = into.get(column, 0) + amount


def _raise_to(into: Exact, amounts: Mapping[int, int | Fraction]) -> None:
    for column, amount in amounts.items():
        if amount > into.get(column, 0):
            into[column] = amount
