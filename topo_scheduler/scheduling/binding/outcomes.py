"""From a decision to bound pods: assume, bind, confirm; and what happens when a bind fails.

All members are assumed before the first is bound. A bind that fails releases the resources that it held, and the
scheduler places the member again near the others. Pods like one that the API server refused are tried with a dry run
before they are bound (`admission_backoff`).

A gang that was never complete and can't be completed is rolled back. The scheduler evicts its bound members, and takes
back binds of which nothing was sent. A bind whose result is unknown keeps what it holds, and is written again to the
same node (`unsettled`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import inf
from typing import Final

from topo_scheduler.api.annotations import (
    ADDRESS,
    CHARGED_FRACTION,
    CHARGED_GPUS,
    DEVICE_SCORE,
    EXPECTED_DURATION,
    GANG_ID,
    GANG_MINIMUM,
    GPU_INDEX,
    HOPS,
    LEVELS_SPANNED,
    PREDICTED_GPUS,
    RANK,
    RESERVED_BANDWIDTH,
    SCORE,
    SPANNED_LEVEL,
)
from topo_scheduler.api.device_score import write_device_score
from topo_scheduler.api.durations import written_duration
from topo_scheduler.api.fractions import write_fraction, write_indexes
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.reasons import GroupReason, Reason
from topo_scheduler.api.text import counted, quoted
from topo_scheduler.scheduling.barrier import Activity, failure_of, guard, internal_error
from topo_scheduler.scheduling.binding.admission_backoff import MAX_BACKOFF_SECONDS, STOPPED, AdmissionBackoff, kind_of
from topo_scheduler.scheduling.binding.bind_recheck import closed_to, crowded_out
from topo_scheduler.scheduling.binding.claim_binding import ClaimBinding
from topo_scheduler.scheduling.binding.partially_bound_gangs import ROLL_BACK_AFTER_SECONDS, PartiallyBoundGangs
from topo_scheduler.scheduling.binding.unsettled import LONGEST_PAUSE_SECONDS, Unsettled
from topo_scheduler.scheduling.binding.volume_binding import VolumeBinding
from topo_scheduler.scheduling.instructions import (
    LEASE_ENDS,
    Bind,
    BindOutcome,
    EmitEvent,
    Instruction,
    LogWarning,
    MarkGroup,
    Withdraw,
    reference,
)
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.placing.bandwidth.reserving_members import reserves_bandwidth
from topo_scheduler.scheduling.placing.checks.bandwidth_limits import bandwidth_of
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision, Seat
from topo_scheduler.state.pods.workloads import Member, Stage, Workload, Workloads, size_of

MAX_NAMED_DEVICES: Final = 16
"""Devices that the event about a bind names."""
MIN_REMEMBERED_WORKLOADS: Final = 64
OVERSUBSCRIBED_PAUSE_SECONDS: Final = 60.0
"""Seconds between two events to the pods of one node that it is oversubscribed."""
NOT_ANSWERED: Final = "its bind was not answered"
GIVEN_UP: Final = "the API server did not answer, and a pod of higher priority needs the room"
BINDING_CHANGED: Final = (
    "a mutating admission webhook changed its Binding, or another process bound it: exclude pods/binding from webhooks,"
    " and run one scheduler of this name"
)

Hold = Callable[[Sequence[Seat], Sequence[Bind], float], list[Instruction]]
"""Holds what the seats of a decision need at a time in seconds; returns the binds, or what to write before them."""


@dataclass(frozen=True, slots=True)
class _Sent:
    bind: Bind
    why: str


class Outcomes:
    """Binds in flight and their results."""

    def __init__(
        self, world: World, workloads: Workloads, partially_bound: PartiallyBoundGangs, config: SchedulerConfig
    ) -> None:
        self._world = world
        self._workloads = workloads
        self._config = config
        self.claims = ClaimBinding(world.inventory)
        self.volumes = VolumeBinding(world.around, config.volume_bind_timeout)
        self.admission_backoff = AdmissionBackoff()
        self._sent: dict[str, _Sent] = {}
        self._elsewhere: dict[str, str] = {}
        """The decided nodes of pods that are on other nodes, by uid, until the results of their binds."""
        self._unsettled = Unsettled()
        """Binds that may have been written, or were not written for a temporary reason."""
        self._given_up: set[str] = set()
        """Uids of pods whose binds are withdrawn because pods of higher priority need the room."""
        self._lacking_room: dict[str, int] = {}
        """Priorities of workloads that lacked room when they were tried last, by their ids."""
        self._reported: dict[str, float] = {}
        """When the pods of a node got an event about it being oversubscribed, in the last minute."""
        self._most_lacking = MIN_REMEMBERED_WORKLOADS
        """Number of these above which those that are not pending any more are forgotten."""
        self.partially_bound = partially_bound

    @property
    def in_flight(self) -> int:
        """Number of binds, written or to be written, whose result is not known."""
        return len(self._sent)

    def decided_since(self, since: float) -> Counter[str]:
        """Return how many of the binds in flight were decided after a moment, by namespace."""
        recent = takewhile(lambda sent: sent.bind.decided > since, reversed(self._sent.values()))
        return Counter(sent.bind.pod.namespace for sent in recent)

    def assume(self, workload: Workload, decision: Decision, now: float) -> list[Instruction]:
        """Assume all placements of a decision; return the binds to write, or the instructions that precede them.

        If anything raises, none of them stays assumed.
        """
        fresh = [seat.uid for seat in decision.seats if self._world.ledger.get(seat.uid) is None]
        try:
            return self._assume(workload, decision, now)
        except Exception:
            for uid in fresh:
                self._take_back(workload, workload.members[uid])
            raise

    def _take_back(self, workload: Workload, member: Member) -> None:
        """Release what was held for a member whose bind was not handed out yet."""
        self._world.around.storage.release(member.uid)
        self.forget(member.uid)
        self._world.take_back(member.uid)
        workload.make_pending(member)

    def _assume(self, workload: Workload, decision: Decision, now: float) -> list[Instruction]:
        binds: list[Bind] = []
        has_claims = False
        workload.failing = False
        workload.forget_lost()
        bandwidth = bandwidth_of(workload, (workload.members[seat.uid] for seat in decision.seats))
        wall = now + self._world.epoch
        shared = _shared_annotations(workload, decision)
        for seat in decision.seats:
            member = workload.members[seat.uid]
            amounts, profile = member.cls.amounts, member.profile
            numa = member.cls.numa
            if numa is not None and numa.is_large:
                numa = None  # as of any pod with a node
            self._world.ledger.assume(seat.uid, seat.node, amounts, profile, seat.devices, numa)
            if seat.claims:
                has_claims = True
                made = next((choice.key for choice in seat.claims if choice.made is not None), None)
                self._world.claimed_gpus.stand_for_requests(seat.uid, made, amounts)
            member.bandwidth = bandwidth if bandwidth and reserves_bandwidth(member.cls, self._world.resources) else 0
            if member.bandwidth:
                self._world.links.put(seat.uid, (workload.namespace, workload.id), seat.node, bandwidth)
            workload.set_stage(member, Stage.ASSUMED)
            member.node, member.rank, member.decided = seat.node, seat.rank, True
            # When it starts, users may have changed what it was bound with.
            if (claimed := min(member.expected_seconds, max(1.0, member.ends_by - wall))) < member.deadline:
                self._world.promises.claimed(seat.uid, member.namespace, claimed)
            bind = Bind(
                reference(member),
                seat.node,
                {RANK: str(seat.rank), ADDRESS: seat.address, **shared, **_annotations(member, seat, claimed)},
                member.enqueued,
                now,
            )
            self._sent[seat.uid] = _Sent(bind, _where(workload, seat, decision))
            binds.append(bind)
        all_members = workload.rollbacks > 0  # admission may treat members differently: try all before binding any
        tried = None
        if self.admission_backoff.any_held or all_members:
            tried = self.admission_backoff.rehearse(workload.members, decision.seats, binds, all_members=all_members)
        if tried is None:
            hold = self._hold if has_claims else self._hold_volumes
            return hold(decision.seats, binds, now)
        self._keep_volumes(decision.seats)
        for seat in decision.seats:
            self.claims.reserve(seat)
        return tried

    def _keep_volumes(self, seats: Sequence[Seat]) -> None:
        """Keep other pods from taking the volumes of pods for which nothing is written yet."""
        for seat in seats:
            if seat.volumes:
                self._world.around.storage.hold(seat.uid, seat.volumes)

    def _hold(self, seats: Sequence[Seat], binds: Sequence[Bind], now: float) -> list[Instruction]:
        """Return the binds of a decision, or what to write before them: its claims, then its volumes."""
        writes = self.claims.hold(seats, binds, now)
        if writes is None:
            return self._hold_volumes(seats, binds, now)
        self._keep_volumes(seats)
        return writes

    def _hold_volumes(self, seats: Sequence[Seat], binds: Sequence[Bind], now: float) -> list[Instruction]:
        """Return the binds of a decision, or the writes for its volumes; pods that wait may lose their room."""
        out = self.volumes.hold(seats, binds, now)
        if self.volumes:
            self._wait((seat.uid for seat in seats if self.volumes.is_withheld(seat.uid)), now)
        return out

    def _wait(self, uids: Iterable[str], now: float) -> None:
        """Record that the binds of pods wait for volumes or devices."""
        for uid in uids:
            if (membership := self._workloads.of_pod(uid)) is not None:
                self._world.ledger.wait(uid, membership[1].as_victim(now + self._world.epoch))

    def outrank(self, uids: Sequence[str]) -> None:
        """Let pods whose binds wait for volumes or devices give up their room in the next step."""
        if uids:  # otherwise each workload without room would have all waiting claims looked at
            self.volumes.outrank(uids)
            self.claims.outrank(uids)

    def rehearsed(self, uid: str, outcome: BindOutcome, message: str, now: float) -> None:
        """Record how a dry run ended. One neither accepted nor refused shows nothing: the binds will."""
        membership = self._workloads.of_pod(uid)
        if membership is None or uid not in self._sent:
            return
        refused = message if outcome is BindOutcome.REJECTED else ""
        if refused:
            self._back_off(*membership, refused, now)
        self.admission_backoff.answered(uid, refused)

    def check(self, now: float) -> tuple[list[Instruction], list[tuple[str, str]]]:
        """Return the instructions for decided pods, and the pods that will not be bound: uid and reason."""
        self.admission_backoff.forget_old(now)
        good, undone = self.admission_backoff.take_ended()
        failed = [(uid, "") for uid in undone]
        out: list[Instruction] = []
        for seats, binds in good:
            # No claim is written for pods that can't get their volumes.
            hold = self._hold_volumes if self.volumes.obstacles(seats) else self._hold
            out += self._go_on(hold, seats, binds, failed, now)
        try:
            checked = self.claims.check(now)
            failed += checked.failed
            for seats, binds in checked.allocated:
                for seat in seats:
                    self._world.ledger.wait(seat.uid, None)
                out += self._go_on(self._hold_volumes, seats, binds, failed, now)
            if checked.resting:
                self._wait(checked.resting, now)
            out += checked.instructions
        except Exception as error:
            out += failure_of("resource claims of decided pods", error, Activity.OUTCOME)
        try:
            ready, lost = self.volumes.check(now)
            failed += lost
            out += ready
            for bind in ready:
                if isinstance(bind, Bind):
                    self._world.ledger.wait(bind.pod.uid, None)
        except Exception as error:
            out += failure_of("volumes of decided pods", error, Activity.OUTCOME)
        return out, failed

    def _go_on(
        self, hold: Hold, seats: Sequence[Seat], binds: Sequence[Bind], failed: list[tuple[str, str]], now: float
    ) -> list[Instruction]:
        """Return what to write next for a decision; if anything raises, add its pods to those that failed."""
        try:
            for seat in seats:
                self._world.around.storage.release(seat.uid)
            return hold(seats, binds, now)
        except Exception as error:
            why = internal_error(error, Activity.OUTCOME)
            failed += [(seat.uid, why) for seat in seats]
            pod = binds[0].pod
            return failure_of(
                f"bind of pod {pod.namespace}/{pod.name}", error, Activity.OUTCOME, namespace=pod.namespace
            )

    def awaits(self, uid: str) -> bool:
        """Return whether a bind was requested whose result is not known."""
        return uid in self._sent

    def may_bind(self, uid: str) -> str:
        """Return why a decided bind must not be written after all, or an empty string."""
        membership = self._workloads.of_pod(uid)
        if membership is None or uid not in self._sent:
            return "the pod is gone, or bound already"
        if membership[1].withdrawn:
            return membership[1].withdrawn
        if self.partially_bound.is_withdrawn(uid):
            return "its gang is rolled back"
        node = membership[1].node
        row = self._world.nodes.row_of.get(node)
        if row is None:
            return f"node {node} was deleted"
        closed = closed_to(self._world.nodes, membership[1].cls, row)
        # Half a gang would be worse. And the place of a bind that may be written already goes to no other pod.
        if closed and uid not in self._unsettled and not membership[0].bound:
            return f"node {node} {closed}"
        if device := self.claims.contested(uid):
            return f"device {device} went to another claim at the same moment"
        over = self._world.nodes.overdrawn(row, membership[1].cls.amounts)
        if over and self._world.overdrawn(row, membership[1].cls.amounts):
            return f"another scheduler took {', '.join(over)} of node {node} at the same moment"
        if over and not membership[0].bound:  # half a gang would be worse
            return f"another scheduler is filling node {node} at the same moment"
        if self.admission_backoff:
            gets_on = membership[0].bound > 0
            if stopped := self.admission_backoff.stops(membership[1], gets_on=gets_on):
                return stopped
        around, member = self._world.around, membership[1]
        if member.profile is not None and (around.pod_index.repelling or member.cls.constraints is not None):
            rival = crowded_out(around, member.cls, member.profile, row)
            if rival:
                return f"{rival} came to node {node}, or near it, at the same moment"
        return ""

    def bind_finished(self, uid: str, outcome: BindOutcome, message: str, now: float) -> list[Instruction]:
        """Record how a bind ended; return what to do next."""
        sent = self._sent.get(uid)
        membership = self._workloads.of_pod(uid)
        if sent is None or membership is None:
            self.forget(uid)
            return []
        workload, member = membership
        withdrawn, unsettled = self.partially_bound.is_withdrawn(uid), uid in self._unsettled
        if withdrawn and (outcome is BindOutcome.UNKNOWN or (outcome is BindOutcome.WITHDRAWN and unsettled)):
            return [self._withdraw(uid)]
        if outcome is BindOutcome.UNKNOWN:
            if self._unsettled.is_hanging(uid) and self._is_outranked(workload):
                return self._give_up(workload, member, now)
            self._unsettled.put(uid, member.namespace, now)
            return []
        if outcome is BindOutcome.WITHDRAWN and uid in self._given_up:
            message = GIVEN_UP
        late = self.partially_bound.bound_too_late(workload, member) if outcome is BindOutcome.BOUND else []
        if outcome is BindOutcome.BOUND:
            self.admission_backoff.bound(uid)
        elif outcome is BindOutcome.REJECTED:
            self._back_off(workload, member, message, now, bind=uid)
        if unsettled and outcome is not BindOutcome.WITHDRAWN:
            self._unsettled.answered(uid, now)
        self.forget(uid)
        if outcome is BindOutcome.BOUND:
            workload.set_stage(member, Stage.BOUND)
            if (entry := self._world.ledger.get(uid)) is not None:
                member.profile = entry.profile  # its own may be large, and is not kept
            self._world.kept_classes.bound(member)
            self.partially_bound.gets_on(workload, now)
            self._hasten(workload, now)
            marks = self.note_complete(workload, member)
            if not workload.complete and workload.bound + workload.pending == len(workload.members):
                # The other members were deleted while binds were in flight, or found no room before this one was bound.
                self.hindered(workload, now)
            text = f"Successfully assigned {member.key} to {member.node}{sent.why}"
            return [*marks, EmitEvent(reference(member), False, Reason.SCHEDULED, text), *late]
        if withdrawn and outcome is BindOutcome.WITHDRAWN:
            self._take_back(workload, member)  # the rollback reported the reason
            workload.failing = True
            return []
        return self._failed(workload, member, outcome, message, now)

    def yield_room(self, id_: str, priority: int, now: float) -> list[Instruction]:
        """Withdraw the binds of lower priority that the API server does not answer, for a workload without room.

        A webhook may keep them unanswered for hours. Nothing runs in the room that they hold.
        """
        self._lacking_room[id_] = priority
        if len(self._lacking_room) > self._most_lacking:
            self._forget_placed()
            self._most_lacking = max(MIN_REMEMBERED_WORKLOADS, 2 * len(self._lacking_room))
        out: list[Instruction] = []
        lower: dict[str, bool] = {}  # the priority of a gang is the lowest of all its members: find it once
        for uid in self._unsettled.unanswered():
            membership = self._workloads.of_pod(uid)
            if membership is None or uid not in self._sent:
                continue
            workload = membership[0]
            if workload.id not in lower:
                lower[workload.id] = workload.priority < priority
            if lower[workload.id]:
                out += self._give_up(*membership, now)
        return out

    def _is_outranked(self, workload: Workload) -> bool:
        """Return whether a workload of higher priority lacked room when it was tried last, and is still pending."""
        own = workload.priority
        for id_ in [id_ for id_, priority in self._lacking_room.items() if priority > own]:
            other = self._workloads.get(id_)
            if other is not None and other.pending:
                return True
            del self._lacking_room[id_]
        return False

    def _forget_placed(self) -> None:
        lacking = self._lacking_room.items()
        known = [(id_, priority, self._workloads.get(id_)) for id_, priority in lacking]
        self._lacking_room = {id_: priority for id_, priority, other in known if other is not None and other.pending}

    def _give_up(self, workload: Workload, member: Member, now: float) -> list[Instruction]:
        """Stop writing a bind again: once no attempt can take effect any more, its room is free."""
        self._given_up.add(member.uid)
        # The next attempt is a dry run.
        self._back_off(workload, member, NOT_ANSWERED, now, longest=LONGEST_PAUSE_SECONDS)
        return [self._withdraw(member.uid)]

    def recalled(self, uid: str, *, waited: bool) -> bool:
        """Return whether a bind has ended because nothing was sent.

        ``waited``: it was queued and not sent. A bind that was never handed out counts too.
        """
        return uid in self._sent and self.partially_bound.is_withdrawn(uid) and (waited or not self._is_handed_out(uid))

    def settle(self, workload: Workload, member: Member, outcome: BindOutcome, now: float) -> None:
        """Only bring stage and ledger in line with the result of a bind, because `bind_finished` raised."""
        if outcome is BindOutcome.BOUND:
            self.forget(member.uid)
            workload.set_stage(member, Stage.BOUND)
        elif outcome is BindOutcome.UNKNOWN:
            self._unsettled.put(member.uid, member.namespace, now)
        else:
            self._take_back(workload, member)
            workload.failing = True
            self.hindered(workload, now)

    def hangs(self, uid: str) -> None:
        """Record that the API server answers, but not to this bind."""
        membership = self._workloads.of_pod(uid)
        if membership is not None and (sent := self._sent.get(uid)) is not None:
            self._unsettled.hangs(uid)
            self.partially_bound.hangs(*membership, sent.bind.decided)

    def forget(self, uid: str) -> None:
        """Drop a bind that has ended, or whose pod was deleted; its result does not matter any more."""
        self._sent.pop(uid, None)
        self._unsettled.drop(uid)
        self._given_up.discard(uid)
        self.partially_bound.ended(uid)
        self.admission_backoff.release(uid)
        self.claims.release(uid)
        self.volumes.release(uid)

    def note_complete(self, workload: Workload, member: Member) -> list[Instruction]:
        """Record whether enough members of a gang run: from then on it is never rolled back. Return what to mark.

        Call it after each change of a bound member. Most calls take the same time however many members there are.
        """
        if member.stage is Stage.BOUND and not member.evicted:
            self.partially_bound.bears(workload, member)
            workload.note_ran(member)
            workload.note_times(member)
        if workload.complete:
            self.partially_bound.may_lack_marks(workload)
            return []
        if member.leaving and workload.first_bound_at >= member.left_at:
            return []  # it does not count, so that the gang is no more complete than before
        return self.note_size(workload)

    def note_size(self, workload: Workload) -> list[Instruction]:
        """Do the same if the size of a gang may have changed: the gang is complete once that many members run."""
        if workload.complete:
            return []
        # The size of a gang that was found bound may still be unknown.
        size = size_of(workload)
        marks_may_count = workload.first_bound_at < workload.marked_until
        if not (size and max(workload.bound, len(workload.ran)) >= size) and not marks_may_count:
            return []
        bound = [m for m in workload.members.values() if m.stage is Stage.BOUND and not m.evicted]
        # Members that were found may have run together with one that is now being deleted. But all members of a gang
        # that is restarted are being deleted when its new members are bound. And a member whose bind was answered late
        # may have been bound only when the others were being evicted.
        times = [m.bound_at for m in bound if not m.leaving]
        since, last = min(times, default=inf), max(times, default=inf)
        stay = [m for m in bound if not m.leaving or since < m.left_at]
        together = [m for m in stay if not m.leaving or last < m.left_at] if workload.bound_earlier else ()
        ranks = {m.rank for m in together if not m.decided and 0 <= m.rank < size}
        whole = bool(size) and max(sum(not m.leaving for m in bound), len(ranks)) >= size
        whole = whole or workload.ran_whole
        if not whole and not any(m.marked for m in stay):
            workload.first_bound_at = since
            workload.marked_until = max((m.left_at for m in bound if m.marked), default=-inf)
            if workload.marked_until == -inf:
                workload.marked_members = ()
            return []
        workload.complete = True
        workload.forget_ran()
        workload.attempts = 0
        self.partially_bound.complete(workload)
        return [*(mark_placed(workload) if whole else []), *self.partially_bound.marks(workload, spread=True)]

    def hindered(self, workload: Workload, now: float) -> None:
        """Record that a member has no room, or was not bound: a gang that stays partially bound is rolled back soon."""
        self.partially_bound.hindered(workload, now)

    def due(self, now: float, follow_job: Callable[[Workload], list[Instruction]]) -> list[Instruction]:
        """Return what is due by now: binds to write again, gangs to roll back, members to mark for lost ones.

        ``follow_job`` brings the size of a gang in line with its Job, before it is rolled back.
        """
        out: list[Instruction] = []
        for workload in self.partially_bound.take_due(now, self._idle_since):
            name = f"{workload.namespace}/{workload.name}"
            with guard(f"size of gang {name}", out, Activity.OUTCOME, namespace=workload.namespace):
                out += follow_job(workload)
            with guard(f"rollback of gang {name}", out, Activity.OUTCOME, namespace=workload.namespace):
                if not workload.complete:
                    self._roll_back(workload, now)
        for uid in self._unsettled.take_due(now):
            try:
                out.append(self._withdraw(uid) if self.partially_bound.is_withdrawn(uid) else self._sent[uid].bind)
            except Exception as error:
                out += failure_of(f"bind of pod {uid} that is written again", error, Activity.OUTCOME)
                self._unsettled.defer(uid, now)
        for rest in (partial(self.partially_bound.part, now), self.partially_bound.missing_marks):
            try:
                out += rest()
            except Exception as error:
                out += failure_of("partially bound gangs", error, Activity.OUTCOME)
        return out

    def next_due(self) -> float | None:
        """Return when to call `due` next."""
        times = [due] if (due := self.partially_bound.next_due(self._idle_since)) is not None else []
        times += [at for at in (self.claims.next_due(), self.volumes.next_due()) if at is not None]
        times += [at for at in (self._unsettled.next_due(), self.admission_backoff.next_due()) if at is not None]
        return min(times, default=None)

    def check_overdrawn(self, pod: Pod, now: float, *, resized: bool = False, bound: bool = True) -> list[Instruction]:
        """Return what to report when a pod that another scheduler bound took more than a node had left.

        Users may resize their running pods to any amount. The kubelet grants what the node has, so that other pods of
        the node lose nothing, and get no event. Nor do they for a pod that was created with its node (not ``bound``):
        its kubelet rejects it, and users may create such pods on any node.
        """
        over = self._world.oversubscribed(pod.spec.node_name)
        if not over:
            return []
        shortage = f"node {pod.spec.node_name} has less {', '.join(over)} than its pods ask for since"
        if resized:
            text = f"{shortage} {pod.key} was resized; its kubelet decides whether the pod gets more"
            return [LogWarning(text, pod.metadata.namespace)]
        if not bound:
            return [
                LogWarning(
                    f"{shortage} {pod.key} was created with this node; its kubelet rejects it. Delete it, or create it"
                    " without spec.nodeName",
                    pod.metadata.namespace,
                )
            ]
        # The tenant of the pod chose the scheduler name. Other tenants do not read it, and get the same text each time.
        ours = pod.spec.scheduler_name == self._config.scheduler_name
        remedy = BINDING_CHANGED if ours else "give the two schedulers different nodes"
        text = f"{shortage} {pod.key} (scheduler {quoted(pod.spec.scheduler_name)}) was bound to it; {remedy}"
        text_for_others = f"{shortage} a pod of another namespace was bound to it; {remedy}"
        out: list[Instruction] = [LogWarning(text, pod.metadata.namespace)]
        node = pod.spec.node_name
        self._reported = {name: at for name, at in self._reported.items() if now - at < OVERSUBSCRIBED_PAUSE_SECONDS}
        if node in self._reported:
            return out
        self._reported[node] = now
        for uid in sorted(self._world.ledger.on_node(pod.spec.node_name)):
            membership = self._workloads.of_pod(uid)
            if membership is not None and membership[1].stage is not Stage.PENDING:
                own = self._world.reader(membership[1].namespace) in ("", pod.metadata.namespace)
                message = text if own else text_for_others
                out.append(EmitEvent(reference(membership[1]), True, Reason.OVERSUBSCRIBED, message))
        return out

    def bound_elsewhere(self, workload: Workload, member: Member, node: str, now: float) -> list[Instruction]:
        """Return what to report when a pod turns out to be on another node than the one that its Binding names.

        If the API server has not answered yet, the answer shows whether it was this Binding that took effect.
        """
        if member.stage is Stage.BOUND:
            return self._binding_changed(workload, member, member.node, node, now)
        if member.uid in self._sent and self._is_handed_out(member.uid):
            self._elsewhere[member.uid] = member.node
        return []

    def answered_late(self, uid: str, outcome: BindOutcome, now: float) -> list[Instruction]:
        """Return what to report when the API server answers a bind after the watch reported where the pod is."""
        decided, membership = self._elsewhere.pop(uid, ""), self._workloads.of_pod(uid)
        if not decided or membership is None or outcome is not BindOutcome.BOUND:
            return []
        return self._binding_changed(*membership, decided, membership[1].node, now)

    def _binding_changed(
        self, workload: Workload, member: Member, decided: str, node: str, now: float
    ) -> list[Instruction]:
        """Pods of its kind are in backoff, as what changed this Binding may change others."""
        text = f"Binding to {decided} failed: the pod is on {node}; {BINDING_CHANGED}"
        self._back_off(workload, member, text, now)
        return [
            LogWarning(f"pod {member.key}: {text}", member.namespace),
            EmitEvent(reference(member), True, Reason.BIND_FAILED, text),
        ]

    # ------------------------------------------------------------ inside

    def _is_handed_out(self, uid: str) -> bool:
        """Return whether a bind was handed out to be written. Other binds wait for volumes or a dry run."""
        waits = self.claims.is_withheld(uid) or self.volumes.is_withheld(uid)
        return not (waits or self.admission_backoff.is_tried(uid))

    def _idle_since(self, uid: str) -> float:
        return inf if self._is_handed_out(uid) else self._sent[uid].bind.decided

    def _withdraw(self, uid: str) -> Withdraw:
        self._unsettled.drop(uid)
        return Withdraw(self._sent[uid].bind)

    def _hasten(self, workload: Workload, now: float) -> None:
        """Write the unsettled binds of the other members again at once: a gang must not stay partially bound."""
        if self._unsettled and workload.gang and not workload.complete:
            for uid in self._unsettled.pausing(workload.namespace):
                if uid in workload.members:
                    self._unsettled.hasten(uid, now)

    def _failed(
        self, workload: Workload, member: Member, outcome: BindOutcome, message: str, now: float
    ) -> list[Instruction]:
        leaf = self._world.leaf_of(member.node)
        node = member.node
        self.partially_bound.keep_seat(workload, member, node)
        self._world.take_back(member.uid)
        workload.make_pending(member)
        if outcome is BindOutcome.REJECTED and leaf is not None:
            self._world.history.note(leaf, now, good=False)
        # The binds of a decision usually fail for one reason: they count as one attempt.
        workload.attempts += not workload.failing
        workload.failing = True
        self.hindered(workload, now)
        if outcome is BindOutcome.GONE:
            return []  # the watch reports the deletion, which no event needs to
        if message in ("", STOPPED, member.withdrawn) or message.endswith(LEASE_ENDS):
            return []  # the next attempt reports what holds it back
        return [EmitEvent(reference(member), True, Reason.BIND_FAILED, f"Binding to {node} failed: {message}")]

    def _roll_back(self, workload: Workload, now: float) -> None:
        for uid in filter(self._is_handed_out, self.partially_bound.roll_back(workload, now)):
            # The next attempt is made with `dryRun`, so no member of the gang is bound before this one would be.
            self._back_off(workload, workload.members[uid], NOT_ANSWERED, now)
            self._unsettled.hasten(uid, now)

    def _back_off(
        self,
        workload: Workload,
        member: Member,
        why: str,
        now: float,
        *,
        longest: float = MAX_BACKOFF_SECONDS,
        bind: str = "",
    ) -> None:
        self.admission_backoff.refused(kind_of(member), workload.id, why, now, longest=longest, bind=bind)
        if self.admission_backoff.many:
            self.admission_backoff.keep(
                {kind_of(pod) for present in self._workloads for pod in present.members.values()}
            )

    def backoff(self, workload: Workload, message: str = "") -> float:
        """Return the backoff in seconds of a workload whose binds failed; ``message`` is the reason."""
        if message == STOPPED:
            return 0.0  # `admission_backoff` delays it with the other pods of its kind
        first, longest = self._config.pod_initial_backoff_seconds, self._config.pod_max_backoff_seconds
        if workload.partially_bound_since is not None:
            longest = min(longest, ROLL_BACK_AFTER_SECONDS / 3)  # it must be retried before it is rolled back
        return doubled(first, workload.attempts, longest)


def mark_placed(workload: Workload) -> list[Instruction]:
    """Return the conditions to write for a workload of which the required minimum runs at once."""
    text = (
        f"{counted(workload.bound, 'pod', 'is bound', 'are bound')}, {workload.size} at once was the minimum"
        if workload.gang
        else "its pods are bound"
    )
    return mark_group(workload, GroupReason.SCHEDULED, text)


def mark_group(workload: Workload, reason: GroupReason, message: str) -> list[Instruction]:
    """Return the condition of the workload's PodGroup, if it has a native one of Kubernetes."""
    group = workload.group
    if group is None or group.key.api is not GroupApi.NATIVE:
        return []
    key, placed = group.key, reason is GroupReason.SCHEDULED
    if group.scheduled:
        return []  # the group was placed, even if later pods find no room
    return [MarkGroup(key.namespace, key.name, group.uid, group.version, placed, reason, message)]


