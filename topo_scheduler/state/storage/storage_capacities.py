"""CSIStorageCapacity objects as they are kept, by StorageClass, and the nodes where a class has room.

They have a namespace, so tenants may create as many as the API server takes, for any class. So they are kept without
what has no reader, and what they take is capped, for each namespace and in all. Which nodes an object selects is
computed once for each state of node labels, and not at the expense of the pod that asks.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from topo_scheduler.api.objects import ObjectMeta, OwnerReference
from topo_scheduler.api.selectors import LabelSelector
from topo_scheduler.api.storage import CSIStorageCapacity
from topo_scheduler.state.nodes.label_sets import LabelSets
from topo_scheduler.state.nodes.node_table import UNKNOWN, NodeTable
from topo_scheduler.state.pods.selectors import SelectorError, compile_selector
from topo_scheduler.state.storage.sizes import size_of

Bool = npt.NDArray[np.bool_]
ObjectKey = tuple[str, str]
"""Namespace and name of an object."""

MAX_TOPOLOGY_BYTES: Final = 8192
"""Bytes of ``nodeTopology`` as JSON. Drivers write a few labels: a hundred bytes."""
MAX_TOPOLOGY_CONDITIONS: Final = 16
"""Labels and expressions of ``nodeTopology``."""
OBJECT_BYTES: Final = 1024
"""What an object counts, without its ``nodeTopology``."""
TOPOLOGY_BYTES: Final = 1024
"""What each different ``nodeTopology`` of a namespace counts beside its JSON: the nodes that it selects."""
CONDITION_BYTES: Final = 128
"""What each of its labels and expressions counts beside its JSON."""
VALUE_BYTES: Final = 256
"""What each value of its expressions counts beside its JSON: rather the time to look it up than memory."""
MAX_BYTES_OF_NAMESPACE: Final = 32 * 2**20
"""What the objects of one namespace may take: those of a driver with four classes and 5,000 nodes take 26 MiB."""
MAX_BYTES: Final = 80 * 2**20
"""The same of all namespaces together: beyond it, the namespace with the most loses objects."""
MAX_WARNINGS_OF_NAMESPACE: Final = 8
"""Warnings about objects of one namespace whose ``nodeTopology`` is too long."""
MAX_WARNED_NAMESPACES: Final = 1024
"""Namespaces whose warnings are remembered; then they may repeat."""
MAX_SIZES: Final = 64
"""Sizes of claims for which the nodes with room of one class are remembered."""

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_NO_LABELS: Final[dict[str, str]] = {}
_NO_OWNERS: Final[list[OwnerReference]] = []


def slim_capacity(item: CSIStorageCapacity) -> None:
    """Remove a ``nodeTopology`` beyond the caps, and say so in ``excess``."""
    topology = item.node_topology
    if topology is None:
        return
    conditions = len(topology.match_labels) + len(topology.match_expressions)
    if conditions > MAX_TOPOLOGY_CONDITIONS:
        item.excess = (
            f"nodeTopology has {conditions:,} matchLabels and matchExpressions, of {MAX_TOPOLOGY_CONDITIONS} at most"
        )
    elif (size := len(_encode(topology))) > MAX_TOPOLOGY_BYTES:
        item.excess = f"nodeTopology has {size:,} bytes, of {MAX_TOPOLOGY_BYTES:,} at most"
    else:
        return
    item.node_topology = None


@dataclass(slots=True, eq=False)
class _Topology:
    """A ``nodeTopology`` that objects of a namespace share."""

    text: bytes
    selector: LabelSelector
    is_valid: bool
    bytes: int
    objects: int = 0
    """Number of objects that have it."""
    rows: int = 0
    """Rows that it selects, as bits, while the labels of nodes are those of ``labels``."""
    row: int = UNKNOWN
    """The row that it selects, where it selects one alone."""
    labels: LabelSets | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Topology, (self.text, self.selector, self.is_valid, self.bytes, self.objects)

    def selected(self, nodes: NodeTable) -> int:
        """Return the rows that it selects, as bits."""
        if self.labels is not nodes.label_sets:
            self.labels = nodes.label_sets
            self.rows = rows = self.labels.selected(nodes, self.selector) if self.is_valid else 0
            self.row = UNKNOWN if rows & (rows - 1) else rows.bit_length() - 1
        return self.rows


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is read of an object; ``limit``: bytes of the largest volume, None if it is not known."""

    storage_class: str
    topology: _Topology | None
    limit: int | None


