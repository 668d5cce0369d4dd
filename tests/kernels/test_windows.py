"""Choosing leaves: against every set of leaves there is."""

from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.arrays import Int64, grid, ints, leaves_in_domains
from topo_scheduler.kernels.sets import other_sets
from topo_scheduler.kernels.windows import choose_leaves, choose_sets, narrowest_windows, score_sets

leaf_counts = st.integers(1, 4)
member_counts = st.integers(1, 16)


def windows(fit: list[int], domains: Int64, leaves: int, members: int) -> list[tuple[int, int]]:
    first, last = np.full(len(fit), -1, np.int64), np.full(len(fit), -1, np.int64)
    count = narrowest_windows(ints(fit), domains, leaves, members, first, last)
    return list(zip(first[:count].tolist(), last[:count].tolist(), strict=True))


def chosen(fit: list[int], first: int, last: int, leaves: int, members: int) -> list[int]:
    out = np.full(leaves + 2, -1, np.int64)
    count = choose_leaves(ints(fit), first, last, leaves, members, out)
    return [int(leaf) for leaf in out[:count]]


def all_sets(fit: list[int], domains: Int64, leaves: int, members: int) -> list[tuple[int, ...]]:
    """Every set of at most so many leaves of one domain that holds the members."""
    return [
        leaves_used
        for low, high in pairwise(domains.tolist())
        for size in range(1, leaves + 1)
        for leaves_used in combinations(range(low, high), size)
        if sum(fit[leaf] for leaf in leaves_used) >= members
    ]


def span(leaves_used: tuple[int, ...]) -> int:
    return leaves_used[-1] - leaves_used[0]


@settings(deadline=None, max_examples=200)
@given(leaves_in_domains(), leaf_counts, member_counts)
def test_windows_are_those_of_the_sets_of_least_span(world: tuple[list[int], Int64], leaves: int, members: int) -> None:
    fit, domains = world
    sets = all_sets(fit, domains, leaves, members)
    bounds = windows(fit, domains, leaves, members)
    narrowest = min(map(span, sets), default=0)
    assert bounds == sorted(
        {(leaves_used[0], leaves_used[-1]) for leaves_used in sets if span(leaves_used) == narrowest}
    )


@settings(deadline=None, max_examples=200)
@given(leaves_in_domains(), leaf_counts, member_counts)
def test_the_leaves_of_a_window_hold_the_gang(world: tuple[list[int], Int64], leaves: int, members: int) -> None:
    fit, domains = world
    for first, last in windows(fit, domains, leaves, members):
        used = chosen(fit, first, last, leaves, members)
        assert used == sorted(set(used))
        assert (used[0], used[-1]) == (first, last)
        assert len(used) <= leaves
        assert sum(fit[leaf] for leaf in used) >= members
        # Between the two ends the largest are taken, the lower leaf on a tie, and no more than are needed.
        between = sorted(range(first + 1, last), key=lambda leaf: (-fit[leaf], leaf))[: len(used) - len({first, last})]
        assert sorted({first, last, *between}) == used
        if len(used) > 2:
            assert sum(fit[leaf] for leaf in {first, last, *between[:-1]}) < members


def test_gangs_that_no_domain_holds_have_no_window() -> None:
    assert windows([4, 4, 4], ints([0, 1, 3]), 2, 9) == []
    assert windows([4, 4, 4], ints([0, 1, 3]), 1, 8) == []
    assert windows([0, 0], ints([0, 2]), 2, 1) == []


def test_full_leaves_between_make_a_window_wider() -> None:
    assert windows([4, 0, 4, 4], ints([0, 4]), 2, 8) == [(2, 3)]
    assert windows([4, 0, 0, 4], ints([0, 4]), 2, 8) == [(0, 3)]
    assert windows([4, 1, 0, 4, 1], ints([0, 5]), 3, 8) == [(0, 3)]


# ---------------------------------------------------------------- scores


class Leaf(NamedTuple):
    fit: int
    capacity: int
    used: int
    alignment: int
    history: int
    load: int


