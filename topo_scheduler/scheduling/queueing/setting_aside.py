"""Workloads that were tried, or can't be, and have no place: where they wait in the queue, and what is told of it.

One event per pod and changed reason; the reason also goes to the pod's condition, and to that of its PodGroup.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.reasons import GroupReason, Reason
from topo_scheduler.scheduling.barrier import Activity, explained, pause_of, reason_of
from topo_scheduler.scheduling.binding.outcomes import Outcomes, mark_group
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import EmitEvent, Instruction, MarkUnschedulable, reference
from topo_scheduler.scheduling.intake.pending import Told
from topo_scheduler.scheduling.queueing.queue import Queue
from topo_scheduler.scheduling.queueing.standing import needed_now, order_of
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.workloads import Member, MemberShortage, SetAside, Stage, Workload

WAIT_BEFORE_TELLING: Final = 2.0
"""Seconds after the last change of a gang that lacks pods until that is told: its controller may be making them."""
WAIT_WHILE_PODS_COME: Final = 30.0
"""Seconds at most for which pods that go on coming put that off: 600 pods at kube-controller-manager's 20 a second."""
LONGEST_WAIT: Final = 3600.0
"""Seconds at most for which other pods must have stopped coming until those that were told are told how many lack."""


def distinct(classes: Iterable[PodClass]) -> tuple[PodClass, ...]:
    """Return each class once, in order."""
    # Most of them are one object: comparing classes takes longer than all the rest.
    return tuple(dict.fromkeys({id(cls): cls for cls in classes}.values()))


