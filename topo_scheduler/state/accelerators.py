"""Accelerator domains (NVLink and its like): a second tree over the nodes that the fabric orders.

Where a node hangs in the network and with which nodes its accelerators share memory are two facts. A domain of the
second tree may be part of a leaf, a set of leaves, or lie across parts of several; so it is kept as numbers by row, and
woven into the order of the network where it is asked for (`crossing`). It is identified by its path in its own tree.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from topo_scheduler.api.labels import ACCELERATOR_LEVELS
from topo_scheduler.api.process import FabricSettings as FabricConfig
from topo_scheduler.state.natural import natural_key
from topo_scheduler.state.nodes import Int64

Path = tuple[str, ...]
Told = tuple[str | None, ...]
"""The name of a node's domain at each level, None where no label tells."""


def accelerator_labels(config: FabricConfig) -> dict[str, tuple[str, ...]]:
    """Return the levels of the second tree, outermost first, with the labels that are read for each.

    A label by which the configuration names a level of the network is no second time one of this tree.
    """
    if config.accelerators is not None:
        return {level.name: level.labels for level in config.accelerators}
    network = {key for level in config.levels for key in level.labels}
    names = {level.name for level in config.levels}
    found = {
        name: tuple(key for key in keys if key not in network)
        for name, keys in ACCELERATOR_LEVELS.items()
        if name not in names
    }
    return {name: keys for name, keys in found.items() if keys}


@dataclass(frozen=True)
class Accelerators:
    """The second tree at one moment. ``levels`` that some node tells, outermost first; ``told`` by row."""

    levels: tuple[str, ...]
    told: tuple[tuple[int, Path], ...] = field(repr=False)
    rows: int = 0

    @cached_property
    def _numbered(self) -> tuple[tuple[tuple[Path, ...], Int64], ...]:
        found = []
        for depth in range(1, len(self.levels) + 1):
            known = [(row, path[:depth]) for row, path in self.told if len(path) >= depth]
            paths = tuple(sorted({path for _, path in known}, key=lambda path: tuple(map(natural_key, path))))
            number = {path: at for at, path in enumerate(paths)}
            of_row = np.full(self.rows, -1, np.int64)
            for row, path in known:
                of_row[row] = number[path]
            found.append((paths, of_row))
        return tuple(found)

    def paths(self, level: str) -> tuple[Path, ...]:
        """Return the domains of a level, in order."""
        return self._numbered[self.levels.index(level)][0]

    def of_row(self, level: str) -> Int64:
        """Return the domain of each row (int64[rows]), -1 where none is told."""
        return self._numbered[self.levels.index(level)][1]


class AcceleratorTree:
    """Keeps what nodes tell while they come, go and change their labels."""

    def __init__(self, config: FabricConfig) -> None:
        labels = accelerator_labels(config)
        self.names = tuple(labels)
        self._keys = tuple(labels.values())
        self._told: dict[int, Told] = {}
        self._snapshot: Accelerators | None = None

    def levels_by_key(self) -> dict[str, str]:
        """Return the level that each node label tells."""
        return {key: name for name, keys in zip(self.names, self._keys, strict=True) for key in keys}

    def put(self, row: int, labels: Mapping[str, str]) -> bool:
        """Take over what a node's labels say; return whether that changed anything."""
        told = tuple([_first(labels, keys) for keys in self._keys])
        if not any(told):
            return self.remove(row)
        if self._told.get(row) == told:
            return False
        self._told[row] = told
        self._snapshot = None
        return True

    def remove(self, row: int) -> bool:
        """Forget a row; return whether it told anything."""
        if self._told.pop(row, None) is None:
            return False
        self._snapshot = None
        return True

    def snapshot(self, rows: int) -> Accelerators | None:
        """Return the tree as it is, None where no node tells any domain; ``rows`` is the length of the node table."""
        if not self._told:
            return None
        if self._snapshot is None or self._snapshot.rows != rows:
            active = [at for at in range(len(self.names)) if any(told[at] for told in self._told.values())]
            paths = [(row, tuple(_until_unknown(told[at] for at in active))) for row, told in self._told.items()]
            # A level that only nodes without the one around it tell has no domain.
            deepest = max(len(path) for _, path in paths)
            levels = tuple(self.names[at] for at in active[:deepest])
            self._snapshot = Accelerators(levels, tuple(sorted(paths)), rows)
        return self._snapshot


def _first(labels: Mapping[str, str], keys: Iterable[str]) -> str | None:
    for key in keys:
        if found := labels.get(key):
            return found
    return None


def _until_unknown(names: Iterable[str | None]) -> Iterable[str]:
    for name in names:
        if name is None:
            return
        yield name
