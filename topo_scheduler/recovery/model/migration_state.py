"""A Migration in progress, and how its status changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Final

import msgspec

from topo_scheduler.api.migration_reasons import ConditionType, MigrationReason
from topo_scheduler.api.migrations import (
    MAX_OWNERS,
    Migration,
    MigrationCondition,
    MigrationOwner,
    MigrationStatus,
    Move,
    OtherPod,
    Phase,
)
from topo_scheduler.api.printable import printable
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.recovery.model.instructions import (
    EmitMigrationEvent,
    PhaseDuration,
    RecoveryInstruction,
    WriteStatus,
)
from topo_scheduler.recovery.model.search_repetition import SearchRepetition
from topo_scheduler.scheduling.barrier import Backoff
from topo_scheduler.state.pods.workloads import Member

LONGEST_MESSAGE_CHARACTERS: Final = 2048
SHOWN_NODES: Final = 3
"""Nodes that a printer column names."""


@dataclass(frozen=True, slots=True)
class Beneficiary:
    """A pending workload for which ``pods`` move, by uid; ``until`` is when the scheduler stops waiting for them."""

    pods: Sequence[str]
    workload: str
    namespace: str
    until: float


@dataclass(slots=True)
class Eviction:
    """Progress of the eviction of a pod. ``until`` is when a retry is due; ``forced`` is whether the last one was.

    ``beneficiary`` is the pending workload that gets room by it.
    """

    in_flight: bool = False
    forced: bool = False
    times: int = 0
    until: float = -inf
    reason: MigrationReason | None = None
    message: str = ""
    beneficiary: Beneficiary | None = None


NEXT_CONDITION: Final[Mapping[Phase | None, ConditionType]] = {
    None: ConditionType.RESERVED,
    Phase.PLANNED: ConditionType.RESERVED,
    Phase.RESERVING: ConditionType.EVICTED,
    Phase.EVICTING: ConditionType.EVICTED,
    Phase.PLACING: ConditionType.PLACED,
}
"""The condition that a Migration would reach next, by its phase."""


@dataclass(slots=True)
class Tracked:
    """What this process knows of a Migration beyond the object. ``state`` is the engine state of the last failed plan.

    ``stamps`` have the time of each phase on the object, and when this process first saw it. ``beside`` are uids of
    the members of the gang before any pod was gone; None if this process has not seen that. ``uniform`` are ids of
    the gangs that had only one series then. ``wrote`` is the status that this process wrote last, and ``ending``
    whether that ends the Migration. ``edited`` is whether another client changed its spec, or the pods that it moves,
    and ``replaced`` whether recovery creates another one for that.
    ``claimed`` is whether it was found to belong to this scheduler. ``owner_gone`` is why nothing is moved any more:
    an owner of its pods was deleted. ``owners`` are the topmost owners of its pods that this process has read; the
    next status write includes them. ``found_at_start`` is whether it existed when this process began.
    """

    migration: Migration
    found_at_start: bool = False
    writing: bool = False
    failures: int = 0
    altered: int = 0
    """Writes in a row that left it in another phase than they were to."""
    not_before: float = -inf
    learned: set[str] = field(default_factory=set)
    learning: frozenset[str] = frozenset()
    """Uids of the pods that are being read for it."""
    evictions: dict[str, Eviction] = field(default_factory=dict)
    state: object = None
    repetition: SearchRepetition = field(default_factory=SearchRepetition)
    """When to search again for pods to relocate, although no room was freed."""
    stayed: dict[str, float] = field(default_factory=dict)
    """Uids of other pods that did not leave for it in time, and until when no room is planned by their leaving."""
    stamps: dict[str, tuple[str, float]] = field(default_factory=dict)
    beside: frozenset[str] | None = None
    uniform: frozenset[str] = frozenset()
    wrote: MigrationStatus | None = None
    unreported: Sequence[RecoveryInstruction] = ()
    """Event and durations of the phase that was written last, until it is known to be written."""
    ending: bool = False
    edited: bool = False
    replaced: bool = False
    claimed: bool = False
    owner_gone: str = ""
    owners: Sequence[MigrationOwner] = ()
    backoff: Backoff = field(default_factory=Backoff)
    """Pauses after steps that raised or exceeded their budget."""
    order: tuple[int, int, str] = field(init=False)
    """Sort key: those of highest priority first, then the largest, then by name."""

    def __post_init__(self) -> None:
        self.order = _order(self.migration)

    def update(self, migration: Migration) -> None:
        """Take a newer version; record whether another client changed the spec, or removed pods."""
        before, self.migration = self.migration, migration
        if migration.phase is Phase.PLANNED:
            # Pods of a second attempt have other pods beside them.
            self.beside, self.uniform = None, frozenset()
        self.order = _order(migration)
        moved = {move.uid for move in migration.status.moves}
        fewer = any(move.uid not in moved for move in before.status.moves) and migration.status != self.wrote
        self.edited |= not asks_the_same(before, migration) or fewer

    @property
    def intended_phase(self) -> Phase | None:
        """The phase that the write in flight records, or else the current one."""
        status = self.wrote if self.writing and self.wrote is not None else self.migration.status
        return next((phase for phase in Phase if phase == status.phase), None)

    @property
    def intended_moves(self) -> dict[str, None]:
        """Uids of the pods that it moves, or will move once the write in flight has arrived."""
        written = self.wrote.moves if self.writing and self.wrote is not None else ()
        return {move.uid: None for move in (*self.migration.status.moves, *written)}

    def is_edit_of(self, created: Migration) -> bool:
        """Return whether it is a later version of a Migration, with another spec."""
        is_same = self.migration.metadata.uid == created.metadata.uid
        return is_same and not asks_the_same(self.migration, created)

    def stays(self, uid: str, now: float) -> bool:
        """Return whether another pod did not leave for it lately."""
        return self.stayed.get(uid, -inf) > now

    def is_altered(self, answer: Migration | None) -> bool:
        """Return whether the answer to the last write has another phase than was written."""
        return answer is not None and self.wrote is not None and answer.status.phase != self.wrote.phase

    def record_phases(self, now: float) -> None:
        """Record when each phase was first seen."""
        for phase, text in self.migration.status.times.items():
            if self.stamps.get(phase, ("", 0.0))[0] != text:
                self.stamps[phase] = (text, now)


def _order(migration: Migration) -> tuple[int, int, str]:
    priority = max((move.priority for move in migration.status.moves), default=0)
    return -priority, -len(migration.spec.pods), migration.key


def asks_the_same(former: Migration, edited: Migration) -> bool:
    """Return whether two versions of a Migration have the same spec, apart from texts that are for people."""
    before, after = (msgspec.structs.replace(migration.spec, cause="", since="") for migration in (former, edited))
    return before == after


def reports_recovery_off(migration: Migration) -> bool:
    """Return whether the message of a Migration is that recovery is off."""
    conditions, message = migration.status.conditions, migration.status.message
    return any(
        (condition.reason, condition.message) == (MigrationReason.RECOVERY_DISABLED, message)
        for condition in conditions
    )


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """A condition without its timestamp."""

    type: ConditionType
    status: bool
    reason: MigrationReason
    message: str


def timestamp(wall: float) -> str:
    """Return a timestamp as the API writes it, with microseconds. ``wall`` is in seconds since the epoch."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def column_text(names: Sequence[str]) -> str:
    """Return names for a printer column: each once, the first few."""
    distinct = list(dict.fromkeys(name for name in names if name))
    more = f" +{len(distinct) - SHOWN_NODES}" if len(distinct) > SHOWN_NODES else ""
    return ",".join(distinct[:SHOWN_NODES]) + more


