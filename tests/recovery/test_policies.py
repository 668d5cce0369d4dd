"""Gangs that can't go on with a new member: restarted whole, or smaller."""

import pytest

from tests.recovery.world import Kill, World
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoverySpec

FORCED = RecoverySpec(enabled=True, force_delete=True)
LEAVES = {"s1/l1": 4, "s1/l2": 4}


def _failed(world: World, policy: str) -> tuple[dict[str, str], str]:
    world.gang("g", 3, said={"on-failure": policy})
    world.run()
    where = world.nodes_of("g")
    assert len(where) == 3
    world.fail(where["g-1"])
    return where, where["g-1"]


def _restarted(world: World, lost: str) -> None:
    assert world.phases() == [Phase.DONE]
    migration = world.one()
    assert migration.status.policy == "restart-gang"
    assert [move.pod for move in migration.status.moves] == ["g-0", "g-1", "g-2"]
    after = world.nodes_of("g")
    assert len(after) == 3 and lost not in after.values()
    assert {f"g-{n}": move.to for n, move in enumerate(migration.status.moves)} == after
    assert len({node.rpartition("-")[0] for node in after.values()}) == 1
    assert {name for name, _ in world.evictions} == {"g-0", "g-1", "g-2"}
    world.check()


def test_a_gang_that_restarts_moves_whole_and_may_keep_its_leaf() -> None:
    world = World(FORCED, LEAVES)
    _, lost = _failed(world, "restart-gang")
    world.run(15)
    _restarted(world, lost)


def test_it_goes_to_another_leaf_where_its_own_has_no_room() -> None:
    world = World(FORCED, {"s1/l1": 3, "s1/l2": 3})
    _, lost = _failed(world, "restart-gang")
    world.run(15)
    _restarted(world, lost)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", range(12))
def test_killed_at_any_write_it_still_restarts(write: int, after: bool) -> None:
    world = World(FORCED, LEAVES)
    _, lost = _failed(world, "restart-gang")
    world.kill = Kill(write, after)
    world.run(60)
    assert world.kill.count > write
    _restarted(world, lost)


def test_a_gang_that_shrinks_gets_no_reserved_node_and_waits_for_no_replacement() -> None:
    world = World(FORCED, LEAVES)
    world.controllers_stand = True
    _, lost = _failed(world, "shrink")
    world.run(15)
    assert world.phases() == [Phase.DONE]
    assert "continues" in world.one().status.message
    assert len(world.nodes_of("g")) == 2 and lost not in world.nodes_of("g").values()
    world.check()


def test_a_nonsense_policy_is_refused_with_the_choices() -> None:
    world = World(FORCED, LEAVES)
    (pod, *_) = world.gang("g", 2, said={"on-failure": "pray"})
    world.run()
    assert any("replace, restart-gang, shrink" in text for text in world.d.told())
    assert not world.nodes_of(pod.metadata.name)
