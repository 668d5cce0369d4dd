"""The arguments of plugins: the arrays of the engine as read-only views."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from topo_scheduler.scheduling.extensions.extension import Bool, LeafSeats, Leaves, Nodes, Plugin
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64

if TYPE_CHECKING:
    from topo_scheduler.api.objects import Taint

NOWHERE: Final = -2
"""ID for a label value that no node has; -1 is the ID of an absent label."""

D = TypeVar("D", Leaves, LeafSeats)


def frozen(array: Any) -> Any:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


def read_only(original: D) -> D:
    """Return a copy of the tuple in which every array is a read-only view."""
    return original._replace(
        **{name: frozen(value) for name, value in original._asdict().items() if isinstance(value, np.ndarray)}
    )


class ReadOnlyNodes:
    """The node table as a plugin sees it. No method changes the table, not even a cache of it.

    A plugin that exceeded its time may still be running in a thread, and its use of this object must have no effect.
    """

    def __init__(self, nodes: Nodes, plugin: Plugin) -> None:
        self._nodes = nodes
        self._plugin = plugin

    @property
    def exists(self) -> Bool:
        """bool[N]."""
        return frozen(self._nodes.exists)  # type: ignore[no-any-return]

    @property
    def ready(self) -> Bool:
        """bool[N]."""
        return frozen(self._nodes.ready)  # type: ignore[no-any-return]

    @property
    def unschedulable(self) -> Bool:
        """bool[N]."""
        return frozen(self._nodes.unschedulable)  # type: ignore[no-any-return]

    @property
    def spare(self) -> Bool:
        """bool[N]."""
        return frozen(self._nodes.spare)  # type: ignore[no-any-return]

    @property
    def allocatable(self) -> Int64:
        """int64[N, resources]."""
        return frozen(self._nodes.allocatable)  # type: ignore[no-any-return]

    @property
    def requested(self) -> Int64:
        """int64[N, resources]."""
        return frozen(self._nodes.requested)  # type: ignore[no-any-return]

    @property
    def model(self) -> Int64:
        """int64[N]."""
        return frozen(self._nodes.model)  # type: ignore[no-any-return]

    @property
    def bandwidth(self) -> Int64:
        """int64[N]."""
        return frozen(self._nodes.bandwidth)  # type: ignore[no-any-return]

    @property
    def reserved_bandwidth(self) -> Int64:
        """int64[N]."""
        return frozen(self._nodes.reserved_bandwidth)  # type: ignore[no-any-return]

    @property
    def gpu_sharing(self) -> Bool:
        """bool[N]."""
        return frozen(self._nodes.gpu_sharing)  # type: ignore[no-any-return]

    @property
    def gpu_free(self) -> Int64:
        """int64[N, d]."""
        return frozen(self._nodes.gpu_free)  # type: ignore[no-any-return]

    @property
    def taint_set(self) -> Int64:
        """int64[N]."""
        return frozen(self._nodes.taint_set)  # type: ignore[no-any-return]

    @property
    def taint_sets(self) -> "Sequence[tuple[Taint, ...]]":
        """Every set of taints there is."""
        return self._nodes.taint_sets

    @property
    def features(self) -> Sequence[frozenset[str]]:
        """By row."""
        return self._nodes.features

    @property
    def models(self) -> Sequence[str]:
        """Names of GPU models."""
        return self._nodes.models

    @property
    def names(self) -> Sequence[str]:
        """By row."""
        return self._nodes.names

    @property
    def values(self) -> Sequence[str]:
        """Label values by id."""
        return self._nodes.values

    @property
    def row_of(self) -> Mapping[str, int]:
        """Rows by name of the node."""
        return MappingProxyType(self._nodes.row_of)

    def column(self, resource: str) -> int:
        """Return the column of a resource, -1 when there is none."""
        return self._nodes.column(resource)

    def labels_of(self, row: int) -> Mapping[str, str]:
        """Return all labels of one node."""
        return MappingProxyType(self._nodes.labels_of(row))

    def label_column(self, key: str) -> Int64:
        """Return int64[N]: ids of the values of a label that the plugin declared to read.

        Raises:
            LookupError: the plugin did not declare the label.
        """
        if key not in self._plugin.node_labels:
            raise LookupError(f"label {key} is not among the node_labels that plugin {self._plugin.name} declares")
        return frozen(self._nodes.label_column(key))  # type: ignore[no-any-return]

    def value_id(self, value: str) -> int:
        """Return the id of a label value, -2 when no node has it."""
        value_id = self._nodes.known_value(value)
        return NOWHERE if value_id == UNKNOWN else value_id

    def model_id(self, name: str) -> int:
        """Return the index of a GPU model, -1 when no node has it."""
        return self._nodes.model_id(name)

    def known_value(self, value: str) -> int:
        """Return the id of a label value, -1 when it is none of any node."""
        return self._nodes.known_value(value)
