"""Several pending Migrations together: as few as possible stay without seats, at the least cost."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, combinations_with_replacement, product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.recovery.joint_claims import (
    GPUS_PER_NODE,
    ClusterWithLosses,
    GangWithLosses,
    check_shares,
    plan_jointly,
    relocation_request,
)
from tests.recovery.world import World, leaf
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.seating import find_moving_pod
from topo_scheduler.recovery.planning.joint_assignment import EXACT_MIGRATIONS
from topo_scheduler.recovery.planning.joint_planning import JointPlanning
from topo_scheduler.recovery.planning.relocation import RESTART_SECONDS
from topo_scheduler.recovery.planning.seat_claims import RelocationRequest, _is_there

FORCED = RecoverySpec(enabled=True, force_delete=True)


def least(cluster: ClusterWithLosses) -> tuple[tuple[int, ...], float]:
    """Return pods without seats by priority, and the cost, of the best of all plans; without the planner."""
    outcomes: list[tuple[tuple[int, ...], float]] = []
    sets = [names for size in range(len(cluster.pods) + 1) for names in combinations(sorted(cluster.pods), size)]
    priced = sorted((sum(cluster.pods[name][2] for name in names), names) for names in sets)
    levels = sorted({gang.priority for gang in cluster.gangs}, reverse=True)
    for ways in product(*(("near", "whole", "waits") if gang.rest else ("near", "waits") for gang in cluster.gangs)):
        each = list(zip(cluster.gangs, ways, strict=True))
        lacking = tuple(
            sum(len(gang.lost) for gang, way in each if way == "waits" and gang.priority == level) for level in levels
        )
        restarts = sum(len(gang.rest) * gang.gpus * RESTART_SECONDS for gang, way in each if way == "whole")
        helps = any(way == "near" for way in ways)
        for cost, chosen in priced:
            if outcomes and (lacking, restarts + cost) >= min(outcomes):
                break
            if (helps or not chosen) and _fits(cluster, each, chosen):
                outcomes.append((lacking, restarts + cost))
                break
    return min(outcomes)


def _fits(cluster: ClusterWithLosses, each: Sequence[tuple[GangWithLosses, str]], chosen: Sequence[str]) -> bool:
    left = dict(cluster.free)
    for name in chosen:
        node, gpus, _ = cluster.pods[name]
        left[node] += gpus
    moving = [(cluster.pods[name][1], cluster.pods[name][0]) for name in chosen]
    return any(_seated(moving, rest) for rest in _places(each, left))


def _places(each: Sequence[tuple[GangWithLosses, str]], left: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yield what is left on each node, for all ways to seat gangs."""
    if not each:
        yield left
        return
    (gang, way), more = each[0], each[1:]
    if way == "waits":
        yield from _places(more, left)
        return
    rest = Counter(gang.rest if way == "whole" else ())
    count, gpus = len(gang.lost) + rest.total(), gang.gpus
    open_ = {node: free + rest[node] * gpus for node, free in left.items() if free + rest[node] * gpus >= gpus}
    for home in [gang.home] if way == "near" and gang.home else sorted({leaf(node) for node in open_}):
        for seats in combinations_with_replacement([node for node in open_ if leaf(node) == home], count):
            taken = Counter(seats)
            if all(taken[node] * gpus <= open_[node] for node in taken):
                # What the rest of it leaves is not free until it has gone.
                yield from _places(more, {node: free - taken[node] * gpus for node, free in left.items()})


def _seated(pods: Sequence[tuple[int, str]], left: dict[str, int]) -> bool:
    if not pods:
        return True
    (gpus, own), rest = pods[0], pods[1:]
    return any(
        free >= gpus and node != own and _seated(rest, {**left, node: free - gpus}) for node, free in left.items()
    )


