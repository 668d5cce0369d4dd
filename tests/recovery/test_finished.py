"""Migrations that are over are deleted after a while, gently; none that is under way ever is."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recovery.world import World
from tests.scheduling.function_calls import calls_of, of_package
from topo_scheduler.api.migrations import Migration, MigrationStatus, MigrationWrite, Phase
from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.api.recovery import FinishedSpec, RecoveryLimits, RecoverySpec
from topo_scheduler.recovery.model.instructions import DeleteMigration
from topo_scheduler.recovery.model.migration_state import timestamp
from topo_scheduler.recovery.model.retention import CONCURRENT_DELETIONS, LEAST_SECONDS, PACE_SECONDS, Finished

HOUR = 3600.0


def migration(name: str, at: float, phase: Phase | None = Phase.DONE, namespace: str = "default") -> Migration:
    meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", resource_version="7")
    status = MigrationStatus(phase="" if phase is None else phase.value)
    if phase is not None:
        status.times = {phase.value: timestamp(at)}
    return Migration(metadata=meta, status=status)


def filled(count: int, start: float = 0.0) -> Finished:
    finished = Finished()
    for number in range(count):
        finished.note(migration(f"m{number:04}", start + number), start + number)
    return finished


def keeping(rest: float = HOUR, **parts: Any) -> RecoverySpec:
    return RecoverySpec(keep_finished=FinishedSpec(**parts), limits=RecoveryLimits(cooldown=rest))


def names(out: list[DeleteMigration]) -> list[str]:
    return [deletion.name for deletion in out]


def test_one_that_is_over_is_deleted_after_its_time_at_its_version() -> None:
    finished, spec = filled(1), keeping(time=2 * HOUR)
    assert finished.due(spec, 0.0, 2 * HOUR - 1) == []
    assert finished.next_due(spec, 0.0, 2 * HOUR - 1) == 1.0
    (deletion,) = finished.due(spec, 1.0, 2 * HOUR)
    assert (deletion.namespace, deletion.name, deletion.uid, deletion.version) == ("default", "m0000", "uid-m0000", "7")
    assert finished.due(spec, 1.0, 9 * HOUR) == [], "it is on its way"
    finished.deleted("default/m0000", MigrationWrite.WRITTEN, 1.0)
    assert len(finished) == 0 and finished.next_due(spec, 1.0, 9 * HOUR) is None


def test_beyond_the_number_the_oldest_go_but_none_within_the_hour() -> None:
    finished, spec = filled(5), keeping(max_count=3)
    assert finished.due(spec, 0.0, LEAST_SECONDS - 1) == []
    assert names(finished.due(spec, 0.0, LEAST_SECONDS + 100)) == ["m0000", "m0001"]


def test_none_goes_while_its_pods_are_to_be_left_alone() -> None:
    finished, spec = filled(1), keeping(rest=3 * HOUR, max_count=0)
    assert finished.due(spec, 0.0, 2 * HOUR) == []
    assert len(finished.due(spec, 0.0, 3 * HOUR)) == 1


def test_a_backlog_goes_a_few_at_a_time() -> None:
    finished, spec, now, deleted = filled(95), keeping(time=HOUR), 0.0, 0
    while len(finished):
        out = finished.due(spec, now, 10 * HOUR)
        assert len(out) <= CONCURRENT_DELETIONS
        for deletion in out:
            finished.deleted(f"{deletion.namespace}/{deletion.name}", MigrationWrite.WRITTEN, now)
        deleted += len(out)
        at = finished.next_due(spec, now, 10 * HOUR)
        assert at is None or at >= now + PACE_SECONDS
        now = at or now
    assert deleted == 95


def test_what_is_refused_is_reported_once_and_tried_again_ever_more_seldom() -> None:
    finished, spec, now = filled(3), keeping(time=HOUR), 0.0
    pauses: list[float] = []
    reported: list[bool] = []
    for _ in range(8):
        out = finished.due(spec, now, 10 * HOUR)
        reported += [
            finished.deleted(f"{deletion.namespace}/{deletion.name}", MigrationWrite.FORBIDDEN, now) for deletion in out
        ]
        at = finished.next_due(spec, now, 10 * HOUR)
        assert at is not None
        pauses.append(at - now)
        now = at
    assert reported.count(True) == 1
    assert pauses == sorted(pauses) and pauses[0] >= 60.0 and pauses[-1] == HOUR
    assert len(finished) == 3


def test_a_namespace_that_refuses_deletions_keeps_only_its_own() -> None:
    finished, spec, now = Finished(), keeping(time=HOUR), 0.0
    for number in range(2 * CONCURRENT_DELETIONS):
        finished.note(migration(f"m{number}", number, namespace="hostile"), number)
    finished.note(migration("mine", 100), 100)
    reported = 0
    for _ in range(4):
        for deletion in finished.due(spec, now, 10 * HOUR):
            outcome = MigrationWrite.FORBIDDEN if deletion.namespace == "hostile" else MigrationWrite.WRITTEN
            reported += finished.deleted(f"{deletion.namespace}/{deletion.name}", outcome, now)
        at = finished.next_due(spec, now, 10 * HOUR)
        assert at is not None
        if now == 0.0:
            assert at == PACE_SECONDS, "the others go on"
        now = at
    assert len(finished) == 2 * CONCURRENT_DELETIONS and reported == 1


def test_one_that_was_changed_or_is_gone_is_left_to_the_watch() -> None:
    finished, spec = filled(1), keeping(time=HOUR)
    finished.due(spec, 0.0, 10 * HOUR)
    assert not finished.deleted("default/m0000", MigrationWrite.STALE, 0.0)
    assert finished.due(spec, 100.0, 10 * HOUR) == []
    finished.note(migration("m0000", 0.0, None), 10 * HOUR)
    assert finished.due(spec, 100.0, 10 * HOUR) == [], "a client wrote its status: it is under way again"


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([None, *Phase]), st.floats(0, 3 * HOUR)), min_size=1, max_size=40
    ),
    st.integers(0, 3),
)
def test_only_what_is_over_and_an_hour_old_is_deleted(
    events: list[tuple[int, Phase | None, float]], max_count: int
) -> None:
    finished, spec, now = Finished(), keeping(time=2 * HOUR, max_count=max_count), 0.0
    phases: dict[str, tuple[Phase | None, float]] = {}
    for number, phase, pause in events:
        name = f"m{number}"
        finished.note(migration(name, now, phase), now)
        phases[name] = (phase, now)
        now += pause
        for deletion in finished.due(spec, now, now):
            known, since = phases[deletion.name]
            assert known is not None and known.over and now - since >= LEAST_SECONDS
            finished.deleted(f"{deletion.namespace}/{deletion.name}", MigrationWrite.WRITTEN, now)
    left = sum(phase is not None and phase.over for phase, _ in phases.values())
    assert len(finished) <= left


def test_in_a_cluster_finished_ones_go_and_those_under_way_stay() -> None:
    spec = RecoverySpec(enabled=True, force_delete=True, keep_finished=FinishedSpec(time=2 * HOUR))
    world = World(spec, {"s1/l1": 3})
    world.gang("g", 2)
    world.run()
    world.fail(world.nodes_of("g")["g-0"])
    world.run(30)
    assert world.phases() == [Phase.DONE]
    world.request("waits", "g-1")  # there is no room for it
    world.run(2 * HOUR - 60, step=600)
    assert set(world.phases()) == {Phase.DONE, Phase.PLANNED}
    world.run(120, step=10)
    assert world.phases() == [Phase.PLANNED]
    world.run(100 * HOUR, step=HOUR)
    assert world.phases() == [Phase.PLANNED], "that one is not over"


def test_the_same_pods_are_moved_again_though_an_earlier_migration_of_theirs_is_over() -> None:
    """A node fails, is well before any pod was evicted, and fails again."""
    world = World(RecoverySpec(enabled=True, force_delete=True, debounce=5), {"s1/l1": 2})
    world.gang("g", 2)
    world.run()
    lost = world.nodes_of("g")["g-0"]
    world.fail(lost)
    world.run(10)
    assert world.phases() == [Phase.PLANNED], "there is no room"
    world.heal(lost)
    world.run(10)
    assert world.phases() == [Phase.CANCELLED]
    world.fail(lost)
    world.run(10)
    assert world.phases() == [Phase.CANCELLED, Phase.PLANNED]


def test_one_more_that_is_over_costs_little_however_many_there_are() -> None:
    finished, spec = filled(2000), keeping()

    def end_one() -> None:
        finished.note(migration("one-more", 500.5), 3000.0)
        finished.due(spec, 0.0, 3000.0)
        finished.next_due(spec, 0.0, 3000.0)

    assert of_package(calls_of(end_one)).total() < 60, "2,000 when all were sorted each time"


def test_a_step_does_not_look_at_those_of_a_namespace_whose_deletions_pause() -> None:
    finished, spec = filled(2000), keeping(max_count=0)
    finished.note(migration("kept", 0.0, namespace="other"), 0.0)
    for deletion in finished.due(spec, 0.0, 9 * HOUR):
        finished.deleted(deletion.key, MigrationWrite.FORBIDDEN, 0.0)
    finished.forget("other/kept")
    paused_until = finished.next_due(spec, 5.0, 9 * HOUR)
    assert paused_until is not None and paused_until > 10.0
    assert of_package(calls_of(lambda: finished.due(spec, 6.0, 9 * HOUR + 1))).total() < 10, "6,000 when all were"
    assert finished.next_due(spec, 6.0, 9 * HOUR + 1) == paused_until
    assert finished.due(spec, paused_until, 9 * HOUR + paused_until)
