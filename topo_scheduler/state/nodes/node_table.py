"""Nodes as arrays: one row for each node, and a row never moves while its node exists.

Every write goes through `NodeTable`, which appends the row to one of two logs: ``capacity`` (free resources changed)
and ``facts`` (labels, taints, readiness, allocatable). Caches read the logs instead of comparing nodes.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.labels import GPU_SHARING
from topo_scheduler.api.objects import Node, Quantity, Taint
from topo_scheduler.api.quantity import QuantityError, parse_bandwidth
from topo_scheduler.state.nodes.change_log import ChangeLog
from topo_scheduler.state.nodes.charges import charges_of
from topo_scheduler.state.nodes.daemon_changes import DaemonChanges
from topo_scheduler.state.nodes.gpu_facts import GpuFacts
from topo_scheduler.state.nodes.gpu_shares import Devices
from topo_scheduler.state.nodes.images import Images
from topo_scheduler.state.nodes.label_sets import LabelSets
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE, MAX_OFFERED_NAMES, Amounts, ResourceTable

Int64 = npt.NDArray[np.int64]
UNKNOWN = -1
"""Bandwidth or model of a node without such a label."""
MAX_ALLOCATABLE_ROWS = 1024
"""Maximum number of remembered allocatable resources: most nodes have the same as others."""
AWAY = frozenset(f"node.kubernetes.io/{name}" for name in ("unschedulable", "not-ready", "unreachable"))
"""Keys of the taints that Kubernetes puts on nodes that are cordoned or not ready."""

_OFFERED = 5
"""Position of what the status of a node offers among its facts."""
SPARE_TAINT_SETS = 64
"""Sets of taints that are kept without a node, in addition to two for each node."""


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """Keys of the labels with a node's GPU model and its bandwidth; the first key present counts."""

    gpu_model: tuple[str, ...]
    bandwidth: tuple[str, ...]


class CountedDevices(NamedTuple):
    """Devices of a node for an extended resource, and how many of them pods hold by claims of their own."""

    devices: int
    claimed: int = 0


