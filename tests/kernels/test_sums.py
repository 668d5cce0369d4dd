"""Sums by leaf and domain, and what a gang takes from others: against counting again."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.arrays import grid, ints, offsets
from topo_scheduler.kernels.fit import sum_again, sum_domains
from topo_scheduler.kernels.windows import least_lost

LEAVES = 3
Row = tuple[int, int, int]
"""Leaf, what it has and what is held of it."""
rows = st.tuples(st.integers(-1, LEAVES - 1), st.integers(0, 9), st.integers(0, 12))


def sums(table: Sequence[Row]) -> tuple[list[int], list[int]]:
    """What the rows of each leaf have, and what is held of it: of a row at most what it has."""
    has, holds = [0] * LEAVES, [0] * LEAVES
    for leaf, capacity, held in table:
        if leaf >= 0:
            has[leaf] += capacity
            holds[leaf] += min(capacity, held)
    return has, holds


@given(st.lists(rows, min_size=1, max_size=8), st.data())
def test_sums_brought_up_to_date_are_those_counted_from_scratch(before: list[Row], data: st.DataObject) -> None:
    changed = data.draw(st.lists(st.integers(0, len(before) - 1), unique=True))
    after = list(before)
    for at in changed:
        after[at] = (before[at][0], data.draw(st.integers(0, 9)), data.draw(st.integers(0, 12)))
    # Two resources, of which the second is summed.
    allocatable = grid([(7, has) for _, has, _ in after], 2)
    requested = grid([(5, holds) for _, _, holds in after], 2)
    row_capacity, row_used = ints([has for _, has, _ in before]), ints([min(has, holds) for _, has, holds in before])
    row_free = ints([has - holds for _, has, holds in before])
    capacity, used = (ints(amounts) for amounts in sums(before))
    leaf_of_row = ints([leaf for leaf, _, _ in before])
    sum_again(allocatable, requested, 1, ints(changed), leaf_of_row, row_capacity, row_used, row_free, capacity, used)
    assert (capacity.tolist(), used.tolist()) == sums(after)
    assert row_capacity.tolist() == [has for _, has, _ in after]
    assert row_used.tolist() == [min(has, holds) for _, has, holds in after]
    assert row_free.tolist() == [has - holds for _, has, holds in after]


@given(st.lists(st.lists(st.integers(-5, 9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_each_leaf_gets_the_sum_of_its_domain(domains: list[list[int]]) -> None:
    values = [value for domain in domains for value in domain]
    bounds = offsets([len(domain) for domain in domains])
    out = np.full(len(values), -99, np.int64)
    sum_domains(ints(values), bounds, out)
    assert out.tolist() == [sum(values[low:high]) for low, high in pairwise(bounds.tolist()) for _ in range(low, high)]


leaf_states = st.tuples(st.integers(0, 12), st.integers(0, 14), st.integers(-2, 30))
"""What a leaf has, what is held of it, and what is free in the domain around it."""


@given(
    st.lists(leaf_states, min_size=1, max_size=6),
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 5)), min_size=1, max_size=3),
    st.data(),
)
def test_the_leaf_is_taken_in_which_fewest_of_the_usual_gangs_are_lost(
    states: list[tuple[int, int, int]], asked: int, usual: list[tuple[int, int]], data: st.DataObject
) -> None:
    candidates = data.draw(st.lists(st.integers(0, len(states) - 1), min_size=1, unique=True))

    def room(free: int, size: int) -> int:
        """How many gangs of a size fit one after the other."""
        count = 0
        while (count + 1) * size <= free:
            count += 1
        return count

    def lost(leaf: int) -> int:
        has, holds, outside = states[leaf]
        total = 0
        for size, weight in usual:
            free = has - holds if has >= size else outside
            total += weight * (room(free, size) - room(free - asked, size))
        return total

    chosen = least_lost(
        ints(candidates),
        asked,
        ints([size for size, _ in usual]),
        ints([weight for _, weight in usual]),
        *(ints(column) for column in zip(*states, strict=True)),
    )
    counts = [lost(leaf) for leaf in candidates]
    assert chosen == counts.index(min(counts))
