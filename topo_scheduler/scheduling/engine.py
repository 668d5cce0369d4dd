"""The engine: facts and results in, instructions out. No I/O, no clock, no threads.

The engine owns all state, and no other component changes it. Every method takes the time as an argument. Facts from the
API server may arrive late, twice or out of order. An engine rebuilt from a fresh list reaches the same state as one
that followed the watch.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.devices import ResourceClaim
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import DisruptionBudget, Node, PartialObject, Pod
from topo_scheduler.scheduling.attempting import Attempting, named
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import Activity, failure_of, guard
from topo_scheduler.scheduling.binding.admission_backoff import kind_of
from topo_scheduler.scheduling.binding.contention import IN_FLIGHT_SECONDS, SchedulerContention
from topo_scheduler.scheduling.binding.device_taints import DeviceTaints
from topo_scheduler.scheduling.binding.outcomes import Outcomes
from topo_scheduler.scheduling.binding.partially_bound_gangs import PartiallyBoundGangs
from topo_scheduler.scheduling.binding.waiting_decisions import OUTRANKED
from topo_scheduler.scheduling.devices.shape_tables import TableRequest
from topo_scheduler.scheduling.explaining.explainer import Explainer
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.fabric_warnings import FabricWarnings
from topo_scheduler.scheduling.instructions import (
    BindOutcome,
    EvictionOutcome,
    Instruction,
    LogWarning,
    PodRef,
)
from topo_scheduler.scheduling.intake.arrivals import Arrivals, Resolve
from topo_scheduler.scheduling.intake.device_intake import DeviceIntake
from topo_scheduler.scheduling.intake.pending import EmittedEvents, PendingPods
from topo_scheduler.scheduling.intake.unread import Unread
from topo_scheduler.scheduling.moving.machine import Moving
from topo_scheduler.scheduling.placing.model.policy import Policy
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.freed_room import TakenBy
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.preemption.nominations import Nominations
from topo_scheduler.scheduling.queueing.failure_cache import FailureCache
from topo_scheduler.scheduling.queueing.queue import Place, Queue
from topo_scheduler.scheduling.queueing.queue_keys import has_begun, order_of
from topo_scheduler.scheduling.queueing.requeue import Requeuer
from topo_scheduler.scheduling.queueing.sharing import Sharing
from topo_scheduler.scheduling.queueing.unschedulable import UnschedulableWorkloads
from topo_scheduler.scheduling.reserving.machine import Reserving
from topo_scheduler.scheduling.reserving.replacements import Replacements, ReservedSeat
from topo_scheduler.scheduling.reserving.spares import Spares
from topo_scheduler.scheduling.rules.filters import can_match
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.scheduling.rules.numa import forget_admissions
from topo_scheduler.scheduling.settings import fairness_of, moves_slots, policy_of, repair_of
from topo_scheduler.scheduling.step_parts import StepParts
from topo_scheduler.scheduling.time_slicing import More
from topo_scheduler.scheduling.unknown_scores import unknown_scores
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.claim_writes import ClaimWrite
from topo_scheduler.state.pods.classes import drop_classes
from topo_scheduler.state.pods.pod_groups import GroupKey, PodGroup, Serving
from topo_scheduler.state.pods.workloads import Member, Stage, Workload, Workloads
from topo_scheduler.state.statistics.placement_outcomes import History
from topo_scheduler.state.storage.storage_objects import VolumeWrite

MAX_LARGE_BYTES: Final = 32 * 2**20
"""Total memory of large pods, deleted ones included, above which the engine drops all caches.

