"""Several Migrations that wait at once: as few as can be go without seats, and it costs the least there is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import EPOCH
from tests.recovery.world import World
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.claims import Claim, Copies, Shares
from topo_scheduler.recovery.reading import rest_of_gang
from topo_scheduler.recovery.room import RESTART
from topo_scheduler.recovery.room_for_all import Others, plan_all
from topo_scheduler.recovery.seating import leaver
from topo_scheduler.scheduling.parts import whole

FORCED = RecoverySpec(enabled=True, force_delete=True)
GPUS = 8


def claim_of(world: World, gang: str, lost: Sequence[str], avoided: frozenset[str]) -> Claim:
    """Return what the lost members of a gang ask for."""
    found = tuple(one for one in (leaver(world.d.engine, uid) for uid in lost) if one is not None)
    rest = tuple(rest_of_gang(world.d.engine, found))
    return Claim(f"default/{gang}", found, avoided, lambda _: None, rest, moves_others=True)


def planned(world: World, claims: Sequence[Claim]) -> Shares:
    """Return what all get."""
    others = Others(frozenset(), EPOCH + world.now)
    return whole(plan_all(Copies(world.d.engine, world.now), claims, others))


@dataclass(frozen=True)
class Lost:
    """A gang of which members are lost: what is left of it runs in one leaf, its home."""

    name: str
    priority: int
    home: str
    lost: tuple[str, ...]
    rest: tuple[str, ...]
    """Nodes of those that run on."""


@dataclass(frozen=True)
class Cluster:
    """GPUs free on nodes that are well, pods that may move by name (node, GPUs, cost), gangs that lost members."""

    free: Mapping[str, int]
    pods: Mapping[str, tuple[str, int, float]]
    gangs: Sequence[Lost]


def leaf(node: str) -> str:
    """Return the leaf of a node."""
    return node.rpartition("-")[0]


def least(cluster: Cluster) -> tuple[tuple[int, ...], float]:
    """Return pods without seats by priority, and the cost, of the best of all plans; without the planner."""
    found = []
    sets = [some for size in range(len(cluster.pods) + 1) for some in combinations(sorted(cluster.pods), size)]
    priced = sorted((sum(cluster.pods[name][2] for name in some), some) for some in sets)
    levels = sorted({gang.priority for gang in cluster.gangs}, reverse=True)
    for ways in product(("near", "whole", "waits"), repeat=len(cluster.gangs)):
        each = list(zip(cluster.gangs, ways, strict=True))
        lacking = tuple(
            sum(len(gang.lost) for gang, way in each if way == "waits" and gang.priority == level) for level in levels
        )
        restarts = sum(len(gang.rest) * GPUS * RESTART for gang, way in each if way == "whole")
        helps = any(way == "near" for way in ways)
        for cost, some in priced:
            if found and (lacking, restarts + cost) >= min(found):
                break
            if (helps or not some) and _fits(cluster, each, some):
                found.append((lacking, restarts + cost))
                break
    return min(found)


def _fits(cluster: Cluster, each: Sequence[tuple[Lost, str]], some: Sequence[str]) -> bool:
    left = dict(cluster.free)
    for name in some:
        node, gpus, _ = cluster.pods[name]
        left[node] += gpus
    moving = [(cluster.pods[name][1], cluster.pods[name][0]) for name in some]
    return any(_seated(moving, rest) for rest in _places(each, left))


def _places(each: Sequence[tuple[Lost, str]], left: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yield what is left on each node, for all ways to seat gangs."""
    if not each:
        yield left
        return
    (gang, way), more = each[0], each[1:]
    if way == "waits":
        yield from _places(more, left)
        return
    count = len(gang.lost) + (len(gang.rest) if way == "whole" else 0)
    own = set(gang.rest) if way == "whole" else set()
    open_ = [node for node, free in left.items() if free >= GPUS or node in own]
    leaves = {gang.home} if way == "near" else {leaf(node) for node in open_}
    for home in sorted(leaves):
        for seats in combinations([node for node in open_ if leaf(node) == home], count):
            rest = {node: free - GPUS * (node in seats and node not in own) for node, free in left.items()}
            yield from _places(more, rest)


