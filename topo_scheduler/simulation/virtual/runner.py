"""Runs a workload on a cluster in virtual time: events in a heap, decisions by the engine of the daemon.

The engine is fed the objects that an API server would tell of; what it wants done is carried out at once, or after a
stated latency, and told back by the watch. Time passes from event to event: an arrival, the end of a workload, a bind
that lands, or a moment at which the engine itself has something to do. Nothing depends on the machine's clock.
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
from topo_scheduler.kube.storage import storage_sinks
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
)
from topo_scheduler.scheduling.queueing.standing import least_of
from topo_scheduler.simulation.cases.model import Arrival, ClusterCase
from topo_scheduler.simulation.virtual.history import BEFORE, RunHistory, Stay, WorkloadOutcome
from topo_scheduler.simulation.virtual.objects import Annotations, Owners, arriving, bound, ended, going
from topo_scheduler.state.decision import Verdict
from topo_scheduler.state.fabric import Fabric
from topo_scheduler.state.groups import PodGroup, Serving
from topo_scheduler.state.resources import GPU, GPU_SHARE
from topo_scheduler.state.workloads import Stage

PATIENCE: Final = 86_400.0
"""Virtual seconds without any change, after which those who wait then are taken to wait for ever."""
_STEPS: Final = 10_000
"""Steps at one moment at most: more means that the engine never comes to rest."""
_EXPLAINED: Final = 200
"""Workloads of which it is found out at the end why they never ran."""
_TIMERS: Final = 1_000
"""Moments of the engine's own in a row at which nothing is bound, after all else is over."""
_COMPLAINTS: Final = 100
_BATCH: Final = 64
"""Workloads that are told of together in a fill: what a step costs beside its decisions is paid once for all."""


