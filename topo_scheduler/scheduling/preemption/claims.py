"""Claims: the room that preemption has promised to workloads, and the pods that could not be evicted.

A claim ends for one of these reasons:

- The workload is placed or deleted.
- The API server refuses an eviction.
- The victims do not end in time, or Kubernetes does not deallocate the devices of their resource claims.
- The victims have ended, but another workload took the room.
- A pod that was promised room is gone, so that the rest of its gang may not need theirs any more.

`spared` holds the pods that could not be evicted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import EmitEvent, Instruction, Nominate, PodRef, Preempt, reference
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.preemption.freed_room import (
    FreedRoom,
    TakenBy,
    by_node,
    count_of_devices,
    is_half,
    room_on,
    taken_by,
    total_of,
    used_of,
    uses_half_of_scarce,
)
from topo_scheduler.scheduling.preemption.namespace_pauses import Pause
from topo_scheduler.scheduling.preemption.nominations import Nomination, Nominations
from topo_scheduler.scheduling.preemption.plan import PreemptionPlan
from topo_scheduler.scheduling.preemption.preemption_claim import PreemptionClaim
from topo_scheduler.scheduling.preemption.spared import SparedVictims
from topo_scheduler.scheduling.preemption.take_over import EmptiedRoom, TakeOver
from topo_scheduler.scheduling.preemption.vain_evictions import VainEvictions
from topo_scheduler.scheduling.preemption.victims import Candidate
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.inventory import ClaimKey
from topo_scheduler.state.nodes.resources import GPU, Amounts
from topo_scheduler.state.pods.victim_info import LONGEST_WAIT_SECONDS, VictimInfo
from topo_scheduler.state.pods.workloads import Member, MembersByClass, Stage, Workload, Workloads

SLACK_SECONDS: Final = 30.0
"""Seconds beyond their grace period after which victims count as stuck."""
FIRST_PAUSE_SECONDS: Final = 1.0
"""Seconds between two claims of a workload after its second failed claim, doubled each time."""
MAX_PAUSE_SECONDS: Final = 60.0
LONGEST_IDLE_SECONDS: Final = 60.0
"""Longest time for which any number of other nodes is held, in seconds, until pods of the own namespace have ended."""
MAX_IDLE_NODE_SECONDS: Final = 1200.0
"""Nodes times seconds for which all claims of a namespace hold other nodes at most, where it takes longer.

