"""A node of a gang fails, and the gang is whole again, in the place that was found before anything was evicted."""

import pytest

from tests.recovery.world import Kill, World
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.instructions import PhaseDuration, Warn
from topo_scheduler.scheduling.instructions import BindOutcome

FORCED = RecoverySpec(enabled=True, force_delete=True)
LEAVES = {"s1/l1": 2, "s1/l2": 4}


def _failed(world: World, size: int = 3) -> str:
    """Run a gang in s1/l2, and let the node of its second member fail; return the node."""
    world.gang("g", size)
    world.run()
    where = world.nodes_of("g")
    assert len(where) == size
    lost = where["g-1"]
    world.fail(lost)
    return lost


def test_a_member_is_replaced_in_the_leaf_of_the_others() -> None:
    world = World(FORCED, {"s1/l1": 4, "s1/l2": 4, "s2/l1": 4})
    lost = _failed(world)
    world.run(9)
    assert not world.migrations, "not before the node has failed for the debounce"
    world.run(2)
    migration = world.one()
    assert migration.phase is Phase.DONE
    assert migration.spec.cause == f"node {lost} is unreachable"
    (move,) = migration.status.moves
    where = world.nodes_of("g")
    assert (move.pod, move.from_, move.to) == ("g-1", lost, where["g-1"])
    assert {node.rpartition("-")[0] for node in where.values()} == {lost.rpartition("-")[0]}
    assert move.replacement_name == "g-1.1"
    assert list(migration.status.times) == ["Planned", "Reserving", "Evicting", "Placing", "Done"]
    world.check()


def test_the_duration_of_each_phase_is_reported() -> None:
    world = World(FORCED, LEAVES)
    _failed(world)
    world.run(11)
    spent = {duration.phase: duration.seconds for duration in world.emitted if isinstance(duration, PhaseDuration)}
    assert list(spent) == ["Planned", "Reserving", "Evicting", "Placing", "total"]
    assert 10 <= spent["total"] <= 11


def test_no_pod_moves_from_a_node_that_comes_back_in_time() -> None:
    world = World(FORCED, LEAVES)
    lost = _failed(world)
    world.run(8)
    world.heal(lost)
    world.run(60)
    assert not world.migrations
    assert not world.evictions


def test_on_a_dead_kubelet_it_says_what_it_waits_for() -> None:
    world = World(RecoverySpec(enabled=True), LEAVES)
    lost = _failed(world)
    world.run(15)
    assert world.one().phase is Phase.EVICTING
    status, reason, message = world.condition("Evicted")
    assert (status, reason) == ("False", "KubeletDead")
    assert "node.kubernetes.io/out-of-service" in message and "recovery.forceDelete" in message and lost in message
    assert world.evictions == [("g-1", False)]
    world.extra[lost] = {"taints": ("node.kubernetes.io/out-of-service",)}
    world.tell_node(lost)
    world.run(15)
    assert world.evictions[-1] == ("g-1", True)
    assert world.phases() == [Phase.DONE]


def test_the_reserved_node_is_kept_from_others_and_given_back_when_no_pod_comes() -> None:
    world = World(FORCED, {"s1/l1": 4})
    _failed(world)
    world.controllers_stand = True
    world.run(15)
    assert world.phases() == [Phase.PLACING]
    world.gang("thief", 1)
    world.run(5)
    assert not world.nodes_of("thief"), "the node is reserved"
    world.run(1000, step=50)
    assert world.phases() == [Phase.FAILED]
    assert world.condition("Placed")[1] == "NoReplacement"
    assert world.nodes_of("thief"), "seats expire"
    world.check()


def test_deleting_a_migration_cancels_it() -> None:
    world = World(FORCED, {"s1/l1": 4})
    _failed(world)
    world.controllers_stand = True
    world.run(15)
    world.cancel(world.one().key)
    world.gang("next", 1)
    world.run(1)
    assert world.nodes_of("next"), "nothing is held any more"
    world.check()


def test_a_dry_run_plans_and_moves_no_pod() -> None:
    world = World(RecoverySpec(enabled=True, force_delete=True, dry_run=True), LEAVES)
    _failed(world)
    world.run(60)
    migration = world.one()
    assert migration.phase is Phase.PLANNED
    assert migration.status.moves[0].to
    assert world.condition("Reserved")[1] == "DryRun"
    assert not world.evictions
    assert not world.d.engine.preempting.replacements


def test_without_room_it_waits_and_goes_on_when_room_comes() -> None:
    world = World(FORCED, {"s1/l1": 4})
    world.gang("other", 1)
    world.run()
    _failed(world)
    world.run(20)
    assert world.phases() == [Phase.PLANNED]
    assert world.condition("Reserved")[1] == "NoRoom"
    assert not world.evictions
    (uid,) = [uid for uid in world.pods if uid.startswith("other")]
    world.controllers_stand = True
    world.finish_pod(uid)
    world.controllers_stand = False
    world.run(5)
    assert world.phases() == [Phase.DONE]
    world.check()


