"""Seats that a tenant's Migrations hold on healthy nodes: never more than its pods hold, and never without limits."""

from tests.recovery.world import World
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.recovery import DefragmentationSpec, RecoveryLimits, RecoverySpec
from topo_scheduler.recovery.model.instructions import WriteStatus

ENABLED = RecoverySpec(enabled=True)
DEFRAGMENTS = RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(enabled=True))


def _reserved(world: World, namespace: str) -> int:
    return sum(
        len(migration.status.moves)
        for migration in world.migrations.values()
        if migration.metadata.namespace == namespace and migration.phase is not None and migration.phase.running
    )


def test_pods_that_are_evicted_and_never_replaced_leave_no_more_seats_than_there_are_pods() -> None:
    """Each pod has an owner that creates none, and a new pod takes its share of any quota."""
    world = World(ENABLED, {"s1/l1": 8})
    world.controllers_stand = True
    for number in range(6):
        node = next(n for n in world.node_objects if not world.view.pods_on(n))
        world.put(f"h{number}", node, 8, namespace="hostile")
        world.request(f"ask-{number}", f"h{number}", namespace="hostile")
        world.run(5)
    assert _reserved(world, "hostile") == len(world.pods) == 3
    waits = [migration for migration in world.migrations.values() if migration.phase is Phase.PLANNED]
    assert len(waits) == 3
    (condition,) = waits[0].status.conditions
    assert (condition.reason, condition.status) == ("Limited", "False")
    assert "it waits for replacements" in condition.message


def test_all_pods_of_a_namespace_may_move_and_the_next_ones_once_they_are_replaced() -> None:
    world = World(ENABLED, {"s1/l1": 4, "s1/l2": 4})
    for number in range(3):
        world.put(f"p{number}", f"s1-l1-{number + 1}", 8)
        world.request(f"ask-{number}", f"p{number}")
    world.run(20)
    assert world.phases() == [Phase.DONE] * 3


def test_a_migration_that_says_it_makes_room_is_limited_like_any_other() -> None:
    limits = RecoveryLimits(at_once=3, per_namespace=2)
    world = World(RecoverySpec(enabled=True, limits=limits), {"s1/l1": 10})
    for number in range(4):
        world.put(f"h{number}", f"s1-l1-{number + 1}", 1, namespace="hostile")
        world.blocked.add(f"h{number}")
        room = {"makesRoomFor": "hostile/ask-0"} if number else {}
        world.request(f"ask-{number}", f"h{number}", namespace="hostile", **room)
        world.run(3)
    assert world.phases() == [Phase.EVICTING, Phase.EVICTING, Phase.PLANNED, Phase.PLANNED]


def _refuse_to_record_seats(world: World, times: int) -> list[WriteStatus]:
    """Refuse the writes after which Migrations evict; nodes are reserved by then. Return those refused."""
    patch = world._patch
    refused: list[WriteStatus] = []

    def refuse(write: WriteStatus) -> Migration | None:
        if write.status.phase == Phase.RESERVING and len(refused) < times:
            refused.append(write)
            return None
        return patch(write)

    world._patch = refuse  # type: ignore[method-assign]
    return refused


def test_a_migration_whose_seats_were_not_recorded_does_not_wait_for_them() -> None:
    world = World(ENABLED, {"s1/l1": 4})
    world.put("alone", "s1-l1-1", 8)
    refused = _refuse_to_record_seats(world, 1)
    world.request("ask", "alone")
    world.run(30)
    assert refused
    assert world.one().phase is Phase.DONE


def test_a_migration_in_backoff_holds_no_seats() -> None:
    world = World(ENABLED, {"s1/l1": 4})
    world.put("alone", "s1-l1-1", 8)
    refused = _refuse_to_record_seats(world, 1)
    world.request("ask", "alone")
    world.run(1)
    assert refused and world.d.engine.preempting.replacements
    world.recovery.configure(RecoverySpec(enabled=True, dry_run=True), world.now)
    world.run(30)
    assert world.condition("Reserved")[1] == "DryRun"
    assert not world.d.engine.preempting.replacements


def room_for_a_pending_gang() -> World:
    """Return a world in which a pending gang has seats, and the pod on one of them does not leave."""
    config = (
        "{recovery: {enabled: true, defragmentation: {enabled: true}},"
        " preemption: {enabled: false}, reservation: {enabled: false}}"
    )
    world = World(DEFRAGMENTS, {"s1/l1": 2, "s1/l2": 2}, config)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2")):
        world.put(name, node, 2)
    world.gang("g", 2)
    world.blocked = {"a"}
    world.run(75)
    return world


def test_the_seats_of_a_pending_gang_do_not_delay_migrations_of_other_pods() -> None:
    world = room_for_a_pending_gang()
    assert world.phases() == [Phase.RESERVING, Phase.EVICTING], "the gang has seats, which another pod does not leave"
    world.request("ask", "b")
    world.run(20)
    assert world.migrations["default/ask"].phase is Phase.DONE


def test_a_migration_of_other_pods_ends_no_move_for_a_pending_gang() -> None:
    world = room_for_a_pending_gang()
    assert world.phases() == [Phase.RESERVING, Phase.EVICTING]
    room = next(key for key, migration in world.migrations.items() if migration.phase is Phase.RESERVING)
    world.put("h", "s1-l2-1", 0, namespace="hostile")
    world.request("h", "h", namespace="hostile", makesRoomFor=room, avoid=["s1"])
    world.run(60)
    assert world.migrations["hostile/h"].phase is Phase.PLANNED
    assert world.migrations[room].phase is Phase.RESERVING
