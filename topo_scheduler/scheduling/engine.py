"""The engine: facts and results in, instructions out. No I/O, no clock, no threads.

It holds all state and is the only one who changes it. Every method takes the time as an argument. What the API
server says may come late, twice or out of order; an engine rebuilt from a fresh list believes the same as one that
followed the watch.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import (
    Strategy,
)
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Budget, Node, PartialObject, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.arrivals import Arrivals, Resolve
from topo_scheduler.scheduling.ask import Limits
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.instructions import (
    Announce,
    BindOutcome,
    Complain,
    EvictionOutcome,
    Instruction,
    MarkUnschedulable,
    Tell,
)
from topo_scheduler.scheduling.outcomes import Outcomes, reference
from topo_scheduler.scheduling.pending import Told
from topo_scheduler.scheduling.planner import Planner, Policy
from topo_scheduler.scheduling.preempting import Preempting
from topo_scheduler.scheduling.queue import Order, Place, Queue
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.decision import Decision, Verdict
from topo_scheduler.state.workloads import Member, Stage, Workload, Workloads

WAIT_BEFORE_TELLING: Final = 2.0
"""Seconds a gang may lack pods before that is told: its controller is usually just making them."""


class Engine:
    """All state of one scheduler, and the machine that changes it."""

    def __init__(self, config: Configuration, resolve: Resolve, epoch: float = 0.0) -> None:
        """``epoch``: what makes seconds since the epoch of the times that are passed."""
        self.config = config
        self._epoch = epoch
        self.world = World(config.scheduler)
        self.workloads = Workloads()
        self.queue = Queue()
        self.planner = Planner(self.world.around, self.world.history, policy_of(config))
        self.attempts = Attempts(self.planner)
        self.outcomes = Outcomes(self.world, self.workloads, config.scheduler)
        self.preempting = Preempting(config.scheduler.scheduler_name, self.world, self.workloads, self.attempts)
        self.preempting.enabled = config.topology.spec.preemption.enabled
        self._told = Told()
        self.arrivals = Arrivals(
            config.scheduler.scheduler_name,
            self.world,
            self.workloads,
            self.outcomes,
            self.attempts,
            self._told,
            resolve,
        )
        self._out: list[Instruction] = []

    # ------------------------------------------------------------ facts in

    def configure(self, config: Configuration) -> None:
        """Take over a new TopologySchedulerConfig; the rest of the configuration needs a restart."""
        self.config = Configuration(self.config.scheduler, config.topology)
        self.planner.policy = policy_of(config)
        self.planner.forget_rules()
        self.preempting.enabled = config.topology.spec.preemption.enabled
        self.world.improve_all()

    def nodes_applied(self, nodes: Iterable[Node], now: float) -> None:
        """Take over nodes that appeared or changed."""
        for node in nodes:
            self._out += [Complain(problem) for problem in self.world.put_node(node, now)]

    def node_deleted(self, name: str, uid: str) -> None:
        """Forget a node that was deleted."""
        self.world.remove_node(name, uid)

    def namespaces_applied(self, namespaces: Iterable[PartialObject]) -> None:
        """Take over the labels of namespaces that appeared or changed."""
        for namespace in namespaces:
            self.world.around.put_namespace(namespace.metadata.name, namespace.metadata.labels)

    def namespace_deleted(self, name: str) -> None:
        """Forget a namespace that was deleted."""
        self.world.around.drop_namespace(name)

    def budgets_applied(self, budgets: Iterable[Budget]) -> None:
        """Take over disruption budgets that appeared or changed."""
        self._out += self.preempting.budgets_applied(budgets)

    def budget_deleted(self, namespace: str, name: str) -> None:
        """Forget a disruption budget that was deleted."""
        self.preempting.budgets.drop(namespace, name)

    def budgets_known(self) -> None:
        """Note that all disruption budgets there are have been told; before that nobody is preempted."""
        self.preempting.budgets.known = True

    def pods_applied(self, pods: Collection[Pod], now: float) -> None:
        """Take over pods that appeared or changed, whoever schedules them."""
        self.arrivals.applied(pods, now)
        self.preempting.pods_applied(pods)

    def pod_deleted(self, uid: str, now: float) -> None:
        """Forget a pod that is gone or no longer to be placed."""
        self.arrivals.deleted(uid, now)
        self.preempting.pod_deleted(uid)

    def owner_changed(self, uid: str, now: float) -> None:
        """Understand again the pending pods below an owner that appeared or changed."""
        self.arrivals.owner_changed(uid, now)

    def bind_finished(self, uid: str, outcome: BindOutcome, message: str, now: float) -> None:
        """Take over how a bind ended."""
        found = self.workloads.of_pod(uid)
        if found is None or not self.outcomes.awaits(uid):
            return  # the watch told how it ended before the answer came
        self._out += self.outcomes.bind_finished(uid, outcome, message, now)
        workload, _ = found
        if outcome in (BindOutcome.BOUND, BindOutcome.GONE):
            self.arrivals.bound_at_last(uid)
        elif outcome is not BindOutcome.UNKNOWN:
            self.arrivals.not_bound(uid, now)
            self.queue.back_off(order_of(workload), now + self.outcomes.backoff(workload))
        if outcome is BindOutcome.GONE:
            self.arrivals.touch(workload)

    def eviction_finished(self, uid: str, outcome: EvictionOutcome, message: str, now: float) -> None:
        """Take over how the eviction of a victim ended."""
        out, again = self.preempting.evicted(uid, outcome, message, now)
        self._out += out
        if (workload := self.workloads.get(again)) is not None:
            self.arrivals.touch(workload)

    def may_bind(self, uid: str) -> str:
        """Return why a decided bind must not be written after all, or an empty string."""
        return self.outcomes.may_bind(uid)

    # ------------------------------------------------------------ the step

    def step(self, now: float, clock: Callable[[], float], budget: float = 0.005) -> list[Instruction]:
        """Try the workloads that are due, most urgent first, and return what is to be done.

        Args:
            now: seconds; everything decided in this step is decided at this time.
            clock: measures what decisions cost, for metrics and the budget; it decides nothing.
            budget: seconds after which the step ends; `pending_work` tells whether anything is left.
        """
        self.world.fade(now)
        self._settle(now)
        self._wake(now)
        started = clock()
        while (id_ := self.queue.pop(now)) is not None:
            workload = self.workloads.get(id_)
            if workload is not None:
                self._attempt(workload, now, clock)
                if clock() - started > budget:
                    break
        self.preempting.nominations.count_nobody()
        self._out += self.outcomes.due(now)
        self._out += self._look_again(now)
        out, self._out = [*self.arrivals.take_out(), *self._out], []
        return out

    def next_due(self) -> float | None:
        """Return when `step` must be called next, if nothing happens before."""
        due = (
            self.queue.next_due(),
            self.outcomes.next_due(),
            self.world.penalties.next_change(),
            self.preempting.next_due(),
        )
        return min((at for at in due if at is not None), default=None)

    @property
    def pending_work(self) -> bool:
        """Whether `step` has something to do now."""
        return bool(self._out) or self.arrivals.news or self.queue.has_active

    # ------------------------------------------------------------ queue

    def _settle(self, now: float) -> None:
        for id_ in self.arrivals.take_touched():
            workload = self.workloads.get(id_)
            if workload is None:
                self.queue.remove(id_)
                self.preempting.forget(id_)
            else:
                self._requeue(workload, now)

    def _requeue(self, workload: Workload, now: float) -> None:
        pending = workload.at(Stage.PENDING)
        if not pending:
            self.queue.remove(workload.id)
        elif self.queue.place(workload.id) is not Place.BACKOFF:
            if lacking(workload, pending) and not workload.problem:
                if self.queue.until(workload.id) is None:
                    self.queue.wait(order_of(workload), now + WAIT_BEFORE_TELLING)
            else:
                self.queue.activate(order_of(workload))

    def _wake(self, now: float) -> None:
        """Make active what could be helped by what happened since the last step."""
        rows, everything = self.world.take_improved()
        arrived, repelling = self.world.take_neighbours()
        if not self.preempting.stirred() and not rows and not everything and not arrived:
            return
        index = np.array(rows, np.int64)
        helped: dict[PodClass, bool] = {}
        lowest = self.preempting.lowest
        for id_ in self.queue.parked():
            workload = self.workloads.get(id_)
            if workload is None or workload.problem:
                continue
            waiting = workload.at(Stage.PENDING)
            if repelling or (arrived and any(member.cls.constraints is not None for member in waiting)):
                self.queue.activate(order_of(workload))
                continue
            for cls in {member.cls for member in waiting}:
                if cls not in helped:
                    view = self.planner.views.get(cls)
                    helped[cls] = bool(len(index) and (view.fit[index] > 0).any())
                if (helped[cls] and (workload.room_helps or not workload.gang)) or (everything and workload.gang):
                    self.queue.activate(order_of(workload))
                    break
            else:
                if lowest is not None and lowest < workload.priority:
                    self.preempting.nudge(workload, now)

    def _look_again(self, now: float) -> list[Instruction]:
        """Try again the workloads for which others may give way by now."""
        out, again = self.preempting.due(now)
        for id_ in again:
            workload = self.workloads.get(id_)
            if workload is not None and self.queue.place(id_) is Place.PARKED:
                self.queue.activate(order_of(workload))
        return out

    def _attempt(self, workload: Workload, now: float, clock: Callable[[], float]) -> None:
        pending = workload.at(Stage.PENDING)
        if not pending:
            return
        if workload.problem:
            self._refuse(workload, pending)
            return
        if lack := lacking(workload, pending):
            self._tell_incomplete(workload, pending, lack)
            return
        before = clock()
        self.preempting.count_for(workload)
        decision = self._decide(workload, pending, now)
        self._out.append(Announce(decision, clock() - before))
        if decision.verdict is Verdict.PLACED:
            self._out += self.outcomes.assume(workload, decision, now)
            self._out += self.preempting.placed(workload, decision)
            self.arrivals.placed(decision)
            self.arrivals.touch(workload)
            return
        self.queue.park(order_of(workload))
        workload.room_helps = decision.room_helps
        self.outcomes.hindered(workload, now)
        first = pending[: least_of(workload)]
        preempt, why_not = self.preempting.consider(workload, first, decision, now, now + self._epoch)
        text = f"{decision.message} {why_not}" if why_not else decision.message
        for member in pending:
            if self._told.changed(member.uid, text):
                self._out.append(Tell(reference(member), True, Reason.FAILED_SCHEDULING, text))
                self._out.append(MarkUnschedulable(reference(member), text))
        self._out += preempt

    def _decide(self, workload: Workload, pending: list[Member], now: float) -> Decision:
        layout, improvements = self.world.layout, self.world.improvements
        row_of = self.world.nodes.row_of
        siblings: list[int] = []
        if not workload.gang and workload.request.strategy is Strategy.DISTRIBUTED:
            pod = self.arrivals.pending(pending[0].uid)
            controller = pod.metadata.controller if pod else None
            nodes = self.arrivals.siblings.nodes(controller.uid) if controller else []
            siblings = sorted(row_of[node] for node in nodes if node in row_of)
        decision = self.attempts.decide(workload, pending, siblings, layout, improvements, now)
        # More pods than the gang's size, or lost by one that ran whole: place the size, the rest as room comes.
        least = least_of(workload)
        if decision.verdict is not Verdict.PLACED and len(pending) > least:
            decision = self.attempts.decide(workload, pending[:least], siblings, layout, improvements, now)
        return decision

    def _refuse(self, workload: Workload, pending: list[Member]) -> None:
        self.queue.park(order_of(workload))
        for member in pending:
            text = f"Refused: {member.problem}" if member.problem else f"Refused with its gang: {workload.problem}"
            if self._told.changed(member.uid, text, exact=True):
                self._out.append(Tell(reference(member), True, Reason.FAILED_SCHEDULING, text))

    def _tell_incomplete(self, workload: Workload, pending: list[Member], lack: int) -> None:
        self.queue.wait(order_of(workload), None)
        text = f"Gang {workload.name} is waiting for {lack} of {workload.size} pods"
        for member in pending:
            if self._told.changed(member.uid, text, exact=True):
                self._out.append(Tell(reference(member), True, Reason.FAILED_SCHEDULING, text))


def policy_of(config: Configuration) -> Policy:
    """Return the planner's policy from the configuration."""
    spec = config.topology.spec
    constraints = spec.topology_constraints
    return Policy(
        np.array(spec.scoring_weights.milli(), np.int64),
        Limits(constraints.enforcement, constraints.max_nodes_per_leaf or 0, constraints.max_gpus_per_leaf or 0),
    )


def order_of(workload: Workload) -> Order:
    """Return a workload's sort key in the queue."""
    return Order(workload.priority, workload.created, workload.id)


def needed_now(workload: Workload) -> int:
    """Return how many more members must be placed for the workload to have its size."""
    seated = sum(member.stage is not Stage.PENDING for member in workload.members.values())
    return max(0, workload.size - seated)


def least_of(workload: Workload) -> int:
    """Return how many members must be placed together at least: the size, singly where it ran whole."""
    return 1 if workload.complete else max(1, needed_now(workload))


def lacking(workload: Workload, pending: Sequence[Member]) -> int:
    """Return how many pods must yet appear before the workload can be tried. A gang that ran whole waits for none."""
    return 0 if workload.complete else max(0, needed_now(workload) - len(pending))