A plan beyond it evicts pods of others only once its own pods have ended.
"""
LOST_POD_SECONDS: Final = 5.0
"""Seconds after which a claim ends of which a pod is gone, unless its workload is tried again before."""


@dataclass(slots=True)
class _Patience(Pause):
    """Failed claims of a workload, and whether the API server ``refused`` an eviction for it."""

    refused: bool = False


class PreemptionClaims:
    """All claims, at most one for each workload."""

    def __init__(
        self, world: World, workloads: Workloads, nominations: Nominations, vain_evictions: VainEvictions
    ) -> None:
        self._vain_evictions = vain_evictions
        self._world = world
        self._workloads = workloads
        self._nominations = nominations
        self._claims: dict[str, PreemptionClaim] = {}
        self._victim_of: dict[str, str] = {}
        self.nominated_for: dict[str, str] = {}
        """The workload of the claim of each pod that was promised room."""
        self.going: dict[str, float] = {}
        """Pods with an eviction in progress by uid, and until when the scheduler assumes so, in seconds."""
        self._unanswered: set[str] = set()
        """Those of them whose eviction was not answered yet."""
        self._ending: dict[str, bool] = {}
        """Workloads whose claims end as soon as all evictions of their victims are answered.

        And whether users of their own namespace caused that.
        """
        self.handled: set[str] = set()
        """Pods of this scheduler whose nominations it manages itself, regardless of their status."""
        self.spared = SparedVictims()
        self.stuck: dict[ClaimKey, None] = {}
        """ResourceClaims that Kubernetes did not deallocate in time."""
        self._removed_at_standstill: int | None = None
        """How many pods Kubernetes had removed from their claims when it last failed to remove any in time."""
        self._patience: dict[str, _Patience] = {}
        self._outranked: list[str] = []
        """Victims of new claims that wait for volumes or devices: their decisions are undone instead of an eviction."""

    def get(self, id_: str) -> PreemptionClaim | None:
        """Return the claim of a workload."""
        return self._claims.get(id_)

    def evicts_for(self, namespace: str) -> bool:
        """Return whether pods that are evicted for a workload of a namespace have not ended yet."""
        claims = (claim for claim in self._claims.values() if claim.evicts and claim.namespace == namespace)
        return any(not claim.in_stages or self.is_waiting(claim) for claim in claims)

    def expired(self, now: float) -> list[PreemptionClaim]:
        """Return the claims that have expired."""
        return [claim for claim in self._claims.values() if not self.goes_on(claim, now)]

    def next_due(self) -> float | None:
        """Return when the next claim expires, in seconds."""
        return min((min(claim.until, claim.lost_until) for claim in self._claims.values()), default=None)

    def awaited(self, claim: PreemptionClaim) -> list[str]:
        """Return the victims that have not ended yet."""
        return [uid for uid in claim.victims if self._world.ledger.get(uid) is not None]

    def is_waiting(self, claim: PreemptionClaim) -> bool:
        """Return whether victims have not ended yet, or their devices are still allocated."""
        return bool(self.awaited(claim) or self._allocated(claim))

    def _allocated(self, claim: PreemptionClaim) -> list[ClaimKey]:
        """Return the ResourceClaims that Kubernetes has yet to deallocate, as only pods that are gone use them."""
        inventory = self._world.inventory
        departed = {*claim.victims, *inventory.consumers.departed}
        known = ((key, inventory.claims.get(key), uid) for key, uid in claim.devices.items())
        return [
            key
            for key, resource_claim, uid in known
            if resource_claim is not None
            and resource_claim.metadata.uid == uid
            and resource_claim.status.allocation is not None
            and inventory.consumers.is_freed_without(resource_claim, departed)
        ]

    def give_up_devices(self, claim: PreemptionClaim) -> bool:
        """Record that Kubernetes did not deallocate devices in time; return whether it did not for this claim."""
        allocated = self._allocated(claim)
        inventory = self._world.inventory
        kept = [key for key in self.stuck if inventory.allocation_of(key) is not None]
        self.stuck = dict.fromkeys((*kept, *allocated))
        if allocated and inventory.consumers.removed == claim.removed_before:
            self._removed_at_standstill = claim.removed_before
        return bool(allocated)

    @property
    def deallocation_stands_still(self) -> bool:
        """Whether Kubernetes has removed no pod from its claims since it failed to do so in time.

        Then kube-controller-manager is probably down, and further victims would free no devices either.
        """
        return self._removed_at_standstill == self._world.inventory.consumers.removed

    def goes_on(self, claim: PreemptionClaim, now: float) -> bool:
        """Return whether a claim still waits for its victims.

        A claim is extended while evictions wait for their turn: on a slow API server those of a large gang take
        minutes. It is also extended if all its remaining victims are terminating and little of their long grace periods
        remains. In both cases, evicting other pods instead would be in vain.
        """
        if now >= claim.lost_until:
            return False
        if now < claim.until:
            return True
        if now < claim.answers_until and any(uid in self._unanswered for uid in claim.victims):
            claim.until = min(now + SLACK_SECONDS, claim.answers_until)
            return True
        entries = [self._world.ledger.get(uid) for uid in claim.victims]
        present = [entry.occupant for entry in entries if entry is not None]
        if not present and self._allocated(claim):
            claim.devices_until = min(claim.devices_until, now + LONGEST_WAIT_SECONDS)
            claim.until = min(now + SLACK_SECONDS, claim.devices_until)
            return now < claim.devices_until
        terminating = [occupant for occupant in present if occupant is not None and occupant.terminating]
        remaining = max((occupant.seconds_to_end(now + self._world.epoch) for occupant in terminating), default=0.0)
        if len(terminating) < len(present) or not 0 < remaining <= LONGEST_WAIT_SECONDS:
            return False
        claim.until = now + remaining + SLACK_SECONDS
        return True

    def awaits(self, uid: str) -> bool:
        """Return whether a pod is a victim of an active claim with pods that are still to be placed.

        A claim that lost a pod waits for no victim any more. If another pod comes in its place, there is a new plan.
        """
        claim = self._claims.get(self._victim_of.get(uid, ""))
        if claim is None or claim.has_lost_pod:
            return False
        # Pods that are no longer to be placed end their claim only at the next step.
        memberships = (self._workloads.of_pod(pod) for pod in claim.nodes)
        return any(membership is not None and membership[1].stage is Stage.PENDING for membership in memberships)

    def claimant(self, uid: str) -> str:
        """Return the workload with a claim for a nominated pod, by id; empty if there is none."""
        return self.nominated_for.get(uid, "")

    def victims(self, workload: str) -> list[tuple[str, bool]]:
        """Return the pods by uid that are to end for a workload, and whether they are evicted for it."""
        claim = self._claims.get(workload)
        return [(uid, self._victim_of.get(uid) == workload) for uid in claim.victims] if claim is not None else []

    def preemptors(self, uid: str) -> list[str]:
        """Return the uids of the pods for which a victim is evicted."""
        claim = self._claims.get(self._victim_of.get(uid, ""))
        return list(claim.nodes) if claim is not None else []

    def final(self, priority: int) -> list[str]:
        """Return the pods that leave whatever a workload of this priority does: those with an eviction in progress.

        An eviction that is not answered yet is none of them if only a claim of lower priority needs it, or none. Such
        a claim ends once the workload takes its place, and the eviction with it, unless the workload asks for it too.
        """

        def needed(uid: str) -> bool:
            claim = self._claims.get(self._victim_of.get(uid, ""))
            return claim is not None and claim.priority >= priority

        return [uid for uid in self.going if uid not in self._unanswered or needed(uid)]

    def of_victim(self, uid: str) -> PreemptionClaim | None:
        """Return the claim for which a pod was to be evicted."""
        return self._claims.get(self._victim_of.get(uid, ""))

    def take_victim(self, uid: str) -> PreemptionClaim | None:
        """Return the claim for which a pod was to be evicted, and forget the pod as its victim."""
        return self._claims.get(self._victim_of.pop(uid, ""))

    def stays(self, uid: str, now: float, *, chosen_again: bool, wanted_by: str) -> tuple[list[Instruction], list[str]]:
        """End all claims that wait for a pod that is not evicted after all.

        Only the claim for which the pod was to be evicted has failed. The workloads of the others search for victims
        again without a pause. If the pod may be chosen again, they do so only after all evictions of their victims are
        answered. Otherwise each answer would withdraw the evictions that the answer before it led to, without end.

        Args:
            uid: the pod.
            now: seconds.
            chosen_again: whether the pod may be chosen again.
            wanted_by: namespace for which the pod was to be evicted; empty if that is not known.

        Returns:
            The instructions, and the workloads that lost their claims.
        """
        entry = self._world.ledger.get(uid)
        if entry is None or (entry.occupant is not None and entry.occupant.terminating):
            return [], []
        out: list[Instruction] = []
        lost: list[str] = []
        claims = [claim for claim in self._claims.values() if uid in claim.victims]
        failed = self.take_victim(uid)
        for claim in claims:
            if claim is not failed and chosen_again:
                self._ending[claim.workload] = claim.namespace == wanted_by
                continue
            if claim is not failed:
                self.note_refused(claim, now, of_users=self._world.ledger.namespace_of(uid) == claim.namespace)
            # A claim that lost a pod has not failed: the pods that are there now get a new plan at once.
            out += self.end(claim, now) if claim is failed and not claim.has_lost_pod else self.clear(claim)
            lost.append(claim.workload)
        return out, lost

    def answered(self, uid: str, now: float) -> None:
        """Record that an eviction was answered. The time that the pod has to end begins now."""
        self._unanswered.discard(uid)
        entry = self._world.ledger.get(uid)
        until = self._until((entry.occupant,) if entry is not None and entry.occupant is not None else (), now)
        if uid in self.going:
            self.going[uid] = until
        for claim in self._claims.values():
            if uid in claim.victims:
                claim.answers_until = now + LONGEST_WAIT_SECONDS
                claim.until = max(claim.until, until)

    def forget_going(self, now: float) -> None:
        """Forget evictions that were not answered in time, or whose pods did not end in time."""
        for uid in [uid for uid, at in self.going.items() if at <= now]:
            del self.going[uid]
            self._unanswered.discard(uid)

    def is_unanswered(self, uid: str) -> bool:
        """Return whether an eviction was asked for, and its outcome is not known."""
        return uid in self._unanswered

    def needs_dry_run(self, uid: str) -> bool:
        """Return whether a dry run must precede the eviction of a pod.

        It must if the pod is one of several victims, and an eviction failed before: of one of them, in the namespace of
        one, or for the same workload.
        """
        claim = self._claims.get(self._victim_of.get(uid, ""))
        if claim is None or len(claim.victims) < 2:
            return False
        patience = self._patience.get(claim.workload)
        return claim.doubted or (patience is not None and patience.refused)

    def is_doubted(self, uid: str) -> bool:
        """Return whether an eviction of a pod, or of one in its namespace, failed before."""
        entry = self._world.ledger.get(uid)
        return self.spared.is_doubted(uid, entry.occupant if entry is not None else None)

    def end_answered(self, now: float) -> tuple[list[Instruction], list[str]]:
        """End the claims that only waited for the answers to evictions; return as `stays` does."""
        over = [id_ for id_ in self._ending if self._unanswered.isdisjoint(self._claims[id_].victims)]
        out: list[Instruction] = []
        for id_ in over:
            self.note_refused(self._claims[id_], now, of_users=self._ending[id_])
            out += self.clear(self._claims[id_])
        return out, over

    def note_refused(self, claim: PreemptionClaim, now: float, *, of_users: bool) -> None:
        """Record that a claim ends as a victim is not evicted: in vain, if others have been evicted for it.

        ``of_users``: those of its namespace can cause that.
        """
        if claim.room is None or claim.has_lost_pod or not self.emptied_in_vain(claim):
            return
        memberships = [self._workloads.of_pod(uid) for uid in claim.nodes]
        ends = any(membership is None or membership[1].withdrawn for membership in memberships)
        self.lose_room(claim, TakenBy.ITS_NAMESPACE if ends or of_users else TakenBy.NOBODY, now)

    def lose_room(self, claim: PreemptionClaim, taken: TakenBy, now: float) -> None:
        """Record that evictions for a claim were in vain, and whose pods have the room."""
        self._vain_evictions.lose_room(
            claim.workload, claim.namespace, claim.wanted, taken, now, nodes=claim.emptied, pods=claim.nodes.keys()
        )

    def patient_until(self, id_: str) -> float:
        """Return until when a workload may make no new claim, in seconds."""
        patience = self._patience.get(id_)
        return patience.until if patience else 0.0

    # ------------------------------------------------------------ creation

    def make(
        self, workload: Workload, groups: MembersByClass, plan: PreemptionPlan, now: float, *, adopted: bool = False
    ) -> tuple[list[Instruction], list[str]]:
        """Claim the room of a plan: nominate the pods and evict the victims.

        ``adopted``: for pods that an earlier process nominated.

        Returns:
            The instructions, and the workloads of lower priority that lost their claims.
        """
        names = self._world.nodes.names
        seated = [
            (member, names[row])
            for (_, members), rows in zip(groups, plan.placement.rows, strict=True)
            for member, row in zip(members, rows, strict=True)
        ]
        all_taken = by_node((node, member.cls.amounts) for member, node in seated)
        nodes = set(all_taken)
        empties = self._empties_for(workload, plan, nodes)
        idle_seconds = 0.0 if adopted else self._idle_seconds(workload, plan, all_taken, now, empties=empties)
        holds_all = self._may_hold_idle(workload, idle_seconds)
        in_stages = empties and not holds_all
        if in_stages:
            plan = _own_part(plan, workload.namespace)
        pods = (*plan.victims, *plan.awaited)
        held = nodes if holds_all else self._mostly_used(pods, all_taken)
        reached = held if in_stages else nodes
        takes = {node: amounts for node, amounts in all_taken.items() if node in reached}
        devices = tuple(allocation for got in plan.devices.values() for allocation in got)
        taking = TakeOver(self._world.nodes, workload.namespace, takes, count_of_devices(devices))
        out, displaced, inherits = self._displace(workload.priority, reached, taking, now)
        inherits |= self._outrank(plan, taking, now)
        all_wait = all(self._world.ledger.waits(victim.occupant.uid) for victim in plan.victims)
        until = self._until((pod.occupant for pod in pods), now)
        claim = PreemptionClaim(
            workload.id,
            workload.namespace,
            workload.priority,
            {member.uid: node for member, node in seated},
            {pod.occupant.uid: pod.occupant.key for pod in pods},
            until,
            now + LONGEST_WAIT_SECONDS,
            dict(plan.freed),
            removed_before=self._world.inventory.consumers.removed,
            doubted=any(self.spared.is_doubted(victim.occupant.uid, victim.occupant) for victim in plan.victims),
            inherits=inherits,
            evicts=bool(taking.wanted) or not all_wait,
            adopted=adopted,
            idle_seconds=idle_seconds if holds_all else 0.0,
            holds=frozenset(reached),
            in_stages=in_stages,
        )
        if claim.evicts:
            seats = ((node, member.cls.amounts) for member, node in seated)
            others = Counter(
                names[victim.row] for victim in plan.victims if victim.occupant.namespace != workload.namespace
            )
            evicted = others + taking.evicted
            claim.room = room_on(self._world, claim.namespace, seats, devices=devices, evicted=evicted)
            # Victims may be on other nodes only, from where they repel the workload.
            emptied = others.keys() or {names[victim.row] for victim in plan.victims}
            claim.emptied = frozenset(emptied | taking.emptied) & nodes or frozenset(nodes)
            claim.wanted = total_of(claim.freed) | taking.wanted
            claim.profiles = {member.uid: member.profile for member, _ in seated}
        self._keep(claim)
        for member, node in seated:
            self._nominations.put(
                Nomination(
                    member.uid,
                    node,
                    workload.priority,
                    member.cls.amounts,
                    member.profile,
                    workload.namespace,
                    plan.devices.get(member.uid, ()),
                    planned=not adopted,
                    own_only=node not in held,
                )
            )
            self.handled.add(member.uid)
            if node in held:
                out.append(Nominate(reference(member), node))
        first = seated[0][0]
        described = f"gang {workload.namespace}/{workload.name}, pod" if workload.gang else "pod"
        for victim in plan.victims:
            occupant, node = victim.occupant, names[victim.row]
            if self._world.ledger.waits(occupant.uid):
                continue
            self._victim_of[occupant.uid] = workload.id
            self.going[occupant.uid] = now + LONGEST_WAIT_SECONDS
            self._unanswered.add(occupant.uid)
            note = f"Preempted by {described} {first.key} ({first.uid}) on node {node}"
            if self._world.reader(occupant.namespace) not in ("", first.namespace):
                other = f"{'gang' if workload.gang else 'pod'} of another namespace"
                note = f"Preempted by a {other} of priority {workload.priority} on node {node}"
            pod = PodRef(occupant.namespace, occupant.name, occupant.uid)
            out.append(Preempt(pod, node, note, reference(first)))
        return out, displaced

    def _evicted(self, plan: PreemptionPlan) -> tuple[Candidate, ...]:
        """Return the pods that are evicted for a plan, or are going by an eviction already."""
        return (*plan.victims, *(pod for pod in plan.awaited if pod.occupant.uid in self.going))

    def _empties_for(self, workload: Workload, plan: PreemptionPlan, nodes: set[str]) -> bool:
        """Return whether pods or devices of others leave for a plan, or have left for a claim that it displaces."""
        others = any(pod.occupant.namespace != workload.namespace for pod in self._evicted(plan))
        return others or bool(plan.freed) or any(claim.evicts for claim in self._displaced(workload.priority, nodes))

    def _mostly_used(self, pods: Iterable[Candidate], takes: Mapping[str, Mapping[int, int]]) -> set[str]:
        """Return the nodes where pods hold at least half of what a workload takes there: of GPUs, or what is scarce."""
        table, ledger = self._world.nodes, self._world.ledger
        entries = (ledger.get(pod.occupant.uid) for pod in pods)
        held = by_node((entry.node, entry.amounts) for entry in entries if entry is not None)
        room = {node: {GPU: amounts[GPU]} if amounts.get(GPU) else amounts for node, amounts in takes.items()}
        return {
            node
            for node, amounts in held.items()
            if node in room and uses_half_of_scarce(table, room[node], {node: room[node]}, {node: amounts})
        }

    def _idle_seconds(
        self,
        workload: Workload,
        plan: PreemptionPlan,
        takes: Mapping[str, Mapping[int, int]],
        now: float,
        *,
        empties: bool,
    ) -> float:
        """Return for how long a plan holds nodes of which its pods use little, in seconds, summed over the nodes.

        Users can have pods of their own end as slowly as they like, again and again. If no pod of others is evicted, it
        is infinite for own pods that are not evicted either: evictions that were in vain count. Then pods of others
        that end by themselves count too.

        Args:
            workload: the workload.
            plan: the plan for it.
            takes: what its pods get, by node and resource column.
            now: seconds.
            empties: the result of `_empties_for`.
        """
        wall = now + self._world.epoch
        pods = (*plan.victims, *plan.awaited)
        if empties:
            waits_for = [pod for pod in pods if pod.occupant.namespace == workload.namespace]
            unknown = 0.0
        else:
            evicted = self._evicted(plan)
            waits_for = [pod for pod in pods if pod in evicted or pod.occupant.namespace != workload.namespace]
            unknown = inf
        idle = len(takes) - len(self._mostly_used(waits_for if empties else pods, takes))
        wait = max((pod.occupant.seconds_to_end(wall) for pod in waits_for), default=unknown)
        return idle * wait if idle and wait > LONGEST_IDLE_SECONDS else 0.0

    def _may_hold_idle(self, workload: Workload, idle_seconds: float) -> bool:
        """Return whether a claim may hold idle nodes, within the share of its namespace."""
        others = (claim for claim in self._claims.values() if claim.workload != workload.id)
        held = sum(claim.idle_seconds for claim in others if claim.namespace == workload.namespace)
        return not idle_seconds or held + idle_seconds <= MAX_IDLE_NODE_SECONDS

    def take_outranked(self) -> list[str]:
        """Return the victims that are not bound yet, since the last call: they give up their room instead."""
        outranked, self._outranked = self._outranked, []
        return outranked

    def adopt(self, workload: Workload, members: Sequence[Member], now: float) -> PreemptionClaim | None:
        """Return a claim made from existing nominations, for example after a restart.

        The claim waits for the terminating pods of lower priority on the nominated nodes.

        Returns:
            None if no member is nominated.
        """
        nodes = {
            member.uid: nomination.node
            for member in members
            if (nomination := self._nominations.get(member.uid)) is not None
            and not self.claimed_by_other(member.uid, workload.id)
        }
        if not nodes:
            return None
        going: list[VictimInfo] = []
        ledger, wall = self._world.ledger, now + self._world.epoch
        for node in sorted(set(nodes.values())):
            for uid in sorted(ledger.on_node(node)):
                entry = ledger.get(uid)
                occupant = entry.occupant if entry else None
                if occupant is None or not occupant.terminating or occupant.priority >= workload.priority:
                    continue
                remaining = occupant.seconds_to_end(wall)
                # The previous leader also waited for its victims whose whole grace period is at most twice as long.
                longest_grace = 2 * LONGEST_WAIT_SECONDS + SLACK_SECONDS
                if remaining <= LONGEST_WAIT_SECONDS or remaining <= occupant.grace <= longest_grace:
                    going.append(occupant)
        victims = {occupant.uid: occupant.key for occupant in going}
        claim = PreemptionClaim(
            workload.id,
            workload.namespace,
            workload.priority,
            nodes,
            victims,
            self._until(going, now),
            now,
            adopted=True,
            holds=frozenset(nodes.values()),
        )
        self._keep(claim)
        return claim

    # ------------------------------------------------------------ end

    def end(self, claim: PreemptionClaim, now: float, *, refused: bool = False) -> list[Instruction]:
        """End a claim that failed, because an eviction was ``refused`` or for another reason.

        The workload searches for victims again after a pause that grows.
        """
        patience = self._patience.setdefault(claim.workload, _Patience())
        patience.refused |= refused
        if patience.times:
            patience.until = now + doubled(FIRST_PAUSE_SECONDS, patience.times, MAX_PAUSE_SECONDS)
        patience.times += 1
        return self.clear(claim)

    def clear(self, claim: PreemptionClaim) -> list[Instruction]:
        """End a claim and clear its nominations."""
        out: list[Instruction] = []
        for uid in claim.nodes:
            membership = self._workloads.of_pod(uid)
            nomination = self._nominations.get(uid)
            if membership is not None and nomination is not None and not nomination.own_only:
                out.append(Nominate(reference(membership[1]), ""))
        self._drop(claim.workload)
        return out

    def forget(self, id_: str) -> None:
        """Forget a workload that was deleted or placed."""
        self._drop(id_)
        self._patience.pop(id_, None)

    def taken_by(self, claim: PreemptionClaim, room: FreedRoom) -> TakenBy:
        """Return whose pods are in the room of a claim that ends without a place.

        If a victim of its own namespace did not end on a node that is ready, that is its fault. Others that did not end
        are none of it.
        """
        ledger, nodes = self._world.ledger, self._world.nodes
        held: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for uid in self.awaited(claim):
            entry = ledger.get(uid)
            if entry is None:
                continue
            is_ready = entry.row >= 0 and nodes.ready[entry.row]
            if is_ready and entry.profile is not None and entry.profile.namespace == claim.namespace:
                return TakenBy.ITS_NAMESPACE
            held[entry.node].update(dict(entry.amounts))
        if held:
            return (
                TakenBy.OTHERS if uses_half_of_scarce(nodes, room.total, room.amounts, held) else TakenBy.OTHERS_IN_PART
            )
        if self._allocated(claim):
            return TakenBy.OTHERS
        workload = self._workloads.get(claim.workload)
        return taken_by(self._world, room, workload.members if workload is not None else ())

    def emptied_in_vain(self, claim: PreemptionClaim) -> bool:
        """Return whether pods that were evicted for a claim are gone, or end, or the API server has granted that."""
        if claim.inherits:
            return True
        for uid in claim.victims:
            if self._victim_of.get(uid) != claim.workload:
                continue
            entry = self._world.ledger.get(uid)
            granted = uid in self.going and uid not in self._unanswered
            if granted or entry is None or (entry.occupant is not None and entry.occupant.terminating):
                return True
        return False

    def claimed_by_other(self, uid: str, id_: str) -> bool:
        """Return whether the claim of another workload than this one promises room to a pod: it was edited."""
        claim = self._claims.get(self.nominated_for.get(uid, id_))
        return claim is not None and claim.workload != id_

    def lose(self, uid: str, now: float) -> PreemptionClaim | None:
        """Record that a pod is deleted, or about to be: the claim that promised it room ends soon.

        Return the claim if that is the first such pod of it.
        """
        claim = self._claims.get(self.nominated_for.get(uid, ""))
        if claim is None or claim.has_lost_pod:
            return None
        claim.lost_until = now + LOST_POD_SECONDS
        return claim

    def was_bound(self, uid: str) -> None:
        """Record that a pod has a node: its later end says nothing about its claim."""
        self.nominated_for.pop(uid, None)

    def pod_deleted(self, uid: str) -> None:
        """Forget a pod that was deleted."""
        self.handled.discard(uid)
        self.going.pop(uid, None)
        self._unanswered.discard(uid)
        self.spared.forget(uid)

    def spare(self, uid: str, now: float, *, namespace_too: bool = True) -> str:
        """Exclude a pod, or its namespace, from the choice of victims for a while; return the name of the pod."""
        entry = self._world.ledger.get(uid)
        if entry is None:
            return uid  # it has ended, so nothing would forget it later
        occupant = entry.occupant
        self.spared.failed(uid, occupant, now, namespace_too=namespace_too)
        return occupant.key if occupant is not None else uid

    def is_used(self, claim: PreemptionClaim, seats: Iterable[tuple[str, Amounts]]) -> bool:
        """Return whether pods on some nodes use at least half of what was wanted for a claim. Each has its amounts."""
        return claim.evicts and is_half(total_of(used_of(claim.freed, by_node(seats))), claim.wanted)

    def spare_no_longer(self, claim: PreemptionClaim) -> None:
        """Record that a claim got its room: unless victims are still there, their namespaces are chosen as others are.

        An eviction that was only granted, or one of several that succeeded, proves nothing: the others may never end.
        """
        if not self.awaited(claim):
            for key in claim.victims.values():
                self.spared.succeeded(key.partition("/")[0])

    def tell(self, claim: PreemptionClaim, text: str) -> list[Instruction]:
        """Emit an event on each pod of a failed claim."""
        memberships = (self._workloads.of_pod(uid) for uid in claim.nodes)
        return [
            EmitEvent(reference(membership[1]), True, Reason.PREEMPTION_FAILED, text)
            for membership in memberships
            if membership is not None
        ]

    # ------------------------------------------------------------ internals

    def _keep(self, claim: PreemptionClaim) -> None:
        self._claims[claim.workload] = claim
        self.nominated_for.update(dict.fromkeys(claim.nodes, claim.workload))

    def _until(self, victims: Iterable[VictimInfo], now: float) -> float:
        """Return when a claim on these victims expires, in seconds. The wait is limited even if their grace periods are
        not.
        """
        longest = max((occupant.seconds_to_end(now + self._world.epoch) for occupant in victims), default=0.0)
        return now + min(longest, LONGEST_WAIT_SECONDS) + SLACK_SECONDS

    def _displaced(self, priority: int, nodes: set[str]) -> list[PreemptionClaim]:
        """Return the claims of lower priority that hold any of these nodes."""
        return [claim for claim in self._claims.values() if claim.priority < priority and nodes & claim.holds]

    def _displace(
        self, priority: int, nodes: set[str], taking: TakeOver, now: float
    ) -> tuple[list[Instruction], list[str], bool]:
        """End the claims of lower priority to any of these nodes.

        Returns:
            The instructions, their workloads, and whether pods were evicted already for which ``taking`` answers now.
        """
        displaced = self._displaced(priority, nodes)
        out: list[Instruction] = []
        inherits = False
        for claim in displaced:
            in_vain = self.emptied_in_vain(claim)
            out += self.clear(claim)
            if claim.evicts and claim.room is not None and not claim.has_lost_pod:
                if (taken := taking.taken_by(claim.emptied_room)) is None:
                    inherits |= in_vain
                else:
                    self.lose_room(claim, taken, now)
        return out, [claim.workload for claim in displaced], inherits

    def _outrank(self, plan: PreemptionPlan, taking: TakeOver, now: float) -> bool:
        """Hand over the places of victims that wait for volumes or devices; return whether ``taking`` answers for any.

        They give up their room.
        """
        inherits = False
        for victim in plan.victims:
            uid = victim.occupant.uid
            if not self._world.ledger.waits(uid):
                continue
            self._outranked.append(uid)
            if (room := self._vain_evictions.room_of_pod(uid)) is not None:
                wanted = self._vain_evictions.wanted_for(uid)
                emptied = EmptiedRoom(room.namespace, room.amounts, wanted, room.evicted)
                taken = taking.taken_by(emptied)
                inherits |= taken is None
                self._vain_evictions.hand_over(uid, taken, now)
        return inherits

    def _drop(self, id_: str) -> None:
        claim = self._claims.pop(id_, None)
        self._ending.pop(id_, None)
        if claim is None:
            return
        for uid in claim.nodes:
            self._nominations.drop(uid)
            if self.nominated_for.get(uid) == id_:
                del self.nominated_for[uid]
        for uid in claim.victims:
            # A claim may also wait for a victim of another claim, which stays that claim's victim.
            if self._victim_of.get(uid) == id_:
                del self._victim_of[uid]


def _own_part(plan: PreemptionPlan, namespace: str) -> PreemptionPlan:
    """Return what of a plan concerns pods of a namespace only: they end before any other pod is evicted."""
    victims, awaited = (
        tuple(pod for pod in pods if pod.occupant.namespace == namespace) for pods in (plan.victims, plan.awaited)
    )
    return replace(plan, victims=victims, awaited=awaited, devices={}, freed={})
