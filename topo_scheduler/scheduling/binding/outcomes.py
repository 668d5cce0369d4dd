"""From a decision to bound pods: assume, bind, confirm; and what happens when a bind fails.

All members are assumed before the first is bound. A bind that fails gives back what it held; the member is placed
again near the others; pods like one that the API server refused are tried before they are bound (`held_back`). A gang
that was never complete and can't be completed is rolled back: its bound members are evicted, and binds of which nothing
was sent are taken back. A bind whose end is unknown keeps what it holds and is written again to the same node
(`unsettled`).
"""

from dataclasses import dataclass
from itertools import takewhile
from math import inf

from topo_scheduler.api.annotations import (
    ADDRESS,
    CHARGED_FRACTION,
    CHARGED_GPUS,
    EXPECTED_DURATION,
    GANG_ID,
    GANG_MINIMUM,
    GPU_INDEX,
    HOPS,
    LEVELS_SPANNED,
    RANK,
    RESERVED_BANDWIDTH,
    SCORE,
    SPANNED_LEVEL,
)
from topo_scheduler.api.durations import written_duration
from topo_scheduler.api.fractions import write_fraction, write_indexes
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.reasons import GroupReason, Reason
from topo_scheduler.api.words import quoted
from topo_scheduler.scheduling.binding.crowding import closed_to, crowded_out
from topo_scheduler.scheduling.binding.half_gangs import ROLL_BACK_AFTER_SECONDS, HalfGangs
from topo_scheduler.scheduling.binding.held_back import STOPPED, HeldBack, kind_of
from topo_scheduler.scheduling.binding.unsettled import Unsettled
from topo_scheduler.scheduling.binding.volume_binding import VolumeBinding
from topo_scheduler.scheduling.instructions import (
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
from topo_scheduler.scheduling.placing.bandwidth import bandwidth_of
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision, Seat
from topo_scheduler.state.workloads import Member, Stage, Workload, Workloads, size_of


@dataclass(frozen=True, slots=True)
class _Sent:
    bind: Bind
    why: str


class Outcomes:
    """Binds in flight and their ends."""

    def __init__(self, world: World, workloads: Workloads, config: SchedulerConfig) -> None:
        self._world = world
        self._workloads = workloads
        self._config = config
        self.volumes = VolumeBinding(world.around, config.volume_bind_timeout)
        self.held_back = HeldBack()
        self._sent: dict[str, _Sent] = {}
        self._unsettled = Unsettled()
        """Those that may have been written, or were not for a reason that passes."""
        self.half = HalfGangs(world, workloads)

    @property
    def in_flight(self) -> int:
        """Binds written or to be written whose end is not known."""
        return len(self._sent)

    def decided_since(self, since: float) -> int:
        """Return how many of them were decided after a moment."""
        return sum(1 for _ in takewhile(lambda sent: sent.bind.decided > since, reversed(self._sent.values())))

    def assume(self, workload: Workload, decision: Decision, now: float) -> list[Instruction]:
        """Hold all seats of a decision and return the binds to be written, or what goes before them.

        All of them or, where anything raises, none.
        """
        fresh = [seat.uid for seat in decision.seats if self._world.ledger.get(seat.uid) is None]
        try:
            return self._assume(workload, decision, now)
        except Exception:
            for uid in fresh:
                self._take_back(workload, workload.members[uid])
            raise

    def _take_back(self, workload: Workload, member: Member) -> None:
        """Give back what was held for a member whose bind was not asked for yet."""
        self._world.around.storage.release(member.uid)
        self.forget(member.uid)
        self._world.take_back(member.uid)
        workload.make_pending(member)

    def _assume(self, workload: Workload, decision: Decision, now: float) -> list[Instruction]:
        binds: list[Bind] = []
        workload.failing = False
        workload.forget_lost()
        bandwidth = bandwidth_of(workload, (workload.members[seat.uid] for seat in decision.seats))
        wall = now + self._world.epoch
        shared = _shared_annotations(workload, decision)
        for seat in decision.seats:
            member = workload.members[seat.uid]
            amounts, profile = member.cls.amounts, member.profile
            self._world.ledger.assume(seat.uid, seat.node, amounts, profile, seat.devices)
            member.bandwidth = bandwidth
            if bandwidth:
                self._world.links.put(seat.uid, (workload.namespace, workload.id), seat.node, bandwidth)
            workload.set_stage(member, Stage.ASSUMED)
            member.node, member.rank, member.decided = seat.node, seat.rank, True
            bind = Bind(
                reference(member),
                seat.node,
                {RANK: str(seat.rank), ADDRESS: seat.address, **shared, **_annotations(workload, member, seat, wall)},
                member.enqueued,
                now,
            )
            self._sent[seat.uid] = _Sent(bind, _where(workload, seat, decision))
            binds.append(bind)
        every = workload.rollbacks > 0  # admission may tell members apart: none is bound before all would be
        tried = None
        if self.held_back or every:
            tried = self.held_back.rehearse(workload.members, decision.seats, binds, every=every)
        if tried is None:
            return self.volumes.hold(decision.seats, binds, now)
        for seat in decision.seats:  # nothing is written for them yet, but nobody else gets them
            if seat.volumes:
                self._world.around.storage.hold(seat.uid, seat.volumes)
        return tried

    def rehearsed(self, uid: str, outcome: BindOutcome, message: str, now: float) -> None:
        """Take over how a rehearsal ended. What is neither written nor refused tells nothing: the binds will."""
        found = self._workloads.of_pod(uid)
        if found is None or uid not in self._sent:
            return
        refused = message if outcome is BindOutcome.REJECTED else ""
        if refused:
            self._hold_back(*found, refused, now)
        self.held_back.answered(uid, refused)

    def check(self, now: float) -> tuple[list[Instruction], list[tuple[str, str]]]:
        """Return what can be done of what was decided, and the pods that will not be bound: uid and why."""
        self.held_back.forget_old(now)
        good, undone = self.held_back.take_ended()
        failed = [(uid, "") for uid in undone]
        out: list[Instruction] = []
        storage = self._world.around.storage
        for seats, binds in good:
            choices = [choice for seat in seats for choice in seat.volumes]
            for seat in seats:
                storage.release(seat.uid)
            if any(one.claim not in storage.claims for one in choices) or any(
                one.volume and one.volume not in storage.volumes for one in choices
            ):
                failed += [(seat.uid, "binding volumes: a claim or volume was deleted") for seat in seats]
            else:
                out += self.volumes.hold(seats, binds, now)
        ready, lost = self.volumes.check(now)
        return [*out, *ready], [*failed, *lost]

    def awaits(self, uid: str) -> bool:
        """Return whether a bind was asked for whose end is not known."""
        return uid in self._sent

    def may_bind(self, uid: str) -> str:
        """Return why a decided bind must not be written after all, or an empty string."""
        found = self._workloads.of_pod(uid)
        if found is None or uid not in self._sent:
            return "the pod is gone, or bound already"
        if found[1].withdrawn:
            return found[1].withdrawn
        if self.half.is_withdrawn(uid):
            return "its gang is rolled back"
        node = found[1].node
        row = self._world.nodes.row_of.get(node)
        if row is None:
            return f"node {node} was deleted"
        closed = closed_to(self._world.nodes, found[1].cls, row)
        # Half a gang would be worse; and what may be written already is not given to another pod.
        if closed and uid not in self._unsettled and not found[0].bound:
            return f"node {node} {closed}"
        over = self._world.nodes.overdrawn(row, found[1].cls.amounts)
        if over and self._world.overdrawn(row, found[1].cls.amounts):
            return f"another scheduler took {', '.join(over)} of node {node} at the same moment"
        if over and not found[0].bound:  # half a gang would be worse
            return f"another scheduler is filling node {node} at the same moment"
        if self.held_back:
            gets_on = found[0].bound > 0
            if stopped := self.held_back.stops(found[1], gets_on=gets_on):
                return stopped
        around, member = self._world.around, found[1]
        if member.profile is not None and (around.residents.repelling or member.cls.constraints is not None):
            who = crowded_out(around, member.cls, member.profile, row)
            if who:
                return f"{who} came to node {node}, or near it, at the same moment"
        return ""

    def bind_finished(self, uid: str, outcome: BindOutcome, message: str, now: float) -> list[Instruction]:
        """Take over how a bind ended."""
        sent = self._sent.get(uid)
        found = self._workloads.of_pod(uid)
        if sent is None or found is None:
            self.forget(uid)
            return []
        workload, member = found
        withdrawn, unsettled = self.half.is_withdrawn(uid), uid in self._unsettled
        if withdrawn and (outcome is BindOutcome.UNKNOWN or (outcome is BindOutcome.WITHDRAWN and unsettled)):
            return [self._withdraw(uid)]
        if outcome is BindOutcome.UNKNOWN:
            self._unsettled.put(uid, member.namespace, now)
            return []
        late = self.half.bound_too_late(workload, member) if outcome is BindOutcome.BOUND else []
        if outcome is BindOutcome.BOUND:
            self.held_back.bound(uid)
        elif outcome is BindOutcome.REJECTED:
            self._hold_back(workload, member, message, now)
        if unsettled and outcome is not BindOutcome.WITHDRAWN:
            self._unsettled.answered(uid, now)
        self.forget(uid)
        if outcome is BindOutcome.BOUND:
            workload.set_stage(member, Stage.BOUND)
            self.half.gets_on(workload, now)
            self._hasten(workload, now)
            marks = self.note_complete(workload, member)
            if not workload.complete and workload.bound == len(workload.members):
                self.half.lacks_pods(workload, now)  # one was deleted while binds were on their way
            text = f"Successfully assigned {member.key} to {member.node}{sent.why}"
            return [*marks, EmitEvent(reference(member), False, Reason.SCHEDULED, text), *late]
        if withdrawn and outcome is BindOutcome.WITHDRAWN:
            self._take_back(workload, member)  # why was told with the rollback
            workload.failing = True
            return []
        return self._failed(workload, member, outcome, message, now)

    def recalled(self, uid: str, *, waited: bool) -> bool:
        """Return whether a bind has ended as nothing was sent: it ``waited`` for its turn, or was not handed out."""
        return uid in self._sent and self.half.is_withdrawn(uid) and (waited or not self._is_handed_out(uid))

    def settle(self, workload: Workload, member: Member, outcome: BindOutcome, now: float) -> None:
        """Bring stage and ledger in line with the end of a bind, and do nothing else: taking it over raised."""
        if outcome is BindOutcome.BOUND:
            self.forget(member.uid)
            workload.set_stage(member, Stage.BOUND)
        elif outcome is BindOutcome.UNKNOWN:
            self._unsettled.put(member.uid, member.namespace, now)
        else:
            self._take_back(workload, member)
            workload.failing = True
            self.hindered(workload, now)
            if outcome is BindOutcome.GONE:
                self._workloads.leave(member.uid)

    def hangs(self, uid: str) -> None:
        """Note that the API server answers, but not to this bind."""
        found = self._workloads.of_pod(uid)
        if found is not None and (sent := self._sent.get(uid)) is not None:
            self._unsettled.hangs(uid)
            self.half.hangs(*found, sent.bind.decided)

    def forget(self, uid: str) -> None:
        """Drop a bind that has ended, or whose pod is gone; its end does not matter any more."""
        self._sent.pop(uid, None)
        self._unsettled.drop(uid)
        self.half.ended(uid)
        self.held_back.release(uid)
        self.volumes.release(uid)

    def note_complete(self, workload: Workload, member: Member) -> list[Instruction]:
        """Note a gang of which enough members run: from now on it is never rolled back. Return what is to be marked.

        To be called after each change of a bound member. Most take the same time however many members there are.
        """
        if member.stage is Stage.BOUND and not member.evicted:
            self.half.bears(workload, member)
            workload.note_ran(member)
        if workload.complete:
            return self.half.marks(workload)
        return self.note_size(workload)

    def note_size(self, workload: Workload) -> list[Instruction]:
        """Do the same if the size of a gang may have changed: it is complete once that many members run."""
        if workload.complete:
            return []
        # Of one that was found bound nothing may have told the size yet.
        size = size_of(workload)
        if not (size and max(workload.bound, len(workload.ran)) >= size) and not workload.marked_members:
            return []
        bound = [m for m in workload.members.values() if m.stage is Stage.BOUND and not m.evicted]
        # Those that were found may have run together with one that is being deleted by now, and was not replaced.
        found = {m.rank for m in bound if not m.decided and 0 <= m.rank < size} if workload.bound_earlier else ()
        whole = bool(size) and max(sum(not m.leaving for m in bound), len(found), len(workload.ran)) >= size
        if not whole and not any(m.marked for m in bound):
            workload.marked_members = ()
            return []
        workload.complete = True
        workload.ran.clear()
        workload.attempts = 0
        self.half.complete(workload)
        return [*(mark_placed(workload) if whole else []), *self.half.marks(workload, spread=True)]

    def hindered(self, workload: Workload, now: float) -> None:
        """Note that a member has no room, or was not bound: a gang that stays half bound is rolled back before long."""
        self.half.hindered(workload, now)

    def due(self, now: float) -> list[Instruction]:
        """Return what is due by now: binds to write again, gangs to roll back."""
        for workload in self.half.take_due(now, self._idle_since):
            self._roll_back(workload, now)
        again = (
            self._withdraw(uid) if self.half.is_withdrawn(uid) else self._sent[uid].bind
            for uid in self._unsettled.take_due(now)
        )
        return [*again, *self.half.part(now)]

    def next_due(self) -> float | None:
        """Return when `due` must be asked next."""
        times = [due] if (due := self.half.next_due(self._idle_since)) is not None else []
        if (volumes := self.volumes.next_due()) is not None:
            times.append(volumes)
        if (again := self._unsettled.next_due()) is not None:
            times.append(again)
        return min(times, default=None)

    def check_overdrawn(self, pod: Pod) -> list[Instruction]:
        """Return what to tell when a pod that others bound took what a node no longer had."""
        row = self._world.nodes.row_of.get(pod.spec.node_name)
        over = self._world.overdrawn(row) if row is not None else []
        if not over:
            return []
        shortage = f"node {pod.spec.node_name} has less {', '.join(over)} than its pods ask for since"
        # The tenant of the pod chose the scheduler name. Other tenants do not read it, and get the same text each time.
        text = f"{shortage} {pod.key} (scheduler {quoted(pod.spec.scheduler_name)}) was bound to it"
        text_for_others = f"{shortage} a pod of another namespace was bound to it"
        out: list[Instruction] = [LogWarning(text)]
        for uid in sorted(self._world.ledger.on_node(pod.spec.node_name)):
            found = self._workloads.of_pod(uid)
            if found is not None and found[1].stage is not Stage.PENDING:
                own = self._world.reader(found[1].namespace) in ("", pod.metadata.namespace)
                message = text if own else text_for_others
                out.append(EmitEvent(reference(found[1]), True, Reason.OVERSUBSCRIBED, message))
        return out

    # ------------------------------------------------------------ inside

    def _is_handed_out(self, uid: str) -> bool:
        """Return whether a bind was handed out to be written: others wait for volumes, or are being tried."""
        return not (self.held_back.is_tried(uid) or self.volumes.holds_back(uid))

    def _idle_since(self, uid: str) -> float:
        return inf if self._is_handed_out(uid) else self._sent[uid].bind.decided

    def _withdraw(self, uid: str) -> Withdraw:
        self._unsettled.drop(uid)
        return Withdraw(self._sent[uid].bind)

    def _hasten(self, workload: Workload, now: float) -> None:
        """Write the other members again at once whose binds are not settled: a gang must not stay half."""
        if self._unsettled and workload.gang and not workload.complete:
            for member in workload.at(Stage.ASSUMED):
                self._unsettled.hasten(member.uid, now)

    def _failed(
        self, workload: Workload, member: Member, outcome: BindOutcome, message: str, now: float
    ) -> list[Instruction]:
        leaf = self._world.leaf_of(member.node)
        node = member.node
        self.half.keep_seat(workload, member, node)
        self._world.take_back(member.uid)
        workload.make_pending(member)
        if outcome is BindOutcome.REJECTED and leaf is not None:
            self._world.history.note(leaf, now, good=False)
        # All binds of a decision fail for one reason as a rule: they count as one attempt.
        workload.attempts += not workload.failing
        workload.failing = True
        self.hindered(workload, now)
        if outcome is BindOutcome.GONE:
            self._workloads.leave(member.uid)
            return []
        if message in ("", STOPPED, member.withdrawn):
            return []  # what holds it back is told with its next attempt
        return [EmitEvent(reference(member), True, Reason.BIND_FAILED, f"Binding to {node} failed: {message}")]

    def _roll_back(self, workload: Workload, now: float) -> None:
        for uid in filter(self._is_handed_out, self.half.roll_back(workload, now)):
            # The next try is made with `dryRun`, so that none of the gang is bound before this one would be.
            self._hold_back(workload, workload.members[uid], "its bind was not answered", now)
            self._unsettled.hasten(uid, now)

    def _hold_back(self, workload: Workload, member: Member, why: str, now: float) -> None:
        self.held_back.refused(kind_of(member), workload.id, why, now)
        if self.held_back.many:
            self.held_back.keep({kind_of(one) for each in self._workloads for one in each.members.values()})

    def backoff(self, workload: Workload, message: str = "") -> float:
        """Return the seconds to wait before a workload whose binds failed, as a message says, is tried again."""
        if message == STOPPED:
            return 0.0  # it is held back with those like it
        first, most = self._config.pod_initial_backoff_seconds, self._config.pod_max_backoff_seconds
        if workload.half_bound_since is not None:
            most = min(most, ROLL_BACK_AFTER_SECONDS / 3)  # it must be tried again before its time is up
        return doubled(first, workload.attempts, most)


def mark_placed(workload: Workload) -> list[Instruction]:
    """Return what is to be marked of a workload of which as many run as must at once."""
    text = (
        f"{workload.bound} pods are bound, {workload.size} at once was the minimum"
        if workload.gang
        else "its pods are bound"
    )
    return mark_group(workload, GroupReason.SCHEDULED, text)


def mark_group(workload: Workload, reason: GroupReason, message: str) -> list[Instruction]:
    """Return the condition of the workload's PodGroup, if it has one of Kubernetes."""
    group = workload.group
    if group is None or group.key.api is not GroupApi.NATIVE:
        return []
    key, placed = group.key, reason is GroupReason.SCHEDULED
    if group.scheduled:
        return []  # that later pods find no room does not take back that it was placed
    return [MarkGroup(key.namespace, key.name, group.uid, group.version, placed, reason, message)]


def _shared_annotations(workload: Workload, decision: Decision) -> dict[str, str]:
    """Return what is written on every pod of a decision."""
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


def _annotations(workload: Workload, member: Member, seat: Seat, wall: float) -> dict[str, str]:
    """Return what is written on one of them besides."""
    annotations = {}
    kind = workload.request.expected_duration_kind
    expected = inf if kind in ("", "Pod") else workload.request.expected_duration
    expected = min(expected, max(1.0, member.ends_by - wall))
    if expected < inf and kind != "Pod":
        # Nobody looks at the owners of bound pods.
        annotations[EXPECTED_DURATION] = written_duration(expected)
    if member.charged_gpus:
        annotations[CHARGED_GPUS] = str(member.charged_gpus)
    if member.cls.share:
        annotations[CHARGED_FRACTION] = write_fraction(member.cls.share)
    if seat.devices:
        annotations[GPU_INDEX] = write_indexes(seat.devices)
    if member.bandwidth:
        annotations[RESERVED_BANDWIDTH] = str(member.bandwidth)
    return annotations


def _where(workload: Workload, seat: Seat, decision: Decision) -> str:
    place = f" ({decision.sentence}"
    return f"{place}; rank {seat.rank} of gang {workload.name})" if workload.gang else f"{place})"
