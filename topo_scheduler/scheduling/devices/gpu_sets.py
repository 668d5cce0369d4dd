"""Which GPUs of a node are free, and how many pods with requests on how close their GPUs are fit there.

On nodes whose GPUs are shared by index, the free ones are known. On all others the device plugin chooses. The GPUs of
a pod there are those that this scheduler predicted when it placed the pod. Pods without such a record get what the
plugin is predicted to choose. The free GPUs follow from the pods on the node, in whatever order they arrived.
"""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.scheduling.devices.claimed_sets import ClaimedSets
from topo_scheduler.scheduling.devices.device_score import topology_score
from topo_scheduler.scheduling.devices.gpu_closeness import (
    TablesOf,
    best_close,
    closeness_text,
    is_close,
    knows_closeness,
    most_close,
    name_of_links,
    too_few_close,
)
from topo_scheduler.scheduling.devices.hardware_table import HardwareTable
from topo_scheduler.scheduling.devices.plugin_choice import members_of, predicted, prediction_operations, set_of
from topo_scheduler.scheduling.devices.shape_tables import ShapeTables
from topo_scheduler.state.devices.hardware import MAX_GPUS, NodeHardware
from topo_scheduler.state.devices.node_hardware import NodeGpus
from topo_scheduler.state.ledger.ledger import Ledger
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.operation_budget import charge, charge_rows

MAX_FITS: Final = 16_384
"""Results that are kept: how many pods of a kind fit on a set of free GPUs."""
MAX_TOPOLOGIES: Final = 16_384
"""Scores of sets of GPUs that are kept."""
OPERATIONS_PER_FIT: Final = 4
_NO_KIND: Final = -1


@dataclass(frozen=True, slots=True)
class GpuFit:
    """Pods of a kind that fit on the free GPUs of a node.

    Attributes:
        pods: how many.
        free: free GPUs.
        most: how many of them are close, at most.
        first: GPUs of the first such pod as bits; -1 if there is none.
    """

    pods: int
    free: int
    most: int
    first: int = -1


class RowFits(NamedTuple):
    """Fits of rows: those that differ, and the number of the one of each row (int64[n]); ``kinds`` are theirs."""

    fits: list[GpuFit]
    kinds: list[int]
    of_row: Int64


@dataclass(slots=True)
class SetResults:
    """What was computed for sets of GPUs, with tables of a version."""

    version: int = 0
    fits: dict[tuple[int, GpuNeeds, int, int, bool], GpuFit] = field(default_factory=dict)
    topologies: dict[tuple[int, int], int] = field(default_factory=dict)


