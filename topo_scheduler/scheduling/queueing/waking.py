"""Which workloads are to be tried: those that changed, and those that something helped which happened since."""

from collections import deque
from collections.abc import Iterable
from typing import Final

import numpy as np

from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import WAKE_OPERATIONS
from topo_scheduler.scheduling.binding.contested import Contested
from topo_scheduler.scheduling.binding.half_gangs import HalfGangs
from topo_scheduler.scheduling.instructions import Instruction
from topo_scheduler.scheduling.intake.arrivals import Arrivals
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.queueing.queue import Place, Queue
from topo_scheduler.scheduling.queueing.rechecks import Rechecks
from topo_scheduler.scheduling.queueing.setting_aside import WAIT_BEFORE_TELLING, WAIT_WHILE_PODS_COME
from topo_scheduler.scheduling.queueing.standing import lacking, order_of
from topo_scheduler.scheduling.rules.filters import eligible
from topo_scheduler.scheduling.rules.volumes import concerned
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.operation_budget import OperationBudget, limited
from topo_scheduler.state.workloads import Stage, Workload, Workloads

FRESH_CLASSES: Final = 32
"""Classes without a view that are looked at in one step; a view of each is made, of all nodes."""
LATE_CLASSES: Final = 32
"""Workloads looked at together of those that were left for later, by changed nodes only."""
LATE_SECONDS: Final = 0.05
"""Seconds between two such looks: tenants with thousands of different classes keep no core busy."""


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
        half: HalfGangs,
    ) -> None:
        self._queue = queue
        self._world = world
        self._workloads = workloads
        self._arrivals = arrivals
        self._attempts = attempts
        self._preempting = preempting
        self._contested = contested
        self._rechecks = rechecks
        self._half = half
        self._guard = attempts.planner.extensions.guard
        self._late: dict[str, deque[str]] = {}
        """Workloads left for later, by namespace."""
        self._is_late: set[str] = set()
        self._late_rows: set[int] = set()
        """Rows that changed since the first of them was left."""
        self._late_at = 0.0

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
            self._half.lacks_pods(workload, now)
        elif self._queue.place(workload.id) is not Place.BACKOFF:
            if lacking(workload, pending) and not workload.problem:
                self._half.hindered(workload, now)
                if workload.lacking_since is None:
                    workload.lacking_since = now
                # A gang whose pods are just being made is not told of each that lacks, and then of what it waits for.
                soon = min(now + WAIT_BEFORE_TELLING, workload.lacking_since + WAIT_WHILE_PODS_COME)
                self._queue.wait(order_of(workload), soon)
            else:
                workload.lacking_since = None
                self._queue.activate(order_of(workload))

    def wake(self, now: float) -> None:
        """Make active what could be helped by what happened since the last step."""
        rows, everything = self._world.take_improved()
        arrived, repelling = self._world.take_neighbours()
        claims, stored = self._world.around.storage.take_changes()
        sharing = self._attempts.sharing
        fallen, stirred = sharing.take_fallen() if sharing is not None else (), self._preempting.stirred(now)
        freed = self._world.links.take_freed()
        if self._is_late:
            self._late_rows.update(rows)
            self._look_late(now)
        if not (rows or everything or arrived or claims or stored or fallen or stirred or freed):
            return
        index = np.array(rows, np.int64)
        if len(index):
            self._guard.begin()
        helped: dict[PodClass, bool] = {}
        known: dict[int, bool] = {}
        views, fresh = self._attempts.planner.views, FRESH_CLASSES
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
                        fresh -= cls not in views
                        if fresh < 0 and not rules:
                            self._leave(workload, rows)
                            break
                        helped[cls] = self._helps(cls, index)
                    helps = known[id(cls)] = helped[cls]
                if (helps and room) or rules:
                    self._queue.wake(id_)
                    break
            else:
                if lowest is not None and lowest < workload.priority:
                    self._preempting.nudge(workload, now)

    def next_due(self) -> float | None:
        """Return when the workloads that were left for later are looked at next."""
        return self._late_at if self._is_late else None

    def _leave(self, workload: Workload, rows: Iterable[int]) -> None:
        self._late_rows.update(rows)
        if workload.id not in self._is_late:
            self._is_late.add(workload.id)
            self._late.setdefault(workload.namespace, deque()).append(workload.id)

    def _look_late(self, now: float) -> None:
        """Look at some of the workloads that were left for later; their namespaces take turns."""
        if now < self._late_at:
            return
        self._late_at = now + LATE_SECONDS
        rows = np.array(sorted(self._late_rows), np.int64)
        for _ in range(min(LATE_CLASSES, len(self._is_late))):
            namespace = next(iter(self._late))
            line = self._late.pop(namespace)
            id_ = line.popleft()
            if line:
                self._late[namespace] = line
            self._is_late.discard(id_)
            workload = self._workloads.get(id_)
            if workload is None or self._queue.place(id_) is not Place.PARKED:
                continue
            if any(self._may_help(cls, rows) for cls in workload.set_aside.classes):
                self._queue.wake(id_)
        if not self._is_late:
            self._late_rows.clear()

    def _may_help(self, cls: PodClass, rows: Int64) -> bool:
        """Return whether any of some rows is eligible and has enough free; other pods and volumes are not looked at."""
        nodes = self._world.nodes
        enough = nodes.exists[rows]
        for column, amount in cls.amounts:
            enough &= nodes.allocatable[rows, column] - nodes.requested[rows, column] >= amount
        rows = rows[enough]
        try:
            return bool(eligible(nodes, cls, rows, self._world.around.extensions.filters).any())
        except Exception:
            return True  # the attempt fails the same way, and reports it

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