def _seated(pods: Sequence[tuple[int, str]], left: dict[str, int]) -> bool:
    if not pods:
        return True
    (gpus, own), rest = pods[0], pods[1:]
    return any(
        free >= gpus and node != own and _seated(rest, {**left, node: free - gpus}) for node, free in left.items()
    )


def check(cluster: Cluster, shares: Shares) -> None:
    """See that what all get can be: seats are where they may be, and nobody shares one."""
    left = dict(cluster.free)
    for share in shares.values():
        for other in share.others:
            node, gpus, _ = cluster.pods[other.member.uid]
            left[node] += gpus
    for gang in cluster.gangs:
        share = shares[f"default/{gang.name}"]
        nodes = list(share.seats.values())
        assert len(nodes) in (0, len(gang.lost) + (len(gang.rest) if share.whole else 0))
        assert len({leaf(node) for node in nodes} | (set() if share.whole or not nodes else {gang.home})) <= 1
        for node in nodes:
            left[node] -= GPUS if not (share.whole and node in gang.rest) else 0
        for other in share.others:
            to = share.to[other.member.uid]
            assert to != other.entry.node
            left[to] -= cluster.pods[other.member.uid][1]
    assert all(free >= 0 for free in left.values()), left


def _built(
    sizes: Sequence[int],
    gangs: Sequence[tuple[int, int, int]],
    pods: Sequence[tuple[int, int, int]],
) -> tuple[World, Cluster, list[Claim]] | None:
    world = World(FORCED, {f"s1/l{n}": size for n, size in enumerate(sizes, 1)})
    for number, (size, _, priority) in enumerate(gangs):
        world.gang(f"g{number}", size, priority=priority)
        world.run()
    free = dict.fromkeys(sorted(world.node_objects), GPUS)
    for node in world.nodes_of("g").values():
        free[node] = 0
    there: dict[str, tuple[str, int, float]] = {}
    for number, (at, gpus, ran) in enumerate(pods):
        node = sorted(free)[at % len(free)]
        if free[node] >= gpus:
            free[node] -= gpus
            world.put(f"p{number}", node, gpus, ran=float(ran))
            there[f"p{number}"] = (node, gpus, gpus * (RESTART + ran))
    lost: list[Lost] = []
    for number, (size, count, priority) in enumerate(gangs):
        where = world.nodes_of(f"g{number}-")
        if len(where) < size or len({leaf(node) for node in where.values()}) > 1:
            return None
        names = tuple(f"g{number}-{n}" for n in range(min(count, size - 1)))
        rest = tuple(node for name, node in sorted(where.items()) if name not in names)
        lost.append(Lost(f"g{number}", priority, leaf(rest[0]), names, rest))
    failed = frozenset(world.pods[uid].spec.node_name for gang in lost for uid in gang.lost)
    cluster = Cluster({node: left for node, left in free.items() if node not in failed}, there, lost)
    claims = [claim_of(world, gang.name, gang.lost, failed) for gang in lost]
    claims.sort(key=lambda claim: (-claim.priority, -len(claim.leavers), claim.key))
    return world, cluster, claims


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(2, 5), min_size=2, max_size=3).filter(lambda sizes: sum(sizes) <= 12),
    gangs=st.lists(st.tuples(st.integers(2, 3), st.integers(1, 2), st.sampled_from([0, 0, 5])), min_size=2, max_size=3),
    pods=st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from([2, 4, 8, 8]), st.sampled_from([0, 50, 300, 5000])), max_size=7
    ),
)
def test_no_plan_seats_more_or_costs_less(
    sizes: list[int], gangs: list[tuple[int, int, int]], pods: list[tuple[int, int, int]]
) -> None:
    """Against all sets of pods that could move, and all ways to seat everybody, worked out without the planner."""
    built = _built(sizes, gangs, pods)
    if built is None:
        return
    world, cluster, claims = built
    shares = planned(world, claims)
    check(cluster, shares)
    levels = sorted({claim.priority for claim in claims}, reverse=True)
    without = [claim for claim in claims if not shares[claim.key].seats]
    lacking = tuple(sum(len(one.leavers) for one in without if one.priority == level) for level in levels)
    assert (lacking, pytest.approx(sum(share.cost for share in shares.values()))) == least(cluster)
