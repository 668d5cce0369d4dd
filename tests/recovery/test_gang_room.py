"""Nothing is free near: others move for a gang, the cheapest that do; or all of the gang goes where there is room."""

from collections.abc import Callable
from functools import partial
from itertools import combinations, count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import EPOCH
from tests.recovery.world import Kill, World, copies_of
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.seating import find_moving_pod, find_seats
from topo_scheduler.recovery.planning.relocation import RESTART_SECONDS, look_for_room

FORCED = RecoverySpec(enabled=True, force_delete=True)


def _full_leaf(clock: Callable[[], float] = lambda: 0.0, beside: int = 2) -> World:
    """A gang of three in s1/l1, one pod alone on its fourth node, and free nodes in another leaf."""
    world = World(FORCED, {"s1/l1": 4, "s1/l2": beside}, clock=clock)
    world.gang("g", 3)
    world.run()
    assert {node.rpartition("-")[0] for node in world.nodes_of("g").values()} == {"s1-l1"}
    (free,) = {f"s1-l1-{n}" for n in range(1, 5)} - set(world.nodes_of("g").values())
    world.put("small", free, 8)
    return world


def test_a_smaller_job_moves_so_that_the_gang_keeps_its_leaf() -> None:
    world = _full_leaf()
    lost = world.nodes_of("g")["g-1"]
    before = world.nodes_of("small")["small"]
    world.fail(lost)
    world.run(30)
    assert world.phases() == [Phase.DONE, Phase.DONE]
    assert world.nodes_of("g")["g-1"] == before
    assert world.nodes_of("small")["small"].startswith("s1-l2")
    helper = next(migration for migration in world.migrations.values() if migration.spec.makes_room_for)
    assert helper.spec.cause.startswith("makes room for Migration default/g-")
    order = [name for name, _ in world.evictions]
    assert order.index("small") < order.index("g-1"), "the pod that makes room goes first"
    world.check()


@pytest.mark.parametrize(("grace", "moves"), [(None, True), (30, True), (500, False), (86_400, False)])
def test_a_gang_does_not_wait_for_a_pod_that_may_take_long_to_end(grace: int | None, moves: bool) -> None:
    world = _full_leaf(beside=4)
    world.pods["small"].spec.termination_grace_period_seconds = grace
    world.tell_pod("small")
    world.fail(world.nodes_of("g")["g-1"])
    world.run(30)
    assert ("small" in dict(world.evictions)) is moves
    assert set(world.phases()) == {Phase.DONE}
    world.check()


def test_a_pod_that_may_take_hours_to_end_does_not_move_for_others() -> None:
    world = _full_leaf()
    world.pods["small"].spec.termination_grace_period_seconds = 7200
    world.tell_pod("small")
    world.fail(world.nodes_of("g")["g-1"])
    world.run(30)
    assert not world.evictions
    assert world.phases() == [Phase.PLANNED]


def test_a_migration_that_only_says_that_it_makes_room_holds_up_no_gang() -> None:
    world = _full_leaf()
    for number in (1, 2):
        world.put(f"full-{number}", f"s1-l2-{number}", 8, bare=True)
    world.fail(world.nodes_of("g")["g-1"])
    world.run(30)
    (waits,) = world.migrations
    world.put("h", "s1-l2-1", 0, namespace="hostile")
    world.request("h", "h", namespace="hostile", makesRoomFor=waits, avoid=["s1"])
    world.run(5)
    assert world.phases() == [Phase.PLANNED, Phase.PLANNED]
    for number in (1, 2):
        del world.pods[f"full-{number}"]
        world.tell_pod(f"full-{number}")
    world.run(60)
    assert world.migrations[waits].phase is Phase.DONE
    world.check()


def test_while_kernels_are_compiled_no_migration_waits_that_needs_no_search() -> None:
    world = World(FORCED, {"s1/l1": 4, "s1/l2": 2, "s2/l1": 4})
    world.gang("g", 3)
    world.run()
    (free,) = {f"s1-l1-{n}" for n in range(1, 5)} - set(world.nodes_of("g").values())
    world.put("small", free, 8)
    world.gang("h", 3)
    world.run()
    assert {node.rpartition("-")[0] for node in world.nodes_of("h").values()} == {"s2-l1"}
    world.d.engine.may_preempt(False)
    world.fail(world.nodes_of("g")["g-1"])
    world.fail(world.nodes_of("h")["h-1"])
    world.run(30)
    assert sorted(str(phase) for phase in world.phases()) == ["Done", "Planned"]
    assert [name for name, _ in world.evictions] == ["h-1"]
    world.d.engine.may_preempt()
    world.run(30)
    assert set(world.phases()) == {Phase.DONE}
    world.check()