def changed_status(
    migration: Migration,
    wall: float,
    *,
    scheduler: str,
    phase: Phase | None = None,
    moves: Sequence[Move] | None = None,
    message: str | None = None,
    policy: str | None = None,
    others: Sequence[OtherPod] | None = None,
    owners: Sequence[MigrationOwner] = (),
    left_nodes: Sequence[str] | None = None,
    conditions: Sequence[ConditionUpdate] = (),
) -> MigrationStatus | None:
    """Return the status with changes; None if nothing would change. ``wall`` is in seconds since the epoch.

    ``scheduler`` is the name of this scheduler. A change of it or of ``owners`` alone is not written.
    """
    old = migration.status
    new_conditions = {condition.type.value: condition for condition in conditions}
    kept: list[MigrationCondition] = []
    for current in old.conditions:
        new = new_conditions.pop(current.type, None)
        kept.append(current if new is None else _condition(new, current, wall))
    kept += [_condition(new, None, wall) for new in new_conditions.values()]
    all_moves = list(old.moves if moves is None else moves)
    times = dict(old.times)
    if phase is not None and phase != old.phase:
        times[phase] = timestamp(wall)
    status = MigrationStatus(
        phase=old.phase if phase is None else phase.value,
        scheduler_name=old.scheduler_name,
        policy=old.policy if policy is None else policy,
        message=old.message if message is None else printable(message)[:LONGEST_MESSAGE_CHARACTERS],
        from_nodes=column_text([move.from_ for move in all_moves]),
        to_nodes=column_text([move.to for move in all_moves]),
        moves=all_moves,
        conditions=kept,
        times=times,
        others=old.others if others is None else list(others),
        owners=old.owners,
        left_nodes=old.left_nodes if left_nodes is None else list(left_nodes),
    )
    if status == old:
        return None
    status.scheduler_name = scheduler
    status.owners = list({owner.uid: owner for owner in (*old.owners, *owners)}.values())[:MAX_OWNERS]
    return status


