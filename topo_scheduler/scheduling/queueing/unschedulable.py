"""Workloads without a place after an attempt, or that the engine can't try: their place in the queue, and their events.

Each pod gets one event for each changed reason. The reason also goes to the conditions of the pod and of its PodGroup.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.reasons import GroupReason, Reason
from topo_scheduler.scheduling.barrier import Activity, explained, pause_of, reason_of
from topo_scheduler.scheduling.binding.outcomes import Outcomes, mark_group
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import EmitEvent, Instruction, MarkUnschedulable, reference
from topo_scheduler.scheduling.intake.pending import EmittedEvents
from topo_scheduler.scheduling.queueing.queue import Queue
from topo_scheduler.scheduling.queueing.queue_keys import needed_now, order_of
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.workloads import Member, MemberShortage, RequeueConditions, Stage, Workload

REPORT_DELAY_SECONDS: Final = 2.0
"""Seconds from the last change of a gang that lacks pods until its event: its controller may still create pods."""
MAX_REPORT_DELAY_SECONDS: Final = 30.0
"""Seconds at most for which new pods delay that event: 600 pods at kube-controller-manager's 20 pods a second."""
MAX_REPORT_PAUSE_SECONDS: Final = 3600.0
"""Seconds without new pods, at most, until members that already have an event get one with the new number."""


def distinct(classes: Iterable[PodClass]) -> tuple[PodClass, ...]:
    """Return each class once, in order."""
    # Most pods share one class object, and comparing classes is expensive.
    return tuple(dict.fromkeys({id(cls): cls for cls in classes}.values()))


