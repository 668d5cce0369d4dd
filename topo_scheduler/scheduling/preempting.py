"""Preemption as a machine without I/O: from a workload without room to nominated pods and evictions, and their ends.

A workload that has a plan holds a *claim*: its pods are nominated, its victims are asked to go, and until they are gone
nothing more is done for it. The claim ends when the workload is placed, or gone, when an eviction is refused, when the
victims are not gone in time, or when they are gone and somebody else took the room. Who could not be evicted is left
alone for a while that grows each time.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.objects import Budget, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.instructions import (
    Complain,
    EvictionOutcome,
    Instruction,
    Nominate,
    PodRef,
    Preempt,
    Tell,
)
from topo_scheduler.scheduling.nominations import Nomination, Nominations, nomination_of
from topo_scheduler.scheduling.outcomes import reference
from topo_scheduler.scheduling.preemption import Plan, plan_preemption
from topo_scheduler.scheduling.victims import Candidates, candidates_below
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.budgets import Budgets
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.workloads import Member, Workload, Workloads

SLACK_SECONDS: Final = 30.0
"""Seconds that victims have beyond their grace period before they count as stuck."""
LEFT_ALONE: Final = 10.0
"""Seconds for which a pod that could not be evicted is left alone, doubled each time."""
LEFT_ALONE_MOST: Final = 600.0
LOOK_AGAIN: Final = 1.0
"""Seconds after which workloads that found no victims look again if something changed, doubled each time."""
LOOK_AGAIN_MOST: Final = 10.0
PAUSE: Final = 1.0
"""Seconds between two claims of a workload once the second came to nothing, doubled each time."""
PAUSE_MOST: Final = 60.0
PACE: Final = 2e-4
"""Seconds to the next search of any workload after one in vain, for each candidate there was."""


@dataclass(slots=True)
class Claim:
    """What a workload was promised. ``victims`` pods that must go by uid; ``until`` when waiting for them ends."""

    workload: str
    priority: int
    nodes: dict[str, str]
    victims: dict[str, str]
    until: float


@dataclass(slots=True)
class Patience:
    """How often something went wrong, and until when it is let be."""

    times: int = 0
    until: float = 0.0


@dataclass(slots=True)
class _Search:
    """Searches in vain by workloads that ask alike: what the last was made on, and when the next may be."""

    stamp: Hashable = None
    sentence: str = ""
    times: int = 0
    until: float = 0.0


class Preempting:
    """Claims, nominations and evictions."""

    def __init__(self, scheduler_name: str, world: World, workloads: Workloads, attempts: Attempts) -> None:
        self.budgets = Budgets()
        self.nominations = Nominations(world)
        self.enabled = True
        self.ready = True
        """Whether victims can be looked for at once: what that needs is compiled."""
        self.wanted = False
        """Whether somebody would have looked for victims while it was not."""
        self._scheduler_name = scheduler_name
        self._world = world
        self._workloads = workloads
        self._attempts = attempts
        self._claims: dict[str, Claim] = {}
        self._victim_of: dict[str, str] = {}
        self._going: dict[str, float] = {}
        self._handled: set[str] = set()
        self._left_alone: dict[str, Patience] = {}
        self._patience: dict[str, Patience] = {}
        self._again: dict[str, float] = {}
        self._searches: dict[object, _Search] = {}
        self._search_of: dict[str, _Search] = {}
        self._not_before = 0.0
        self._stirred: tuple[int, int] = (0, 0)

    # ------------------------------------------------------------ facts in

    def pods_applied(self, pods: Iterable[Pod]) -> None:
        """Take over which pending pods are nominated, whoever schedules them. Comes after they were understood."""
        for pod in pods:
            uid = pod.metadata.uid
            if not pod.status.nominated_node_name and self.nominations.get(uid) is None:
                continue
            ours = pod.spec.scheduler_name == self._scheduler_name
            if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp:
                self.nominations.drop(uid)
                self._handled.discard(uid)
            elif not ours:
                if pod.status.nominated_node_name:
                    self.nominations.put(nomination_of(pod, self._world))
                else:
                    self.nominations.drop(uid)
            elif uid not in self._handled and self._workloads.of_pod(uid) is not None:
                # By a predecessor of this process, or by somebody who knows of room that comes.
                self._handled.add(uid)
                self.nominations.put(nomination_of(pod, self._world))

    def pod_deleted(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self.nominations.drop(uid)
        self._handled.discard(uid)
        self._going.pop(uid, None)
        self._left_alone.pop(uid, None)

    def forget(self, id_: str) -> None:
        """Forget a workload that is gone."""
        self._forget_claim(id_)
        self._patience.pop(id_, None)
        self._search_of.pop(id_, None)
        self._again.pop(id_, None)

    def budgets_applied(self, budgets: Iterable[Budget]) -> list[Instruction]:
        """Take over disruption budgets that appeared or changed."""
        return [Complain(problem) for budget in budgets if (problem := self.budgets.put(budget))]

    # ------------------------------------------------------------ attempts

    def count_for(self, workload: Workload) -> None:
        """Let those nominated pods count that stand before a workload, for the attempt that follows."""
        self._attempts.reserved = self.nominations.count_for(workload.members, workload.priority, workload.id)

    def placed(self, workload: Workload, decision: Decision) -> list[Instruction]:
        """Note that a workload has a place: the ledger holds it from now on, and the Binding ends the nominations."""
        seated = {seat.uid for seat in decision.seats}
        for uid in seated:
            self.nominations.drop(uid)
        claim = self._claims.get(workload.id)
        out = self._clear(claim) if claim is not None else []
        self.forget(workload.id)
        return out

    def consider(
        self, workload: Workload, members: Sequence[Member], decision: Decision, now: float, wall: float
    ) -> tuple[list[Instruction], str]:
        """Look for victims for members of a workload that have no place.

        Args:
            workload: what they belong to.
            members: those who must be placed at once.
            decision: why they are not.
            now: seconds.
            wall: seconds since the epoch.

        Returns:
            What is to be done, and what there is to add to the reason why they wait.
        """
        out: list[Instruction] = []
        claim = self._claims.get(workload.id) or self._adopted(workload, members, now)
        if claim is not None:
            if self._awaited(claim) and now < claim.until:
                return out, ""
            out += self._end(claim, now)
            self.count_for(workload)
        self._again.pop(workload.id, None)
        if not self._may(workload, members) or not decision.room_helps:
            return out, ""
        groups, _, _ = self._attempts.groups(workload, members)
        ask = self._attempts.ask(workload, groups, (), self._world.layout)
        search = self._search(
            (workload.priority, ask.gang, ask.enforcement, ask.mixed_models, ask.profiles, *ask.groups, *ask.running)
        )
        self._search_of[workload.id] = search
        stamp = self._stamp(now)
        if search.stamp == stamp:
            return out, search.sentence
        if now < (at := max(self._looks_at(workload.id), self._not_before)):
            self._again[workload.id] = at
            return out, search.sentence
        candidates = self._candidates(workload, now, wall)
        plan = None
        if candidates.pods or candidates.leaving:
            plan = plan_preemption(self._attempts.planner, ask, self._world.layout, candidates, now)
        if plan is None:
            search.times += 1
            search.until = now + _doubled(LOOK_AGAIN, search.times, LOOK_AGAIN_MOST)
            self._not_before = now + PACE * len(candidates.pods)
            search.stamp, search.sentence = stamp, _shielded(candidates)
            return out, search.sentence
        search.times = 0
        return out + self._claim(workload, groups, plan, now), ""

    @property
    def lowest(self) -> int | None:
        """Lowest priority of a pod that could give way; None where none does."""
        return min(self._world.ledger.priorities, default=None) if self.enabled and self.budgets.known else None

    def nudge(self, workload: Workload, now: float) -> None:
        """Note that something changed which could make room for a workload that waits, if others gave way."""
        if workload.id in self._again or not all(member.preempts for member in workload.members.values()):
            return
        claim = self._claims.get(workload.id)
        if claim is None or not self._awaited(claim):
            self._again[workload.id] = max(self._looks_at(workload.id), now)

    def stirred(self) -> bool:
        """Return whether candidates or budgets changed since this was asked last."""
        before, self._stirred = self._stirred, (self._world.ledger.occupied, self.budgets.changes)
        return before != self._stirred

    # ------------------------------------------------------------ evictions

    def evicted(self, uid: str, outcome: EvictionOutcome, message: str, now: float) -> tuple[list[Instruction], str]:
        """Take over how an eviction ended; return what is to be done, and the workload to be tried again or empty."""
        if outcome is EvictionOutcome.GOING:
            return [], ""
        self._going.pop(uid, None)
        victim = self._leave_alone(uid, now)
        claim = self._claims.get(self._victim_of.pop(uid, ""))
        if claim is None:
            return [], ""
        text = f"Evicting pod {victim} to make room was refused, others are looked for: {message}"
        return [*self._tell(claim, text), *self._end(claim, now)], claim.workload

    def due(self, now: float) -> tuple[list[Instruction], list[str]]:
        """Return what is due by now, and the workloads that look for victims again."""
        out: list[Instruction] = []
        again = [id_ for id_, at in self._again.items() if at <= now]
        for id_ in again:
            del self._again[id_]
        for claim in list(self._claims.values()):
            if now < claim.until:
                continue
            stuck = self._awaited(claim)
            names = [self._leave_alone(uid, now) for uid in stuck]
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                out += self._tell(claim, f"Pod {names[0]}{more} did not end in time; other room is looked for")
            out += self._end(claim, now)
            again.append(claim.workload)
        for uid in [uid for uid, at in self._going.items() if at <= now]:
            del self._going[uid]
        return out, again

    def next_due(self) -> float | None:
        """Return when `due` must be asked next."""
        times = [*self._again.values(), *(claim.until for claim in self._claims.values())]
        return min(times, default=None)

    # ------------------------------------------------------------ inside

    def _may(self, workload: Workload, members: Sequence[Member]) -> bool:
        lowest = self.lowest
        if lowest is None or lowest >= workload.priority or not all(member.preempts for member in members):
            return False
        self.wanted = self.wanted or not self.ready
        return self.ready

    def _looks_at(self, id_: str) -> float:
        """Return when a workload may look for victims next."""
        patience, search = self._patience.get(id_), self._search_of.get(id_)
        return max(patience.until if patience else 0.0, search.until if search else 0.0)

    def _search(self, key: object) -> _Search:
        if len(self._searches) > 4096:
            self._searches.clear()
        return self._searches.setdefault(key, _Search())

    def _stamp(self, now: float) -> Hashable:
        ledger = self._world.ledger
        left_alone = tuple(uid for uid, one in self._left_alone.items() if now < one.until)
        return (
            self._world.improvements,
            ledger.occupied,
            self.budgets.changes,
            self._attempts.reserved,
            left_alone,
            self._world.around.position,
        )

    def _candidates(self, workload: Workload, now: float, wall: float) -> Candidates:
        ledger = self._world.ledger
        spent: Counter[str] = Counter()
        for uid in self._going:
            entry = ledger.get(uid)
            if entry is not None and entry.profile is not None and not (entry.occupant and entry.occupant.terminating):
                spent.update(guard.key for guard in self.budgets.guarding(entry.profile))

        def spared(uid: str) -> bool:
            patience = self._left_alone.get(uid)
            return uid in workload.members or (patience is not None and now < patience.until)

        return candidates_below(
            workload.priority, self._world, self._workloads, self.budgets, spent, spared, self._going, wall
        )

    def _claim(
        self, workload: Workload, groups: Sequence[tuple[object, list[Member]]], plan: Plan, now: float
    ) -> list[Instruction]:
        names = self._world.nodes.names
        seated = [
            (member, names[row])
            for (_, members), rows in zip(groups, plan.placement.rows, strict=True)
            for member, row in zip(members, rows, strict=True)
        ]
        out = self._displace(workload.priority, {node for _, node in seated})
        pods = (*plan.victims, *plan.awaited)
        until = now + max((pod.occupant.grace for pod in pods), default=0.0) + SLACK_SECONDS
        claim = Claim(
            workload.id,
            workload.priority,
            {member.uid: node for member, node in seated},
            {pod.occupant.uid: pod.occupant.key for pod in pods},
            until,
        )
        self._claims[workload.id] = claim
        for member, node in seated:
            self.nominations.put(Nomination(member.uid, node, workload.priority, member.cls.amounts, member.profile))
            self._handled.add(member.uid)
            out.append(Nominate(reference(member), node))
        first = seated[0][0]
        who = f"gang {workload.namespace}/{workload.name}, pod" if workload.gang else "pod"
        for victim in plan.victims:
            occupant, node = victim.occupant, names[victim.row]
            self._victim_of[occupant.uid] = workload.id
            self._going[occupant.uid] = until
            note = f"Preempted by {who} {first.key} ({first.uid}) on node {node}"
            out.append(Preempt(PodRef(occupant.namespace, occupant.name, occupant.uid), node, note))
        return out

    def _displace(self, priority: int, nodes: set[str]) -> list[Instruction]:
        """End claims of lower priority to any of these nodes: they look for other room."""
        out: list[Instruction] = []
        for claim in list(self._claims.values()):
            if claim.priority < priority and nodes.intersection(claim.nodes.values()):
                out += self._clear(claim)
                self._again[claim.workload] = 0.0
        return out

    def _adopted(self, workload: Workload, members: Sequence[Member], now: float) -> Claim | None:
        """Return a claim made of nominations that were found, as after a restart: it waits for whoever is going there.

        None where no member is nominated.
        """
        nodes = {m.uid: one.node for m in members if (one := self.nominations.get(m.uid)) is not None}
        if not nodes:
            return None
        victims: dict[str, str] = {}
        grace = 0.0
        ledger = self._world.ledger
        for node in sorted(set(nodes.values())):
            for uid in sorted(ledger.on_node(node)):
                entry = ledger.get(uid)
                occupant = entry.occupant if entry else None
                if occupant and occupant.terminating and occupant.priority < workload.priority:
                    victims[uid] = occupant.key
                    grace = max(grace, occupant.grace)
        claim = Claim(workload.id, workload.priority, nodes, victims, now + grace + SLACK_SECONDS)
        self._claims[workload.id] = claim
        return claim

    def _awaited(self, claim: Claim) -> list[str]:
        return [uid for uid in claim.victims if self._world.ledger.get(uid) is not None]

    def _end(self, claim: Claim, now: float) -> list[Instruction]:
        """End a claim that came to nothing; the workload looks for victims again after a while that grows."""
        patience = self._patience.setdefault(claim.workload, Patience())
        if patience.times:
            patience.until = now + _doubled(PAUSE, patience.times, PAUSE_MOST)
        patience.times += 1
        return self._clear(claim)

    def _clear(self, claim: Claim) -> list[Instruction]:
        out: list[Instruction] = []
        for uid in claim.nodes:
            found = self._workloads.of_pod(uid)
            if found is not None and self.nominations.get(uid) is not None:
                out.append(Nominate(reference(found[1]), ""))
        self._forget_claim(claim.workload)
        return out

    def _forget_claim(self, id_: str) -> None:
        claim = self._claims.pop(id_, None)
        if claim is None:
            return
        for uid in claim.nodes:
            self.nominations.drop(uid)
        for uid in claim.victims:
            self._victim_of.pop(uid, None)

    def _leave_alone(self, uid: str, now: float) -> str:
        """Choose a pod no more for a while; return its name."""
        patience = self._left_alone.setdefault(uid, Patience())
        patience.times += 1
        patience.until = now + _doubled(LEFT_ALONE, patience.times, LEFT_ALONE_MOST)
        entry = self._world.ledger.get(uid)
        return entry.occupant.key if entry is not None and entry.occupant is not None else uid

    def _tell(self, claim: Claim, text: str) -> list[Instruction]:
        found = (self._workloads.of_pod(uid) for uid in claim.nodes)
        return [Tell(reference(one[1]), True, Reason.PREEMPTION_FAILED, text) for one in found if one is not None]


def _doubled(first: float, times: int, most: float) -> float:
    return float(min(most, first * 2 ** min(20, times - 1)))


def _shielded(candidates: Candidates) -> str:
    """Return who keeps pods of lower priority, as one sentence."""
    if not candidates.shielded:
        return ""
    names = sorted(candidates.shielded)
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    pods = sum(candidates.shielded.values())
    return f"{pods} pods of lower priority may not be evicted now: PodDisruptionBudget {', '.join(names[:2])}{more}."
