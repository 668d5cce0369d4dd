"""The running pods, grouped into units that would have to end together: a whole gang, or a single pod."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from topo_scheduler.scheduling.preemption.victims import NO_GANG, Candidate
from topo_scheduler.state.ledger.ledger import LedgerEntry
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.workloads import Workloads

PODS_PER_PART: Final = 400
"""Pods that one part of the work covers, between two pauses."""


@dataclass(slots=True)
class Unit:
    """Pods that end together. ``ends``: the expected end of the last pod, in seconds since the epoch."""

    id: str
    name: str
    gang: bool
    place: int
    """Index of this unit in `Running.units`."""
    pods: list[Candidate] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """Indices of its pods in `Running.pods`."""
    gpus: int = 0
    ends: float = 0.0

    @property
    def cost(self) -> tuple[int, int]:
        """Number of pods that end, and of the GPUs that they hold."""
        return len(self.pods), self.gpus


@dataclass(frozen=True, slots=True)
class Running:
    """All pods that could end, in order of row and name.

    ``row`` and ``unit`` int64[pods]; ``held`` int64[pods, resources]; ``ends`` float64[units], seconds since the epoch.
    """

    pods: Sequence[Candidate]
    units: Sequence[Unit]
    row: Int64
    unit: Int64
    held: Int64
    ends: npt.NDArray[np.float64]

    def amounts(self, columns: Int64) -> Int64:
        """Return the amounts that each pod holds of the resources in these columns (int64[pods, columns])."""
        return np.ascontiguousarray(self.held[:, columns])

    def cost(self, units: Iterable[int]) -> tuple[int, int]:
        """Return the cost of ending the units: pods, then GPUs."""
        costs = [self.units[unit].cost for unit in units]
        return sum(pods for pods, _ in costs), sum(gpus for _, gpus in costs)

    def units_on(self, rows: npt.NDArray[np.bool_], units: npt.NDArray[np.bool_]) -> list[int]:
        """Return the numbers of the units that have a pod on one of the rows. Both arguments are masks."""
        numbers: list[int] = np.unique(self.unit[rows[self.row] & units[self.unit]]).tolist()
        return numbers


_CollectedPod = tuple[Candidate, str, str, bool, float]


def running_pods(
    entries: Sequence[tuple[str, LedgerEntry]],
    columns: int,
    workloads: Workloads,
    spared: str,
    ends: Callable[[str, LedgerEntry], float],
) -> Iterator[Running | None]:
    """Collect the running pods, without the members of one workload and pods that never end (DaemonSet, static).

    Args:
        entries: entries of the ledger at the time at which the state was copied.
        columns: number of resources of that copy.
        workloads: the workloads of the engine, to find the gang of a pod.
        spared: ID of the workload that is left out.
        ends: returns the expected end of a pod, in seconds since the epoch.

    Yields:
        None between two parts of the work, then the result.
    """
    by_row: dict[int, list[_CollectedPod]] = {}
    for start in range(0, len(entries), PODS_PER_PART):
        for uid, entry in entries[start : start + PODS_PER_PART]:
            if (collected := _collected(uid, entry, workloads, spared, ends)) is not None:
                by_row.setdefault(collected[0].row, []).append(collected)
        yield None
    units: dict[str, Unit] = {}
    pods: list[Candidate] = []
    pod_rows: list[int] = []
    unit_numbers: list[int] = []
    parts: list[Int64] = []
    paused_at = 0
    for row in sorted(by_row):
        on_row = by_row[row]
        on_row.sort(
            key=lambda collected: (
                collected[0].occupant.namespace,
                collected[0].occupant.name,
                collected[0].occupant.uid,
            )
        )
        held = np.zeros((len(on_row), columns), np.int64)
        for index, (pod, id_, name, gang, end) in enumerate(on_row):
            unit = units.get(id_)
            if unit is None:
                unit = units[id_] = Unit(id_, name, gang, len(units))
            unit.numbers.append(len(pods))
            unit.pods.append(pod)
            for column, amount in pod.amounts:
                held[index, column] = amount
            unit.gpus += int(held[index, GPU])
            unit.ends = max(unit.ends, end)
            pods.append(pod)
            pod_rows.append(row)
            unit_numbers.append(unit.place)
        parts.append(held)
        if len(pods) - paused_at >= PODS_PER_PART // 2:
            paused_at = len(pods)
            yield None
    yield None
    yield Running(
        pods,
        list(units.values()),
        np.array(pod_rows, np.int64),
        np.array(unit_numbers, np.int64),
        np.concatenate(parts) if parts else np.zeros((0, columns), np.int64),
        np.array([unit.ends for unit in units.values()], np.float64),
    )


def _collected(
    uid: str, entry: LedgerEntry, workloads: Workloads, spared: str, ends: Callable[[str, LedgerEntry], float]
) -> _CollectedPod | None:
    occupant = entry.occupant
    if occupant is None or occupant.fixed or entry.row < 0:
        return None
    pod = Candidate(occupant, entry.row, entry.amounts, entry.profile, 0, NO_GANG, -1)
    of_pod = workloads.of_pod(uid)
    if of_pod is not None and of_pod[0].id == spared:
        return None
    if of_pod is not None and of_pod[0].gang:
        return pod, of_pod[0].id, f"{of_pod[0].namespace}/{of_pod[0].name}", True, ends(uid, entry)
    return pod, uid, occupant.key, False, ends(uid, entry)
