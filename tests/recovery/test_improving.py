"""Voluntary moves: gangs return to fewer leaves, free nodes become one block, nodes that are to go empty."""

from collections.abc import Mapping

import pytest

from tests.recovery.world import Kill, World
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.api.recovery import DefragmentationSpec, ImprovementSpec, RecoverySpec

IMPROVES = RecoverySpec(enabled=True, improvement=ImprovementSpec(enabled=True))
BLOCKS = RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(enabled=True, largest_block=True))
GANGS_ONLY = RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(enabled=True))
LONG = {"expected-duration": "24h", "checkpoint-interval": "5m"}
STAYS = {"movable": "false"}
CONFIG = (
    "{recovery: {enabled: true, defragmentation: {enabled: true}}, topologyConstraints: {enforcement: preferred},"
    " preemption: {enabled: false}, reservation: {enabled: false}}"
)


def _spread(said: Mapping[str, str], spec: RecoverySpec = IMPROVES) -> World:
    """A gang of four, two members in each of two leaves, as each leaf has two other pods when it is placed."""
    world = World(spec, {"s1/l1": 4, "s1/l2": 4}, CONFIG)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l1-2"), ("c", "s1-l2-1"), ("d", "s1-l2-2")):
        world.put(name, node, 8, said=STAYS)
    world.gang("g", 4, said=said)
    world.run()
    assert len({node.rpartition("-")[0] for node in world.nodes_of("g").values()}) == 2
    return world


def _end(world: World, *uids: str) -> None:
    for uid in uids:
        del world.pods[uid]
        world.tell_pod(uid)


def _leaves(world: World) -> set[str]:
    return {node.rpartition("-")[0] for node in world.nodes_of("g").values()}


def test_a_gang_returns_to_one_leaf_when_that_is_free() -> None:
    world = _spread(LONG)
    world.run(100)
    assert not world.migrations
    _end(world, "a", "b")
    world.run(60)
    assert world.phases() == [Phase.DONE]
    assert world.one().cause is Cause.IMPROVEMENT
    assert world.one().spec.cause == "gang default/g lies in 1 leaf instead of 2 if 2 pods move"
    assert len(world.evictions) == 2, "those that are in the leaf stay"
    assert _leaves(world) == {"s1-l1"} and len(world.nodes_of("g")) == 4
    world.check()


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"checkpoint-interval": "5m"},
        {"expected-duration": "30m"},
        {**LONG, **STAYS},
    ],
    ids=str,
)
def test_not_if_it_is_not_worth_its_cost_or_not_allowed(said: dict[str, str]) -> None:
    """Nothing tells when it ends; or what it ran is lost, and more than it would gain; or it says that it stays."""
    world = _spread(said)
    world.run(600, step=10.0)
    _end(world, "a", "b")
    world.run(300, step=5.0)
    assert not world.migrations and not world.evictions


def test_the_gain_is_a_share_of_the_time_that_is_left_and_the_cost_that_of_the_whole_gang() -> None:
    """0.1 of the time left must be more than 60 s and what ran since the last checkpoint, 300 s at most."""
    for left, moves in ((3500, False), (3700, True)):
        world = _spread({**LONG, "expected-duration": f"{left}s"})
        world.run(310, step=10.0)
        _end(world, "a", "b")
        world.run(60, step=1.0)
        assert bool(world.evictions) is moves
        world.check()


def test_it_is_off_by_default() -> None:
    world = _spread(LONG, RecoverySpec(enabled=True))
    _end(world, "a", "b")
    world.run(120)
    assert not world.migrations


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", range(10))
def test_killed_at_any_write_the_gang_is_whole_in_one_leaf(write: int, after: bool) -> None:
    world = _spread(LONG)
    _end(world, "a", "b")
    world.kill = Kill(write, after)
    world.run(120)
    assert world.kill.count > write
    assert _leaves(world) == {"s1-l1"} and len(world.nodes_of("g")) == 4
    assert all(phase is not None and phase.over for phase in world.phases())
    world.check()


def test_a_gang_that_restarts_whole_does_so() -> None:
    world = _spread({**LONG, "on-failure": "restart-gang"})
    _end(world, "a", "b")
    world.run(60)
    assert len(_leaves(world)) == 1 and len(world.nodes_of("g")) == 4
    assert len(world.evictions) == 4
    world.check()


# ---------------------------------------------------------------- free nodes of a leaf


def test_the_largest_block_grows_by_the_fewest_pods() -> None:
    world = World(BLOCKS, {"s1/l1": 3, "s1/l2": 3}, CONFIG)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2"), ("d", "s1-l2-2")):
        world.put(name, node, 2)
    world.run(120)
    assert world.phases() == [Phase.DONE]
    assert world.one().spec.cause == "the largest block of free nodes grows from 16 to 24 GPUs, in s1/l1"
    assert [name for name, _ in world.evictions] == ["a"]
    assert world.nodes_of("a")["a"] in ("s1-l2-1", "s1-l2-2"), "on a node that is in use already"
    world.run(4000, step=20.0)
    assert len(world.evictions) == 1, "no block can be larger than a leaf"
    world.check()