def test_in_parts_it_comes_to_the_same_and_others_go_on_meanwhile() -> None:
    outcomes = []
    for clock in (lambda: 0.0, partial(next, count(0.0, 1.0))):
        world = _full_leaf(clock, beside=4)
        world.gang("other", 2)
        world.run()
        world.fail(world.nodes_of("g")["g-1"], world.nodes_of("other")["other-1"])
        steps = 0
        while not all(migration.phase is Phase.DONE for migration in world.migrations.values()) or not world.migrations:
            world.run(0.05, step=0.05)
            steps += 1
            assert steps < 2000
        outcomes.append((world.nodes_of("g"), world.nodes_of("small"), world.nodes_of("other"), len(world.evictions)))
        world.check()
    assert outcomes[0] == outcomes[1]


def test_a_search_goes_on_at_once_however_long_its_parts_take() -> None:
    """It does not wait for the next round over pending moves."""
    world = _full_leaf(clock=partial(next, count(0.0, 1.0)))
    world.fail(world.nodes_of("g")["g-1"])
    world.run_when_due(14.0, 0.05)
    assert world.phases() == [Phase.DONE, Phase.DONE]
    world.check()


def test_what_a_search_in_parts_found_is_checked_again() -> None:
    world = _full_leaf(partial(next, count(0.0, 1.0)))
    world.fail(world.nodes_of("g")["g-1"])
    world.run(9.9, step=0.1)
    searching = world.recovery.migrations._planning._searching
    for _ in range(200):
        world.run(0.01, step=0.01)
        if searching._search is not None:
            break
    assert searching._search is not None, "it is being searched"
    world.gang("late", 2)
    world.run(20, step=0.05)
    assert len(world.nodes_of("late")) == 2
    assert world.phases() == [Phase.PLANNED], "the pod to move has no place any more"
    assert world.evictions == []
    world.check()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", range(12))
def test_killed_at_any_write_the_gang_is_whole_again(write: int, after: bool) -> None:
    world = _full_leaf()
    lost = world.nodes_of("g")["g-1"]
    world.fail(lost)
    world.kill = Kill(write, after)
    world.run(120)
    assert world.kill.count > write
    where = world.nodes_of("g")
    assert len(where) == 3 and lost not in where.values() and len(world.nodes_of("small")) == 1
    assert len({node.rpartition("-")[0] for node in where.values()}) == 1
    assert all(phase is not None and phase.over for phase in world.phases())
    world.check()


def test_the_whole_gang_goes_where_there_is_room_if_no_pod_can_make_any() -> None:
    world = World(FORCED, {"s1/l1": 3, "s1/l2": 3})
    world.gang("g", 3)
    world.run()
    where = world.nodes_of("g")
    world.fail(where["g-1"])
    world.run(30)
    assert world.phases() == [Phase.DONE]
    assert world.one().status.policy == "restart-gang"
    after = world.nodes_of("g")
    assert len(after) == 3 and len({node.rpartition("-")[0] for node in after.values()}) == 1
    assert not set(where.values()) & set(after.values())
    world.check()


def test_the_cheaper_of_moving_others_and_restarting_is_done() -> None:
    for ran, policy in ((0.0, "replace"), (100_000.0, "restart-gang")):
        world = World(FORCED, {"s1/l1": 4, "s1/l2": 4, "s1/l3": 2})
        world.gang("g", 3)
        world.run()
        where = world.nodes_of("g")
        leaf = where["g-0"].rpartition("-")[0]
        (free,) = {f"{leaf}-{n}" for n in range(1, 5)} - set(where.values())
        world.put("small", free, 8, ran=ran)
        world.fail(where["g-1"])
        world.run(40)
        first = next(migration for migration in world.migrations.values() if not migration.spec.makes_room_for)
        assert first.phase is Phase.DONE
        assert first.status.policy == policy
        world.check()


