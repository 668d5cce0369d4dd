"""One term of leadership: reflectors feed the engine, the engine decides, workers write.

The engine runs on the event loop between two awaits, so there is one writer and no lock. All tasks of a term run in one
TaskGroup. When leadership ends, they all end, binds already sent included.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import OwnerReference, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.kernels.warm import OF_PREEMPTION, warm
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError
from topo_scheduler.kube.connection.resources import (
    BUDGETS,
    NAMESPACES,
    NODE_TOPOLOGIES,
    NODES,
    OWNER_KINDS,
    PODS,
)
from topo_scheduler.kube.connection.waiting import set_or_due
from topo_scheduler.kube.reading.optional_kind import OptionalKind
from topo_scheduler.kube.reading.owner_chains import Missing
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.reading.pod_groups import GroupDirectory
from topo_scheduler.kube.reading.reflector import Reflector
from topo_scheduler.kube.reading.sinks import Calls, Deleted
from topo_scheduler.kube.writing.binder import Binder
from topo_scheduler.kube.writing.claims import ClaimWriter
from topo_scheduler.kube.writing.conditions import ConditionWriter
from topo_scheduler.kube.writing.events import EventRecorder
from topo_scheduler.kube.writing.evictions import Evictor
from topo_scheduler.kube.writing.group_conditions import GroupConditionWriter
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.kube.writing.volumes import VolumeWriter
from topo_scheduler.observability.metrics import Metrics
from topo_scheduler.plugins.isolation import Isolated
from topo_scheduler.recording.observed_engine import CallListener, new_engine, sinks_of_storage
from topo_scheduler.recovery.controller.runner import RecoveryRunner
from topo_scheduler.runtime.bind_plugins import BindPlugins
from topo_scheduler.runtime.cpu_pace import CpuPace
from topo_scheduler.runtime.device_watch import DeviceWatch
from topo_scheduler.runtime.executor import MAX_ADDITIONAL_WORKERS, Executor, Writers
from topo_scheduler.runtime.facts import Facts
from topo_scheduler.runtime.gpu_tables import GpuTableWork
from topo_scheduler.runtime.handover import Handover
from topo_scheduler.runtime.kernel_compilation import compile_apart
from topo_scheduler.runtime.owner_confirmation import OwnerConfirmation
from topo_scheduler.runtime.pending_pod_reader import PendingPodReader
from topo_scheduler.runtime.server_time import Drift
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.instructions import Bind, DryRunBind, EmitEvent, LogWarning, MarkComplete
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.pods.pod_groups import Serving

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 10.0
"""Maximum wait at the end of a term for binds in flight and marks.

