"""A cache of failed attempts: a failure of one workload holds for all workloads with the same demand.

In a backlog, most workloads have the same demands as others. The engine makes a full attempt for the first of them. For
the others it knows the result until the state improves. The cached decision and message are those that an attempt would
have in the same turn; the engine only does not compute them again. The cache is valid while the workload and all other
inputs of its demand are unchanged. A changed workload becomes active, and the engine calls `forget`.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from topo_scheduler.scheduling.attempts import AttemptKey, Attempts, KeptRoom, KnownFailure
from topo_scheduler.scheduling.binding.admission_backoff import Kind, kind_of
from topo_scheduler.scheduling.explaining.explainer import Explainer
from topo_scheduler.scheduling.instructions import Instruction, RecordDecision
from topo_scheduler.scheduling.intake.pending import worded
from topo_scheduler.scheduling.moving.machine import Moving
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.queueing.fair_queue import Order
from topo_scheduler.scheduling.queueing.queue_keys import least_of, order_of
from topo_scheduler.scheduling.queueing.unschedulable import UnschedulableWorkloads
from topo_scheduler.scheduling.reserving.ends import Lasting, lasting_of
from topo_scheduler.scheduling.reserving.holds import Reservation
from topo_scheduler.scheduling.reserving.machine import Reserving
from topo_scheduler.scheduling.rules.interpod_filters import looks_around
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.workloads import Member, Stage, Workload, size_of
from topo_scheduler.state.topology.fabric import Layout

MAX_TEXTS: Final = 4096
"""Cached texts at most."""


@dataclass(slots=True)
class _CachedFailure:
    """A workload that found no place and has no placed member.

    Attributes:
        order: its order in the queue.
        demand: its demand, as the key of the attempt.
        layout: the fabric at that attempt.
        terms: the affinity terms of other pods that select pods like its own, at that attempt.
        first_class: class of its first member if the members are not all alike, else None.
        lasting: how long it will run.
        members: number of pending members.
        kinds: their namespace and their classes.
        large: whether the scheduler may reserve nodes for it.
        name: namespace and name.
        reason_text: the published reason without numbers.
    """

    order: Order
    demand: AttemptKey
    layout: Layout
    terms: Hashable
    first_class: PodClass | None
    lasting: Lasting
    members: int
    kinds: frozenset[Kind]
    large: bool
    name: str
    reason_text: str


@dataclass(frozen=True, slots=True)
class _FailureText:
    """The message of a failure.

    Attributes:
        failure: the cached failure.
        state: state on which the message depends.
        message: message of the decision.
        text: the message with the sentence about reserved nodes.
        reason_text: ``text`` without numbers.
    """

    failure: KnownFailure
    state: Hashable
    message: str
    text: str
    reason_text: str


class FailureCache:
    """Refuses workloads again where an attempt certainly would. The engine tries all workloads that are not cached."""

    def __init__(
        self,
        world: World,
        attempts: Attempts,
        unschedulable: UnschedulableWorkloads,
        preempting: Preempting,
        reserving: Reserving,
        moving: Moving,
        why: Explainer,
    ) -> None:
        self._world = world
        self._attempts = attempts
        self._unschedulable = unschedulable
        self._preempting = preempting
        self._reserving = reserving
        self._moving = moving
        self._why = why
        self._refused: dict[str, _CachedFailure] = {}
        self._words: dict[tuple[AttemptKey, Hashable, PodClass | None], _FailureText] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def forget(self, id_: str) -> None:
        """Forget the failure of a workload, because the workload changed or has a different message now."""
        self._refused.pop(id_, None)

    def clear(self) -> None:
        """Forget all failures, because the configuration changed."""
        self._refused.clear()
        self._words.clear()

    def remember(
        self, workload: Workload, pending: list[Member], decision: Decision, kept: KeptRoom, text: str, now: float
    ) -> None:
        """Record a workload that was found unschedulable, right after its message was published.

        Args:
            workload: the workload that was tried.
            pending: its pending members.
            decision: the decision of the attempt.
            kept: the room that was reserved during the attempt.
            text: the published message.
            now: time in seconds.
        """
        attempt = self._attempts.refused
        if attempt is None or not self._is_time_independent(workload) or len(pending) > least_of(workload):
            return
        demand, failure = attempt
        lasting, large = lasting_of(pending, size_of(workload)), self._reserving.is_large(workload)
        order = order_of(workload)
        first = pending[0].cls if len(workload.requeue_conditions.classes) > 1 else None
        kinds = frozenset(map(kind_of, pending))
        if not self._no_special_rules(order, kinds) or failure.stamp[1] or any(looks_around(cls) for _, cls in kinds):
            return
        reservations = self._reserving.applying(order, lasting, now)
        kept_key = (None, self._reserving.holds.tells(reservations))
        if kept_key != kept:
            return
        name = f"{workload.namespace}/{workload.name}"
        layout, terms = self._world.layout, self._world.around.terms_changed
        members = len(pending)
        self._refused[workload.id] = _CachedFailure(
            order, demand, layout, terms, first, lasting, members, kinds, large, name, worded(text)
        )
        moves = self._moving.describe(workload.id)
        text = text.removesuffix(moves).rstrip()
        if len(self._words) > MAX_TEXTS:
            self._words.clear()
        state = self._state(reservations)
        self._words[demand, kept_key, first] = _FailureText(failure, state, decision.message, text, worded(text))

    def again(self, workload: Workload, now: float, clock: Callable[[], float]) -> list[Instruction] | None:
        """Refuse a workload again and return the instructions, or None if the engine must try it.

        Args:
            workload: the workload whose turn it is.
            now: time in seconds.
            clock: measures the time spent.
        """
        refused = self._refused.get(workload.id)
        if refused is None:
            return None
        if (
            refused.layout is not self._world.layout
            or refused.terms != self._world.around.terms_changed
            or not self._no_special_rules(refused.order, refused.kinds)
        ):
            self.forget(workload.id)
            return None
        reservations = self._reserving.applying(refused.order, refused.lasting, now)
        kept_key = (None, self._reserving.holds.tells(reservations))
        failure = self._attempts.known(kept_key, refused.demand, (self._world.improvements, ()))
        cached = self._words.get((refused.demand, kept_key, refused.first_class)) if failure is not None else None
        if (
            failure is None
            or cached is None
            or cached.failure is not failure
            or cached.state != self._state(reservations)
        ):
            self.forget(workload.id)
            return None
        began = clock()
        decision = self._attempts.refuse(failure, workload.id, refused.name, refused.members)
        record = RecordDecision(decision, clock() - began)
        workload.plugin_failures = 0
        workload.room_helps = failure.room_helps
        self._unschedulable.queue.mark_unschedulable(refused.order)
        self._preempting.rest(workload.id)
        self._reserving.refused(
            workload.id, refused.order if refused.large and failure.room_helps else None, cached.message
        )
        moves = self._moving.found_unschedulable(
            workload, cached.message, refused.order.since, room_helps=failure.room_helps
        )
        text, reason_text = cached.text, cached.reason_text
        if moves:
            text = f"{text} {moves}"
            reason_text = worded(text)
        self._why.failed(workload, text, refused.members, now)
        if reason_text == refused.reason_text:
            return [record]
        refused.reason_text = reason_text
        return [record, *self._unschedulable.tell(workload, workload.at(Stage.PENDING), text)]

    # ------------------------------------------------------------ inside

    def _is_time_independent(self, workload: Workload) -> bool:
        """Return whether the demand of a workload does not depend on time, and none of its members has a place."""
        pending = all(member.stage is Stage.PENDING for member in workload.members.values())
        return pending and not workload.request.relax_after and not workload.problem

    def _no_special_rules(self, order: Order, kinds: frozenset[Kind]) -> bool:
        """Return whether no reservation, quota, hold, backoff or excluded node applies to a single workload only."""
        sharing, admission_backoff = self._attempts.sharing, self._unschedulable.outcomes.admission_backoff
        if (
            self._world.kept
            or admission_backoff.any_in_backoff(kinds)
            or self._world.around.shunned.concerns(cls for _, cls in kinds)
            or (sharing is not None and sharing.configured)
        ):
            return False
        return self._reserving.holds.get(order.id) is None and self._preempting.idle_for(order.id, order.priority)

    def _state(self, reservations: list[Reservation]) -> Hashable:
        """Return a key of the state on which the sentence about reserved nodes depends.

        These are the expected start of each reservation, and the resources in use.
        """
        return tuple([reservation.start for reservation in reservations]), self._world.ledger.changes