@dataclass(slots=True)
class _RunningWorkload:
    """A workload on its way, or a pod that ran before, of which nothing is told as of a workload.

    ``waiting`` pods that are not bound; ``ends`` tells its end from those called off.
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
    """One engine, one cluster, and what happens to them."""

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
        after_step: Callable[["VirtualRunner"], None] = lambda _: None,
    ) -> None:
        """Tell an engine of a cluster.

        Args:
            engine: on which nothing has happened yet.
            owners: from which it learns of owners.
            cluster: what is there before the first arrival.
            levels: by which it is told where nodes hang, whatever the engine knows of it.
            annotations: those of pods that the policy sees.
            group_seen: returns a PodGroup as the policy sees it.
            latency: seconds from a decision until its pods run.
            after_step: called whenever the engine has come to rest.
        """
        self.engine = engine
        self.now = 0.0
        self.history = _history_of(cluster, levels or SchedulerConfig(), engine)
        self.after_step = after_step
        self._owners = owners
        self._annotations = annotations
        self._group_seen = group_seen
        self._latency = latency
        self._scheduler = engine.config.scheduler.scheduler_name
        self._node_of = {name: number for number, name in enumerate(self.history.nodes)}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._jobs: dict[str, _RunningWorkload] = {}
        """By uid of the pod."""
        self._order = False
        self._turn = 0
        """In a fill the number of the arrival that is tried, or of the first of those tried together."""
        self._tell_of(cluster)

    # ------------------------------------------------------------ the course of time

    def stream(self, arrivals: Sequence[Arrival], progress: Callable[[int], None] = lambda _: None) -> RunHistory:
        """Let workloads come, run and end at their times, until all have ended or nothing changes any more."""
        pending = list(reversed(arrivals))
        idle, last = 0, 0.0
        self._settle()
        while True:
            due = self.engine.next_due()
            told = [pending[-1].at] if pending else []
            told += [self._events[0][0]] if self._events else []
            if not told and (due is None or idle >= _TIMERS or due - last > PATIENCE):
                break
            self.now = max(self.now, min(told + ([] if due is None else [due])))
            before = len(self.history.stays)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            fresh = []
            while pending and pending[-1].at <= self.now:
                fresh.append(pending.pop())
            self._arrive(fresh)
            self._settle()
            changed = bool(told and min(told) <= self.now) or len(self.history.stays) != before
            idle, last = (0, self.now) if changed else (idle + 1, last)
            if fresh:
                progress(len(fresh))
        self.history.end = last
        return self._finished()

    def fill(self, arrivals: Sequence[Arrival], progress: Callable[[int], None] = lambda _: None) -> RunHistory:
        """Let workloads come one after the other, each tried before the next; nobody leaves, and no time passes."""
        self._order = self.history.order = True
        self._settle()
        for some in _alike(arrivals, {job.arrival.pods[0].spec.priority for job in self._jobs.values()}):
            self._turn = len(self.history.outcomes)
            self._arrive(some)
            self._settle()
            progress(len(some))
        self.history.end = float(len(arrivals))
        return self._finished()

    def _finished(self) -> RunHistory:
        """Note the size of those that never ran whole."""
        for job in self._jobs.values():
            members = [found[1] for uid in job.pods if (found := self.engine.workloads.of_pod(uid)) is not None]
            if job.outcome.started == inf:
                job.outcome.milli = sum(1000 * member.cls.gpus + member.cls.share for member in members)
        if not self._order:
            never = {job.number: job for job in self._jobs.values() if job.outcome.started == inf}
            self._give_reasons(list(never.values())[:_EXPLAINED])
        return self.history

    def _give_reasons(self, jobs: Iterable[_RunningWorkload]) -> None:
        """Find out why workloads have no place: while time passes no attempt counts nodes by reason, to be quick."""
        attempts, world = self.engine.attempts, self.engine.world
        attempts.drop_caches()
        attempts.explains = True
        for job in jobs:
            found = self.engine.workloads.of_pod(next(iter(job.waiting), ""))
            pending = found[0].at(Stage.PENDING) if found is not None else []
            if found is None or not pending or found[0].problem:
                continue
            members = pending[: least_of(found[0])]
            decision = attempts.decide(found[0], members, (), world.layout, world.improvements, self.now)
            if decision.verdict is Verdict.UNSCHEDULABLE:
                job.outcome.reason = decision.message

    def _moment(self, job: _RunningWorkload) -> float:
        """Return the time as it is told: in a fill the number of the arrival that is tried."""
        return float(max(job.number, self._turn)) if self._order else self.now

    def _at(self, at: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), what))

    # ------------------------------------------------------------ facts

    def _tell_of(self, cluster: ClusterCase) -> None:
        engine = self.engine
        self._owners.add(cluster.owners)
        engine.namespaces_applied(cluster.namespaces)
        engine.budgets_applied(cluster.budgets)
        engine.budgets_known()
        engine.may_preempt()
        for sink in storage_sinks(engine.world.around.storage):
            sink.applied(cluster.storage.get(sink.resource.plural, ()))
            sink.synced()
        engine.nodes_applied(cluster.nodes, self.now)
        self._tell_groups(cluster.groups)
        running = [pod for pod in cluster.pods if pod.spec.node_name]
        engine.pods_applied(running, self.now)
        for pod in running:
            entry = engine.world.ledger.get(pod.metadata.uid)
            if entry is not None and pod.spec.node_name in self._node_of:
                held = dict(entry.amounts)
                milli = 1000 * held.get(GPU, 0) + held.get(GPU_SHARE, 0)
                node = self._node_of[pod.spec.node_name]
                stay = Stay(BEFORE, pod.metadata.name, node, milli, entry.devices, 0.0)
                self.history.stays.append(stay)
                self._jobs[pod.metadata.uid] = _ran_before(pod, stay)
        waiting = [pod for pod in cluster.pods if not pod.spec.node_name and not pod.finished]
        ours = [pod for pod in waiting if pod.spec.scheduler_name == self._scheduler]
        self._arrive([Arrival(pod.key, 0.0, None, (pod,)) for pod in ours])

    def _tell_groups(self, groups: Iterable[PodGroup]) -> None:
        told = [self._group_seen(group) for group in groups]
        for api in sorted({group.key.api for group in told}):
            self.engine.groups_served(api, Serving.LISTED, self.now, self.now)
        if told:
            self.engine.groups_applied(told, self.now)

    def _arrive(self, arrivals: Iterable[Arrival]) -> None:
        pods: list[Pod] = []
        for arrival in arrivals:
            number = len(self.history.outcomes)
            outcome = WorkloadOutcome(arrival.name, len(arrival.pods), 0.0)
            self.history.outcomes.append(outcome)
            outcome.arrived = float(number) if self._order else arrival.at
            self._owners.add(arrival.owners)
            self._tell_groups(arrival.groups)
            job = _RunningWorkload(number, arrival, outcome)
            # Of those that come at one moment the first of the source goes first.
            when = self.now + number % 1_000_000 / 1e6
            for at, pod in enumerate(arrival.pods):
                told = self._annotations(pod.metadata.annotations)
                uid = pod.metadata.uid or f"pod-{number}-{at}"
                self._appear(job, arriving(pod, self._scheduler, when, told, uid), pods)
        if pods:
            self.engine.pods_applied(pods, self.now)

    def _appear(self, job: _RunningWorkload, pod: Pod, into: list[Pod]) -> None:
        uid = pod.metadata.uid
        job.pods[uid] = pod
        job.waiting.add(uid)
        self._jobs[uid] = job
        into.append(pod)

    # ------------------------------------------------------------ what the engine wants done

    def _settle(self) -> None:
        """Let the engine do all it has to do now, and carry it out."""
        engine = self.engine
        for _ in range(_STEPS):
            began = time.perf_counter()
            said = engine.step(self.now, _no_clock)
            self.history.busy += time.perf_counter() - began
            binds = self._carry_out(said)
            if binds and self._latency:
                self._at(self.now + self._latency, partial(self._bound, binds))
            elif binds:
                self._bound(binds)
            if not binds and not engine.pending_work:
                break
        else:
            raise RuntimeError("the engine never comes to rest; please report this with the cluster and the workload")
        self.after_step(self)

    def _carry_out(self, said: Iterable[Instruction]) -> list[Bind]:
        engine, binds = self.engine, list[Bind]()
        for one in said:
            if isinstance(one, Bind):
                binds.append(one)
            elif isinstance(one, RecordDecision):
                self.history.decisions += 1
            elif isinstance(one, EmitEvent) and one.reason is Reason.FAILED_SCHEDULING:
                if (job := self._jobs.get(one.pod.uid)) is not None:
                    job.outcome.reason = one.message
            elif isinstance(one, DryRunBind):
                engine.rehearsed(one.bind.pod.uid, BindOutcome.BOUND, "", self.now)
            elif isinstance(one, Preempt):
                engine.eviction_finished(one.pod.uid, EvictionOutcome.GOING, "", self.now)
                self._evict(one.pod.uid)
            elif isinstance(one, Evict):
                self._evict(one.pod.uid)
            elif isinstance(one, PrepareVolumes):
                engine.volumes_written(one.pod.uid, (), "volumes are not made in simulations")
            elif isinstance(one, LogWarning) and len(self.history.complaints) < _COMPLAINTS:
                self.history.complaints.append(one.message)
        return binds

    def _bound(self, binds: Sequence[Bind]) -> None:
        """The watch tells that pods were bound, and run."""
        running = []
        for bind in binds:
            uid = bind.pod.uid
            job = self._jobs.get(uid)
            if job is None or uid not in job.waiting:
                continue
            if why := self.engine.may_bind(uid):
                self.engine.bind_finished(uid, BindOutcome.WITHDRAWN, why, self.now)
                continue
            pod = job.pods[uid] = bound(job.pods[uid], bind, self.now)
            running.append(pod)
            self._began(job, uid, bind)
        self.engine.pods_applied(running, self.now)

    def _began(self, job: _RunningWorkload, uid: str, bind: Bind) -> None:
        found = self.engine.workloads.of_pod(uid)
        cls = found[1].cls if found is not None else None
        milli = 1000 * cls.gpus + cls.share if cls is not None else 0
        devices = written_indexes(bind.annotations, GPU_INDEX)
        stay = Stay(job.number, bind.pod.name, self._node_of[bind.node], milli, devices, self._moment(job))
        self.history.stays.append(stay)
        job.stays[uid] = stay
        job.waiting.discard(uid)
        if not job.waiting:
            job.outcome.started = min(job.outcome.started, stay.start)
            job.outcome.milli = sum(one.milli for one in job.stays.values())
            if job.arrival.seconds is not None and not self._order:
                self._at(self.now + job.arrival.seconds, partial(self._end, job, job.ends))

    def _end(self, job: _RunningWorkload, ends: int) -> None:
        """A workload has run to its end."""
        if ends != job.ends:
            return
        job.outcome.ended = self.now
        for stay in job.stays.values():
            stay.end = self.now
        self.engine.pods_applied([ended(pod) for pod in job.pods.values()], self.now)
        for uid in job.pods:
            self.engine.pod_deleted(uid, self.now)
            del self._jobs[uid]
        self._owners.drop(job.arrival.owners)
        for group in job.arrival.groups:
            self.engine.group_deleted(group.key, group.uid, self.now)

    def _evict(self, uid: str) -> None:
        """A pod gives way: its controller makes another, and its workload begins anew once all run again."""
        job = self._jobs.pop(uid, None)
        if job is None:
            return
        self.history.evictions += 1
        pod = job.pods.pop(uid)
        self.engine.pods_applied([going(pod, self.now)], self.now)
        self.engine.pod_deleted(uid, self.now)
        stay = job.stays.pop(uid, None)
        if stay is not None:
            stay.end = self._moment(job)
        if not job.waiting:
            job.outcome.restarts += 1
        job.ends += 1
        job.renewed += 1
        source = next(one for one in job.arrival.pods if one.metadata.name == pod.metadata.name)
        told = self._annotations(source.metadata.annotations)
        told = {name: value for name, value in told.items() if name not in WRITTEN}  # of one that ran before
        fresh: list[Pod] = []
        self._appear(job, arriving(source, self._scheduler, self.now, told, f"{uid}~{job.renewed}"), fresh)
        self.engine.pods_applied(fresh, self.now)


def _ran_before(pod: Pod, stay: Stay) -> _RunningWorkload:
    uid, arrival = pod.metadata.uid, Arrival(pod.key, 0.0, None, (pod,))
    return _RunningWorkload(BEFORE, arrival, WorkloadOutcome(arrival.name, 1, 0.0), {uid: pod}, stays={uid: stay})


def _alike(arrivals: Sequence[Arrival], running: Collection[int]) -> Iterator[list[Arrival]]:
    """Yield workloads that may be told of together: of equal priority and namespace they are tried in their order.

    Each comes alone where somebody may have to give way, so that it is known to whom. ``running``: priorities of pods
    that are there before.
    """
    found: list[Arrival] = []
    before: object = None
    most = _BATCH if len({pod.spec.priority for one in arrivals for pod in one.pods} | {*running}) <= 1 else 1
    for arrival in arrivals:
        key = {(pod.spec.priority, pod.metadata.namespace) for pod in arrival.pods}
        if found and (key != before or len(found) == most):
            yield found
            found = []
        found.append(arrival)
        before = key
    if found:
        yield found


def _no_clock() -> float:
    """What decisions cost is measured around steps: nothing in one may depend on it."""
    return 0.0


def _history_of(cluster: ClusterCase, levels: SchedulerConfig, engine: Engine) -> RunHistory:
    fabric = Fabric(levels.topology)
    for number, node in enumerate(cluster.nodes):
        fabric.put(number, node.metadata.name, node.metadata.labels)
    layout = fabric.layout(len(cluster.nodes))
    capacity = []
    for node in cluster.nodes:
        amounts = engine.world.resources.amounts(node.status.allocatable or node.status.capacity)
        capacity.append(1000 * amounts.get(GPU, 0))
    return RunHistory(
        tuple(node.metadata.name for node in cluster.nodes),
        tuple(layout.paths[leaf] for leaf in layout.leaf_of_row.tolist()),
        layout.levels,
        tuple(capacity),
        cordoned=tuple(number for number, node in enumerate(cluster.nodes) if node.spec.unschedulable),
    )
