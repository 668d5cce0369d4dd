"""Claims: what workloads were promised that others give way to, and who could not be made to.

A claim ends when the workload is placed, or gone, when an eviction is refused, when the victims are not gone in time,
or when they are gone and somebody else took the room. Who could not be evicted is left alone for a while that grows
each time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import EmitEvent, Instruction, Nominate, PodRef, Preempt, reference
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.preemption.nominations import Nomination, Nominations
from topo_scheduler.scheduling.preemption.plan import PreemptionPlan
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.occupants import LONGEST_WAIT_SECONDS, Occupant
from topo_scheduler.state.workloads import Member, Workload, Workloads

SLACK_SECONDS: Final = 30.0
"""Seconds that victims have beyond their grace period before they count as stuck."""
LEFT_ALONE: Final = 10.0
"""Seconds for which a pod that could not be evicted is left alone, doubled each time."""
LEFT_ALONE_MOST: Final = 600.0
PAUSE: Final = 1.0
"""Seconds between two claims of a workload once the second came to nothing, doubled each time."""
PAUSE_MOST: Final = 60.0


@dataclass(slots=True)
class PreemptionClaim:
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


class PreemptionClaims:
    """All claims, each workload's at most one."""

    def __init__(self, world: World, workloads: Workloads, nominations: Nominations) -> None:
        self._world = world
        self._workloads = workloads
        self._nominations = nominations
        self._claims: dict[str, PreemptionClaim] = {}
        self._victim_of: dict[str, str] = {}
        self.going: dict[str, float] = {}
        """Pods whose eviction is on its way, and until when that is believed."""
        self.handled: set[str] = set()
        """Pods of ours whose nomination is our own affair, whatever their status says."""
        self._left_alone: dict[str, Patience] = {}
        self._patience: dict[str, Patience] = {}

    def get(self, id_: str) -> PreemptionClaim | None:
        """Return a workload's claim."""
        return self._claims.get(id_)

    def expired(self, now: float) -> list[PreemptionClaim]:
        """Return the claims that have waited long enough."""
        return [claim for claim in self._claims.values() if not self.goes_on(claim, now)]

    def next_due(self) -> float | None:
        """Return when the next claim has waited long enough."""
        return min((claim.until for claim in self._claims.values()), default=None)

    def awaited(self, claim: PreemptionClaim) -> list[str]:
        """Return the victims that are not gone yet."""
        return [uid for uid in claim.victims if self._world.ledger.get(uid) is not None]

    def goes_on(self, claim: PreemptionClaim, now: float) -> bool:
        """Return whether a claim still waits for its victims.

        It waits once more for victims with a long grace period when little of it is left. Evicting other pods instead
        would be in vain.
        """
        if now < claim.until:
            return True
        entries = [self._world.ledger.get(uid) for uid in claim.victims]
        present = [entry.occupant for entry in entries if entry is not None]
        terminating = [occupant for occupant in present if occupant is not None and occupant.terminating]
        remaining = max((occupant.seconds_to_end(now + self._world.epoch) for occupant in terminating), default=0.0)
        if len(terminating) < len(present) or not 0 < remaining <= LONGEST_WAIT_SECONDS:
            return False
        claim.until = now + remaining + SLACK_SECONDS
        return True

    def awaits(self, uid: str) -> bool:
        """Return whether a pod is a victim of a claim that still stands, of pods that are still to be placed."""
        claim = self._claims.get(self._victim_of.get(uid, ""))
        # Pods that were left out since then end their claim with the next step only.
        return claim is not None and any(self._workloads.of_pod(pod) is not None for pod in claim.nodes)

    def preemptors(self, uid: str) -> list[str]:
        """Return the uids of the pods for which a victim gives way."""
        claim = self._claims.get(self._victim_of.get(uid, ""))
        return list(claim.nodes) if claim is not None else []

    def take_victim(self, uid: str) -> PreemptionClaim | None:
        """Return the claim a pod was to give way to; it does no longer."""
        return self._claims.get(self._victim_of.pop(uid, ""))

    def patient_until(self, id_: str) -> float:
        """Return until when a workload makes no claim again."""
        patience = self._patience.get(id_)
        return patience.until if patience else 0.0

    def left_alone(self, now: float) -> tuple[str, ...]:
        """Return the pods that are not chosen now."""
        return tuple(uid for uid, one in self._left_alone.items() if now < one.until)

    def is_left_alone(self, uid: str, now: float) -> bool:
        """Return whether a pod is not chosen now."""
        patience = self._left_alone.get(uid)
        return patience is not None and now < patience.until

    def next_choice(self, since: float) -> float | None:
        """Return when, after a moment, the next of these pods may be chosen again."""
        return min((one.until for one in self._left_alone.values() if one.until > since), default=None)

    # ------------------------------------------------------------ making them

    def make(
        self, workload: Workload, groups: Sequence[tuple[object, list[Member]]], plan: PreemptionPlan, now: float
    ) -> tuple[list[Instruction], list[str]]:
        """Claim the room of a plan: nominate, evict.

        Returns:
            What is to be done, and the workloads of lower priority that lost their claims by it.
        """
        names = self._world.nodes.names
        seated = [
            (member, names[row])
            for (_, members), rows in zip(groups, plan.placement.rows, strict=True)
            for member, row in zip(members, rows, strict=True)
        ]
        out, displaced = self._displace(workload.priority, {node for _, node in seated})
        pods = (*plan.victims, *plan.awaited)
        until = self._until((pod.occupant for pod in pods), now)
        claim = PreemptionClaim(
            workload.id,
            workload.priority,
            {member.uid: node for member, node in seated},
            {pod.occupant.uid: pod.occupant.key for pod in pods},
            until,
        )
        self._claims[workload.id] = claim
        for member, node in seated:
            self._nominations.put(Nomination(member.uid, node, workload.priority, member.cls.amounts, member.profile))
            self.handled.add(member.uid)
            out.append(Nominate(reference(member), node))
        first = seated[0][0]
        who = f"gang {workload.namespace}/{workload.name}, pod" if workload.gang else "pod"
        for victim in plan.victims:
            occupant, node = victim.occupant, names[victim.row]
            self._victim_of[occupant.uid] = workload.id
            self.going[occupant.uid] = until
            note = f"Preempted by {who} {first.key} ({first.uid}) on node {node}"
            if self._world.reader(occupant.namespace) not in ("", first.namespace):
                other = f"{'gang' if workload.gang else 'pod'} of another namespace"
                note = f"Preempted by a {other} of priority {workload.priority} on node {node}"
            pod = PodRef(occupant.namespace, occupant.name, occupant.uid)
            out.append(Preempt(pod, node, note, reference(first)))
        return out, displaced

    def adopt(self, workload: Workload, members: Sequence[Member], now: float) -> PreemptionClaim | None:
        """Return a claim made of nominations that were found, as after a restart: it waits for whoever is going there.

        None where no member is nominated.
        """
        nodes = {m.uid: one.node for m in members if (one := self._nominations.get(m.uid)) is not None}
        if not nodes:
            return None
        going: list[Occupant] = []
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
        claim = PreemptionClaim(workload.id, workload.priority, nodes, victims, self._until(going, now))
        self._claims[workload.id] = claim
        return claim

    # ------------------------------------------------------------ their end

    def end(self, claim: PreemptionClaim, now: float) -> list[Instruction]:
        """End a claim that came to nothing; the workload looks for victims again after a while that grows."""
        patience = self._patience.setdefault(claim.workload, Patience())
        if patience.times:
            patience.until = now + doubled(PAUSE, patience.times, PAUSE_MOST)
        patience.times += 1
        return self.clear(claim)

    def clear(self, claim: PreemptionClaim) -> list[Instruction]:
        """End a claim: nominations are taken back."""
        out: list[Instruction] = []
        for uid in claim.nodes:
            found = self._workloads.of_pod(uid)
            if found is not None and self._nominations.get(uid) is not None:
                out.append(Nominate(reference(found[1]), ""))
        self._drop(claim.workload)
        return out

    def forget(self, id_: str) -> None:
        """Forget a workload that is gone, or placed."""
        self._drop(id_)
        self._patience.pop(id_, None)

    def pod_deleted(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self.handled.discard(uid)
        self.going.pop(uid, None)
        self._left_alone.pop(uid, None)

    def leave_alone(self, uid: str, now: float) -> str:
        """Choose a pod no more for a while; return its name."""
        patience = self._left_alone.setdefault(uid, Patience())
        patience.times += 1
        patience.until = now + doubled(LEFT_ALONE, patience.times, LEFT_ALONE_MOST)
        entry = self._world.ledger.get(uid)
        return entry.occupant.key if entry is not None and entry.occupant is not None else uid

    def tell(self, claim: PreemptionClaim, text: str) -> list[Instruction]:
        """Tell what became of a claim."""
        found = (self._workloads.of_pod(uid) for uid in claim.nodes)
        return [EmitEvent(reference(one[1]), True, Reason.PREEMPTION_FAILED, text) for one in found if one is not None]

    # ------------------------------------------------------------ inside

    def _until(self, victims: Iterable[Occupant], now: float) -> float:
        """Return until when these are waited for; whatever their grace periods are, not for ever."""
        longest = max((occupant.seconds_to_end(now + self._world.epoch) for occupant in victims), default=0.0)
        return now + min(longest, LONGEST_WAIT_SECONDS) + SLACK_SECONDS

    def _displace(self, priority: int, nodes: set[str]) -> tuple[list[Instruction], list[str]]:
        """End claims of lower priority to any of these nodes."""
        out: list[Instruction] = []
        lost: list[str] = []
        for claim in list(self._claims.values()):
            if claim.priority < priority and nodes.intersection(claim.nodes.values()):
                out += self.clear(claim)
                lost.append(claim.workload)
        return out, lost

    def _drop(self, id_: str) -> None:
        claim = self._claims.pop(id_, None)
        if claim is None:
            return
        for uid in claim.nodes:
            self._nominations.drop(uid)
        for uid in claim.victims:
            self._victim_of.pop(uid, None)