class UnschedulableWorkloads:
    """Each method sets one workload aside for one cause and returns the resulting instructions."""

    def __init__(self, queue: Queue, outcomes: Outcomes, published: EmittedEvents, config: SchedulerConfig) -> None:
        self.queue = queue
        self.outcomes = outcomes
        self._published = published
        self._config = config

    def mark(self, workload: Workload, now: float, until: float | None, *, room_helps: bool) -> None:
        """Set a workload aside that has no place now. The engine tries it again at ``until`` at the latest."""
        self.queue.mark_unschedulable(order_of(workload), until)
        workload.requeue_conditions = RequeueConditions(distinct(member.cls for member in workload.at(Stage.PENDING)))
        workload.room_helps = room_helps
        if workload.shortage is not None:
            workload.shortage.text = ""  # it lacks no pods now; a later shortage must last for a while again
        self.outcomes.hindered(workload, now)

    def tell(
        self, workload: Workload, pending: Sequence[Member], text: str, *, repeated: bool = False
    ) -> list[Instruction]:
        """Report why an unschedulable workload has no place. ``repeated``: also if the published reason is the same."""
        return self._report(workload, pending, text, group=GroupReason.UNSCHEDULABLE, repeated=repeated)

    def _report(
        self,
        workload: Workload,
        pending: Sequence[Member],
        text: str,
        *,
        reason: Reason = Reason.FAILED_SCHEDULING,
        condition: bool = True,
        group: GroupReason | None = GroupReason.ERROR,
        repeated: bool = False,
    ) -> list[Instruction]:
        """Publish a text in events and conditions of pods whose published text differs, and for their PodGroup."""
        out: list[Instruction] = []
        changed = [member for member in pending if self._published.changed(member.uid, text) or repeated]
        for member in changed:
            out.append(EmitEvent(reference(member), True, reason, text))
            if condition:
                out.append(MarkUnschedulable(reference(member), text, member.enqueued))
        if group is not None and changed and needed_now(workload):
            out += mark_group(workload, group, text)
        return out

    def back_off(
        self, workload: Workload, pending: Sequence[Member], until: float, why: str, now: float
    ) -> list[Instruction]:
        """Set a workload aside of which the API server would refuse a pod. No other workload waits for it."""
        self.queue.back_off(order_of(workload), until)
        self.outcomes.hindered(workload, now)
        text = f"In backoff: the API server rejected the Binding of a pod like this one: {why}. The scheduler retries."
        return self._report(workload, pending, text, condition=False)

    def plugin_failed(
        self, workload: Workload, pending: Sequence[Member], error: PluginError, now: float
    ) -> list[Instruction]:
        """Set a workload aside whose plugin failed, for a pause that grows. No other workload waits for it."""
        workload.plugin_failures += 1
        pause = self._config.pod_initial_backoff_seconds * 2 ** min(20, workload.plugin_failures - 1)
        self.queue.back_off(order_of(workload), now + min(self._config.pod_max_backoff_seconds, pause))
        self.outcomes.hindered(workload, now)
        text = f"{str(error)[0].upper()}{str(error)[1:]}. The scheduler retries."
        return self._report(workload, pending, text, condition=False, group=None)

    def failed(self, workload: Workload, error: Exception, phase: Activity, now: float) -> list[Instruction]:
        """Set a workload aside whose attempt raised or exceeded its budget, for a pause that doubles."""
        workload.failures += 1
        pause = pause_of(workload.failures)
        self.queue.back_off(order_of(workload), now + pause)
        self.outcomes.hindered(workload, now)
        text = explained(error, phase, pause)
        return self._report(workload, workload.at(Stage.PENDING), text, reason=reason_of(error))

    def refuse(self, workload: Workload, pending: Sequence[Member], now: float) -> list[Instruction]:
        """Set a workload aside that is invalid, so that it can't be placed on any state of the cluster."""
        self.queue.mark_unschedulable(order_of(workload))
        workload.requeue_conditions = RequeueConditions(refused=True)
        self.outcomes.hindered(workload, now)
        problem = workload.problem  # of the whole workload; computed once, not for each member
        out = mark_group(workload, GroupReason.ERROR, f"Refused: {problem}")
        for member in pending:
            has_own_problem = bool(member.problem)
            text = f"Refused: {member.problem}" if has_own_problem else f"Refused with its gang: {problem}"
            # Each excess pod of a gang changes a number in the text: the other members have an event already.
            if self._published.changed(member.uid, text, exact=has_own_problem):
                out.append(EmitEvent(reference(member), True, Reason.FAILED_SCHEDULING, text))
        return out

    def incomplete(self, workload: Workload, pending: Sequence[Member], lack: int, now: float) -> list[Instruction]:
        """Set a gang aside that still lacks pods.

        Members without an event get one now. The others get an event with the current number once that number has
        lasted for a while. That time doubles with the average number of events per member. So with pods that appear one
        by one each member gets few events, however slowly they appear, and all members get the final number.
        """
        text = f"Gang {workload.name} is waiting for {lack} of {workload.size} pods"
        if (limit := workload.creation_limit).text and len(pending) <= limit.pods:
            text = f"{text}: {limit.text}"
        if workload.awaits:
            text = f"Gang {workload.name} is waiting: {workload.awaits}"
        if (shortage := workload.shortage) is None:
            shortage = workload.shortage = MemberShortage()
        workload.lacking_since = None
        if shortage.text != text:
            shortage.text, shortage.due = text, now + _report_pause(shortage)
        self.outcomes.hindered(workload, now)
        due = shortage.due <= now
        self.queue.wait(order_of(workload), None if due else shortage.due)
        if due:
            shortage.text = ""
        informed = shortage.notified.intersection(member.uid for member in pending)
        changed = [
            member
            for member in pending
            if (due or member.uid not in informed) and self._published.changed(member.uid, text, exact=True)
        ]
        first_time = {member.uid for member in changed} - informed
        shortage.notified = informed | first_time
        shortage.members += len(first_time)
        shortage.times += len(changed)
        return [EmitEvent(reference(member), True, Reason.FAILED_SCHEDULING, text) for member in changed]


def _report_pause(shortage: MemberShortage) -> float:
    """Return for how many more seconds the number of missing pods must stay the same until it is published again."""
    times = max(1, shortage.times // max(1, shortage.members))
    return min(MAX_REPORT_PAUSE_SECONDS, REPORT_DELAY_SECONDS * (2.0 ** min(times - 1, 32) - 1))
