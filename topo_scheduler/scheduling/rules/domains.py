"""Rows of the domains that the configuration names; they follow the labels of the nodes."""

from collections.abc import Iterable, Iterator

import numpy as np

from topo_scheduler.api.config import TopologySpec
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.topology.fabric import Fabric


def configured_domains(spec: TopologySpec) -> list[tuple[str, str]]:
    """Return the domains that quotas and access name, each with its field."""
    return [
        *(("spec.domainAccess", access.domain) for access in spec.domain_access),
        *(("spec.quotas", quota.domain) for quota in spec.quotas if quota.domain),
    ]


class NamedDomains:
    """Rows by name of a domain. If several domains have the name, it means all of them together."""

    def __init__(self, nodes: NodeTable, fabric: Fabric) -> None:
        self._nodes = nodes
        self._fabric = fabric
        self._version = (-1, -1)
        self._rows: dict[str, Bool] = {}

    @property
    def generation(self) -> int:
        """A number that changes whenever the rows of a domain may change."""
        return self._fabric.generation

    @property
    def leaf_of_row(self) -> Int64:
        """The leaf of each row (int64[rows]), -1 for rows without a node."""
        return self._fabric.layout(self._nodes.rows).leaf_of_row

    def rows(self, name: str) -> Bool:
        """Return the rows in the domain (bool[rows], read-only). An empty name means all nodes."""
        version = (self._fabric.generation, self._nodes.rows)
        if version != self._version:
            self._rows.clear()
            self._version = version
        inside = self._rows.get(name)
        if inside is None:
            inside = self._rows[name] = self._find(name)
        return inside

    def closed_by_caps(self, cls: PodClass, rows: Int64, *, ever: bool = False) -> Bool:
        """Return the rows that caps close to a class (of the length of ``rows``): now, or ``ever``, even if empty."""
        closed = np.zeros(len(rows), np.bool_)
        for cap in cls.caps:
            if not (cap.ever if ever else cap.now):
                closed |= self.rows(cap.domain)[rows]
        return closed

    def problems(self, names: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Yield the names that match no domain or several domains, each with a message that includes the remedy.

        Args:
            names: pairs of the field of the configuration and the name.

        Yields:
            The name, and the message.
        """
        layout = self._fabric.layout(self._nodes.rows)
        for field, name in names:
            matches = layout.find(name)
            if not matches:
                yield (
                    name,
                    (
                        f"{field}: no domain is called {name}, so this has no effect; write a path or a name as"
                        " `topo-scheduler topology` shows them"
                    ),
                )
            elif len(matches) > 1:
                paths = ", ".join("/".join(layout.domain_path(depth, index)) for depth, index in matches[:4])
                yield name, f"{field}: {name} may mean {paths}; it applies to all of them, write a path to name one"

    def _find(self, name: str) -> Bool:
        if not name:
            return self._nodes.exists.copy()
        layout = self._fabric.layout(self._nodes.rows)
        inside = np.zeros(self._nodes.rows, np.bool_)
        for depth, index in layout.find(name):
            first, last = layout.domains[depth][index : index + 2].tolist()
            inside[layout.order[layout.offsets[first] : layout.offsets[last]]] = True
        return inside