class GpuSets:
    """Free GPUs of nodes, by index."""

    STALE: Final = -1
    """Stands for free GPUs that are to be counted again."""

    def __init__(
        self,
        nodes: NodeTable,
        ledger: Ledger,
        hardware: HardwareTable,
        claimed: ClaimedSets | None = None,
        tables: ShapeTables | None = None,
        results: SetResults | None = None,
    ) -> None:
        """Begin with GPUs that are all free.

        Args:
            nodes: the nodes.
            ledger: the pods that are charged to them.
            hardware: the GPUs of each node.
            claimed: GPUs of ResourceClaims.
            tables: those of an original, for a trial; by default new ones.
            results: likewise.
        """
        self._nodes = nodes
        self.ledger = ledger
        self.hardware = hardware
        self.claimed = claimed
        self.tables = tables or ShapeTables(nodes, hardware, ledger)
        self.results = results or SetResults()
        self._free: Int64 = np.full(0, self.STALE, np.int64)
        self._position = -1

    def __getstate__(self) -> dict[str, Any]:
        """Leave out results: they are computed again."""
        nothing = np.full(0, self.STALE, np.int64)
        return {**self.__dict__, "_free": nothing, "_position": -1, "results": SetResults()}

    # ------------------------------------------------------------ free GPUs

    def free(self, rows: Int64) -> Int64:
        """Return the free GPUs of rows as bits (int64[n]); 0 where nothing is known of the GPUs."""
        self._notice_changes()
        for row in rows[self._free[rows] == self.STALE].tolist():
            self._free[row] = self._count_free(row)
        return self._free[rows]

    def all_free(self) -> Int64:
        """Return a copy of what `free` knows of all rows; `STALE` where that is to be counted."""
        self._notice_changes()
        return self._free.copy()

    def _notice_changes(self) -> None:
        changes = self._nodes.capacity_changes
        if changes.position == self._position:
            return
        changed = changes.since(self._position) if self._position >= 0 else None
        self._position = changes.position
        if changed is None or len(self._free) != self._nodes.rows:
            self._free = np.full(self._nodes.rows, self.STALE, np.int64)
        else:
            self._free[changed] = self.STALE

    def obeys_index(self, row: int) -> bool:
        """Return whether the GPUs of a row are given by index: then they are chosen, and not only predicted."""
        return bool(self._nodes.devices.count[row]) or self._nodes.has_backed_gpus(row)

    def described(self, row: int) -> NodeGpus | None:
        """Return the GPUs of a row; None if they are not known, or if the node has replicas of them."""
        gpus = self.hardware.of(row)
        return gpus if gpus is not None and int(self._nodes.allocatable[row, GPU]) <= gpus.count else None

    def version(self, row: int) -> tuple[int, int]:
        """Return a value that changes with what decides how close GPUs of a row are."""
        return int(self._nodes.gpus.kind[row]), self.tables.version

    def is_uneven(self, row: int) -> bool:
        """Return whether some GPUs of a row have better links than others."""
        gpus = self.hardware.kinds.get(int(self._nodes.gpus.kind[row]))
        return gpus is not None and bool(gpus.hardware.links) and gpus.uneven

    def _count_free(self, row: int) -> int:
        gpus, devices = self.hardware.of(row), self._nodes.devices
        if gpus is None:
            return 0
        claimed = self.claimed.in_use(row, gpus.count) if self.claimed is not None else 0
        if claimed < 0:
            return 0
        if count := int(devices.count[row]):
            thousandths = devices.free[row, :count].tolist()
            return (
                set_of([index for index, free in enumerate(thousandths) if free == WHOLE_GPU])
                & gpus.all_gpus
                & ~claimed
            )
        free, unrecorded = gpus.all_gpus & ~claimed, []
        for uid in self._pods_on(row):
            entry = self.ledger.get(uid)
            size = entry.amount(GPU) if entry is not None else 0
            if entry is None or not size or (self.claimed is not None and self.claimed.has_requests_of(uid)):
                continue
            chosen = set_of(sorted(set(entry.devices))) if len(entry.devices) == size else 0
            if chosen.bit_count() == size and not chosen & ~free:
                free &= ~chosen
            else:
                unrecorded.append(size)
        for size in unrecorded:
            free &= ~max(0, predicted(gpus.hardware, gpus.vendor, free, min(size, free.bit_count())))
        return free

    def _pods_on(self, row: int) -> list[str]:
        """Return the uids of the pods on a row, in order."""
        return sorted(self.ledger.on_node(self._nodes.names[row]))

    # ------------------------------------------------------------ fits

    def fits(self, needs: GpuNeeds, size: int, rows: Int64, *, empty: bool = False) -> RowFits:
        """Return how many pods of ``size`` GPUs fit on rows; with ``empty``, if all GPUs were free."""
        nodes = self._nodes
        charge_rows(len(rows), 4)
        self.notice_tables()
        kinds, kind_of_row = np.unique(nodes.gpus.kind[rows], return_inverse=True)
        described = [self.hardware.kinds.get(kind) for kind in kinds.tolist()]
        counts = np.array([gpus.count if gpus is not None else 0 for gpus in described], np.int64)[kind_of_row]
        every = np.array([gpus.all_gpus if gpus is not None else 0 for gpus in described], np.int64)[kind_of_row]
        free = every if empty else self.free(rows)
        # A node with more GPUs has replicas of them, or the description is of another machine.
        usable = nodes.allocatable[rows, GPU] <= counts
        exact = nodes.devices.count[rows] > 0
        if nodes.backed_columns:
            exact |= np.array([nodes.has_backed_gpus(row) for row in rows.tolist()], np.bool_)
        keys = (((kind_of_row * 2 + usable) * 2 + exact) << MAX_GPUS) | free
        _, first_rows, of_row = np.unique(keys, return_index=True, return_inverse=True)
        fits, kinds_of_fits = [], []
        for index in first_rows.tolist():
            kind = int(kinds[kind_of_row[index]]) if usable[index] else _NO_KIND
            fits.append(self._fit(kind, needs, size, int(free[index]), exact=bool(exact[index])))
            kinds_of_fits.append(kind)
        return RowFits(fits, kinds_of_fits, of_row.astype(np.int64))

    def notice_tables(self) -> None:
        """Drop results from tables that no longer decide."""
        if self.results.version != self.tables.version:
            self.results = SetResults(self.tables.version)

    def rows_with(self, hardware: NodeHardware) -> Int64:
        """Return the rows of nodes with some hardware."""
        kinds = [kind for kind, gpus in self.hardware.kinds.items() if gpus.hardware == hardware]
        return np.flatnonzero(np.isin(self._nodes.gpus.kind, np.array(kinds, np.int64))).astype(np.int64)

    def rows_by_index(self) -> Int64:
        """Return the rows of nodes whose GPUs are chosen, and not only predicted."""
        return np.flatnonzero(self._nodes.devices.count).astype(np.int64)

    def _fit(self, kind: int, needs: GpuNeeds, size: int, free: int, *, exact: bool) -> GpuFit:
        charge(OPERATIONS_PER_FIT + (0 if exact else prediction_operations(free, size)))
        gpus = self.hardware.kinds.get(kind)
        if gpus is None:
            return GpuFit(0, free.bit_count(), 0)
        key = kind, needs, size, free, exact
        fit = self.results.fits.get(key)
        if fit is None:
            if len(self.results.fits) >= MAX_FITS:
                self.results.fits.clear()
            fit = self.results.fits[key] = _fit(gpus, needs, size, free, self.tables.of, exact=exact)
        return fit

    def choose(self, needs: GpuNeeds | None, size: int, row: int, taken: int, *, exact: bool | None = None) -> int:
        """Return the GPUs that a pod gets, or is predicted to get, as bits; -1 if they are not as it asks.

        Args:
            needs: what it asks.
            size: number of its GPUs.
            row: its node.
            taken: GPUs that other pods of the same decision get there, and those that the pod can't have.
            exact: whether the pod gets what is chosen; by default, whether the node gives GPUs by index.
        """
        gpus = self.described(row)
        if gpus is None:
            return -1
        free = int(self.free(np.array([row], np.int64))[0]) & ~taken
        if needs is None:
            return predicted(gpus.hardware, gpus.vendor, free, size)
        exact = self.obeys_index(row) if exact is None else exact
        chosen = self._fit(int(self._nodes.gpus.kind[row]), needs, size, free, exact=exact).first
        if chosen <= 0 or not exact or not gpus.uneven:
            return chosen
        running = [*self._running(row), *([taken] if taken else [])]  # pods of one decision mostly end together
        return self.tables.of(gpus.hardware).choose_beside(
            free, chosen, running, lambda other: not needs.required or is_close(gpus, needs, other, self.tables.of)
        )

    def _running(self, row: int) -> list[int]:
        """Return the GPUs of each pod on a row that has whole ones, or has them by claims."""
        running = []
        for uid in self._pods_on(row):
            entry = self.ledger.get(uid)
            if entry is not None and entry.amount(GPU) and len(set(entry.devices)) == entry.amount(GPU):
                running.append(set_of(sorted(set(entry.devices))))
            elif self.claimed is not None and (gpus := self.hardware.of(row)) is not None:
                running.append(max(0, self.claimed.held_by(uid, row, gpus.count)))
        return [gpus for gpus in running if gpus]

    def topologies(self, needs: GpuNeeds, size: int, rows: Int64) -> Int64:
        """Return how close the GPUs are that a pod gets on rows: 0 to 100, 0 if not as it requires (int64[n])."""
        row_fits = self.fits(needs, size, rows)
        scores = [self._topology(kind, fit.first) for fit, kind in zip(row_fits.fits, row_fits.kinds, strict=True)]
        return np.array(scores, np.int64)[row_fits.of_row] if scores else np.zeros(0, np.int64)

    def _topology(self, kind: int, chosen: int) -> int:
        if chosen < 0:
            return 0
        score = self.results.topologies.get((kind, chosen))
        if score is None:
            if len(self.results.topologies) >= MAX_TOPOLOGIES:
                self.results.topologies.clear()
            score = self.results.topologies[kind, chosen] = topology_score(
                self.hardware.kinds[kind], chosen, self.tables.of
            )
        return score

    def shortages(self, needs: GpuNeeds, size: int, rows: Int64) -> list[str]:
        """Return why the free GPUs of each row are not as a pod asks; empty if they are, or if too few are free.

        The text has no name of the node, so that nodes with the same reason are counted together.
        """
        row_fits = self.fits(needs, size, rows)
        texts = [
            self._shortage(needs, size, kind, fit) for fit, kind in zip(row_fits.fits, row_fits.kinds, strict=True)
        ]
        return [texts[index] for index in row_fits.of_row.tolist()]

    def _shortage(self, needs: GpuNeeds, size: int, kind: int, fit: GpuFit) -> str:
        gpus = self.hardware.kinds.get(kind)
        text = name_of_links(gpus.vendor if gpus is not None else "", closeness_text(needs))
        if gpus is None or not knows_closeness(gpus, needs):
            return f"it is not known which are {text}"
        if fit.pods or fit.free < size:
            return ""
        if needs.bandwidth and not self.tables.decides(gpus.hardware):
            return "the bandwidth of rings over its GPUs is not computed yet"
        if fit.most >= size:
            return f"{fit.free} free GPUs, but the device plugin would not choose {size} that are {text}"
        return too_few_close(fit.free, fit.most, text)


