"""From failed nodes to Migrations: one for each workload that has pods there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec
from topo_scheduler.recovery.barrier import failure_of
from topo_scheduler.recovery.detection import DomainFailure
from topo_scheduler.recovery.instructions import CreateMigration, Instruction, LearnPods, Warn, WriteOutcome
from topo_scheduler.recovery.naming import name_for
from topo_scheduler.recovery.seating import MovingPod, leaver
from topo_scheduler.recovery.tracked import stamp
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.state.workloads import Stage

RETRY: Final = 2.0
RETRY_MOST: Final = 300.0
BELIEVED: Final = 4
"""Refusals by RBAC in a row until that is told: a server that has just started refuses everybody for a moment."""


@dataclass(slots=True)
class _MigrationToCreate:
    """A Migration that is to be created. ``until`` when that may be tried again; ``taken`` whether its name was."""

    instruction: CreateMigration
    flying: bool = False
    times: int = 0
    until: float = 0.0
    taken: bool = False


@dataclass(slots=True)
class Healing:
    """Failures that have no Migrations yet.

    ``moves_pod`` tells whether a pod has one already, by uid; ``fresh_name`` returns a name that no finished one has,
    by namespace and the name wanted.
    """

    engine: Engine
    epoch: float
    moves_pod: Callable[[str], bool]
    fresh_name: Callable[[str, str], str]
    _failures: list[DomainFailure] = field(default_factory=list)
    _binding: list[DomainFailure] = field(default_factory=list)
    """Failures of nodes onto which pods are still being bound."""
    _awaited: set[str] = field(default_factory=set)
    _learned: set[str] = field(default_factory=set)
    _wanted: dict[tuple[str, str], _MigrationToCreate] = field(default_factory=dict)

    def failed(self, failures: Sequence[DomainFailure]) -> None:
        """Nodes failed."""
        self._failures += failures

    def learned(self, uids: Sequence[str]) -> None:
        """Pods were told to the engine, or are gone."""
        self._learned.update(self._awaited.intersection(uids))
        self._awaited.difference_update(uids)

    def created(self, namespace: str, name: str, outcome: WriteOutcome, message: str, now: float) -> list[Instruction]:
        """Take over how the creation of a Migration ended."""
        wanted = self._wanted.get((namespace, name))
        if wanted is None:
            return []
        wanted.flying = False
        if outcome is WriteOutcome.WRITTEN:
            del self._wanted[namespace, name]
            return []
        wanted.times += 1
        if outcome is WriteOutcome.STALE:  # it was created by an attempt without an answer, or by someone else
            wanted.until, wanted.taken = now + RETRY, True
            return []
        forbidden = outcome is WriteOutcome.FORBIDDEN
        wanted.until = now + min(RETRY_MOST, RETRY * 2 ** min(wanted.times - 1, 8))
        told = wanted.times == (BELIEVED if forbidden else 1)
        return [Warn(f"Migration {namespace}/{name} is not created: {message}")] if told else []

    def step(self, now: float) -> list[Instruction]:
        """Return the Migrations to create, and the pods that must be read before."""
        out: list[Instruction] = []
        self._failures += [one for one in self._binding if not any(map(self._binds, one.nodes))]
        self._binding = [one for one in self._binding if any(map(self._binds, one.nodes))]
        if self._failures and not self._awaited:
            unknown = self._unknown()
            if unknown:
                self._awaited = {pod.uid for pod in unknown}
                out.append(LearnPods(unknown))
            else:
                out += self._make(now)
        for wanted in [one for one in self._wanted.values() if one.taken and now >= one.until]:
            self._rename(wanted)
        for wanted in self._wanted.values():
            if not wanted.flying and now >= wanted.until:
                wanted.flying = True
                out.append(wanted.instruction)
        return out

    def coming(self) -> list[CreateMigration]:
        """Return the Migrations that are being created, but for those that were refused before."""
        return [wanted.instruction for wanted in self._wanted.values() if wanted.flying and not wanted.times]

    def next_due(self) -> float | None:
        """Return when `step` must be called next."""
        return min((one.until for one in self._wanted.values() if not one.flying), default=None)

    # ------------------------------------------------------------ inside

    def _rename(self, wanted: _MigrationToCreate) -> None:
        """Give a Migration another name where someone else's has it; drop it where that one moves its pods."""
        one = wanted.instruction
        del self._wanted[one.namespace, one.name]
        left = [pod for pod in one.spec.pods if self.engine.world.ledger.get(pod.uid) is not None]
        if left and not any(self.moves_pod(pod.uid) for pod in left):
            name = self.fresh_name(one.namespace, f"{one.name}-{wanted.times + 1}")
            wanted.instruction, wanted.taken = replace(one, name=name), False
            self._wanted[one.namespace, name] = wanted

    def _binds(self, node: str) -> bool:
        """Whether the bind of a pod to a node is on its way."""
        found = map(self.engine.workloads.of_pod, self.engine.world.ledger.on_node(node))
        return any(one is not None and one[1].stage is Stage.ASSUMED for one in found)

    def _unknown(self) -> tuple[PodRef, ...]:
        """Return the pods of failed nodes of which too little is known to plan with them."""
        ledger = self.engine.world.ledger
        found = []
        for failure in self._failures:
            for uid in (uid for node in failure.nodes for uid in sorted(ledger.on_node(node))):
                entry, one = ledger.get(uid), leaver(self.engine, uid)
                occupant = entry.occupant if entry is not None else None
                known = one is not None and bool(one.member.cls.amounts)
                if occupant is not None and not occupant.fixed and not known and uid not in self._learned:
                    found.append(PodRef(occupant.namespace, occupant.name, uid))
        return tuple(found)

    def _make(self, now: float) -> list[Instruction]:
        """Make Migrations of all failures there are."""
        failures, self._failures = self._failures, []
        self._learned.clear()
        by_workload: dict[tuple[str, str], list[tuple[DomainFailure, MovingPod]]] = {}
        wanted = {pod.uid for one in self._wanted.values() for pod in one.instruction.spec.pods}
        out: list[Instruction] = []
        for failure in failures:
            out.append(Warn(f"{failure.text}; its pods are moved: {failure.cause.value}"))
            if binding := tuple(filter(self._binds, failure.nodes)):
                self._binding.append(replace(failure, nodes=binding))
            for uid in (uid for node in failure.nodes for uid in sorted(self.engine.world.ledger.on_node(node))):
                try:
                    one = leaver(self.engine, uid)
                    if one is None or uid in wanted or self.moves_pod(uid) or not _moves(one, failure.cause):
                        continue
                except Exception as error:
                    out += failure_of(f"pod {uid} of a failed node", error)
                    continue
                key = one.workload.id if one.workload.gang else one.workload.controller
                by_workload.setdefault((one.workload.namespace, key), []).append((failure, one))
        for (namespace, _), found in by_workload.items():
            try:
                spec, name = self._spec(found), self.fresh_name(namespace, name_for([one for _, one in found]))
            except Exception as error:
                out += failure_of(f"{found[0][1].workload.controller} in {namespace} on a failed node", error)
                continue
            self._wanted.setdefault((namespace, name), _MigrationToCreate(CreateMigration(namespace, name, spec)))
        return out

    def _spec(self, found: Sequence[tuple[DomainFailure, MovingPod]]) -> MigrationSpec:
        pods = sorted({one.member.uid: one.member.name for _, one in found}.items(), key=lambda item: item[1])
        return MigrationSpec(
            cause="; ".join(dict.fromkeys(failure.text for failure, _ in found)),
            reason=found[0][0].cause.value,
            since=stamp(self.epoch + min(failure.since for failure, _ in found)),
            pods=[MigrationPod(name, uid) for uid, name in pods],
        )


def _moves(one: MovingPod, cause: Cause) -> bool:
    """Return whether a pod on a failed node is moved: one that comes back, and may go for this cause."""
    occupant = one.entry.occupant
    fixed = occupant is None or occupant.fixed
    return one.member.controlled and not fixed and (cause.dead or one.workload.request.movable)