def test_after_a_restart_pods_that_already_run_are_read_and_moved() -> None:
    world = World(FORCED, LEAVES)
    lost = _failed(world)
    world.start()
    world.run(15)
    assert world.phases() == [Phase.DONE]
    assert lost not in world.nodes_of("g").values()
    assert len(world.nodes_of("g")) == 3
    world.check()


def test_bare_pods_are_never_moved() -> None:
    from tests.helpers import make_pod

    world = World(FORCED, LEAVES)
    world.add(make_pod("bare", gpus=8, uid="bare"))
    world.run()
    (node,) = world.nodes_of("bare").values()
    world.fail(node)
    world.run(30)
    assert not world.migrations
    assert not world.evictions
    world.request("please", "bare")
    world.run(1)
    assert world.phases() == [Phase.FAILED]
    assert world.condition("Placed")[1] == "BarePod"


def _writes() -> int:
    world = World(FORCED, LEAVES)
    _failed(world)
    before = world.kill.count
    world.run(15)
    assert world.phases() == [Phase.DONE]
    return world.kill.count - before


WRITES = _writes()


def test_there_are_as_many_writes_as_phases_evictions_and_binds() -> None:
    assert WRITES == 1 + 5 + 1 + 1  # created, five phases, an eviction, a bind


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(WRITES))
def test_killed_at_any_write_it_ends_the_same(write: int, after: bool) -> None:
    world = World(FORCED, LEAVES)
    lost = _failed(world)
    world.kill = Kill(write, after)
    world.run(40)
    assert world.kill.count > write
    assert world.phases() == [Phase.DONE]
    where = world.nodes_of("g")
    assert len(where) == 3 and lost not in where.values()
    assert where["g-1"] == world.one().status.moves[0].to
    assert len({node.rpartition("-")[0] for node in where.values()}) == 1
    assert len([name for name, _ in world.evictions if name == "g-1"]) <= 2, "evicting again is harmless, not needed"
    assert {name for name, _ in world.evictions} == {"g-1"}
    world.check()


@pytest.mark.parametrize("how", ["flaps", "dies", "is off"])
def test_a_pod_that_terminates_is_deleted_at_once_only_where_its_node_has_been_dead_for_a_while(how: str) -> None:
    """A user moves it, and its node falls silent while it has its grace period."""
    world = World(FORCED, LEAVES)
    world.gang("g", 1)
    world.run()
    node = world.nodes_of("g")["g-0"]
    world.kubelets_dead.add(node)
    world.request("please", "g-0")
    world.run(12)
    assert world.phases() == [Phase.EVICTING] and world.evictions == [("g-0", False)]
    if how == "is off":
        world.extra[node] = {"taints": ("node.kubernetes.io/out-of-service",)}
    world.fail(node)
    world.run(1)
    assert bool(world.evictions[1:]) is (how == "is off")
    if how == "flaps":
        world._set_ready(node, "True")
    world.run(20)
    assert world.evictions[1:] == ([] if how == "flaps" else [("g-0", True)])
    assert world.phases() == [Phase.EVICTING if how == "flaps" else Phase.DONE]


def test_a_pod_whose_bind_is_on_its_way_when_its_node_fails_is_moved_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(FORCED, LEAVES)
    world.gang("g", 2)
    with monkeypatch.context() as patched:
        patched.setattr(world, "_binds", lambda: False)
        world.run(1)
        bind = world.d.flight.pop("g-0")
        lost = bind.node
        world.fail(lost)
        world.run(15)
        assert not world.migrations
        # Its Binding was on the way before the node failed, and lands now.
        pod = world.pods["g-0"]
        pod.spec.node_name = lost
        pod.metadata.annotations |= bind.annotations
        world.d.engine.bind_finished("g-0", BindOutcome.BOUND, "", world.now)
        world.tell_pod("g-0")
    world.run(20)
    assert world.phases() == [Phase.DONE]
    where = world.nodes_of("g")
    assert len(where) == 2 and lost not in where.values()
    assert world.evictions == [("g-0", True)]
    assert len([item for item in world.emitted if isinstance(item, Warn) and lost in item.message]) == 1
    world.check()


def test_another_member_that_a_new_process_has_not_read_is_no_replacement() -> None:
    """It may be one that took the place of another lost member, after this Migration was made."""
    world = World(FORCED, LEAVES)
    world.gang("g", 3)
    world.run()
    world.controllers_stand = True
    world.request("please", "g-0")
    world.run(3)
    assert world.phases() == [Phase.PLACING]
    deleted = world.pods.pop("g-1")
    world.tell_pod("g-1")
    world.run(3)
    world.replace(deleted)
    world.tell_pod("g-1-again-1")
    world.run(3)
    assert world.nodes_of("g").keys() == {"g-1", "g-2"}
    world.start()
    world.run(5)
    assert world.phases() == [Phase.PLACING]
