"""Resource names as columns, and what a pod asks for as one vector.

Amounts are int64: CPU in milli-CPU, all else in whole units (bytes, GPUs, pods). Column ``GPU`` is ours: the sum of a
node's GPU resources of whatever vendor, so that pods which ask by annotation alone and pods which ask by limits are
charged to one account.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from topo_scheduler.api.objects import Container, Pod, Quantity
from topo_scheduler.api.quantity import MAX_VALUE, QuantityError, parse_quantity

CPU: Final = 0
MEMORY: Final = 1
EPHEMERAL: Final = 2
PODS: Final = 3
GPU: Final = 4

_FIXED: Final = ("cpu", "memory", "ephemeral-storage", "pods", "gpu")

Amounts = tuple[tuple[int, int], ...]
"""Pairs of column and positive amount, in order of column."""


class ResourceTable:
    """Which column each resource name has. Columns are only ever added."""

    def __init__(self, gpu_resources: Iterable[str]) -> None:
        self.names: list[str] = list(_FIXED)
        self.gpu_resources = frozenset(gpu_resources)
        self._column = {name: column for column, name in enumerate(_FIXED) if column != GPU}

    def __len__(self) -> int:
        return len(self.names)

    def column(self, name: str) -> int:
        """Return the column of a resource, adding it when it is new."""
        column = self._column.get(name)
        if column is None:
            column = self._column[name] = len(self.names)
            self.names.append(name)
        return column

    def amounts(self, quantities: Mapping[str, Quantity]) -> dict[int, int]:
        """Turn quantities by name into amounts by column, the GPU column included.

        Raises:
            QuantityError: names the resource and the value that can't be read.
        """
        amounts: dict[int, int] = {}
        for name, quantity in quantities.items():
            try:
                amount = parse_quantity(quantity, 1000 if name == "cpu" else 1)
            except QuantityError as error:
                raise QuantityError(f"{name}: {error}") from None
            amounts[self.column(name)] = amount
            if name in self.gpu_resources:
                amounts[GPU] = amounts.get(GPU, 0) + amount
        return amounts


def _container(table: ResourceTable, container: Container) -> dict[int, int]:
    resources = container.resources
    if not resources.requests and not resources.limits:
        return {}
    # A limit without a request is the request: the API server defaults it so, for what it admitted itself.
    quantities = {**resources.limits, **resources.requests}
    try:
        return table.amounts(quantities)
    except QuantityError as error:
        raise QuantityError(f"container {container.name}: {error}") from None


def _add(into: dict[int, int], amounts: Mapping[int, int]) -> None:
    for column, amount in amounts.items():
        into[column] = into.get(column, 0) + amount


def _raise_to(into: dict[int, int], amounts: Mapping[int, int]) -> None:
    for column, amount in amounts.items():
        if amount > into.get(column, 0):
            into[column] = amount


def pod_amounts(table: ResourceTable, pod: Pod) -> dict[int, int]:
    """Return what a pod asks of its node, counted as Kubernetes counts it.

    Containers and sidecars (init containers that restart) are summed; an ordinary init container needs its own amount
    beside the sidecars started before it; the larger of both counts, plus the overhead of the runtime class. Pod-level
    resources replace the sum for the resources they name.

    Raises:
        QuantityError: names container, resource and value.
    """
    spec = pod.spec
    total: dict[int, int] = {}
    for container in spec.containers:
        _add(total, _container(table, container))
    if spec.init_containers:
        sidecars: dict[int, int] = {}
        peak: dict[int, int] = {}
        for container in spec.init_containers:
            amounts = _container(table, container)
            if container.restart_policy == "Always":
                _add(total, amounts)
                _add(sidecars, amounts)
                _raise_to(peak, sidecars)
            else:
                _add(amounts, sidecars)
                _raise_to(peak, amounts)
        _raise_to(total, peak)
    if spec.resources is not None:
        total.update(table.amounts({**spec.resources.limits, **spec.resources.requests}))
    if spec.overhead:
        _add(total, table.amounts(spec.overhead))
    total[PODS] = 1
    most = max(total, key=total.__getitem__)
    if total[most] > MAX_VALUE:
        raise QuantityError(f"{table.names[most]}: its containers together ask for more than any node can have")
    return total


def as_amounts(amounts: Mapping[int, int]) -> Amounts:
    """Return amounts as a hashable tuple without zeros."""
    return tuple(sorted((column, amount) for column, amount in amounts.items() if amount))