def _cost(ran: int, interval: int, gpus: int) -> float:
    return max(1, gpus) * (RESTART_SECONDS + (min(ran, interval) if interval else ran))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(2, 4), min_size=2, max_size=3),
    pods=st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from([2, 4, 8]), st.integers(0, 9000), st.sampled_from([0, 600])),
        max_size=9,
    ),
)
def test_it_costs_no_more_than_the_best_of_all_there_are(
    sizes: list[int], pods: list[tuple[int, int, int, int]]
) -> None:
    """Against every set of pods and every way to seat them, worked out without the planner."""
    world = World(FORCED, {f"s1/l{n}": size for n, size in enumerate(sizes, 1)})
    world.gang("g", 2)
    world.run()
    where = world.nodes_of("g")
    lost, home = where["g-0"], where["g-0"].rpartition("-")[0]
    nodes = sorted(world.node_objects)
    free = dict.fromkeys(nodes, 8)
    for node in where.values():
        free[node] = 0
    others: dict[str, tuple[str, int, float]] = {}
    for number, (at, gpus, ran, interval) in enumerate(pods):
        node = nodes[at % len(nodes)]
        if free[node] < gpus:
            continue
        free[node] -= gpus
        said = {"checkpoint-interval": f"{interval}s"} if interval else {}
        world.put(f"p{number}", node, gpus, ran=float(ran), said=said)
        others[f"p{number}"] = (node, gpus, _cost(ran, interval, gpus))
    moving_pod = find_moving_pod(world.view, "g-0")
    assert moving_pod is not None
    if any(node != lost and node.rpartition("-")[0] == home and left >= 8 for node, left in free.items()):
        assert find_seats(world.view, [moving_pod], {lost}, "default/m", world.now), "nobody need move"
        return
    rooms = look_for_room(world.view, [moving_pod], {lost}, (), "default/m", world.now, EPOCH + world.now)
    plan = next((room for room in rooms if room is not None), None)
    best = _best(others, free, lost, home)
    if best is None:
        assert plan is None
    else:
        assert plan is not None, best
        assert plan.cost == pytest.approx(best)
        assert plan.seats["g-0"].rpartition("-")[0] == home
        assert {other.member.uid for other in plan.relocated} <= others.keys()


def _best(others: dict[str, tuple[str, int, float]], free: dict[str, int], lost: str, home: str) -> float | None:
    costs = []
    for size in range(1, len(others) + 1):
        for chosen in combinations(sorted(others), size):
            left = dict(free)
            for name in chosen:
                left[others[name][0]] += others[name][1]
            left[lost] = 0
            for seat in [node for node in left if node.rpartition("-")[0] == home and left[node] >= 8]:
                rest = {**left, seat: left[seat] - 8}
                if _seats([(others[name][1], others[name][0]) for name in chosen], rest):
                    costs.append(sum(others[name][2] for name in chosen))
    return min(costs, default=None)


def _seats(pods: list[tuple[int, str]], left: dict[str, int]) -> bool:
    """Whether each pod has a node, another than its own."""
    if not pods:
        return True
    (gpus, own), rest = pods[0], pods[1:]
    return any(
        free >= gpus and node != own and _seats(rest, {**left, node: free - gpus}) for node, free in left.items()
    )


@pytest.mark.parametrize("reason", ["", "Requested", "NodeNotReady", "GPUsUnhealthy", "DomainFailed", "PendingGang"])
def test_a_migration_of_a_tenant_moves_no_pod_of_others(reason: str) -> None:
    """Any reason can be written into it; that nodes failed or are cordoned can't."""
    world = _full_leaf()
    where = world.nodes_of("g")
    world.request("mine", "g-1", reason=reason)
    world.run(60)
    assert list(world.migrations) == ["default/mine"], "no Migration of another pod is made for it"
    assert world.evictions == []
    assert world.nodes_of("g") == where
    world.check()


def test_others_make_room_for_a_migration_of_pods_on_cordoned_nodes() -> None:
    """A drain cordons nodes first, which takes the rights of an operator."""
    world = _full_leaf()
    node = world.nodes_of("g")["g-1"]
    world.node_objects[node].spec.unschedulable = True
    world.d.nodes(*copies_of([world.node_objects[node]]))
    world.request("drain", "g-1")
    world.run(60)
    assert set(world.phases()) == {Phase.DONE}
    assert node not in world.nodes_of("g").values()
    world.check()
