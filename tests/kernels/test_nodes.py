"""Choosing nodes inside leaves: against every way to choose them, or against the words said plainly."""

from itertools import combinations
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.arrays import fits, grid, ints, small
from topo_scheduler.kernels.filling import fill_nodes
from topo_scheduler.kernels.nodes import deal, pack_nodes, spread_nodes

member_counts = st.integers(0, 14)
node_limits = st.integers(0, 4)


# ---------------------------------------------------------------- leaves


@settings(deadline=None)
@given(fits, member_counts)
def test_packing_fills_the_leaf_that_holds_least_first(limits: list[int], members: int) -> None:
    out = ints([0] * len(limits))
    left = deal(ints(limits), out, members, 0)
    expected = [0] * len(limits)
    for leaf in sorted(range(len(limits)), key=lambda leaf: (limits[leaf], leaf)):
        expected[leaf] = min(limits[leaf], members - sum(expected))
    assert out.tolist() == expected
    assert left == members - sum(expected)


@settings(deadline=None)
@given(fits, member_counts)
def test_spreading_leaves_no_leaf_two_ahead_of_one_with_room(limits: list[int], members: int) -> None:
    out = ints([0] * len(limits))
    left = deal(ints(limits), out, members, 1)
    got = out.tolist()
    assert left == max(0, members - sum(limits))
    assert sum(got) + left == members
    for leaf, (has, limit) in enumerate(zip(got, limits, strict=True)):
        assert has <= limit
        for other, ahead in enumerate(got):
            if has < limit:
                assert ahead <= has + 1
                assert not (ahead == has + 1 and other > leaf), "the first of equals comes first"


# ---------------------------------------------------------------- one class


class Node(NamedTuple):
    fit: int
    free: int
    preference: int
    siblings: int


nodes = st.lists(
    st.builds(Node, st.integers(0, 4), st.integers(0, 3), st.integers(0, 1), st.integers(0, 2)), max_size=6
)


def pack(leaf: list[Node], members: int, max_nodes: int) -> tuple[int, list[int]]:
    """Rows stand in another order than the leaf, as they do in the node table."""
    rows = list(range(len(leaf)))[::-1]
    out = ints([0] * len(leaf))
    fit, free, preference = (ints([getattr(n, name) for n in leaf[::-1]]) for name in ("fit", "free", "preference"))
    left = pack_nodes(ints(rows), fit, free, preference, members, max_nodes, out)
    return int(left), out.tolist()


@settings(deadline=None, max_examples=200)
@given(nodes, member_counts, node_limits)
def test_packing_uses_the_fewest_nodes_there_can_be(leaf: list[Node], members: int, max_nodes: int) -> None:
    left, out = pack(leaf, members, max_nodes)
    assert all(0 <= count <= node.fit for count, node in zip(out, leaf, strict=True))
    assert sum(out) + left == members
    sizes = range(min(max_nodes or len(leaf), len(leaf)) + 1)
    held = {size: max(sum(node.fit for node in chosen) for chosen in combinations(leaf, size)) for size in sizes}
    assert sum(out) == min(members, max(held.values()))
    assert sum(count > 0 for count in out) == min(size for size in sizes if held[size] >= sum(out))


@settings(deadline=None)
@given(nodes.filter(bool), st.integers(1, 4))
def test_where_one_node_suffices_the_preferred_then_the_fullest_one_is_taken(leaf: list[Node], members: int) -> None:
    enough = [at for at, node in enumerate(leaf) if node.fit >= members]
    if enough:
        _, out = pack(leaf, members, 0)
        best = min(enough, key=lambda at: (-leaf[at].preference, leaf[at].free, at))
        assert out[best] == members


