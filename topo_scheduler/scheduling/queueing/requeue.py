"""Which workloads the engine must try: those that changed, and those that an event since then may help."""

from collections import deque
from collections.abc import Iterable, Set
from typing import Final

import numpy as np

from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import WAKE_OPERATIONS, Activity, failure_of, guard
from topo_scheduler.scheduling.binding.admission_backoff import AdmissionBackoff
from topo_scheduler.scheduling.binding.contention import SchedulerContention
from topo_scheduler.scheduling.binding.partially_bound_gangs import PartiallyBoundGangs
from topo_scheduler.scheduling.instructions import Instruction
from topo_scheduler.scheduling.intake.arrivals import Arrivals
from topo_scheduler.scheduling.moving.machine import Moving
from topo_scheduler.scheduling.placing.model.class_views import Views
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.queueing.failure_cache import FailureCache
from topo_scheduler.scheduling.queueing.queue import Place, Queue
from topo_scheduler.scheduling.queueing.queue_keys import lacking, order_of
from topo_scheduler.scheduling.queueing.storage_wakes import StorageWakes
from topo_scheduler.scheduling.queueing.unschedulable import MAX_REPORT_DELAY_SECONDS, REPORT_DELAY_SECONDS
from topo_scheduler.scheduling.reserving.machine import Reserving
from topo_scheduler.scheduling.rules.filters import eligible
from topo_scheduler.scheduling.rules.volumes import concerned
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.operation_budget import OperationBudget, limited
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.workloads import Stage, Workload, Workloads
from topo_scheduler.state.storage.storage_objects import ClaimKey

NEW_CLASSES_PER_STEP: Final = 32
"""Classes without a view that one step checks: it makes a view of all nodes for each."""
COMPARED_PER_STEP: Final = 1_000
"""Classes whose requests one step compares with the free resources of changed nodes, some 3 ms."""
VIEWS_PER_STEP: Final = 32
"""Classes with a view that one step checks by it, of those with enough free resources on a changed node."""
POSTPONED_PER_CHECK: Final = 32
"""Postponed workloads that one step checks together, by changed nodes only."""
RETRIES_PER_CHECK: Final = 8
"""Workloads at most that one such check has tried again although none may have room, as each costs milliseconds.

These are gangs whose size rules may differ, and workloads that no node could hold before even if it were empty.
"""
VIEWS_PER_CHECK: Final = 8
"""Views by which such a check looks at postponed workloads; beyond that, free resources and labels are enough."""
MANY_MEMBERS: Final = 1_000
"""Members from which on a gang that changes again and again gets its place in the queue only at intervals."""
PAUSE_SECONDS_PER_MEMBER: Final = 5e-5
"""Seconds of that interval for each member: 0.3 s for 6,000. A first change counts at once.

A change of one member costs work for all, a few microseconds each, of which no budget knows.
"""
POSTPONED_PAUSE_SECONDS: Final = 0.05
"""Seconds between two such checks: a tenant with thousands of different classes must not keep a core busy."""


class _Improvement:
    """The nodes that changed since the last step, and the classes that they may help. It checks a limited number."""

    def __init__(self, rows: Int64, nodes: NodeTable, views: Views) -> None:
        self._rows = rows
        self._views = views
        self._compared_left = COMPARED_PER_STEP
        self._views_left = VIEWS_PER_STEP
        self._new_left = NEW_CLASSES_PER_STEP
        self._known: dict[PodClass, bool] = {}
        self._known_by_id: dict[int, bool] = {}
        nodes.widen()
        rows = rows[nodes.exists[rows]]
        self._most_free: list[int] = (nodes.allocatable[rows] - nodes.requested[rows]).max(axis=0, initial=0).tolist()
        """The largest free amount of each resource on any of the nodes."""

    def helps(self, cls: PodClass) -> bool | None:
        """Return whether a class fits on any of the nodes; None if this step has checked too many classes."""
        known = self._known_by_id.get(id(cls))  # classes take long to compare
        if known is not None:
            return known
        if not self._compared_left:
            return None
        self._compared_left -= 1
        for column, amount in cls.amounts:
            if self._most_free[column] < amount:
                self._known_by_id[id(cls)] = False
                return False
        known = self._known.get(cls)
        if known is None:
            if cls in self._views:
                self._views_left -= 1
            else:
                self._new_left -= 1
            if self._views_left < 0 or self._new_left < 0:
                return None
            known = self._known[cls] = _fits(self._views, cls, self._rows)
        self._known_by_id[id(cls)] = known
        return known


