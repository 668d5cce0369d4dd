"""How many members the leaves of a region hold together, under limits per leaf: against adding them up one by one."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.scheduling.placing.ask import Limits
from topo_scheduler.scheduling.preemption.regions import Region


def held(leaves: list[list[int]], most: int, limits: Limits, gpus: int) -> int:
    """The most members in so many leaves, each with its best nodes within the limits."""
    cap = limits.members_per_leaf(gpus) or 10_000
    nodes = limits.max_nodes_per_leaf or 10_000
    each = [min(cap, sum(sorted(leaf, reverse=True)[:nodes])) for leaf in leaves]
    return max(sum(chosen) for chosen in combinations(each, min(most, len(each))))


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([0, 2, 4, 9]),
)
def test_a_region_holds_what_its_best_nodes_hold(leaves: list[list[int]], most: int, nodes: int, gpus: int) -> None:
    offsets = np.cumsum([0, *map(len, leaves)])
    rows = np.arange(offsets[-1])
    limits = Limits(max_nodes_per_leaf=nodes, max_gpus_per_leaf=gpus)
    fits = np.array([[fit for leaf in leaves for fit in leaf]])
    region = Region(rows, offsets, most)
    members = held(leaves, most, limits, 2)
    assert region.holds(fits, members, limits, 2).tolist() == [True]
    assert region.holds(fits, members + 1, limits, 2).tolist() == [False]