def spread(leaf: list[Node], ask: int, members: int, max_nodes: int) -> tuple[int, list[int]]:
    rows = list(range(len(leaf)))[::-1]
    out = ints([0] * len(leaf))
    names = ("fit", "free", "preference", "siblings")
    fit, free, preference, siblings = (ints([getattr(node, name) for node in leaf[::-1]]) for name in names)
    left = spread_nodes(ints(rows), fit, free, preference, siblings, ask, members, max_nodes, out)
    return int(left), out.tolist()


@settings(deadline=None, max_examples=200)
@given(nodes, st.integers(0, 2), member_counts, node_limits)
def test_spreading_gives_each_member_to_the_node_with_the_fewest(
    leaf: list[Node], ask: int, members: int, max_nodes: int
) -> None:
    left, out = spread(leaf, ask, members, max_nodes)
    got = [0] * len(leaf)
    for _ in range(members):
        full = max_nodes > 0 and sum(count > 0 for count in got) >= max_nodes
        open_ = [at for at, node in enumerate(leaf) if got[at] < node.fit and (got[at] or not full)]
        if not open_:
            break
        best = min(
            open_,
            key=lambda at: (leaf[at].siblings + got[at], -leaf[at].preference, got[at] * ask - leaf[at].free, at),
        )
        got[best] += 1
    assert out == got
    assert left == members - sum(got)


# ---------------------------------------------------------------- several classes

vectors = st.lists(small, min_size=2, max_size=2)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(vectors, vectors), max_size=5),
    st.lists(st.tuples(vectors.filter(any), st.integers(0, 4)), min_size=1, max_size=3),
    node_limits,
    st.data(),
)
def test_what_is_placed_fits_and_nothing_that_fits_beside_it_is_left_out(
    machines: list[tuple[list[int], list[int]]],
    classes: list[tuple[list[int], int]],
    max_nodes: int,
    data: st.DataObject,
) -> None:
    eligible = np.array([[data.draw(st.booleans()) for _ in machines] for _ in classes], np.bool_).reshape(
        len(classes), len(machines)
    )
    rows = data.draw(st.permutations(range(len(machines))))
    rows = rows[: data.draw(st.integers(0, len(rows)))]
    allocatable, used = (grid([machine[at] for machine in machines], 2) for at in (0, 1))
    requests, counts = grid([request for request, _ in classes], 2), [count for _, count in classes]
    out = np.zeros((len(classes), len(rows)), np.int64)
    missing = fill_nodes(ints(rows), allocatable, used, requests, eligible, ints(counts), max_nodes, out)
    assert out.sum() + missing == sum(counts)
    assert (out >= 0).all()
    assert (out.sum(axis=1) <= counts).all()
    opened = out.sum(axis=0) > 0
    assert not max_nodes or opened.sum() <= max_nodes
    taken = out.T @ requests
    for at, row in enumerate(rows):
        assert opened[at] <= eligible[:, row].any()
        assert (out[~eligible[:, row], at] == 0).all()
        if opened[at]:
            assert ((allocatable[row] - used[row] - taken[at])[requests[out[:, at] > 0].any(axis=0)] >= 0).all()
    # The last class stands last: had it had room left, it would have been given it.
    if counts[-1] > out[-1].sum():
        for at, row in enumerate(rows):
            if eligible[-1, row] and (opened[at] or not max_nodes or opened.sum() < max_nodes):
                free = allocatable[row] - used[row] - taken[at]
                assert (free[requests[-1] > 0] < requests[-1][requests[-1] > 0]).any()


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=6), member_counts)
def test_one_class_alone_is_placed_as_long_as_there_is_room(free: list[int], members: int) -> None:
    out = np.zeros((1, len(free)), np.int64)
    allocatable, used = grid([[value] for value in free], 1), grid([[0]] * len(free), 1)
    eligible = np.ones((1, len(free)), np.bool_)
    rows = ints(list(range(len(free))))
    missing = fill_nodes(rows, allocatable, used, grid([[1]], 1), eligible, ints([members]), 0, out)
    assert missing == max(0, members - sum(free))