@dataclass(slots=True)
class _OfNamespace:
    """Objects of a namespace by name in the order in which they came, and their topologies by JSON."""

    objects: dict[str, _Kept] = field(default_factory=dict)
    topologies: dict[bytes, _Topology] = field(default_factory=dict)
    bytes: int = 0


class _ClassRoom:
    """Where a class has room, for one state of its objects and of the labels of nodes."""

    def __init__(self, objects: Iterable[_Kept], nodes: NodeTable) -> None:
        self._labels = nodes.label_sets
        self._largest = np.full(nodes.rows, UNKNOWN, np.int64)
        """int64[rows], the largest volume of objects that select this row alone, as those of local disks do."""
        self._rows: list[int] = []
        """Rows of each of the other objects, as bits."""
        limits: list[int] = []
        row_alone: list[int] = []
        limit_alone: list[int] = []
        for kept in objects:
            if kept.topology is None or kept.limit is None or not (rows := kept.topology.selected(nodes)):
                continue
            if kept.topology.row == UNKNOWN:
                self._rows.append(rows)
                limits.append(kept.limit)
            else:
                row_alone.append(kept.topology.row)
                limit_alone.append(kept.limit)
        np.maximum.at(self._largest, np.array(row_alone, np.int64), np.array(limit_alone, np.int64))
        self._limits = np.array(limits, np.int64)
        """int64[n], the largest volume of each object in ``_rows``."""
        self._of_size: dict[int, Bool] = {}

    def holds_for(self, nodes: NodeTable) -> bool:
        """Return whether the labels of nodes are those that were read."""
        return self._labels is nodes.label_sets and len(self._largest) == nodes.rows

    def of_size(self, size_bytes: int) -> Bool:
        """Return bool[rows], read-only: where a volume of this size has room."""
        room = self._of_size.get(size_bytes)
        if room is None:
            selected = 0
            for index in np.flatnonzero(self._limits >= size_bytes).tolist():
                selected |= self._rows[index]
            room = (self._largest >= size_bytes) | _rows_of_bits(selected, len(self._largest))
            room.flags.writeable = False
            if len(self._of_size) >= MAX_SIZES:
                self._of_size.clear()
            self._of_size[size_bytes] = room
        return room


class _OfClass:
    """Objects of a StorageClass."""

    __slots__ = ("objects", "room")

    def __init__(self, objects: dict[ObjectKey, _Kept] | None = None) -> None:
        self.objects = objects if objects is not None else {}
        self.room: _ClassRoom | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _OfClass, (self.objects,)