def _fit(gpus: NodeGpus, needs: GpuNeeds, size: int, free: int, tables: TablesOf, *, exact: bool) -> GpuFit:
    if not knows_closeness(gpus, needs):
        first = -1 if needs.required else predicted(gpus.hardware, gpus.vendor, free, size)
        return GpuFit(0, free.bit_count(), 0, first)
    pods, left, first = 0, free, -1
    while (chosen := _choose(gpus, needs, size, left, tables, exact=exact)) > 0:
        first = chosen if first < 0 else first
        left &= ~chosen
        pods += 1
    return GpuFit(pods, free.bit_count(), most_close(gpus, needs, free, tables), first)


def _choose(gpus: NodeGpus, needs: GpuNeeds, size: int, free: int, tables: TablesOf, *, exact: bool) -> int:
    if exact:
        close = best_close(gpus, needs, free, size, tables)
        return (
            close
            if close >= 0 or needs.required
            else set_of(members_of(free)[:size])
            if free.bit_count() >= size
            else -1
        )
    chosen = predicted(gpus.hardware, gpus.vendor, free, size)
    return chosen if chosen < 0 or not needs.required or is_close(gpus, needs, chosen, tables) else -1


def indexes_of(chosen: int) -> tuple[int, ...]:
    """Return the indexes of GPUs, none for -1."""
    return members_of(chosen) if chosen > 0 else ()