The lease is held for longer if something may still take effect by then, see `LeaderElector`.
"""
DRAIN_STEPS_SECONDS: Final = (1.0, 8.0)
"""Maximum waits for binds in flight. After each, results are published: gangs whose binds are answered at once are
marked while those of others hang."""
STEP_SECONDS: Final = 0.005
"""Maximum time for which decisions block the event loop."""
TURNS_BETWEEN_STEPS: Final = 8
"""Turns of the event loop between two steps. A request takes several, so with one a bind would wait for many steps."""
EXPLAIN_SECONDS: Final = 0.002
"""Maximum time for which explanations block the event loop. One step of them may exceed it."""
EXPLAIN_DELAY_SECONDS: Final = 0.3
"""Maximum delay of explanations while binds are under way."""
HISTORY_SECONDS: Final = 10.0
"""Interval between checks that the API server still has the history and the time of this term, in seconds."""
OWNER_RETRY_SECONDS: Final = 5.0
OWNERS_SECONDS: Final = 10.0
"""Maximum wait for the lists of workloads. A kind that is not served or not allowed must not delay all others."""
GROUPS_SECONDS: Final = 5.0
"""Maximum wait for the lists of PodGroups, after those of workloads."""
LINEAGE_SECONDS: Final = 2.0
"""Maximum wait at the start of a term for owners that the scheduler must get one by one."""
LINEAGE_POLL_SECONDS: Final = 0.05
HALF_LINEAGE_SECONDS: Final = 5.0
"""The same for owners with both bound and pending pods, because one of their gangs may be partially bound."""
CAUSE_OF_NO_LIST: Final = "the API server is slow, or other lines of this log name a missing permission"
"""What to check if a list did not come in time: its own failures are logged where they occur."""


class Term:
    """Schedules while this replica leads. Each term builds a new object."""

    def __init__(
        self,
        configuration: Configuration,
        client: Client,
        metrics: Metrics,
        events: EventRecorder,
        *,
        handover: Handover | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        extensions: Extensions | None = None,
        isolated: Isolated | None = None,
        listeners: Sequence[CallListener] = (),
    ) -> None:
        epoch = wall() - clock()
        connection = configuration.scheduler.client_connection
        self._clock = clock
        self._wake = asyncio.Event()
        self._owners = OwnerDirectory(
            client,
            on_change=self._owner_changed,
            needed=self._awaited,
            clock=clock,
            annotations=extensions.annotations if extensions is not None else (),
        )
        self._listeners = listeners
        self.engine = new_engine(configuration, self._resolve, extensions, epoch, listeners)
        for api in GroupApi:  # pods are listed before the scheduler knows which PodGroups exist
            self.engine.groups_served(api, Serving.UNKNOWN, clock(), clock())
        self._plugins = BindPlugins(
            self.engine.extensions, isolated or Isolated(configuration.scheduler.plugin_timeout, metrics), metrics
        )
        self.engine.may_preempt(False)
        self._cpu_pace = CpuPace()
        self._gpu_tables = GpuTableWork(self.engine, self._start, self._wake.set)
        self._binder = Binder(
            client,
            concurrency=connection.max_binds_in_flight + MAX_ADDITIONAL_WORKERS,
            timeout=connection.bind_timeout,
            clock=clock,
        )
        self._workers = connection.max_binds_in_flight
        self._handover = handover or Handover(configuration.scheduler.scheduler_name)
        for api in self._handover.served:
            self.engine.groups_remembered(api, clock())
        self._conditions = ConditionWriter(client, busy=self.busy, clock=clock, wall=wall)
        self._group_conditions = GroupConditionWriter(client, busy=self.busy, clock=clock, wall=wall)
        self._owner_confirmation = OwnerConfirmation(self.engine, self._owners, client, clock)
        self._pending_pods = PendingPodReader(self.engine, client, clock, self._start, self._wake.set)
        self._executor = Executor(
            self.engine,
            Writers(
                self._binder,
                self._plugins,
                VolumeWriter(client),
                ClaimWriter(client),
                Evictor(client),
                PodStatusWriter(client),
                events,
                self._conditions,
                self._group_conditions,
            ),
            metrics,
            name=configuration.scheduler.scheduler_name,
            workers=self._workers,
            clock=clock,
            wall=wall,
            start=self._start,
            changed=self._wake.set,
            confirm=self._owner_confirmation.of_pending,
            read_pod=self._pending_pods.read,
            answered=self.api_server_answered,
        )
        self.recovery = RecoveryRunner(
            client,
            SchedulerView(self.engine),
            self.engine,
            configuration.topology.spec.recovery,
            gpu_resources=configuration.scheduler.gpu_resources,
            events=events,
            metrics=metrics,
            owners=self._owners,
            clock=clock,
            epoch=epoch,
            start=self._start,
            changed=self._wake.set,
        )
        facts = self._facts = Facts(
            self.engine, clock, self._facts_came, self._forget, self._handover.pod_groups_listed
        )
        self._groups = GroupDirectory(client, facts, clock=clock)
        self._nodes = Reflector(client, NODES, Calls(facts.nodes_applied, self._nodes_deleted), clock=clock)
        self._pods = Reflector(client, PODS, Calls(self._pods_applied, self._pods_deleted), clock=clock)
        self._namespaces = Reflector(
            client, NAMESPACES, Calls(facts.namespaces_applied, facts.namespaces_deleted), clock=clock
        )
        self._reflectors: dict[str, Reflector[Any]] = {
            "nodes": self._nodes,
            "pods": self._pods,
            "namespaces": self._namespaces,
            "poddisruptionbudgets": Reflector(
                client, BUDGETS, Calls(facts.budgets_applied, facts.budgets_deleted, facts.budgets_synced), clock=clock
            ),
            **{kind.plural: Reflector(client, kind, self._owners.sink(kind), clock=clock) for kind in OWNER_KINDS},
        }
        sinks = {sink.resource.plural: sink for sink in sinks_of_storage(self.engine, self._wake.set)}
        numa_zones = sinks.pop(NODE_TOPOLOGIES.plural)
        self._node_topologies = OptionalKind(client, NODE_TOPOLOGIES, numa_zones, clock=clock)
        self._storage = {
            plural: Reflector(client, sink.resource, sink, clock=clock, refused=sink.refused)
            for plural, sink in sinks.items()
        }
        self._reflectors |= self._storage
        self._fetching: set[tuple[str, OwnerReference]] = set()
        self._drift = Drift(client, wall)
        self.devices = DeviceWatch(lambda: self.engine.world.inventory, clock)
        self._filled = asyncio.Event()
        self._draining = False
        self._superseded = False
        """Whether another term must follow, as nothing that this one knows can be trusted."""
        self._warming = False
        """Whether the kernels of preemption are being compiled, or are ready."""
        self._group: asyncio.TaskGroup | None = None
        self._passing: dict[asyncio.Task[None], None] = {}
        """Tasks that end by themselves, the oldest first: cancelled in that order, each is the first in its queue."""

    # ------------------------------------------------------------ the life of a term

    async def run(self, leading: asyncio.Event) -> None:
        """Schedule until cancelled, then wait for binds in flight. ``leading`` is set while the engine decides.

        Returns by itself if the history of the API server was replaced, or its time is another one: a new term must
        list everything.
        """
        async with asyncio.TaskGroup() as background:
            self._group = background
            tasks = [background.create_task(work, name=name) for name, work in self._background()]
            try:
                await self._fill()
                leading.set()
                await self._decide()
            finally:
                leading.clear()
                await self._drain()
                for task in tasks:
                    task.cancel()
                for task in self._passing:
                    task.cancel()
                for listener in self._listeners:
                    listener.ends()

    def _background(self) -> list[tuple[str, Any]]:
        return [
            *((f"reflect {name}", reflector.run()) for name, reflector in self._reflectors.items()),
            *((f"bind {number}", self._executor.bind()) for number in range(self._workers)),
            ("node topologies", self._node_topologies.run()),
            ("recovery", self._heal()),
            ("owners", self._owners.run()),
            ("conditions", self._conditions.run()),
            ("groups", self._groups.run()),
            ("group conditions", self._group_conditions.run()),
            ("post-bind", self._plugins.run()),
            ("devices", self._watch_devices()),
            ("history", self._watch_history()),
        ]

    async def _heal(self) -> None:
        """Run recovery, once the caches are filled."""
        await self._filled.wait()
        await self.recovery.run()

    async def _watch_devices(self) -> None:
        """Report on devices, once the caches are filled."""
        await self._filled.wait()
        await self.devices.run()

    async def _watch_history(self) -> None:
        """End this term if etcd was restored from a backup, or if its clock has drifted from the API server's.

        After a restore, watches from before stay silent, and pods are unbound.
        """
        await self._filled.wait()
        while not self._superseded:
            await asyncio.sleep(HISTORY_SECONDS)
            with suppress(KubeError):
                if await self._pods.is_ahead():
                    self._supersede("the API server has an older state than this process has seen, as after a restore")
                elif behind := self._drift.seconds():
                    direction = "behind" if behind > 0 else "ahead of"
                    self._supersede(
                        f"the clock of this term is {abs(behind):.0f} s {direction} that of the API server; check the"
                        " time synchronisation of both"
                    )

    def _supersede(self, why: str) -> None:
        """Have another term follow this one."""
        log.warning("%s: everything is listed again", why)
        self._superseded = True
        self._wake.set()

    async def _fill(self) -> None:
        """Wait until every cache is filled and writes of an earlier leader can no longer take effect."""
        await self._nodes.synced.wait()
        await self._pods.synced.wait()
        await self._namespaces.synced.wait()
        await self._await_owners()
        await self._await_storage()
        await self._handover.settle(self._pods.relist)
        await self._await_lineages()
        await self.recovery.prepare()
        self._filled.set()
        # These objects stay in memory. Garbage collections that walk them would delay decisions, by half a second at
        # 100,000 nodes.
        gc.collect()
        gc.freeze()
        world = self.engine.world
        unlabelled = world.fabric.unlabelled()
        log.info(
            "caches filled, scheduling",
            extra={"nodes": len(world.nodes), "pods": len(self._pods), "leaves": len(world.layout.paths)},
        )
        if unlabelled:
            log.warning(
                "%d of %d nodes have no labels for their position in the fabric: they share domains called unlabelled;"
                " docs/how-to/label-nodes.md lists the labels",
                len(unlabelled),
                len(world.nodes),
                extra={"examples": unlabelled[:5]},
            )

    async def _await_owners(self) -> None:
        """Wait a moment for the lists of workloads. After that, the scheduler gets each missing owner by itself."""
        try:
            async with asyncio.timeout(OWNERS_SECONDS):
                for kind in OWNER_KINDS:
                    await self._reflectors[kind.plural].synced.wait()
        except TimeoutError:
            log.warning(
                "scheduling without lists of %s: each owner is asked for instead; %s",
                self._unsynced(),
                CAUSE_OF_NO_LIST,
            )
        try:
            async with asyncio.timeout(GROUPS_SECONDS):
                await self._groups.settled()
        except TimeoutError:
            log.warning("scheduling without lists of PodGroups: pods that name one wait for it; %s", CAUSE_OF_NO_LIST)

    def _understand_again(self) -> None:
        """Read again the pods that were listed before their owners.

        The directory of owners reports changes only, not owners that it sees for the first time.
        """
        controllers = (pod.metadata.controller for pod in self.engine.arrivals.unresolved())
        for uid in {controller.uid: None for controller in controllers if controller is not None}:
            self._owner_changed(uid)

    async def _await_lineages(self) -> None:
        """Resolve the owners of every listed pod before the first decision, if the API server answers in time.

        An earlier decision might take the places that a partially bound gang still needs.
        """
        arrivals, began = self.engine.arrivals, self._clock()
        self._understand_again()
        while True:
            await self._reread(began + LINEAGE_SECONDS)
            unresolved = arrivals.unresolved()
            half = [pod for pod in unresolved if arrivals.has_bound_siblings(pod)]
            if not unresolved or self._clock() - began >= (HALF_LINEAGE_SECONDS if half else LINEAGE_SECONDS):
                break
            self._fetch_owners([*half, *unresolved])
            await asyncio.sleep(LINEAGE_POLL_SECONDS)
        if unresolved:
            log.warning(
                "scheduling before the owners of %d pods are known, %d of them with bound siblings",
                len(unresolved),
                len(half),
                extra={"examples": [pod.key for pod in (half or unresolved)[:5]]},
            )

    async def _reread(self, until: float) -> None:
        """Reread pods whose owners changed, in slices. The deadline ends this if a tenant keeps editing."""
        while (due := self.engine.arrivals.reread_due()) is not None and (now := self._clock()) < until:
            if due <= now:
                self.engine.reread(now, time.perf_counter)
            await asyncio.sleep(max(0.0, min(due, until) - now))

    async def _await_storage(self) -> None:
        """Wait for claims, volumes and PodDisruptionBudgets.

        If they can't be listed, the scheduler starts anyway: pods without claims that preempt no other need no list.
        """
        try:
            async with asyncio.timeout(OWNERS_SECONDS):
                for reflector in self._storage.values():
                    await reflector.tried.wait()
                await self._node_topologies.tried.wait()
                await self._reflectors["poddisruptionbudgets"].tried.wait()
        except TimeoutError:
            pass
        if unlisted := ", ".join(self.engine.world.around.storage.unlisted):
            log.warning("pods with volume claims wait until these can be listed: %s; %s", unlisted, CAUSE_OF_NO_LIST)
        if unlisted := ", ".join(self.engine.world.inventory.unlisted):
            log.warning("pods with resource claims wait until these can be listed: %s; %s", unlisted, CAUSE_OF_NO_LIST)
        if not self.engine.preempting.budgets.known:
            log.warning(
                "no pod is evicted or moved to make room for others until these can be listed: %s; %s",
                BUDGETS.described,
                CAUSE_OF_NO_LIST,
            )

    def api_server_answered(self, seconds: float) -> None:
        """Note how long a bind took, or a renewal of the Lease, in seconds."""
        self._cpu_pace.answered(seconds, self._clock())

    async def _decide(self) -> None:
        """Run a step of the engine whenever there is work, until this term is superseded."""
        while not self._superseded:
            self._wake.clear()
            now, began, placed = self._clock(), time.perf_counter(), False
            for instruction in self.engine.step(now, time.perf_counter, STEP_SECONDS):
                placed |= isinstance(instruction, Bind | DryRunBind)
                self._executor.carry_out(instruction)
            rest = 0.0 if placed else self._cpu_pace.rest(time.perf_counter() - began, now)
            self._fetch_owners(self.engine.arrivals.take_unresolved())
            if self.engine.world.groups.take_wondered():
                self._groups.ask_again()
            if self.engine.preempting.take_wanted() and not self._warming:
                self._warming = True  # each workload that is tried meanwhile wants it again
                self._start(self._warm_preemption(), "kernels of preemption")
            self._gpu_tables.look()
            if rest:
                await asyncio.sleep(rest)
            if self.engine.pending_work:
                await let_io_run()
                continue
            why, resumes = self.engine.why, self._cpu_pace.due(now)
            if why.due(now) and resumes <= now and (not self.busy() or why.waited(now) > EXPLAIN_DELAY_SECONDS):
                began = time.perf_counter()
                for instruction in self.engine.explain(now, time.perf_counter, EXPLAIN_SECONDS):
                    self._executor.carry_out(instruction)
                self._cpu_pace.spent(time.perf_counter() - began, now)
                await let_io_run()
                continue
            later = resumes if resumes > now else now + EXPLAIN_DELAY_SECONDS
            explains = later if why.due(now) else why.next_due()
            times = (self.engine.next_due(), explains)
            due = min((at for at in times if at is not None), default=None)
            await set_or_due(self._wake, due, self._clock)

    async def _warm_preemption(self) -> None:
        await compile_apart(OF_PREEMPTION)
        warmth = await asyncio.to_thread(warm, OF_PREEMPTION)
        log.info("kernels of preemption ready", extra={"seconds": round(warmth.seconds, 2), "cached": warmth.cached})
        self.engine.may_preempt()
        self._wake.set()

    async def _drain(self) -> None:
        """Drop binds that have not started, wait for attempts on the wire, and mark the gangs that ran complete.

        No attempt is repeated: a bind that hangs must not delay the pods of all other namespaces.

        Writes of lower priority than binds go out meanwhile. The next leader would roll back an unmarked gang that has
        lost a member.
        """
        self._draining = True
        self._executor.drop_binds()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                for seconds in DRAIN_STEPS_SECONDS:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await self._binder.drain()
                    self._publish_results()
                    if not self._binder.in_flight:
                        break
                await self._executor.finish_marks()
        except TimeoutError:
            log.error("writes were still in flight when this term ended", extra={"binds": self._binder.in_flight})

    def _publish_results(self) -> None:
        """Publish which pods are bound and which gangs complete. Other instructions of this step are dropped.

        Events about other decisions are dropped with them: the next leader decides.
        """
        for instruction in self.engine.step(self._clock(), time.perf_counter, 0.0):
            if isinstance(instruction, EmitEvent) and instruction.reason != Reason.SCHEDULED:
                continue
            if isinstance(instruction, EmitEvent | LogWarning | MarkComplete):
                self._executor.carry_out(instruction)

    # ------------------------------------------------------------ facts in, in addition to those of `Facts`

    def configure(self, configuration: Configuration) -> None:
        """Apply a changed TopologySchedulerConfig."""
        self.engine.configure(configuration)
        self.recovery.configure(configuration.topology.spec.recovery)
        self._wake.set()

    def _pods_applied(self, pods: Sequence[Pod]) -> None:
        self._handover.pods_listed(pods)
        self.recovery.pods_applied(pods)
        self._facts.pods_applied(pods)

    def _pods_deleted(self, references: Sequence[Deleted]) -> None:
        self.recovery.pods_deleted(reference.uid for reference in references)
        self._facts.pods_deleted(references)

    def _nodes_deleted(self, references: Sequence[Deleted]) -> None:
        self.recovery.nodes_deleted(references)  # first, as the engine still knows their domains
        self._facts.nodes_deleted(references)

    def _facts_came(self) -> None:
        self._wake.set()
        self.recovery.facts_changed()

    def _forget(self, uid: str) -> None:
        """Drop pending writes about a pod that is gone or bound."""
        self._conditions.forget(uid)
        self._plugins.forget(uid)

    def _owner_changed(self, uid: str) -> None:
        self.engine.owner_changed(uid, self._clock())
        self.recovery.owner_changed(uid)
        self._wake.set()

    def _awaited(self, uid: str) -> bool:
        return self.engine.arrivals.below(uid) or self.recovery.needs_owner(uid)

    def _resolve(self, pod: Pod) -> Lineage | None:
        if pod.metadata.controller is None:
            return Lineage()
        chain = self._owners.resolve(pod.metadata)
        if isinstance(chain, Missing):
            return None
        return Lineage(chain.owners, chain.complaint, chain.gone, chain.doubt)

    def _fetch_owners(self, pods: Sequence[Pod]) -> None:
        """Get the owners of pods that need them to be scheduled, in one task per controller."""
        for pod in pods:
            controller = pod.metadata.controller
            if controller is not None and (pod.metadata.namespace, controller) not in self._fetching:
                self._fetching.add((pod.metadata.namespace, controller))
                self._start(self._fetch_owner(pod, controller), f"owner {controller.uid}")

    async def _fetch_owner(self, pod: Pod, controller: OwnerReference) -> None:
        # Stop when this pod is gone. If other pods need the answer, the scheduler starts another task for them.
        while self.engine.arrivals.pending(pod.metadata.uid) is not None:
            try:
                await self._owners.complete(pod.metadata)
                break
            except KubeError as error:
                where = {"namespace": pod.metadata.namespace}
                log.warning("owners of pod %s are not known yet: %s", pod.key, error, extra=where)
                await asyncio.sleep(OWNER_RETRY_SECONDS)
        self._fetching.discard((pod.metadata.namespace, controller))
        self._owner_changed(controller.uid)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task of this term that ends by itself."""
        assert self._group is not None
        guarded = _guarded(work, name)
        try:
            task = self._group.create_task(guarded, name=name)
        except RuntimeError:  # the term ends because a task failed: other tasks end in order, and none starts
            guarded.close()
            work.close()
            return
        self._passing[task] = None
        task.add_done_callback(lambda ended: self._passing.pop(ended, None))
        task.add_done_callback(lambda _: work.close())  # of a task that was cancelled before it began

    # ------------------------------------------------------------ observation

    def busy(self) -> bool:
        """Return whether binds are under way, for which all other writes wait."""
        return not self._draining and self._executor.busy

    def not_synced(self) -> str:
        """Return the names of caches that are not filled yet, or an empty string."""
        needed = ("nodes", "pods", "namespaces")
        return ", ".join(name for name in needed if not self._reflectors[name].synced.is_set())

    def _unsynced(self) -> str:
        others = ((name, reflector) for name, reflector in self._reflectors.items() if name not in self._storage)
        return ", ".join(name for name, reflector in others if not reflector.synced.is_set())

    def staleness(self) -> dict[str, float]:
        """Return for each watch the seconds since its last sign of life."""
        now = self._clock()
        own = {name: reflector.staleness(now) for name, reflector in self._reflectors.items()}
        own[NODE_TOPOLOGIES.plural] = self._node_topologies.staleness(now)
        for resource, seconds in self.recovery.staleness().items():
            own[resource] = max(seconds, own.get(resource, 0.0))
        return own | self._groups.staleness(now)


async def _guarded(work: Coroutine[Any, Any, None], name: str) -> None:
    """Do what concerns one object. A fault in it must stop nothing else."""
    try:
        await work
    except Exception:
        log.exception("internal error in a task, please report it: %s", name)


async def let_io_run() -> None:
    """Let requests and watches go on before the next step."""
    for _ in range(TURNS_BETWEEN_STEPS):
        await asyncio.sleep(0)
