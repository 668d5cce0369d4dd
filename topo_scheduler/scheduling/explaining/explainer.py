"""Explanations of pending workloads, computed in addition to the decisions: the reasons, and what would help.

The engine reports each failed attempt here. The explainer works in slices when time is left, on a copy of the state,
and returns the events to publish. An explanation holds for the state at the time of its copy, less than a second
before. Workloads with the same demands share one explanation. The explainer makes it again when the reason changes, and
after a while when the state has changed.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import FAULT as AN_EXCEPTION
from topo_scheduler.scheduling.barrier import Activity, described, failure_of, kind_of
from topo_scheduler.scheduling.explaining.blocked_class import blocked_class
from topo_scheduler.scheduling.explaining.combined import search_remedies
from topo_scheduler.scheduling.explaining.domain_table import DomainVerdict, domain_table
from topo_scheduler.scheduling.explaining.dominant import shortage
from topo_scheduler.scheduling.explaining.explanation_queue import ExplanationQueue
from topo_scheduler.scheduling.explaining.remedies import Remedy, Scene
from topo_scheduler.scheduling.explaining.remedy_text import NOTE_BYTES, say_all
from topo_scheduler.scheduling.explaining.running import Running, running_pods
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
from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained
from topo_scheduler.scheduling.placing.levels import wish_of
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.model.second_tree import seen_fabric
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.preemption.shares import ReservationShares
from topo_scheduler.scheduling.queueing.queue_keys import least_of
from topo_scheduler.scheduling.queueing.sharing import Sharing
from topo_scheduler.scheduling.reserving.machine import Reserving
from topo_scheduler.scheduling.rules.interpod_filters import looks_around
from topo_scheduler.scheduling.time_slicing import SlicedSearch, never
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision, SizeRule, Verdict
from topo_scheduler.state.pods.workloads import Member, Stage, Workload, Workloads

REFRESH_SECONDS: Final = 60.0
"""Seconds after which the explainer makes an explanation again, if the state changed."""
MIN_INTERVAL_SECONDS: Final = 10.0
"""Seconds between two explanations of a workload whose reason stays the same."""
RESTART_SECONDS: Final = 0.25
"""Seconds after which the explainer restarts an explanation during which nodes changed."""
REPUBLISH_SECONDS: Final = 600.0
"""Seconds after which the explainer publishes remedies again if only numbers in them changed."""
MAX_EXPLAINED_WORKLOADS: Final = 500
"""Pending workloads above which the explainer adds single pods only of namespaces that have less than an equal part.

More events would be a flood.
"""
LONG_MESSAGE_BYTES: Final = 600
"""Bytes of a message above which there is no room for remedies after it."""
FAULT: Final = "internal fault in the explanation of why it is pending, please report it"
MAX_CACHED: Final = 256
"""Explanations that are cached for workloads with the same demands."""
MAX_RESTARTS: Final = 20
"""Restarts after which the explainer postpones a workload, because nodes change all the time."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a workload is pending, at one point in time.

    Attributes:
        workload: ID of the workload.
        members: members that must be placed at once.
        gpus: GPUs of each pod of the most demanding class.
        message: first part of its event.
        reason: the dominant reason, as a sentence.
        rule: what the size rule asks for.
        nodes: nodes of the cluster.
        reasons: nodes by reason.
        domains: all domains, with the reasons that exclude their nodes.
        ways: remedies, the cheapest first.
        at: time in seconds since the epoch.
        seconds: CPU time that the explanation took, in seconds.
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
    ways: tuple[Remedy, ...]
    at: float
    seconds: float = 0.0

    def event_text(self, limit: int = NOTE_BYTES, reader: str = "") -> str:
        """Return the message with as many remedies as fit; without the counts of the message if it is very long.

        Args:
            limit: bytes of the result at most.
            reader: namespace whose names the text may contain, see `few_for`; empty for all names.
        """
        message = self.message
        if len(message.encode()) > LONG_MESSAGE_BYTES:
            message = f"0/{self.nodes} nodes are available. {self.reason}"
        return message + say_all(self.ways, self.at, limit - len(message.encode()), reader)