def _fits(views: Views, cls: PodClass, rows: Int64, *, empty: bool = False) -> bool:
    """Return whether a class fits on any of the rows, now or if they were ``empty``."""
    if not len(rows):
        return False
    try:
        with limited(OperationBudget(WAKE_OPERATIONS)):
            view = views.get(cls)
    except Exception:
        return True  # the attempt fails the same way, and reports it
    return bool(((view.empty_fit if empty else view.fit)[rows] > 0).any())


class Requeuer:
    """Moves workloads in the queue in response to events. It tries none."""

    def __init__(
        self,
        queue: Queue,
        world: World,
        workloads: Workloads,
        arrivals: Arrivals,
        attempts: Attempts,
        preempting: Preempting,
        contention: SchedulerContention,
        failure_cache: FailureCache,
        partially_bound: PartiallyBoundGangs,
        admission_backoff: AdmissionBackoff,
        reserving: Reserving,
        moving: Moving,
    ) -> None:
        self._queue = queue
        self._world = world
        self._workloads = workloads
        self._arrivals = arrivals
        self._attempts = attempts
        self._preempting = preempting
        self._contention = contention
        self._failure_cache = failure_cache
        self._partially_bound = partially_bound
        self._admission_backoff = admission_backoff
        self._reserving = reserving
        self._moving = moving
        self._late: dict[str, deque[str]] = {}
        """Postponed workloads by namespace."""
        self._is_late: set[str] = set()
        self._late_rules: set[str] = set()
        """Those of them for which an empty node may hold another number of pods, as DaemonSet pods came or went.

        So the size rule of a gang may differ, and a pod may fit that no node could hold.
        """
        self._late_rows: set[int] = set()
        """Rows that changed since the first of them was postponed."""
        self._late_empty: set[int] = set()
        """Those of them that may hold pods now which they could not hold even if empty."""
        self._next_check = 0.0
        self._views_left = VIEWS_PER_CHECK
        self._storage = StorageWakes()
        self._pauses: dict[str, float] = {}
        """Large gangs that got their place a moment ago, and until when further changes wait, in seconds."""
        self._changed_again: dict[str, None] = {}
        """Those of them that have changed since."""

    def settle(self, now: float) -> list[tuple[str, Exception]]:
        """Move each workload that changed to its place in the queue; return by id for which of them that raised."""
        failed: list[tuple[str, Exception]] = []
        for id_ in dict.fromkeys((*self._take_rested(now), *self._arrivals.take_touched())):
            workload = self._workloads.get(id_)
            try:
                self._failure_cache.forget(id_)
                if workload is None:
                    self._pauses.pop(id_, None)
                    self._changed_again.pop(id_, None)
                    self._queue.remove(id_)
                    self._preempting.deleted(id_, now)
                    self._contention.forget(id_)
                    self._admission_backoff.forget(id_)
                    self._reserving.deleted(id_, now)
                    self._moving.forget(id_)
                elif id_ in self._pauses:
                    self._changed_again[id_] = None
                else:
                    if len(workload.members) >= MANY_MEMBERS:
                        self._pauses[id_] = now + PAUSE_SECONDS_PER_MEMBER * len(workload.members)
                    self._requeue(workload, now)
            except Exception as error:
                failed.append((id_, error))
        return failed

    def _take_rested(self, now: float) -> list[str]:
        """Return the large gangs that changed during a pause that is over."""
        rested = [id_ for id_, until in self._pauses.items() if until <= now] if self._pauses else []
        for id_ in rested:
            del self._pauses[id_]
        changed = [id_ for id_ in rested if id_ in self._changed_again]
        for id_ in changed:
            del self._changed_again[id_]
        return changed

    def _requeue(self, workload: Workload, now: float) -> None:
        pending = workload.at(Stage.PENDING)
        if not pending:
            self._queue.remove(workload.id)
            self._partially_bound.lacks_pods(workload, now)
        elif self._queue.place(workload.id) is not Place.BACKOFF:
            if lacking(workload, pending) and not workload.problem:
                self._partially_bound.hindered(workload, now)
                if workload.lacking_since is None:
                    workload.lacking_since = now
                # While the controller creates the pods of a gang, no event reports each number of missing pods.
                report_at = min(now + REPORT_DELAY_SECONDS, workload.lacking_since + MAX_REPORT_DELAY_SECONDS)
                self._queue.wait(order_of(workload), report_at)
            else:
                workload.lacking_since = None
                self._queue.activate(order_of(workload))

    def wake(self, now: float) -> None:
        """Activate the workloads that events since the last step may help."""
        rows, even_empty, rules_changed = self._world.take_improved()
        neighbours = self._world.take_neighbours()
        claims, storage_changed = self._world.around.storage.take_changes()
        stored = bool(storage_changed or self._storage.late) and self._storage.begin(now, changed=storage_changed)
        sharing = self._attempts.sharing
        fallen, victims_changed = sharing.take_fallen() if sharing is not None else (), self._preempting.stirred(now)
        freed = self._world.links.take_freed()
        daemon_changes = self._world.nodes.daemon_changes
        daemons_changed, daemon_changes.is_new = daemon_changes.is_new, False
        if self._is_late:
            self._note_rows(rows, even_empty)
            if not daemons_changed:  # otherwise below, with the gangs that it concerns
                self._check_postponed(now)
        if not (
            rows
            or rules_changed
            or neighbours
            or claims
            or stored
            or fallen
            or victims_changed
            or freed
            or daemons_changed
        ):
            return
        index = np.array(rows, np.int64)
        if len(index):
            self._attempts.planner.extensions.guard.begin()
        improvement: _Improvement | None = None
        noted = bool(self._is_late)  # whether postponed workloads are to be checked by these rows already
        lowest = self._preempting.lowest
        for id_ in self._queue.unschedulable():
            workload = self._workloads.get(id_)
            if workload is None or workload.requeue_conditions.refused:
                continue
            conditions = workload.requeue_conditions
            # A node that changed may also close or open others, by its domains.
            elsewhere = rules_changed and conditions.depends_on_pods
            links_freed = freed and workload.gang and any(cls.bandwidth for cls in conditions.classes)
            try:
                nearby = elsewhere or (neighbours and neighbours.may_help(workload))
                nearby = nearby or ((claims or stored) and self._is_concerned(workload, claims, stored=stored))
            except Exception:
                nearby = True  # the attempt fails the same way, and reports it
            if nearby or links_freed or workload.namespace in fallen:
                self._queue.wake(id_)
                continue
            if daemons_changed and (workload.gang or not workload.room_helps):
                self._late_rules.add(id_)
                self._postpone(workload)
            room, rules = workload.room_helps or not workload.gang, rules_changed and workload.gang
            for cls in conditions.classes if rules or (len(index) and room) else ():
                if improvement is None:
                    improvement = _Improvement(index, self._world.nodes, self._attempts.planner.views)
                helps = rules or improvement.helps(cls)
                if helps:
                    self._queue.wake(id_)
                    break
                if helps is None:
                    self._postpone(workload)
                    break
            else:
                if workload.room_helps:
                    self._nudge(workload, lowest, now)
                elif even_empty:
                    self._postpone(workload)
        if self._is_late and not noted:
            self._note_rows(rows, even_empty)
        if stored:
            self._storage.end(now)
        if daemons_changed:
            if self._is_late:
                self._check_postponed(now)
            if not self._late_rules:
                daemon_changes.clear()

    def check_all(self) -> None:
        """Postpone all unschedulable workloads, to be checked by all nodes: what changed was lost with an exception."""
        rows = set(range(self._world.nodes.rows))
        self._note_rows(rows, rows)
        for id_ in self._queue.unschedulable():
            if (workload := self._workloads.get(id_)) is not None and not workload.requeue_conditions.refused:
                self._postpone(workload)

    def _is_concerned(self, workload: Workload, claims: frozenset[ClaimKey], *, stored: bool) -> bool:
        """Return whether a workload uses volumes that changed now; ``stored``: other storage objects changed."""
        classes = [cls for cls in workload.requeue_conditions.classes if concerned(cls, claims, stored)]
        if not classes:
            return False
        wakes = stored and self._storage.concerns(workload.namespace)
        return wakes or any(concerned(cls, claims, False) for cls in classes)

    def _nudge(self, workload: Workload, lowest: int | None, now: float) -> None:
        """Let an unschedulable workload search for victims again, if room helps and a pod has a lower priority."""
        if lowest is not None and workload.room_helps and lowest < workload.priority:
            self._preempting.nudge(workload, now)

    def next_due(self) -> float | None:
        """Return when the next check of postponed workloads is due, or the next change of storage objects counts.

        Also when the pause of a large gang that has changed again is over.
        """
        late = self._next_check if self._is_late else None
        rested = min((self._pauses[id_] for id_ in self._changed_again), default=None)
        return min((at for at in (late, self._storage.next_due(), rested) if at is not None), default=None)

    def _note_rows(self, rows: Iterable[int], even_empty: Set[int]) -> None:
        """Have the postponed workloads checked by more rows."""
        self._late_rows.update(rows)
        self._late_empty |= even_empty

    def _postpone(self, workload: Workload) -> None:
        if workload.id not in self._is_late:
            self._is_late.add(workload.id)
            self._late.setdefault(workload.namespace, deque()).append(workload.id)

    def _check_postponed(self, now: float) -> None:
        """Check some of the postponed workloads. Their namespaces take turns."""
        if now < self._next_check:
            return
        self._next_check = now + POSTPONED_PAUSE_SECONDS
        rows, even_empty = (np.array(sorted(late), np.int64) for late in (self._late_rows, self._late_empty))
        lowest = self._preempting.lowest
        left, self._views_left = POSTPONED_PER_CHECK, VIEWS_PER_CHECK
        while left > 0 and self._is_late:
            left -= 1
            namespace = next(iter(self._late))
            ids = self._late.pop(namespace)
            id_ = ids.popleft()
            if ids:
                self._late[namespace] = ids
            self._is_late.discard(id_)
            rule = id_ in self._late_rules
            self._late_rules.discard(id_)
            workload = self._workloads.get(id_)
            if workload is None or self._queue.place(id_) is not Place.UNSCHEDULABLE:
                continue
            classes = workload.requeue_conditions.classes
            retries = rule and self._daemons_concern(workload)
            if not retries and any(self._may_help_now(cls, rows) for cls in classes):
                self._queue.wake(id_)
            elif retries or (
                not workload.room_helps and any(self._may_help_now(cls, even_empty, empty=True) for cls in classes)
            ):
                left -= max(1, POSTPONED_PER_CHECK // RETRIES_PER_CHECK) - 1
                self._queue.wake(id_)
            else:
                self._nudge(workload, lowest, now)
        if not self._is_late:
            self._late_rows.clear()
            self._late_empty.clear()
        if not self._late_rules:
            self._world.nodes.daemon_changes.clear()

    def _daemons_concern(self, workload: Workload) -> bool:
        """Return whether another number of pods fits on an empty node because DaemonSet pods came or went."""
        conditions, nodes = workload.requeue_conditions, self._world.nodes
        alone = len(conditions.classes) == 1 and not conditions.depends_on_pods
        for cls in conditions.classes:
            columns, amounts = zip(*cls.amounts, strict=True) if cls.amounts else ((), ())
            if nodes.daemon_changes.concern(columns, amounts, nodes.allocatable, alone=alone):
                return True
        return False

    def _may_help_now(self, cls: PodClass, rows: Int64, *, empty: bool = False) -> bool:
        """Return whether any of the rows may help, now or if they were ``empty``.

        A view is more precise, but making it takes long.
        """
        views = self._attempts.planner.views
        if not self._may_help(cls, rows, empty=empty):
            return False
        if cls not in views or not self._views_left:
            return True
        self._views_left -= 1
        return _fits(views, cls, rows, empty=empty)

    def _may_help(self, cls: PodClass, rows: Int64, *, empty: bool) -> bool:
        """Return whether any of the rows is eligible and has enough free. This ignores other pods and volumes."""
        nodes = self._world.nodes
        used = nodes.daemons if empty else nodes.requested
        has_room = nodes.exists[rows]
        for column, amount in cls.amounts:
            has_room &= nodes.allocatable[rows, column] - used[rows, column] >= amount
        rows = rows[has_room]
        try:
            return bool(eligible(nodes, cls, rows, self._world.around.extensions.filters).any())
        except Exception:
            return True  # the attempt fails the same way, and reports it

    def retry_preemption(self, now: float) -> list[Instruction]:
        """Activate workloads for which preemption may help now, and those that waited long enough for other schedulers.

        Return the instructions of the preemption.
        """
        out, unblocked = self._preempting.due(now)
        try:
            unblocked += self._contention.take_impatient(now)
        except Exception as error:
            out += failure_of("workloads that wait for other schedulers", error, Activity.DECISION)
        for id_ in unblocked:
            with guard(f"workload {id_}", out, Activity.PREEMPTION):  # nothing else tries the others again
                workload, place = self._workloads.get(id_), self._queue.place(id_)
                if workload is not None and place is Place.UNSCHEDULABLE:
                    self._queue.activate(order_of(workload))
                elif place is not Place.ACTIVE:
                    self._preempting.rest(id_)  # its turn goes to the next one
        return out
