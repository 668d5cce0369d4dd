"""Run a workload on a cluster in virtual time: an event heap, and the decisions of the daemon's engine.

The engine receives the objects that an API server would send. The runner executes its instructions at once, or after a
configured latency, and sends the resulting objects back like a watch. Time advances from event to event: an arrival,
the end of a workload, a completed bind, or a timer of the engine. No decision depends on the wall clock.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

from topo_scheduler.api.annotations import GPU_INDEX, WRITTEN
from topo_scheduler.api.fractions import written_indexes
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.reasons import Reason
from topo_scheduler.kube.connection.resources import RESOURCE_CLAIMS
from topo_scheduler.kube.reading.storage import store_sinks
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import (
    Bind,
    BindOutcome,
    DryRunBind,
    EmitEvent,
    Evict,
    EvictionOutcome,
    Instruction,
    LogWarning,
    Preempt,
    PrepareVolumes,
    RecordDecision,
    WriteClaims,
)
from topo_scheduler.scheduling.queueing.queue_keys import least_of
from topo_scheduler.simulation.cases.claims import capacity_of_slices, gpus_of_slices
from topo_scheduler.simulation.cases.model import Arrival, ClusterCase
from topo_scheduler.simulation.virtual.claims import VirtualClaims
from topo_scheduler.simulation.virtual.history import BEFORE, RunHistory, Stay, WorkloadOutcome
from topo_scheduler.simulation.virtual.objects import (
    Annotations,
    Owners,
    bound_pod,
    pending_pod,
    succeeded_pod,
    terminating_pod,
)
from topo_scheduler.state.decision import Verdict
from topo_scheduler.state.devices.claim_writes import DeleteClaim, after
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE
from topo_scheduler.state.pods.pod_groups import PodGroup, Serving
from topo_scheduler.state.pods.workloads import Stage
from topo_scheduler.state.topology.fabric import Fabric

IDLE_TIMEOUT_SECONDS: Final = 86_400.0
"""Virtual seconds without any change after which the run ends; pending workloads then count as never started."""
_MAX_STEPS: Final = 10_000
"""Largest number of engine steps at one time; more means that the engine does not settle."""
_MAX_EXPLAINED_WORKLOADS: Final = 200
"""Largest number of never-started workloads that get a reason at the end of a run."""
_MAX_IDLE_TIMERS: Final = 1_000
"""Consecutive engine timers without a bind, after the last arrival and end, that end the run."""
_MAX_WARNINGS: Final = 100
_MAX_BATCH_WORKLOADS: Final = 64
"""Largest number of workloads that arrive together in a fill, to share the fixed cost of a step."""


@dataclass(slots=True)
class _RunningWorkload:
    """An active workload, or a pod that ran before the first arrival and has no outcome of its own.

    ``waiting`` are uids of unbound pods. ``ends`` is a generation number: it invalidates a scheduled end after an
    eviction. ``renewed`` counts recreated pods.
    """

    number: int
    arrival: Arrival
    outcome: WorkloadOutcome
    pods: dict[str, Pod] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    stays: dict[str, Stay] = field(default_factory=dict)
    ends: int = 0
    renewed: int = 0


class VirtualRunner:
    """Runs one engine on one cluster."""

    def __init__(
        self,
        engine: Engine,
        owners: Owners,
        cluster: ClusterCase,
        *,
        levels: SchedulerConfig | None = None,
        annotations: Annotations = dict,
        group_seen: Callable[[PodGroup], PodGroup] = lambda group: group,
        latency: float = 0.0,
    ) -> None:
        """Load a cluster into an engine.

        Args:
            engine: a new engine.
            owners: the owners that the engine resolves.
            cluster: the state before the first arrival.
            levels: topology levels for the history; independent of what the engine knows.
            annotations: selects the pod annotations that the policy sees.
            group_seen: returns a PodGroup as the policy sees it.
            latency: seconds from a decision until its pods run.
        """
        self.engine = engine
        self.now = 0.0
        self.history = _history_of(cluster, levels or SchedulerConfig(), engine)
        self._owners = owners
        self._annotations = annotations
        self._group_seen = group_seen
        self._latency = latency
        self._scheduler = engine.config.scheduler.scheduler_name
        self._node_of = {name: number for number, name in enumerate(self.history.nodes)}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._jobs: dict[str, _RunningWorkload] = {}
        """Workload by uid of each of its pods."""
        self._order = False
        self._batch_start = 0
        """In a fill: number of the first arrival of the current batch."""
        self._load_cluster(cluster)

    # ------------------------------------------------------------ event loop

    def stream(self, arrivals: Sequence[Arrival], progress: Callable[[int], None] = lambda _: None) -> RunHistory:
        """Run workloads at their arrival times until all have ended or nothing changes any more."""
        pending = list(reversed(arrivals))
        idle, last = 0, 0.0
        self._settle()
        while True:
            due = self.engine.next_due()
            next_events = [pending[-1].at] if pending else []
            next_events += [self._events[0][0]] if self._events else []
            if not next_events and (due is None or idle >= _MAX_IDLE_TIMERS or due - last > IDLE_TIMEOUT_SECONDS):
                break
            self.now = max(self.now, min(next_events + ([] if due is None else [due])))
            stays_before = len(self.history.stays)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            arriving = []
            while pending and pending[-1].at <= self.now:
                arriving.append(pending.pop())
            self._arrive(arriving)
            self._settle()
            changed = bool(next_events and min(next_events) <= self.now) or len(self.history.stays) != stays_before
            idle, last = (0, self.now) if changed else (idle + 1, last)
            if arriving:
                progress(len(arriving))
        self.history.end = last
        return self._finished()

    def fill(self, arrivals: Sequence[Arrival], progress: Callable[[int], None] = lambda _: None) -> RunHistory:
        """Place workloads in order, each before the next one; no workload ends, and no time passes."""
        self._order = self.history.order = True
        self._settle()
        for batch in _batches(arrivals, {job.arrival.pods[0].spec.priority for job in self._jobs.values()}):
            self._batch_start = len(self.history.outcomes)
            self._arrive(batch)
            self._settle()
            progress(len(batch))
        self.history.end = float(len(arrivals))
        return self._finished()

    def _finished(self) -> RunHistory:
        """Set size and reason of workloads that never ran completely, and return the history."""
        for job in self._jobs.values():
            members = [entry[1] for uid in job.pods if (entry := self.engine.workloads.of_pod(uid)) is not None]
            if job.outcome.started == inf:
                job.outcome.milli = sum(1000 * member.cls.gpus + member.cls.share for member in members)
        if not self._order:
            unstarted = {job.number: job for job in self._jobs.values() if job.outcome.started == inf}
            self._give_reasons(list(unstarted.values())[:_MAX_EXPLAINED_WORKLOADS])
        return self.history

    def _give_reasons(self, jobs: Iterable[_RunningWorkload]) -> None:
        """Set the reason why workloads can't be placed. During the run, attempts skip this analysis to save time."""
        world, silent = self.engine.world, self.engine.attempts
        silent.drop_caches()
        attempts = Attempts(silent.planner, silent.sharing, silent.replacements, silent.spares)
        for job in jobs:
            entry = self.engine.workloads.of_pod(next(iter(job.waiting), ""))
            pending = entry[0].at(Stage.PENDING) if entry is not None else []
            if entry is None or not pending or entry[0].problem:
                continue
            members = pending[: least_of(entry[0])]
            decision = attempts.decide(entry[0], members, (), world.layout, world.improvements, self.now)
            if decision.verdict is Verdict.UNSCHEDULABLE:
                job.outcome.reason = decision.message

    def _history_time(self, job: _RunningWorkload) -> float:
        """Return the time for the history; in a fill the number of the current arrival."""
        return float(max(job.number, self._batch_start)) if self._order else self.now

    def _at(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), action))

    # ------------------------------------------------------------ input of the engine

    def _load_cluster(self, cluster: ClusterCase) -> None:
        engine = self.engine
        self._owners.add(cluster.owners)
        engine.namespaces_applied(cluster.namespaces)
        engine.budgets_applied(cluster.budgets)
        engine.budgets_known()
        engine.may_preempt()
        sinks = {
            sink.resource.plural: sink for sink in store_sinks(engine.world.around.storage, engine.world.inventory)
        }
        for plural, sink in sinks.items():
            sink.applied(cluster.storage.get(plural, ()))
            sink.synced()
        self._claims = VirtualClaims(
            engine.world.inventory, sinks[RESOURCE_CLAIMS.plural], cluster.templates, gpus_of_slices(cluster)
        )
        engine.nodes_applied(cluster.nodes, self.now)
        self._apply_groups(cluster.groups)
        running = [pod for pod in cluster.pods if pod.spec.node_name]
        engine.pods_applied(running, self.now)
        for pod in running:
            entry = engine.world.ledger.get(pod.metadata.uid)
            if entry is not None and pod.spec.node_name in self._node_of:
                amounts = dict(entry.amounts)
                milli = 1000 * amounts.get(GPU, 0) + amounts.get(GPU_SHARE, 0) + self._claims.milli_of(pod)
                node = self._node_of[pod.spec.node_name]
                stay = Stay(BEFORE, pod.metadata.name, node, milli, entry.devices, 0.0)
                self.history.stays.append(stay)
                self._jobs[pod.metadata.uid] = _ran_before(pod, stay)
        pending = [pod for pod in cluster.pods if not pod.spec.node_name and not pod.finished]
        ours = [pod for pod in pending if pod.spec.scheduler_name == self._scheduler]
        self._arrive([Arrival(pod.key, 0.0, None, (pod,)) for pod in ours])

    def _apply_groups(self, groups: Iterable[PodGroup]) -> None:
        visible_groups = [self._group_seen(group) for group in groups]
        for api in sorted({group.key.api for group in visible_groups}):
            self.engine.groups_served(api, Serving.LISTED, self.now, self.now)
        if visible_groups:
            self.engine.groups_applied(visible_groups, self.now)

    def _arrive(self, arrivals: Iterable[Arrival]) -> None:
        pods: list[Pod] = []
        for arrival in arrivals:
            number = len(self.history.outcomes)
            outcome = WorkloadOutcome(arrival.name, len(arrival.pods), 0.0)
            self.history.outcomes.append(outcome)
            outcome.arrived = float(number) if self._order else arrival.at
            self._owners.add(arrival.owners)
            self._apply_groups(arrival.groups)
            self._claims.arrive(arrival)
            job = _RunningWorkload(number, arrival, outcome)
            self._warn_of_missing_owners(arrival)
            # Workloads with equal arrival times keep the order of the source.
            created = self.now + number % 1_000_000 / 1e6
            for index, pod in enumerate(arrival.pods):
                annotations = self._annotations(pod.metadata.annotations)
                uid = pod.metadata.uid or f"pod-{number}-{index}"
                created_pod = pending_pod(pod, self._scheduler, created, annotations, uid)
                self._add_pod(job, self._claims.with_claims(pod, created_pod, arrival), pods)
        if pods:
            self.engine.pods_applied(pods, self.now)

    def _warn_of_missing_owners(self, arrival: Arrival) -> None:
        """Warn that pods may lack the gang and the annotations of an owner that the source does not contain."""
        for owner in sorted({self._owners.missing(pod) for pod in arrival.pods} - {""}):
            self._warn(
                f"{owner}, which owns pods of {arrival.name}, is not among the objects read: its annotations and its"
                " gang are not known, so these pods may be placed one by one; add it"
            )

    def _warn(self, message: str) -> None:
        if len(self.history.complaints) < _MAX_WARNINGS:
            self.history.complaints.append(message)

    def _add_pod(self, job: _RunningWorkload, pod: Pod, created_pods: list[Pod]) -> None:
        uid = pod.metadata.uid
        job.pods[uid] = pod
        job.waiting.add(uid)
        self._jobs[uid] = job
        created_pods.append(pod)

    # ------------------------------------------------------------ instructions of the engine

    def _settle(self) -> None:
        """Step the engine and execute its instructions until it has no work at the current time."""
        engine = self.engine
        for _ in range(_MAX_STEPS):
            began = time.perf_counter()
            # The runner measures the time from outside: decisions must not depend on it.
            instructions = engine.step(self.now, lambda: 0.0)
            self.history.busy += time.perf_counter() - began
            binds = self._carry_out(instructions)
            if binds and self._latency:
                self._at(self.now + self._latency, partial(self._bound, binds))
            elif binds:
                self._bound(binds)
            if not binds and not engine.pending_work:
                break
        else:
            raise RuntimeError("the engine never comes to rest; please report this with the cluster and the workload")

    def _carry_out(self, instructions: Iterable[Instruction]) -> list[Bind]:
        engine, binds = self.engine, list[Bind]()
        for instruction in instructions:
            if isinstance(instruction, Bind):
                binds.append(instruction)
            elif isinstance(instruction, RecordDecision):
                self.history.decisions += 1
            elif isinstance(instruction, EmitEvent) and instruction.reason is Reason.FAILED_SCHEDULING:
                if (job := self._jobs.get(instruction.pod.uid)) is not None:
                    job.outcome.reason = instruction.message
            elif isinstance(instruction, DryRunBind):
                engine.rehearsed(instruction.bind.pod.uid, BindOutcome.BOUND, "", self.now)
            elif isinstance(instruction, Preempt):
                engine.eviction_finished(instruction.pod.uid, EvictionOutcome.GOING, "", self.now)
                self._evict(instruction.pod.uid)
            elif isinstance(instruction, Evict):
                self._evict(instruction.pod.uid)
            elif isinstance(instruction, PrepareVolumes):
                engine.volumes_written(instruction.pod.uid, (), "volumes are not made in simulations")
            elif isinstance(instruction, WriteClaims):
                claims = engine.world.inventory.claims
                written = [(write, after(write, claims.get(write.key))) for write in instruction.writes]
                engine.claims_written(instruction.pod.uid, written, "", self.now)
                for write in instruction.writes:
                    if isinstance(write, DeleteClaim):
                        engine.world.inventory.drop(claims, write.key)
            elif isinstance(instruction, LogWarning):
                self._warn(instruction.message)
        return binds

    def _bound(self, binds: Sequence[Bind]) -> None:
        """Bind pods that may still be bound, and send them back as running."""
        running = []
        for bind in binds:
            uid = bind.pod.uid
            job = self._jobs.get(uid)
            if job is None or uid not in job.waiting:
                continue
            if refusal := self.engine.may_bind(uid):
                self.engine.bind_finished(uid, BindOutcome.WITHDRAWN, refusal, self.now)
                continue
            pod = job.pods[uid] = bound_pod(job.pods[uid], bind, self.now)
            running.append(pod)
            self._record_start(job, uid, bind)
        self.engine.pods_applied(running, self.now)

    def _record_start(self, job: _RunningWorkload, uid: str, bind: Bind) -> None:
        entry = self.engine.workloads.of_pod(uid)
        cls = entry[1].cls if entry is not None else None
        milli = (1000 * cls.gpus + cls.share if cls is not None else 0) + self._claims.milli_of(job.pods[uid])
        devices = written_indexes(bind.annotations, GPU_INDEX)
        stay = Stay(job.number, bind.pod.name, self._node_of[bind.node], milli, devices, self._history_time(job))
        self.history.stays.append(stay)
        job.stays[uid] = stay
        job.waiting.discard(uid)
        if not job.waiting:
            job.outcome.started = min(job.outcome.started, stay.start)
            job.outcome.milli = sum(stay.milli for stay in job.stays.values())
            if job.arrival.seconds is not None and not self._order:
                self._at(self.now + job.arrival.seconds, partial(self._end, job, job.ends))

    def _end(self, job: _RunningWorkload, ends: int) -> None:
        """End a workload, unless an eviction has invalidated this end."""
        if ends != job.ends:
            return
        job.outcome.ended = self.now
        for stay in job.stays.values():
            stay.end = self.now
        self.engine.pods_applied([succeeded_pod(pod) for pod in job.pods.values()], self.now)
        self._claims.ended(job.pods.values())
        for uid in job.pods:
            self.engine.pod_deleted(uid, self.now)
            del self._jobs[uid]
        self._owners.drop(job.arrival.owners)
        for group in job.arrival.groups:
            self.engine.group_deleted(group.key, group.uid, self.now)

    def _evict(self, uid: str) -> None:
        """Evict a pod. Its controller recreates it, and its workload starts over once all pods run again."""
        job = self._jobs.pop(uid, None)
        if job is None:
            return
        self.history.evictions += 1
        pod = job.pods.pop(uid)
        self.engine.pods_applied([terminating_pod(pod, self.now)], self.now)
        self._claims.ended([pod])
        self.engine.pod_deleted(uid, self.now)
        stay = job.stays.pop(uid, None)
        if stay is not None:
            stay.end = self._history_time(job)
        if not job.waiting:
            job.outcome.restarts += 1
        job.ends += 1
        job.renewed += 1
        source = next(candidate for candidate in job.arrival.pods if candidate.metadata.name == pod.metadata.name)
        annotations = self._annotations(source.metadata.annotations)
        # A pod that ran before carries annotations that the scheduler wrote.
        annotations = {name: value for name, value in annotations.items() if name not in WRITTEN}
        created_pods: list[Pod] = []
        renewed = pending_pod(source, self._scheduler, self.now, annotations, f"{uid}~{job.renewed}")
        self._add_pod(job, self._claims.with_claims(source, renewed, job.arrival), created_pods)
        self.engine.pods_applied(created_pods, self.now)