def _condition(new: ConditionUpdate, current: MigrationCondition | None, wall: float) -> MigrationCondition:
    status, message = str(new.status), printable(new.message)[:LONGEST_MESSAGE_CHARACTERS]
    turned = current is None or current.status != status
    if current is not None and (current.status, current.reason, current.message) == (status, new.reason, message):
        return current
    time = timestamp(wall) if turned or current is None else current.last_transition_time
    return MigrationCondition(new.type.value, status, new.reason.value, message, time)


def write(migration: Migration, status: MigrationStatus) -> WriteStatus:
    """Return the instruction that writes a status."""
    meta = migration.metadata
    return WriteStatus(meta.namespace, meta.name, meta.uid, meta.resource_version, status)


def event_on(
    migration: Migration, reason: MigrationReason | Reason, message: str, *, warning: bool
) -> EmitMigrationEvent:
    """Return the instruction that emits an event on a Migration."""
    meta = migration.metadata
    return EmitMigrationEvent(meta.namespace, meta.name, meta.uid, warning, reason, message)


def durations(migration: Migration, phase: Phase, wall: float) -> list[PhaseDuration]:
    """Return the duration of the phase that a Migration leaves, and the total if the new phase is final.

    A phase that does not exist, which tenants may write, has none: phases are labels of metrics.
    """
    left, cause = migration.phase, migration.cause.value
    out = []
    if left is not None and (begun := seconds_of(migration.status.times.get(left.value, ""))) is not None:
        out.append(PhaseDuration(left.value, max(0.0, wall - begun), cause))
    since = seconds_of(migration.spec.since) or seconds_of(migration.metadata.creation_timestamp or "")
    if phase.over and since is not None:
        out.append(PhaseDuration("total", max(0.0, wall - since), cause, phase.value))
    return out


def with_targets(moves: Sequence[Move], targets: Mapping[str, str]) -> list[Move]:
    """Return moves with the nodes of their seats, by uid of the pod."""
    return [msgspec.structs.replace(move, to=targets.get(move.uid, "")) for move in moves]


def with_replacements(moves: Sequence[Move], members: Mapping[str, Member]) -> list[Move]:
    """Return moves with the members that replaced their pods, by uid of the pod, and the nodes where these run.

    A pod without a replacement has no node.
    """
    return [_with_replacement(move, members.get(move.uid)) for move in moves]


def _with_replacement(move: Move, member: Member | None) -> Move:
    if member is None:
        return msgspec.structs.replace(move, to="", devices=[])
    devices = move.devices if member.node == move.to else []  # on another node it has other devices
    return msgspec.structs.replace(
        move, to=member.node, replacement=member.uid, replacement_name=member.name, devices=devices
    )
