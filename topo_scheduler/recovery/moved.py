"""Which pods were moved of late: so many by choice within an hour, and no workload twice soon."""

from collections.abc import Iterable
from typing import Final

from topo_scheduler.api.migrations import Cause, Migration, Move, Phase
from topo_scheduler.api.moments import seconds_of
from topo_scheduler.api.recovery import RecoveryLimits
from topo_scheduler.recovery.seating import MovingPod

HOUR: Final = 3600.0
LEAST: Final = 64
"""Workloads of which is remembered when they moved before it is looked which of them may be forgotten."""

Key = tuple[str, str]
"""Namespace, and the gang or the controller of pods alone."""


def key_of(one: MovingPod) -> Key:
    """Return what a pod is moved as."""
    return one.workload.namespace, one.workload.id if one.workload.gang else one.workload.controller


def _key(namespace: str, move: Move) -> Key:
    return namespace, move.workload if move.gang else move.controller


class Moved:
    """Read from the objects, so that a restart forgets nothing as long as these are there."""

    def __init__(self) -> None:
        self._by_choice: dict[str, tuple[float, int, str]] = {}
        """When Migrations by choice began, in seconds since the epoch, of how many pods, and for which Migration."""
        self._last: dict[Key, float] = {}
        """When pods of a workload were evicted last."""
        self._full = LEAST
        """How many of these there are when it is looked next which can be forgotten."""

    def note(self, migration: Migration, limits: RecoveryLimits, wall: float) -> None:
        """Take over how far a Migration is. ``wall`` seconds since the epoch."""
        status, phase, waits = migration.status, migration.phase, migration.cause is Cause.PENDING_GANG
        evicts = seconds_of(status.times.get(Phase.EVICTING, ""))
        if evicts is not None:
            for move in status.moves:
                workload = _key(migration.metadata.namespace, move)
                # Another clock may be ahead.
                self._last[workload] = max(min(evicts, wall), self._last.get(workload, 0.0))
            if len(self._last) > self._full:
                self._forget(limits, wall)
                self._full = max(LEAST, 2 * len(self._last))
        begun = seconds_of(status.times.get(Phase.RESERVING, ""))
        running = phase is not None and phase.running
        counts = running or evicts is not None or (waits and phase is not Phase.CANCELLED)
        if migration.cause.by_choice and begun is not None and counts:
            count = len(status.others if waits else status.moves)
            self._by_choice[migration.key] = (min(begun, wall), count, migration.spec.makes_room_for)
        elif begun is not None:
            self._by_choice.pop(migration.key, None)  # it ended before anybody was evicted

    def begin(self, migration: Migration, pods: int, wall: float) -> None:
        """A Migration is about to begin; those that make room for it are counted with it."""
        if migration.cause.by_choice:
            self._by_choice[migration.key] = (wall, pods, migration.spec.makes_room_for)

    def lacking(self, pods: int, own: str, limits: RecoveryLimits, wall: float) -> str:
        """Return why so many pods may not be moved by choice now, or an empty string.

        Args:
            pods: how many would move.
            own: the Migration that would move them.
            limits: how many may.
            wall: seconds since the epoch.
        """
        self._by_choice = {key: one for key, one in self._by_choice.items() if wall - one[0] < HOUR}
        others = {key: one for key, one in self._by_choice.items() if key != own}
        lately = sum(count for _, count, whole in others.values() if whole not in others)
        if lately + pods <= limits.moves_per_hour:
            return ""
        text = f"{lately} pods moved by choice within the last hour, {pods} would"
        return f"{text}: limits.movesPerHour is {limits.moves_per_hour}"

    def resting(self, pods: Iterable[MovingPod], limits: RecoveryLimits, wall: float) -> str:
        """Return which pod's workload was moved so lately that it is left alone, or an empty string."""
        self._forget(limits, wall)
        found = next((one.member.key for one in pods if key_of(one) in self._last), "")
        return f"the workload of pod {found} was moved lately: it is left alone for limits.rest" if found else ""

    def _forget(self, limits: RecoveryLimits, wall: float) -> None:
        self._last = {key: at for key, at in self._last.items() if wall - at < limits.rest}
