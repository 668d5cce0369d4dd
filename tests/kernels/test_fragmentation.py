"""The fragmentation gradient, against what the paper says in plain Python."""

from decimal import Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.arrays import ints
from tests.kernels.fragmentation_reference import (
    Node,
    Pod,
    TypicalPods,
    nodes,
    placements,
    pods,
    sigmoid_score,
    typical_arrays,
    typical_pods,
)
from topo_scheduler.kernels.small_pods import choose_row, quantised, small_pod_scores, unusable
from topo_scheduler.state.statistics.typical_pods import MILLIONTHS, THRESHOLDS, ShareWorth

NO_SHARES = ShareWorth.nothing()


def out_of_reach(node: Node, pod: Pod, access: list[bool]) -> int:
    """GPU-thousandths of a node that a pod can't use, as section 3 of the paper defines it."""
    cpu, gpus, sharing, model = node
    need, whole, share = pod
    if whole:
        runs = sum(free == 1000 for free in gpus) >= whole
    else:
        runs = share > 0 and sharing and any(free >= share for free in gpus)
    if need > cpu or not runs or not access[model + 1]:
        return sum(gpus)
    return sum(free for free in gpus if free < (1000 if whole else share))


def expected(node: Node, typical: TypicalPods) -> int:
    """F of the paper, in millionths of GPU-thousandths."""
    return sum(weight * out_of_reach(node, pod, access) for pod, weight, access in typical)


@given(nodes, typical_pods)
def test_what_is_stranded_is_what_the_paper_says(node: Node, typical: TypicalPods) -> None:
    cpu, gpus, sharing, model = node
    parts = [free for free in gpus if 0 < free < 1000]
    node_state = (cpu, gpus.count(1000), ints([*parts, 7]), len(parts), sharing, model)
    pods_of_typical, access = typical_arrays(typical)
    stranded = unusable(*node_state, pods_of_typical, pods_of_typical[:, 3].copy(), access, True)
    assert stranded == expected(node, typical)


@given(st.integers(-6_000_000_000, 6_000_000_000))
def test_scores_are_the_sigmoid_in_hundredths(gain: int) -> None:
    assert quantised(gain, THRESHOLDS) == sigmoid_score(gain)


def test_the_edges_of_the_scores() -> None:
    assert quantised(0, THRESHOLDS) == 50, "a pod that changes nothing is in the middle"
    assert quantised(-1, THRESHOLDS) == 49
    for score, edge in enumerate(THRESHOLDS.tolist(), 1):
        assert (quantised(edge - 1, THRESHOLDS), quantised(edge, THRESHOLDS)) == (score - 1, score)
        exact = (Decimal(score) / (100 - score)).ln() * 1000 * MILLIONTHS
        assert edge - 1 < exact <= edge
    assert (quantised(-(10**15), THRESHOLDS), quantised(10**15, THRESHOLDS)) == (0, 99)


def run(cluster: list[Node], pod: Pod, typical: TypicalPods) -> list[list[int]]:
    width = max([len(gpus) for _, gpus, *_ in cluster], default=0) + 1
    free = np.array(
        [[*gpus, *[0] * (width - len(gpus))] if sharing else [0] * width for _, gpus, sharing, _ in cluster], np.int64
    ).reshape(len(cluster), width)
    # Column 1 is CPU here, and column 0 GPUs; the node had 3 more GPUs that are held.
    requested = np.full((len(cluster), 2), 3, np.int64)
    whole = [gpus.count(1000) for _, gpus, *_ in cluster]
    allocatable = requested + np.array([whole, [node[0] for node in cluster]], np.int64).T
    out = np.full((len(cluster), 2), 77, np.int64)
    small_pod_scores(
        np.ascontiguousarray(allocatable),
        requested,
        1,
        0,
        free,
        np.array([node[2] for node in cluster], np.bool_),
        ints([node[3] for node in cluster]),
        np.arange(len(cluster), dtype=np.int64),
        *pod,
        *typical_arrays(typical),
        NO_SHARES.left,
        NO_SHARES.price,
        True,
        THRESHOLDS,
        out,
    )
    scores: list[list[int]] = out.tolist()
    return scores


@given(st.lists(nodes, min_size=1, max_size=4), pods, typical_pods)
def test_each_node_has_the_score_of_the_best_placement_on_it(
    cluster: list[Node], pod: Pod, typical: TypicalPods
) -> None:
    for node, (score, gpu) in zip(cluster, run(cluster, pod, typical), strict=True):
        if pod[2] and not node[2]:
            node = (node[0], [], False, node[3])  # single GPUs are unknown there
        before = expected(node, typical)
        ways = [(-sigmoid_score(before - expected(left, typical)), at) for at, left in placements(node, pod)]
        if not ways:
            assert (score, gpu) == (0, -1)
            continue
        best = min(ways)
        assert (-score, gpu) == best, "the best score, then the lowest GPU"


def test_the_example_of_the_paper_a_share_goes_where_it_hurts_least() -> None:
    typical: TypicalPods = [((1000, 0, 500), 600_000, [True] * 3), ((1000, 1, 0), 400_000, [True] * 3)]
    half: Node = (8000, [500, 1000], True, 0)
    fresh: Node = (8000, [1000, 1000], True, 0)
    (on_half, gpu), (on_fresh, _) = run([half, fresh], (1000, 0, 500), typical)
    assert on_half > 50 > on_fresh, "filling the half-used GPU frees of fragments, opening another makes one"
    assert gpu == 0


@given(
    st.lists(
        st.tuples(*(st.integers(0, 1) for _ in range(9))),
        min_size=1,
        max_size=7,
    ),
    st.permutations(range(7)),
    st.booleans(),
    st.booleans(),
)
def test_the_chosen_row_is_the_first_by_the_stated_order(
    rows: list[tuple[int, ...]], order: list[int], with_load: bool, with_leaves: bool
) -> None:
    columns = (ints(column) for column in zip(*rows, strict=True))
    fit, liking, preference, aligned, inside, load, score, left, around = columns
    # Every row is a leaf of its own; leaves inside of the preferred domain come first.
    ranked = np.argsort(1 - inside, kind="stable")
    leaf_of_row = np.empty(len(rows), np.int64)
    leaf_of_row[ranked] = np.arange(len(rows))
    by_leaf = np.empty((3, len(rows)), np.int64)
    by_leaf[0, leaf_of_row], by_leaf[1, leaf_of_row], by_leaf[2, leaf_of_row] = aligned, load, around
    walk = ints([row for row in order if row < len(rows)])
    chosen_row = choose_row(
        walk,
        leaf_of_row,
        fit,
        liking,
        preference,
        by_leaf[0].copy(),
        0,
        int(inside.sum()),
        by_leaf[1].copy() if with_load else ints([]),
        score,
        left,
        by_leaf[2].copy() if with_leaves else ints([]),
    )
    keys = {
        row: (
            -liking[row],
            -aligned[row],
            -inside[row],
            load[row] if with_load else 0,
            -score[row],
            -preference[row],
            left[row],
            around[row] if with_leaves else 0,
            at,
        )
        for at, row in enumerate(walk.tolist())
        if fit[row]
    }
    assert chosen_row == (min(keys, key=keys.__getitem__) if keys else -1)
