"""Nodes as arrays: one row a node, rows never move while the node lives.

Every write goes through `NodeTable`, which notes the row in one of two logs: ``capacity`` (what is free changed) and
``facts`` (labels, taints, readiness, allocatable). Caches read the logs instead of comparing nodes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.labels import GPU_SHARING
from topo_scheduler.api.objects import Node, Quantity, Taint
from topo_scheduler.api.quantity import QuantityError, parse_bandwidth
from topo_scheduler.state.changes import ChangeLog
from topo_scheduler.state.charges import charges_of
from topo_scheduler.state.devices import WHOLE, Devices
from topo_scheduler.state.images import Images
from topo_scheduler.state.resources import GPU, GPU_SHARE, MOST_OFFERED, Amounts, ResourceTable

Int64 = npt.NDArray[np.int64]
UNKNOWN = -1
"""Bandwidth or model that no label tells."""
AWAY = frozenset(f"node.kubernetes.io/{name}" for name in ("unschedulable", "not-ready", "unreachable"))
"""Keys of the taints that Kubernetes puts on nodes that are cordoned or not ready."""

FEW_TAINT_SETS = 64
"""Sets of taints that are kept whether nodes have them or not, beside two for each node."""


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """Which labels tell a node's GPU model and its bandwidth; the first one present wins."""

    gpu_model: tuple[str, ...]
    bandwidth: tuple[str, ...]


