"""How many members fit: on nodes, in leaves, in how few leaves."""

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.arrays import Int64, fits, grid, ints, leaves_in_domains, offsets, small
from topo_scheduler.kernels.fit import fewest_leaves, fit_leaves, fit_rows, sort_ascending, sum_ranges


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(small, min_size=3, max_size=3), st.lists(small, min_size=3, max_size=3), st.booleans()),
        max_size=6,
    ),
    st.dictionaries(st.integers(0, 2), st.integers(1, 4), min_size=1),
    st.data(),
)
def test_as_many_fit_on_a_node_as_can_be_put_there_one_by_one(
    nodes: list[tuple[list[int], list[int], bool]], asked: dict[int, int], data: st.DataObject
) -> None:
    allocatable = grid([node[0] for node in nodes], 3)
    used = grid([node[1] for node in nodes], 3)
    eligible = np.array([node[2] for node in nodes], np.bool_)
    rows = data.draw(st.lists(st.sampled_from(range(len(nodes))), unique=True)) if nodes else []
    out = ints([-7] * len(nodes))
    fit_rows(allocatable, used, ints(list(asked)), ints(list(asked.values())), eligible, ints(rows), out)
    for row, (has, taken, usable) in enumerate(nodes):
        if row not in rows:
            assert out[row] == -7, "a row that was not asked for is left alone"
            continue
        many = 0
        while usable and all(taken[column] + (many + 1) * amount <= has[column] for column, amount in asked.items()):
            many += 1
        assert out[row] == many


@settings(deadline=None)
@given(st.lists(st.lists(small, max_size=4), max_size=5), st.randoms(use_true_random=False))
def test_sums_of_ranges(ranges: list[list[int]], shuffler: object) -> None:
    flat = [value for numbers in ranges for value in numbers]
    order = list(np.random.default_rng(len(flat)).permutation(len(flat)))
    values = np.zeros(len(flat), np.int64)
    for value, row in zip(flat, order, strict=True):
        values[row] = value
    out = np.full(len(ranges), -1, np.int64)
    sum_ranges(values, ints(order), offsets([len(numbers) for numbers in ranges]), out)
    assert out.tolist() == [sum(numbers) for numbers in ranges]


@settings(deadline=None)
@given(st.lists(fits.filter(bool), max_size=4), st.integers(0, 4), st.integers(0, 9))
def test_a_leaf_holds_what_its_best_nodes_hold_within_the_limits(
    leaves: list[list[int]], max_nodes: int, max_members: int
) -> None:
    flat = [fit for leaf in leaves for fit in leaf]
    out = np.full(len(leaves), -1, np.int64)
    order = ints(list(range(len(flat)))[::-1])
    which = ints(list(range(len(leaves))))
    fit_leaves(ints(flat[::-1]), order, offsets([len(leaf) for leaf in leaves]), which, max_nodes, max_members, out)
    for leaf, held in zip(leaves, out.tolist(), strict=True):
        sets = [
            c for size in range(len(leaf) + 1) for c in combinations(leaf, size) if not max_nodes or size <= max_nodes
        ]
        best = max(sum(chosen) for chosen in sets)
        assert held == (min(best, max_members) if max_members else best)


@settings(deadline=None)
@given(leaves_in_domains(), st.integers(1, 20))
def test_the_fewest_leaves_of_each_domain(world: tuple[list[int], Int64], members: int) -> None:
    fit, domains = world
    out = np.full(len(domains) - 1, -1, np.int64)
    fewest_leaves(ints(fit), domains, members, out)
    for (low, high), fewest in zip(pairwise(domains.tolist()), out.tolist(), strict=True):
        enough = (
            size
            for size in range(1, high - low + 1)
            if any(sum(chosen) >= members for chosen in combinations(fit[low:high], size))
        )
        assert fewest == next(enough, 0)


@settings(deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), max_size=80))
def test_sorting(values: list[int]) -> None:
    array = ints(values)
    sort_ascending(array)
    assert array.tolist() == sorted(values)


def test_sorting_where_gaps_are_many() -> None:
    for size in (0, 1, 2, 3, 1000, 4097):
        array = np.random.default_rng(size).integers(-50, 50, size)
        expected = sorted(array.tolist())
        sort_ascending(array)
        assert array.tolist() == expected


def test_amounts_as_large_as_any_node_has_do_not_overflow() -> None:
    out = ints([0])
    fit_rows(grid([[2**53]], 1), grid([[0]], 1), ints([0]), ints([1]), np.array([True]), ints([0]), out)
    assert out.tolist() == [2**53]


def test_a_limit_beyond_any_leaf_allocates_nothing_for_it() -> None:
    # With an array as long as the limit, this one would not fit into any memory.
    out = ints([0])
    fit_leaves(ints([3, 1]), ints([0, 1]), offsets([2]), ints([0]), 2**62, 0, out)
    assert out.tolist() == [4]