leaf = st.builds(
    lambda fit, capacity, used, alignment, history, load: Leaf(
        fit, capacity, min(used, capacity), alignment, history, load
    ),
    st.integers(0, 4),
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from([0, 500, 1000]),
    st.sampled_from([0, 777, 1000]),
    st.sampled_from([0, 300, 301]),
)


def sets_of(fit: list[int], bounds: list[tuple[int, int]], max_leaves: int, members: int) -> tuple[Int64, Int64]:
    """Return the leaves used of each window, and how many they are."""
    sets, sizes = np.full((len(bounds), max_leaves + 2), -1, np.int64), np.full(len(bounds), -1, np.int64)
    first, last = ints([low for low, _ in bounds]), ints([high for _, high in bounds])
    choose_sets(ints(fit), first, last, len(bounds), max_leaves, members, sets, sizes)
    for window, (low, high) in enumerate(bounds):
        assert sets[window, : sizes[window]].tolist() == chosen(fit, low, high, max_leaves, members)
    return sets, sizes


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=8), st.integers(2, 5), st.integers(1, 12))
def test_the_other_sets_of_a_window_are_all_there_are(fit: list[int], max_leaves: int, members: int) -> None:
    bounds = windows(fit, ints([0, len(fit)]), max_leaves, members)
    if not bounds:
        return
    width = bounds[0][1] - bounds[0][0] + 1
    first, sizes = sets_of(fit, bounds, max_leaves, members)
    size = int(sizes[0])
    if size < 2 or width <= size or (sizes != size).any():
        return
    every = [
        (low, *inner, high)
        for low, high in bounds
        for inner in combinations(range(low + 1, high), size - 2)
        if all(fit[leaf] for leaf in inner) and sum(fit[leaf] for leaf in (low, *inner, high)) >= members
    ]
    sets = np.full((len(bounds) + 200, max_leaves + 2), -1, np.int64)
    sets[: len(bounds)] = first
    sizes = np.concatenate((sizes, np.zeros(200, np.int64)))
    count = other_sets(ints(fit), len(bounds), width, members, 1000, sets, sizes)
    listed = [tuple(leaves_used[:size]) for leaves_used in sets[:count].tolist()]
    assert sorted(listed) == sorted(every)
    assert listed[len(bounds) :] == sorted(listed[len(bounds) :])
    room = sets[: len(bounds) + 1].copy()
    assert other_sets(ints(fit), len(bounds), width, members, 1000, room, sizes) <= len(bounds) + 1
    assert other_sets(ints(fit), len(bounds), width, members, 0, sets, sizes) == len(bounds)


