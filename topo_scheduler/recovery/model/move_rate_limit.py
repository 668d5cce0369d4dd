"""Rate limit of moves: the number of voluntary moves within an hour, and a cooldown of each workload."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from topo_scheduler.api.migrations import Migration, MigrationStatus, Move, Phase
from topo_scheduler.api.recovery import RecoveryLimits
from topo_scheduler.api.text import counted
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.recovery.model.seating import MovingPod
from topo_scheduler.scheduling.limit_shares import is_within_share

HOUR_SECONDS: Final = 3600.0
REMEMBERED_WORKLOADS: Final = 64
"""Workloads whose last move is remembered before old entries are dropped."""

_OVER: Final = tuple(phase for phase in Phase if phase.over)

Key = tuple[str, str]
"""Namespace, and the gang, or the controller of single pods."""


def key_of(pod: MovingPod) -> Key:
    """Return the key of the workload of a pod."""
    return pod.workload.namespace, pod.workload.id if pod.workload.gang else pod.workload.controller


def _key(namespace: str, move: Move) -> Key:
    return namespace, move.workload if move.gang else move.controller


def _evicted_until(status: MigrationStatus) -> float:
    """Return when the last pod can have been evicted, in seconds since the epoch.

    Disruption budgets may refuse evictions for long, so the begin of the phase says little.
    """
    for phase in (Phase.PLACING, *_OVER, Phase.EVICTING):
        if (at := seconds_of(status.times.get(phase, ""))) is not None:
            return at
    return 0.0


class Moved:
    """Recent moves; read from the objects, so that a restart forgets nothing as long as these exist."""

    def __init__(self) -> None:
        self._by_choice: dict[str, tuple[float, int, str]] = {}
        """Voluntary Migrations: start in seconds since the epoch, number of pods, Migration that needs the room."""
        self._last: dict[Key, float] = {}
        """When pods of a workload were evicted last, in seconds since the epoch."""
        self._full = REMEMBERED_WORKLOADS
        """The size of ``_last`` at which old entries are dropped."""

    def note(self, migration: Migration, limits: RecoveryLimits, wall: float) -> None:
        """Record the progress of a Migration. ``wall`` is in seconds since the epoch."""
        status, phase, holds_places = migration.status, migration.phase, migration.cause.holds_places
        evicting = seconds_of(status.times.get(Phase.EVICTING, ""))
        if evicting is not None:
            for move in status.moves:
                workload = _key(migration.metadata.namespace, move)
                # The clock of another process may be ahead.
                self._last[workload] = max(min(_evicted_until(status), wall), self._last.get(workload, 0.0))
            if len(self._last) > self._full:
                self._forget(limits, wall)
                self._full = max(REMEMBERED_WORKLOADS, 2 * len(self._last))
        begun = seconds_of(status.times.get(Phase.RESERVING, ""))
        counts = migration.running or evicting is not None or (holds_places and phase is not Phase.CANCELLED)
        if migration.cause.by_choice and begun is not None and counts:
            count = len(status.others if holds_places else status.moves)
            self._by_choice[migration.key] = (min(begun, wall), count, migration.spec.makes_room_for)
        elif begun is not None:
            self._by_choice.pop(migration.key, None)  # it ended before any pod was evicted

    def begin(self, migration: Migration, pods: int, wall: float) -> None:
        """Record that a Migration begins now; Migrations that make room for it count with it."""
        if migration.cause.by_choice:
            self._by_choice[migration.key] = (wall, pods, migration.spec.makes_room_for)

    def lacking(self, pods: int, namespace: str, limits: RecoveryLimits, wall: float, own: str = "") -> str:
        """Return why so many pods can't make a voluntary move now, or an empty string.

        Args:
            pods: number of pods that would move.
            namespace: of the Migration that would move them.
            limits: the configured limits.
            wall: seconds since the epoch.
            own: key of that Migration, if it exists.
        """
        self._by_choice = {key: begun for key, begun in self._by_choice.items() if wall - begun[0] < HOUR_SECONDS}
        other_moves = {key: begun for key, begun in self._by_choice.items() if key != own}
        counts: Counter[str] = Counter()
        for key, (_, count, beneficiary) in other_moves.items():
            counts[key.partition("/")[0]] += 0 if beneficiary in other_moves else count
        recent = counts.total()
        # Users' own Migrations count too if they say that they are voluntary.
        if recent + pods <= limits.moves_per_hour or is_within_share(namespace, counts, pods, limits.moves_per_hour):
            return ""
        text = f"{counted(recent, 'pod')} moved voluntarily within the last hour, {pods} would"
        return f"{text}: limits.movesPerHour is {limits.moves_per_hour}"

    def resting(self, pods: Iterable[MovingPod], limits: RecoveryLimits, wall: float) -> str:
        """Return why the pods can't move because of the cooldown of a workload, or an empty string."""
        self._forget(limits, wall)
        name = next((pod.member.key for pod in pods if key_of(pod) in self._last), "")
        return f"the workload of pod {name} was moved recently: no voluntary move for limits.cooldown" if name else ""

    def _forget(self, limits: RecoveryLimits, wall: float) -> None:
        self._last = {key: at for key, at in self._last.items() if wall - at < limits.cooldown}