class SettingAside:
    """Each method sets one workload aside for one cause and returns what is to be done."""

    def __init__(self, queue: Queue, outcomes: Outcomes, told: Told, config: SchedulerConfig) -> None:
        self.queue = queue
        self.outcomes = outcomes
        self._told = told
        self._config = config

    def park(self, workload: Workload, now: float, until: float | None, *, room_helps: bool) -> None:
        """Set a workload aside that has no place now; it is tried again at a time in seconds, if not before."""
        self.queue.park(order_of(workload), until)
        workload.set_aside = SetAside(distinct(member.cls for member in workload.at(Stage.PENDING)))
        workload.room_helps = room_helps
        if workload.shortage is not None:
            workload.shortage.text = ""  # it lacks none; what lacks after this is news, and must hold for a while again
        self.outcomes.hindered(workload, now)

    def tell(
        self, workload: Workload, pending: Sequence[Member], text: str, *, again: bool = False
    ) -> list[Instruction]:
        """Tell why a workload that was parked has no place; ``again``: also where it was told just so."""
        out: list[Instruction] = []
        news = [member for member in pending if self._told.changed(member.uid, text) or again]
        for member in news:
            out.append(EmitEvent(reference(member), True, Reason.FAILED_SCHEDULING, text))
            out.append(MarkUnschedulable(reference(member), text, member.enqueued))
        if news and needed_now(workload):
            out += mark_group(workload, GroupReason.UNSCHEDULABLE, text)
        return out

    def hold_back(
        self, workload: Workload, pending: Sequence[Member], until: float, why: str, now: float
    ) -> list[Instruction]:
        """Set a workload aside of which a pod would be refused: nobody else waits for it."""
        self.queue.back_off(order_of(workload), until)
        self.outcomes.hindered(workload, now)
        text = f"Held back: the API server refused to bind a pod like this one: {why}. It is tried again."
        news = [member for member in pending if self._told.changed(member.uid, text)]
        out: list[Instruction] = [EmitEvent(reference(member), True, Reason.FAILED_SCHEDULING, text) for member in news]
        if news and needed_now(workload):
            out += mark_group(workload, GroupReason.ERROR, text)
        return out

    def plugin_failed(
        self, workload: Workload, pending: Sequence[Member], error: PluginError, now: float
    ) -> list[Instruction]:
        """Try the workload again after a pause that grows: nobody else waits for it."""
        workload.plugin_failures += 1
        pause = self._config.pod_initial_backoff_seconds * 2 ** min(20, workload.plugin_failures - 1)
        self.queue.back_off(order_of(workload), now + min(self._config.pod_max_backoff_seconds, pause))
        self.outcomes.hindered(workload, now)
        text = f"{str(error)[0].upper()}{str(error)[1:]}. It is tried again."
        return [
            EmitEvent(reference(member), True, Reason.FAILED_SCHEDULING, text)
            for member in pending
            if self._told.changed(member.uid, text)
        ]

    def failed(self, workload: Workload, error: Exception, phase: Activity, now: float) -> list[Instruction]:
        """Try a workload again after a pause that doubles: its attempt raised, or exceeded its budget."""
        workload.failures += 1
        pause = pause_of(workload.failures)
        self.queue.back_off(order_of(workload), now + pause)
        self.outcomes.hindered(workload, now)
        pending = workload.at(Stage.PENDING)
        text = explained(error, phase, pause)
        news = [member for member in pending if self._told.changed(member.uid, text)]
        out: list[Instruction] = []
        for member in news:
            out.append(EmitEvent(reference(member), True, reason_of(error), text))
            out.append(MarkUnschedulable(reference(member), text, member.enqueued))
        if news and needed_now(workload):
            out += mark_group(workload, GroupReason.ERROR, text)
        return out

    def refuse(self, workload: Workload, pending: Sequence[Member], now: float) -> list[Instruction]:
        """Set a workload aside that can't be placed whatever is free."""
        self.queue.park(order_of(workload))
        workload.set_aside = SetAside(refused=True)
        self.outcomes.hindered(workload, now)
        problem = workload.problem  # of all members: not once for each of them
        out = mark_group(workload, GroupReason.ERROR, f"Refused: {problem}")
        for member in pending:
            own = bool(member.problem)
            text = f"Refused: {member.problem}" if own else f"Refused with its gang: {problem}"
            # Each pod that a gang has too many changes a number: all of the others were told already.
            if self._told.changed(member.uid, text, exact=own):
                out.append(EmitEvent(reference(member), True, Reason.FAILED_SCHEDULING, text))
        return out

    def incomplete(self, workload: Workload, pending: Sequence[Member], lack: int, now: float) -> list[Instruction]:
        """Set a gang aside of which pods must yet appear.

        Members that were told of none yet are told now. The others are told what holds by now when it has held for
        a while, which doubles with each time that a member was told on average: so of pods that come one by one each is
        told a few times, however slowly they come, and all are told what holds in the end.
        """
        text = f"Gang {workload.name} is waiting for {lack} of {workload.size} pods"
        if workload.too_large:
            text = f"{text}: {workload.too_large}"
        if workload.awaits:
            text = f"Gang {workload.name} is waiting: {workload.awaits}"
        if (shortage := workload.shortage) is None:
            shortage = workload.shortage = MemberShortage()
        workload.lacking_since = None
        if shortage.text != text:
            shortage.text, shortage.due = text, now + _patience(shortage)
        self.outcomes.hindered(workload, now)
        due = shortage.due <= now
        self.queue.wait(order_of(workload), None if due else shortage.due)
        if due:
            shortage.text = ""
        heard = shortage.heard.intersection(member.uid for member in pending)
        news = [
            member
            for member in pending
            if (due or member.uid not in heard) and self._told.changed(member.uid, text, exact=True)
        ]
        fresh = {member.uid for member in news} - heard
        shortage.heard = heard | fresh
        shortage.members += len(fresh)
        shortage.times += len(news)
        return [EmitEvent(reference(member), True, Reason.FAILED_SCHEDULING, text) for member in news]


def _patience(shortage: MemberShortage) -> float:
    """Return for how many seconds more the number of pods that lack must hold before it is told once more."""
    times = max(1, shortage.times // max(1, shortage.members))
    return min(LONGEST_WAIT, WAIT_BEFORE_TELLING * (2.0 ** min(times - 1, 32) - 1))