def parts_of(
    used: list[Leaf], parent: tuple[int, int], members: int, ask: int, strategy: str, mean: int
) -> tuple[int, int, int, int]:
    """Return the parts of a score as the words of its documentation say, in whole thousandths rounded down."""
    whole = max(parent[0], 1)
    free = whole - parent[1] - members * ask
    capacity = max(sum(leaf.capacity for leaf in used), 1)
    before = sum(leaf.used for leaf in used)
    share = {
        "consolidated": 1000 * before // capacity,
        "distributed": 1000 - 1000 * before // capacity,
        "balanced": 1000 - abs(1000 * (before + members * ask) // capacity - mean),
    }[strategy]
    return (
        max(0, 1000 * free // whole),
        sum(leaf.alignment for leaf in used) // len(used),
        min(1000, max(0, share)),
        sum(leaf.history for leaf in used) // len(used),
    )


@settings(deadline=None, max_examples=200)
@given(
    st.lists(leaf, min_size=1, max_size=7),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(0, 4),
    st.tuples(*[st.integers(0, 1000)] * 4),
    st.sampled_from(["consolidated", "distributed", "balanced"]),
    st.booleans(),
)
def test_the_score_is_what_its_parts_say_and_the_best_window_wins(
    leaves: list[Leaf],
    max_leaves: int,
    members: int,
    ask: int,
    weights: tuple[int, int, int, int],
    strategy: str,
    latency: bool,
) -> None:
    fit = [leaf.fit for leaf in leaves]
    bounds = windows(fit, ints([0, len(leaves)]), max_leaves, members)
    if not bounds:
        return
    mean = 1000 * sum(leaf.used for leaf in leaves) // max(1, sum(leaf.capacity for leaf in leaves))
    parent = sum(leaf.capacity for leaf in leaves), sum(leaf.used for leaf in leaves)
    out = np.full((len(bounds), 6), -1, np.int64)
    sets, sizes = sets_of(fit, bounds, max_leaves, members)
    best = score_sets(
        sets,
        sizes,
        len(bounds),
        members,
        ask,
        np.ascontiguousarray(grid([leaf[1:] for leaf in leaves], 5).T),
        ints([parent[0]] * len(leaves)),
        ints([parent[1]] * len(leaves)),
        ints(weights),
        ("consolidated", "distributed", "balanced").index(strategy),
        int(latency),
        out,
    )
    totals = []
    for (first, last), row in zip(bounds, out.tolist(), strict=True):
        used = [leaves[at] for at in chosen(fit, first, last, max_leaves, members)]
        parts = parts_of(used, parent, members, ask, strategy, mean)
        total = sum(weight * part for weight, part in zip(weights, parts, strict=True)) // max(sum(weights), 1)
        load = max(leaf.load for leaf in used)
        assert row == [*parts, total, load]
        totals.append((load, -total) if latency else (-total, load))
    assert best == totals.index(min(totals))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(leaf, min_size=1, max_size=7),
    st.integers(1, 3),
    st.integers(1, 6),
    st.tuples(*[st.integers(0, 1000)] * 4),
    st.lists(st.tuples(st.integers(0, 1000), st.lists(st.integers(0, 1000), min_size=7, max_size=7)), max_size=3),
    st.booleans(),
)
def test_parts_of_plugins_are_means_over_the_leaves_used_and_weigh_with_the_others(
    leaves: list[Leaf],
    max_leaves: int,
    members: int,
    weights: tuple[int, int, int, int],
    added: list[tuple[int, list[int]]],
    latency: bool,
) -> None:
    fit = [leaf.fit for leaf in leaves]
    bounds = windows(fit, ints([0, len(leaves)]), max_leaves, members)
    if not bounds:
        return
    sets, sizes = sets_of(fit, bounds, max_leaves, members)
    everything = ints([sum(leaf.capacity for leaf in leaves)] * len(leaves))
    facts = np.ascontiguousarray(grid([leaf[1:] for leaf in leaves], 5).T)
    before = np.full((len(bounds), 6), -1, np.int64)
    totals = (everything, ints([0] * len(leaves)))
    score_sets(sets, sizes, len(bounds), members, 1, facts, *totals, ints(weights), 2, int(latency), before)
    given_parts = grid([scores[: len(leaves)] for _, scores in added], len(leaves)) if added else grid([], len(leaves))
    all_facts, all_weights = np.concatenate((facts, given_parts)), ints([*weights, *(weight for weight, _ in added)])
    parts = np.full((len(bounds), 6 + len(added)), -1, np.int64)
    best = score_sets(sets, sizes, len(bounds), members, 1, all_facts, *totals, all_weights, 2, int(latency), parts)
    order = []
    for window, (low, high) in enumerate(bounds):
        used = chosen(fit, low, high, max_leaves, members)
        means = [sum(scores[at] for at in used) // len(used) for _, scores in added]
        assert parts[window, 6:].tolist() == means
        assert parts[window, :4].tolist() == before[window, :4].tolist()
        weighed = sum(w * p for w, p in zip(all_weights.tolist(), [*before[window, :4].tolist(), *means], strict=True))
        total = weighed // max(int(all_weights.sum()), 1)
        assert parts[window, 4] == total
        load = int(parts[window, 5])
        order.append((load, -total) if latency else (-total, load))
    assert best == order.index(min(order))
