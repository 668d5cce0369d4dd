"""Pending Migrations of the same moment, from failure to end: which gets which seat; nothing is lost."""

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from tests.recovery.world import Kill, World, copies_of, leaf
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoveryLimits, RecoverySpec

FORCED = RecoverySpec(enabled=True, force_delete=True)


def still() -> float:
    """A clock on which everything is done in one step."""
    return 0.0


def two_gangs_one_free(clock: Callable[[], float] = still, spec: RecoverySpec = FORCED) -> World:
    """Gangs of two, `a`, and of three, `b`, in a leaf with one more node; and a leaf of three that is free."""
    world = World(spec, {"s1/l1": 6, "s1/l2": 3}, clock=clock)
    for n in range(1, 4):
        world.put(f"first{n}", f"s1-l2-{n}", 8)
    for name, size in (("b", 3), ("a", 2)):
        world.gang(name, size)
        world.run()
    for uid in [uid for uid in world.pods if uid.startswith("first")]:
        del world.pods[uid]
        world.tell_pod(uid)
    assert {leaf(node) for node in world.nodes_of("").values()} == {"s1-l1"}
    return world


def lose_one_of_each(world: World) -> None:
    """A node of each of the two gangs falls silent."""
    world.fail(world.nodes_of("a")["a-0"], world.nodes_of("b")["b-0"])


@pytest.mark.parametrize("other", ["s1/l0", "s1/l2"])
def test_a_pod_that_can_go_elsewhere_leaves_the_free_node_to_the_gang_that_needs_it(other: str) -> None:
    world = World(FORCED, {"s1/l1": 4, other: 3})
    world.gang("g", 3)
    world.run()
    home = leaf(world.nodes_of("g")["g-0"])
    free = [node for node in world.node_objects if node not in world.nodes_of("g").values() and leaf(node) != home]
    for number, node in enumerate(free[:2]):
        world.put(f"p{number}", node, 8, priority=5)
    world.fail(world.nodes_of("g")["g-0"], world.nodes_of("p")["p0"])
    world.run(30)
    assert set(world.phases()) == {Phase.DONE} and len(world.phases()) == 2
    assert {leaf(node) for node in world.nodes_of("g").values()} == {home}
    assert sorted(name for name, _ in world.evictions) == ["g-0", "p0"]
    world.check()


def test_the_free_seat_goes_to_the_gang_that_costs_more_to_start_again() -> None:
    world = two_gangs_one_free()
    lose_one_of_each(world)
    world.run(40)
    assert set(world.phases()) == {Phase.DONE} and len(world.phases()) == 2
    assert {leaf(node) for node in world.nodes_of("b").values()} == {"s1-l1"}
    assert {leaf(node) for node in world.nodes_of("a").values()} == {"s1-l2"}
    assert sorted(name for name, _ in world.evictions) == ["a-0", "a-1", "b-0"]
    world.check()


def test_the_seat_goes_to_the_higher_priority_whatever_it_costs() -> None:
    world = World(FORCED, {"s1/l1": 6})
    world.gang("b", 3)
    world.run()
    world.gang("a", 2, priority=5)
    world.run()
    lose_one_of_each(world)
    world.run(40)
    assert sorted(str(phase) for phase in world.phases()) == ["Done", "Planned"]
    assert [name for name, _ in world.evictions] == ["a-0"]
    world.check()


def test_in_parts_it_comes_to_the_same() -> None:
    outcomes = []
    for clock in (still, partial(next, count(0.0, 1.0))):
        world = two_gangs_one_free(clock)
        lose_one_of_each(world)
        world.run(60, step=0.05)
        assert set(world.phases()) == {Phase.DONE}
        outcomes.append((world.nodes_of("a"), world.nodes_of("b"), len(world.evictions)))
        world.check()
    assert outcomes[0] == outcomes[1]


