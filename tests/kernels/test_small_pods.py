"""The score of pods placed alone, against what docs/explanation/bin-packing.md says in plain Python."""

from itertools import combinations_with_replacement

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
from topo_scheduler.kernels.small_pods import best_fill, misfit, small_pod_scores, unusable
from topo_scheduler.state.statistics.typical_pods import THRESHOLDS

tables = st.lists(st.integers(0, 1_000_000), min_size=1001, max_size=1001) | st.just([0] * 1001)


def of_typical(node: Node, pod: Pod, access: list[bool]) -> int:
    """GPU-thousandths of a node that a typical pod can't use."""
    cpu, gpus, sharing, model = node
    need, whole, share = pod
    idle = sum(gpus)
    if need > cpu or not access[model + 1]:
        return idle
    if whole:
        untouched = gpus.count(1000)
        return idle - 1000 * untouched if untouched >= whole else idle
    if not share or not sharing:
        return idle
    room = [free for free in gpus if free >= share]
    usable = sum(room)
    if wanted := need * sum(free // share for free in room):
        usable = min(usable, usable * 4 * cpu // (3 * wanted))
    return idle - usable


def expected(node: Node, typical: TypicalPods) -> int:
    """The same of all of them, by their weight for each GPU."""
    return sum(weight // max(1, pod[1]) * of_typical(node, pod, access) for pod, weight, access in typical)


@given(nodes, typical_pods)
def test_what_typical_pods_cannot_use(node: Node, typical: TypicalPods) -> None:
    cpu, gpus, sharing, model = node
    parts = [free for free in gpus if 0 < free < 1000]
    node_state = (cpu, gpus.count(1000), ints([*parts, 7]), len(parts), sharing, model)
    pods_of_typical, access = typical_arrays(typical)
    weight = pods_of_typical[:, 3] // np.maximum(1, pods_of_typical[:, 1])
    stranded = unusable(*node_state, pods_of_typical, weight, access, False)
    assert stranded == expected(node, typical)


def run(cluster: list[Node], pod: Pod, typical: TypicalPods, left: list[int], price: list[int]) -> list[list[int]]:
    width = max([len(gpus) for _, gpus, *_ in cluster], default=0) + 1
    free = np.array(
        [[*gpus, *[0] * (width - len(gpus))] if sharing else [0] * width for _, gpus, sharing, _ in cluster], np.int64
    ).reshape(len(cluster), width)
    requested = np.full((len(cluster), 2), 3, np.int64)
    have = np.array([[gpus.count(1000), cpu] for cpu, gpus, *_ in cluster], np.int64)
    out = np.full((len(cluster), 2), 77, np.int64)
    small_pod_scores(
        requested + have,
        requested,
        1,
        0,
        free,
        np.array([node[2] for node in cluster], np.bool_),
        ints([node[3] for node in cluster]),
        np.arange(len(cluster), dtype=np.int64),
        *pod,
        *typical_arrays(typical),
        ints(left),
        ints(price),
        False,
        THRESHOLDS,
        out,
    )
    scores: list[list[int]] = out.tolist()
    return scores


@given(st.lists(nodes, min_size=1, max_size=4), pods, typical_pods, tables, tables)
def test_each_node_has_the_score_of_the_best_placement_on_it(
    cluster: list[Node], pod: Pod, typical: TypicalPods, left: list[int], price: list[int]
) -> None:
    share = pod[2]
    for node, (score, gpu) in zip(cluster, run(cluster, pod, typical, left, price), strict=True):
        if share and not node[2]:
            node = (node[0], [], False, node[3])  # single GPUs are unknown there
        before, ways = expected(node, typical), []
        for at, then in placements(node, pod):
            had = node[1][at] if at >= 0 else 0
            lost = max(0, left[had] - left[had - share] - price[share]) if at >= 0 else 0
            ways.append((-sigmoid_score(before - expected(then, typical) - 8000 * lost), had, at))
        if not ways:
            assert (score, gpu) == (0, -1)
            continue
        best = min(ways)
        assert (-score, gpu) == (best[0], best[2]), "the best score, then the fullest GPU, then the lowest"


def test_a_share_that_costs_what_it_takes_fits_and_none_fits_better() -> None:
    left = ints([0] * 500 + [500_000] * 500 + [1_000_000])
    price = ints([0] * 470 + [500_000] + [0] * 530)
    assert misfit(470, 1000, left, price) == misfit(470, 530, left, price) == 0, "two fill one"
    assert misfit(320, 530, left, price) == 500_000, "no second one fits any longer"


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), max_size=3), st.integers(0, 60))
def test_the_best_filling_is_the_best_of_all(items: list[tuple[int, int]], room: int) -> None:
    worth, last = np.empty(room + 1, np.int64), np.empty(room + 1, np.int64)
    best_fill(ints([size for size, _ in items]), ints([value for _, value in items]), worth, last)
    max_count = room // min((size for size, _ in items), default=room + 1)
    assert worth[room] == max(
        sum(value for _, value in chosen)
        for number in range(min(max_count, 12) + 1)
        for chosen in combinations_with_replacement(items, number)
        if sum(size for size, _ in chosen) <= room
    ) or (max_count > 12)
    while room and last[room] < 0:
        room -= 1
    assert room == 0 or worth[room] == worth[room - items[last[room]][0]] + items[last[room]][1]
