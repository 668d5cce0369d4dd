"""Resource names as columns.

Amounts are int64: CPU in milli-CPU, all else in whole units (bytes, GPUs, pods). Column ``GPU`` is ours: the sum of a
node's GPU resources of whatever vendor, so that pods which ask by annotation alone and pods which ask by limits are
charged to one account. Column ``GPU_SHARE`` is ours as well: shares of GPUs, in thousandths of one.
"""

import math
from collections.abc import Iterable, Mapping
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

_KEEP: Final = 4096
MOST_OFFERED: Final = 256
"""Resource names that nodes offer, or the configuration names, beyond the fixed ones; nodes hold none of the others."""
MOST_UNOFFERED: Final = 64
"""Names that pods ask for and no node offers, which have a column all the same."""

Amounts = tuple[tuple[int, int], ...]
"""Pairs of column and positive amount, in order of column."""


class NoColumnError(QuantityError):
    """A resource that no node offers, where as many such names as are kept are known already."""


class ResourceTable:
    """Which column each resource name has. Columns are only ever added.

    Arrays of nodes have as many columns, so names that pods invent have none, but for the first few.
    """

    def __init__(self, gpu_resources: Iterable[str]) -> None:
        self.names: list[str] = list(_FIXED)
        self.gpu_resources = frozenset(gpu_resources)
        self._column = {name: column for column, name in enumerate(_FIXED) if column < GPU}
        self._unoffered: set[str] = set()
        self.offers = 0
        """How often nodes offered a name that had no column."""
        self._read: dict[tuple[tuple[str, Quantity], ...], dict[int, int | Fraction]] = {}
        """What was read of quantities: most pods ask in the same words as others."""

    def __len__(self) -> int:
        return len(self.names)

    def column(self, name: str) -> int:
        """Return the column of a resource that the cluster's operator names, adding it when it is new."""
        self._unoffered.discard(name)
        column = self._column.get(name)
        if column is None:
            column = self._add(name)
            self.offers += 1
        return column

    def offer(self, names: Iterable[str]) -> list[str]:
        """Let names that a node offers have columns; return those for which there are too many others."""
        refused: list[str] = []
        for name in names:
            if name in self._column and name not in self._unoffered:
                continue
            if len(self._column) - len(self._unoffered) >= MOST_OFFERED:
                refused.append(name)
            else:
                self.column(name)
        return refused

    def _add(self, name: str) -> int:
        column = self._column[name] = len(self.names)
        self.names.append(name)
        return column

    def _asked(self, name: str) -> int:
        """Return the column of a resource that a pod asks for."""
        column = self._column.get(name)
        if column is not None:
            return column
        if len(self._unoffered) >= MOST_UNOFFERED:
            raise NoColumnError(f"{name}: no node offers this resource; remove it, or add a node that offers it")
        self._unoffered.add(name)
        return self._add(name)

    def find(self, name: str) -> int:
        """Return the column of a resource (``gpu``: the account of all GPUs), -1 when there is none."""
        return GPU if name == "gpu" else self._column.get(name, -1)

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
        if (known := self._read.get(key)) is not None:
            return known.copy()
        amounts: dict[int, int | Fraction] = {}
        for name, quantity in key:
            try:
                amount = parse_exact(quantity, 1000 if name == "cpu" else 1)
            except QuantityError as error:
                raise QuantityError(f"{name}: {error}") from None
            amounts[self._asked(name)] = amount
            if name in self.gpu_resources:
                amounts[GPU] = amounts.get(GPU, 0) + amount
        if len(self._read) > _KEEP:
            self._read.clear()
        self._read[key] = amounts.copy()
        return amounts


class KnownResources:
    """Reads quantities as a table does, and leaves out the names that have no column there."""

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
        return table.exact({name: value for name, value in quantities.items() if table.find(name) >= 0})


def amount_in(amounts: Amounts, column: int) -> int:
    """Return how much of one resource there is among amounts."""
    for at, amount in amounts:
        if at == column:
            return amount
    return 0


def as_amounts(amounts: Mapping[int, int]) -> Amounts:
    """Return amounts as a hashable tuple without zeros."""
    return tuple(sorted((column, amount) for column, amount in amounts.items() if amount))
