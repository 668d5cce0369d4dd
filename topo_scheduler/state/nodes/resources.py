"""Resource names as columns.

Amounts are int64: CPU in milli-CPU, all others in whole units (bytes, GPUs, pods). Column ``GPU`` is defined here: the
sum of a node's GPU resources of all vendors. So pods that request GPUs by annotation and pods that request them by
limits are charged to one account. Column ``GPU_SHARE`` is defined here too: shares of GPUs, in thousandths of one.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Final

from topo_scheduler.api.objects import Quantity
from topo_scheduler.api.quantity import QuantityError, parse_exact

CPU: Final = 0
MEMORY: Final = 1
EPHEMERAL: Final = 2
PODS: Final = 3
GPU: Final = 4
GPU_SHARE: Final = 5

_FIXED: Final = ("cpu", "memory", "ephemeral-storage", "pods", "gpu", "gpu-share")

_MAX_REQUESTS: Final = 4096
_MAX_REQUEST_NAMES: Final = 16
_MAX_REQUEST_CHARACTERS: Final = 1_024
"""Names of a container's requests, and their characters with those of the amounts, up to which they are remembered."""
MAX_OFFERED_NAMES: Final = 256
"""Columns for resource names that nodes offer or the configuration names; further names count as 0 on nodes."""
MAX_UNOFFERED_NAMES: Final = 64
"""Columns for resource names that pods request and no node offers."""
MAX_CHARGE: Final = 2**48
"""Most of a resource that one bound or nominated pod is charged: more than any node has. 32,767 times as much fits
64 bits."""

Amounts = tuple[tuple[int, int], ...]
"""Pairs of column and positive amount, in order of column."""


class NoColumnError(QuantityError):
    """A resource that no node offers, and `MAX_UNOFFERED_NAMES` such names have columns already."""


class ResourceTable:
    """Column of each resource name. Columns are only added, never removed.

    The arrays of nodes have as many columns, so of the names that pods make up only the first few get one.
    """

    def __init__(self, gpu_resources: Iterable[str]) -> None:
        self.names: list[str] = list(_FIXED)
        self.gpu_resources = frozenset(gpu_resources)
        self._column = {name: column for column, name in enumerate(_FIXED) if column < GPU}
        self._unoffered: set[str] = set()
        self.offers = 0
        """Number of times that nodes offered a name without a column."""
        self._read: dict[tuple[tuple[str, Quantity], ...], dict[int, int | Fraction]] = {}
        """Amounts by quantities: most pods have the same requests as other pods. Large ones are read each time."""

    def __len__(self) -> int:
        return len(self.names)

    def column(self, name: str) -> int:
        """Return the column of a resource that the cluster's operator names; it is added when it is new."""
        self._unoffered.discard(name)
        column = self._column.get(name)
        if column is None:
            column = self._add(name)
            self.offers += 1
        return column

    def offer(self, names: Iterable[str]) -> list[str]:
        """Add columns for the names that a node offers; return the names beyond `MAX_OFFERED_NAMES`."""
        rejected: list[str] = []
        for name in names:
            if name in self._column and name not in self._unoffered:
                continue
            if len(self._column) - len(self._unoffered) >= MAX_OFFERED_NAMES:
                rejected.append(name)
            else:
                self.column(name)
        return rejected

    def _add(self, name: str) -> int:
        column = self._column[name] = len(self.names)
        self.names.append(name)
        return column

    def _requested_column(self, name: str) -> int:
        """Return the column of a resource that a pod requests."""
        column = self._column.get(name)
        if column is not None:
            return column
        if name in self.gpu_resources:
            return self._add(name)  # the operator names it
        if len(self._unoffered) >= MAX_UNOFFERED_NAMES:
            raise NoColumnError(f"{name}: no node offers this resource; remove it, or add a node that offers it")
        self._unoffered.add(name)
        return self._add(name)

    def find(self, name: str) -> int:
        """Return the column of a resource (``gpu``: the sum of all GPUs), -1 without one."""
        return GPU if name == "gpu" else self._column.get(name, -1)

    def knows(self, name: str) -> bool:
        """Return whether a resource has a column, or gets one with the first pod that requests it."""
        return name in self.gpu_resources or self.find(name) >= 0

    def amounts(self, quantities: Mapping[str, Quantity]) -> dict[int, int]:
        """Turn quantities by name into amounts by column, rounded up, the GPU column included.

        Raises:
            QuantityError: names the resource and the value that can't be read.
        """
        return {column: math.ceil(amount) for column, amount in self.exact(quantities).items()}

    def exact(self, quantities: Mapping[str, Quantity]) -> dict[int, int | Fraction]:
        """Return the same without rounding.

        Raises:
            QuantityError: names the resource and the value that can't be read.
            NoColumnError: a resource that no node offers and that has no column.
        """
        key = tuple(quantities.items())
        if (cached := self._read.get(key)) is not None:
            return cached.copy()
        amounts: dict[int, int | Fraction] = {}
        for name, quantity in key:
            try:
                amount = parse_exact(quantity, 1000 if name == "cpu" else 1)
            except QuantityError as error:
                raise QuantityError(f"{name}: {error}") from None
            amounts[self._requested_column(name)] = amount
            if name in self.gpu_resources:
                amounts[GPU] = amounts.get(GPU, 0) + amount
        if len(key) <= _MAX_REQUEST_NAMES and _characters(key) <= _MAX_REQUEST_CHARACTERS:
            if len(self._read) > _MAX_REQUESTS:
                self._read.clear()
            self._read[key] = amounts.copy()
        return amounts


def _characters(quantities: Iterable[tuple[str, Quantity]]) -> int:
    return sum(len(name) + (len(value) if isinstance(value, str) else 0) for name, value in quantities)


class KnownResources:
    """Reads quantities as a table does, and skips names without a column there."""

    def __init__(self, table: ResourceTable) -> None:
        self._table = table

    @property
    def names(self) -> list[str]:
        """Names by column."""
        return self._table.names

    def exact(self, quantities: Mapping[str, Quantity]) -> dict[int, int | Fraction]:
        """Return amounts by column.

        Raises:
            QuantityError: names the resource and the value that can't be read.
        """
        table = self._table
        return table.exact({name: value for name, value in quantities.items() if table.knows(name)})


class ReadableResources(KnownResources):
    """Reads quantities as a table does, and skips those that can't be read."""

    def exact(self, quantities: Mapping[str, Quantity]) -> dict[int, int | Fraction]:
        """Return amounts by column, of the quantities that can be read."""
        amounts: dict[int, int | Fraction] = {}
        for name, value in quantities.items():
            with suppress(QuantityError):
                for column, amount in super().exact({name: value}).items():
                    amounts[column] = amounts.get(column, 0) + amount
        return amounts


def amount_in(amounts: Amounts, column: int) -> int:
    """Return the amount of one resource among amounts, 0 without it."""
    for other_column, amount in amounts:
        if other_column == column:
            return amount
    return 0


def as_amounts(amounts: Mapping[int, int]) -> Amounts:
    """Return amounts as a hashable tuple without zeros."""
    return tuple(sorted((column, amount) for column, amount in amounts.items() if amount))
