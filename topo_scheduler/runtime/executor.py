"""Carries out the instructions of the engine, and reports their results back to it."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.kube.writing.binder import NOT_SETTLED, Binder, BindRequest, BindResult, BindStatus
from topo_scheduler.kube.writing.claims import ClaimWriter
from topo_scheduler.kube.writing.conditions import ConditionWriter
from topo_scheduler.kube.writing.events import EventRecorder, ObjectReference
from topo_scheduler.kube.writing.evictions import Evictor
from topo_scheduler.kube.writing.group_conditions import GroupConditionWriter, GroupMark
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.kube.writing.volumes import VolumeWriter
from topo_scheduler.observability.logs import log_decision
from topo_scheduler.observability.metrics import Metrics
from topo_scheduler.runtime.bind_plugins import BindPlugins, Refusal
from topo_scheduler.runtime.bind_queue import BindQueue
from topo_scheduler.runtime.evicting import ASKED_AFTER_SECONDS, Evictions, repeatedly
from topo_scheduler.runtime.fenced_writes import FencedWrites
from topo_scheduler.runtime.gang_marks import GangMarks
from topo_scheduler.runtime.owner_confirmation import Confirm
from topo_scheduler.scheduling.devices.obtained_bandwidth import obtained_bandwidths
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import (
    LEASE_ENDS,
    Bind,
    BindOutcome,
    CountFailure,
    DryRunBind,
    EmitEvent,
    Evict,
    EvictTainted,
    Instruction,
    LogWarning,
    MarkComplete,
    MarkGroup,
    MarkUnschedulable,
    Nominate,
    PodRef,
    Preempt,
    PrepareVolumes,
    ReadPod,
    Recall,
    RecordDecision,
    Withdraw,
    WriteClaims,
)
from topo_scheduler.state.devices.claim_writes import ClaimWrite
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.storage.storage_objects import VolumeWrite

log = logging.getLogger(__name__)

MAX_ADDITIONAL_WORKERS: Final = 48
"""Maximum workers in addition, one for each bind or dry run that hangs: a few tenants must not hold all workers."""

_OUTCOMES: Final = {
    BindStatus.BOUND: BindOutcome.BOUND,
    BindStatus.TAKEN: BindOutcome.TAKEN,
    BindStatus.GONE: BindOutcome.GONE,
    BindStatus.REJECTED: BindOutcome.REJECTED,
    BindStatus.WITHDRAWN: BindOutcome.WITHDRAWN,
    # Whether or not it is certain that the bind failed, the scheduler writes it again to the same node.
    BindStatus.UNBOUND: BindOutcome.UNKNOWN,
    BindStatus.UNKNOWN: BindOutcome.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Writers:
    """The components that write to the API server."""

    binder: Binder
    plugins: BindPlugins
    volumes: VolumeWriter
    claims: ClaimWriter
    evictor: Evictor
    statuses: PodStatusWriter
    events: EventRecorder
    conditions: ConditionWriter
    group_conditions: GroupConditionWriter


class Executor:
    """Carries out instructions of one term.

    Args:
        engine: gives the instructions and receives their results.
        writers: write to the API server.
        metrics: count results.
        name: name of this scheduler.
        workers: how many tasks run `bind`.
        clock: seconds, on the clock of the engine.
        wall: seconds since the epoch.
        start: starts a task of the term that ends by itself.
        changed: called after each result that the engine received.
        confirm: called right before pods are preempted; returns why they must not be.
        read_pod: starts reading a pending pod for the engine.
        answered: called with the seconds that each bind took.
    """

    def __init__(
        self,
        engine: Engine,
        writers: Writers,
        metrics: Metrics,
        *,
        name: str,
        workers: int,
        clock: Callable[[], float],
        wall: Callable[[], float],
        start: Callable[[Coroutine[Any, Any, None], str], None],
        changed: Callable[[], None],
        confirm: Confirm,
        read_pod: Callable[[PodRef], None] = lambda pod: None,
        answered: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._answered = answered
        self._read_pod = read_pod
        self._engine = engine
        self._to = writers
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._start = start
        self._changed = changed
        self._evictions = Evictions(
            engine,
            writers.evictor,
            writers.statuses,
            writers.events,
            metrics,
            name=name,
            clock=clock,
            wall=wall,
            start=start,
            changed=changed,
            confirm=confirm,
        )
        self._ended_lease = FencedWrites(clock)
        self._binds = BindQueue(workers, clock)
        self._unanswered: set[str] = set()
        """Uids of the pods whose binds are under way."""
        self._hanging_binds: set[str] = set()
        """Uids of the pods whose binds hang and have an additional worker: their workers end with them."""
        self._marks = GangMarks(self._binds, self._mark_complete, self._stays, start)

    @property
    def busy(self) -> bool:
        """Whether binds are pending or under way, not counting namespaces whose binds hang."""
        return self._binds.busy

    def drop_binds(self) -> None:
        """Drop all binds that have not started, because the term ends.

        Pending marks of complete gangs no longer wait for the binds that have started.
        """
        self._binds.clear()
        self._marks.hurry()

    async def finish_marks(self) -> None:
        """Write the pending conditions of complete gangs, for a few seconds at most."""
        await self._marks.finish()

    def carry_out(self, instruction: Instruction) -> None:
        """Carry out an instruction, or start a task that does. One that raises is left out; a bind is written later."""
        try:
            self._carry_out(instruction)
        except Exception:
            log.exception("internal error in an instruction, please report it: %s", type(instruction).__name__)
            if isinstance(instruction, Bind):
                self._engine.bind_finished(instruction.pod.uid, BindOutcome.UNKNOWN, "", self._clock())
            elif isinstance(instruction, DryRunBind):
                self._engine.rehearsed(instruction.bind.pod.uid, BindOutcome.UNKNOWN, "", self._clock())

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Bind() | DryRunBind():
                bind = instruction if isinstance(instruction, Bind) else instruction.bind
                self._binds.put(instruction, first=self._engine.goes_first(bind.pod.uid))
            case PrepareVolumes(pod, writes):
                self._start(self._prepare_volumes(pod, writes), f"volumes {pod.uid}")
            case WriteClaims(pod, claim_writes):
                self._start(self._write_claims(pod, claim_writes), f"claims {pod.uid}")
            case EmitEvent(pod, warning, reason, message):
                action = "Binding" if reason == "Scheduled" else "Scheduling"
                follow_up = reason == Reason.FAILED_SCHEDULING and self._follow_up_expected(pod)
                severity: Literal["Normal", "Warning"] = "Warning" if warning else "Normal"
                self._to.events.record(_regarding(pod), severity, reason, message, action, follow_up=follow_up)
                if reason == Reason.FAILED_SCHEDULING and (owner := self._owner_of_gang(pod)) is not None:
                    self._to.events.record(owner, "Warning", reason, message, action, follow_up=follow_up)
            case ReadPod(pod):
                self._read_pod(pod)
            case MarkUnschedulable(pod, message, since):
                pending = self._engine.arrivals.pending(pod.uid)
                if pending is not None:
                    self._to.conditions.set_unschedulable(pending, message, since + self._engine.world.epoch)
            case MarkGroup():
                self._to.group_conditions.set(
                    GroupMark(
                        instruction.namespace,
                        instruction.name,
                        instruction.uid,
                        instruction.version,
                        instruction.scheduled,
                        instruction.reason,
                        instruction.message,
                    )
                )
            case RecordDecision(decision, seconds):
                self._metrics.decided(decision, seconds)
                if any(len(seat.devices) > 1 or seat.claims for seat in decision.seats):
                    world = self._engine.world
                    for got in obtained_bandwidths(world.nodes, world.around.gpu_sets, decision.seats):
                        self._metrics.gpus_chosen(got.gpus, got.share, predicted=got.predicted)
                log_decision(decision, seconds)
            case LogWarning(message, namespace):
                log.warning(message, extra={"namespace": namespace} if namespace else None)
            case CountFailure(phase, kind):
                self._metrics.workload_failures.labels(phase, kind).inc()
            case Evict(pod, message):
                self._start(self._evictions.roll_back(pod, message), f"evict {pod.uid}")
            case EvictTainted(pod, message):
                self._start(self._evictions.off_device(pod, message), f"evict {pod.uid}")
            case Withdraw(bind):
                self._start(self._withdraw(bind), f"withdraw {bind.pod.uid}")
            case Recall(pod, gang):
                self._engine.bind_recalled(pod.uid, self._binds.recall(pod.namespace, gang, pod.uid), self._clock())
                self._changed()
            case MarkComplete(pod):
                self._marks.put(pod)
            case Nominate(pod, node):
                self._start(self._to.statuses.nominate(pod.namespace, pod.name, pod.uid, node), f"nominate {pod.uid}")
            case Preempt():
                self._start(self._evictions.preempt(instruction), f"preempt {instruction.pod.uid}")

    async def bind(self) -> None:
        """Write binds one after the other, until cancelled or replaced. Several workers run at once."""
        replaced = False
        while not replaced:
            work = await self._binds.take()
            began = self._clock()
            uid = work.pod.uid if isinstance(work, Bind) else work.bind.pod.uid
            try:
                await (self._bind(work) if isinstance(work, Bind) else self._dry_run(work.bind))
            except Exception as error:  # a fault in one bind must stop no other
                log.exception("internal error during a bind, please report it: pod uid %s", uid)
                message = f"internal error, please report it: {error!r}"
                if isinstance(work, Bind):  # it may have been sent: the watch shows it, or it is written again
                    self._engine.bind_finished(uid, BindOutcome.UNKNOWN, message, self._clock())
                else:
                    self._engine.rehearsed(uid, BindOutcome.UNKNOWN, message, self._clock())
                self._changed()
            finally:
                replaced = uid in self._hanging_binds
                self._hanging_binds.discard(uid)
                self._binds.done(work, self._clock() - began)

    def _add_worker(self, uid: str) -> None:
        """Start a worker in the place of one whose bind hangs, which ends after that bind."""
        if uid not in self._hanging_binds and len(self._hanging_binds) < MAX_ADDITIONAL_WORKERS:
            self._hanging_binds.add(uid)
            self._start(self.bind(), f"bind instead of {uid}")

    async def _dry_run(self, bind: Bind) -> None:
        """Ask with a dry run whether the API server would accept a Binding.

        Other problems of the bind show when it is written.
        """
        outcome, message = BindOutcome.UNKNOWN, ""
        if not self._engine.may_bind(bind.pod.uid):
            try:
                request = await self._to.plugins.request(bind, *self._pod_of(bind.pod))
                result = await self._watched_bind(request.bind, dry_run=True)
                outcome, message = _OUTCOMES[result.outcome], result.message
                if message.startswith(NOT_SETTLED):
                    outcome = BindOutcome.REJECTED  # if the dry run hangs, the bind would hang too
                    self._binds.hangs(bind.pod.namespace)
            except (PluginError, Refusal) as error:
                log.debug("pod %s/%s is not tried: %s", bind.pod.namespace, bind.pod.name, error)
            if outcome is not BindOutcome.BOUND:
                self._to.plugins.forget(bind.pod.uid)
        if outcome is BindOutcome.REJECTED:
            where = {"namespace": bind.pod.namespace}
            log.warning(
                "pods like %s/%s are still refused: %s", bind.pod.namespace, bind.pod.name, message, extra=where
            )
        self._engine.rehearsed(bind.pod.uid, outcome, message, self._clock())
        self._changed()

    def _follow_up_expected(self, pod: PodRef) -> bool:
        """Return whether an explanation of what would help a pod is still to be published."""
        membership = self._engine.workloads.of_pod(pod.uid)
        return membership is not None and self._engine.why.expected(membership[0].id)

    def _owner_of_gang(self, pod: PodRef) -> ObjectReference | None:
        """Return the controller of a gang's pod. The gang's reason is posted on it, once for all of its pods."""
        membership = self._engine.workloads.of_pod(pod.uid)
        known = self._engine.arrivals.pending(pod.uid)
        owner = known.metadata.controller if known is not None else None
        if membership is None or not membership[0].gang or owner is None or owner.kind == "Node":
            return None
        return ObjectReference(owner.api_version, owner.kind, pod.namespace, owner.name, owner.uid)

    def _pod_of(self, pod: PodRef) -> tuple[Pod | None, PodClass]:
        membership = self._engine.workloads.of_pod(pod.uid)
        return self._engine.arrivals.pending(pod.uid), membership[1].cls if membership is not None else PodClass(())

    async def _bind(self, bind: Bind) -> None:
        pod = bind.pod
        refused = self._engine.may_bind(pod.uid)
        if refused:
            self._engine.bind_finished(pod.uid, BindOutcome.WITHDRAWN, refused, self._clock())
            self._changed()
            return
        try:
            request = await self._to.plugins.request(bind, *self._pod_of(pod))
        except (PluginError, Refusal) as error:
            self._engine.bind_finished(pod.uid, BindOutcome.WITHDRAWN, str(error), self._clock())
            self._changed()
            return
        # Check again: plugins may have taken a while.
        if refused := self._engine.may_bind(pod.uid) if request.plugins else "":
            self._to.plugins.forget(pod.uid)
            self._engine.bind_finished(pod.uid, BindOutcome.WITHDRAWN, refused, self._clock())
            self._changed()
            return
        result = await self._watched_bind(request.bind, dry_run=False)
        now = self._clock()
        self._metrics.bound(result.outcome.value, result.latency)
        self._answered(result.latency)
        if result.outcome is BindStatus.BOUND:
            self._metrics.latency.observe(now - bind.queued)
            self._to.conditions.forget(pod.uid)
            self._to.plugins.bound(request)
        else:
            level = self._ended_lease.level(fenced=result.fenced)
            why = result.message or result.outcome.value
            where = {"namespace": pod.namespace}
            log.log(level, "bind of %s/%s to %s: %s", pod.namespace, pod.name, bind.node, why, extra=where)
        outcome = _OUTCOMES[result.outcome]
        if outcome is not BindOutcome.UNKNOWN:
            self._to.plugins.forget(pod.uid)
        self._engine.bind_finished(pod.uid, outcome, result.message, now)
        if self._engine.goes_first(pod.uid):
            self._binds.begins(bind)
        self._changed()

    async def _watched_bind(self, request: BindRequest, *, dry_run: bool) -> BindResult:
        """Write a bind, or try it. While the API server answers other requests but not this one, act on that."""
        self._unanswered.add(request.uid)
        try:
            with repeatedly(
                partial(self._ask_about, request, dry_run=dry_run), self._start, f"unanswered {request.uid}"
            ):
                if dry_run:
                    return await self._to.binder.bind(request, dry_run=True)
                may_bind = partial(self._engine.may_bind, request.uid)
                # A gang must not stay partially bound for as long as an answer asks for: it would be rolled back.
                urgent = partial(self._engine.goes_first, request.uid)
                return await self._to.binder.bind(request, recheck=may_bind, urgent=urgent)
        finally:
            self._unanswered.discard(request.uid)

    async def _ask_about(self, request: BindRequest, *, dry_run: bool) -> None:
        """If the API server answers other requests, let others bind, and report what hangs, except dry runs."""
        if await self._to.binder.hangs(request, ASKED_AFTER_SECONDS):
            self._binds.hangs(request.namespace)
            if request.uid in self._unanswered:
                self._add_worker(request.uid)
            for uid in (*([] if dry_run else [request.uid]), *self._binds.take_stuck(request.namespace)):
                self._engine.bind_hangs(uid, self._clock())
            self._changed()

    async def _withdraw(self, bind: Bind) -> None:
        pod = bind.pod
        request = BindRequest(pod.namespace, pod.name, pod.uid, bind.node, bind.annotations)
        result = await self._to.binder.withdraw(request)
        outcome = BindOutcome.WITHDRAWN if result.outcome is BindStatus.UNBOUND else _OUTCOMES[result.outcome]
        self._to.plugins.forget(pod.uid)
        self._engine.bind_finished(pod.uid, outcome, result.message, self._clock())
        self._changed()

    async def _mark_complete(self, pod: PodRef, first: bool) -> bool:
        return await self._to.statuses.mark_complete(pod.namespace, pod.name, pod.uid, self._wall(), first=first)

    def _stays(self, uid: str) -> bool:
        """Return whether a mark is still of use: its pod exists and is not being deleted."""
        membership = self._engine.workloads.of_pod(uid)
        return membership is not None and not membership[1].leaving

    async def _prepare_volumes(self, pod: PodRef, writes: Sequence[VolumeWrite]) -> None:
        result = await self._to.volumes.write(writes)
        if result.problem:
            level = self._ended_lease.level(fenced=result.fenced)
            where = {"namespace": pod.namespace}
            log.log(level, "volumes of %s/%s: %s", pod.namespace, pod.name, result.problem, extra=where)
        problem = LEASE_ENDS if result.fenced else result.problem
        self._engine.volumes_written(pod.uid, result.done, problem)
        self._changed()

    async def _write_claims(self, pod: PodRef, writes: Sequence[ClaimWrite]) -> None:
        result = await self._to.claims.write(writes)
        if result.problem:
            level = self._ended_lease.level(fenced=result.fenced)
            where = {"namespace": pod.namespace}
            log.log(level, "resource claims of %s/%s: %s", pod.namespace, pod.name, result.problem, extra=where)
        problem = LEASE_ENDS if result.fenced else result.problem
        self._engine.claims_written(pod.uid, result.done, problem, self._clock())
        self._changed()


def _regarding(pod: PodRef) -> ObjectReference:
    return ObjectReference("v1", "Pod", pod.namespace, pod.name, pod.uid)
