"""How many members the leaves of a region hold together, under limits per leaf: against adding them up one by one."""

from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduling.planning import Small, gang, grid
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery, SizeRuleLimits, SpreadLimits
from topo_scheduler.scheduling.preemption.regions import Region, regions_for
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
