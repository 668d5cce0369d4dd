"""Free GPUs of nodes as if some pods were gone, for searches that choose which pods are to go.

Which GPUs come free is only known if it is known which GPUs each pod of the node has. Otherwise such a node takes no
pod that requires close GPUs, unless all its GPUs are equally close: no pod goes in vain.
"""

from collections.abc import Iterable
from itertools import combinations
from math import comb
from typing import Any, Final

import numpy as np

from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.scheduling.devices.gpu_closeness import any_is_close, is_close, knows_closeness
from topo_scheduler.scheduling.devices.gpu_sets import GpuFit, GpuSets, RowFits
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.scheduling.devices.plugin_choice import predicted, set_of
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE
from topo_scheduler.state.operation_budget import charge

MAX_CLOSE_SETS: Final = 2_000
"""Sets of GPUs of one node that are listed: more than the sets of any size of 8 GPUs, and of 4 of 16."""
MAX_DEFERRED: Final = 4_096
"""Changes that wait until free GPUs are asked for: most searches never do."""
_NO_KIND: Final = -1

PodGpus = tuple[int, str, int]
"""Row, uid and number of GPUs of a pod."""


class GpuSetsOnTrial(GpuSets):
    """Free GPUs that share all but what is free with the original. It is valid until the original changes."""

    def __init__(self, original: GpuSets, nodes: NodeTable, devices: NodeDevices | None) -> None:
        """``nodes`` and ``devices``: those of the trial."""
        original.notice_tables()
        claimed = original.claimed
        if claimed is not None and devices is not None:
            claimed = claimed.on_trial(devices)
        super().__init__(nodes, original.ledger, original.hardware, claimed, original.tables, original.results)
        self._original = original
        self._begun = False
        self._gone: dict[int, dict[str, None]] = {}
        """Pods that are gone, by row."""
        self._come: dict[int, list[int]] = {}
        """Numbers of GPUs of pods that are on other nodes than in reality, by row."""
        self._deferred: list[tuple[bool, Iterable[PodGpus]]] = []
        """Pods that came (true) or left, not yet applied."""

    def __getstate__(self) -> dict[str, Any]:
        """A trial is no part of an engine's state."""
        raise TypeError("a trial can't be kept")

    def leave(self, pods: Iterable[PodGpus]) -> None:
        """Remove pods. The caller records that the rows changed."""
        self._defer(pods, come=False)

    def come(self, pods: Iterable[PodGpus]) -> None:
        """Return pods that left, or put pods on other nodes."""
        self._defer(pods, come=True)

    def _defer(self, pods: Iterable[PodGpus], *, come: bool) -> None:
        self._deferred.append((come, pods))
        if len(self._deferred) >= MAX_DEFERRED:
            self._apply_deferred()

    def _apply_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for come, pods in deferred:
            for row, uid, size in pods:
                (self._come_one if come else self._leave_one)(row, uid, size)

    def _leave_one(self, row: int, uid: str, size: int) -> None:
        if self._runs_on(row, uid):
            self._gone.setdefault(row, {})[uid] = None
        elif size in self._come.get(row, ()):
            self._come[row].remove(size)
            if not self._come[row]:
                del self._come[row]

    def _come_one(self, row: int, uid: str, size: int) -> None:
        if self._runs_on(row, uid):
            departed = self._gone.get(row, {})
            departed.pop(uid, None)
            if not departed:
                self._gone.pop(row, None)
        elif size:
            self._come.setdefault(row, []).append(size)

    def _runs_on(self, row: int, uid: str) -> bool:
        entry = self.ledger.get(uid)
        return entry is not None and entry.row == row

    def held_by(self, uid: str) -> int:
        """Return the GPUs of a pod as bits, as recorded or as its claims say; 0 without a record."""
        entry = self.ledger.get(uid)
        if entry is not None and entry.row >= 0 and self.claimed is not None and not entry.devices:
            gpus = self.hardware.of(entry.row)
            return max(0, self.claimed.held_by(uid, entry.row, gpus.count)) if gpus is not None else 0
        return set_of(sorted(set(entry.devices))) if entry is not None and self._is_recorded(uid) else 0

    def free_on(self, row: int) -> int:
        """Return the free GPUs of a row as bits."""
        return int(self.free(np.array([row], np.int64))[0])

    def close_sets(self, needs: GpuNeeds, size: int, row: int) -> list[int]:
        """Return the sets of ``size`` GPUs of a row that are as close as a pod asks; none if there are too many."""
        gpus = self.hardware.of(row)
        if gpus is None or not knows_closeness(gpus, needs) or comb(gpus.count, size) > MAX_CLOSE_SETS:
            return []
        charge(comb(gpus.count, size))
        sets = map(set_of, combinations(range(gpus.count), size))
        return [chosen for chosen in sets if is_close(gpus, needs, chosen, self.tables.of)]

    def fits(self, needs: GpuNeeds, size: int, rows: Int64, *, empty: bool = False) -> RowFits:
        """Return how many pods of ``size`` GPUs fit on rows; none where it is not known which GPUs come free."""
        row_fits = super().fits(needs, size, rows, empty=empty)
        if empty or not (self._gone or self._come):
            return row_fits
        changed = np.flatnonzero(np.isin(rows, np.array([*self._gone, *self._come], np.int64))).tolist()
        unknown = [index for index in changed if not self._is_known(needs, int(rows[index]))]
        if not unknown:
            return row_fits
        of_row = row_fits.of_row.copy()
        of_row[unknown] = len(row_fits.fits)
        return RowFits([*row_fits.fits, GpuFit(0, 0, 0)], [*row_fits.kinds, _NO_KIND], of_row)

    def _is_known(self, needs: GpuNeeds, row: int) -> bool:
        """Return whether the free GPUs of a row are known as well as a pod needs to know them.

        It is predicted which ones pods get that come, except where they are chosen by what each pod asks.
        """
        gpus, obeys = self.hardware.of(row), self.obeys_index(row)
        recorded = row not in self._gone or all(self._is_recorded(uid) for uid in super()._pods_on(row))
        if recorded and not (obeys and row in self._come):
            return True
        return gpus is not None and (recorded or not obeys) and any_is_close(gpus, needs, self.tables.of)

    def _is_recorded(self, uid: str) -> bool:
        entry = self.ledger.get(uid)
        if entry is None or not (entry.amount(GPU) or entry.amount(GPU_SHARE)):
            return True
        if self.claimed is not None and self.claimed.has_requests_of(uid):
            return True  # its claims say which
        return len(set(entry.devices)) == (entry.amount(GPU) or 1)

    def _notice_changes(self) -> None:
        self._apply_deferred()
        if not self._begun:
            self._begun = True
            self._free = self._original.all_free()
            self._position = 0  # of the changes of the trial
        super()._notice_changes()

    def _pods_on(self, row: int) -> list[str]:
        departed = self._gone.get(row, {})
        return [uid for uid in super()._pods_on(row) if uid not in departed]

    def _count_free(self, row: int) -> int:
        gpus, free = self.hardware.of(row), self._count_without_gone(row)
        if gpus is None:
            return free
        for size in self._come.get(row, ()):
            free &= ~max(0, predicted(gpus.hardware, gpus.vendor, free, min(size, free.bit_count())))
        return free

    def _count_without_gone(self, row: int) -> int:
        gpus = self.hardware.of(row)
        if gpus is None or not self._nodes.devices.count[row] or row not in self._gone:
            return super()._count_free(row)
        claimed = self.claimed.in_use(row, gpus.count) if self.claimed is not None else 0
        if claimed < 0:
            return 0
        entries = [entry for uid in self._pods_on(row) if (entry := self.ledger.get(uid)) is not None]
        held = {index for entry in entries for index in entry.devices}
        return sum(1 << index for index in range(gpus.count) if index not in held) & ~claimed
