"""A gang waits though enough is free: others move, the fewest that make room, and the gang gets that room."""

from collections.abc import Mapping

import pytest

from tests.recovery.world import Kill, World
from topo_scheduler.api.migrations import Cause, Migration, Phase
from topo_scheduler.api.recovery import DefragmentationSpec, RecoveryLimits, RecoverySpec
from topo_scheduler.recovery.model.instructions import RecoveryInstruction, WriteStatus

ON = RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(enabled=True))
STAYS = {"movable": "false"}
CONFIG = (
    "{recovery: {enabled: true, defragmentation: {enabled: true}},"
    " preemption: {enabled: false}, reservation: {enabled: false}}"
)


def _scattered(spec: RecoverySpec = ON, said: Mapping[str, str] | None = None) -> World:
    """Two leaves of two nodes; one small pod in the first leaf, two in the second, and a gang that wants a leaf."""
    world = World(spec, {"s1/l1": 2, "s1/l2": 2}, CONFIG)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2")):
        world.put(name, node, 2, said=said)
    world.gang("g", 2)
    return world


@pytest.mark.parametrize("named", [False, True])
def test_causes_name_no_pod_and_no_migration_of_another_namespace(named: bool) -> None:
    said = f"{CONFIG[:-1]}, events: {{nameOtherNamespaces: true}}}}" if named else CONFIG
    world = World(ON, {"s1/l1": 2, "s1/l2": 2}, said)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2")):
        world.put(name, node, 2, namespace="theirs")
    world.gang("g", 2)
    world.run(79)
    migration, (helper,) = _of_gang(world), _helpers(world)
    assert helper.metadata.namespace == "theirs"
    assert ("theirs/" in migration.spec.cause) is named, migration.spec.cause
    assert ("default/" in helper.spec.cause) is named, helper.spec.cause
    if not named:
        assert "Moving 1 pod (a pod of another namespace) would make room" in migration.spec.cause
        assert helper.spec.cause == "makes room for a Migration of another namespace"


def _of_gang(world: World) -> Migration:
    (migration,) = (candidate for candidate in world.migrations.values() if candidate.cause is Cause.PENDING_GANG)
    return migration


def _helpers(world: World) -> list[Migration]:
    return [migration for migration in world.migrations.values() if migration.spec.makes_room_for]


@pytest.mark.parametrize("how", ["deleted", "done"])
def test_of_a_migration_that_is_gone_nothing_is_kept(how: str) -> None:
    world = _scattered()
    world.run(59)
    if how == "deleted":
        world.controllers_stand = True
        world.blocked = {"a"}
    world.run(6)
    room = world.recovery.migrations._gang_room
    if how == "deleted":
        assert room._first and room._departures
        world.cancel(_of_gang(world).key)
    world.run(20)
    assert all(phase is not None and phase.over for phase in world.phases())
    assert not room._first and not room._departures
    world.check()


def test_the_fewest_pods_move_and_the_gang_gets_the_room() -> None:
    world = _scattered()
    world.run(59)
    assert not world.migrations, "not before it has waited for repair.after"
    world.run(20)
    assert world.phases() == [Phase.DONE, Phase.DONE]
    assert world.nodes_of("g") == {"g-0": "s1-l1-1", "g-1": "s1-l1-2"}
    assert [name for name, _ in world.evictions] == ["a"]
    assert world.nodes_of("a")["a"].startswith("s1-l2")
    migration, (helper,) = _of_gang(world), _helpers(world)
    assert migration.spec.cause == (
        "gang default/g is pending. Moving 1 pod (default/a from s1-l1-1 to s1-l2-1) would make room in s1/l1."
    )
    assert list(migration.status.times) == ["Planned", "Reserving", "Placing", "Done"]
    assert [(move.pod, move.from_, move.to) for move in migration.status.moves] == [
        ("g-0", "", "s1-l1-1"),
        ("g-1", "", "s1-l1-2"),
    ]
    assert [other.name for other in migration.status.others] == ["a"]
    assert helper.spec.reason == "Defragmentation" and helper.spec.makes_room_for == migration.key
    world.check()


def test_it_is_off_by_default() -> None:
    world = _scattered(RecoverySpec(enabled=True))
    world.run(300)
    assert not world.migrations and not world.evictions


def test_a_dry_run_plans_and_moves_no_pod() -> None:
    world = _scattered(RecoverySpec(enabled=True, dry_run=True, defragmentation=DefragmentationSpec(enabled=True)))
    world.run(120)
    assert world.phases() == [Phase.PLANNED]
    assert world.one().status.to_nodes == "s1-l1-1,s1-l1-2"
    assert world.condition("Reserved")[1] == "DryRun"
    assert not world.evictions and not world.d.engine.preempting.replacements
    world.recovery.configure(ON, world.now)
    world.run(20)
    assert world.phases() == [Phase.DONE, Phase.DONE] and len(world.nodes_of("g")) == 2


