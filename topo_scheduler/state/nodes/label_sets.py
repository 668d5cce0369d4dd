"""The rows that a label selector selects, as the bits of an integer: those of 5,000 nodes take 670 bytes at most."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from topo_scheduler.api.selectors import LabelSelector


class LabelledNodes(Protocol):
    """Nodes with their labels."""

    row_of: dict[str, int]
    labels: list[Mapping[str, str]]


_NONE: Final[tuple[dict[str, int], int]] = ({}, 0)


class LabelSets:
    """Sets of rows by label, for one state of the labels of all nodes.

    `NodeTable` replaces it whenever a label changes. So what was computed from it holds while the table has it.
    """

    __slots__ = ("_by_key", "_every")

    def __init__(self) -> None:
        self._by_key: dict[str, tuple[dict[str, int], int]] = {}
        """Rows by value of each label that nodes have and a selector named; and those with the label."""
        self._every: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LabelSets, ()  # a checkpoint needs its identity alone

    def selected(self, nodes: LabelledNodes, selector: LabelSelector) -> int:
        """Return the rows of the nodes that a valid selector selects."""
        if self._every is None:
            self._every = _bits(nodes.row_of.values())
        rows = self._every
        for key, value in selector.match_labels.items():
            rows &= self._with(nodes, key)[0].get(value, 0)
        for requirement in selector.match_expressions:
            rows_of_value, carrying = self._with(nodes, requirement.key)
            if requirement.operator in ("In", "NotIn"):
                carrying = 0
                for value in requirement.values:
                    carrying |= rows_of_value.get(value, 0)
            rows &= carrying if requirement.operator in ("In", "Exists") else ~carrying
        return rows

    def _with(self, nodes: LabelledNodes, key: str) -> tuple[dict[str, int], int]:
        sets = self._by_key.get(key)
        if sets is None:
            rows_of_value: dict[str, list[int]] = {}
            for row in nodes.row_of.values():
                value = nodes.labels[row].get(key)
                if value is not None:
                    rows_of_value.setdefault(value, []).append(row)
            if not rows_of_value:
                return _NONE  # not stored: tenants may name any key
            by_value = {value: _bits(rows) for value, rows in rows_of_value.items()}
            carrying = _bits(row for rows in rows_of_value.values() for row in rows)
            sets = self._by_key[key] = (by_value, carrying)
        return sets


def _bits(rows: Iterable[int]) -> int:
    rows = list(rows)
    mask = bytearray(max(rows, default=0) // 8 + 1)
    for row in rows:
        mask[row >> 3] |= 1 << (row & 7)
    return int.from_bytes(mask, "little")
