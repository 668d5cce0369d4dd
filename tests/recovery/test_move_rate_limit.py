"""Records of moves are kept as long as they matter, and no longer, even if no search asks for them."""

from tests.helpers import EPOCH
from topo_scheduler.api.migrations import Cause, Migration, MigrationSpec, MigrationStatus, Move, Phase
from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.api.recovery import RecoveryLimits
from topo_scheduler.recovery.model.migration_state import timestamp
from topo_scheduler.recovery.model.move_rate_limit import HOUR_SECONDS, REMEMBERED_WORKLOADS, Moved

REST = 900.0
LIMITS = RecoveryLimits(cooldown=REST)
EVERY = 10.0


def _evicted(number: int, wall: float) -> Migration:
    moves = [Move(pod=f"p{number}", uid=f"p{number}", workload=f"w{number}", gang=True)]
    status = MigrationStatus(phase=Phase.EVICTING.value, moves=moves, times={Phase.EVICTING: timestamp(wall)})
    return Migration(metadata=ObjectMeta(name=f"m{number}", namespace="default"), spec=MigrationSpec(), status=status)


def test_workloads_that_moved_long_ago_are_forgotten_though_nothing_moves_by_choice() -> None:
    moved = Moved()
    for number in range(5_000):
        wall = EPOCH + EVERY * number
        moved.note(_evicted(number, wall), LIMITS, wall)
        kept = moved._last
        assert len(kept) <= max(REMEMBERED_WORKLOADS, 2 * REST / EVERY) + 1
        for lately in range(max(0, number - int(REST / EVERY) + 1), number + 1):
            assert ("default", f"w{lately}") in kept


def test_a_clock_that_was_ahead_lengthens_no_rest_and_no_hour() -> None:
    """The leader before had a clock that was a day ahead."""
    moved, ahead = Moved(), EPOCH + 86_400
    migration = _evicted(1, ahead)
    migration.spec.reason = Cause.IMPROVEMENT.value
    migration.status.times[Phase.RESERVING] = timestamp(ahead)
    moved.note(migration, LIMITS, EPOCH)
    assert moved.lacking(30, "", LIMITS, EPOCH + 10) and ("default", "w1") in moved._last
    assert not moved.lacking(30, "", LIMITS, EPOCH + HOUR_SECONDS + 1)
    moved.resting([], LIMITS, EPOCH + REST + 1)
    assert not moved._last