def test_pods_that_do_not_allow_it_stay() -> None:
    world = _scattered(said=STAYS)
    world.run(300)
    assert not world.migrations and not world.evictions and not world.nodes_of("g")


def test_others_do_not_take_the_room_that_is_made() -> None:
    world = _scattered()
    world.blocked = {"a"}
    world.run(65)
    assert set(world.phases()) == {Phase.EVICTING, Phase.RESERVING}
    world.gang("thief", 1)
    world.run(5)
    assert not world.nodes_of("thief"), "s1-l1-2 is free, and kept for the gang"
    world.blocked = set()
    world.run(30)
    assert world.nodes_of("g") == {"g-0": "s1-l1-1", "g-1": "s1-l1-2"}
    world.check()


def _drop(world: World, *uids: str) -> None:
    """A user deletes pods whose controllers are gone."""
    for uid in uids:
        del world.pods[uid]
        world.tell_pod(uid)


@pytest.mark.parametrize("how", ["gang deleted", "gang's Migration deleted", "other's Migration deleted"])
def test_when_moves_are_of_no_use_any_more_no_pod_is_evicted(how: str) -> None:
    world = _scattered()
    world.blocked = {"a"}
    world.run(65)
    asked = len(world.evictions)
    assert asked and set(world.phases()) == {Phase.EVICTING, Phase.RESERVING}
    if how == "gang deleted":
        _drop(world, "g-0", "g-1")
    else:
        (helper,) = _helpers(world)
        world.cancel(helper.key if how.startswith("other") else _of_gang(world).key)
    world.blocked = set()
    world.run(60)
    assert set(world.phases()) == {Phase.CANCELLED}
    assert len(world.evictions) == asked and world.nodes_of("a") == {"a": "s1-l1-1"}
    world.check()


def test_a_gang_that_is_placed_elsewhere_has_no_other_pod_moved() -> None:
    world = World(ON, {"s1/l1": 2, "s1/l2": 2, "s1/l3": 2}, CONFIG)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2")):
        world.put(name, node, 2)
    for name, node in (("x", "s1-l3-1"), ("y", "s1-l3-2")):
        world.put(name, node, 8)
    world.gang("g", 2)
    world.blocked = {"a"}
    world.run(65)
    asked = len(world.evictions)
    assert asked and set(world.phases()) == {Phase.EVICTING, Phase.RESERVING}
    _drop(world, "x", "y")
    world.blocked = set()
    world.run(60)
    assert world.nodes_of("g") == {"g-0": "s1-l3-1", "g-1": "s1-l3-2"}
    assert world.nodes_of("a") == {"a": "s1-l1-1"} and len(world.evictions) == asked
    assert _of_gang(world).phase is Phase.DONE
    assert _helpers(world)[0].phase is Phase.CANCELLED
    world.check()


def test_what_would_make_no_room_any_more_is_not_begun() -> None:
    world = _scattered(RecoverySpec(enabled=True, dry_run=True, defragmentation=DefragmentationSpec(enabled=True)))
    world.run(70)
    assert world.phases() == [Phase.PLANNED]
    for node in ("s1-l2-1", "s1-l2-2"):
        world.put(f"full-{node}", node, 6)
    world.recovery.configure(ON, world.now)
    world.run(30)
    assert world.phases() == [Phase.CANCELLED]
    assert "would not make room" in world.one().status.message
    assert not world.evictions
    world.check()


def test_none_is_evicted_before_all_have_seats() -> None:
    """Two must leave; when the second has lost its room by then, the first stays as well."""
    world = World(ON, {"s1/l1": 2, "s1/l2": 2}, CONFIG)
    for name, node, gpus in (("a", "s1-l1-1", 2), ("d", "s1-l1-2", 4), ("b", "s1-l2-1", 6), ("c", "s1-l2-2", 4)):
        world.put(name, node, gpus)
    world.gang("g", 2)
    carry_out = world.carry_out

    def taken_meanwhile(instruction: RecoveryInstruction) -> None:
        carry_out(instruction)
        if (
            isinstance(instruction, WriteStatus)
            and instruction.status.phase == Phase.RESERVING
            and "e" not in world.pods
        ):
            world.put("e", "s1-l2-2", 4)  # by another scheduler, which knows of no seats

    world.carry_out = taken_meanwhile  # type: ignore[method-assign]
    world.run(130)
    assert "e" in world.pods and not world.evictions
    assert _of_gang(world).phase is Phase.CANCELLED
    assert {migration.phase for migration in _helpers(world)} == {Phase.CANCELLED}
    world.check()


