"""A Migration that is under way, and how its status changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Final

import msgspec

from topo_scheduler.api.migrations import (
    MOST_OWNERS,
    Migration,
    MigrationCondition,
    MigrationOwner,
    MigrationStatus,
    Move,
    OtherPod,
    Phase,
)
from topo_scheduler.api.moments import seconds_of
from topo_scheduler.recovery.instructions import Spent, WriteStatus
from topo_scheduler.scheduling.barrier import Backoff

LONGEST_MESSAGE: Final = 2048
SHOWN: Final = 3
"""Nodes that are named in a column."""


@dataclass(slots=True)
class Eviction:
    """How the eviction of a pod stands. ``until`` when it may be tried again; ``forced`` whether the last one was."""

    flying: bool = False
    forced: bool = False
    times: int = 0
    until: float = -inf
    reason: str = ""
    message: str = ""


NEXT_CONDITION: Final[Mapping[Phase | None, str]] = {
    None: "Reserved",
    Phase.PLANNED: "Reserved",
    Phase.RESERVING: "Evicted",
    Phase.EVICTING: "Evicted",
    Phase.PLACING: "Placed",
}
"""The condition that a Migration would reach next, by its phase."""


@dataclass(slots=True)
class Tracked:
    """What is known of a Migration beyond the object. ``state`` of the engine when it was planned in vain last.

    ``stamps`` what the object says of when each phase began, with when this process saw that first. ``beside`` uids of
    the members of the gang when nobody had gone yet, None where this process has not seen that. ``wrote`` the status
    that this process wrote last; ``ending`` whether that ends it; ``superseded`` whether it ends as the pods of a
    failed node get a Migration of their own; ``edited`` whether someone else changed its spec, or which pods it moves;
    ``owner_gone`` why nothing is moved any more: an owner of its pods was deleted; ``owners`` the topmost owners of its
    pods, as far as this process has read them: written with the next change of the status.
    """

    migration: Migration
    writing: bool = False
    failures: int = 0
    not_before: float = -inf
    learned: set[str] = field(default_factory=set)
    learning: frozenset[str] = frozenset()
    """Uids of the pods that are being read for it."""
    evictions: dict[str, Eviction] = field(default_factory=dict)
    state: object = None
    stamps: dict[str, tuple[str, float]] = field(default_factory=dict)
    beside: frozenset[str] | None = None
    wrote: MigrationStatus | None = None
    ending: bool = False
    superseded: bool = False
    edited: bool = False
    owner_gone: str = ""
    owners: Sequence[MigrationOwner] = ()
    backoff: Backoff = field(default_factory=Backoff)
    """How often carrying it on raised or took too much."""

    def replaced_by(self, migration: Migration) -> None:
        """Take over a newer view; note whether someone else changed its spec, or took pods away from it."""
        before, self.migration = self.migration, migration
        moved = {move.uid for move in migration.status.moves}
        fewer = any(move.uid not in moved for move in before.status.moves) and migration.status != self.wrote
        self.edited |= before.spec != migration.spec or fewer

    def noted(self, now: float) -> None:
        """Remember when each phase was seen to begin."""
        for phase, text in self.migration.status.times.items():
            if self.stamps.get(phase, ("", 0.0))[0] != text:
                self.stamps[phase] = (text, now)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without its time."""

    type: str
    status: bool
    reason: str
    message: str


def stamp(wall: float) -> str:
    """Return seconds since the epoch as the API writes a time, with microseconds."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def joined(names: Sequence[str]) -> str:
    """Return names for a column: each once, the first few."""
    distinct = list(dict.fromkeys(name for name in names if name))
    more = f" +{len(distinct) - SHOWN}" if len(distinct) > SHOWN else ""
    return ",".join(distinct[:SHOWN]) + more


def changed_status(
    migration: Migration,
    wall: float,
    *,
    phase: Phase | None = None,
    moves: Sequence[Move] | None = None,
    message: str | None = None,
    policy: str | None = None,
    others: Sequence[OtherPod] | None = None,
    owners: Sequence[MigrationOwner] = (),
    conditions: Sequence[Condition] = (),
) -> MigrationStatus | None:
    """Return the status with changes; None where nothing would change. ``wall`` seconds since the epoch.

    That only the ``owners`` differ is no change that is written for itself.
    """
    old = migration.status
    wanted = {one.type: one for one in conditions}
    kept: list[MigrationCondition] = []
    for known in old.conditions:
        fresh = wanted.pop(known.type, None)
        kept.append(known if fresh is None else _condition(fresh, known, wall))
    kept += [_condition(fresh, None, wall) for fresh in wanted.values()]
    there = list(old.moves if moves is None else moves)
    times = dict(old.times)
    if phase is not None and phase != old.phase:
        times[phase] = stamp(wall)
    status = MigrationStatus(
        phase=old.phase if phase is None else phase.value,
        policy=old.policy if policy is None else policy,
        message=old.message if message is None else message[:LONGEST_MESSAGE],
        from_nodes=joined([move.from_ for move in there]),
        to_nodes=joined([move.to for move in there]),
        moves=there,
        conditions=kept,
        times=times,
        others=old.others if others is None else list(others),
        owners=old.owners,
    )
    if status == old:
        return None
    status.owners = list({owner.uid: owner for owner in (*old.owners, *owners)}.values())[:MOST_OWNERS]
    return status


def _condition(fresh: Condition, known: MigrationCondition | None, wall: float) -> MigrationCondition:
    status, message = str(fresh.status), fresh.message[:LONGEST_MESSAGE]
    turned = known is None or known.status != status
    if known is not None and (known.status, known.reason, known.message) == (status, fresh.reason, message):
        return known
    time = stamp(wall) if turned or known is None else known.last_transition_time
    return MigrationCondition(fresh.type, status, fresh.reason, message, time)


def write(migration: Migration, status: MigrationStatus) -> WriteStatus:
    """Return the instruction that writes a status."""
    meta = migration.metadata
    return WriteStatus(meta.namespace, meta.name, meta.uid, meta.resource_version, status)


def spent(migration: Migration, phase: Phase, wall: float) -> list[Spent]:
    """Return how long the phase took that a Migration leaves for another, and all of it where that is the end."""
    status, cause = migration.status, migration.cause.value
    out = []
    if (begun := seconds_of(status.times.get(status.phase, ""))) is not None:
        out.append(Spent(status.phase, max(0.0, wall - begun), cause))
    since = seconds_of(migration.spec.since) or seconds_of(migration.metadata.creation_timestamp or "")
    if phase.over and since is not None:
        out.append(Spent("total", max(0.0, wall - since), cause, phase.value))
    return out


def with_targets(moves: Sequence[Move], targets: Mapping[str, str]) -> list[Move]:
    """Return moves with the nodes of their seats, by uid of the pod."""
    return [msgspec.structs.replace(move, to=targets.get(move.uid, "")) for move in moves]
