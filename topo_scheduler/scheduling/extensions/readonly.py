"""The arguments of plugins: the arrays of the engine as read-only views."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import numpy as np

from topo_scheduler.api.objects import Taint
from topo_scheduler.scheduling.extensions.extension import Bool, LeafSeats, Leaves, Nodes, Plugin
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64

NOWHERE: Final = -2
"""ID for a label value that no node has; -1 is the ID of an absent label."""

A = TypeVar("A")
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


class _Frozen(Generic[A]):
    """An attribute that is a read-only view of the array of this name in the node table."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: "ReadOnlyNodes", owner: type) -> A:
        return frozen(getattr(instance._nodes, self._name))  # type: ignore[no-any-return]


class _Shared(_Frozen[A]):
    """An attribute that is the immutable value of this name in the node table."""

    def __get__(self, instance: "ReadOnlyNodes", owner: type) -> A:
        return getattr(instance._nodes, self._name)  # type: ignore[no-any-return]


class ReadOnlyNodes:
    """The node table as a plugin sees it; see `Nodes`. No method changes the table, not even a cache of it.

    A plugin that exceeded its time may still be running in a thread, and its use of this object must have no effect.
    """

    exists = _Frozen[Bool]()
    ready = _Frozen[Bool]()
    unschedulable = _Frozen[Bool]()
    spare = _Frozen[Bool]()
    allocatable = _Frozen[Int64]()
    requested = _Frozen[Int64]()
    model = _Frozen[Int64]()
    bandwidth = _Frozen[Int64]()
    reserved_bandwidth = _Frozen[Int64]()
    gpu_sharing = _Frozen[Bool]()
    gpu_free = _Frozen[Int64]()
    taint_set = _Frozen[Int64]()
    taint_sets = _Shared[Sequence[tuple[Taint, ...]]]()
    features = _Shared[Sequence[frozenset[str]]]()
    models = _Shared[Sequence[str]]()
    names = _Shared[Sequence[str]]()
    values = _Shared[Sequence[str]]()

    def __init__(self, nodes: Nodes, plugin: Plugin) -> None:
        self._nodes = nodes
        self._plugin = plugin

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