def test_a_migration_of_a_user_that_never_begins_keeps_no_block_from_growing() -> None:
    world = World(BLOCKS, {"s1/l1": 3, "s1/l2": 3}, CONFIG)
    world.run()
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2"), ("d", "s1-l2-2")):
        world.put(name, node, 2)
    world.request("theirs", "d", reason=Cause.DEFRAGMENTATION.value, schedulerName="not-running")
    world.run(120)
    assert world.migrations["default/theirs"].phase is None
    assert [name for name, _ in world.evictions] == ["a"]


@pytest.mark.parametrize("spec", [IMPROVES, GANGS_ONLY])
def test_blocks_are_made_only_where_that_is_asked_for(spec: RecoverySpec) -> None:
    world = World(spec, {"s1/l1": 3, "s1/l2": 3}, CONFIG)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1")):
        world.put(name, node, 2)
    world.run(300, step=5.0)
    assert not world.migrations


def test_a_node_is_emptied_whole_or_not_at_all() -> None:
    """Of two pods on a node only one has a place elsewhere."""
    world = World(BLOCKS, {"s1/l1": 2, "s1/l2": 2}, CONFIG)
    for name, node, gpus in (("a", "s1-l1-1", 2), ("b", "s1-l1-1", 3), ("c", "s1-l2-1", 6), ("d", "s1-l2-2", 6)):
        world.put(name, node, gpus)
    world.run(300, step=5.0)
    assert not world.migrations
    world.put("e", "s1-l2-1", 2)
    _end(world, "d")
    world.put("f", "s1-l2-2", 3)
    world.run(700, step=5.0)
    assert sorted(name for name, _ in world.evictions) == ["a", "b"]
    assert not {"s1-l1-1"} & set(world.nodes_of("").values())
    world.check()


# ---------------------------------------------------------------- nodes that are to go


GOING = RecoverySpec(enabled=True, scale_down_taints=("DeletionCandidateOfClusterAutoscaler",))


def _taint(world: World, name: str, *keys: str) -> None:
    world.extra[name] = {"taints": keys}
    world.tell_node(name)


def test_pods_leave_a_node_that_is_to_be_removed() -> None:
    world = World(GOING, {"s1/l1": 3}, CONFIG)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l1-2")):
        world.put(name, node, 2)
    world.put("pinned", "s1-l1-1", 1, said=STAYS)
    _taint(world, "s1-l1-1", "DeletionCandidateOfClusterAutoscaler")
    _taint(world, "s1-l1-3", "DeletionCandidateOfClusterAutoscaler")
    world.run(30)
    assert world.phases() == [Phase.DONE]
    assert world.one().cause is Cause.SCALE_DOWN
    assert world.nodes_of("a") == {"a": "s1-l1-2"}, "the other node is to go as well"
    assert world.nodes_of("pinned") == {"pinned": "s1-l1-1"}
    world.check()


def test_a_node_that_stays_after_all_keeps_its_pods_and_is_as_good_as_others() -> None:
    world = World(GOING, {"s1/l1": 2}, CONFIG)
    world.put("a", "s1-l1-1", 2)
    world.put("b", "s1-l1-2", 8)
    _taint(world, "s1-l1-1", "DeletionCandidateOfClusterAutoscaler")
    world.run(30)
    assert world.phases() == [Phase.PLANNED], "there is no room elsewhere"
    assert world.condition("Reserved")[1] == "NoRoom"
    _taint(world, "s1-l1-1")
    world.run(5)
    assert world.phases() == [Phase.CANCELLED]
    assert not world.recovery.detection.avoided(world.now)


def test_taints_that_are_not_named_mean_nothing() -> None:
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2}, CONFIG)
    world.put("a", "s1-l1-1", 2)
    _taint(world, "s1-l1-1", "DeletionCandidateOfClusterAutoscaler")
    world.run(60)
    assert not world.migrations


# ---------------------------------------------------------------- beside failures


def test_when_a_node_fails_that_comes_first() -> None:
    """Improvement is planned for two members when the node of one of them dies."""
    world = _spread(LONG, IMPROVES.model_copy(update={"dry_run": True}))
    _end(world, "a", "b")
    world.run(60)
    assert world.phases() == [Phase.PLANNED]
    lost = world.one().status.moves[0]
    world.fail(lost.from_)
    world.run(15)
    phases = {migration.cause: migration.phase for migration in world.migrations.values()}
    assert phases == {Cause.IMPROVEMENT: Phase.CANCELLED, Cause.UNREACHABLE: Phase.PLANNED}
    world.recovery.configure(IMPROVES.model_copy(update={"force_delete": True}), world.now)
    world.run(120)
    assert len(world.nodes_of("g")) == 4 and lost.from_ not in world.nodes_of("g").values()
    assert all(phase is not None and phase.over for phase in world.phases())
    world.check()


def test_a_move_by_choice_from_a_node_that_fails_meanwhile_goes_on() -> None:
    world = _spread(LONG, IMPROVES.model_copy(update={"force_delete": True}))
    _end(world, "a", "b")
    world.blocked = {"g-0", "g-1", "g-2", "g-3"}
    world.run(40)
    assert world.phases() == [Phase.EVICTING]
    lost = world.one().status.moves[0].from_
    world.fail(lost)
    world.run(15)
    world.blocked = set()
    world.run(120)
    assert world.phases() == [Phase.DONE]
    assert _leaves(world) == {"s1-l1"} and len(world.nodes_of("g")) == 4
    world.check()