def test_so_many_pods_move_within_an_hour() -> None:
    spec = RecoverySpec(
        enabled=True, defragmentation=DefragmentationSpec(enabled=True), limits=RecoveryLimits(moves_per_hour=1)
    )
    world = World(spec, {"s1/l1": 2, "s1/l2": 2, "s1/l3": 2}, CONFIG)
    for name, node in (("a", "s1-l1-1"), ("d", "s1-l2-1"), ("b", "s1-l3-1"), ("c", "s1-l3-2")):
        world.put(name, node, 2)
    world.gang("g", 2)
    world.gang("h", 2)
    world.run(400, step=5.0)
    assert len(world.evictions) == 1
    waits = [migration for migration in world.migrations.values() if migration.phase is Phase.PLANNED]
    assert [migration.status.conditions[0].reason for migration in waits] == ["Limited"]
    assert "limits.movesPerHour is 1" in waits[0].status.conditions[0].message
    world.start()
    world.run(600, step=10.0)
    assert len(world.evictions) == 1, "a move after a crash counts as well"
    world.run(3600, step=30.0)
    assert len(world.evictions) == 2
    assert len(world.nodes_of("g")) == 2 and len(world.nodes_of("h")) == 2
    world.check()


def test_no_workload_is_moved_twice_within_the_rest() -> None:
    world = _scattered()
    world.run(80)
    assert [name for name, _ in world.evictions] == ["a"]
    _drop(world, "g-0", "g-1", "b", "c")
    for name, node in (("x", "s1-l1-1"), ("y", "s1-l1-2")):
        world.put(name, node, 4, said=STAYS)
    world.gang("h", 2)
    world.run(3000, step=10.0)
    assert [name for name, _ in world.evictions] == ["a"] and not world.nodes_of("h")
    world.run(1200, step=10.0)
    assert [name.partition(".")[0] for name, _ in world.evictions] == ["a", "a"]
    assert world.nodes_of("h") == {"h-0": "s1-l2-1", "h-1": "s1-l2-2"}
    world.check()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", range(15))
def test_killed_at_any_write_the_gang_gets_its_room(write: int, after: bool) -> None:
    world = _scattered()
    world.run(59)
    world.kill = Kill(write, after, count=0)
    world.run(500, step=2.0)
    assert world.kill.count > write
    assert world.nodes_of("g") == {"g-0": "s1-l1-1", "g-1": "s1-l1-2"}
    assert len(world.nodes_of("a")) == 1
    assert all(phase is not None and phase.over for phase in world.phases())
    assert {name for name, _ in world.evictions} == {"a"}
    world.check()


def test_after_a_restart_pods_are_read_before_it_is_known_which_may_move() -> None:
    world = _scattered()
    world.run(30)
    world.start()
    world.run(120)
    assert world.nodes_of("g") == {"g-0": "s1-l1-1", "g-1": "s1-l1-2"}
    world.check()


def test_migrations_of_users_that_call_themselves_voluntary_leave_others_an_equal_share() -> None:
    spec = RecoverySpec(
        enabled=True, defragmentation=DefragmentationSpec(enabled=True), limits=RecoveryLimits(moves_per_hour=2)
    )
    world = World(spec, {"s1/l1": 2, "s1/l2": 2, "s9/l9": 3}, CONFIG)
    for name, node, gpus in (("a", "s1-l1-1", 2), ("b", "s1-l2-1", 2), ("c", "s1-l2-2", 2), ("d", "s9-l9-3", 8)):
        world.put(name, node, gpus, said=STAYS if name == "d" else None)
    for number in range(2):
        world.put(f"h{number}", "s9-l9-1", 1, namespace="hostile")
        world.put(f"room{number}", "s9-l9-1", 1, namespace="hostile")
        world.request(f"other-{number}", f"room{number}", namespace="hostile")
        asks = {"reason": "Defragmentation", "makesRoomFor": f"hostile/other-{number}"}
        world.request(f"ask-{number}", f"h{number}", namespace="hostile", **asks)
    world.run(60)
    begun = [migration for migration in world.migrations.values() if migration.metadata.name.startswith("ask")]
    assert [Phase.EVICTING in migration.status.times for migration in begun] == [True, True]
    world.gang("g", 2)
    world.run(120)
    assert len(world.nodes_of("g")) == 2
