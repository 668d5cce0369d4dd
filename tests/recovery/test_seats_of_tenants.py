"""Seats that a tenant's Migrations hold on healthy nodes: never more than its pods hold, and never without limits."""

from tests.recovery.world import World
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoveryLimits, RecoverySpec

ENABLED = RecoverySpec(enabled=True)


def _reserved(world: World, namespace: str) -> int:
    return sum(
        len(one.status.moves)
        for one in world.migrations.values()
        if one.metadata.namespace == namespace and one.phase is not None and one.phase.running
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
    waits = [one for one in world.migrations.values() if one.phase is Phase.PLANNED]
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