def _shared_annotations(workload: Workload, decision: Decision) -> dict[str, str]:
    """Return the annotations that every pod of a decision gets."""
    annotations = {}
    if decision.score is not None:
        annotations[SCORE] = f"{decision.score.total / 1000:.3f}"
    if workload.gang:
        annotations[GANG_ID] = workload.id
        annotations[GANG_MINIMUM] = str(workload.size)
    if (quality := decision.quality) is not None:
        annotations[SPANNED_LEVEL] = quality.level
        annotations[LEVELS_SPANNED] = str(quality.levels)
        annotations[HOPS] = f"{quality.mean_hops / 1000:.2f}"
    return annotations


def _annotations(member: Member, seat: Seat, claimed: float) -> dict[str, str]:
    """Return the additional annotations of one pod of a decision, which claims to run for ``claimed`` seconds."""
    annotations = {}
    if claimed < member.own_seconds:
        # The scheduler does not read the owners of bound pods.
        annotations[EXPECTED_DURATION] = written_duration(claimed)
    if member.charged_gpus:
        annotations[CHARGED_GPUS] = str(member.charged_gpus)
    if member.cls.share:
        annotations[CHARGED_FRACTION] = write_fraction(member.cls.share)
    if seat.devices:
        annotations[PREDICTED_GPUS if seat.predicted else GPU_INDEX] = write_indexes(seat.devices)
    if seat.device_score:
        annotations[DEVICE_SCORE] = write_device_score(seat.device_score)
    if member.bandwidth:
        annotations[RESERVED_BANDWIDTH] = str(member.bandwidth)
    return annotations


def _where(workload: Workload, seat: Seat, decision: Decision) -> str:
    place = f" ({decision.sentence}"
    if seat.claims and (
        names := [
            result.device for choice in seat.claims if choice.allocation for result in choice.allocation.devices.results
        ]
    ):
        more = f" and {len(names) - MAX_NAMED_DEVICES} more" if len(names) > MAX_NAMED_DEVICES else ""
        place = f"{place}; devices {', '.join(names[:MAX_NAMED_DEVICES])}{more}"
    return f"{place}; rank {seat.rank} of gang {workload.name})" if workload.gang else f"{place})"
