"""Which workloads are to be tried: those that changed, and those that something helped which happened since."""

import numpy as np

from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import WAKE_OPERATIONS
from topo_scheduler.scheduling.binding.contested import Contested
from topo_scheduler.scheduling.instructions import Instruction
from topo_scheduler.scheduling.intake.arrivals import Arrivals
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.queueing.queue import Place, Queue
from topo_scheduler.scheduling.queueing.rechecks import Rechecks
from topo_scheduler.scheduling.queueing.setting_aside import WAIT_BEFORE_TELLING
from topo_scheduler.scheduling.queueing.standing import lacking, order_of
from topo_scheduler.scheduling.rules.volumes import concerned
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.operation_budget import OperationBudget, limited
from topo_scheduler.state.workloads import Stage, Workload, Workloads


class Waking:
    """Moves workloads in the queue by what happened. Tries none."""

    def __init__(
        self,
        queue: Queue,
        world: World,
        workloads: Workloads,
        arrivals: Arrivals,
        attempts: Attempts,
        preempting: Preempting,
        contested: Contested,
        rechecks: Rechecks,
    ) -> None:
        self._queue = queue
        self._world = world
        self._workloads = workloads
        self._arrivals = arrivals
        self._attempts = attempts
        self._preempting = preempting
        self._contested = contested
        self._rechecks = rechecks
        self._guard = attempts.planner.extensions.guard

    def settle(self, now: float) -> None:
        """Give each workload that changed its place in the queue."""
        for id_ in self._arrivals.take_touched():
            workload = self._workloads.get(id_)
            self._rechecks.forget(id_)
            if workload is None:
                self._queue.remove(id_)
                self._preempting.forget(id_)
                self._contested.forget(id_)
            else:
                self._requeue(workload, now)

    def _requeue(self, workload: Workload, now: float) -> None:
        pending = workload.at(Stage.PENDING)
        if not pending:
            self._queue.remove(workload.id)
        elif self._queue.place(workload.id) is not Place.BACKOFF:
            if lacking(workload, pending) and not workload.problem:
                until, soon = self._queue.until(workload.id), now + WAIT_BEFORE_TELLING
                if self._queue.place(workload.id) is Place.PARKED or until is None or until > soon:
                    self._queue.wait(order_of(workload), soon)
            else:
                self._queue.activate(order_of(workload))

    def wake(self, now: float) -> None:
        """Make active what could be helped by what happened since the last step."""
        rows, everything = self._world.take_improved()
        arrived, repelling = self._world.take_neighbours()
        claims, stored = self._world.around.storage.take_changes()
        sharing = self._attempts.sharing
        fallen, stirred = sharing.take_fallen() if sharing is not None else (), self._preempting.stirred()
        freed = self._world.links.take_freed()
        if not (rows or everything or arrived or claims or stored or fallen or stirred or freed):
            return
        index = np.array(rows, np.int64)
        if len(index):
            self._guard.begin()
        helped: dict[PodClass, bool] = {}
        known: dict[int, bool] = {}
        lowest = self._preempting.lowest
        for id_ in self._queue.parked():
            workload = self._workloads.get(id_)
            if workload is None or workload.set_aside.refused:
                continue
            waiting = workload.set_aside
            beside = arrived and waiting.looks_around
            carried = freed and workload.gang and any(cls.bandwidth for cls in waiting.classes)
            if repelling or beside or carried or workload.namespace in fallen:
                self._queue.wake(id_)
                continue
            if (claims or stored) and any(concerned(cls, claims, stored) for cls in waiting.classes):
                self._queue.wake(id_)
                continue
            room, rules = workload.room_helps or not workload.gang, everything and workload.gang
            for cls in waiting.classes if rules or (len(index) and room) else ():
                helps = known.get(id(cls))  # classes take long to compare
                if helps is None:
                    if cls not in helped:
                        helped[cls] = self._helps(cls, index)
                    helps = known[id(cls)] = helped[cls]
                if (helps and room) or rules:
                    self._queue.wake(id_)
                    break
            else:
                if lowest is not None and lowest < workload.priority:
                    self._preempting.nudge(workload, now)

    def look_again(self, now: float) -> list[Instruction]:
        """Try again those for whom others may give way by now, and those that waited long enough for others."""
        out, again = self._preempting.due(now)
        for id_ in [*again, *self._contested.take_impatient(now)]:
            workload = self._workloads.get(id_)
            if workload is not None and self._queue.place(id_) is Place.PARKED:
                self._queue.activate(order_of(workload))
        return out

    def _helps(self, cls: PodClass, improved: Int64) -> bool:
        if not len(improved):
            return False
        try:
            with limited(OperationBudget(WAKE_OPERATIONS)):
                view = self._attempts.planner.views.get(cls)
        except Exception:
            return True  # the attempt fails the same way, and reports it
        return bool((view.fit[improved] > 0).any())
