"""The tables of all shapes of nodes in use, and which ones are still to be computed.

Tables depend on the hardware and on the *weights*: how often the pods that now run in this cluster have each number of
GPUs. Weights follow the pods rarely: see `MOVED_THOUSANDTHS`.

Tables of 16 GPUs take 0.1 s, and their kernels take seconds to compile. So a daemon computes tables in a thread
(`deferred`), and `ApproximateTables` decide until `put` is called. That call is recorded; what is wanted is not, as no
decision depends on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from topo_scheduler.scheduling.devices.approximate_tables import ApproximateTables
from topo_scheduler.state.devices.hardware import MAX_GPUS, NodeHardware

if TYPE_CHECKING:
    from topo_scheduler.scheduling.devices.gpu_closeness import Tables
    from topo_scheduler.scheduling.devices.gpu_tables import GpuTables
    from topo_scheduler.scheduling.devices.hardware_table import HardwareTable
    from topo_scheduler.state.ledger.ledger import Ledger
    from topo_scheduler.state.nodes.node_table import NodeTable

MAX_LARGE_TABLES: Final = 16
"""Tables of shapes with more than `SMALL_GPUS` GPUs that are kept: each takes 5 MB with 16 GPUs."""
MAX_SMALL_TABLES: Final = 256
"""Tables of other shapes that are kept: each takes 11 kB with 8 GPUs."""
SMALL_GPUS: Final = 8
SUPPOSED_SIZES: Final = (2, 4, 8, 16)
SUPPOSED_PODS: Final = 4
"""Pods of each of `SUPPOSED_SIZES` that count in addition to those that run, so that an empty cluster has weights."""
WEIGHT_UNITS: Final = 100
"""Sum of all weights, up to rounding."""
MIN_CHANGED_PODS: Final = 16
"""Weights are compared with the pods after as many pods came or went."""
MOVED_THOUSANDTHS: Final = 200
"""Weights are replaced if more than this share of the pods has another number of GPUs than the weights say."""

Weights = tuple[int, ...]


class TableRequest(NamedTuple):
    """Tables to compute: of a kind of hardware, by its number in the `HardwareTable`, for these weights."""

    kind: int
    weights: Weights


@dataclass(slots=True)
class _KnownTables:
    """Tables that decide. None in ``tables``: they are to be computed again, after a checkpoint was read."""

    weights: Weights
    tables: "GpuTables | None"


def weights_of(pods: Mapping[int, int]) -> Weights:
    """Return how often pods of each number of GPUs come, from 0 on; single GPUs have no links, and no weight.

    Args:
        pods: number of running pods by their number of GPUs.
    """
    counts = _counts(pods)
    total = sum(counts)
    return tuple((2 * WEIGHT_UNITS * count + total) // (2 * total) for count in counts)


def _counts(pods: Mapping[int, int]) -> list[int]:
    counts = [max(0, pods.get(size, 0)) if size > 1 else 0 for size in range(MAX_GPUS + 1)]
    for size in SUPPOSED_SIZES:
        counts[size] += SUPPOSED_PODS
    return counts


def _moved_thousandths(weights: Weights, pods: Mapping[int, int]) -> int:
    """Return which share of the pods has other numbers of GPUs than the weights say."""
    counts = _counts(pods)
    total, sum_of_weights = sum(counts), sum(weights)
    apart = sum(abs(count * sum_of_weights - weight * total) for count, weight in zip(counts, weights, strict=True))
    return 1000 * apart // (2 * total * sum_of_weights)


class ShapeTables:
    """Tables by hardware."""

    def __init__(self, nodes: "NodeTable", hardware: "HardwareTable", ledger: "Ledger") -> None:
        """``ledger``: counts running pods by their number of GPUs."""
        self._nodes = nodes
        self._hardware = hardware
        self._ledger = ledger
        self.weights = weights_of(ledger.sizes)
        self.due_at = ledger.changes + MIN_CHANGED_PODS
        """Changes of the ledger after which `settle` has something to do."""
        self._deferred = False
        """Whether tables are computed elsewhere, and arrive by `put`."""
        self.version = 0
        """Counts changes of tables that decide."""
        self._known: dict[NodeHardware, _KnownTables] = {}
        self._approximate: dict[NodeHardware, ApproximateTables] = {}
        self._wanted: dict[NodeHardware, None] = {}
        self._in_flight: dict[NodeHardware, Weights] = {}
        self._computed: dict[TableRequest, GpuTables] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed again, and what no decision depends on."""
        known = {hardware: _KnownTables(entry.weights, None) for hardware, entry in self._known.items()}
        nothing: dict[str, Any] = {name: {} for name in ("_approximate", "_wanted", "_in_flight", "_computed")}
        return {**self.__dict__, **nothing, "_known": known}

    def defer(self) -> None:
        """Compute no tables from here on: `take_wanted` names them, and they arrive by `put`."""
        self._deferred = True

    def of(self, hardware: NodeHardware) -> "Tables":
        """Return what decides about the GPUs of nodes with this hardware."""
        known = self._known.get(hardware)
        if known is None and self._deferred:
            if hardware not in self._in_flight and len(self._wanted) < MAX_SMALL_TABLES and self._has_room(hardware):
                self._wanted[hardware] = None
            return self._approximation(hardware)
        if known is None:
            if not self._has_room(hardware):
                del self._known[next(other for other in self._known if _is_large(other) == _is_large(hardware))]
            known = self._known[hardware] = _KnownTables(self.weights, None)
        if known.tables is None:
            known.tables = compute(hardware, known.weights)
        return known.tables

    def decides(self, hardware: NodeHardware) -> bool:
        """Return whether tables decide, and no approximation."""
        return not self._deferred or hardware in self._known

    def _approximation(self, hardware: NodeHardware) -> ApproximateTables:
        if (tables := self._approximate.get(hardware)) is None:
            if len(self._approximate) >= MAX_SMALL_TABLES:
                self._approximate.clear()
            tables = self._approximate[hardware] = ApproximateTables(hardware)
        return tables

    def settle(self) -> bool:
        """Let the weights follow the pods; return whether tables changed."""
        if self._ledger.changes < self.due_at:
            return False
        self.due_at = self._ledger.changes + MIN_CHANGED_PODS
        if len(self._known) >= MAX_LARGE_TABLES:
            self._drop_unused()
        if _moved_thousandths(self.weights, self._ledger.sizes) <= MOVED_THOUSANDTHS:
            return False
        self.weights = weights_of(self._ledger.sizes)
        if self._deferred:
            self._wanted.update(dict.fromkeys(self._known))  # the former ones decide until then
            return False
        self._known.clear()
        self.version += 1
        return True

    # ------------------------------------------------------------ tables that are computed elsewhere

    def take_wanted(self) -> list[TableRequest]:
        """Return tables to compute now; each is returned once. No decision depends on this."""
        if not self._wanted:
            return []
        wanted, self._wanted = self._wanted, {}
        kinds = {gpus.hardware: kind for kind, gpus in self._hardware.kinds.items()}
        self._in_flight = {hardware: weights for hardware, weights in self._in_flight.items() if hardware in kinds}
        requests = []
        for hardware in wanted:
            if hardware in kinds and self._in_flight.get(hardware) != self.weights:
                self._in_flight[hardware] = self.weights
                requests.append(TableRequest(kinds[hardware], self.weights))
        return requests

    def hardware_of(self, request: TableRequest) -> NodeHardware | None:
        """Return the hardware of a request; None if no node has it any more."""
        gpus = self._hardware.kinds.get(request.kind)
        return gpus.hardware if gpus is not None else None

    def computed(self, request: TableRequest, tables: "GpuTables") -> None:
        """Keep tables for the `put` that follows, which would compute them otherwise."""
        self._computed = {request: tables}

    def put(self, request: TableRequest) -> bool:
        """Let tables decide from now on; return whether they do.

        They do not if no node has such hardware any more, or if as many tables as allowed are in use.
        """
        hardware, tables = self.hardware_of(request), self._computed.pop(request, None)
        if hardware is None:
            return False
        self._in_flight.pop(hardware, None)
        if not self._has_room(hardware):
            self._drop_unused()
            if not self._has_room(hardware):
                return False
        self._known[hardware] = _KnownTables(request.weights, tables or compute(hardware, request.weights))
        self._approximate.pop(hardware, None)
        self.version += 1
        return True

    # ------------------------------------------------------------ room

    def _has_room(self, hardware: NodeHardware) -> bool:
        is_large = _is_large(hardware)
        alike = sum(1 for other in self._known if _is_large(other) == is_large)
        return hardware in self._known or alike < (MAX_LARGE_TABLES if is_large else MAX_SMALL_TABLES)

    def _drop_unused(self) -> None:
        """Drop tables that no node needs any more. Those in use never make room: they would drop each other in turn."""
        used = set(np.unique(self._nodes.gpus.kind).tolist())
        kept = {gpus.hardware for kind, gpus in self._hardware.kinds.items() if kind in used}
        self._known = {hardware: entry for hardware, entry in self._known.items() if hardware in kept}


def _is_large(hardware: NodeHardware) -> bool:
    return len(hardware.gpus) > SMALL_GPUS


def compute(hardware: NodeHardware, weights: Weights) -> "GpuTables":
    """Compute tables. The first call imports their kernels, and may compile them."""
    from topo_scheduler.scheduling.devices.gpu_tables import GpuTables, shape_of  # few clusters need its kernels

    return GpuTables(shape_of(hardware), weights)