def built(
    sizes: Sequence[int],
    gangs: Sequence[tuple[int, int, int, int]],
    pods: Sequence[tuple[int, int, int]],
    also: int = 0,
) -> tuple[World, ClusterWithLosses, list[RelocationRequest]] | None:
    """Return a cluster of leaves of these sizes, and what those ask for who lost something.

    Gangs are of (size, nodes of it that fail, priority, GPUs of each), pods alone of (node, GPUs, seconds they ran);
    ``also`` so many of the nodes of those fail as well. None where a gang does not lie in one leaf.
    """
    world = World(FORCED, {f"s1/l{n}": size for n, size in enumerate(sizes, 1)})
    for number, (size, _, priority, gpus) in enumerate(gangs):
        world.gang(f"g{number}", size, priority=priority, gpus=gpus)
        world.run()
    where = [world.nodes_of(f"g{number}-") for number in range(len(gangs))]
    if any(
        len(placement) < gang[0] or len({leaf(n) for n in placement.values()}) > 1
        for placement, gang in zip(where, gangs, strict=True)
    ):
        return None
    free = dict.fromkeys(sorted(world.node_objects), GPUS_PER_NODE)
    for gang_nodes, gang in zip(where, gangs, strict=True):
        for node in gang_nodes.values():
            free[node] -= gang[3]
    single_pods: dict[str, tuple[str, int, float]] = {}
    for number, (at, gpus, ran) in enumerate(pods):
        node = sorted(free)[at % len(free)]
        if free[node] >= gpus:
            free[node] -= gpus
            world.put(f"p{number}", node, gpus, ran=float(ran))
            single_pods[f"p{number}"] = (node, gpus, gpus * (RESTART_SECONDS + ran))
    failed = set(sorted({node for node, _, _ in single_pods.values()})[:also])
    for gang_nodes, gang in zip(where, gangs, strict=True):
        failed |= set(sorted(set(gang_nodes.values()))[: gang[1]])
    lost = [
        GangWithLosses(name, 0, "", (name,), gpus=gpus)
        for name, (node, gpus, _) in single_pods.items()
        if node in failed
    ]
    for number, (gang_nodes, gang) in enumerate(zip(where, gangs, strict=True)):
        names = tuple(name for name, node in sorted(gang_nodes.items()) if node in failed)
        rest = tuple(node for _, node in sorted(gang_nodes.items()) if node not in failed)
        lost += (
            [GangWithLosses(f"g{number}", gang[2], leaf(rest[0]) if rest else "", names, rest, gang[3])]
            if names
            else []
        )
    movable = {name: pod for name, pod in single_pods.items() if pod[0] not in failed}
    cluster = ClusterWithLosses({node: left for node, left in free.items() if node not in failed}, movable, lost)
    claims = [relocation_request(world, hit_gang.name, hit_gang.lost, frozenset(failed)) for hit_gang in lost]
    claims.sort(key=lambda claim: (-claim.priority, -len(claim.moving_pods), claim.key))
    return world, cluster, claims


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(2, 5), min_size=2, max_size=3).filter(lambda sizes: sum(sizes) <= 12),
    gangs=st.lists(
        st.tuples(
            st.integers(2, 4),
            st.integers(1, 2),
            st.sampled_from([0, 0, 5]),
            st.sampled_from([GPUS_PER_NODE, GPUS_PER_NODE, GPUS_PER_NODE // 2]),
        ),
        min_size=1,
        max_size=3,
    ),
    pods=st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from([2, 4, 8, 8]), st.sampled_from([0, 50, 300, 5000])), max_size=7
    ),
    also=st.sampled_from([0, 0, 1, 2]),
)
def test_no_plan_seats_more_or_costs_less(
    sizes: list[int], gangs: list[tuple[int, int, int, int]], pods: list[tuple[int, int, int]], also: int
) -> None:
    """Against all sets of pods that could move, and all ways to place all pods, worked out without the planner."""
    setup = built(sizes, gangs, pods, also)
    if setup is None or not 1 <= len(setup[2]) <= EXACT_MIGRATIONS:
        return
    world, cluster, claims = setup
    shares = plan_jointly(world, claims)
    check_shares(cluster, shares)
    levels = sorted({claim.priority for claim in claims}, reverse=True)
    without = [claim for claim in claims if not shares[claim.key].seats]
    lacking = tuple(sum(len(claim.moving_pods) for claim in without if claim.priority == level) for level in levels)
    seated, cost = least(cluster)
    assert lacking == seated
    assert sum(share.cost for share in shares.values()) == pytest.approx(cost)


def lost_of_two() -> tuple[World, list[str]]:
    """A gang of two in a leaf with two more nodes; return also the uids of its pods."""
    world = World(FORCED, {"s1/l1": 4})
    world.gang("g", 2)
    world.run()
    return world, sorted(world.pods)


def test_seats_that_were_planned_are_for_the_pods_that_were_lost_then() -> None:
    world, uids = lost_of_two()
    single, both = (relocation_request(world, "g", lost, frozenset()) for lost in (uids[:1], uids))
    context: Any = SimpleNamespace(view=world.view)
    together = JointPlanning(context, lambda: 0.0, lambda *_: single)
    share = plan_jointly(world, [single])[single.key]
    assert together._good(single, share, world.now)
    assert not together._good(both, share, world.now), "more of its pods are lost by now"


def test_a_pod_is_there_while_it_is_on_the_node_where_it_was() -> None:
    world, uids = lost_of_two()
    was = find_moving_pod(world.view, uids[0])
    assert was is not None and _is_there(world.view, was)
    for node in world.node_objects:
        world.d.engine.world.ledger.confirm(uids[0], node, was.entry.amounts)
        assert _is_there(world.view, was) == (node == was.member.node)