def test_those_whose_turn_has_not_come_take_what_is_left_later() -> None:
    spec = RecoverySpec(enabled=True, force_delete=True, limits=RecoveryLimits(at_once=1))
    world = two_gangs_one_free(spec=spec)
    lose_one_of_each(world)
    for _ in range(60):
        world.run(1)
        assert sum(phase is not None and phase.running for phase in world.phases()) <= 1
    assert set(world.phases()) == {Phase.DONE}
    assert len(world.nodes_of("a")) == 2 and len(world.nodes_of("b")) == 3
    world.check()


def test_with_dry_run_nothing_begins() -> None:
    world = two_gangs_one_free(spec=RecoverySpec(enabled=True, force_delete=True, dry_run=True))
    lose_one_of_each(world)
    world.run(40)
    assert set(world.phases()) == {Phase.PLANNED}
    assert world.evictions == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", range(14))
def test_killed_at_any_write_all_are_whole_again(write: int, after: bool) -> None:
    world = two_gangs_one_free()
    lose_one_of_each(world)
    world.kill = Kill(write, after)
    world.run(120)
    assert world.kill.count > write
    assert len(world.nodes_of("a")) == 2 and len(world.nodes_of("b")) == 3
    assert {leaf(node) for node in world.nodes_of("b").values()} == {"s1-l1"}
    assert all(phase is not None and phase.over for phase in world.phases())
    world.check()


def test_a_node_taken_meanwhile_is_reserved_for_no_pod() -> None:
    world = two_gangs_one_free(partial(next, count(0.0, 1.0)))
    lose_one_of_each(world)
    world.run(10, step=0.1)
    for _ in range(400):
        world.run(0.01, step=0.01)
        if len(world.phases()) == 2:
            break
    world.gang("late", 3)
    world.run(60, step=0.05)
    used = [*world.nodes_of("a").values(), *world.nodes_of("b").values(), *world.nodes_of("late").values()]
    assert len(used) == len(set(used)) == 8
    world.check()


def test_where_nodes_change_all_the_time_each_takes_what_it_finds() -> None:
    world = two_gangs_one_free(partial(next, count(0.0, 1.0)))
    lose_one_of_each(world)
    changing = "s1-l2-1"
    for number in range(800):
        world.node_objects[changing].metadata.labels["changed"] = str(number)
        world.d.nodes(*copies_of([world.node_objects[changing]]))
        world.run(0.05, step=0.05)
    assert len(world.nodes_of("a")) == 2 and len(world.nodes_of("b")) == 3
    assert all(phase is not None and phase.over for phase in world.phases())
    world.check()


def test_gangs_with_free_places_wait_together_for_those_that_have_none() -> None:
    """However many they are: a second, not one after the other."""
    leaves = {f"s1/l{number}": 3 for number in range(1, 7)}
    world = World(FORCED, {**leaves, "s1/l7": 6}, clock=partial(next, count(0.0, 1.0)))
    for number in range(1, 7):
        world.put(f"stays{number}", f"s1-l{number}-3", 8, said={"movable": "false"})
    world.gang("crowded", 2)
    world.run()
    for number in range(1, 7):
        del world.pods[f"stays{number}"]
        world.tell_pod(f"stays{number}")
    assert {leaf(node) for node in world.nodes_of("crowded").values()} == {"s1-l7"}
    for node in [f"s1-l7-{number}" for number in range(1, 7)]:
        if node not in world.nodes_of("crowded").values():
            for number in range(4):
                world.put(f"p{number}-{node}", node, 2, ran=3000.0)
    for number in range(1, 7):
        world.gang(f"g{number}", 2)
        world.run()
    world.fail(*(world.nodes_of(name)[f"{name}-0"] for name in ["crowded", *(f"g{n}" for n in range(1, 7))]))
    world.run(13.5, step=0.02)
    for number in range(1, 7):
        assert len(world.nodes_of(f"g{number}")) == 2
    world.run(120, step=0.1)
    assert len(world.nodes_of("crowded")) == 2
    world.check()
