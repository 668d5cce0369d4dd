"""Domains that the configuration names, as rows: what is meant by a name follows the labels of the nodes."""

from collections.abc import Iterable, Iterator

import numpy as np

from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.fabric import Fabric
from topo_scheduler.state.nodes import Int64, NodeTable


class NamedDomains:
    """Rows by name of a domain. A name that several domains have means all of them together."""

    def __init__(self, nodes: NodeTable, fabric: Fabric) -> None:
        self._nodes = nodes
        self._fabric = fabric
        self._at = (-1, -1)
        self._rows: dict[str, Bool] = {}

    @property
    def generation(self) -> int:
        """Changes with whatever may change the rows of a domain."""
        return self._fabric.generation

    @property
    def leaf_of_row(self) -> Int64:
        """The leaf of each row (int64[rows]), -1 where there is no node."""
        return self._fabric.layout(self._nodes.rows).leaf_of_row

    def rows(self, name: str) -> Bool:
        """Return bool[rows], not to be written to: which rows lie in the domain. An empty name means all nodes."""
        at = (self._fabric.generation, self._nodes.rows)
        if at != self._at:
            self._rows.clear()
            self._at = at
        found = self._rows.get(name)
        if found is None:
            found = self._rows[name] = self._find(name)
        return found

    def shut(self, cls: PodClass, rows: Int64, *, ever: bool = False) -> Bool:
        """Return on which of the rows no pod of a class may go by its caps: now, or ``ever``, were they all empty."""
        closed = np.zeros(len(rows), np.bool_)
        for cap in cls.caps:
            if not (cap.ever if ever else cap.now):
                closed |= self.rows(cap.domain)[rows]
        return closed

    def problems(self, names: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Yield which names mean no domain or several, and what to do.

        Args:
            names: pairs of the field of the configuration and the name.

        Yields:
            The name, and the message.
        """
        layout = self._fabric.layout(self._nodes.rows)
        for field, name in names:
            found = layout.find(name)
            if not found:
                yield (
                    name,
                    (
                        f"{field}: no domain is called {name}, so this has no effect; write a path or a name as"
                        " `topo-scheduler topology` shows them"
                    ),
                )
            elif len(found) > 1:
                paths = ", ".join("/".join(layout.domain_path(depth, index)) for depth, index in found[:4])
                yield name, f"{field}: {name} may mean {paths}; all of them are meant, write a path to name one"

    def _find(self, name: str) -> Bool:
        if not name:
            return self._nodes.exists.copy()
        layout = self._fabric.layout(self._nodes.rows)
        inside = np.zeros(self._nodes.rows, np.bool_)
        for depth, index in layout.find(name):
            first, last = layout.domains[depth][index : index + 2].tolist()
            inside[layout.order[layout.offsets[first] : layout.offsets[last]]] = True
        return inside
