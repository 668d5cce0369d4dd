"""Workloads that were refused and are tried again: what was found for one holds for all that ask the same.

Of a backlog most ask what others ask. The first of them is tried, with all that belongs to it; of the others it is
known how they fare until something improves. What is decided and told of them is what an attempt would come to, in the
same turn; it is only not worked out again. For this nothing may have changed of the workload itself (who changes is
active, and `forget` is called), nor of what its demand is made on beside.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from topo_scheduler.scheduling.attempts import AttemptKey, Attempts, Known
from topo_scheduler.scheduling.explaining.why import Explainer
from topo_scheduler.scheduling.instructions import Instruction, RecordDecision
from topo_scheduler.scheduling.intake.pending import worded
from topo_scheduler.scheduling.moving.machine import Moving
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.queueing.setting_aside import SettingAside
from topo_scheduler.scheduling.queueing.standing import least_of, order_of
from topo_scheduler.scheduling.queueing.turns import Order
from topo_scheduler.scheduling.reserving.ends import Lasting, lasting_of
from topo_scheduler.scheduling.reserving.holds import Reservation
from topo_scheduler.scheduling.reserving.machine import Reserving
from topo_scheduler.scheduling.rules.neighbours import looks_around
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.workloads import Member, Stage, Workload, size_of

KEEP: Final = 4096
"""Texts kept at most."""


@dataclass(slots=True)
class _Refused:
    """A workload that found no place, and has none for any of its members.

    ``layout`` and ``terms`` (the affinity of others that is meant for pods like its own) its ``demand`` was made on;
    ``first`` the class of its first member where they are not all alike; ``large`` whether nodes may be held for it;
    ``told`` its reason without numbers.
    """

    order: Order
    demand: AttemptKey
    layout: Layout
    terms: Hashable
    first: PodClass | None
    lasting: Lasting
    members: int
    large: bool
    name: str
    told: str


@dataclass(frozen=True, slots=True)
class _Words:
    """What is said of a failure, as of a ``state``.

    ``message`` of the decision, ``text`` with what is said of nodes that are held, ``told`` the same without numbers.
    """

    known: Known
    state: Hashable
    message: str
    text: str
    told: str


class Rechecks:
    """Refuses workloads once more where it is known that an attempt would. Who is not known here is tried."""

    def __init__(
        self,
        world: World,
        attempts: Attempts,
        aside: SettingAside,
        preempting: Preempting,
        reserving: Reserving,
        moving: Moving,
        why: Explainer,
    ) -> None:
        self._world = world
        self._attempts = attempts
        self._aside = aside
        self._preempting = preempting
        self._reserving = reserving
        self._moving = moving
        self._why = why
        self._refused: dict[str, _Refused] = {}
        self._words: dict[tuple[AttemptKey, Hashable, PodClass | None], _Words] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def forget(self, id_: str) -> None:
        """Forget what was found of a workload: it changed, or something else was told of it."""
        self._refused.pop(id_, None)

    def clear(self) -> None:
        """Forget all: the configuration changed."""
        self._refused.clear()
        self._words.clear()

    def remember(self, workload: Workload, pending: list[Member], decision: Decision, text: str, now: float) -> None:
        """Note a workload that was refused and parked, right after that was told.

        Args:
            workload: that was tried.
            pending: its members that wait.
            decision: what came of it.
            text: all that was told.
            now: seconds.
        """
        found = self._attempts.refused
        if found is None or not self._plain(workload) or len(pending) > least_of(workload):
            return
        demand, known = found
        lasting, large = lasting_of(pending, size_of(workload)), self._reserving.is_large(workload)
        order = order_of(workload)
        first = pending[0].cls if len(workload.set_aside.classes) > 1 else None
        if not self._alone(order) or known.stamp[1] or any(looks_around(one.cls) for one in pending):
            return
        applying = self._reserving.applying(order, lasting, now)
        kept = (None, self._reserving.holds.tells(applying))
        if kept != self._attempts.kept:
            return
        name = f"{workload.namespace}/{workload.name}"
        layout, terms = self._world.layout, self._terms()
        members = len(pending)
        self._refused[workload.id] = _Refused(
            order, demand, layout, terms, first, lasting, members, large, name, worded(text)
        )
        moves = self._moving.told(workload.id)
        text = text.removesuffix(moves).rstrip()
        if len(self._words) > KEEP:
            self._words.clear()
        state = self._state(applying)
        self._words[demand, kept, first] = _Words(known, state, decision.message, text, worded(text))

    def again(self, workload: Workload, now: float, clock: Callable[[], float]) -> list[Instruction] | None:
        """Refuse a workload once more; None where it must be tried.

        Args:
            workload: whose turn it is.
            now: seconds.
            clock: measures what it costs.
        """
        one = self._refused.get(workload.id)
        if one is None:
            return None
        if one.layout is not self._world.layout or one.terms != self._terms() or not self._alone(one.order):
            self.forget(workload.id)
            return None
        applying = self._reserving.applying(one.order, one.lasting, now)
        kept = (None, self._reserving.holds.tells(applying))
        known = self._attempts.known(kept, one.demand, (self._world.improvements, ()))
        words = self._words.get((one.demand, kept, one.first)) if known is not None else None
        if known is None or words is None or words.known is not known or words.state != self._state(applying):
            self.forget(workload.id)
            return None
        before = clock()
        decision = self._attempts.refuse(known, workload.id, one.name, one.members)
        announced = RecordDecision(decision, clock() - before)
        workload.plugin_failures = 0
        workload.room_helps = known.room_helps
        self._aside.queue.park(one.order)
        self._preempting.rest(workload.id)
        self._reserving.refused(workload.id, one.order if one.large and known.room_helps else None, words.message)
        moves = self._moving.parked(workload, words.message, one.order.since, room_helps=known.room_helps)
        text, told = words.text, words.told
        if moves:
            text = f"{text} {moves}"
            told = worded(text)
        self._why.failed(workload, text, one.members, now)
        if told == one.told:
            return [announced]
        one.told = told
        return [announced, *self._aside.tell(workload, workload.at(Stage.PENDING), text)]

    # ------------------------------------------------------------ inside

    def _plain(self, workload: Workload) -> bool:
        """Return whether what a workload asks is the same at any time, and none of its members has a place."""
        pending = all(member.stage is Stage.PENDING for member in workload.members.values())
        return pending and not workload.request.relax_after and not workload.problem

    def _alone(self, order: Order) -> bool:
        """Return whether nothing is kept, promised or granted that is meant for single workloads."""
        sharing, held_back = self._attempts.sharing, self._aside.outcomes.held_back
        if (
            self._world.kept
            or held_back
            or self._world.around.shunned.any_shunned
            or (sharing is not None and sharing.configured)
        ):
            return False
        return self._reserving.holds.get(order.id) is None and self._preempting.idle_for(order.id, order.priority)

    def _terms(self) -> Hashable:
        return self._world.around.terms_changed

    def _state(self, applying: list[Reservation]) -> Hashable:
        """Return on what depends what is said of held nodes: when they are expected, and what is in use of them."""
        return tuple([held.start for held in applying]), self._world.ledger.changes