@dataclass(slots=True)
class _Case:
    """A pending workload.

    Attributes:
        namespace: its namespace.
        text: message of its last failure.
        count: members that the failed attempt had to place.
        made: time of its last explanation.
        stamp: state on which that explanation was made.
        due: time at which the next explanation is due.
        published: text that was published last.
        published_at: time at which it was published.
        restarts: restarts of the explanation because nodes changed.
    """

    namespace: str
    text: str
    count: int
    made: float = -inf
    stamp: object = None
    due: float = inf
    published: str = ""
    published_at: float = -inf
    restarts: int = 0


class Explainer:
    """The workloads to explain, and the explanation in progress."""

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
        self._cases_of: Counter[str] = Counter()
        """Number of cases by namespace."""
        self._queue = ExplanationQueue()
        self._later: list[tuple[float, str]] = []
        self._parts: SlicedSearch[Explanation] = SlicedSearch(world)
        self._current = ""
        """The workload that is being explained."""
        self._spent = 0.0
        self._made: dict[object, tuple[object, Explanation]] = {}

    # ------------------------------------------------------------ input

    def failed(self, workload: Workload, text: str, members: int, now: float) -> None:
        """Record that members of a workload found no place, with the published message. Takes microseconds."""
        case = self._cases.get(workload.id)
        if case is None:
            if not workload.gang and not self._may_add(workload.namespace):
                return
            self._cases[workload.id] = _Case(workload.namespace, text, members)
            self._cases_of[workload.namespace] += 1
            self._queue.put(workload.namespace, workload.id, now)
            return
        same_reason = case.text == text or worded(case.text) == worded(text)
        case.text, case.count = text, members
        if not same_reason:
            self.reworded(workload, text, now)
        elif case.stamp != self._stamp():
            self._schedule(workload.id, case, max(now, case.made + MIN_INTERVAL_SECONDS))

    def reworded(self, workload: Workload, text: str, now: float) -> None:
        """Record that a pending workload has a new message, so that the remedies must be published after it again."""
        case = self._cases.get(workload.id)
        if case is None:
            return
        case.text, case.published, case.published_at = text, "", -inf
        self._queue.put(case.namespace, workload.id, now)

    def forget(self, id_: str) -> None:
        """Forget a workload that is no longer pending."""
        case = self._cases.pop(id_, None)
        if case is None:
            return
        self._queue.drop(case.namespace, id_)
        self._cases_of[case.namespace] -= 1
        if not self._cases_of[case.namespace]:
            del self._cases_of[case.namespace]

    def _may_add(self, namespace: str) -> bool:
        """Return whether a further single pod of a namespace is explained."""
        if len(self._cases) < MAX_EXPLAINED_WORKLOADS:
            return True
        namespaces = len(self._cases_of) + (namespace not in self._cases_of)
        return self._cases_of[namespace] < max(1, MAX_EXPLAINED_WORKLOADS // namespaces)

    # ------------------------------------------------------------ work

    @property
    def waiting(self) -> int:
        """Number of workloads to explain now, including the one in progress."""
        return len(self._queue) + self._parts.going

    def due(self, now: float) -> bool:
        """Return whether `work` has anything to do."""
        return bool(self._queue) or self._parts.going or bool(self._later and self._later[0][0] <= now)

    def expected(self, id_: str) -> bool:
        """Return whether remedies for the current reason of the workload are not published yet, but will be soon."""
        case = self._cases.get(id_)
        if case is None or case.published_at != -inf:
            return False
        queued = self._queue.has(case.namespace, id_)
        return case.made == -inf or queued or (self._parts.going and self._current == id_)

    def waited(self, now: float) -> float:
        """Return for how many seconds the oldest workload has been in the queue."""
        return self._queue.waited(now)

    def next_due(self) -> float | None:
        """Return when `work` will have something new to do."""
        return self._later[0][0] if self._later else None

    def work(self, now: float, wall: float, clock: Callable[[], float], budget: float) -> list[Instruction]:
        """Work on explanations for ``budget`` seconds, or one part longer. Return the resulting instructions.

        Args:
            now: time of the engine in seconds.
            wall: seconds since the epoch.
            clock: measures the time spent.
            budget: seconds.
        """
        self._wake(now)
        out: list[Instruction] = []
        began = clock()
        while self._queue or self._parts.going:
            try:
                out += self._step(now, wall, clock)
            except Exception as error:  # outside of the search: a later try explains the workload
                self._parts.drop()
                out += failure_of("explanations", error, Activity.EXPLANATION)
            if clock() - began >= budget:
                break
        return out

    def explain(self, workload: Workload, now: float, wall: float, clock: Callable[[], float]) -> Explanation | None:
        """Explain one workload at once, without a time limit. None where it has no pod without a place."""
        began = clock()
        explanation = None
        for step in self._explanation(workload, now, wall, None):
            explanation = step or explanation
        return replace(explanation, seconds=clock() - began) if explanation is not None else None

    # ------------------------------------------------------------ inside

    def _wake(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            due, id_ = heapq.heappop(self._later)
            case = self._cases.get(id_)
            if case is None or case.due != due:
                continue
            case.due = inf
            if case.stamp == self._stamp():
                self._schedule(id_, case, now + REFRESH_SECONDS)
            else:
                self._queue.put(case.namespace, id_, now)

    def _schedule(self, id_: str, case: _Case, due: float) -> None:
        if due < case.due:
            case.due = due
            heapq.heappush(self._later, (due, id_))

    def _step(self, now: float, wall: float, clock: Callable[[], float]) -> list[Instruction]:
        """Do one part of the work. Return the resulting instructions after the last part."""
        began = clock()
        if not self._parts.going:
            id_ = self._queue.take()
            workload, new_case = self._workloads.get(id_), self._cases.get(id_)
            if workload is None or new_case is None:
                self.forget(id_)
                return []
            self._current, self._spent = id_, 0.0
            self._parts.begin(self._explanation(workload, now, wall, new_case))
        id_ = self._current
        case = self._cases.get(id_)
        if case is None:
            self._parts.drop()
            return []
        if self._parts.stale:
            # The copy shares names and labels of nodes: partial results may be wrong now.
            self._parts.drop()
            case.restarts += 1
            self._schedule(id_, case, now + (RESTART_SECONDS if case.restarts % MAX_RESTARTS else REFRESH_SECONDS))
            return []
        try:
            explanations = self._parts.work(never, clock)
        except PluginError:
            self._schedule(id_, case, now + REFRESH_SECONDS)
            return []  # the attempt reports it
        except Exception as error:  # explanations are optional: a fault in one must stop no placement
            self._schedule(id_, case, now + REPUBLISH_SECONDS)
            if kind_of(error) != AN_EXCEPTION:
                return failure_of(f"workload {id_}", error, Activity.EXPLANATION, namespace=case.namespace)
            return [
                LogWarning(f"{id_}: {FAULT}: {described(error)}", case.namespace),
                CountFailure(Activity.EXPLANATION.value, kind_of(error)),
            ]
        if not self._parts.going:
            self.forget(id_)  # it is no longer pending, or has room by now
            return []
        self._spent += clock() - began
        if not explanations:
            return []
        self._parts.drop()
        case.made, case.restarts = now, 0
        self._schedule(id_, case, now + REFRESH_SECONDS)
        return self._publish(id_, case, replace(explanations[0], seconds=self._spent), now)

    def _stamp(self) -> object:
        nodes = self._world.nodes
        facts = nodes.facts_changes.position, self._world.layout.generation
        return self._world.improvements, nodes.capacity_changes.position, facts

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
        blocked = blocked_class(what_if.planner, ask)
        table = domain_table(what_if.planner, ask, what_if.seen_by(ask), blocked)
        yield None
        running: Running | None = None
        columns = what_if.planner.nodes.allocatable.shape[1]
        ends = self._reserving.ends
        for collected in running_pods(
            entries,
            columns,
            self._workloads,
            workload.id,
            lambda uid, entry: ends.by_what_is_known(uid, entry, now) + self._world.epoch,
        ):
            running = collected
            yield None
        assert running is not None
        scene = Scene(what_if, workload, members, ask, rule, wall)
        # Only a change of the claim helps against its problem.
        for _ in search_remedies(scene, running) if blocked is None or not blocked.error else ():
            yield None
        explanation = Explanation(
            workload=workload.id,
            members=len(members),
            gpus=max(member.cls.gpus for member in members),
            message=case.text if case is not None else decision.message,
            reason=reason_of(what_if, ask, decision, rule),
            rule=rule,
            nodes=decision.nodes,
            reasons=decision.reasons or {},
            domains=table,
            ways=tuple(scene.remedies),
            at=wall,
        )
        if len(self._made) > MAX_CACHED:
            self._made.clear()
        self._made[key] = (stamp, explanation)
        yield explanation

    def drop_caches(self) -> None:
        """Drop the cached explanations."""
        self._made.clear()

    def _copy(self, workload: Workload, members: Sequence[Member], now: float) -> WhatIf:
        """Return a copy of the state as an attempt for the workload sees it."""
        world = self._world
        around = any(looks_around(world.around.seen_by(member.cls, member.profile)) for member in members)
        layout = seen_fabric(workload, world.layout)
        what_if = WhatIf(
            self._attempts.planner,
            self._sharing,
            layout,
            now,
            neighbours=around,
            spares=self._attempts.spares,
            shares=ReservationShares(self._reserving.shares(workload, now)),
        )
        # These amounts are set on the copy only: the explanation must not change the state.
        what_if.planner.nodes.requested[:] = world.held()
        for nomination in self._preempting.nominations:
            row = world.nodes.row_of.get(nomination.node)
            counts = nomination.counts_for(workload.priority, workload.namespace)
            if row is not None and counts and nomination.uid not in workload.members:
                what_if.count(row, nomination.amounts, nomination.profile)
        for row, amounts in self._reserving.kept_from(workload, now):
            what_if.count(row, amounts, None)
        return what_if

    def _publish(self, id_: str, case: _Case, explanation: Explanation, now: float) -> list[Instruction]:
        workload = self._workloads.get(id_)
        text = explanation.event_text(reader=self._world.reader(workload.namespace)) if workload is not None else ""
        if workload is None or not explanation.ways or text == case.published:
            return []
        if worded(text) == worded(case.published) and now < case.published_at + REPUBLISH_SECONDS:
            return []
        case.published, case.published_at = text, now
        out: list[Instruction] = []
        for member in workload.at(Stage.PENDING):
            out.append(EmitEvent(reference(member), True, Reason.FAILED_SCHEDULING, text))
            out.append(MarkUnschedulable(reference(member), text, member.enqueued))
        return out


def reason_of(what_if: WhatIf, ask: PlacementQuery, decision: Decision, rule: SizeRule | None) -> str:
    """Return the dominant reason: the first sentence of the decision, or the free GPUs for a single pod."""
    if decision.sentence:
        return decision.sentence
    if rule is None or is_constrained(ask.groups):
        return decision.message
    if text := shortage(what_if.planner, ask, what_if.seen_by(ask), rule):
        return f"{text}."
    return decision.message


def _key(workload: Workload, ask: PlacementQuery, steps: int) -> object:
    """Return a key that distinguishes workloads with different demands. ``steps``: how often the level was relaxed."""
    demands = (ask.gang, ask.strategy, ask.enforcement, ask.mixed_models, ask.within, ask.demands, ask.preferred)
    owner = (workload.namespace, workload.priority, workload.level, workload.tiers, workload.group is None)
    return owner, demands, steps, ask.segments, ask.woven, tuple(ask.running), tuple(ask.groups), ask.profiles
