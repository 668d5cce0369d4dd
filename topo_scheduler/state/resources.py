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

Amounts = tuple[tuple[int, int], ...]
"""Pairs of column and positive amount, in order of column."""


class ResourceTable:
    """Which column each resource name has. Columns are only ever added."""

    def __init__(self, gpu_resources: Iterable[str]) -> None:
        self.names: list[str] = list(_FIXED)
        self.gpu_resources = frozenset(gpu_resources)
        self._column = {name: column for column, name in enumerate(_FIXED) if column < GPU}
        self._read: dict[tuple[tuple[str, Quantity], ...], dict[int, int | Fraction]] = {}
        """What was read of quantities: most pods ask in the same words as others."""

    def __len__(self) -> int:
        return len(self.names)

    def column(self, name: str) -> int:
        """Return the column of a resource, adding it when it is new."""
        column = self._column.get(name)
        if column is None:
            column = self._column[name] = len(self.names)
            self.names.append(name)
        return column

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
            amounts[self.column(name)] = amount
            if name in self.gpu_resources:
                amounts[GPU] = amounts.get(GPU, 0) + amount
        if len(self._read) > _KEEP:
            self._read.clear()
        self._read[key] = amounts.copy()
        return amounts


def amount_in(amounts: Amounts, column: int) -> int:
    """Return how much of one resource there is among amounts."""
    for at, amount in amounts:
        if at == column:
            return amount
    return 0


def as_amounts(amounts: Mapping[int, int]) -> Amounts:
    """Return amounts as a hashable tuple without zeros."""
    return tuple(sorted((column, amount) for column, amount in amounts.items() if amount))