def _ran_before(pod: Pod, stay: Stay) -> _RunningWorkload:
    uid, arrival = pod.metadata.uid, Arrival(pod.key, 0.0, None, (pod,))
    return _RunningWorkload(BEFORE, arrival, WorkloadOutcome(arrival.name, 1, 0.0), {uid: pod}, stays={uid: stay})


def _batches(arrivals: Sequence[Arrival], running: Collection[int]) -> Iterator[list[Arrival]]:
    """Yield batches of arrivals of equal priority and namespace; the engine attempts these in their order.

    If preemption is possible, each batch has one arrival, so that evictions belong to it. ``running`` are the
    priorities of pods that ran before.
    """
    batch: list[Arrival] = []
    batch_key: object = None
    limit = (
        _MAX_BATCH_WORKLOADS
        if len({pod.spec.priority for arrival in arrivals for pod in arrival.pods} | {*running}) <= 1
        else 1
    )
    for arrival in arrivals:
        key = {(pod.spec.priority, pod.metadata.namespace) for pod in arrival.pods}
        if batch and (key != batch_key or len(batch) == limit):
            yield batch
            batch = []
        batch.append(arrival)
        batch_key = key
    if batch:
        yield batch


def _history_of(cluster: ClusterCase, levels: SchedulerConfig, engine: Engine) -> RunHistory:
    fabric = Fabric(levels.topology)
    for number, node in enumerate(cluster.nodes):
        fabric.put(number, node.metadata.name, node.metadata.labels)
    layout = fabric.layout(len(cluster.nodes))
    capacity = []
    in_slices = capacity_of_slices(cluster)
    for node in cluster.nodes:
        amounts = engine.world.resources.amounts(node.status.allocatable or node.status.capacity)
        capacity.append(1000 * amounts.get(GPU, 0) + in_slices.get(node.metadata.name, 0))
    return RunHistory(
        tuple(node.metadata.name for node in cluster.nodes),
        tuple(layout.paths[leaf] for leaf in layout.leaf_of_row.tolist()),
        layout.levels,
        tuple(capacity),
        cordoned=tuple(number for number, node in enumerate(cluster.nodes) if node.spec.unschedulable),
    )