class KeptCapacities:
    """What is kept of all CSIStorageCapacity objects."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """Warnings about objects that were left out."""
        self._namespaces: dict[str, _OfNamespace] = {}
        self._classes: dict[str, _OfClass] = {}
        self._bytes = 0
        self._too_long: Counter[str] = Counter()
        """Warnings about long objects, by namespace."""
        self._full: dict[str, None] = {}
        """Namespaces with a warning that they have too many."""

    def keep(self, new: CSIStorageCapacity, old: CSIStorageCapacity | None = None) -> CSIStorageCapacity | None:
        """Return an object as it is kept until `drop` is called, None to leave it out.

        ``old``: as it was kept before; it is dropped in either case.
        """
        slim_capacity(new)
        name, namespace = new.metadata.name, sys.intern(new.metadata.namespace)
        if new.excess:
            self._warn_too_long(namespace, name, new.excess)
            if old is not None:
                self.drop(old)
            return None
        own = self._namespaces.get(namespace) or _OfNamespace()
        kept = self._read(own, new)  # before the old one is dropped, so that both share their topology
        if old is not None:
            self.drop(old)
        self._namespaces[namespace], own.objects[name] = own, kept
        of_class = self._classes.get(kept.storage_class)
        if of_class is None:
            of_class = self._classes[kept.storage_class] = _OfClass()
        of_class.objects[namespace, name] = kept
        of_class.room = None
        item = _slimmed(new, namespace, kept)
        if own.bytes > MAX_BYTES_OF_NAMESPACE:
            self._warn_full(namespace, name, f"{MAX_BYTES_OF_NAMESPACE:,} bytes")
            self.drop(item)
            return None
        return item

    def drop(self, item: CSIStorageCapacity) -> None:
        """Forget an object that was kept."""
        namespace, name = item.metadata.namespace, item.metadata.name
        own, of_class = self._namespaces[namespace], self._classes[item.storage_class_name]
        kept = own.objects.pop(name)
        self._count(own, -OBJECT_BYTES)
        if kept.topology is not None:
            kept.topology.objects -= 1
            if not kept.topology.objects:
                del own.topologies[kept.topology.text]
                self._count(own, -kept.topology.bytes)
        if not own.objects:
            del self._namespaces[namespace]
        del of_class.objects[namespace, name]
        of_class.room = None
        if not of_class.objects:
            del self._classes[item.storage_class_name]

    def beyond_all(self) -> ObjectKey | None:
        """Return an object to drop while all together take too much: the last of the namespace with the most."""
        if self._bytes <= MAX_BYTES:
            return None
        namespace, own = max(self._namespaces.items(), key=lambda item: (item[1].bytes, item[0]))
        name = next(reversed(own.objects))
        self._warn_full(namespace, name, f"its share of {MAX_BYTES:,} bytes")
        return namespace, name

    def room_of_class(self, storage_class: str, nodes: NodeTable, size_bytes: int) -> Bool:
        """Return bool[rows], read-only: where a capacity of a storage class is known that is large enough."""
        of_class = self._classes.get(storage_class)
        if of_class is None:
            return np.zeros(nodes.rows, np.bool_)
        if of_class.room is None or not of_class.room.holds_for(nodes):
            of_class.room = _ClassRoom(of_class.objects.values(), nodes)
        return of_class.room.of_size(size_bytes)

    def _read(self, own: _OfNamespace, new: CSIStorageCapacity) -> _Kept:
        """Return what is read of an object, and count it."""
        limit = new.capacity if new.maximum_volume_size is None else new.maximum_volume_size
        topology = None
        if new.node_topology is not None:
            text = _encode(new.node_topology)
            topology = own.topologies.get(text)
            if topology is None:
                topology = own.topologies[text] = _topology(text, new.node_topology)
                self._count(own, topology.bytes)
            topology.objects += 1
        self._count(own, OBJECT_BYTES)
        storage_class = new.storage_class_name
        if (of_class := self._classes.get(storage_class)) is not None:
            storage_class = next(iter(of_class.objects.values())).storage_class  # one text for all
        return _Kept(storage_class, topology, None if limit is None else size_of(limit))

    def _count(self, own: _OfNamespace, change: int) -> None:
        own.bytes += change
        self._bytes += change

    def _warn_too_long(self, namespace: str, name: str, excess: str) -> None:
        if len(self._too_long) >= MAX_WARNED_NAMESPACES and namespace not in self._too_long:
            self._too_long.clear()
        self._too_long[namespace] += 1
        if self._too_long[namespace] <= MAX_WARNINGS_OF_NAMESPACE:
            self.problems.append(
                f"CSIStorageCapacity {namespace}/{name}: {excess}; its capacity counts as not known;"
                " shorten nodeTopology"
            )

    def _warn_full(self, namespace: str, name: str, limit: str) -> None:
        if namespace in self._full:
            return
        if len(self._full) >= MAX_WARNED_NAMESPACES:
            self._full.clear()
        self._full[namespace] = None
        self.problems.append(
            f"namespace {namespace}: its CSIStorageCapacity objects take more than {limit}; {name} and further ones"
            " are left out, and their capacity counts as not known; delete those that no driver needs"
        )


def _topology(text: bytes, selector: LabelSelector) -> _Topology:
    try:
        compile_selector(selector)
        is_valid = True
    except SelectorError:
        is_valid = False
    values = sum(len(requirement.values) for requirement in selector.match_expressions)
    conditions = len(selector.match_labels) + len(selector.match_expressions)
    size = TOPOLOGY_BYTES + len(text) + CONDITION_BYTES * conditions + VALUE_BYTES * values
    return _Topology(text, selector, is_valid, size)


def _slimmed(item: CSIStorageCapacity, namespace: str, kept: _Kept) -> CSIStorageCapacity:
    """Return an object without what has no reader."""
    meta = item.metadata
    return CSIStorageCapacity(
        ObjectMeta(
            name=meta.name,
            namespace=namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            generation=meta.generation,
            labels=_NO_LABELS,
            annotations=_NO_LABELS,
            owner_references=_NO_OWNERS,
        ),
        storage_class_name=kept.storage_class,
        node_topology=kept.topology.selector if kept.topology is not None else None,
        capacity=kept.limit,
    )


def _rows_of_bits(bits: int, rows: int) -> Bool:
    """Return bool[rows]."""
    mask = np.frombuffer(bits.to_bytes(rows // 8 + 1, "little"), np.uint8)
    return np.unpackbits(mask, bitorder="little")[:rows].astype(np.bool_)
