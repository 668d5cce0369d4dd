"""Turns failed nodes into Migrations: one for each workload with pods on them.

Pods that an earlier process placed are read first. Namespaces do not wait for one another: a pod that can't be read,
because its owner gets no answer, delays only the Migrations of its own namespace.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec, MigrationWrite
from topo_scheduler.recovery.core.migrations import BELIEVED_REFUSALS
from topo_scheduler.recovery.detection.failure_detection import DomainFailure
from topo_scheduler.recovery.model.barrier import failure_of
from topo_scheduler.recovery.model.instructions import CreateMigration, LearnPods, RecoveryInstruction, Warn
from topo_scheduler.recovery.model.migration_state import timestamp
from topo_scheduler.recovery.model.naming import name_for
from topo_scheduler.recovery.model.seating import MovingPod, find_moving_pod, unread_pods
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.pods.workloads import Stage

RETRY_SECONDS: Final = 2.0
LONGEST_RETRY_SECONDS: Final = 300.0


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

    ``moved_pods`` returns the uids of pods that a Migration moves, and of those whose Migration ends if their nodes are
    dead. ``fresh_name`` returns a name that no finished Migration has, by namespace and the proposed name.
    """

    view: SchedulerView
    epoch: float
    moved_pods: Callable[[], tuple[set[str], set[str]]]
    fresh_name: Callable[[str, str], str]
    _failures: list[DomainFailure] = field(default_factory=list)
    _again: list[tuple[str, DomainFailure]] = field(default_factory=list)
    """Failures that were reported before, with the namespace that needs Migrations for them again; empty for all."""
    _binding: list[tuple[str, DomainFailure]] = field(default_factory=list)
    """Failures of nodes with binds in flight, in the same form."""
    _open: dict[str, list[DomainFailure]] = field(default_factory=dict)
    """Failures for which a namespace has no Migrations yet, with the nodes that have pods of it, by that namespace."""
    _awaited: dict[str, set[str]] = field(default_factory=dict)
    """Uids of the pods that are being read, by namespace."""
    _learned: dict[str, set[str]] = field(default_factory=dict)
    """Uids of the pods that were read for open failures, by namespace."""
    _wanted: dict[str, _MigrationToCreate] = field(default_factory=dict)

    def failed(self, failures: Sequence[DomainFailure], again: Sequence[tuple[str, DomainFailure]] = ()) -> None:
        """Add failures of nodes; those in ``again`` were added before, and concern one namespace each."""
        self._failures += failures
        self._again += again

    def learned(self, uids: Sequence[str]) -> None:
        """Record that pods were given to the engine, or are gone."""
        for namespace, awaited in list(self._awaited.items()):
            self._learned.setdefault(namespace, set()).update(awaited.intersection(uids))
            awaited.difference_update(uids)
            if not awaited:
                del self._awaited[namespace]

    def awaits(self, pod: PodRef) -> bool:
        """Return whether Migrations of failed nodes are created only once a pod was read."""
        return pod.uid in self._awaited.get(pod.namespace, ())

    def created(
        self, create: CreateMigration, outcome: MigrationWrite, message: str, now: float
    ) -> list[RecoveryInstruction]:
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
            pending.until, pending.taken = now + RETRY_SECONDS, True
            return []
        forbidden = outcome is MigrationWrite.FORBIDDEN
        pending.until = now + doubled(RETRY_SECONDS, pending.times, LONGEST_RETRY_SECONDS)
        report = pending.times == (BELIEVED_REFUSALS if forbidden else 1)
        return [Warn(f"Migration {create.key} is not created: {message}", create.namespace)] if report else []

    def step(self, now: float) -> list[RecoveryInstruction]:
        """Return the Migrations to create, and the pods that must be read first."""
        out: list[RecoveryInstruction] = []
        bound = [pair for pair in self._binding if not any(map(self._binds, pair[1].nodes))]
        self._binding = [pair for pair in self._binding if any(map(self._binds, pair[1].nodes))]
        failures, self._failures = self._failures, []
        again, self._again = self._again, []
        out += [Warn(f"{failure.described()}; its pods are moved: {failure.cause.value}") for failure in failures]
        for namespace, failure in [*(("", failure) for failure in failures), *again, *bound]:
            self._open_failure(failure, namespace)
        ready = [namespace for namespace in self._open if namespace not in self._awaited]
        taken = [pending for pending in self._wanted.values() if pending.taken and now >= pending.until]
        moved, waiting = self.moved_pods() if ready or taken else (set[str](), set[str]())
        for namespace in ready:
            if unknown := self._pods_to_read(namespace):
                self._awaited[namespace] = {pod.uid for pod in unknown}
                out.append(LearnPods(unknown))
            else:
                out += self._create_migrations(namespace, moved, waiting)
        for pending in taken:
            self._rename(pending, moved)
        for key in [key for key, pending in self._wanted.items() if pending.times and now >= pending.until]:
            if not any(self.view.entry(pod.uid) for pod in self._wanted[key].instruction.spec.pods):
                del self._wanted[key]  # its pods are gone; its namespace may be, too
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

    def _rename(self, pending: _MigrationToCreate, moved: Container[str]) -> None:
        """Rename a Migration if another object has its name; drop it if a Migration moves its pods."""
        create = pending.instruction
        del self._wanted[create.key]
        remaining = [pod for pod in create.spec.pods if self.view.entry(pod.uid) is not None]
        if remaining and not any(pod.uid in moved for pod in remaining):
            name = self.fresh_name(create.namespace, f"{create.name}-{pending.times + 1}")
            pending.instruction, pending.taken = replace(create, name=name), False
            self._wanted[pending.instruction.key] = pending

    def _binds(self, node: str) -> bool:
        """Return whether the bind of a pod to a node is in flight."""
        known_pods = map(self.view.member, self.view.pods_on(node))
        return any(known_pod is not None and known_pod[1].stage is Stage.ASSUMED for known_pod in known_pods)

    def _open_failure(self, failure: DomainFailure, only: str) -> None:
        """Open a failure for each namespace that has pods on its nodes; only for ``only`` unless it is empty."""
        if binding := tuple(filter(self._binds, failure.nodes)):
            self._binding.append((only, replace(failure, nodes=binding)))
        nodes: dict[str, list[str]] = {}
        for node in failure.nodes:
            for namespace in dict.fromkeys(map(self.view.namespace_of, self.view.pods_on(node))):
                if only in ("", namespace):
                    nodes.setdefault(namespace, []).append(node)
        for namespace, its_nodes in nodes.items():
            self._open.setdefault(namespace, []).append(replace(failure, nodes=tuple(its_nodes)))

    def _pods_of(self, failure: DomainFailure, namespace: str) -> list[str]:
        """Return the uids of the pods of a namespace on failed nodes."""
        uids = (uid for node in failure.nodes for uid in self.view.pods_on(node))
        return [uid for uid in uids if self.view.namespace_of(uid) == namespace]

    def _pods_to_read(self, namespace: str) -> tuple[PodRef, ...]:
        """Return the pods of a namespace that this process must read before it can plan with them."""
        learned = self._learned.get(namespace, set())
        uids = (uid for failure in self._open[namespace] for uid in self._pods_of(failure, namespace))
        return tuple(unread_pods(self.view, (uid for uid in dict.fromkeys(uids) if uid not in learned)))

    def _create_migrations(
        self, namespace: str, moved: Container[str], waiting: Container[str]
    ) -> list[RecoveryInstruction]:
        """Create the Migrations of a namespace for all its open failures."""
        failures = self._open.pop(namespace)
        self._learned.pop(namespace, None)
        by_workload: dict[str, list[tuple[DomainFailure, MovingPod]]] = {}
        named = {pod.uid for pending in self._wanted.values() for pod in pending.instruction.spec.pods}
        out: list[RecoveryInstruction] = []
        for failure in failures:
            for uid in self._pods_of(failure, namespace):
                try:
                    moving_pod = find_moving_pod(self.view, uid)
                    is_moved = uid in named or uid in moved or (uid in waiting and not failure.cause.dead)
                    if moving_pod is None or is_moved or not _moves(moving_pod, failure.cause):
                        continue
                except Exception as error:
                    out += failure_of(f"pod {uid} of a failed node", error, namespace=namespace)
                    continue
                key = moving_pod.workload.id if moving_pod.workload.gang else moving_pod.workload.controller
                by_workload.setdefault(key, []).append((failure, moving_pod))
        for affected in by_workload.values():
            try:
                name = self.fresh_name(namespace, name_for([moving_pod for _, moving_pod in affected]))
                create = CreateMigration(namespace, name, self._spec(affected))
            except Exception as error:
                out += failure_of(
                    f"{affected[0][1].workload.controller} in {namespace} on a failed node", error, namespace=namespace
                )
                continue
            self._wanted.setdefault(create.key, _MigrationToCreate(create))
        return out

    def _spec(self, affected: Sequence[tuple[DomainFailure, MovingPod]]) -> MigrationSpec:
        pods = sorted({pod.member.uid: pod.member.name for _, pod in affected}.items(), key=lambda item: item[1])
        reader = self.view.reader(affected[0][1].workload.namespace)
        causes = [failure.cause for failure, _ in affected]
        return MigrationSpec(
            cause="; ".join(dict.fromkeys(failure.described(reader) for failure, _ in affected)),
            # Requests leave pods on dead nodes to a Migration of such a cause only.
            reason=next((cause for cause in causes if cause.dead), causes[0]).value,
            since=timestamp(self.epoch + min(failure.since for failure, _ in affected)),
            pods=[MigrationPod(name, uid) for uid, name in pods],
        )


def _moves(pod: MovingPod, cause: Cause) -> bool:
    """Return whether a pod on a failed node is moved: a controller recreates it, and the cause allows the move."""
    occupant = pod.entry.occupant
    fixed = occupant is None or occupant.fixed
    return pod.member.controlled and not fixed and (cause.dead or pod.workload.request.movable)
