"""What runs, as what would have to end together: a gang whole, any other pod for itself."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from topo_scheduler.scheduling.preemption.victims import NO_GANG, Candidate
from topo_scheduler.state.ledger import LedgerEntry
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.resources import GPU
from topo_scheduler.state.workloads import Workloads

AT_ONCE: Final = 400
"""Pods that are looked at between two pauses."""


@dataclass(slots=True)
class Unit:
    """Pods that end together. ``ends`` when the last is expected to, in seconds since the epoch."""

    id: str
    name: str
    gang: bool
    place: int
    """Its own in `Running.units`."""
    pods: list[Candidate] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """Its pods by their place in `Running`."""
    gpus: int = 0
    ends: float = 0.0

    @property
    def cost(self) -> tuple[int, int]:
        """Pods that end, and the GPUs that they hold."""
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
        """Return what each holds of some resources (int64[pods, columns])."""
        return np.ascontiguousarray(self.held[:, columns])

    def units_on(self, rows: npt.NDArray[np.bool_], units: npt.NDArray[np.bool_]) -> list[int]:
        """Return those of some units of which a pod is on one of some rows (both as masks)."""
        found: list[int] = np.unique(self.unit[rows[self.row] & units[self.unit]]).tolist()
        return found


_Found = tuple[Candidate, str, str, bool, float]


def running_pods(
    entries: Sequence[tuple[str, LedgerEntry]],
    columns: int,
    workloads: Workloads,
    spared: str,
    ends: Callable[[str, LedgerEntry], float],
) -> Iterator[Running | None]:
    """Collect what runs, but for the members of one workload and what never ends (DaemonSets, static pods).

    Args:
        entries: of the ledger, as of the moment of which the state was copied.
        columns: number of resources of that copy.
        workloads: gangs, of which a pod may be a member.
        spared: the workload that is left out.
        ends: tells when a pod is expected to end, in seconds since the epoch.

    Yields:
        None between two parts of the work, then what was found.
    """
    by_row: dict[int, list[_Found]] = {}
    for start in range(0, len(entries), AT_ONCE):
        for uid, entry in entries[start : start + AT_ONCE]:
            if (one := _collected(uid, entry, workloads, spared, ends)) is not None:
                by_row.setdefault(one[0].row, []).append(one)
        yield None
    units: dict[str, Unit] = {}
    pods: list[Candidate] = []
    row: list[int] = []
    unit_of: list[int] = []
    parts: list[Int64] = []
    since = 0
    for at in sorted(by_row):
        here = by_row[at]
        here.sort(key=lambda one: (one[0].occupant.namespace, one[0].occupant.name, one[0].occupant.uid))
        held = np.zeros((len(here), columns), np.int64)
        for line, (pod, id_, name, gang, end) in enumerate(here):
            unit = units.get(id_)
            if unit is None:
                unit = units[id_] = Unit(id_, name, gang, len(units))
            unit.numbers.append(len(pods))
            unit.pods.append(pod)
            for column, amount in pod.amounts:
                held[line, column] = amount
            unit.gpus += int(held[line, GPU])
            unit.ends = max(unit.ends, end)
            pods.append(pod)
            row.append(at)
            unit_of.append(unit.place)
        parts.append(held)
        if len(pods) - since >= AT_ONCE // 2:
            since = len(pods)
            yield None
    yield None
    yield Running(
        pods,
        list(units.values()),
        np.array(row, np.int64),
        np.array(unit_of, np.int64),
        np.concatenate(parts) if parts else np.zeros((0, columns), np.int64),
        np.array([unit.ends for unit in units.values()], np.float64),
    )


def _collected(
    uid: str, entry: LedgerEntry, workloads: Workloads, spared: str, ends: Callable[[str, LedgerEntry], float]
) -> _Found | None:
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
