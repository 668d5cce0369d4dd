"""A gang waits though enough is free: others move, the fewest that make room, and the gang gets that room."""

import pytest

from tests.recovery.world import Kill, World
from topo_scheduler.api.migrations import Cause, Migration, Phase
from topo_scheduler.api.recovery import DefragmentationSpec, RecoveryLimits, RecoverySpec

ON = RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(enabled=True))
CONFIG = (
    "{recovery: {enabled: true, defragmentation: {enabled: true}},"
    " preemption: {enabled: false}, reservation: {enabled: false}}"
)


def _scattered(spec: RecoverySpec = ON, **said: str) -> World:
    """Two leaves of two nodes; one small pod in the first leaf, two in the second, and a gang that wants a leaf."""
    world = World(spec, {"s1/l1": 2, "s1/l2": 2}, CONFIG)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2")):
        world.put(name, node, 2, **said)
    world.gang("g", 2)
    return world


def _of_gang(world: World) -> Migration:
    (found,) = (one for one in world.migrations.values() if one.cause is Cause.PENDING_GANG)
    return found


def _helpers(world: World) -> list[Migration]:
    return [one for one in world.migrations.values() if one.spec.makes_room_for]


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
        "gang default/g waits. Moving 1 pod (default/a from s1-l1-1 to s1-l2-1) would make room in s1/l1."
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
