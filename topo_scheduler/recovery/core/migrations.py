"""A state machine of Migrations without I/O: from an object without a status to pods that run elsewhere.

One status write begins each phase, and the work of a phase is idempotent: after a crash, the next process continues
from the object alone. Nodes are reserved from Reserving on, as the object says. No pod is evicted before the object
says Evicting.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import Migration, MigrationWrite, Phase
from topo_scheduler.api.process import SCHEDULER_NAME
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.api.text import few_for
from topo_scheduler.recovery.core.execution import Execution
from topo_scheduler.recovery.core.waiting_lines import WaitingLine, WaitingMigrations
from topo_scheduler.recovery.detection.absent_nodes import AbsentNodes
from topo_scheduler.recovery.detection.interference import Interference
from topo_scheduler.recovery.model.barrier import STEP_OPERATIONS, failure_of
from topo_scheduler.recovery.model.instructions import CreateMigration, RecoveryInstruction, Warn, WriteStatus
from topo_scheduler.recovery.model.migration_context import LEARNING, MigrationContext
from topo_scheduler.recovery.model.migration_memory import MigrationMemory
from topo_scheduler.recovery.model.migration_state import (
    NEXT_CONDITION,
    ConditionUpdate,
    Eviction,
    Tracked,
    asks_the_same,
    reports_recovery_off,
)
from topo_scheduler.recovery.model.ownership import answers_at, reason_not_ours
from topo_scheduler.recovery.optimisation.gang_room import GangRoom
from topo_scheduler.recovery.planning.migration_planning import SEARCH_INTERVAL_SECONDS, Planning
from topo_scheduler.scheduling.barrier import ATTEMPT_SECONDS, FAULT, described, kind_of
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.scheduler_view import SchedulerControl, SchedulerView
from topo_scheduler.scheduling.time_slicing import NEXT_STEP_SECONDS
from topo_scheduler.state.operation_budget import OperationBudget, limited

RETRY_SECONDS: Final = 10.0
"""Seconds after which a refused eviction is retried, doubled each time."""
LONGEST_RETRY_SECONDS: Final = 300.0
FORBIDDEN_RETRY_SECONDS: Final = 300.0
"""Longest pause, in seconds, before a request that RBAC forbids is retried."""
RECHECK_SECONDS: Final = 10.0
"""Seconds after which a Migration that has not evicted all pods is checked again, as its time may have come."""
HEALING_STEP_SECONDS: Final = 0.01
"""Seconds after which a step tries no further Migration without seats that heals, or makes room."""
OTHERS_STEP_SECONDS: Final = 0.005
"""The same for the other Migrations without seats: users may create thousands."""
LONGEST_WRITE_PAUSE_SECONDS: Final = 60.0
"""Longest pause, in seconds, before a status that was not written is written again."""
ALTERED: Final = "an admission webhook changes its status"
GIVEN_UP: Final = "given to another scheduler"
EDITED: Final = "edited"
MAX_REPLACED_EDITS: Final = 3
"""How often a Migration is replaced because a client edited it, for a node and namespace."""
MAX_NOTED_DELETIONS: Final = 64
"""Deletions under one name that are noted while the creation of a Migration is not answered."""
BELIEVED_REFUSALS: Final = 4
"""Refusals in a row before they are reported: an API server that has just started refuses all requests by RBAC."""


@dataclass(slots=True)
class _Creation:
    """What the watch reported under the name of a Migration before its creation was answered.

    ``deleted`` has the uids of deleted Migrations, with whether they were tracked before. ``over`` is one that ended.
    """

    deleted: dict[str, bool] = field(default_factory=dict)
    over: Migration | None = None


class Migrations:
    """All Migrations that are not over."""

    def __init__(
        self,
        view: SchedulerView,
        control: SchedulerControl,
        absent_nodes: AbsentNodes,
        spec: RecoverySpec,
        epoch: float,
        clock: Callable[[], float],
    ) -> None:
        """``clock`` returns seconds and measures how long a step takes: see `relocation_search`."""
        self.context = MigrationContext(view, control, absent_nodes, spec, epoch)
        self._planning = Planning(self.context, clock)
        self._execution = Execution(self.context)
        self._gang_room = GangRoom(self.context)
        self.interference = Interference(view, absent_nodes.detection, absent_nodes)
        self._memory = MigrationMemory()
        self._clock = clock
        self._begun = False
        """Whether the first step has begun: all Migrations that existed by then are known."""
        self._waiting = WaitingMigrations()
        self._over: dict[str, tuple[str, str]] = {}
        """Uid and version of Migrations that are over, so that no older view brings them back."""
        self._creating: dict[str, _Creation] = {}
        """Creations that are not answered yet, by namespace and name of the Migration."""

    def __len__(self) -> int:
        return len(self.context.tracked)

    def knows(self, key: str, uid: str, version: str) -> bool:
        """Return whether a Migration is known at a version, or a later one."""
        latest = self._latest(key)
        return latest is not None and latest[0] == uid and (latest[1] == version or _older(version, latest[1]))

    def unlisted(self, listed: Collection[str]) -> list[tuple[str, str, str]]:
        """Return the known Migrations that a list of all lacks: namespace and name, uid and version.

        They are gone, or were created after the list was read. ``listed`` has namespaces and names.
        """
        keys = (self.context.tracked.keys() | self._over.keys()) - set(listed)
        return [(key, *latest) for key in sorted(keys) if (latest := self._latest(key)) is not None]

    def _latest(self, key: str) -> tuple[str, str] | None:
        """Return uid and version of the latest known state of a Migration."""
        if (tracked := self.context.tracked.get(key)) is not None:
            return tracked.migration.metadata.uid, tracked.migration.metadata.resource_version
        return self._over.get(key)

    # ------------------------------------------------------------ input

    def seen(self, migration: Migration, now: float) -> None:
        """Handle a Migration that appeared or changed."""
        key, uid = migration.key, migration.metadata.uid
        if migration.status.scheduler_name not in ("", self.context.view.scheduler_name):
            self.gone(key, how=GIVEN_UP)
            return
        if migration.metadata.deletion_timestamp:  # finalizers of other clients keep it
            self.gone(key, uid)
            return
        tracked, over = self.context.tracked.get(key), self._over.get(key)
        version = migration.metadata.resource_version
        latest = self._latest(key)
        if latest is not None and latest[0] != uid and _older(version, latest[1]):
            # The answer to the create request arrives after the watch has reported the replacement.
            self._left_behind(migration, "deleted")
            return
        if tracked is not None and tracked.migration.metadata.uid != uid:
            self.gone(key)
            tracked = None
        if tracked is not None and _older(version, tracked.migration.metadata.resource_version):
            return
        if over is not None and over[0] == uid and _older(version, over[1]):
            return
        warranted = self.context.warranted(migration)
        self.context.limits.note(migration, self.context.epoch + now, warranted=warranted)
        self.context.moved.note(migration, self.context.spec.limits, self.context.epoch + now)
        self.context.finished.note(migration, self.context.epoch + now)
        phase = migration.phase
        if tracked is not None:
            self.context.report_written(tracked, migration)
        if phase is not None and phase.over:
            if tracked is not None:
                if tracked.edited or not tracked.ending:
                    self._left_behind(tracked.migration, EDITED if tracked.edited else "ended by another client")
                elif self._left_some(migration):
                    self._left_behind(tracked.migration, "misled by a status that another client wrote")
                elif _kept_from_healing(tracked.migration) or _was_moved_elsewhere(migration):
                    self.interference.left_to_healing(tracked.migration)
                self._untrack(key)
                self._gang_room.forget(uid)
            self._memory.release(key)
            self.context.count_replacements(migration, migration.status.moves)
            self.context.release(key)
            self.context.intended.pop(key, None)
            self._over[key] = (uid, version)
            if (creation := self._creating.get(key)) is not None:
                creation.over = migration
            return
        if reason := self._memory.lacking(migration):
            self.gone(key)
            self.context.refuse(migration, now, MigrationReason.TOO_MANY_MIGRATIONS, reason)
            return
        self._memory.hold(migration)
        if tracked is None:
            tracked = Tracked(migration, found_at_start=not self._begun)
        elif version != tracked.migration.metadata.resource_version:
            # The Migration changed, whatever the answers to earlier writes were.
            tracked.failures, tracked.not_before = 0, -inf
            tracked.state = None if tracked.migration.phase is not phase else tracked.state
        was_edited, former = tracked.edited, tracked.migration
        tracked.update(migration)
        if tracked.edited and not (was_edited and asks_the_same(former, migration)):
            self._note_edit(tracked, former)
        tracked.record_phases(now)
        self.context.track(tracked)
        self._schedule(tracked)

    def _schedule(self, tracked: Tracked) -> None:
        """Have a Migration tried when it is due: in each step if it holds seats, in its turn if not."""
        if tracked.migration.running:
            self._waiting.remove(tracked.migration.key)
        else:
            self._waiting.put(tracked, heals=self.context.comes_first(tracked))

    def _untrack(self, key: str) -> None:
        self.context.untrack(key)
        self._waiting.remove(key)

    def gone(self, key: str, uid: str = "", how: str = "deleted") -> None:
        """Handle the deletion of a Migration: release its seats and stop its work. ``how`` is for the log."""
        tracked, latest = self.context.tracked.get(key), self._latest(key)
        creation = self._creating.get(key)
        if uid and creation is not None and len(creation.deleted) < MAX_NOTED_DELETIONS:
            creation.deleted[uid] = latest is not None and latest[0] == uid
        if uid and latest is not None and latest[0] != uid:
            return
        self._untrack(key)
        self._memory.release(key)
        self.context.finished.forget(key)
        self._over.pop(key, None)
        self.context.intended.pop(key, None)
        self.context.limits.forget(key)
        self.context.release(key)
        if tracked is not None:
            self._left_behind(tracked.migration, how)
            self._gang_room.forget(tracked.migration.metadata.uid)

    def _left_some(self, migration: Migration) -> bool:
        """Return whether a Migration left pods behind, but its status says that they moved: another client wrote it."""
        moved = {move.uid for move in migration.status.moves}
        done = migration.phase is Phase.DONE or any(
            condition.reason == MigrationReason.NOTHING_TO_MOVE for condition in migration.status.conditions
        )
        return (done or bool(moved)) and any(
            self.context.view.entry(pod.uid) is not None and (done or pod.uid not in moved)
            for pod in migration.spec.pods
        )

    def _left_behind(self, migration: Migration, how: str) -> bool:
        """Give pods on failed nodes another Migration after a client interfered with theirs; return whether any are."""
        nodes = self.interference.lost(migration, by_edit=how == EDITED)
        if new := [node for node, is_new in nodes.items() if is_new]:
            more = f" and {len(new) - 1} more" if len(new) > 1 else ""
            text = f"was {how} while node {new[0]}{more} is failed: recovery will move what is left there"
            self.context.out.append(Warn(f"Migration {migration.key} {text}", migration.metadata.namespace))
        return bool(nodes)

    def _note_edit(self, tracked: Tracked, former: Migration) -> None:
        """Record that a client edited a Migration, which may not name the nodes any more that it named before."""
        tracked.replaced |= self._left_behind(former, EDITED) and self._is_to_replace(former, tracked.migration)

    def _is_to_replace(self, former: Migration, edited: Migration) -> bool:
        """Return whether an edit of a Migration of recovery for failed nodes may keep it from moving their pods.

        A controller may edit each new one. So only the first few are replaced.
        """
        heals = former.cause.of_node and not former.spec.makes_room_for
        is_other = not asks_the_same(former, edited)
        return heals and is_other and self.interference.edits(former) <= MAX_REPLACED_EDITS

    def creating(self, key: str) -> None:
        """Record that the creation of a Migration is requested."""
        self._creating.setdefault(key, _Creation())

    def created(self, key: str, migration: Migration | None, now: float) -> None:
        """Handle the answer to a creation, with the object if the server returned it.

        The watch may have reported its deletion before: the answer must not bring it back. Or an edit, of which only
        this answer tells, and which may have ended it already.
        """
        creation = self._creating.pop(key, _Creation())
        if migration is None:
            return
        over = creation.over
        if over is not None and over.metadata.uid == migration.metadata.uid and not asks_the_same(over, migration):
            self._left_behind(migration, EDITED)
        tracked = self.context.tracked.get(key)
        if tracked is not None and tracked.is_edit_of(migration):
            tracked.edited = True
            self._note_edit(tracked, migration)
        elif (was_tracked := creation.deleted.get(migration.metadata.uid)) is None:
            self.seen(migration, now)
        elif not was_tracked:
            self._left_behind(migration, "deleted")

    def written(
        self, write: WriteStatus, outcome: MigrationWrite, message: str, migration: Migration | None, now: float
    ) -> None:
        """Handle the result of a write, with the object as it is now.

        The watch may have reported meanwhile that the object was deleted, or can't be read any more. The answer, which
        is older, must not bring it back.
        """
        key = write.key
        tracked = self.context.tracked.get(key)
        if tracked is None or tracked.migration.metadata.uid != write.uid:
            return
        if tracked.writing and outcome is MigrationWrite.GONE:
            # The answer to the create request arrived after the watch had reported the deletion.
            self.gone(key)
            return
        tracked.writing = False
        was_written = outcome is MigrationWrite.WRITTEN
        tracked.altered = tracked.altered + 1 if was_written and tracked.is_altered(migration) else 0
        if was_written:
            tracked.failures = 0
        else:
            tracked.failures += 1
            longest = FORBIDDEN_RETRY_SECONDS if outcome is MigrationWrite.FORBIDDEN else LONGEST_WRITE_PAUSE_SECONDS
            tracked.not_before = now + doubled(2.0, tracked.failures, longest)
        if BELIEVED_REFUSALS in (tracked.failures, tracked.altered):
            text = ALTERED if tracked.altered else message
            self.context.out.append(Warn(f"Migration {key} is not continued: {text}", write.namespace))
            self.context.emit_event(tracked, warning=True, reason=MigrationReason.STATUS_NOT_WRITTEN, message=text)
        if migration is not None:
            self.seen(migration, now)
        if tracked.altered:  # after `seen`, for which such a write is a change like any other
            tracked.not_before = now + doubled(2.0, tracked.altered, LONGEST_WRITE_PAUSE_SECONDS)
        if self.context.tracked.get(key) is tracked:
            self.context.index.put(tracked)  # what was not written is no move
            self._schedule(tracked)

    def deleted(self, key: str, outcome: MigrationWrite, message: str, now: float) -> None:
        """Handle the result of the deletion of a finished Migration."""
        if self.context.finished.deleted(key, outcome, now):
            self.context.out.append(Warn(f"finished Migrations are not deleted: {message}"))

    def fresh_name(self, namespace: str, name: str) -> str:
        """Return a name that no Migration has."""
        return self.context.finished.fresh_name(namespace, name, self.context.tracked)

    def learned(self, uids: Sequence[str]) -> None:
        """Record that pods were given to the engine, or are gone, in the Migrations that wait for them."""
        for uid in uids:
            for tracked in self.context.index.was_read(uid):
                tracked.learned.add(uid)
                self._try_again(tracked)

    def _try_again(self, tracked: Tracked) -> None:
        """Have a Migration tried in its next turn, as it need not wait for pods any more."""
        tracked.state = None
        if not (tracked.backoff.times or tracked.failures or tracked.altered):
            tracked.not_before = -inf
        self._schedule(tracked)

    def unread(self, pod: PodRef, reason: str, now: float, migration: str = "") -> None:
        """Write to the status of the Migrations that wait for a pod of theirs why it can't be read.

        Those that wait for a pod of another namespace, which might make room, go on without it. If ``migration`` is not
        empty, only this Migration is informed.
        """
        key = f"{pod.namespace}/{pod.name}"
        self.context.index.read_failed(pod.uid)
        for tracked in self.context.index.readers(pod.uid, migration):
            if tracked.state != LEARNING:
                continue
            if pod.namespace != tracked.migration.metadata.namespace:
                tracked.learned.add(pod.uid)
                self.context.index.goes_on_without(tracked, pod.uid)
                if tracked.learning <= tracked.learned:
                    self._try_again(tracked)
                continue
            if tracked.writing:
                continue
            shortened = few_for([key], self.context.view.reader(tracked.migration.metadata.namespace), "pod")
            named = f"pod {key} can't be read: {reason}" if shortened == key else f"{shortened} can't be read"
            text = f"{named}; the scheduler retries every few seconds and moves no pod until then"
            phase = tracked.migration.phase
            condition = ConditionUpdate(
                NEXT_CONDITION[phase], status=False, reason=MigrationReason.POD_NOT_READ, message=text
            )
            self.context.write(tracked, now, None, None, condition, message=text if phase is None else None)
            self._schedule(tracked)

    def evicted(self, key: str, uid: str, *, reason: MigrationReason | None, message: str, now: float) -> None:
        """Handle the result of an eviction. ``reason`` is why the pod stays; None if it goes."""
        tracked = self.context.tracked.get(key)
        if tracked is None:
            return
        eviction = tracked.evictions.setdefault(uid, Eviction())
        eviction.in_flight = False
        if reason is None:
            self.context.evicted_for(eviction.beneficiary, now)
            eviction.times, eviction.reason, eviction.message = 0, None, ""
            eviction.until = now + RETRY_SECONDS  # the watch has not reported yet that it is terminating
            return
        eviction.times += 1
        forbidden = reason == MigrationReason.FORBIDDEN
        shortest, longest = (2.0, FORBIDDEN_RETRY_SECONDS) if forbidden else (RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        eviction.until = now + doubled(shortest, eviction.times, longest)
        eviction.reason, eviction.message = reason, message
        reported_at = BELIEVED_REFUSALS if forbidden else 1
        others = (other for other in tracked.evictions.values() if other is not eviction)
        reported = any(other.reason == reason and other.times >= reported_at for other in others)
        if eviction.times == reported_at and not reported:  # one event for all pods of a disruption budget
            named = next((move.pod for move in tracked.migration.status.moves if move.uid == uid), "")
            text = f"pod {named} can't be evicted: {message}" if named else message
            self.context.emit_event(tracked, warning=True, reason=reason, message=text)

    def owner_gone(self, key: str, reason: str) -> None:
        """Release the seats of a Migration whose pods have lost their owner; it ends in the next step."""
        tracked = self.context.tracked.get(key)
        if tracked is not None and not tracked.owner_gone:
            tracked.owner_gone, tracked.not_before = reason, -inf
            self.context.release(key)
            self._schedule(tracked)

    def moved_pods(self) -> tuple[set[str], set[str]]:
        """Return the uids of pods with an unfinished Migration that would not end if their nodes failed.

        First those whose Migration would not end either if their nodes were dead, then the others.
        """
        moved: set[str] = set()
        waiting: set[str] = set()
        for tracked in self.context.tracked.values():
            migration = tracked.migration
            if not migration.yields:
                (waiting if migration.waits else moved).update(self.context.named_uids(migration))
        return moved, waiting

    # ------------------------------------------------------------ steps

    def step(self, now: float, coming: Sequence[CreateMigration] = ()) -> list[RecoveryInstruction]:
        """Do the work that is due; return the instructions for the runner.

        ``coming``: Migrations of failures whose creation is in flight.

        Migrations with seats are processed in each step, the others in turn as time allows: first those that heal.
        """
        context, self._begun = self.context, True
        context.coming = coming
        for tracked in sorted(context.index.running.values(), key=lambda tracked: tracked.order):
            if not tracked.writing and now >= tracked.not_before:
                self._try(tracked, now)
        self._waiting.wake(now)
        self._try_line(self._waiting.healing, HEALING_STEP_SECONDS, now)
        self._try_line(self._waiting.others, OTHERS_STEP_SECONDS, now)
        context.out += context.finished.due(context.spec, now, context.epoch + now)
        out, self.context.out = self.context.out, []
        return out

    def _try_line(self, line: WaitingLine, seconds: float, now: float) -> None:
        """Process Migrations without seats, until all that are due were tried, or ``seconds`` are over."""
        began = self._clock()
        line.start()
        while (tracked := line.pop()) is not None:
            self._try(tracked, now)
            if self.context.tracked.get(tracked.migration.key) is tracked:
                # A search that goes on blocks those of others, so it is continued in the next step.
                searches = now < tracked.not_before <= now + NEXT_STEP_SECONDS
                if not searches and not tracked.writing:
                    tracked.not_before = max(tracked.not_before, now + self._waiting.pause(tracked))
                self._schedule(tracked)
            if self._clock() - began > seconds:
                break

    def next_due(self, now: float) -> float | None:
        """Return when `step` must be called next if nothing happens before."""
        times: list[float] = []
        context = self.context
        if self._waiting.unfinished:
            times.append(now + NEXT_STEP_SECONDS)
        if (at := self._waiting.next_due()) is not None:
            times.append(at)
        if len(self._waiting):
            times.append(now + RECHECK_SECONDS)
        if (at := context.finished.next_due(context.spec, now, context.epoch + now)) is not None:
            times.append(at)
        for tracked in context.index.running.values():
            times += [
                at
                for at in (tracked.not_before, *(eviction.until for eviction in tracked.evictions.values()))
                if at > now
            ]
            if tracked.migration.phase is not Phase.PLACING:
                times.append(now + RECHECK_SECONDS)
            phase = Phase.PLACING if tracked.migration.phase is Phase.PLACING else Phase.RESERVING
            over = context.over_at(tracked, phase, context.spec.reservation_timeout)
            if over is not None:
                times.append(max(now + SEARCH_INTERVAL_SECONDS, over))
        return min(times, default=None)

    def _try(self, tracked: Tracked, now: float) -> None:
        """Process a Migration; if that raises or exceeds its budget, the Migration pauses and the others go on."""
        try:
            with limited(OperationBudget(STEP_OPERATIONS, ATTEMPT_SECONDS, self._clock)):
                self._advance(tracked, now)
        except Exception as error:
            tracked.backoff.fail(now)
            tracked.not_before = max(tracked.not_before, tracked.backoff.until)
            self.context.out += failure_of(
                f"Migration {tracked.migration.key}", error, namespace=tracked.migration.metadata.namespace
            )
            pause = tracked.backoff.until - now
            text = f"In backoff: {described(error)}. The scheduler retries in {pause:g} s."
            reason = Reason.SCHEDULER_ERROR if kind_of(error) == FAULT else Reason.OVER_BUDGET
            self.context.emit_event(tracked, warning=True, reason=reason, message=text)
        else:
            tracked.backoff.times = 0

    def _advance(self, tracked: Tracked, now: float) -> None:
        if not self._claims(tracked, now):
            return
        if tracked.owner_gone:
            text = f"{tracked.owner_gone}; the scheduler moves no pod for it, and its reservation is released"
            self.context.end(tracked, Phase.CANCELLED, MigrationReason.OWNER_DELETED, text, now)
            return
        if tracked.replaced and tracked.migration.phase in (None, Phase.PLANNED, Phase.RESERVING):
            text = "another client edited it; recovery creates another Migration for the failed node"
            self.context.end(tracked, Phase.CANCELLED, MigrationReason.EDITED, text, now)
            return
        if tracked.migration.phase is not None and reports_recovery_off(tracked.migration):
            self.context.write(tracked, now, None, None, message=tracked.migration.spec.cause)
            if tracked.writing:  # otherwise the cause is that very text
                return
        if tracked.migration.cause.holds_places:
            self._gang_room.advance(tracked, now)
            return
        match tracked.migration.phase:
            case None:
                self._planning.plan(tracked, now)
            case Phase.PLANNED:
                self._planning.begin(tracked, now)
            case Phase.RESERVING:
                self._planning.reserve(tracked, now)
            case Phase.EVICTING:
                self._execution.evict(tracked, now)
            case Phase.PLACING:
                self._execution.place(tracked, now)

    def _claims(self, tracked: Tracked, now: float) -> bool:
        """Return whether a Migration belongs to this scheduler; give it up if it belongs to another one."""
        if tracked.claimed:
            return True
        migration, view, wall = tracked.migration, self.context.view, self.context.epoch + now
        at = answers_at(view, migration, first=view.scheduler_name == SCHEDULER_NAME)
        why = reason_not_ours(view, migration) if -inf < at <= wall else ""
        tracked.claimed = at <= wall and not why
        if why:
            self.context.end(tracked, Phase.FAILED, MigrationReason.NOT_OURS, why, now)
        elif at == inf:
            self.gone(migration.key, how=GIVEN_UP)
        elif not tracked.claimed:
            tracked.not_before = now + at - wall
        return tracked.claimed


def _kept_from_healing(migration: Migration) -> bool:
    """Return whether healing left the pods of a Migration to it, although nothing on their nodes had caused it."""
    heals = migration.cause.of_node and not migration.spec.makes_room_for
    return not (heals or migration.yields or migration.cause.holds_places)


def _was_moved_elsewhere(migration: Migration) -> bool:
    """Return whether a Migration ended as another one moved its pods, which may have ended before they moved."""
    return any(condition.reason == MigrationReason.ALREADY_MOVED for condition in migration.status.conditions)


def _older(version: str, other: str) -> bool:
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)
