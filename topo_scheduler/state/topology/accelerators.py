"""Accelerator domains (NVLink and similar): a second tree over the nodes that the fabric orders.

A node's position in the network and the nodes with which its accelerators share memory are two separate facts. A
domain of the second tree may be part of a leaf, a set of leaves, or cut across several leaves. So it is kept as numbers
by row and merged into the order of the network on request (`topology_merge`). Its path in its own tree identifies it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from topo_scheduler.api.labels import ACCELERATOR_LEVELS
from topo_scheduler.api.process import FabricSettings as FabricConfig
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.natural_sort import natural_key

Path = tuple[str, ...]
DomainNames = tuple[str | None, ...]
"""The name of a node's domain at each level, None without a label."""


def accelerator_labels(config: FabricConfig) -> dict[str, tuple[str, ...]]:
    """Return the levels of the accelerator tree, outermost first, with the label keys of each.

    A label that the configuration assigns to a level of the network does not count for this tree too.
    """
    if config.accelerators is not None:
        return {level.name: level.labels for level in config.accelerators}
    network = {key for level in config.levels for key in level.labels}
    names = {level.name for level in config.levels}
    levels = {
        name: tuple(key for key in keys if key not in network)
        for name, keys in ACCELERATOR_LEVELS.items()
        if name not in names
    }
    return {name: keys for name, keys in levels.items() if keys}


@dataclass(frozen=True)
class Accelerators:
    """A snapshot of the accelerator tree. ``levels`` with any label, outermost first; ``node_paths``: row and path."""

    levels: tuple[str, ...]
    node_paths: tuple[tuple[int, Path], ...] = field(repr=False)
    rows: int = 0

    @cached_property
    def _numbered(self) -> tuple[tuple[tuple[Path, ...], Int64], ...]:
        numbered = []
        for depth in range(1, len(self.levels) + 1):
            labelled = [(row, path[:depth]) for row, path in self.node_paths if len(path) >= depth]
            paths = tuple(sorted({path for _, path in labelled}, key=lambda path: tuple(map(natural_key, path))))
            number = {path: index for index, path in enumerate(paths)}
            of_row = np.full(self.rows, -1, np.int64)
            for row, path in labelled:
                of_row[row] = number[path]
            numbered.append((paths, of_row))
        return tuple(numbered)

    def paths(self, level: str) -> tuple[Path, ...]:
        """Return the domains of a level, in order."""
        return self._numbered[self.levels.index(level)][0]

    def of_row(self, level: str) -> Int64:
        """Return the domain of each row (int64[rows]), -1 without a label."""
        return self._numbered[self.levels.index(level)][1]


class AcceleratorTree:
    """Keeps the accelerator labels of nodes while nodes appear, disappear and change their labels."""

    def __init__(self, config: FabricConfig) -> None:
        labels = accelerator_labels(config)
        self.names = tuple(labels)
        self._keys = tuple(labels.values())
        self._names_by_row: dict[int, DomainNames] = {}
        self._snapshot: Accelerators | None = None

    def levels_by_key(self) -> dict[str, str]:
        """Return the level of each node label."""
        return {key: name for name, keys in zip(self.names, self._keys, strict=True) for key in keys}

    def put(self, row: int, labels: Mapping[str, str]) -> bool:
        """Store the accelerator labels of a node; return whether they changed."""
        names = tuple([next((name for key in keys if (name := labels.get(key))), None) for keys in self._keys])
        if not any(names):
            return self.remove(row)
        if self._names_by_row.get(row) == names:
            return False
        self._names_by_row[row] = names
        self._snapshot = None
        return True

    def remove(self, row: int) -> bool:
        """Remove a row; return whether it had accelerator labels."""
        if self._names_by_row.pop(row, None) is None:
            return False
        self._snapshot = None
        return True

    def snapshot(self, rows: int) -> Accelerators | None:
        """Return the current tree, None where no node has a domain; ``rows`` is the length of the node table."""
        if not self._names_by_row:
            return None
        if self._snapshot is None or self._snapshot.rows != rows:
            active = [
                index for index in range(len(self.names)) if any(names[index] for names in self._names_by_row.values())
            ]
            paths = [
                (row, tuple(_until_unknown(names[index] for index in active)))
                for row, names in self._names_by_row.items()
            ]
            # A level has no domain if all nodes with its label lack the label of the enclosing level.
            deepest = max(len(path) for _, path in paths)
            levels = tuple(self.names[index] for index in active[:deepest])
            self._snapshot = Accelerators(levels, tuple(sorted(paths)), rows)
        return self._snapshot


def _until_unknown(names: Iterable[str | None]) -> Iterable[str]:
    for name in names:
        if name is None:
            return
        yield name
