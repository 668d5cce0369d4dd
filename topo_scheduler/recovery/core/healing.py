"""Turns failed nodes into Migrations: one for each workload with pods on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec, MigrationWrite
from topo_scheduler.recovery.detection.failure_detection import DomainFailure
from topo_scheduler.recovery.model.barrier import failure_of
from topo_scheduler.recovery.model.instructions import CreateMigration, Instruction, LearnPods, Warn
from topo_scheduler.recovery.model.migration_state import timestamp
from topo_scheduler.recovery.model.naming import name_for
from topo_scheduler.recovery.model.seating import MovingPod, find_moving_pod, unread_pods
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.pods.workloads import Stage

RETRY: Final = 2.0
RETRY_MOST: Final = 300.0
BELIEVED: Final = 4
"""Refusals by RBAC in a row before they are logged: an API server that has just started refuses all requests."""


@dataclass(slots=True)
class _MigrationToCreate:
    """A Migration to create. ``until`` is when a retry is due; ``taken`` is whether its name is in use."""

    instruction: CreateMigration
    in_flight: bool = False
    times: int = 0
    until: float = 0.0
    taken: bool = False


@dataclass(slots=True)
class Healing:
    """Failures without Migrations.

    ``moves_pod`` returns whether a Migration moves a pod, by uid. ``fresh_name`` returns a name that no finished
    Migration has, by namespace and the proposed name.
    """

    view: SchedulerView
    epoch: float
    moves_pod: Callable[[str], bool]
    fresh_name: Callable[[str, str], str]
    _failures: list[DomainFailure] = field(default_factory=list)
    _binding: list[DomainFailure] = field(default_factory=list)
    """Failures of nodes with binds in flight."""
    _awaited: set[str] = field(default_factory=set)
    _learned: set[str] = field(default_factory=set)
    _wanted: dict[str, _MigrationToCreate] = field(default_factory=dict)

    def failed(self, failures: Sequence[DomainFailure]) -> None:
        """Add failures of nodes."""
        self._failures += failures

    def learned(self, uids: Sequence[str]) -> None:
        """Record that pods were given to the engine, or are gone."""
        self._learned.update(self._awaited.intersection(uids))
        self._awaited.difference_update(uids)

    def created(self, create: CreateMigration, outcome: MigrationWrite, message: str, now: float) -> list[Instruction]:
        """Handle the result of the creation of a Migration."""
        pending = self._wanted.get(create.key)
        if pending is None:
            return []
        pending.in_flight = False
        if outcome is MigrationWrite.WRITTEN:
            del self._wanted[create.key]
            return []
        pending.times += 1
        if outcome is MigrationWrite.STALE:  # an attempt without an answer created it, or another client did
            pending.until, pending.taken = now + RETRY, True
            return []
        forbidden = outcome is MigrationWrite.FORBIDDEN
        pending.until = now + doubled(RETRY, pending.times, RETRY_MOST)
        report = pending.times == (BELIEVED if forbidden else 1)
        return [Warn(f"Migration {create.key} is not created: {message}")] if report else []

    def step(self, now: float) -> list[Instruction]:
        """Return the Migrations to create, and the pods that must be read first."""
        out: list[Instruction] = []
        self._failures += [failure for failure in self._binding if not any(map(self._binds, failure.nodes))]
        self._binding = [failure for failure in self._binding if any(map(self._binds, failure.nodes))]
        if self._failures and not self._awaited:
            unknown = self._pods_to_read()
            if unknown:
                self._awaited = {pod.uid for pod in unknown}
                out.append(LearnPods(unknown))
            else:
                out += self._create_migrations(now)
        for pending in [pending for pending in self._wanted.values() if pending.taken and now >= pending.until]:
            self._rename(pending)
        for pending in self._wanted.values():
            if not pending.in_flight and now >= pending.until:
                pending.in_flight = True
                out.append(pending.instruction)
        return out

    def coming(self) -> list[CreateMigration]:
        """Return the Migrations whose creation is in flight and has not failed before."""
        return [pending.instruction for pending in self._wanted.values() if pending.in_flight and not pending.times]

    def next_due(self) -> float | None:
        """Return when `step` must be called next."""
        return min((pending.until for pending in self._wanted.values() if not pending.in_flight), default=None)

    # ------------------------------------------------------------ helpers

    def _rename(self, pending: _MigrationToCreate) -> None:
        """Rename a Migration if another object has its name; drop it if a Migration moves its pods."""
        create = pending.instruction
        del self._wanted[create.key]
        remaining = [pod for pod in create.spec.pods if self.view.entry(pod.uid) is not None]
        if remaining and not any(self.moves_pod(pod.uid) for pod in remaining):
            name = self.fresh_name(create.namespace, f"{create.name}-{pending.times + 1}")
            pending.instruction, pending.taken = replace(create, name=name), False
            self._wanted[pending.instruction.key] = pending

    def _binds(self, node: str) -> bool:
        """Return whether the bind of a pod to a node is in flight."""
        known_pods = map(self.view.member, self.view.pods_on(node))
        return any(known_pod is not None and known_pod[1].stage is Stage.ASSUMED for known_pod in known_pods)

    def _pods_to_read(self) -> tuple[PodRef, ...]:
        """Return the pods of failed nodes that this process must read before it can plan with them."""
        nodes = (node for failure in self._failures for node in failure.nodes)
        uids = (uid for node in nodes for uid in self.view.pods_on(node) if uid not in self._learned)
        return tuple(unread_pods(self.view, uids))

    def _create_migrations(self, now: float) -> list[Instruction]:
        """Create Migrations for all failures."""
        failures, self._failures = self._failures, []
        self._learned.clear()
        by_workload: dict[tuple[str, str], list[tuple[DomainFailure, MovingPod]]] = {}
        named = {pod.uid for pending in self._wanted.values() for pod in pending.instruction.spec.pods}
        out: list[Instruction] = []
        for failure in failures:
            out.append(Warn(f"{failure.text}; its pods are moved: {failure.cause.value}"))
            if binding := tuple(filter(self._binds, failure.nodes)):
                self._binding.append(replace(failure, nodes=binding))
            for uid in (uid for node in failure.nodes for uid in self.view.pods_on(node)):
                try:
                    moving_pod = find_moving_pod(self.view, uid)
                    if (
                        moving_pod is None
                        or uid in named
                        or self.moves_pod(uid)
                        or not _moves(moving_pod, failure.cause)
                    ):
                        continue
                except Exception as error:
                    out += failure_of(f"pod {uid} of a failed node", error)
                    continue
                key = moving_pod.workload.id if moving_pod.workload.gang else moving_pod.workload.controller
                by_workload.setdefault((moving_pod.workload.namespace, key), []).append((failure, moving_pod))
        for (namespace, _), affected in by_workload.items():
            try:
                name = self.fresh_name(namespace, name_for([moving_pod for _, moving_pod in affected]))
                create = CreateMigration(namespace, name, self._spec(affected))
            except Exception as error:
                out += failure_of(f"{affected[0][1].workload.controller} in {namespace} on a failed node", error)
                continue
            self._wanted.setdefault(create.key, _MigrationToCreate(create))
        return out

    def _spec(self, affected: Sequence[tuple[DomainFailure, MovingPod]]) -> MigrationSpec:
        pods = sorted({pod.member.uid: pod.member.name for _, pod in affected}.items(), key=lambda item: item[1])
        return MigrationSpec(
            cause="; ".join(dict.fromkeys(failure.text for failure, _ in affected)),
            reason=affected[0][0].cause.value,
            since=timestamp(self.epoch + min(failure.since for failure, _ in affected)),
            pods=[MigrationPod(name, uid) for uid, name in pods],
        )


def _moves(pod: MovingPod, cause: Cause) -> bool:
    """Return whether a pod on a failed node is moved: a controller recreates it, and the cause allows the move."""
    occupant = pod.entry.occupant
    fixed = occupant is None or occupant.fixed
    return pod.member.controlled and not fixed and (cause.dead or pod.workload.request.movable)