class NodeTable:
    """All nodes. ``allocatable``, ``requested`` and ``daemons`` are int64 of shape (rows, resources)."""

    def __init__(self, resources: ResourceTable, labels: NodeLabels, rows: int = 256) -> None:
        self.resources = resources
        self.read = labels
        columns = max(16, len(resources))
        self.allocatable: Int64 = np.zeros((rows, columns), np.int64)
        self.requested: Int64 = np.zeros((rows, columns), np.int64)
        self.daemons: Int64 = np.zeros((rows, columns), np.int64)
        """The part of ``requested`` that DaemonSets hold: there even when a node is otherwise empty."""
        self.exists: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.ready: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.unschedulable: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.penalty: Int64 = np.zeros(rows, np.int64)
        """How many pods each kubelet refused, as far as that is remembered."""
        self.spare: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        """Which nodes are kept free for recovery."""
        self.model: Int64 = np.full(rows, UNKNOWN, np.int64)
        self.bandwidth: Int64 = np.full(rows, UNKNOWN, np.int64)
        self.reserved_bandwidth: Int64 = np.zeros(rows, np.int64)
        """What gangs have reserved of each node's network in Mbit/s, as of the last time `Links` was settled."""
        self._bandwidth_untold = UNKNOWN
        self.taint_set: Int64 = np.zeros(rows, np.int64)
        self.devices = Devices(rows)
        """Single GPUs, where they are shared."""
        self.names: list[str] = [""] * rows
        self.uids: list[str] = [""] * rows
        self.labels: list[Mapping[str, str]] = [{} for _ in range(rows)]
        self.features: list[frozenset[str]] = [frozenset()] * rows
        """Features that nodes declare."""
        self.images = Images()
        self.row_of: dict[str, int] = {}
        self._facts: list[tuple[object, ...]] = [()] * rows
        self._allocatable_rows: dict[tuple[tuple[str, Quantity], ...], Int64] = {}
        self.models: list[str] = []
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self.capacity_changes = ChangeLog()
        self.facts_changes = ChangeLog()
        self._free = list(range(rows - 1, -1, -1))
        self._model_id: dict[str, int] = {}
        self._taint_set_id: dict[tuple[Taint, ...], int] = {(): 0}
        self._value_id: dict[str, int] = {}
        self.values: list[str] = []
        self._label_columns: dict[str, Int64] = {}
        self._nodes_with: Counter[str] = Counter()
        """How many nodes carry each label: pods ask for labels that none has, and these get no column."""
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
        """bool[rows]: whether its GPUs may be shared by pods."""
        return self.devices.sharing

    @property
    def gpu_free(self) -> Int64:
        """int64[rows, d]: free thousandths of each GPU where they are shared, 0 elsewhere."""
        return self.devices.free

    # ------------------------------------------------------------ nodes in and out

    def put(self, node: Node) -> tuple[int, bool, list[str]]:
        """Take over a node's facts.

        Returns:
            Its row, whether anything that counts differs from what was known (a heartbeat does not count), and
            messages on what could not be read (the rest of the node is used all the same).
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
        self.images.put(row, node.status.images)
        self.facts_changes.append(row)
        self.capacity_changes.append(row)
        return row, True, [f"node {name}: {problem}" for problem in problems]

    def remove(self, name: str) -> int | None:
        """Forget a node; return the row it had. What was charged to the row is zeroed: the ledger keeps the pods."""
        row = self.row_of.pop(name, None)
        if row is None:
            return None
        for array in (self.allocatable, self.requested, self.daemons):
            array[row] = 0
        self.exists[row] = self.ready[row] = self.unschedulable[row] = self.spare[row] = False
        self.devices.clear(row)
        self.penalty[row] = 0
        self.model[row] = self.bandwidth[row] = UNKNOWN
        self.taint_set[row] = 0
        self.names[row] = self.uids[row] = ""
        self._count_labels(self.labels[row], {})
        self.labels[row] = {}
        self.features[row] = frozenset()
        self._facts[row] = ()
        self.images.put(row, [])
        for column in self._label_columns.values():
            column[row] = UNKNOWN
        self._free.append(row)
        self.facts_changes.append(row)
        self.capacity_changes.append(row)
        return row

    # ------------------------------------------------------------ charges

    def charge(self, row: int, amounts: Amounts, *, sign: int = 1, daemon: bool = False) -> None:
        """Add (or with sign -1 take away) what a pod holds of a node."""
        requested = self.requested[row]
        for column, amount in amounts:
            requested[column] += sign * amount
        if daemon:
            for column, amount in amounts:
                self.daemons[row, column] += sign * amount
            self.facts_changes.append(row)
        self.capacity_changes.append(row)

    def charge_all(self, rows: Int64, amounts: Int64) -> None:
        """Add amounts (int64[n, some first resources]) to what is held of rows (int64[n], each once)."""
        self.requested[rows, : amounts.shape[1]] += amounts
        self.capacity_changes.extend(rows.tolist())

    def charge_pods(self, held: Sequence[tuple[int, Amounts]], *, sign: int) -> None:
        """Do what `charge` does for many pods, each a row and what it holds, none of them a DaemonSet's."""
        rows, columns, amounts = charges_of(held)
        self.charge_each(rows, columns, sign * amounts)

    def charge_each(self, rows: Int64, columns: Int64, amounts: Int64) -> None:
        """Add amounts to what is held of columns of rows (int64[n] each), any of them more than once."""
        np.add.at(self.requested, (rows, columns), amounts)
        self.capacity_changes.extend(np.unique(rows).tolist())

    def penalise(self, row: int, level: int) -> None:
        """Note how many pods a node refused."""
        if self.penalty[row] != level:
            self.penalty[row] = level
            self.facts_changes.append(row)

    def keep_spare(self, row: int, kept: bool) -> None:
        """Note whether a node is kept free for recovery."""
        if bool(self.spare[row]) != kept:
            self.spare[row] = kept
            self.facts_changes.append(row)

    def assume_bandwidth(self, mbits: int) -> None:
        """Take nodes whose labels tell no bandwidth to have so much, -1 for an unknown one."""
        if mbits == self._bandwidth_untold:
            return
        self._bandwidth_untold = mbits
        for row in self.row_of.values():
            if not any(key in self.labels[row] for key in self.read.bandwidth):
                self.bandwidth[row] = mbits
                self.facts_changes.append(row)

    def overdrawn(self, row: int, amounts: Amounts | None = None, *, less: Amounts = ()) -> list[str]:
        """Return the names of the resources of which more is charged than the node has; of ``amounts``, where given.

        ``less`` of what is charged does not count.
        """
        over = self.requested[row] > self.allocatable[row]
        if not less and not over.any():
            return []
        for column, amount in less:
            over[column] = self.requested[row, column] - amount > self.allocatable[row, column]
        asked = None if amounts is None else {column for column, _ in amounts}
        if asked is not None and GPU_SHARE in asked:
            asked.add(GPU)  # a GPU in shares that somebody took whole
        columns = np.flatnonzero(over).tolist()
        return [self.resources.names[column] for column in columns if asked is None or column in asked]

    def widen(self) -> None:
        """Make room for resource columns that were added since."""
        missing = len(self.resources) - self.allocatable.shape[1]
        if missing > 0:
            pad = ((0, 0), (0, max(missing, 8)))
            self.allocatable = np.pad(self.allocatable, pad)
            self.requested = np.pad(self.requested, pad)
            self.daemons = np.pad(self.daemons, pad)

    # ------------------------------------------------------------ copies

    def detach(self) -> None:
        """Own every array from here on. For a shallow copy of another table, on which changes are tried."""
        for name, value in list(vars(self).items()):
            if isinstance(value, np.ndarray):
                setattr(self, name, value.copy())
        self.capacity_changes, self.facts_changes = ChangeLog(), ChangeLog()
        self._rows_by_value = {}

    def admit(self, row: int) -> None:
        """Let a row be ready and schedulable, without the taints that tell the contrary."""
        self.ready[row], self.unschedulable[row] = True, False
        taints = self.taint_sets[int(self.taint_set[row])]
        self._put_taints(row, tuple(taint for taint in taints if taint.key not in AWAY))
        self.facts_changes.append(row)
        self.capacity_changes.append(row)

    # ------------------------------------------------------------ labels as columns

    def value_id(self, value: str) -> int:
        """Return the integer that stands for a label value; equal strings, equal integers."""
        found = self._value_id.get(value)
        if found is None:
            found = self._value_id[value] = len(self.values)
            self.values.append(value)
        return found

    def known_value(self, value: str) -> int:
        """Return the integer that stands for a label value, -1 when none does yet."""
        return self._value_id.get(value, UNKNOWN)

    def labels_of(self, row: int) -> Mapping[str, str]:
        """Return all labels of one row."""
        return self.labels[row]

    def column(self, resource: str) -> int:
        """Return the column of a resource, -1 when there is none."""
        return self.resources.find(resource)

    def label_column(self, key: str) -> Int64:
        """Return the value ids of one label by row (int64[rows], -1 where absent), up to date at this moment."""
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
        """Return the rows with this value of a label, ascending (int64). Cheap when asked often for one key."""
        found = self._rows_by_value.get(key)
        if found is None or found[0] != self.facts_changes.position:
            column = self.label_column(key)
            order = np.argsort(column, kind="stable").astype(np.int64)
            found = self._rows_by_value[key] = (self.facts_changes.position, order, column[order])
        _, order, values = found
        wanted = self.known_value(value)
        if wanted == UNKNOWN:
            return order[:0]
        return order[np.searchsorted(values, wanted) : np.searchsorted(values, wanted, side="right")]

    def model_id(self, name: str) -> int:
        """Return the integer that stands for a GPU model, -1 when no node has it."""
        return self._model_id.get(name, UNKNOWN)

    # ------------------------------------------------------------ inside

    def _new_row(self, name: str) -> int:
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.row_of[name] = row
        self.names[row] = name
        self.exists[row] = True
        return row

    def _grow(self) -> None:
        old = self.rows
        for attribute in ("allocatable", "requested", "daemons"):
            setattr(self, attribute, np.pad(getattr(self, attribute), ((0, old), (0, 0))))
        for attribute in ("exists", "ready", "unschedulable", "spare", "taint_set", "reserved_bandwidth", "penalty"):
            setattr(self, attribute, np.pad(getattr(self, attribute), (0, old)))
        for attribute in ("model", "bandwidth"):
            setattr(self, attribute, np.pad(getattr(self, attribute), (0, old), constant_values=UNKNOWN))
        self.devices.grow(2 * old)
        self._no_label = np.full(2 * old, UNKNOWN, np.int64)
        self._no_label.flags.writeable = False
        for key, column in self._label_columns.items():
            self._label_columns[key] = np.pad(column, (0, old), constant_values=UNKNOWN)
        self.names += [""] * old
        self.uids += [""] * old
        self.labels += [{} for _ in range(old)]
        self.features += [frozenset()] * old
        self._facts += [()] * old
        self._free = list(range(2 * old - 1, old - 1, -1))
        # Every cache is as long as these arrays: all of them start over.
        self.facts_changes.restart()
        self.capacity_changes.restart()

    def _put_labels(self, row: int, labels: Mapping[str, str], problems: list[str]) -> None:
        self._count_labels(self.labels[row], labels)
        self.labels[row] = labels
        for key, column in self._label_columns.items():
            value = labels.get(key)
            column[row] = UNKNOWN if value is None else self.value_id(value)
        model = next((labels[key] for key in self.read.gpu_model if labels.get(key)), None)
        self.model[row] = UNKNOWN if model is None else self._intern_model(model)
        self.bandwidth[row] = self._bandwidth_untold
        told = next((key for key in self.read.bandwidth if key in labels), None)
        if told is not None:
            try:
                self.bandwidth[row] = parse_bandwidth(labels[told])
            except QuantityError as error:
                self.bandwidth[row] = UNKNOWN
                problems.append(f"label {told}: {error}; its bandwidth counts as unknown")

    def _count_labels(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        nodes_with = self._nodes_with
        for key in after.keys() - before.keys():
            nodes_with[key] += 1
        for key in before.keys() - after.keys():
            nodes_with[key] -= 1
            if not nodes_with[key]:
                del nodes_with[key]
                self._label_columns.pop(key, None)
                self._rows_by_value.pop(key, None)

    def _put_sharing(self, row: int, labels: Mapping[str, str], problems: list[str]) -> None:
        told = labels.get(GPU_SHARING, "false")
        if told not in ("true", "false"):
            problems.append(f'label {GPU_SHARING}: {told!r} is neither "true" nor "false"; its GPUs are not shared')
        self.devices.sharing[row] = told == "true"
        self.allocatable[row, GPU_SHARE] = WHOLE * self.allocatable[row, GPU] if told == "true" else 0

    def _intern_model(self, name: str) -> int:
        found = self._model_id.get(name)
        if found is None:
            found = self._model_id[name] = len(self.models)
            self.models.append(name)
        return found

    def _put_taints(self, row: int, taints: tuple[Taint, ...]) -> None:
        found = self._taint_set_id.get(taints)
        if found is None:
            found = self._taint_set_id[taints] = len(self.taint_sets)
            self.taint_sets.append(taints)
        self.taint_set[row] = found

    def _forget_taints(self) -> None:
        """Forget the sets of taints that no node has any more, once they are many: every class is compared with each.

        Autoscalers write times into taints. Tables that were copied from this one keep the lists they have.
        """
        if len(self.taint_sets) <= FEW_TAINT_SETS + 2 * len(self.row_of):
            return
        used = np.union1d(np.unique(self.taint_set), np.zeros(1, np.int64))
        self.taint_set = np.searchsorted(used, self.taint_set).astype(np.int64)
        self.taint_sets = [self.taint_sets[id_] for id_ in used.tolist()]
        self._taint_set_id = {taints: id_ for id_, taints in enumerate(self.taint_sets)}

    def _put_allocatable(self, row: int, node: Node, problems: list[str]) -> None:
        quantities = dict(node.status.allocatable or node.status.capacity)
        key = tuple(quantities.items())
        if (known := self._allocatable_rows.get(key)) is not None and len(known) == self.allocatable.shape[1]:
            self.allocatable[row] = known
            return
        for name in self.resources.offer(quantities):
            problems.append(f"allocatable {name}: nodes offer {MOST_OFFERED} other resources already; it counts as 0")
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
            if len(self._allocatable_rows) > 1024:
                self._allocatable_rows.clear()
            self._allocatable_rows[key] = allocatable.copy()
