"""What is known of the GPUs of each node, as arrays, for filters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Item = TypeVar("Item")
UNKNOWN: Final = -1
_COLUMNS: Final = ("kind", "memory", "architecture", "mig")


@dataclass(frozen=True, slots=True)
class MigOffer:
    """MIG devices of a node: their profiles, the strategy that names them (``single`` or ``mixed``), and labels.

    Attributes:
        capable: whether a label says that its GPUs can be split; None without one.
        config: name of the MIG configuration by label; empty without one.
    """

    profiles: tuple[str, ...]
    strategy: str
    capable: bool | None = None
    config: str = ""

    @property
    def is_known(self) -> bool:
        """Whether anything is known of MIG on the node."""
        return bool(self.profiles or self.config) or self.capable is not None


class GpuFacts:
    """GPUs by row of the node table.

    ``kind`` int64[rows]: number of the description of the node's GPUs; nodes with identical ones have the same.
    ``memory`` int64[rows]: bytes of each GPU. ``architecture`` int64[rows]: index in ``architectures``. ``mig``
    int64[rows]: index in ``mig_offers``. All are -1 if unknown.
    """

    def __init__(self, rows: int) -> None:
        self.kind: Int64 = np.full(rows, UNKNOWN, np.int64)
        self.memory: Int64 = np.full(rows, UNKNOWN, np.int64)
        self.architecture: Int64 = np.full(rows, UNKNOWN, np.int64)
        self.mig: Int64 = np.full(rows, UNKNOWN, np.int64)
        self.architectures: list[str] = []
        self.mig_offers: list[MigOffer] = []

    def grow(self, rows: int) -> None:
        """Lengthen the arrays."""
        for name in _COLUMNS:
            array = getattr(self, name)
            setattr(self, name, np.pad(array, (0, rows - len(array)), constant_values=UNKNOWN))

    def clear(self, row: int) -> None:
        """Clear a row."""
        self.kind[row] = self.memory[row] = self.architecture[row] = self.mig[row] = UNKNOWN

    def put(self, row: int, kind: int, memory: int, architecture: str, offer: MigOffer) -> None:
        """Record the GPUs of a node; 0 and empty texts stand for what is unknown."""
        self.kind[row] = kind
        self.memory[row] = memory or UNKNOWN
        self.architecture[row] = _index(self.architectures, architecture) if architecture else UNKNOWN
        self.mig[row] = _index(self.mig_offers, offer) if offer.is_known else UNKNOWN

    def forget_unused(self) -> None:
        """Forget names that no node has any more: nodes come and go, and their labels change."""
        self.architectures, self.architecture = _compacted(self.architectures, self.architecture)
        self.mig_offers, self.mig = _compacted(self.mig_offers, self.mig)


def _index(items: list[Item], item: Item) -> int:
    try:
        return items.index(item)
    except ValueError:
        items.append(item)
        return len(items) - 1


def _compacted(items: Sequence[Item], column: Int64) -> tuple[list[Item], Int64]:
    used = np.unique(column[column >= 0])
    compacted = np.where(column >= 0, np.searchsorted(used, column), UNKNOWN).astype(np.int64)
    return [items[index] for index in used.tolist()], compacted
