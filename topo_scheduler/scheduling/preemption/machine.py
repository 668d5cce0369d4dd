"""Preemption as a state machine without I/O: from a workload without room to nominated pods, evictions and their
results.

A workload with a plan holds a *claim*: its pods are nominated and its victims are evicted. Until the victims have
ended, the scheduler does nothing more for it. `claims` describes how claims end.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf
from typing import Final

from topo_scheduler.api.config import PreemptionSpec
from topo_scheduler.api.objects import DisruptionBudget, Pod
from topo_scheduler.api.text import few_for
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.binding.partially_bound_gangs import PartiallyBoundGangs
from topo_scheduler.scheduling.instructions import (
    EvictionOutcome,
    Instruction,
    LogWarning,
    Nominate,
    reference,
)
from topo_scheduler.scheduling.preemption.adopted_nominations import AdoptedNominations
from topo_scheduler.scheduling.preemption.claims import PreemptionClaims
from topo_scheduler.scheduling.preemption.freed_room import (
    FreedRoom,
    TakenBy,
    is_lost,
    room_on,
    taken_by,
    uses_half_of_scarce,
)
from topo_scheduler.scheduling.preemption.nominations import Nominations, nomination_of
from topo_scheduler.scheduling.preemption.nominations_of_others import NominationsOfOthers
from topo_scheduler.scheduling.preemption.preemption_claim import PreemptionClaim
from topo_scheduler.scheduling.preemption.room_by_moves import RoomByMoves
from topo_scheduler.scheduling.preemption.search_turns import SearchTurns
from topo_scheduler.scheduling.preemption.vain_evictions import (
    BINDS_HANG,
    ONE_AT_A_TIME,
    PAUSED,
    VainEvictions,
)
from topo_scheduler.scheduling.preemption.vain_searches import VainSearches
from topo_scheduler.scheduling.preemption.victim_search import NOT_DEALLOCATED, SearchRequest, VictimSearch
from topo_scheduler.scheduling.reserving.replacements import Replacements
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.pods.disruption_budgets import Budgets
from topo_scheduler.state.pods.workloads import Member, Workload, Workloads

NO_BUDGETS: Final = (
    "The scheduler evicts no pod to make room until it has the list of PodDisruptionBudgets; its log says what is wrong"
    " if that lasts."
)
STAGE_SECONDS: Final = 5.0
"""Seconds for which a plan in stages keeps what its own pods freed until the next search, at most."""
PREEMPTED: Final = "PreemptionByScheduler"
"""The reason of the condition DisruptionTarget of pods that kube-scheduler, or this one, preempts."""
ONLY_SOME_DEALLOCATED: Final = (
    "The devices of pods that have ended are still allocated to their resource claims, although Kubernetes has"
    " deallocated others. The scheduler searches for other victims."
)


class Preempting:
    """Claims, nominations and evictions."""

    def __init__(
        self,
        scheduler_name: str,
        world: World,
        workloads: Workloads,
        attempts: Attempts,
        nominations: Nominations,
        replacements: Replacements,
        partially_bound: PartiallyBoundGangs,
        spec: PreemptionSpec,
    ) -> None:
        """Set up without claims.

        Args:
            scheduler_name: name of this scheduler.
            world: the state of the cluster.
            workloads: workloads of this scheduler.
            attempts: makes decisions.
            nominations: all nominations.
            replacements: seats for pods that do not exist yet. They count as nominations do.
            partially_bound: seats for members of partially bound gangs, which count in the same way.
            spec: the configuration.
        """
        self.budgets = Budgets(world.tenant_memory)
        self.nominations = nominations
        self._of_others = NominationsOfOthers(world, nominations)
        self._adopted = AdoptedNominations(world)
        self.replacements = replacements
        self._partially_bound = partially_bound
        self.enabled = spec.enabled
        self.ready = True
        """Whether a search for victims can start at once: the code that it needs is compiled."""
        self._wanted = False
        """Whether a search was needed, or will be, while that code is not ready."""
        self._scheduler_name = scheduler_name
        self._world = world
        self._workloads = workloads
        self._attempts = attempts
        self.vain_evictions = VainEvictions()
        self._claims = PreemptionClaims(world, workloads, self.nominations, self.vain_evictions)
        self._turns = SearchTurns()
        self._searches = VainSearches()
        self._search = VictimSearch(
            world, workloads, attempts, nominations, self.budgets, self._claims, self._turns, self._searches
        )
        self.room_by_moves = RoomByMoves(world, workloads, self.vain_evictions)
        self._stirred: tuple[int, int] = (0, 0)

    def configure(self, spec: PreemptionSpec) -> None:
        """Apply a new configuration."""
        self.enabled = spec.enabled

    # ------------------------------------------------------------ kernels

    def set_ready(self, ready: bool) -> None:
        """Record whether the code for searches is compiled. Workloads that needed a search then retry."""
        self.ready = ready
        self.budgets.changes += 1

    def want_search(self) -> None:
        """Note that searches will be needed."""
        self._wanted = not self.ready

    def take_wanted(self) -> bool:
        """Return whether code for searches must be compiled, as one was needed or will be; once for each need."""
        wanted, self._wanted = self._wanted, False
        return wanted

    # ------------------------------------------------------------ input

    def pods_applied(self, pods: Iterable[Pod], now: float, *, listed: bool = False) -> None:
        """Record the nominations of pending pods of all schedulers.

        Must run after the workloads have processed these pods, and again once a workload includes such a pod.
        ``listed``: the pods are from before the first decision.
        """
        for pod in pods:
            uid = pod.metadata.uid
            if not pod.status.nominated_node_name and self.nominations.get(uid) is None:
                if self._adopted.early:
                    self._adopted.early.pop(uid, None)
                continue
            ours = pod.spec.scheduler_name == self._scheduler_name
            if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp:
                in_vain = not pod.spec.node_name
                if in_vain:
                    self._lose(uid, now)
                self.nominations.drop(uid)
                self._of_others.ended(uid, now, in_vain=in_vain)
                self._adopted.ended(uid, now, in_vain=in_vain)
                self._claims.handled.discard(uid)
                if not in_vain:
                    self._claims.was_bound(uid)
            elif not ours:
                self._of_others.applied(pod, now)
            elif uid not in self._claims.handled:
                # Nominated by a previous process of this scheduler, or by a component that knows of upcoming room.
                self._adopted.read(uid, pod.status.nominated_node_name, listed=listed)
                if self._workloads.of_pod(uid) is not None:  # otherwise this is called again once it is known
                    nomination = nomination_of(pod, self._world)
                    self._claims.handled.add(uid)
                    if self._adopted.put(nomination, now):
                        self.nominations.put(nomination)
                        self.want_search()  # its workload may lack further victims

    def note_bound(self, pods: Iterable[Pod], now: float) -> None:
        """Record which pods for whose workloads others were evicted are bound, and which of them end again.

        Must run before the workloads process these pods: those that have ended already count as deleted then.
        """
        for pod in pods:
            if pod.spec.node_name:
                self.vain_evictions.bound(pod.metadata.uid, now)
                if pod.finished or pod.metadata.deletion_timestamp is not None:
                    self._end_early(pod.metadata.uid, now, not_deleted=pod.finished or _is_preempted(pod))

    def _end_early(self, uid: str, now: float, *, not_deleted: bool) -> None:
        """Record that a pod ends. If others were evicted for it a short time ago, that may have been in vain.

        It can happen to anyone that pods end by themselves, that another scheduler preempts them, or that nodes fail:
        ``not_deleted``. Pods that this scheduler evicts are no failure if those for which it does use half of the room.
        """
        if (fresh := self.vain_evictions.fresh_room(uid, now)) is None:
            return
        id_, room = fresh
        taken: TakenBy | None = TakenBy.ITS_NAMESPACE
        if uid in self._claims.going:
            taken = self._taken_by_evictor(uid, room)
        elif not_deleted or (room is not None and is_lost(self._world, room)):
            taken = TakenBy.OTHERS
        self.vain_evictions.ended_early(uid, taken, now, lives=self._workloads.get(id_) is not None)

    def _taken_by_evictor(self, uid: str, room: FreedRoom | None) -> TakenBy | None:
        """Return what it counts as for the room of a pod that this scheduler evicts it; None if it is no failure."""
        claim = self._claims.of_victim(uid)
        if claim is None or room is None:
            return None
        used = claim.room.amounts if claim.room is not None else {}
        if uses_half_of_scarce(self._world.nodes, room.total, room.amounts, used):
            return None
        return TakenBy.ITS_NAMESPACE if claim.namespace == room.namespace else TakenBy.OTHERS_IN_PART

    def undone(self, uid: str, workload: Workload, now: float, *, of_users: bool) -> None:
        """Record that a pod of a workload lost the place for which others may have been evicted.

        ``of_users``: its users can cause that. It is no failure of theirs only if others have the room.
        """
        if (room := self.vain_evictions.room_of_pod(uid)) is None:
            self.vain_evictions.undone(uid, TakenBy.ITS_NAMESPACE, now)
            return
        taken = taken_by(self._world, room, workload.members)
        if of_users and taken is not TakenBy.OTHERS:
            taken = TakenBy.ITS_NAMESPACE
        self.vain_evictions.undone(uid, taken, now)

    def pod_deleted(self, uid: str, now: float) -> None:
        """Forget a pod that was deleted."""
        self._end_early(uid, now, not_deleted=False)
        self._lose(uid, now)
        self.nominations.drop(uid)
        self._of_others.ended(uid, now, in_vain=True)
        self._adopted.ended(uid, now, in_vain=True)
        self._claims.pod_deleted(uid)

    def deleted(self, id_: str, now: float) -> None:
        """Forget a workload that was deleted."""
        claim = self._claims.get(id_)
        if claim is not None and claim.evicts and not claim.has_lost_pod:
            self.vain_evictions.in_vain(claim.namespace, now)
        self.room_by_moves.deleted(id_, now)
        self.vain_evictions.deleted(id_, now)
        self._forget(id_)

    def _forget(self, id_: str) -> None:
        self._claims.forget(id_)
        self._searches.leave(id_)
        self._turns.forget(id_)

    def claims(self, id_: str) -> bool:
        """Return whether a workload has a claim."""
        return self._claims.get(id_) is not None

    def take_outranked(self) -> list[str]:
        """Return the uids of the pods that are to give up their room, as they are not bound yet; each once."""
        return self._claims.take_outranked()

    def budgets_applied(self, budgets: Iterable[DisruptionBudget]) -> list[Instruction]:
        """Record disruption budgets that were added or changed."""
        return [
            LogWarning(problem, budget.metadata.namespace)
            for budget in budgets
            if (problem := self.budgets.put(budget))
        ]

    # ------------------------------------------------------------ attempts

    def count_for(self, workload: Workload, reserved: Hashable = None) -> Hashable:
        """Charge the nominations that take precedence over a workload; return an identifier of this set.

        ``reserved`` identifies the reservations that are charged.
        """
        own: Mapping[str, object] = workload.members
        if self.replacements:
            own = {**own, **self.replacements.own(workload)}
        if seats := self._partially_bound.own(workload):
            own = {**own, **seats}
        plans = self._claims if self._claims.get(workload.id) is not None else None
        return self.nominations.count_for(
            own, workload.priority, workload.id, reserved, plans, namespace=workload.namespace
        )

    def placed(self, workload: Workload, decision: Decision, now: float) -> list[Instruction]:
        """Record that a workload has a place: the ledger holds it from now on, and the Binding ends the nominations.

        A claim goes on if it is for other pods of the workload.
        """
        pods = {seat.uid: workload.members[seat.uid].cls.amounts for seat in decision.seats}
        for uid in pods:
            if self._claims.nominated_for and self._claims.claimed_by_other(uid, workload.id):
                self._lose(uid, now)
            self.nominations.drop(uid)
            self._adopted.ended(uid, now, in_vain=False)
        if self.replacements:
            self.replacements.placed(workload, decision)
        claim = self._claims.get(workload.id)
        wanted = self.room_by_moves.placed(workload.id, pods.values()) if self.room_by_moves.rooms else None
        claimed, goes_on = pods, False
        if claim is not None and not claim.has_lost_pod:
            seats = [(seat.node, pods[seat.uid]) for seat in decision.seats]
            others = pods.keys().isdisjoint(claim.nodes)
            goes_on = others and not self._claims.is_used(claim, seats)
            if claim.room is not None and not goes_on:
                self._claims.spare_no_longer(claim)
                if not others:
                    claimed = {uid: amounts for uid, amounts in pods.items() if claim.nodes.get(uid) in claim.emptied}
                wanted = claim.wanted
        if wanted is not None:
            places = ((seat.node, claimed[seat.uid]) for seat in decision.seats if seat.uid in claimed)
            evicted = claim.room.evicted if claim is not None and claim.room is not None else {}
            room = room_on(self._world, workload.namespace, places, own=pods.keys(), evicted=evicted)
            self.vain_evictions.placed(workload.id, wanted, room, claimed, now)
        if workload.id in self.vain_evictions.waves:
            self.vain_evictions.placed_again(workload.id, pods, {seat.uid: seat.node for seat in decision.seats})
        if goes_on:
            return []
        out = self._claims.clear(claim) if claim is not None else []
        self._forget(workload.id)
        return out

    def consider(self, request: SearchRequest, decision: Decision) -> tuple[list[Instruction], str]:
        """Search for victims for members of a workload that have no place.

        Args:
            request: what to search for.
            decision: why the members have no place.

        Returns:
            The instructions, and a sentence to add to the reason why the members are pending.
        """
        workload, members, now = request.workload, request.members, request.now
        out: list[Instruction] = []
        for member in members if self._claims.nominated_for else ():
            if self._claims.claimed_by_other(member.uid, workload.id):
                self._lose(member.uid, now)
        claim = self._claims.get(workload.id)
        if claim is None and self._claims.adopt(workload, members, now) is not None:
            out += self._search.keep_devices(request)
            claim = self._claims.get(workload.id)
        # The predecessor may not have evicted all victims. Until others are chosen, the freed room is kept.
        keeps = claim is not None and claim.adopted and decision.room_helps and self._could(workload, members)
        stage = claim if claim is not None and claim.in_stages and not self._claims.is_waiting(claim) else None
        if claim is not None and claim.has_lost_pod:
            # Another pod may have come in its place. The plan for the pods that are there now uses what was freed.
            out += self._claims.clear(claim)
            self.count_for(workload)
        elif claim is not None and self._claims.is_waiting(claim) and self._claims.goes_on(claim, now):
            return out, ""
        elif claim is not None and not keeps and stage is None:
            self._note_failed(claim, now, unwanted=not decision.room_helps)
            out += self._claims.end(claim, now)
            self.count_for(workload)
        searched, reason = self._search_for(request, decision)
        out += searched
        if stage is not None and self._claims.get(workload.id) is stage:
            # Its next plan uses what was freed. Until the turn for that search comes, it keeps it.
            stage.kept_until = min(stage.kept_until, now + STAGE_SECONDS)
            out += [] if self._turns.again.get(workload.id, inf) <= stage.kept_until else self._claims.clear(stage)
        return out, reason

    def _search_for(self, request: SearchRequest, decision: Decision) -> tuple[list[Instruction], str]:
        """Search for victims if the workload may have pods evicted now; return as `consider` does."""
        workload, members, now = request.workload, request.members, request.now
        self._turns.again.pop(workload.id, None)
        if not self._may(workload, members) or not decision.room_helps:
            self._turns.leave(workload.id)
            awaits = decision.room_helps and not self.budgets.known and self._could(workload, members)
            return [], NO_BUDGETS if awaits else ""
        if doubt := workload.doubt:
            self._turns.leave(workload.id)
            return [], f"The scheduler evicts no pod to make room, as the owners of these pods are not known: {doubt}."
        if (until := self.vain_evictions.until(workload.namespace)) > now:
            self._turns.leave(workload.id)
            self._turns.again[workload.id] = until
            return [], f"{PAUSED}."
        if why := self._why_it_waits(workload, now):
            self._turns.leave(workload.id)
            self._turns.again[workload.id] = self.vain_evictions.next_turn(workload.namespace, now)
            return [], f"{why}."
        return self._search.search(request, self.count_for)

    @property
    def lowest(self) -> int | None:
        """Lowest priority of a pod that could be evicted; None if there is none."""
        return self._lowest if self.budgets.known else None

    @property
    def _lowest(self) -> int | None:
        return min(self._world.ledger.priorities, default=None) if self.enabled else None

    def idle_for(self, id_: str, priority: int) -> bool:
        """Return whether preemption is irrelevant to a workload.

        True if no pod is nominated, the workload has no claim, and no pod of lower priority could be evicted.
        """
        if len(self.nominations) or self._claims.get(id_) is not None:
            return False
        lowest = self.lowest
        return lowest is None or lowest >= priority

    def rest(self, id_: str) -> None:
        """Cancel the next search for victims of a workload: it found no place, and no pod could be evicted for it."""
        self._turns.forget(id_)

    def tried(self, id_: str) -> None:
        """Record that an attempt on a workload ended, perhaps before a search for victims."""
        self._turns.tried(id_)

    def nudge(self, workload: Workload, now: float) -> None:
        """Schedule a search for victims for a pending workload, because a change may allow preemption to make room for
        it.
        """
        if workload.id in self._turns.again or not all(member.preempts for member in workload.members.values()):
            return
        if workload.doubt:
            return
        claim = self._claims.get(workload.id)
        if claim is None or not self._claims.is_waiting(claim):
            self._turns.again[workload.id] = max(self._search.own_due(workload.id), now)

    def stirred(self, now: float) -> bool:
        """Return whether the result of a search may have changed since the last call.

        True if candidates or budgets changed, or if a pod that was excluded may be chosen again.
        """
        before, self._stirred = self._stirred, (self._world.ledger.occupied, self.budgets.changes)
        choice = self._claims.spared.next_end(self._turns.asked)
        self._turns.asked = now
        return before != self._stirred or (choice is not None and choice <= now)

    # ------------------------------------------------------------ evictions

    def is_victim(self, uid: str) -> bool:
        """Return whether a pod is a victim of an active claim, with pods that are still to be placed."""
        return self._claims.awaits(uid)

    def preemptors(self, uid: str) -> list[str]:
        """Return the uids of the pods for which a pod is to be evicted."""
        return self._claims.preemptors(uid)

    def is_unanswered(self, uid: str) -> bool:
        """Return whether an eviction was asked for, and its outcome is not known."""
        return self._claims.is_unanswered(uid)

    def needs_dry_run(self, uid: str) -> bool:
        """Return whether a dry run must precede the eviction of a pod."""
        return self._claims.needs_dry_run(uid)

    def is_doubted(self, uid: str) -> bool:
        """Return whether an eviction of a pod, or of one in its namespace, failed before."""
        return self._claims.is_doubted(uid)

    def evicted(
        self, uid: str, outcome: EvictionOutcome, message: str, now: float, *, goes: bool
    ) -> tuple[list[Instruction], str]:
        """Process the outcome of an eviction. ``goes``: the pod for which it was asked is about to be deleted.

        Returns:
            The instructions, and the id of the workload to retry or an empty string.
        """
        self._claims.answered(uid, now)
        out: list[Instruction] = []
        workload_id = ""
        claim = self._claims.of_victim(uid)
        wanted_by = claim.namespace if claim is not None else ""
        entry = self._world.ledger.get(uid)
        if outcome is not EvictionOutcome.GOING:
            self._claims.going.pop(uid, None)
            if outcome is EvictionOutcome.UNCONFIRMED:
                out, workload_id = self._unconfirmed(uid, message, now, goes=goes)
            elif outcome is EvictionOutcome.WITHDRAWN:
                if claim is not None:
                    self._claims.note_refused(claim, now, of_users=goes)
            else:
                # A webhook can claim that a budget is the reason. Those of pods are known.
                guarded = entry is not None and bool(self.budgets.guarding(entry.profile))
                namespace_too = outcome is not EvictionOutcome.BLOCKED or not guarded
                out, workload_id = self._refused(uid, message, now, namespace_too=namespace_too)
            # Other claims may count on this pod too: they would wait in vain until they expire.
            chosen_again = outcome in (EvictionOutcome.WITHDRAWN, EvictionOutcome.UNCONFIRMED)
            out += self._search_again(*self._claims.stays(uid, now, chosen_again=chosen_again, wanted_by=wanted_by))
        return [*out, *self._search_again(*self._claims.end_answered(now))], workload_id

    def _search_again(self, ended: list[Instruction], lost: list[str]) -> list[Instruction]:
        """Let workloads that lost their claims search for victims at once; return the instructions of these ends."""
        self._turns.search_at_once(lost)
        return ended

    def _refused(self, uid: str, message: str, now: float, *, namespace_too: bool) -> tuple[list[Instruction], str]:
        """End the claim for which a pod was to be evicted. The pod is not chosen again for a while."""
        victim = self._claims.spare(uid, now, namespace_too=namespace_too)
        claim = self._claims.take_victim(uid)
        if claim is None:
            return [], ""
        own = self._world.ledger.namespace_of(uid) == claim.namespace
        self._claims.note_refused(claim, now, of_users=own)
        text = f"Evicting pod {victim} to make room was refused, searching for other victims: {message}"
        return [*self._claims.tell(claim, text), *self._claims.end(claim, now, refused=True)], claim.workload

    def _unconfirmed(self, uid: str, message: str, now: float, *, goes: bool) -> tuple[list[Instruction], str]:
        """End the claim for which a pod was to be evicted. The pod may be chosen for other workloads at once."""
        claim = self._claims.take_victim(uid)
        if claim is None:
            return [], ""
        self._claims.note_refused(claim, now, of_users=goes)
        text = f"No pod is evicted to make room: {message}. The scheduler retries after a pause."
        return [*self._claims.tell(claim, text), *self._claims.end(claim, now)], claim.workload

    def due(self, now: float) -> tuple[list[Instruction], list[str]]:
        """Return the instructions that are due by now, and the workloads that search for victims again."""
        if self.vain_evictions.forgiven:
            self._call_forgiven()
        ids = self._turns.take_due(now)
        try:
            return self._due(ids, now), ids
        except Exception:
            self._turns.search_at_once(ids)  # nothing else tries them again
            raise

    def _due(self, ids: list[str], now: float) -> list[Instruction]:
        """Return the instructions that are due by now; add the workloads whose claims end to ``ids``."""
        out: list[Instruction] = [*self._of_others.due(now), *self._end_unclaimed(now)]
        for claim in self._claims.expired(now):
            if claim.has_lost_pod or (claim.in_stages and not self._claims.is_waiting(claim)):
                out += self._claims.clear(claim)
                ids.append(claim.workload)
                continue
            stuck = self._claims.awaited(claim)
            names = [self._claims.spare(uid, now) for uid in stuck]
            if not names and self._claims.give_up_devices(claim):
                stands = self._claims.deallocation_stands_still
                out += self._claims.tell(claim, NOT_DEALLOCATED if stands else ONLY_SOME_DEALLOCATED)
            self._note_failed(claim, now)
            if names:
                workload = self._workloads.get(claim.workload)
                reader = self._world.reader(workload.namespace) if workload is not None else ""
                text = f"{_pods_text(names, reader)} did not end in time; searching for other victims"
                out += self._claims.tell(claim, text)
            out += self._claims.end(claim, now)
            ids.append(claim.workload)
        if self.room_by_moves.rooms or self.room_by_moves.deleted_workloads:
            self.room_by_moves.due(now)
        self._claims.forget_going(now)
        ended, lost = self._claims.end_answered(now)
        ids += lost
        return out + ended

    def next_due(self) -> float | None:
        """Return when `due` must be called next."""
        choice = self._claims.spared.next_end(self._turns.asked)
        times = (
            self._turns.next_due(),
            self._claims.next_due(),
            choice,
            self._of_others.next_due(),
            self._adopted.next_due(),
            self.room_by_moves.next_due() if self.room_by_moves.rooms else None,
            0.0 if self.vain_evictions.forgiven else None,
        )
        return min((at for at in times if at is not None), default=None)

    # ------------------------------------------------------------ internals

    def _lose(self, uid: str, now: float) -> None:
        """Record that a pod is deleted, or about to be. If others were evicted for it, that was in vain.

        Not once its claim ends: until then, its namespace would have pods evicted for further workloads. If its
        workload gets a place all the same, this is taken back.
        """
        self.vain_evictions.undone(uid, TakenBy.ITS_NAMESPACE, now)
        claim = self._claims.lose(uid, now)
        if claim is not None and claim.room is not None:
            self._claims.lose_room(claim, TakenBy.ITS_NAMESPACE, now)

    def _note_failed(self, claim: PreemptionClaim, now: float, *, unwanted: bool = False) -> None:
        """Record that a claim ends without a place; ``unwanted``: because its workload needs no room any more."""
        if claim.room is None:
            return
        memberships = {uid: self._workloads.of_pod(uid) for uid in claim.nodes}
        profiles = {uid: known[1].profile for uid, known in memberships.items() if known is not None}
        taken = self._claims.taken_by(claim, claim.room)
        if profiles != claim.profiles or (unwanted and taken is TakenBy.NOBODY):
            taken = TakenBy.ITS_NAMESPACE
        self._claims.lose_room(claim, taken, now)

    def _call_forgiven(self) -> None:
        """Let the workloads search at once that waited for a pause of their namespace which was taken back."""
        forgiven = self.vain_evictions.forgiven
        waiting = [workload for id_ in list(self._turns.again) if (workload := self._workloads.get(id_)) is not None]
        self._turns.search_at_once(workload.id for workload in waiting if workload.namespace in forgiven)
        forgiven.clear()

    def _end_unclaimed(self, now: float) -> list[Instruction]:
        """End the nominations of an earlier process that no claim covers; return what removes them from the pods."""
        out: list[Instruction] = []
        for uid in self._adopted.due(now):
            membership = self._workloads.of_pod(uid)
            claim = self._claims.get(membership[0].id) if membership is not None else None
            if self.nominations.get(uid) is None or (claim is not None and uid in claim.nodes):
                self._adopted.ended(uid, now, in_vain=False)
                continue
            self._adopted.ended(uid, now, in_vain=True)
            self.nominations.drop(uid)
            if membership is not None:
                out.append(Nominate(reference(membership[1]), ""))
        return out

    def _could(self, workload: Workload, members: Sequence[Member]) -> bool:
        """Return whether a pod has a lower priority, and this workload preempts at all."""
        lowest = self._lowest
        return lowest is not None and lowest < workload.priority and all(member.preempts for member in members)

    def _why_it_waits(self, workload: Workload, now: float) -> str:
        """Return why pods are evicted for another workload of a namespace first, or an empty string.

        That is so if it evicted in vain before. Otherwise its users could create many workloads at once, and each would
        have pods evicted before the first one fails. The same holds while binds hang of pods for which others were
        evicted.
        """
        vain, namespace = self.vain_evictions, workload.namespace
        if vain.comes_after_others(workload.id, now):
            return ONE_AT_A_TIME
        hanging = self._partially_bound.hanging
        binds_hang = bool(hanging) and vain.awaits(namespace, hanging)
        if not binds_hang and not vain.is_doubted(namespace, now):
            return ""
        waits = self._claims.evicts_for(namespace) or self.room_by_moves.has_unbound(namespace)
        return (BINDS_HANG if binds_hang else ONE_AT_A_TIME) if waits else ""

    def _may(self, workload: Workload, members: Sequence[Member]) -> bool:
        if not self.budgets.known or not self._could(workload, members):
            return False
        self._wanted = self._wanted or not self.ready
        return self.ready

    def drop_caches(self) -> None:
        """Forget searches that no workload shares any more."""
        self._searches.forget_unused()


def _pods_text(names: Sequence[str], reader: str) -> str:
    own = not reader or any(name.startswith(f"{reader}/") for name in names)
    return f"Pod {few_for(names, reader, 'pod', 1)}" if own else f"{few_for(names, reader, 'pod', 1)}".capitalize()


def _is_preempted(pod: Pod) -> bool:
    """Return whether a scheduler, which may be another one, has written that it preempts a pod."""
    return any(
        condition.type == "DisruptionTarget" and condition.status == "True" and condition.reason == PREEMPTED
        for condition in pod.status.conditions
    )
