"""Carries out the instructions of recovery: writes Migrations, evicts pods, and records events and metrics."""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import GROUP, KIND, VERSION
from topo_scheduler.api.printable import printable
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.outage import Outage
from topo_scheduler.kube.reading.nodes import node_exists
from topo_scheduler.kube.writing.events import EventRecorder, ObjectReference
from topo_scheduler.kube.writing.evictions import EvictionStatus, Evictor
from topo_scheduler.kube.writing.migrations import MigrationWriter
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.observability.metrics import Metrics
from topo_scheduler.recovery.controller.eviction_guard import EvictionGuard
from topo_scheduler.recovery.controller.pod_reader import PodReader
from topo_scheduler.recovery.core.machine import Recovery
from topo_scheduler.recovery.model.instructions import (
    CountRecoveryFailure,
    CreateMigration,
    DeleteMigration,
    EmitMigrationEvent,
    EvictPod,
    FindNode,
    LearnPods,
    MigrationRequest,
    PhaseDuration,
    RecoveryInstruction,
    Warn,
    WriteStatus,
)
from topo_scheduler.scheduling.barrier import Activity

log = logging.getLogger(__name__)


@dataclass(slots=True)
class InstructionExecutor:
    """Gives the results to the machine.

    Args:
        client: connection to the API server.
        writer: writes Migrations.
        reader: reads pods.
        guard: says right before an eviction whether the pod may still be moved.
        slots: limits the evictions in flight of each namespace, whose webhooks may hang.
        events: records events.
        metrics: metrics to update.
        clock: returns seconds, as the engine uses them.
        start: starts a task that ends by itself, as part of the term.
        machine: returns the current `Recovery`; None while recovery is off.
        wake: called after the machine got a result.
    """

    client: Client
    writer: MigrationWriter
    reader: PodReader
    guard: EvictionGuard
    slots: FairSlots
    events: EventRecorder
    metrics: Metrics
    clock: Callable[[], float]
    start: Callable[[Coroutine[Any, Any, None], str], None]
    machine: Callable[[], Recovery | None]
    wake: Callable[[], None]
    _evictor: Evictor = field(init=False)
    _statuses: PodStatusWriter = field(init=False)
    _unanswered: Outage = field(default_factory=Outage)
    """Failures to find out whether nodes exist."""

    def __post_init__(self) -> None:
        self._evictor = Evictor(self.client)
        self._statuses = PodStatusWriter(self.client)

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        """Carry out an instruction; whatever takes time in a task of its own."""
        match instruction:
            case CreateMigration() | WriteStatus() | DeleteMigration():
                self.start(self._write(instruction), f"write migration {instruction.name}")
            case EvictPod(_, pod):
                self.start(self.evict(instruction), f"move {pod.uid}")
            case LearnPods(pods, migration):
                self.reader.learn(pods, migration)
            case FindNode(name):
                self.start(self._find_node(name), f"find node {name}")
            case EmitMigrationEvent(namespace, name, uid, warning, reason, message):
                regarding = ObjectReference(f"{GROUP}/{VERSION}", KIND, namespace, name, uid)
                self.events.record(regarding, "Warning" if warning else "Normal", reason, message, "Migrating")
                log.info("Migration %s/%s: %s: %s", namespace, name, reason, message)
            case PhaseDuration(phase, seconds, cause, outcome):
                if phase == "total":
                    self.metrics.recovery.labels(cause, outcome).observe(seconds)
                else:
                    self.metrics.recovery_phase.labels(phase).observe(seconds)
            case Warn(message, namespace):
                log.warning(message, extra={"namespace": namespace} if namespace else None)
            case CountRecoveryFailure(kind):
                self.metrics.workload_failures.labels(Activity.RECOVERY.value, kind).inc()

    async def _write(self, request: MigrationRequest) -> None:
        match request:
            case CreateMigration(namespace, name, spec):
                result = await self.writer.create(namespace, name, spec)
            case WriteStatus(namespace, name, uid, version, status):
                result = await self.writer.replace_status(namespace, name, uid, version, status)
            case DeleteMigration(namespace, name, uid, version):
                result = await self.writer.delete(namespace, name, uid, version)
        if (machine := self.machine()) is not None:
            machine.wrote(request, result.outcome, result.message, result.migration, self.clock())
            self.wake()

    async def _find_node(self, name: str) -> None:
        try:
            exists: bool | None = await node_exists(self.client, name)
            self._unanswered.over(self.clock())
        except KubeError as error:
            exists = None
            if self._unanswered.failed(self.clock()):
                log.warning("recovery can't find out whether node %s was deleted: %s", printable(name), error)
        if (machine := self.machine()) is not None:
            machine.absent_nodes.answered(name, exists, self.clock())
            self.wake()

    async def evict(self, evict: EvictPod) -> None:
        """Evict a pod, unless its Migration is over."""
        pod = evict.pod
        if reason := await self.guard.reason_not_to_evict(evict.migration, evict.uid):
            self._evicted(evict, reason=MigrationReason.OWNER_NOT_CONFIRMED, message=reason)
            return
        result = await self._evictor.evict(
            pod.namespace,
            pod.name,
            pod.uid,
            grace=0 if evict.force else None,
            recheck=partial(self.guard.why_over, evict.migration, evict.uid),
            slot=partial(self.slots.slot, pod.namespace),
        )
        self.metrics.recovery_evictions.labels(result.outcome.value).inc()
        reason_it_stays = _condition_reason(result.outcome, result.message)
        level = logging.INFO if reason_it_stays is None else logging.WARNING
        outcome = f"{result.outcome.value}: {result.message}" if result.message else result.outcome.value
        log.log(level, "moving %s/%s: %s", pod.namespace, pod.name, outcome, extra={"namespace": pod.namespace})
        self._evicted(evict, reason=reason_it_stays, message=result.message)
        if evict.force and result.outcome is EvictionStatus.EVICTED:
            # Last, because a webhook on statuses may hang, and must not delay the Migration.
            await self._statuses.mark_failed(pod.namespace, pod.name, pod.uid)

    def _evicted(self, evict: EvictPod, *, reason: MigrationReason | None, message: str) -> None:
        if (machine := self.machine()) is not None:
            machine.migrations.evicted(evict.migration, evict.pod.uid, reason=reason, message=message, now=self.clock())
            self.wake()


def _condition_reason(outcome: EvictionStatus, message: str) -> MigrationReason | None:
    """Return why a pod stays; None if it goes."""
    if outcome is EvictionStatus.WITHDRAWN:
        return MigrationReason.OWNER_NOT_CONFIRMED
    if outcome is EvictionStatus.BLOCKED:
        return MigrationReason.DISRUPTION_BUDGET
    if outcome is EvictionStatus.FAILED:
        return MigrationReason.FORBIDDEN if "cannot create resource" in message else MigrationReason.EVICTION_FAILED
    return None