Cache entries keep the annotations and labels of such pods in memory.
"""
SLOWED: Final = "decisions take much computing time and are spaced out, so that they delay no others: namespace"
"""The warning about a namespace with expensive attempts."""


class Engine:
    """All state of one scheduler, and the only code that changes it."""

    def __init__(
        self,
        config: Configuration,
        resolve: Resolve,
        extensions: Extensions | None = None,
        epoch: float = 0.0,
        *,
        make_planner: Callable[[FilterContext, History, Policy], Planner] = Planner,
        explains: bool = True,
    ) -> None:
        """Set up an engine without any facts.

        Args:
            config: the configuration.
            resolve: returns the owners of a pod.
            extensions: the loaded plugins; by default only the built-in one.
            epoch: seconds to add to a time of the engine to get seconds since the epoch.
            make_planner: makes the planner; simulations pass baselines.
            explains: whether to explain failures in text; simulations have no reader for it.
        """
        self.config = config
        self.extensions = extensions or Extensions()
        pending_pods = PendingPods(config.scheduler.pending_pods)
        self.world = World(config.scheduler, self.extensions, epoch, pending_pods)
        name, spec = config.scheduler.scheduler_name, config.topology.spec
        self.world.configure(spec)
        self.workloads = Workloads()
        self.queue = Queue(self.world.accounts, fairness_of(config))
        self.planner = make_planner(self.world.around, self.world.history, policy_of(config, self.extensions))
        nominations = Nominations(self.world)
        self.sharing = Sharing(self.world, spec, nominations)
        replacements = Replacements(self.world, nominations)
        partially_bound = PartiallyBoundGangs(self.workloads, nominations)
        spares = Spares(name, self.world, self.workloads, replacements, spec.spares)
        self.attempts = Attempts(self.planner, self.sharing, replacements, spares, explains=explains)
        self.outcomes = Outcomes(self.world, self.workloads, partially_bound, config.scheduler)
        self.preempting = Preempting(
            name,
            self.world,
            self.workloads,
            self.attempts,
            nominations,
            replacements,
            partially_bound,
            spec.preemption,
        )
        self.spares = spares
        self.device_taints = DeviceTaints(name, self.world, spec.recovery)
        self.contention = SchedulerContention(name, self.world, spec.other_schedulers)
        self.reserving = Reserving(self.world, self.workloads, self.attempts, self.preempting, spec.reservation)
        self.moving = Moving(
            self.world, self.workloads, self.attempts, self.preempting, repair_of(config), slots=moves_slots(config)
        )
        self._emitted = EmittedEvents()
        self.arrivals = Arrivals(
            name,
            self.world,
            self.workloads,
            self.outcomes,
            self.attempts,
            self._emitted,
            resolve,
            pending_pods,
        )
        self._unschedulable = UnschedulableWorkloads(self.queue, self.outcomes, self._emitted, config.scheduler)
        self.why = Explainer(self.world, self.workloads, self.attempts, self.preempting, self.sharing, self.reserving)
        self._failure_cache = FailureCache(
            self.world, self.attempts, self._unschedulable, self.preempting, self.reserving, self.moving, self.why
        )
        self.requeuer = Requeuer(
            self.queue,
            self.world,
            self.workloads,
            self.arrivals,
            self.attempts,
            self.preempting,
            self.contention,
            self._failure_cache,
            self.outcomes.partially_bound,
            self.outcomes.admission_backoff,
            self.reserving,
            self.moving,
        )
        self._out: list[Instruction] = [LogWarning(wrong) for wrong in unknown_scores(config, self.extensions)]
        self._device_intake = DeviceIntake(self.world, self.arrivals, self.outcomes)
        self.attempting = Attempting(
            self.world,
            self.queue,
            self.extensions,
            self.attempts,
            self.arrivals,
            self._device_intake,
            self.outcomes,
            self.preempting,
            self.reserving,
            self.moving,
            self.contention,
            self._unschedulable,
            self._failure_cache,
            self.why,
            self._out,
        )
        self._fabric_warnings = FabricWarnings(config)
        self._unread_nodes: Unread[Node] = Unread()
        """Nodes that raised an exception. The engine places no pod there until it can read them."""
        self._unread_nominations: Unread[Pod] = Unread()
        """Pods whose nomination raised an exception."""
        self._permits = False
        """Whether the namespaces that may request GPUs by annotation have changed since the last step."""
        self._parts = StepParts()
        self._holds = False
        """Whether the queue skips namespaces that have their share of binds in flight."""
        self._not_bound: dict[str, float] = {}
        """Workloads of which binds failed since the last step, and when each is due again, in seconds."""

    # ------------------------------------------------------------ facts in

    def configure(self, config: Configuration) -> None:
        """Apply a new TopologySchedulerConfig. Changes of the rest of the configuration need a restart."""
        self.config = Configuration(self.config.scheduler, config.topology)
        self.queue.configure(fairness_of(config))
        self.sharing.configure(config.topology.spec)
        self.extensions.guard.pardon()
        self.outcomes.admission_backoff.pardon()
        self.planner.configure(policy_of(config, self.extensions))
        self._out += [LogWarning(wrong) for wrong in unknown_scores(config, self.extensions)]
        self._fabric_warnings = FabricWarnings(self.config)
        self._permits |= self.world.configure(config.topology.spec)
        self.planner.forget_rules()
        self._failure_cache.clear()
        self.preempting.configure(config.topology.spec.preemption)
        self.device_taints.configure(config.topology.spec.recovery)
        self.contention.configure(config.topology.spec.other_schedulers)
        self.reserving.configure(config.topology.spec.reservation)
        self.moving.configure(repair_of(config), slots=moves_slots(config))
        self.spares.configure(config.topology.spec.spares)
        self.world.improve_all()

    def nodes_applied(self, nodes: Iterable[Node], now: float) -> None:
        """Record nodes that appeared or changed."""
        offers = self.world.resources.offers
        for node in nodes:
            name = node.metadata.name
            try:
                self._out += [LogWarning(problem) for problem in self.world.put_node(node, now)]
            except Exception as error:
                # The node may be half recorded, so remove it. No pod is placed there until the engine can read it.
                self._out += failure_of(f"node {name}", error, Activity.OBJECT)
                self._unread_nodes.fail(name, node, now)
                with guard(f"node {name}", self._out):
                    self.world.remove_node(name)
            else:
                self._unread_nodes.drop(name)
        if offers != self.world.resources.offers:
            self.arrivals.resources_offered()

    def node_deleted(self, name: str, uid: str) -> None:
        """Forget a node that was deleted."""
        self.world.remove_node(name, uid)
        unread = self._unread_nodes.get(name)
        if unread is not None and uid in ("", unread.metadata.uid):
            self._unread_nodes.drop(name)

    def namespaces_applied(self, namespaces: Iterable[PartialObject]) -> None:
        """Record the labels of namespaces that appeared or changed, and whether they are being deleted."""
        for namespace in namespaces:
            metadata = namespace.metadata
            with guard(f"namespace {metadata.name}", self._out):
                self.world.around.put_namespace(metadata.name, metadata.labels)
                deleting = metadata.deletion_timestamp is not None
                self.arrivals.leaving.namespace_applied(metadata.name, metadata.uid, deleting=deleting)

    def namespace_leaves(self, name: str, uid: str) -> None:
        """Record that the namespace with a uid is being deleted, or is gone, before its watch reports that."""
        self.arrivals.leaving.namespace_leaves(name, uid)

    def namespace_deleted(self, name: str) -> None:
        """Forget a namespace that was deleted."""
        self.world.around.drop_namespace(name)
        self.arrivals.leaving.namespace_deleted(name)

    def budgets_applied(self, budgets: Iterable[DisruptionBudget]) -> None:
        """Record disruption budgets that appeared or changed."""
        for budget in budgets:
            meta = budget.metadata
            with guard(f"PodDisruptionBudget {meta.namespace}/{meta.name}", self._out, namespace=meta.namespace):
                self._out += self.preempting.budgets_applied((budget,))

    def budget_deleted(self, namespace: str, name: str) -> None:
        """Forget a disruption budget that was deleted."""
        self.preempting.budgets.drop(namespace, name)

    def budgets_known(self) -> None:
        """Record that the list of disruption budgets is complete. Before that, the scheduler preempts no pod."""
        self.preempting.budgets.listed()

    def may_preempt(self, ready: bool = True) -> None:
        """Record whether the kernels for the search for victims are compiled.

        Workloads that needed such a search then retry.
        """
        self.preempting.set_ready(ready)

    def pods_applied(self, pods: Collection[Pod], now: float) -> None:
        """Record pods that appeared or changed, those of other schedulers included."""
        self.world.settle_durations(now)  # otherwise a pod that overran its claim and ended would have kept it
        for pod in pods:
            try:
                self.contention.applied((pod,), now)
            except Exception as error:
                self._out += failure_of(
                    f"pod {pod.key} beside those of this scheduler",
                    error,
                    Activity.OBJECT,
                    namespace=pod.metadata.namespace,
                )
        if self.preempting.vain_evictions.follows_pods:
            self.preempting.note_bound(pods, now)
        self.arrivals.applied(pods, now)
        self._read_nominations(pods, now)

    def _read_nominations(self, pods: Iterable[Pod], now: float) -> None:
        for pod in pods:
            try:
                self.preempting.pods_applied((pod,), now, listed=not self.arrivals.deciding)
            except Exception as error:
                self._out += failure_of(
                    f"nomination of pod {pod.key}", error, Activity.OBJECT, namespace=pod.metadata.namespace
                )
                self._unread_nominations.fail(pod.metadata.uid, pod, now)
            else:
                self._unread_nominations.drop(pod.metadata.uid)

    def pod_deleted(self, uid: str, now: float) -> None:
        """Forget a pod that is gone or that this scheduler no longer places."""
        self.world.settle_durations(now)
        with guard(f"deletion of pod {uid}", self._out):
            self.contention.deleted(uid)
        with guard(f"deletion of pod {uid}", self._out):
            self.arrivals.deleted(uid, now)
        with guard(f"deletion of pod {uid}", self._out):
            self._unread_nominations.drop(uid)
            self.preempting.pod_deleted(uid, now)

    def pods_reported(self, pods: Collection[Pod], now: float) -> None:
        """Read pods that were found bound, so that plans can include them. See `Arrivals.learn`."""
        for pod in pods:
            self.arrivals.learn(pod, now)
        if pods:
            self.moving.search_again()

    def defer_gpu_tables(self) -> None:
        """Record that tables of GPUs are computed between the calls: `gpu_tables_ready` reports them.

        Until then `ApproximateTables` decide.
        """
        if (sets := self.world.around.gpu_sets) is not None:
            sets.tables.defer()

    def gpu_tables_ready(self, kind: int, weights: Sequence[int]) -> None:
        """Record that tables are computed for a kind of GPUs and weights, and let them decide from now on."""
        self.world.put_gpu_tables(TableRequest(kind, tuple(weights)))

    def seats_kept(self, migration: str, seats: Sequence[ReservedSeat]) -> None:
        """Reserve these node assignments, and no others, for the replacements that a Migration awaits."""
        self.preempting.replacements.keep(migration, seats)

    def spares_avoid(self, nodes: Sequence[str]) -> None:
        """Keep none of these nodes as spares, because recovery places no pods on them."""
        self.spares.avoid(nodes)

    def seat_taken(self, migration: str, pod: str, by: PodRef, origin: str, node: str) -> None:
        """Note that a pod replaces one that a Migration moved. The engine does nothing; listeners record the call."""

    def moved_for(self, pods: Sequence[str], workload: str, namespace: str, until: float, now: float) -> None:
        """Record that one of the pods that move to make room for a workload was evicted. See `RoomByMoves.evicted`."""
        self.preempting.room_by_moves.evicted(pods, workload, namespace, until, now)

    def search_wanted(self) -> None:
        """Note that recovery will search for room: the kernels for such searches should be compiled."""
        self.preempting.want_search()

    def groups_applied(self, groups: Iterable[PodGroup], now: float) -> None:
        """Record PodGroups that appeared or changed."""
        self.arrivals.groups_applied(groups)

    def group_deleted(self, key: GroupKey, uid: str, now: float) -> None:
        """Forget a PodGroup that was deleted."""
        self.arrivals.group_deleted(key, uid)

    def groups_served(self, api: GroupApi, serving: Serving, requested_at: float, now: float) -> None:
        """Record whether the API server serves PodGroups of an API, as answered to a request at time ``asked``."""
        self.arrivals.groups_served(api, serving, requested_at)

    def groups_remembered(self, api: GroupApi, now: float) -> None:
        """Record that an earlier leader listed PodGroups of an API. If it is gone, pods that name one stay pending."""
        self.world.groups.remember(api)

    def owner_changed(self, uid: str, now: float) -> None:
        """Reread the pending pods of an owner that appeared or changed, in the next steps."""
        self.arrivals.owner_changed(uid)

    def reread(self, now: float, clock: Callable[[], float]) -> None:
        """Reread pods whose owners changed, for a few milliseconds, as each step does."""
        self.arrivals.reread(now, clock)

    def bind_finished(self, uid: str, outcome: BindOutcome, message: str, now: float) -> None:
        """Record how a bind ended. If that raises an exception, update only the stage of the pod and the ledger."""
        membership = self.workloads.of_pod(uid)
        if membership is None or not self.outcomes.awaits(uid):
            # The watch reported the result before the answer came.
            self._out += self.outcomes.answered_late(uid, outcome, now)
            return
        workload, member = membership
        try:
            self._bind_finished(workload, member, outcome, message, now)
        except Exception as error:
            name, namespace = f"bind of pod {member.key}", workload.namespace
            self._out += failure_of(name, error, Activity.OUTCOME, namespace=namespace)
            with guard(name, self._out, Activity.OUTCOME, namespace=namespace):
                self.outcomes.settle(workload, member, outcome, now)
            if outcome is BindOutcome.BOUND:
                self.arrivals.bound_at_last(uid)
            elif outcome is not BindOutcome.UNKNOWN:
                self.arrivals.not_bound(uid)
            self.arrivals.touch(workload)

    def _bind_finished(
        self, workload: Workload, member: Member, outcome: BindOutcome, message: str, now: float
    ) -> None:
        uid = member.uid
        self._out += self.outcomes.bind_finished(uid, outcome, message, now)
        if outcome is BindOutcome.REJECTED:
            self._refused(workload, member, now)
        if outcome is BindOutcome.BOUND:
            self.contention.answered(uid, now)
            if self.preempting.vain_evictions.waves:
                self.preempting.vain_evictions.bound(uid, now)
            self.arrivals.bound_at_last(uid)
        elif not self.outcomes.awaits(uid):  # otherwise the result is not known yet
            self.arrivals.not_bound(uid)
            ended = outcome is BindOutcome.GONE or bool(member.withdrawn)
            self.preempting.undone(uid, workload, now, of_users=ended)
            self._not_bound[workload.id] = now + self.outcomes.backoff(workload, message)

    def _refused(self, workload: Workload, member: Member, now: float) -> None:
        """Record that the API server refused to bind a pod: if others were evicted for it, that was in vain."""
        if self.preempting.vain_evictions.refused(member.uid, workload.id, now):
            self.outcomes.admission_backoff.evicted_in_vain(kind_of(member))

    def rehearsed(self, uid: str, outcome: BindOutcome, message: str, now: float) -> None:
        """Record how a DryRunBind ended.

        If that raises an exception, the dry run counts as inconclusive, and the real binds show whether they work.
        """
        try:
            self.outcomes.rehearsed(uid, outcome, message, now)
            if outcome is BindOutcome.REJECTED and (membership := self.workloads.of_pod(uid)) is not None:
                self._refused(*membership, now)
        except Exception as error:
            self._out += failure_of(f"dry-run bind of pod {uid}", error, Activity.OUTCOME)
            self.outcomes.admission_backoff.answered(uid, "")

    def volumes_written(self, uid: str, done: Iterable[tuple[VolumeWrite, str]], problem: str) -> None:
        """Record the result of a PrepareVolumes. See `VolumeBinding.written`."""
        with guard(f"volumes of pod {uid}", self._out, Activity.OUTCOME):
            self.outcomes.volumes.written(uid, done, problem)

    def claims_written(
        self, uid: str, done: Iterable[tuple[ClaimWrite, ResourceClaim]], problem: str, now: float
    ) -> None:
        """Record the result of a WriteClaims. See `ClaimBinding.written`."""
        with guard(f"claims of pod {uid}", self._out, Activity.OUTCOME):
            self.outcomes.claims.written(uid, done, problem, now)

    def eviction_finished(self, uid: str, outcome: EvictionOutcome, message: str, now: float) -> None:
        """Record how the eviction of a victim ended. If that raises an exception, the claim ends at its timeout."""
        with guard(f"eviction of pod {uid}", self._out, Activity.OUTCOME):
            out, workload_id = self.preempting.evicted(uid, outcome, message, now, goes=self._preemptor_goes(uid))
            self._out += out
            if (workload := self.workloads.get(workload_id)) is not None:
                self.arrivals.touch(workload)

    def may_evict(self, uid: str) -> bool:
        """Return whether a workload still needs the room of a victim: it is pending, and not about to be deleted."""
        return self.preempting.is_victim(uid) and not self._preemptor_goes(uid)

    def _preemptor_goes(self, uid: str) -> bool:
        """Return whether a pod is to be evicted for one that is about to be deleted."""
        return any(self.arrivals.why_gone(pod) for pod in self.preempting.preemptors(uid))

    def rollback_refused(self, uid: str, message: str, now: float) -> None:
        """Record that the eviction of a member of a gang under rollback failed."""
        with guard(f"eviction of pod {uid}", self._out, Activity.OUTCOME):
            if (membership := self.workloads.of_pod(uid)) is not None:
                self._out += self.outcomes.partially_bound.eviction_refused(*membership, message, now)

    def bind_hangs(self, uid: str, now: float) -> None:
        """Record that the API server has not answered a bind for a while, though it answers other requests.

        Also called for binds of partially bound gangs that are queued behind such binds.
        """
        self.outcomes.hangs(uid)

    def bind_recalled(self, uid: str, waited: bool, now: float) -> None:
        """Record that a Recall was carried out. ``waited``: whether the bind was still in the queue."""
        if self.outcomes.recalled(uid, waited=waited):
            self.bind_finished(uid, BindOutcome.WITHDRAWN, "its gang is rolled back", now)

    def goes_first(self, uid: str) -> bool:
        """Return whether a pod's bind goes ahead of others of its namespace, because members of its gang are bound."""
        membership = self.workloads.of_pod(uid)
        return membership is not None and has_begun(membership[0])

    def may_bind(self, uid: str) -> str:
        """Return why a decided bind must not be written after all, or an empty string."""
        self.arrivals.withdraw(uid)
        return self.outcomes.may_bind(uid)

    # ------------------------------------------------------------ the step

    def step(self, now: float, clock: Callable[[], float], budget: float = 0.005) -> list[Instruction]:
        """Try the workloads that are due, most urgent first, and return the instructions.

        Args:
            now: time of all decisions of this step, in seconds.
            clock: measures the time of decisions, for metrics and the budget. Placements do not depend on it.
            budget: seconds after which the step ends. `pending_work` is true if work remains.
        """
        parts = self._read_facts, self._check_outcomes, self._evict_tainted, self._leave_out, self._requeue, self._warn
        for part in parts:
            try:
                part(now, clock)
            except Exception as error:
                self._out += self._parts.failed(part.__name__, error, now)
        self.arrivals.start_deciding()
        try:
            self._try_due(now, clock, budget)
        except Exception as error:
            self._out += self._parts.failed("try_due", error, now)
        self.reserving.holds.remove_charges()
        self.preempting.nominations.remove_charges()
        for part in (self._follow_up, self._retry_preemption):
            try:
                part(now, clock)
            except Exception as error:
                self._out += self._parts.failed(part.__name__, error, now)
        out = [*self.arrivals.take_out(), *self._out]
        self._out.clear()
        return out

    def _read_facts(self, now: float, clock: Callable[[], float]) -> None:
        """Apply what changed in the cluster since the last step."""
        self._read_again(now)
        self._device_intake.settle(now)
        self._out += map(LogWarning, self.world.settle_numa_zones(now))
        if self.world.tenant_memory.overflowed:
            with guard("objects beyond the memory of their namespace", self._out, Activity.OBJECT):
                self._reduce_lost()
        if self.arrivals.large_bytes + self.world.pod_index.large_bytes > MAX_LARGE_BYTES:
            self._drop_caches()
        self.world.fade(now)
        self.contention.settle(now)
        if self._permits:
            self._permits = False
            self.arrivals.understand_all()

    def _evict_tainted(self, now: float, clock: Callable[[], float]) -> None:
        self._out += self.device_taints.due(now)

    def _requeue(self, now: float, clock: Callable[[], float]) -> None:
        """Move workloads in the queue that changed, or that events since the last step may help."""
        self.spares.settle()
        if not self.arrivals.deciding:
            self.arrivals.begin()
        for id_, error in self.requeuer.settle(now):
            if (workload := self.workloads.get(id_)) is not None:
                self.attempting.put_aside(workload, error, Activity.DECISION, now)
            else:
                self._out += failure_of(f"deleted workload {id_}", error, Activity.DECISION)
        try:
            self.requeuer.wake(now)
        except Exception:
            self.requeuer.check_all()
            raise

    def _warn(self, now: float, clock: Callable[[], float]) -> None:
        """Warn about configuration and nodes that contradict each other."""
        self._out += map(LogWarning, (*self.sharing.complaints(), *self.world.look_at_fabric()))
        if self.world.around.storage.has_problems:
            self._out += map(LogWarning, self.world.around.storage.take_problems())
        if self._fabric_warnings.watches and len(self.world.nodes):
            self._out += map(LogWarning, self._fabric_warnings.look(self.world.layout, self.world.nodes))

    def _try_due(self, now: float, clock: Callable[[], float], budget: float) -> None:
        """Try the workloads that are due, and shorten the waits of those without room."""
        started, attempting = clock(), self.attempting
        waits, in_flight = self.reserving.checks_first(now), self.outcomes.decided_since
        while not (waits or self.contention.pauses(now, in_flight)):
            if self.contention.held or self._holds:
                self._hold(now)
            if (id_ := self.queue.pop(now)) is None:
                break
            workload = self.workloads.get(id_)
            if workload is not None:
                placed = attempting.attempt(workload, now, clock)
                charged = attempting.spent_on_attempt + attempting.spent_in_vain
                self.queue.tried(placed=placed, operations=attempting.spent, charged=charged)
                # After a failover nodes are reserved for it before younger workloads take them.
                if clock() - started > budget or (not placed and self.reserving.first_is_due(now)):
                    break
        for namespace in self.queue.take_slowed():
            self._out.append(LogWarning(f"{SLOWED} {namespace}", namespace))
        self._shorten_waits(now, lambda: clock() - started <= budget, clock)

    def _hold(self, now: float) -> None:
        """Skip the namespaces that have their share of binds in flight, while other schedulers are active."""
        self._holds = bool(self.contention.held)
        self.queue.hold(self.contention.held, now + IN_FLIGHT_SECONDS)

    def _follow_up(self, now: float, clock: Callable[[], float]) -> None:
        """Write binds again, roll back gangs that stayed partially bound, and write finalizers of resource claims."""
        self._out += self.outcomes.due(now, self.arrivals.follow_job)
        self._out += self.outcomes.claims.protect_next()
        self._out += self.outcomes.claims.protection.due()

    def _retry_preemption(self, now: float, clock: Callable[[], float]) -> None:
        self._out += self.requeuer.retry_preemption(now)

    def explain(self, now: float, clock: Callable[[], float], budget: float) -> list[Instruction]:
        """Explain pending workloads, for ``budget`` seconds.

        This changes no scheduling state. `why.waiting` counts the workloads that remain to be explained.
        """
        return self.why.work(now, now + self.world.epoch, clock, budget)

    def _shorten_waits(self, now: float, more: More, clock: Callable[[], float]) -> None:
        """Reserve nodes for large pending workloads, search for moves, and publish the news to these workloads."""
        news: list[tuple[Workload, str]] = []
        try:
            news += self.reserving.due(now, more, clock)
        except Exception as error:
            self._out += self._failed_for(self.reserving.failed(now), error, Activity.RESERVATION)
        try:
            if not self.reserving.working:
                news += self.moving.due(now, more, clock)
        except Exception as error:
            self.preempting.nominations.remove_charges()
            self._out += self._failed_for(self.moving.failed(now), error, Activity.MOVES)
        for workload, why in news:
            with guard(named(workload), self._out, Activity.RESERVATION, namespace=workload.namespace):
                text = " ".join(
                    filter(None, (why, self.reserving.describe(workload.id), self.moving.describe(workload.id)))
                )
                self._out += self._unschedulable.tell(workload, workload.at(Stage.PENDING), text, repeated=True)
                self.why.reworded(workload, text, now)
                self._failure_cache.forget(workload.id)

    def _failed_for(self, id_: str, error: Exception, activity: Activity) -> list[Instruction]:
        """Return the instructions that log and count a failure of work for a workload."""
        workload = self.workloads.get(id_)
        return failure_of(f"workload {id_}", error, activity, namespace=workload.namespace if workload else "")

    def _drop_caches(self) -> None:
        """Drop the caches that may keep large deleted pods in memory. No decision depends on them."""
        self.arrivals.forget_large()
        self.world.pod_index.drop_caches()
        self.world.around.drop_caches()
        self.attempts.drop_caches()
        self.preempting.drop_caches()
        self._failure_cache.clear()
        self.why.drop_caches()
        drop_classes()
        can_match.cache_clear()
        forget_admissions()

    def _reduce_lost(self) -> None:
        """Forget the parts of objects that lost their room in memory, because others came."""
        self.world.tenant_memory.overflowed = False
        self.preempting.budgets.protect_lost()
        self.world.kept_classes.forget_lost()
        for uid in self.world.ledger.take_reduced():
            membership, entry = self.workloads.of_pod(uid), self.world.ledger.get(uid)
            if membership is not None and entry is not None:
                membership[1].profile = entry.profile
        for key in self.world.groups.refuse_lost():
            self.arrivals.owner_changed(key.id)

    def _read_again(self, now: float) -> None:
        """Read the objects that raised an exception again, after their backoff."""
        if self._unread_nodes and (nodes := self._unread_nodes.take_due(now)):
            self.nodes_applied(nodes, now)
        if self.arrivals.unread and (pods := self.arrivals.unread.take_due(now)):
            self.pods_applied(pods, now)
        if self._unread_nominations and (pods := self._unread_nominations.take_due(now)):
            self._read_nominations(pods, now)

    def _leave_out(self, now: float, clock: Callable[[], float]) -> None:
        """Apply changes of owners: drop plans for pods that are about to be deleted, and read nominations of others."""
        self.arrivals.settle(now, clock)
        for uid in self.arrivals.leaving.take_new():
            with guard(f"pod {uid} that is about to be deleted", self._out):
                self.contention.deleted(uid)
                self.preempting.pod_deleted(uid, now)
        if self.arrivals.nominated:
            self._read_nominations(self.arrivals.take_nominated(), now)
        self._out += self.arrivals.leaving.due(now)

    def next_due(self) -> float | None:
        """Return the time in seconds when `step` must be called next if no fact arrives before; None for never.

        While nothing is decided, because other schedulers are active, backoffs end unnoticed.
        """
        due = (
            0.0 if self._not_bound or self.world.improved else self.arrivals.reread_due(),
            None if self.contention.paused else self.queue.next_due(),
            self.requeuer.next_due(),
            self.outcomes.next_due(),
            self.device_taints.next_due(),
            self.arrivals.leaving.next_due(),
            self.arrivals.unread.next_due(),
            self._unread_nodes.next_due(),
            self._unread_nominations.next_due(),
            self.world.penalties.next_change(),
            self.world.numa_zones.next_due(),
            self.preempting.next_due(),
            self.contention.next_due(),
            self.reserving.next_due(),
            self.moving.next_due(),
        )
        return self._parts.not_before(min([at for at in due if at is not None], default=None))

    @property
    def pending_work(self) -> bool:
        """Whether `step` has work to do now."""
        has_active = self.queue.has_active and not self.contention.paused
        return bool(self._out or self._not_bound) or self._permits or self.arrivals.news or has_active or self.searching

    @property
    def searching(self) -> bool:
        """Whether a sliced search is under way. Checkpoints do not contain such searches."""
        return self.reserving.working or self.moving.working

    def _check_outcomes(self, now: float, clock: Callable[[], float]) -> None:
        """Bind the pods that are ready, undo decisions that failed, and retry workloads whose backoff ended."""
        ready, failed = self.outcomes.check(now)
        self._out += ready
        for uid, why in failed:
            with guard(f"bind of pod {uid} that is given up", self._out, Activity.OUTCOME):
                if why.endswith(OUTRANKED):
                    self.preempting.vain_evictions.undone(uid, TakenBy.OTHERS, now)
                elif (membership := self.workloads.of_pod(uid)) is not None:  # volumes or resource claims
                    self.preempting.undone(uid, membership[0], now, of_users=True)
            self.bind_finished(uid, BindOutcome.WITHDRAWN, why, now)
        self._queue_not_bound()
        for id_ in self.outcomes.admission_backoff.take_freed():
            with guard(f"workload {id_}", self._out, Activity.OUTCOME):  # nothing else tries the others again
                waits = self.queue.place(id_) in (Place.BACKOFF, Place.UNSCHEDULABLE)
                if waits and (workload := self.workloads.get(id_)) is not None:
                    self.queue.activate(order_of(workload))

    def _queue_not_bound(self) -> None:
        """Queue the workloads of which binds failed, each once: thousands of binds of a gang may fail together."""
        not_bound, self._not_bound = self._not_bound, {}
        for id_, until in not_bound.items():
            with guard(f"workload {id_}", self._out, Activity.OUTCOME):  # the others are to be queued too
                if (workload := self.workloads.get(id_)) is not None:
                    self.queue.back_off(order_of(workload), until)
