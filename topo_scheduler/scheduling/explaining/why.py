"""Explanations of workloads that wait, made beside the decisions: why not, and what would help.

A machine like the others: told what failed, it works in slices as time is left, on a copy of the state, and says what
is to be told. What it tells held on the state of the moment at which its copy was made, less than a second before.
Workloads that ask alike share one explanation. It is made anew when the reason changes, and after a while when the
state changed.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import FAULT as AN_EXCEPTION
from topo_scheduler.scheduling.barrier import Activity, described, failure_of, kind_of
from topo_scheduler.scheduling.explaining.combined import ways_out
from topo_scheduler.scheduling.explaining.domain_table import DomainVerdict, domain_table
from topo_scheduler.scheduling.explaining.dominant import shortage
from topo_scheduler.scheduling.explaining.running import Running, running_pods
from topo_scheduler.scheduling.explaining.ways import Scene, Way
from topo_scheduler.scheduling.explaining.ways_text import NOTE_BYTES, say_all
from topo_scheduler.scheduling.explaining.what_if import WhatIf
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import (
    CountFailure,
    EmitEvent,
    Instruction,
    LogWarning,
    MarkUnschedulable,
    reference,
)
from topo_scheduler.scheduling.intake.pending import worded
from topo_scheduler.scheduling.parts import PART_OPERATIONS
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.levels import wish_of
from topo_scheduler.scheduling.placing.second_tree import seen_fabric
from topo_scheduler.scheduling.placing.tied import is_tied
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.queueing.sharing import Sharing
from topo_scheduler.scheduling.queueing.standing import least_of
from topo_scheduler.scheduling.reserving.machine import Reserving
from topo_scheduler.scheduling.rules.neighbours import looks_around
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision, SizeRule, Verdict
from topo_scheduler.state.operation_budget import OperationBudget, limited
from topo_scheduler.state.workloads import Member, Stage, Workload, Workloads

AGAIN: Final = 60.0
"""Seconds after which an explanation is made again, if the state changed."""
SOONEST: Final = 10.0
"""Seconds between two explanations of a workload whose reason stays the same."""
RESTART: Final = 0.25
"""Seconds after which it is begun again when nodes changed meanwhile."""
AS_BEFORE: Final = 600.0
"""Seconds after which what would help is told again where only numbers in it changed."""
MANY: Final = 500
"""Workloads that wait from which on pods alone are no longer explained by themselves: what is told would be a flood."""
LONG: Final = 600
"""Bytes of a message beside which there is no room for what would help."""
FAULT: Final = "internal fault while its waiting was explained, please report it"
REMEMBERED: Final = 256
"""Explanations that are kept for workloads that ask alike."""
RESTARTS: Final = 20
"""Beginnings after which it is left for later: nodes change all the time."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a workload waits, as of a moment.

    ``members`` how many must be placed at once; ``message`` the line that its event begins with; ``reason`` the
    dominant one in plain words; ``rule`` what the size rule asks; ``gpus`` of each pod of the most demanding class;
    ``at`` seconds since the epoch; ``seconds`` of CPU that it took.
    """

    workload: str
    members: int
    gpus: int
    message: str
    reason: str
    rule: SizeRule | None
    nodes: int
    reasons: Mapping[str, int]
    domains: tuple[DomainVerdict, ...]
    ways: tuple[Way, ...]
    at: float
    seconds: float = 0.0

    def told(self, limit: int = NOTE_BYTES, reader: str = "") -> str:
        """Return the message with as many ways as fit into so many bytes; without its counts where it is very long.

        ``reader`` see `few_for`: whose names may be told.
        """
        message = self.message
        if len(message.encode()) > LONG:
            message = f"0/{self.nodes} nodes are available. {self.reason}"
        return message + say_all(self.ways, self.at, limit - len(message.encode()), reader)


@dataclass(slots=True)
class _Case:
    """A workload that waits. ``made`` when it was explained last and ``stamp`` on what state; ``due`` when it is again.

    ``told`` what was told last, and ``told_at`` when.
    """

    text: str
    count: int
    made: float = -inf
    stamp: object = None
    due: float = inf
    told: str = ""
    told_at: float = -inf
    restarts: int = 0


@dataclass(slots=True)
class _Work:
    id: str
    steps: Iterator[Explanation | None]
    facts: object
    spent: float = 0.0


class Explainer:
    """Who waits to be explained, and what is being explained."""

    def __init__(
        self,
        world: World,
        workloads: Workloads,
        attempts: Attempts,
        preempting: Preempting,
        sharing: Sharing,
        reserving: Reserving,
    ) -> None:
        self._world = world
        self._workloads = workloads
        self._attempts = attempts
        self._preempting = preempting
        self._sharing = sharing
        self._reserving = reserving
        self._cases: dict[str, _Case] = {}
        self._queue: dict[str, float] = {}
        self._later: list[tuple[float, str]] = []
        self._work: _Work | None = None
        self._made: dict[object, tuple[object, Explanation]] = {}

    # ------------------------------------------------------------ facts in

    def failed(self, workload: Workload, text: str, members: int, now: float) -> None:
        """Note that so many members of a workload found no place, and what was told of it. Costs microseconds."""
        case = self._cases.get(workload.id)
        if case is None:
            if not workload.gang and len(self._cases) >= MANY:
                return
            self._cases[workload.id] = _Case(text, members)
            self._queue.setdefault(workload.id, now)
            return
        alike = case.text == text or worded(case.text) == worded(text)
        case.text, case.count = text, members
        if not alike:
            self.reworded(workload, text, now)
        elif case.stamp != self._stamp():
            self._schedule(workload.id, case, max(now, case.made + SOONEST))

    def reworded(self, workload: Workload, text: str, now: float) -> None:
        """Note that more was told of a workload that waits, so that what would help is to be told behind it again."""
        case = self._cases.get(workload.id)
        if case is None:
            return
        case.text, case.told, case.told_at = text, "", -inf
        self._queue.setdefault(workload.id, now)

    def forget(self, id_: str) -> None:
        """Forget a workload that waits no more."""
        self._cases.pop(id_, None)
        self._queue.pop(id_, None)

    # ------------------------------------------------------------ work

    @property
    def waiting(self) -> int:
        """Workloads that are to be explained now, the one in work included."""
        return len(self._queue) + (self._work is not None)

    def due(self, now: float) -> bool:
        """Return whether `work` has anything to do."""
        return bool(self.waiting) or bool(self._later and self._later[0][0] <= now)

    def expected(self, id_: str) -> bool:
        """Return whether what would help a workload is about to be told for the first time since its reason changed."""
        case = self._cases.get(id_)
        if case is None or case.told_at != -inf:
            return False
        return case.made == -inf or id_ in self._queue or (self._work is not None and self._work.id == id_)

    def waited(self, now: float) -> float:
        """Return for how many seconds the first of them has waited."""
        return now - next(iter(self._queue.values()), now)

    def next_due(self) -> float | None:
        """Return when `work` has something to do that it hasn't now."""
        return self._later[0][0] if self._later else None

    def work(self, now: float, wall: float, clock: Callable[[], float], budget: float) -> list[Instruction]:
        """Explain for so many seconds, or one part longer; return what there is to be told.

        Args:
            now: seconds.
            wall: seconds since the epoch.
            clock: measures what is spent.
            budget: seconds.
        """
        self._wake(now)
        out: list[Instruction] = []
        began = clock()
        while self.waiting:
            try:
                out += self._step(now, wall, clock)
            except Exception as error:  # the part was not begun, or had ended: it is explained when it is tried again
                self._work = None
                out += failure_of("explanations", error, Activity.EXPLANATION)
            if clock() - began >= budget:
                break
        return out

    def explain(self, workload: Workload, now: float, wall: float, clock: Callable[[], float]) -> Explanation | None:
        """Explain one workload at once, however long it takes; None where it has no pod that lacks a place."""
        began = clock()
        found = None
        for step in self._explanation(workload, now, wall, None):
            found = step or found
        return replace(found, seconds=clock() - began) if found is not None else None

    # ------------------------------------------------------------ inside

    def _wake(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            at, id_ = heapq.heappop(self._later)
            case = self._cases.get(id_)
            if case is None or case.due != at:
                continue
            case.due = inf
            if case.stamp == self._stamp():
                self._schedule(id_, case, now + AGAIN)
            else:
                self._queue.setdefault(id_, now)

    def _schedule(self, id_: str, case: _Case, at: float) -> None:
        if at < case.due:
            case.due = at
            heapq.heappush(self._later, (at, id_))

    def _step(self, now: float, wall: float, clock: Callable[[], float]) -> list[Instruction]:
        """Do one part of the work; return what is to be told when it was the last."""
        began = clock()
        work = self._work
        if work is None:
            id_ = next(iter(self._queue))
            del self._queue[id_]
            workload, known = self._workloads.get(id_), self._cases.get(id_)
            if workload is None or known is None:
                self.forget(id_)
                return []
            work = self._work = _Work(id_, self._explanation(workload, now, wall, known), self._facts())
        case = self._cases.get(work.id)
        if case is None:
            self._work = None
            return []
        if work.facts != self._facts():
            # Names and labels of nodes are not copied: what was found may not hold any more.
            self._work = None
            case.restarts += 1
            self._schedule(work.id, case, now + (RESTART if case.restarts % RESTARTS else AGAIN))
            return []
        self._world.around.extensions.guard.begin()
        try:
            with limited(OperationBudget(PART_OPERATIONS)):
                found = next(work.steps)
        except StopIteration:
            self._work = None
            self.forget(work.id)  # it waits no more, or has room by now
            return []
        except PluginError:
            self._work = None
            self._schedule(work.id, case, now + AGAIN)
            return []  # the attempt tells it
        except Exception as error:  # an explanation is a courtesy: whatever is wrong with it stops no placement
            self._work = None
            self._schedule(work.id, case, now + AS_BEFORE)
            if kind_of(error) != AN_EXCEPTION:
                return failure_of(f"workload {work.id}", error, Activity.EXPLANATION)
            return [
                LogWarning(f"{work.id}: {FAULT}: {described(error)}"),
                CountFailure(Activity.EXPLANATION.value, kind_of(error)),
            ]
        work.spent += clock() - began
        if found is None:
            return []
        self._work = None
        case.made, case.restarts = now, 0
        self._schedule(work.id, case, now + AGAIN)
        return self._tell(work.id, case, replace(found, seconds=work.spent), now)

    def _facts(self) -> object:
        return self._world.nodes.facts_changes.position, self._world.layout.generation

    def _stamp(self) -> object:
        return self._world.improvements, self._world.nodes.capacity_changes.position, self._facts()

    def _explanation(
        self, workload: Workload, now: float, wall: float, case: _Case | None
    ) -> Iterator[Explanation | None]:
        """Yield None after each part of the work, and at its end the explanation."""
        pending = workload.at(Stage.PENDING)
        members = pending[: case.count if case is not None else least_of(workload)]
        if not members:
            return
        stamp = self._stamp()
        groups, _, _ = self._attempts.groups(workload, members)
        layout = seen_fabric(workload, self._world.layout)
        steps = wish_of(workload, members, layout, now).steps
        key = _key(workload, self._attempts.ask(workload, groups, (), layout), steps)
        known = self._made.get(key)
        if case is not None:
            case.stamp = stamp
            if known is not None and known[0] == stamp:
                yield replace(known[1], workload=workload.id, message=case.text)
                return
        what_if, entries = self._copy(workload, members, now), list(self._world.ledger.items())
        decision = what_if.decision(workload, members)
        if decision.verdict is Verdict.PLACED:
            return
        yield None
        ask = what_if.ask(workload, members)
        rule = what_if.rule(ask)
        table = domain_table(what_if.planner, ask, what_if.seen_by(ask))
        yield None
        running: Running | None = None
        columns = what_if.planner.nodes.allocatable.shape[1]
        ends = self._reserving.ends
        for part in running_pods(
            entries,
            columns,
            self._workloads,
            workload.id,
            lambda uid, entry: ends.by_what_is_known(uid, entry, now) + self._world.epoch,
        ):
            running = part
            yield None
        assert running is not None
        scene = Scene(what_if, workload, members, ask, rule, wall)
        for _ in ways_out(scene, running):
            yield None
        found = Explanation(
            workload=workload.id,
            members=len(members),
            gpus=max(member.cls.gpus for member in members),
            message=case.text if case is not None else decision.message,
            reason=reason_of(what_if, ask, decision, rule),
            rule=rule,
            nodes=decision.nodes,
            reasons=decision.reasons or {},
            domains=table,
            ways=tuple(scene.found),
            at=wall,
        )
        if len(self._made) > REMEMBERED:
            self._made.clear()
        self._made[key] = (stamp, found)
        yield found

    def drop_caches(self) -> None:
        """Drop the explanations that are kept to be quick."""
        self._made.clear()

    def _copy(self, workload: Workload, members: Sequence[Member], now: float) -> WhatIf:
        """Return a copy of the state as an attempt on a workload sees it."""
        world = self._world
        around = any(looks_around(world.around.seen_by(member.cls, member.profile)) for member in members)
        layout = seen_fabric(workload, world.layout)
        what_if = WhatIf(
            self._attempts.planner, self._sharing, layout, now, neighbours=around, spares=self._attempts.spares
        )
        # Not on the state itself: nothing that happens here may show there.
        what_if.planner.nodes.requested[:] = world.held()
        for one in self._preempting.nominations:
            row = world.nodes.row_of.get(one.node)
            if row is not None and one.priority >= workload.priority and one.uid not in workload.members:
                what_if.count(row, one.amounts, one.profile)
        for row, amounts in self._reserving.kept_from(workload, now):
            what_if.count(row, amounts, None)
        return what_if

    def _tell(self, id_: str, case: _Case, found: Explanation, now: float) -> list[Instruction]:
        workload = self._workloads.get(id_)
        text = found.told(reader=self._world.reader(workload.namespace)) if workload is not None else ""
        if workload is None or not found.ways or text == case.told:
            return []
        if worded(text) == worded(case.told) and now < case.told_at + AS_BEFORE:
            return []
        case.told, case.told_at = text, now
        out: list[Instruction] = []
        for member in workload.at(Stage.PENDING):
            out.append(EmitEvent(reference(member), True, Reason.FAILED_SCHEDULING, text))
            out.append(MarkUnschedulable(reference(member), text, member.enqueued))
        return out


def reason_of(what_if: WhatIf, ask: PlacementQuery, decision: Decision, rule: SizeRule | None) -> str:
    """Return the dominant reason: of what the decision says the first sentence, of a pod alone what is free."""
    if decision.sentence:
        return decision.sentence
    if rule is None or is_tied(ask.groups):
        return decision.message
    if told := shortage(what_if.planner, ask, what_if.seen_by(ask), rule):
        return f"{told}."
    return decision.message


def _key(workload: Workload, ask: PlacementQuery, steps: int) -> object:
    """Return what tells a workload from others that ask for something else; ``steps``: how often its level loosened."""
    wanted = (ask.gang, ask.strategy, ask.enforcement, ask.mixed_models, ask.within, ask.demands, ask.preferred)
    whose = (workload.namespace, workload.priority, workload.level, workload.tiers, workload.group is None)
    return whose, wanted, steps, ask.segments, ask.woven, tuple(ask.running), tuple(ask.groups), ask.profiles
