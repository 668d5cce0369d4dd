"""How many members the leaves of a region hold together, under limits per leaf: against adding them up one by one."""

from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduling.planning import Small, gang, grid
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery, SizeRuleLimits, SpreadLimits
from topo_scheduler.scheduling.preemption.regions import Region, regions_for
from topo_scheduler.scheduling.preemption.spreading import spread_cheapest
from topo_scheduler.state.decision import SizeRule


def held(leaves: list[list[int]], max_leaves: int, limits: SizeRuleLimits, gpus: int) -> int:
    """The most members in so many leaves, each with its best nodes within the limits."""
    cap = limits.members_per_leaf(gpus) or 10_000
    nodes = limits.max_nodes_per_leaf or 10_000
    each = [min(cap, sum(sorted(leaf, reverse=True)[:nodes])) for leaf in leaves]
    return max(sum(chosen) for chosen in combinations(each, min(max_leaves, len(each))))


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([0, 2, 4, 9]),
)
def test_a_region_holds_what_its_best_nodes_hold(
    leaves: list[list[int]], max_leaves: int, nodes: int, gpus: int
) -> None:
    offsets = np.cumsum([0, *map(len, leaves)])
    rows = np.arange(offsets[-1])
    limits = SizeRuleLimits(max_nodes_per_leaf=nodes, max_gpus_per_leaf=gpus)
    fits = np.array([[fit for leaf in leaves for fit in leaf]])
    region = Region(rows, offsets, max_leaves)
    members = held(leaves, max_leaves, limits, 2)
    assert region.holds(fits, members, limits, 2).tolist() == [True]
    assert region.holds(fits, members + 1, limits, 2).tolist() == [False]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(0, 2),
    st.integers(0, 3),
    st.sampled_from([0, 2, 4, 9]),
)
def test_members_that_run_count_against_the_limits_and_their_leaves_do_not_count_as_further(
    leaves: list[list[tuple[int, int]]], further: int, nodes: int, gpus: int
) -> None:
    """Each node has room for further members, and members that run. Every spread of further members is tried."""
    rooms = [room for leaf in leaves for room, _ in leaf]
    running = [count for leaf in leaves for _, count in leaf]
    leaf_of = [number for number, leaf in enumerate(leaves) for _ in leaf]
    home = {leaf for leaf, count in zip(leaf_of, running, strict=True) if count}

    def is_allowed(rows: tuple[int, ...]) -> bool:
        for leaf in range(len(leaves)):
            inside = [row for row in rows if leaf_of[row] == leaf]
            used = {row for row, of_leaf in enumerate(leaf_of) if of_leaf == leaf and running[row]}
            new = set(inside) - used
            if nodes and (len(set(inside)) > nodes or len(new) > max(0, nodes - len(used))):
                return False
            if gpus and inside and len(inside) + sum(running[row] for row in used) > gpus // 2:
                return False
        return len({leaf_of[row] for row in rows} - home) <= further

    offsets = np.cumsum([0, *map(len, leaves)])
    region = Region(np.arange(offsets[-1]), offsets, len(home) + further, np.array(running))
    limits = SizeRuleLimits(max_nodes_per_leaf=nodes, max_gpus_per_leaf=gpus)
    places = [row for row, room in enumerate(rooms) for _ in range(room)]
    for members in (1, 2, 3):
        expected = any(map(is_allowed, combinations(places, members)))
        assert region.holds(np.array([rooms]), members, limits, 2).tolist() == [expected]
        spread = spread_cheapest(region, [[0] * (min(room, members) + 1) for room in rooms], members, limits, 2)
        assert (spread is not None) == expected
        if spread is not None:
            assert is_allowed(tuple(row for row, count in enumerate(spread[1]) for _ in range(count)))
    open_rows = region.open_rows(limits, 2).tolist()
    assert [row for row in open_rows if leaf_of[row] in home] == [
        row for row in range(len(rooms)) if leaf_of[row] in home and is_allowed((row,))
    ]


def nodes_of(small: Small, ask: PlacementQuery, rule: SizeRule) -> list[list[str]]:
    """Return the nodes of each region."""
    return [
        [small.world.nodes.names[row] for row in region.rows.tolist()]
        for region in regions_for(ask, small.world.layout, rule)
    ]


def test_a_gang_that_runs_in_part_is_given_room_where_it_runs_or_in_the_domain_around() -> None:
    small = Small(grid(2, 2, 1))
    rule = SizeRule(1, 2, 1, "spine")
    around = [["s1l1n1"], ["s1l1n1", "s1l2n1"]]
    assert nodes_of(small, gang(1, running=small.rows("s1l1n1")), rule) == around
    assert nodes_of(small, gang(1), rule) == [["s1l1n1", "s1l2n1"], ["s2l1n1", "s2l2n1"]]


def test_a_gang_that_prefers_few_leaves_is_given_room_in_a_domain_of_the_level_that_it_requires() -> None:
    small = Small(grid(2, 2, 1))
    rule, ask = SizeRule(1, 2, 1, "spine"), gang(1, required=False)
    spines, leaves = [["s1l1n1", "s1l2n1"], ["s2l1n1", "s2l2n1"]], [["s1l1n1"], ["s1l2n1"], ["s2l1n1"], ["s2l2n1"]]
    assert nodes_of(small, ask, rule) == [[node for spine in spines for node in spine]]
    assert nodes_of(small, replace(ask, within=1), rule) == spines
    assert nodes_of(small, replace(ask, within=2), rule) == leaves
    assert nodes_of(small, replace(ask, bounds=SpreadLimits(depth=1)), rule) == spines
    assert nodes_of(small, replace(ask, within=1, running=small.rows("s2l1n1")), rule) == [["s2l1n1"], spines[1]]