class NodeTable:
    """All nodes. ``allocatable``, ``requested`` and ``daemons`` are int64 of shape (rows, resources)."""

    def __init__(self, resources: ResourceTable, labels: NodeLabels, rows: int = 256) -> None:
        self.resources = resources
        self.label_keys = labels
        columns = max(16, len(resources))
        self.allocatable: Int64 = np.zeros((rows, columns), np.int64)
        self.requested: Int64 = np.zeros((rows, columns), np.int64)
        self.daemons: Int64 = np.zeros((rows, columns), np.int64)
        """The part of ``requested`` that DaemonSet pods hold, which an otherwise empty node has too."""
        self.exists: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.ready: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.unschedulable: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.penalty: Int64 = np.zeros(rows, np.int64)
        """Number of pods that each kubelet refused recently."""
        self.spare: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        """Which nodes are kept free for recovery."""
        self.model: Int64 = np.full(rows, UNKNOWN, np.int64)
        self.bandwidth: Int64 = np.full(rows, UNKNOWN, np.int64)
        self.reserved_bandwidth: Int64 = np.zeros(rows, np.int64)
        """Network bandwidth of each node that gangs have reserved, in Mbit/s, as of the last settling of `Links`."""
        self._assumed_bandwidth = UNKNOWN
        self.taint_set: Int64 = np.zeros(rows, np.int64)
        self.devices = Devices(rows)
        """Single GPUs, where they are shared."""
        self.gpus = GpuFacts(rows)
        """What is known of the GPUs of each node."""
        self.names: list[str] = [""] * rows
        self.device_counts: dict[int, Mapping[str, CountedDevices]] = {}
        """By row, how many devices of ResourceSlices there are for an extended resource."""
        self.backed_columns: dict[int, dict[int, int]] = {}
        """By row, the columns of ``allocatable`` to which devices add, as the node itself offers none; how many."""
        self.claimed_columns: dict[int, dict[int, int]] = {}
        """By row, how much of ``requested`` is for devices among these that pods hold by claims of their own."""
        self.uids: list[str] = [""] * rows
        self.labels: list[Mapping[str, str]] = [{} for _ in range(rows)]
        self.features: list[frozenset[str]] = [frozenset()] * rows
        """Features that each node declares in its status."""
        self.images = Images()
        self.row_of: dict[str, int] = {}
        self._facts: list[tuple[object, ...]] = [()] * rows
        self._allocatable_rows: dict[tuple[tuple[str, Quantity], ...], Int64] = {}
        self.models: list[str] = []
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self.capacity_changes = ChangeLog()
        self.facts_changes = ChangeLog()
        self.daemon_charges = 0
        """Number of entries of ``facts_changes`` for DaemonSet pods that came or went."""
        self.daemon_changes = DaemonChanges()
        self._free = list(range(rows - 1, -1, -1))
        self._model_id: dict[str, int] = {}
        self._taint_set_id: dict[tuple[Taint, ...], int] = {(): 0}
        self._value_id: dict[str, int] = {}
        self.values: list[str] = []
        self._label_columns: dict[str, Int64] = {}
        self._nodes_with: Counter[str] = Counter()
        """Number of nodes with each label: a label that only pods name gets no column."""
        self.keys_generation = 0
        """Increases when the first node gets a label, or the last one loses it."""
        self.label_sets = LabelSets()
        """Another object after each change of labels: what was computed from it holds while it is the same."""
        self._no_label: Int64 = np.full(rows, UNKNOWN, np.int64)
        self._no_label.flags.writeable = False
        self._rows_by_value: dict[str, tuple[int, Int64, Int64]] = {}

    def __len__(self) -> int:
        return len(self.row_of)

    @property
    def rows(self) -> int:
        """Number of rows, used or not: the length of every array."""
        return len(self.exists)

    @property
    def gpu_sharing(self) -> npt.NDArray[np.bool_]:
        """bool[rows]: whether pods may share the GPUs of the node."""
        return self.devices.sharing

    @property
    def gpu_free(self) -> Int64:
        """int64[rows, d]: free thousandths of each GPU on nodes that share GPUs, 0 on the others."""
        return self.devices.free

    # ------------------------------------------------------------ nodes in and out

    def put(self, node: Node) -> tuple[int, bool, list[str]]:
        """Store a node's facts.

        Returns:
            Its row; whether a relevant fact changed (a heartbeat is none); and messages on what could not be read.
            The other fields of such a node are used.
        """
        name = node.metadata.name
        ready = all(condition.status == "True" for condition in node.status.conditions if condition.type == "Ready")
        facts = (
            node.metadata.uid,
            ready,
            node.spec.unschedulable,
            node.metadata.labels,
            node.spec.taints,
            node.status.allocatable or node.status.capacity,
            node.status.declared_features,
        )
        row = self.row_of.get(name)
        problems: list[str] = []
        if row is None:
            row = self._new_row(name)
        elif self._facts[row] == facts:
            self.images.put(row, node.status.images)
            return row, False, problems
        self._facts[row] = facts
        self.uids[row] = node.metadata.uid
        self.ready[row] = ready
        self.unschedulable[row] = node.spec.unschedulable
        self.features[row] = frozenset(node.status.declared_features)
        self._put_labels(row, node.metadata.labels, problems)
        self._forget_taints()
        self._put_taints(row, tuple(node.spec.taints))
        self._put_allocatable(row, node, problems)
        self._put_sharing(row, node.metadata.labels, problems)
        self.backed_columns.pop(row, None)  # all of the row of ``allocatable`` was written
        self._take_off_claimed(row)
        self._add_devices(row)
        self.images.put(row, node.status.images)
        self.facts_changes.append(row)
        self.capacity_changes.append(row)
        return row, True, [f"node {name}: {problem}" for problem in problems]

    def remove(self, name: str) -> int | None:
        """Remove a node; return the row it had. Charges on the row become 0; the ledger keeps the pods."""
        row = self.row_of.pop(name, None)
        if row is None:
            return None
        for array in (self.allocatable, self.requested, self.daemons):
            array[row] = 0
        for table in (self.device_counts, self.backed_columns, self.claimed_columns):
            table.pop(row, None)
        self.exists[row] = self.ready[row] = self.unschedulable[row] = self.spare[row] = False
        self.devices.clear(row)
        self.gpus.clear(row)
        self.penalty[row] = 0
        self.model[row] = self.bandwidth[row] = UNKNOWN
        self.taint_set[row] = 0
        self.names[row] = self.uids[row] = ""
        self._count_labels(self.labels[row], {})
        self.labels[row] = {}
        self.label_sets = LabelSets()
        self.features[row] = frozenset()
        self._facts[row] = ()
        self.images.put(row, [])
        for column in self._label_columns.values():
            column[row] = UNKNOWN
        self._free.append(row)
        self.facts_changes.append(row)
        self.capacity_changes.append(row)
        return row

    # ------------------------------------------------------------ devices of slices

    def put_devices(self, row: int, counts: Mapping[str, CountedDevices]) -> bool:
        """Store how many devices a row has for extended resources, by their names; return whether that changed."""
        if self.device_counts.get(row, {}) == counts:
            return False
        before = self.backed_columns.pop(row, {})
        for column, count in before.items():
            self.allocatable[row, column] -= count
        self._take_off_claimed(row)
        if counts:
            self.device_counts[row] = counts
        else:
            self.device_counts.pop(row, None)
        self._add_devices(row)
        if self.backed_columns.get(row, {}) != before:
            self.facts_changes.append(row)
        self.capacity_changes.append(row)
        return True

    def _take_off_claimed(self, row: int) -> None:
        for column, count in self.claimed_columns.pop(row, {}).items():
            self.requested[row, column] -= count

    def has_backed_gpus(self, row: int) -> bool:
        """Return whether the GPUs of a row are devices of ResourceSlices, which pods get by claims."""
        return GPU in self.backed_columns.get(row, ())

    def without_claimed(self, requested: Int64) -> Int64:
        """Return a copy of ``requested`` (int64[rows, k]) without the devices that pods hold by claims of their own."""
        left = requested.copy()
        for row, columns in self.claimed_columns.items():
            for column, count in columns.items():
                left[row, column] -= count
        return left

    def offers(self, row: int, resource: str) -> bool:
        """Return whether a node itself offers some of a resource, other than by devices of slices."""
        column = self.resources.find(resource)
        if not 0 <= column < self.allocatable.shape[1]:
            return False
        return bool(self.allocatable[row, column]) and column not in self.backed_columns.get(row, {})

    def names_gpus(self, row: int) -> bool:
        """Return whether the status of a node names a resource for GPUs, even with an amount of 0."""
        facts = self._facts[row]
        return bool(facts) and not self.resources.gpu_resources.isdisjoint(facts[_OFFERED])  # type: ignore[arg-type]

    # ------------------------------------------------------------ charges

    def charge(self, row: int, amounts: Amounts, *, sign: int = 1, daemon: bool = False) -> None:
        """Add what a pod holds of a node; with sign -1, subtract it."""
        requested = self.requested[row]
        for column, amount in amounts:
            requested[column] += sign * amount
        if daemon:
            before = self.daemons[row].copy()
            for column, amount in amounts:
                self.daemons[row, column] += sign * amount
            self.daemon_changes.put(row, before, self.daemons[row])
            self.facts_changes.append(row)
            self.daemon_charges += 1
        self.capacity_changes.append(row)

    def charge_all(self, rows: Int64, amounts: Int64) -> None:
        """Add amounts (int64[n, k] for the first k resources) to ``requested`` of rows (int64[n], each once)."""
        self.requested[rows, : amounts.shape[1]] += amounts
        self.capacity_changes.extend(rows.tolist())

    def charge_pods(self, charges: Sequence[tuple[int, Amounts]], *, sign: int) -> None:
        """Charge many pods as `charge` does, each given as its row and amounts; none is a DaemonSet pod."""
        rows, columns, amounts = charges_of(charges)
        self.charge_each(rows, columns, sign * amounts)

    def charge_each(self, rows: Int64, columns: Int64, amounts: Int64) -> None:
        """Add amounts to ``requested`` at rows and columns (int64[n] each); pairs may repeat."""
        np.add.at(self.requested, (rows, columns), amounts)
        self.capacity_changes.extend(np.unique(rows).tolist())

    def penalise(self, row: int, level: int) -> None:
        """Record how many pods a node refused."""
        if self.penalty[row] != level:
            self.penalty[row] = level
            self.facts_changes.append(row)

    def keep_spare(self, row: int, spare: bool) -> None:
        """Record whether a node is kept free for recovery."""
        if bool(self.spare[row]) != spare:
            self.spare[row] = spare
            self.facts_changes.append(row)

    def assume_bandwidth(self, mbits: int) -> None:
        """Set the bandwidth of nodes without a bandwidth label in Mbit/s, -1 for unknown."""
        if mbits == self._assumed_bandwidth:
            return
        self._assumed_bandwidth = mbits
        for row in self.row_of.values():
            if not any(key in self.labels[row] for key in self.label_keys.bandwidth):
                self.bandwidth[row] = mbits
                self.facts_changes.append(row)

    def overdrawn(self, row: int, amounts: Amounts | None = None, *, excluded: Amounts = ()) -> list[str]:
        """Return the names of the resources of which more is charged than the node has; of ``amounts``, where given.

        Charges in ``excluded`` do not count.
        """
        overdrawn = self.requested[row] > self.allocatable[row]
        if not excluded and not overdrawn.any():
            return []
        for column, amount in excluded:
            overdrawn[column] = self.requested[row, column] - amount > self.allocatable[row, column]
        requested = None if amounts is None else {column for column, _ in amounts}
        if requested is not None and GPU_SHARE in requested:
            requested.add(GPU)  # a shared GPU that a pod took whole
        columns = np.flatnonzero(overdrawn).tolist()
        return [self.resources.names[column] for column in columns if requested is None or column in requested]

    def widen(self) -> None:
        """Add columns for resources that became known since the last call."""
        missing = len(self.resources) - self.allocatable.shape[1]
        if missing > 0:
            pad = ((0, 0), (0, max(missing, 8)))
            self.allocatable = np.pad(self.allocatable, pad)
            self.requested = np.pad(self.requested, pad)
            self.daemons = np.pad(self.daemons, pad)

    # ------------------------------------------------------------ copies

    def detach(self) -> None:
        """Copy every array, so that changes no longer reach the table of which this is a shallow copy."""
        for name, value in list(vars(self).items()):
            if isinstance(value, np.ndarray):
                setattr(self, name, value.copy())
        self.capacity_changes, self.facts_changes, self.daemon_changes = ChangeLog(), ChangeLog(), DaemonChanges()
        self._rows_by_value = {}

    def admit(self, row: int) -> None:
        """Make a row ready and schedulable, without the taints that say otherwise."""
        self.ready[row], self.unschedulable[row] = True, False
        taints = self.taint_sets[int(self.taint_set[row])]
        self._put_taints(row, tuple(taint for taint in taints if taint.key not in AWAY))
        self.facts_changes.append(row)
        self.capacity_changes.append(row)

    # ------------------------------------------------------------ labels as columns

    def value_id(self, value: str) -> int:
        """Return the integer id of a label value; equal strings have equal ids."""
        id_ = self._value_id.get(value)
        if id_ is None:
            id_ = self._value_id[value] = len(self.values)
            self.values.append(value)
        return id_

    def known_value(self, value: str) -> int:
        """Return the integer id of a label value, -1 when it has none yet."""
        return self._value_id.get(value, UNKNOWN)

    def labels_of(self, row: int) -> Mapping[str, str]:
        """Return all labels of one row."""
        return self.labels[row]

    def carried_keys(self) -> Collection[str]:
        """Return the keys of all labels that any node has."""
        return self._nodes_with.keys()

    def column(self, resource: str) -> int:
        """Return the column of a resource, -1 when there is none."""
        return self.resources.find(resource)

    def label_column(self, key: str) -> Int64:
        """Return the value ids of one label by row (int64[rows], -1 where absent), up to date for now."""
        column = self._label_columns.get(key)
        if column is None:
            if key not in self._nodes_with:
                return self._no_label
            column = np.full(self.rows, UNKNOWN, np.int64)
            for row in self.row_of.values():
                value = self.labels[row].get(key)
                if value is not None:
                    column[row] = self.value_id(value)
            self._label_columns[key] = column
        return column

    def rows_with(self, key: str, value: str) -> Int64:
        """Return the rows with this value of a label, ascending (int64). Repeated calls for one key are cheap."""
        cached = self._rows_by_value.get(key)
        if cached is None or cached[0] != self.facts_changes.position:
            column = self.label_column(key)
            order = np.argsort(column, kind="stable").astype(np.int64)
            cached = self._rows_by_value[key] = (self.facts_changes.position, order, column[order])
        _, order, values = cached
        value_id = self.known_value(value)
        if value_id == UNKNOWN:
            return order[:0]
        return order[np.searchsorted(values, value_id) : np.searchsorted(values, value_id, side="right")]

    def model_id(self, name: str) -> int:
        """Return the integer id of a GPU model, -1 when no node has it."""
        return self._model_id.get(name, UNKNOWN)

    # ------------------------------------------------------------ inside

    def _new_row(self, name: str) -> int:
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.row_of[name] = row
        self.names[row] = name
        self.exists[row] = True
        self.label_sets = LabelSets()
        return row

    def _grow(self) -> None:
        rows = self.rows
        for attribute in ("allocatable", "requested", "daemons"):
            setattr(self, attribute, np.pad(getattr(self, attribute), ((0, rows), (0, 0))))
        for attribute in ("exists", "ready", "unschedulable", "spare", "taint_set", "reserved_bandwidth", "penalty"):
            setattr(self, attribute, np.pad(getattr(self, attribute), (0, rows)))
        for attribute in ("model", "bandwidth"):
            setattr(self, attribute, np.pad(getattr(self, attribute), (0, rows), constant_values=UNKNOWN))
        self.devices.grow(2 * rows)
        self.gpus.grow(2 * rows)
        self._no_label = np.full(2 * rows, UNKNOWN, np.int64)
        self._no_label.flags.writeable = False
        for key, column in self._label_columns.items():
            self._label_columns[key] = np.pad(column, (0, rows), constant_values=UNKNOWN)
        self.names += [""] * rows
        self.uids += [""] * rows
        self.labels += [{} for _ in range(rows)]
        self.features += [frozenset()] * rows
        self._facts += [()] * rows
        self._free = list(range(2 * rows - 1, rows - 1, -1))
        # Every cache has the length of these arrays, so all of them must start over.
        self.facts_changes.restart()
        self.capacity_changes.restart()

    def _put_labels(self, row: int, labels: Mapping[str, str], problems: list[str]) -> None:
        self._count_labels(self.labels[row], labels)
        if self.labels[row] != labels:
            self.label_sets = LabelSets()
        self.labels[row] = labels
        for key, column in self._label_columns.items():
            value = labels.get(key)
            column[row] = UNKNOWN if value is None else self.value_id(value)
        model = next((labels[key] for key in self.label_keys.gpu_model if labels.get(key)), None)
        self.model[row] = UNKNOWN if model is None else self._intern_model(model)
        self.bandwidth[row] = self._assumed_bandwidth
        bandwidth_key = next((key for key in self.label_keys.bandwidth if key in labels), None)
        if bandwidth_key is not None:
            try:
                self.bandwidth[row] = parse_bandwidth(labels[bandwidth_key])
            except QuantityError as error:
                self.bandwidth[row] = UNKNOWN
                problems.append(f"label {bandwidth_key}: {error}; its bandwidth counts as unknown")

    def _count_labels(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        nodes_with = self._nodes_with
        for key in after.keys() - before.keys():
            self.keys_generation += key not in nodes_with
            nodes_with[key] += 1
        for key in before.keys() - after.keys():
            nodes_with[key] -= 1
            if not nodes_with[key]:
                del nodes_with[key]
                self.keys_generation += 1
                self._label_columns.pop(key, None)
                self._rows_by_value.pop(key, None)

    def _put_sharing(self, row: int, labels: Mapping[str, str], problems: list[str]) -> None:
        sharing = labels.get(GPU_SHARING, "false")
        if sharing not in ("true", "false"):
            problems.append(f'label {GPU_SHARING}: {sharing!r} is neither "true" nor "false"; its GPUs are not shared')
        self.devices.sharing[row] = sharing == "true"
        self.allocatable[row, GPU_SHARE] = WHOLE_GPU * self.allocatable[row, GPU] if sharing == "true" else 0

    def _add_devices(self, row: int) -> None:
        """Add the devices of a row to ``allocatable``, for resources of which the node itself offers none.

        Those that claims hold are added to ``requested`` too: an empty node would have them.
        """
        if row not in self.device_counts:
            return
        self.widen()
        added: dict[int, int] = {}
        claimed: dict[int, int] = {}
        for name, count in self.device_counts[row].items():
            column = self.resources.find(name)
            if column < 0 or not count.devices or self.allocatable[row, column]:
                continue
            for counted in (column, GPU) if name in self.resources.gpu_resources else (column,):
                added[counted] = added.get(counted, 0) + count.devices
                claimed[counted] = claimed.get(counted, 0) + count.claimed
        for column, number in added.items():
            self.allocatable[row, column] += number
        for column, number in claimed.items():
            self.requested[row, column] += number
        if added:
            self.backed_columns[row] = added
        if any(claimed.values()):
            self.claimed_columns[row] = claimed

    def _intern_model(self, name: str) -> int:
        model_id = self._model_id.get(name)
        if model_id is None:
            model_id = self._model_id[name] = len(self.models)
            self.models.append(name)
        return model_id

    def _put_taints(self, row: int, taints: tuple[Taint, ...]) -> None:
        set_id = self._taint_set_id.get(taints)
        if set_id is None:
            set_id = self._taint_set_id[taints] = len(self.taint_sets)
            self.taint_sets.append(taints)
        self.taint_set[row] = set_id

    def _forget_taints(self) -> None:
        """Forget the sets of taints without a node once they are many, as every pod class is compared with each set.

        Autoscalers write times into taints. Copies of this table keep their lists.
        """
        if len(self.taint_sets) <= SPARE_TAINT_SETS + 2 * len(self.row_of):
            return
        used_ids = np.union1d(np.unique(self.taint_set), np.zeros(1, np.int64))
        self.taint_set = np.searchsorted(used_ids, self.taint_set).astype(np.int64)
        self.taint_sets = [self.taint_sets[id_] for id_ in used_ids.tolist()]
        self._taint_set_id = {taints: id_ for id_, taints in enumerate(self.taint_sets)}

    def _put_allocatable(self, row: int, node: Node, problems: list[str]) -> None:
        quantities = dict(node.status.allocatable or node.status.capacity)
        key = tuple(quantities.items())
        if (cached := self._allocatable_rows.get(key)) is not None and len(cached) == self.allocatable.shape[1]:
            self.allocatable[row] = cached
            return
        for name in self.resources.offer(quantities):
            problems.append(
                f"allocatable {name}: nodes offer {MAX_OFFERED_NAMES} other resources already; it counts as 0"
            )
            del quantities[name]
        amounts: dict[int, int] = {}
        while quantities:
            try:
                amounts = self.resources.amounts(quantities)
                break
            except QuantityError as error:
                name = str(error).split(":", 1)[0]
                problems.append(f"allocatable {error}; it counts as 0")
                del quantities[name]
        self.widen()
        allocatable = self.allocatable[row]
        allocatable[:] = 0
        for column, amount in amounts.items():
            allocatable[column] = amount
        if len(quantities) == len(key):
            if len(self._allocatable_rows) > MAX_ALLOCATABLE_ROWS:
                self._allocatable_rows.clear()
            self._allocatable_rows[key] = allocatable.copy()
