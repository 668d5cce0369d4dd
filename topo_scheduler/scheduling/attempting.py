"""Attempts at workloads, behind the barrier around each: decide, place, or search for ways to make room."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from topo_scheduler.scheduling.attempts import Attempts, KeptRoom
from topo_scheduler.scheduling.barrier import Activity, Barrier, failure_of, guard, limited
from topo_scheduler.scheduling.binding.contention import SchedulerContention
from topo_scheduler.scheduling.binding.outcomes import Outcomes
from topo_scheduler.scheduling.explaining.explainer import Explainer
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.instructions import Instruction, RecordDecision, reference
from topo_scheduler.scheduling.intake.arrivals import Arrivals
from topo_scheduler.scheduling.intake.device_intake import DeviceIntake
from topo_scheduler.scheduling.moving.machine import Moving
from topo_scheduler.scheduling.placing.levels import next_relaxation
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.preemption.victim_search import SEARCH_OPERATIONS, SearchRequest
from topo_scheduler.scheduling.queueing.failure_cache import FailureCache
from topo_scheduler.scheduling.queueing.queue import Queue
from topo_scheduler.scheduling.queueing.queue_keys import is_partially_bound, lacking, least_of, order_of
from topo_scheduler.scheduling.queueing.unschedulable import UnschedulableWorkloads
from topo_scheduler.scheduling.reserving.freed_claims import LOOK_AGAIN_SECONDS
from topo_scheduler.scheduling.reserving.machine import Reserving
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision, Verdict
from topo_scheduler.state.pods.workloads import Member, Stage, Workload

STALE_SECONDS: Final = 0.1
"""Delay in seconds before a retry of a workload whose owners changed and whose pods were not read again yet."""


@dataclass(eq=False)
class Attempting:
    """Attempts at workloads that are due.

    ``out`` gets the instructions. ``spent`` are the operations of the last attempt with its search for victims, and
    ``spent_on_attempt`` those without, at most its budget. ``spent_in_vain`` are those of a search that found none.
    """

    world: World
    queue: Queue
    extensions: Extensions
    attempts: Attempts
    arrivals: Arrivals
    devices: DeviceIntake
    outcomes: Outcomes
    preempting: Preempting
    reserving: Reserving
    moving: Moving
    contention: SchedulerContention
    unschedulable: UnschedulableWorkloads
    failure_cache: FailureCache
    why: Explainer
    out: list[Instruction]
    barrier: Barrier = field(default_factory=Barrier)
    spent: int = 0
    spent_on_attempt: int = 0
    spent_in_vain: int = 0
    _phase: Activity = Activity.DECISION
    """The current activity, for messages if it fails."""
    _searched: int = 0
    """Operations spent by the search for victims in the current attempt."""

    def attempt(self, workload: Workload, now: float, clock: Callable[[], float]) -> int:
        """Try a workload within its budget; return how many of its pods were placed.

        A workload that fails or exceeds its budget is put into backoff. Its instructions are in ``out``.
        """
        self._phase, self._searched = Activity.DECISION, 0
        budget = self.barrier.budget(workload.namespace, now, clock)
        try:
            with limited(budget):
                placed = self._within_budget(workload, now, clock)
            if not placed and self.world.inventory.claims and not workload.problem:
                for member in workload.at(Stage.PENDING):
                    if member.claims:
                        self.outcomes.claims.protect(reference(member), member.claims)
        except Exception as error:
            self.reserving.holds.remove_charges()
            self.preempting.nominations.remove_charges()
            self.put_aside(workload, error, self._phase, now)
            return 0
        finally:
            self.spent = budget.spent + self._searched
            self.spent_on_attempt = min(budget.spent, budget.operations)
            in_vain = self._searched and not self.preempting.claims(workload.id)
            self.spent_in_vain = min(self._searched, SEARCH_OPERATIONS) if in_vain else 0
            self.preempting.tried(workload.id)
        workload.failures = 0
        return placed

    def put_aside(self, workload: Workload, error: Exception, activity: Activity, now: float) -> None:
        """Put a workload into backoff because handling it raised; log, count and report that."""
        name = named(workload)
        self.failure_cache.forget(workload.id)
        self.barrier.exceeded(workload.namespace, error, now)
        self.out += failure_of(name, error, activity, namespace=workload.namespace)
        with guard(name, self.out, activity, namespace=workload.namespace):
            self.out += self.unschedulable.failed(workload, error, activity, now)

    def _within_budget(self, workload: Workload, now: float, clock: Callable[[], float]) -> int:
        """Try a workload; return how many of its pods were placed."""
        if (known := self.failure_cache.again(workload, now, clock)) is not None:
            self.out += known
            self.contention.failed(workload.id, now)
            return 0
        pending = workload.at(Stage.PENDING)
        if not pending:
            return 0
        if self.arrivals.is_stale(workload):
            self.queue.back_off(order_of(workload), now + STALE_SECONDS)
            return 0
        if workload.problem:
            if (until := workload.patient_until()) > now:
                self.queue.wait(order_of(workload), until)
            else:
                self.out += self.unschedulable.refuse(workload, pending, now)
            return 0
        if lack := lacking(workload, pending):
            self.out += self.unschedulable.incomplete(workload, pending, lack, now)
            return 0
        if (until := self.outcomes.partially_bound.pause(workload, now)) > now:
            self.queue.back_off(order_of(workload), until)
            return 0
        admission_backoff = self.outcomes.admission_backoff
        if admission_backoff.any_held and (held := admission_backoff.must_wait(workload.id, pending, now)) is not None:
            self.out += self.unschedulable.back_off(workload, pending, *held, now)
            return 0
        before = clock()
        reserved = self.reserving.count_for(workload, now)
        kept = self.preempting.count_for(workload, reserved), reserved
        try:
            decision, waits = self._decide_beside_others(workload, pending, kept, now)
        except PluginError as error:
            self.out += self.unschedulable.plugin_failed(workload, pending, error, now)
            return 0
        workload.plugin_failures = 0
        self.out.append(RecordDecision(decision, clock() - before))
        if decision.verdict is Verdict.PLACED:
            self._phase = Activity.PLACEMENT
            self.attempts.remember(workload, decision)
            self.out += self.outcomes.assume(workload, decision, now)
            self.arrivals.touch(workload)
            # The placement is assumed and the binds are on their way. Later failures must not undo it.
            name = f"workload {workload.namespace}/{workload.name}"  # inline: each call of a decision counts
            with guard(name, self.out, Activity.PLACEMENT, namespace=workload.namespace):
                self.why.forget(workload.id)
                self.out += self.preempting.placed(workload, decision, now)
                self.contention.forget(workload.id)
                self.reserving.placed(workload, decision)
                self.moving.forget(workload.id)
                self.arrivals.placed(decision)
            return len(decision.seats)
        again_at = next_relaxation(workload, pending, self.world.layout, now)
        if self.attempts.awaits_claim:
            again_at = now + LOOK_AGAIN_SECONDS
        self.unschedulable.mark(workload, now, again_at, room_helps=decision.room_helps)
        self.contention.failed(workload.id, now)
        if waits:
            self.out += self.unschedulable.tell(workload, pending, f"{decision.message} {waits}")
        else:
            with self.world.nothing_kept():
                self.out += self._make_room(workload, pending, decision, kept, now, clock)
        return 0

    def _make_room(
        self,
        workload: Workload,
        pending: list[Member],
        decision: Decision,
        kept: KeptRoom,
        now: float,
        clock: Callable[[], float],
    ) -> list[Instruction]:
        """Search for ways to make room for an unschedulable workload, and report why it has none."""
        least = pending[: least_of(workload)]
        self._phase = Activity.PREEMPTION
        budget = self.barrier.budget(workload.namespace, now, clock, SEARCH_OPERATIONS)
        try:
            request = SearchRequest(
                workload,
                least,
                now,
                now + self.world.epoch,
                budget,
                reserved=kept[1],
                shares=partial(self.reserving.shares, workload, now),
                failed=partial(self.barrier.exceeded, workload.namespace, now=now),
            )
            obstacle = self.outcomes.admission_backoff.why_none_makes_room(workload.id, least)
            if obstacle and not self.preempting.claims(workload.id):
                preempt: list[Instruction] = []
            else:
                preempt, obstacle = self.preempting.consider(request, decision)
                self.outcomes.outrank(self.preempting.take_outranked())
        except PluginError as error:
            return self.unschedulable.plugin_failed(workload, pending, error, now)
        finally:
            self._searched = budget.spent
        if not preempt and decision.room_helps:
            preempt = self.outcomes.yield_room(workload.id, workload.priority, now)
        text = f"{decision.message} {obstacle}" if obstacle else decision.message
        try:
            held = self.reserving.found_unschedulable(workload, decision, text, now)
            moves = self.moving.found_unschedulable(
                workload, text, order_of(workload).since, room_helps=decision.room_helps
            )
            seats = self.preempting.replacements.keep_off(workload, pending[0].cls)
            text = " ".join(filter(None, (text, held, seats, moves)))
            if not preempt:  # otherwise evictions already make room
                self.why.failed(workload, text, decision.members, now)
            out = [*self.unschedulable.tell(workload, pending, text), *preempt]
        except Exception:
            self.out += preempt  # the claim is active, so its victims must be evicted
            raise
        if not obstacle and not preempt:
            self.failure_cache.remember(workload, pending, decision, kept, text, now)
        return out

    def _decide_beside_others(
        self, workload: Workload, pending: list[Member], kept: KeptRoom, now: float
    ) -> tuple[Decision, str]:
        """Decide while room is reserved for other schedulers, or without it once the workload has waited long enough.

        Returns:
            The decision, and a message if only the reserved room keeps the workload pending.
        """
        decision = self._decide(workload, pending, kept, now)
        if decision.verdict is Verdict.PLACED or not self.world.kept:
            return decision, ""
        # A partially bound gang does not wait for other schedulers.
        impatient = is_partially_bound(workload) or self.contention.impatient(workload.id)
        with self.world.nothing_kept():
            without = self._decide(workload, pending, (*kept, "nothing for pods of other schedulers"), now)
        if without.verdict is Verdict.PLACED and not impatient:
            return decision, self.contention.why()
        self.contention.took(seat.node for seat in without.seats)
        return without, ""

    def _decide(self, workload: Workload, pending: list[Member], kept: KeptRoom, now: float) -> Decision:
        self.devices.settle(now)
        layout, improvements = self.world.layout, self.world.improvements
        if self.world.links.in_use:
            self.world.links.settle(layout)
        self.extensions.guard.begin()
        apart = not workload.gang and self.extensions.strategy(workload.request.strategy).apart
        siblings = self.arrivals.rows_of_siblings(pending[0].uid) if apart else []
        decision = self.attempts.decide(workload, pending, siblings, layout, improvements, now, kept)
        # There may be more pods than the gang's size, or a gang that ran complete has lost pods. Then place only as
        # many pods as must be placed together; the others follow when there is room.
        least = least_of(workload)
        if decision.verdict is not Verdict.PLACED and len(pending) > least:
            decision = self.attempts.decide(workload, pending[:least], siblings, layout, improvements, now, kept)
        return decision


def named(workload: Workload) -> str:
    """Return the name of a workload in log lines about failures."""
    return f"workload {workload.namespace}/{workload.name}"
