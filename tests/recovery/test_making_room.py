"""Neighbours leave for a pod of a gang: whatever happens meanwhile, no pod waits for room that does not come."""

import msgspec
import pytest

from tests.recovery.gang_scenes import KEY, SPEC, gang_with_neighbours
from tests.recovery.guarded_world import GuardedWorld
from tests.recovery.world import World, leaf
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.recovery.controller.eviction_guard import BENEFICIARY_OVER
from topo_scheduler.recovery.model.instructions import EmitMigrationEvent


def helpers(world: World) -> list[Migration]:
    """Return the Migrations that make room."""
    return [migration for migration in world.migrations.values() if migration.spec.makes_room_for]


def until_helpers(world: World, count: int) -> None:
    """Let time pass in small steps until places are held, and others are to leave them."""
    world.now = world.d.now = world.now + 1.5
    for _ in range(400):
        out = world.recovery.step(world.now)
        world.recovery.take_changed()
        for instruction in out:
            world.carry_out(instruction)
        world.d.step()
        world.now = world.d.now = world.now + 0.01
        if KEY in world.migrations and world.migrations[KEY].phase is Phase.RESERVING and len(helpers(world)) == count:
            return
    raise AssertionError("no neighbour is asked to leave")


# ---------------------------------------------------------------- which Migrations make room


@pytest.mark.parametrize("restart", [False, True])
def test_a_gang_moves_elsewhere_if_the_node_that_others_were_to_leave_fails_too(restart: bool) -> None:
    world = World(SPEC, {"s1/l1": 4, "s1/l2": 4})
    failed, (other,) = gang_with_neighbours(world, per_node=2)
    world.fail(failed)
    until_helpers(world, 2)
    if restart:
        world.start()
    world.fail(other)
    world.run(30)
    assert world.migrations[KEY].phase is Phase.DONE
    assert not {failed, other} & set(world.nodes_of("").values())


def test_a_migration_that_claims_to_make_room_keeps_no_other_from_being_moved() -> None:
    world = World(SPEC, {"s1/l1": 4, "s1/l2": 4})
    failed, _ = gang_with_neighbours(world)
    world.request("m", "no-such-pod", namespace="x", reason="PendingPod", makesRoomFor=KEY)
    world.run(2)
    world.start()
    world.fail(failed)
    world.run(10)
    assert world.migrations[KEY].phase is Phase.DONE


def test_pods_elsewhere_make_no_room_where_a_gang_has_its_places() -> None:
    """A Migration of pods that are not there says that it makes room: the places are not kept for it."""
    world = World(SPEC, {"s1/l1": 4, "s1/l2": 4})
    failed, (other,) = gang_with_neighbours(world)
    world.put("mine", "s1-l2-1" if leaf(other) == "s1-l1" else "s1-l1-1", 1, namespace="x")
    world.blocked = {"small0", "mine"}
    world.fail(failed)
    world.run(5)
    world.request("m", "mine", namespace="x", makesRoomFor=KEY)
    world.start()
    world.run(5)
    assert world.migrations[KEY].phase is Phase.RESERVING
    (helper,) = (helper for helper in helpers(world) if helper.metadata.namespace == "t")
    context = world.recovery.migrations.context
    assert context.helpers(world.migrations[KEY], world.now)
    world.cancel(helper.key)
    assert not context.helpers(world.migrations[KEY], world.now)


def test_pods_that_another_migration_kept_are_asked_again_once_it_is_over() -> None:
    """A Migration of its own keeps the neighbour, and ends without a move: no event says that it may leave now."""
    world = World(SPEC, {"s1/l1": 4, "s1/l2": 1})
    failed, (other,) = gang_with_neighbours(world)
    away = next(name for name in world.node_objects if leaf(name) != leaf(other))
    world.request("own", "small0", namespace="t", avoid=[away])
    world.run(2)
    world.fail(failed)
    world.run(5)
    assert world.migrations[KEY].phase is Phase.PLANNED
    world.cancel("t/own")
    world.run(90)
    assert world.migrations[KEY].phase is Phase.DONE


# ---------------------------------------------------------------- no longer needed


def blocked_while_evicting(world: GuardedWorld) -> tuple[str, str]:
    """Let a neighbour be about to leave, which its budget does not allow; return the failed node, and its node."""
    failed, (other,) = gang_with_neighbours(world)
    world.blocked = {"small0"}
    world.fail(failed)
    world.run(4)
    (helper,) = helpers(world)
    assert helper.phase is Phase.EVICTING
    return failed, other


@pytest.mark.parametrize("restart", [False, True])
def test_a_neighbour_that_need_not_leave_any_more_stays_and_is_healed_later(restart: bool) -> None:
    world = GuardedWorld(SPEC, {"s1/l1": 4, "s1/l2": 4})
    failed, other = blocked_while_evicting(world)
    world.heal(failed)
    world.run(5)
    (helper,) = helpers(world)
    assert (helper.phase, helper.status.conditions[-1].reason) == (Phase.CANCELLED, "NotNeeded")
    world.blocked = set()
    world.run(60, step=5)
    assert world.nodes_of("small0") == {"small0": other}
    if restart:
        world.start()
    world.fail(other)
    world.run(10)
    assert world.nodes_of("small0")["small0"] not in (failed, other)


