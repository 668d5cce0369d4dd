"""One term of leadership: reflectors feed the engine, the engine decides, workers write.

The engine runs on the event loop between two awaits, so there is one writer and nothing to lock. All tasks of a term
live in one TaskGroup: when leadership ends they all end, binds already sent included.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import Budget, Node, PartialObject, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.bind_plugins import BindPlugins, Refusal
from topo_scheduler.isolation import Isolated
from topo_scheduler.kernels.warm import OF_PREEMPTION, warm
from topo_scheduler.kube.binder import Binder, Outcome
from topo_scheduler.kube.client import Client
from topo_scheduler.kube.conditions import ConditionWriter
from topo_scheduler.kube.errors import KubeError
from topo_scheduler.kube.events import EventRecorder, ObjectReference
from topo_scheduler.kube.evictions import EvictionOutcome, Evictor
from topo_scheduler.kube.group_conditions import GroupConditionWriter, GroupMark
from topo_scheduler.kube.groups import GroupDirectory
from topo_scheduler.kube.owners import Missing, OwnerDirectory
from topo_scheduler.kube.podstatus import PodStatusWriter
from topo_scheduler.kube.reflector import Reflector
from topo_scheduler.kube.resources import BUDGETS, NAMESPACES, NODES, OWNER_KINDS, PODS
from topo_scheduler.kube.sinks import Calls, Deleted
from topo_scheduler.kube.storage import storage_reflectors
from topo_scheduler.kube.volumes import VolumeWriter
from topo_scheduler.observability.logs import log_decision
from topo_scheduler.observability.metrics import Metrics
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extension import PluginError
from topo_scheduler.scheduling.instructions import (
    Announce,
    Bind,
    BindOutcome,
    Complain,
    Evict,
    Instruction,
    MarkGroup,
    MarkUnschedulable,
    Nominate,
    PodRef,
    Preempt,
    PrepareVolumes,
    Rehearse,
    Tell,
)
from topo_scheduler.scheduling.instructions import (
    EvictionOutcome as Ended,
)
from topo_scheduler.scheduling.queue import Place
from topo_scheduler.scheduling.registry import Extensions
from topo_scheduler.scheduling.understand import Lineage
from topo_scheduler.state.accounts import WHOLE
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.groups import GroupKey, PodGroup, Serving
from topo_scheduler.state.storage import VolumeWrite
from topo_scheduler.state.workloads import Stage

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 25.0
"""Longest wait at the end of a term for binds in flight; below the 30 s a pod usually has to terminate."""
STEP_SECONDS: Final = 0.005
"""Longest time decisions hold the event loop at a stretch."""
EVICTIONS_IN_FLIGHT: Final = 16
OWNER_RETRY_SECONDS: Final = 5.0
OWNERS_SECONDS: Final = 10.0
"""Longest wait for the lists of workloads: a kind that is not served, or not allowed, must not hold up all others."""
GROUPS_SECONDS: Final = 5.0
"""Longest wait for the lists of PodGroups, after those of workloads."""

_OUTCOMES: Final = {
    Outcome.BOUND: BindOutcome.BOUND,
    Outcome.TAKEN: BindOutcome.TAKEN,
    Outcome.GONE: BindOutcome.GONE,
    Outcome.REJECTED: BindOutcome.REJECTED,
    # Certain or not: what was decided stays decided, and is written again to the same node.
    Outcome.UNBOUND: BindOutcome.UNKNOWN,
    Outcome.UNKNOWN: BindOutcome.UNKNOWN,
}


class Term:
    """Schedules while this replica leads. Built for one term and not used again."""

    def __init__(
        self,
        configuration: Configuration,
        client: Client,
        metrics: Metrics,
        events: EventRecorder,
        *,
        allowed: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        extensions: Extensions | None = None,
        isolated: Isolated | None = None,
    ) -> None:
        connection = configuration.scheduler.client_connection
        self._clock = clock
        self._wake = asyncio.Event()
        self._name = configuration.scheduler.scheduler_name
        self._metrics = metrics
        self._owners = OwnerDirectory(client, on_change=self._owner_changed)
        self.engine = Engine(configuration, self._resolve, extensions, time.time() - clock())
        for api in GroupApi:  # pods are listed before it is known which PodGroups there are
            self.engine.groups_served(api, Serving.UNKNOWN, clock(), clock())
        self._plugins = BindPlugins(
            self.engine.extensions, isolated or Isolated(configuration.scheduler.plugin_timeout, metrics), metrics
        )
        self.engine.preempting.ready = False
        self._binder = Binder(
            client, concurrency=connection.max_binds_in_flight, timeout=connection.bind_timeout, allowed=allowed
        )
        self._workers = connection.max_binds_in_flight
        self._bind_timeout = connection.bind_timeout
        self._events = events
        self._conditions = ConditionWriter(client, busy=self.busy)
        self._group_conditions = GroupConditionWriter(client, busy=self.busy)
        self._groups = GroupDirectory(client, self, clock=clock)
        self._evictor = Evictor(client)
        self._evictions = asyncio.Semaphore(EVICTIONS_IN_FLIGHT)
        self._statuses = PodStatusWriter(client)
        self._nodes = Reflector(client, NODES, Calls(self.nodes_applied, self.nodes_deleted))
        self._pods = Reflector(client, PODS, Calls(self.pods_applied, self.pods_deleted))
        self._namespaces = Reflector(client, NAMESPACES, Calls(self.namespaces_applied, self.namespaces_deleted))
        self._reflectors: dict[str, Reflector[Any]] = {
            "nodes": self._nodes,
            "pods": self._pods,
            "namespaces": self._namespaces,
            "poddisruptionbudgets": Reflector(
                client, BUDGETS, Calls(self.budgets_applied, self.budgets_deleted, self.budgets_synced)
            ),
            **{kind.plural: Reflector(client, kind, self._owners.sink(kind)) for kind in OWNER_KINDS},
        }
        self._storage = storage_reflectors(client, self.engine.world.around.storage, self._wake.set)
        self._reflectors |= self._storage
        self._volumes = VolumeWriter(client, allowed=allowed)
        self._binds: deque[Bind | Rehearse] = deque()
        self._bind_ready = asyncio.Semaphore(0)
        self._fetching: set[str] = set()
        self._draining = False
        self._group: asyncio.TaskGroup | None = None
        self._passing: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ the life of a term

    async def run(self, leading: asyncio.Event, *, handover: float = 0.0) -> None:
        """Schedule until cancelled; then let binds in flight end.

        Args:
            leading: set once decisions are made.
            handover: seconds for which a former leader may go on believing that it leads, which are waited out, and
                at least as long as a bind takes; 0 when none can have binds on the wire.
        """
        async with asyncio.TaskGroup() as background:
            self._group = background
            tasks = [background.create_task(work, name=name) for name, work in self._background()]
            try:
                await self._fill(handover)
                leading.set()
                await self._decide()
            finally:
                leading.clear()
                await self._drain()
                for task in tasks:
                    task.cancel()
                for task in self._passing:
                    task.cancel()

    def _background(self) -> list[tuple[str, Any]]:
        return [
            *((f"reflect {name}", reflector.run()) for name, reflector in self._reflectors.items()),
            *((f"bind {number}", self._bind_worker()) for number in range(self._workers)),
            ("owners", self._owners.run()),
            ("conditions", self._conditions.run()),
            ("groups", self._groups.run()),
            ("group conditions", self._group_conditions.run()),
            ("post-bind", self._plugins.run()),
        ]

    async def _fill(self, handover: float) -> None:
        """Wait until every cache is filled, and until nothing of a former leader can arrive any more."""
        await self._nodes.synced.wait()
        await self._pods.synced.wait()
        await self._namespaces.synced.wait()
        await self._await_owners()
        await self._await_storage()
        if handover:
            wait = max(handover, self._bind_timeout)
            log.info("the Lease was not released: waiting for binds of a former leader to land, %g s", wait)
            await asyncio.sleep(wait)
            await self._pods.relist()
        world = self.engine.world
        unlabelled = world.fabric.unlabelled()
        log.info(
            "caches filled, scheduling",
            extra={"nodes": len(world.nodes), "pods": len(self._pods), "leaves": len(world.layout.paths)},
        )
        if unlabelled:
            log.warning(
                "%d of %d nodes do not tell their place in the fabric: they share domains called unlabelled",
                len(unlabelled),
                len(world.nodes),
                extra={"examples": unlabelled[:5]},
            )

    async def _await_owners(self) -> None:
        """Give the lists of workloads a moment; what they would have told is asked for one by one otherwise."""
        try:
            async with asyncio.timeout(OWNERS_SECONDS):
                for kind in OWNER_KINDS:
                    await self._reflectors[kind.plural].synced.wait()
        except TimeoutError:
            log.warning("scheduling without lists of %s: each owner is asked for instead", self._unsynced())
        try:
            async with asyncio.timeout(GROUPS_SECONDS):
                await self._groups.settled()
        except TimeoutError:
            log.warning("scheduling without lists of PodGroups: pods that name one wait for it")

    async def _await_storage(self) -> None:
        """Wait for claims and volumes, unless they can't be listed: pods without claims are not held up by that."""
        try:
            async with asyncio.timeout(OWNERS_SECONDS):
                for reflector in self._storage.values():
                    await reflector.tried.wait()
        except TimeoutError:
            pass
        if unlisted := ", ".join(self.engine.world.around.storage.unlisted):
            log.warning("pods with volume claims wait until these can be listed: %s", unlisted)

    async def _decide(self) -> None:
        """Take steps whenever there is something to do."""
        while True:
            self._wake.clear()
            now = self._clock()
            for instruction in self.engine.step(now, time.perf_counter, STEP_SECONDS):
                self._carry_out(instruction)
            self._fetch_owners()
            if self.engine.world.groups.take_wondered():
                self._groups.ask_again()
            if self.engine.preempting.wanted:
                self.engine.preempting.wanted = False
                self._start(self._warm_preemption(), "kernels of preemption")
            if self.engine.pending_work:
                await asyncio.sleep(0)
                continue
            due = self.engine.next_due()
            timeout = None if due is None or due == float("inf") else max(0.0, due - self._clock())
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _warm_preemption(self) -> None:
        warmth = await asyncio.to_thread(warm, OF_PREEMPTION)
        log.info("kernels of preemption ready", extra={"seconds": round(warmth.seconds, 2), "cached": warmth.cached})
        self.engine.may_preempt()
        self._wake.set()

    async def _drain(self) -> None:
        """Write no bind that was not begun, and wait for those that were."""
        self._draining = True
        self._binds.clear()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._binder.drain()
                # What the last binds have to tell; what else would be decided now is not carried out any more.
                for instruction in self.engine.step(self._clock(), time.perf_counter, 0.0):
                    if isinstance(instruction, Tell | Complain):
                        self._carry_out(instruction)
        except TimeoutError:
            log.error("binds were still in flight when this term ended", extra={"binds": self._binder.in_flight})

    # ------------------------------------------------------------ facts in

    def configure(self, configuration: Configuration) -> None:
        """Take over a changed TopologySchedulerConfig."""
        self.engine.configure(configuration)
        self._wake.set()

    def pods_applied(self, pods: Sequence[Pod]) -> None:
        """Pods appeared or changed."""
        self.engine.pods_applied(pods, self._clock())
        for pod in pods:
            if pod.spec.node_name:
                self._conditions.forget(pod.metadata.uid)
                self._plugins.forget(pod.metadata.uid)
        self._wake.set()

    def pods_deleted(self, references: Sequence[Deleted]) -> None:
        """Pods vanished."""
        now = self._clock()
        for reference in references:
            self.engine.pod_deleted(reference.uid, now)
            self._conditions.forget(reference.uid)
            self._plugins.forget(reference.uid)
        self._wake.set()

    def nodes_applied(self, nodes: Sequence[Node]) -> None:
        """Nodes appeared or changed."""
        self.engine.nodes_applied(nodes, self._clock())
        self._wake.set()

    def nodes_deleted(self, references: Sequence[Deleted]) -> None:
        """Nodes vanished."""
        for reference in references:
            self.engine.node_deleted(reference.name, reference.uid)
        self._wake.set()

    def namespaces_applied(self, namespaces: Sequence[PartialObject]) -> None:
        """Namespaces appeared or changed."""
        self.engine.namespaces_applied(namespaces)
        self._wake.set()

    def namespaces_deleted(self, references: Sequence[Deleted]) -> None:
        """Namespaces vanished."""
        for reference in references:
            self.engine.namespace_deleted(reference.name)
        self._wake.set()

    def groups_applied(self, groups: Sequence[PodGroup]) -> None:
        """PodGroups appeared or changed."""
        self.engine.groups_applied(groups, self._clock())
        self._wake.set()

    def groups_deleted(self, groups: Sequence[tuple[GroupKey, str]]) -> None:
        """PodGroups vanished."""
        now = self._clock()
        for key, uid in groups:
            self.engine.group_deleted(key, uid, now)
        self._wake.set()

    def groups_served(self, api: GroupApi, serving: Serving, asked: float) -> None:
        """It is known now whether there are PodGroups of an API."""
        self.engine.groups_served(api, serving, asked, self._clock())
        self._wake.set()

    def budgets_applied(self, budgets: Sequence[Budget]) -> None:
        """Disruption budgets appeared or changed."""
        self.engine.budgets_applied(budgets)
        self._wake.set()

    def budgets_deleted(self, references: Sequence[Deleted]) -> None:
        """Disruption budgets vanished."""
        for reference in references:
            self.engine.budget_deleted(reference.namespace, reference.name)
        self._wake.set()

    def budgets_synced(self) -> None:
        """All disruption budgets have been told."""
        self.engine.budgets_known()
        self._wake.set()

    def _owner_changed(self, uid: str) -> None:
        self.engine.owner_changed(uid, self._clock())
        self._wake.set()

    def _resolve(self, pod: Pod) -> Lineage | None:
        if pod.metadata.controller is None:
            return Lineage()
        chain = self._owners.resolve(pod.metadata)
        if isinstance(chain, Missing):
            return None
        return Lineage(chain.owners, chain.broken if chain.forbidden else "")

    def _fetch_owners(self) -> None:
        """Ask for the owners of pods that wait for them; one task a controller."""
        for pod in self.engine.arrivals.unresolved():
            controller = pod.metadata.controller
            if controller is not None and controller.uid not in self._fetching:
                self._fetching.add(controller.uid)
                self._start(self._fetch_owner(pod, controller.uid), f"owner {controller.uid}")

    async def _fetch_owner(self, pod: Pod, uid: str) -> None:
        while True:
            try:
                await self._owners.complete(pod.metadata)
                break
            except KubeError as error:
                log.warning("owners of pod %s are not known yet: %s", pod.key, error)
                await asyncio.sleep(OWNER_RETRY_SECONDS)
        self._fetching.discard(uid)
        self._owner_changed(uid)

    # ------------------------------------------------------------ instructions out

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Bind() | Rehearse():
                self._binds.append(instruction)
                self._bind_ready.release()
            case PrepareVolumes(pod, writes):
                self._start(self._prepare_volumes(pod, writes), f"volumes {pod.uid}")
            case Tell(pod, warning, reason, message):
                action = "Binding" if reason == "Scheduled" else "Scheduling"
                self._events.record(_regarding(pod), "Warning" if warning else "Normal", reason, message, action)
            case MarkUnschedulable(pod, message):
                pending = self.engine.arrivals.pending(pod.uid)
                if pending is not None:
                    self._conditions.set_unschedulable(pending, message)
            case MarkGroup():
                self._group_conditions.set(
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
            case Announce(decision, seconds):
                self._metrics.decided(decision, seconds)
                log_decision(decision, seconds)
            case Complain(message):
                log.warning(message)
            case Evict(pod, message):
                self._start(self._evict(pod, message), f"evict {pod.uid}")
            case Nominate(pod, node):
                self._start(self._statuses.nominate(pod.namespace, pod.name, pod.uid, node), f"nominate {pod.uid}")
            case Preempt():
                self._start(self._preempt(instruction), f"preempt {instruction.pod.uid}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something that ends by itself as part of this term."""
        assert self._group is not None
        task = self._group.create_task(work, name=name)
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _bind_worker(self) -> None:
        while True:
            await self._bind_ready.acquire()
            if self._binds:
                work = self._binds.popleft()
                await (self._bind(work) if isinstance(work, Bind) else self._rehearse(work.bind))

    async def _rehearse(self, bind: Bind) -> None:
        """Ask whether a Binding would be taken. Whatever else is wrong with it shows when it is written."""
        outcome, message = BindOutcome.UNKNOWN, ""
        if not self.engine.may_bind(bind.pod.uid):
            try:
                request = await self._plugins.request(bind, *self._pod_of(bind.pod))
                result = await self._binder.bind(request.bind, dry_run=True)
                outcome, message = _OUTCOMES[result.outcome], result.message
            except (PluginError, Refusal) as error:
                log.debug("pod %s/%s is not tried: %s", bind.pod.namespace, bind.pod.name, error)
        if outcome is BindOutcome.REJECTED:
            self._plugins.forget(bind.pod.uid)
            log.warning("pods like %s/%s are still refused: %s", bind.pod.namespace, bind.pod.name, message)
        self.engine.rehearsed(bind.pod.uid, outcome, message, self._clock())
        self._wake.set()

    def _pod_of(self, pod: PodRef) -> tuple[Pod | None, PodClass]:
        found = self.engine.workloads.of_pod(pod.uid)
        return self.engine.arrivals.pending(pod.uid), found[1].cls if found is not None else PodClass(())

    async def _bind(self, bind: Bind) -> None:
        pod = bind.pod
        refused = self.engine.may_bind(pod.uid)
        if refused:
            self.engine.bind_finished(pod.uid, BindOutcome.WITHDRAWN, refused, self._clock())
            self._wake.set()
            return
        try:
            request = await self._plugins.request(bind, *self._pod_of(pod))
        except (PluginError, Refusal) as error:
            self.engine.bind_finished(pod.uid, BindOutcome.WITHDRAWN, str(error), self._clock())
            self._wake.set()
            return
        # Plugins may have taken a while.
        if refused := self.engine.may_bind(pod.uid) if request.plugins else "":
            self._plugins.forget(pod.uid)
            self.engine.bind_finished(pod.uid, BindOutcome.WITHDRAWN, refused, self._clock())
            self._wake.set()
            return
        result = await self._binder.bind(request.bind)
        now = self._clock()
        self._metrics.bound(result.outcome.value, result.latency)
        if result.outcome is Outcome.BOUND:
            self._metrics.latency.observe(now - bind.queued)
            self._conditions.forget(pod.uid)
            self._plugins.bound(request)
        else:
            log.warning(
                "bind of %s/%s to %s: %s", pod.namespace, pod.name, bind.node, result.message or result.outcome.value
            )
        outcome = _OUTCOMES[result.outcome]
        if outcome is not BindOutcome.UNKNOWN:
            self._plugins.forget(pod.uid)
        self.engine.bind_finished(pod.uid, outcome, result.message, now)
        self._wake.set()

    async def _prepare_volumes(self, pod: PodRef, writes: Sequence[VolumeWrite]) -> None:
        result = await self._volumes.write(writes)
        if result.problem:
            log.warning("volumes of %s/%s: %s", pod.namespace, pod.name, result.problem)
        self.engine.volumes_written(pod.uid, result.done, result.problem)
        self._wake.set()

    async def _evict(self, pod: PodRef, message: str) -> None:
        result = await self._evictor.evict(pod.namespace, pod.name, pod.uid)
        log.warning("evicting %s/%s: %s: %s", pod.namespace, pod.name, message, result.outcome.value)
        if result.outcome in (EvictionOutcome.BLOCKED, EvictionOutcome.FAILED):
            log.error("pod %s/%s stays bound without its gang: %s", pod.namespace, pod.name, result.message)

    async def _preempt(self, preempt: Preempt) -> None:
        pod = preempt.pod
        async with self._evictions:
            result = await self._evictor.evict(pod.namespace, pod.name, pod.uid)
            goes = result.outcome in (EvictionOutcome.EVICTED, EvictionOutcome.GONE)
            self._metrics.preempted.labels(result.outcome.value).inc()
            log.info("preempting %s/%s: %s: %s", pod.namespace, pod.name, preempt.note, result.outcome.value)
            self.engine.eviction_finished(
                pod.uid, Ended.GOING if goes else Ended.REFUSED, result.message, self._clock()
            )
            self._wake.set()
            if result.outcome is EvictionOutcome.EVICTED:
                # Only now: the condition must not stand on a pod that stays, and the Eviction API writes one of its
                # own over it.
                self._events.record(_regarding(pod), "Normal", Reason.PREEMPTED, preempt.note, "Preempting")
                text = f"{self._name}: preempting to accommodate a higher priority pod"
                await self._statuses.mark_preempted(pod.namespace, pod.name, pod.uid, text, time.time())

    # ------------------------------------------------------------ what is observed

    def busy(self) -> bool:
        """Return whether binds are under way, behind which everything else stands back."""
        return not self._draining and bool(self._binds or self._binder.in_flight)

    def not_synced(self) -> str:
        """Return which caches are not filled yet, or an empty string."""
        needed = ("nodes", "pods", "namespaces")
        return ", ".join(name for name in needed if not self._reflectors[name].synced.is_set())

    def _unsynced(self) -> str:
        others = ((name, reflector) for name, reflector in self._reflectors.items() if name not in self._storage)
        return ", ".join(name for name, reflector in others if not reflector.synced.is_set())

    def staleness(self) -> dict[str, float]:
        """Return the seconds since the last sign of life of each watch."""
        now = time.monotonic()
        own = {name: reflector.staleness(now) for name, reflector in self._reflectors.items()}
        return own | self._groups.staleness(now)

    def pending_pods(self) -> dict[str, int]:
        """Return how many pods wait, by the place of their workload in the queue."""
        counts = dict.fromkeys((place.value for place in Place), 0)
        for workload in self.engine.workloads:
            place = self.engine.queue.place(workload.id)
            if place is not None:
                counts[place.value] += sum(m.stage is Stage.PENDING for m in workload.members.values())
        return counts

    def longest_waits(self) -> dict[str, float]:
        """Return how long the pod has waited that has waited longest, in seconds by place in the queue."""
        now = self._clock()
        waits = dict.fromkeys((place.value for place in Place), 0.0)
        for workload in self.engine.workloads:
            place = self.engine.queue.place(workload.id)
            if place is not None:
                waiting = (now - m.enqueued for m in workload.members.values() if m.stage is Stage.PENDING)
                waits[place.value] = max(waits[place.value], *waiting, 0.0)
        return waits

    def shares(self) -> dict[str, float]:
        """Return the dominant share of each namespace that has pods of ours, from 0 to 1."""
        accounts = self.engine.world.accounts
        namespaces = sorted({workload.namespace for workload in self.engine.workloads})
        return {namespace: accounts.share(namespace) / WHOLE for namespace in namespaces}


def _regarding(pod: PodRef) -> ObjectReference:
    return ObjectReference("v1", "Pod", pod.namespace, pod.name, pod.uid)