@pytest.mark.parametrize("terminating", [False, True])
def test_a_neighbour_on_a_dead_node_is_healed_once_it_need_not_make_room(terminating: bool) -> None:
    """Its eviction is not forced for a Migration that is over; a Migration of its own forces it."""
    world = GuardedWorld(SPEC, {"s1/l1": 4, "s1/l2": 4})
    failed, other = blocked_while_evicting(world)
    if terminating:
        world.pods["small0"].metadata.deletion_timestamp = "2023-11-14T22:13:20Z"
        world.tell_pod("small0")
    world.fail(other)
    world.heal(failed)
    world.run(2)
    world.blocked = set()
    world.run(30)
    assert world.nodes_of("small0")["small0"] not in (failed, other)
    assert not any(migration.running for migration in world.migrations.values())


def test_a_requested_move_is_left_to_healing_if_its_owner_is_not_confirmed_and_its_node_fails() -> None:
    world = GuardedWorld(SPEC, {"s1/l1": 2})
    world.put("p", "s1-l1-1", 1)
    world.owners.confirmed = False
    world.request("own", "p")
    world.run(30)
    assert world.one().phase is Phase.EVICTING
    world.fail("s1-l1-1")
    world.run(40)
    assert set(world.phases()) == {Phase.CANCELLED, Phase.DONE}
    assert world.nodes_of("p") == {"p": "s1-l1-2"}


def test_a_requested_move_that_makes_room_for_none_leaves_its_pods_to_healing() -> None:
    """Any user can name any Migration. Healing leaves pods to the Migration that moves them."""
    world = World(SPEC, {"s1/l1": 2})
    world.put("p", "s1-l1-1", 1)
    world.put("full", "s1-l1-2", 8)
    world.request("late", "full", namespace="default")
    world.run(1)
    world.request("own", "p", makesRoomFor="default/late")
    world.run(1)
    assert set(world.phases()) == {Phase.PLANNED}
    world.fail("s1-l1-1")
    world.run(0.5)
    world.cancel("default/late")
    world.run(1)
    assert world.phases() == [Phase.CANCELLED, Phase.PLANNED]
    world.controllers_stand = True
    world.finish_pod("full")
    world.controllers_stand = False
    world.run(30)
    assert world.nodes_of("p") == {"p": "s1-l1-2"}


# ---------------------------------------------------------------- others can go at once


def test_another_neighbour_leaves_if_a_budget_keeps_the_first() -> None:
    world = World(SPEC, {"s1/l1": 5, "s1/l2": 5})
    failed, free = gang_with_neighbours(world, 2)
    fill_other_leaf(world, free[0])
    world.blocked = {uid for uid in world.pods if uid == "small0"}
    world.fail(failed)
    world.run(100)
    assert world.migrations[KEY].phase is Phase.DONE
    assert world.nodes_of("small0") == {"small0": free[0]}
    assert world.nodes_of("gv-1")["gv-1"] == free[1]
    first, second = helpers(world)
    assert (first.phase, second.phase) == (Phase.CANCELLED, Phase.DONE)


def test_places_are_kept_if_no_other_neighbour_could_leave() -> None:
    world = World(SPEC, {"s1/l1": 5, "s1/l2": 5})
    failed, free = gang_with_neighbours(world, 2)
    fill_other_leaf(world, free[0])
    world.blocked = {"small0", "small1"}
    world.fail(failed)
    world.run(100)
    assert world.migrations[KEY].phase is Phase.RESERVING
    before = len(world.migrations)
    world.run(500, step=5)
    assert len(world.migrations) <= before + 1, "it goes back and forth"
    world.blocked = set()
    world.run(400, step=5)
    assert world.migrations[KEY].phase is Phase.DONE


# ---------------------------------------------------------------- names of others


def test_a_neighbour_does_not_learn_for_which_workload_it_was_to_make_room() -> None:
    world = GuardedWorld(SPEC, {"s1/l1": 4, "s1/l2": 4})
    failed, _ = blocked_while_evicting(world)
    world.heal(failed)
    world.run(5)
    (helper,) = helpers(world)
    texts = [
        event.message for event in world.emitted if isinstance(event, EmitMigrationEvent) and event.namespace == "t"
    ]
    assert "a Migration of another namespace, for which it makes room, is over" in texts
    assert "gv" not in " ".join(texts)
    assert helper.spec.makes_room_for == KEY, "a reference, which the documentation mentions"
    helper.spec.makes_room_for = ""
    assert "gv" not in msgspec.json.encode(helper).decode()


def test_the_guard_names_no_migration_and_no_owner_of_another_namespace() -> None:
    world = GuardedWorld(SPEC, {"s1/l1": 4, "s1/l2": 4})
    blocked_while_evicting(world)
    (helper,) = helpers(world)
    context = world.recovery.migrations.context
    context.tracked[KEY].owner_gone = "Job gv was deleted"
    assert world.refusal(helper.key, helper.metadata.uid) == BENEFICIARY_OVER
    context.untrack(KEY)
    assert world.refusal(helper.key, helper.metadata.uid) == BENEFICIARY_OVER


def fill_other_leaf(world: World, node: str) -> None:
    """Leave no room for the gang as a whole in the other leaf."""
    others = [name for name in world.node_objects if leaf(name) != leaf(node)]
    for name in others[:3]:
        world.put(f"other-{name}", name, 1, namespace="o")
