"""Predictions of what device plugins choose, against a search that enumerates everything, and examples."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.devices.shapes import dgx_1v, from_file
from tests.scheduling.function_calls import calls_of
from topo_scheduler.scheduling.devices.plugin_choice import (
    best_effort,
    lowest_weight,
    members_of,
    pair_scores,
    pair_weights,
    predicted,
    set_of,
)
from topo_scheduler.simulation.devices.gpu_choosers import NvidiaBestEffort, RocmWeights
from topo_scheduler.state.devices.hardware import NodeHardware
from topo_scheduler.state.devices.products import layout_of, product_of

MAX_CALLS = 25_000
MODELS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S", "Tesla-V100-SXM2-32GB", "AMD-Instinct-MI300X-OAM")


@cache
def hardware(model: str) -> NodeHardware:
    return layout_of(product_of(model), 8)


@cache
def enumeration(model: str) -> NvidiaBestEffort:
    return NvidiaBestEffort(hardware(model))


@pytest.mark.parametrize("model", MODELS)
@given(free=st.integers(1, 255), size=st.integers(1, 8))
def test_best_effort_is_that_of_the_enumeration_by_product(model: str, free: int, size: int) -> None:
    assert best_effort(hardware(model), free, size) == enumeration(model).choose(free, size)


@pytest.mark.parametrize("model", MODELS)
@given(free=st.integers(1, 255), size=st.integers(1, 8))
def test_the_lowest_weight_is_that_of_the_enumeration(model: str, free: int, size: int) -> None:
    assert lowest_weight(hardware(model), free, size) == RocmWeights(hardware(model)).choose(free, size)


@given(free=st.integers(0, 255), size=st.integers(0, 9), vendor=st.sampled_from(("nvidia", "amd")))
def test_only_free_gpus_are_chosen_and_as_many_as_asked(free: int, size: int, vendor: str) -> None:
    chosen = predicted(dgx_1v(), vendor, free, size)
    if size > free.bit_count():
        assert chosen == -1
    else:
        assert chosen.bit_count() == size
        assert not chosen & ~free


def test_a_switch_counts_for_nothing_so_that_sockets_decide() -> None:
    """Of GPUs 0 and 4 to 7 of an HGX board, two on one socket are taken, although all are equal for NCCL."""
    assert best_effort(hardware(MODELS[0]), set_of([0, 4, 5, 6, 7]), 4) == set_of([4, 5, 6, 7])


def test_pairs_of_links_win_over_the_lowest_indexes() -> None:
    assert best_effort(dgx_1v(), set_of([0, 1, 3]), 2) == set_of([0, 3])


def test_the_number_of_links_does_not_count_for_amd() -> None:
    assert lowest_weight(dgx_1v(), set_of([0, 1, 3]), 2) == set_of([0, 1])


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_prediction_never_delays_the_event_loop(vendor: str) -> None:
    """Each of these calls takes less than 0.2 microseconds; a choice among 12,870 sets took 400,000 of them."""
    node = from_file("rccl/topo_16p1h.xml")
    for count in range(2, 17):
        for size in range(1, count + 1):
            calls = calls_of(lambda count=count, size=size: predicted.__wrapped__(node, vendor, (1 << count) - 1, size))  # type: ignore[misc]
            assert calls.total() <= MAX_CALLS, (count, size)


@settings(max_examples=20, deadline=None)
@given(free=st.integers(1, (1 << 16) - 1), size=st.integers(2, 15))
@example((1 << 16) - 1, 8)
def test_of_many_free_gpus_the_best_set_is_taken_the_first_of_equal_ones(free: int, size: int) -> None:
    node = from_file("rccl/topo_16p1h.xml")
    gpus = members_of(free)
    if not len(gpus) > 10 or not 1 < size < len(gpus):
        return
    scores, weights = pair_scores(node), pair_weights(node)

    def total(table: Sequence[Sequence[int]], chosen: Sequence[int]) -> int:
        return sum(table[first][second] for first, second in combinations(chosen, 2))

    sets = list(combinations(gpus, size))
    assert best_effort(node, free, size) == set_of(max(sets, key=lambda chosen: total(scores, chosen)))
    assert lowest_weight(node, free, size) == set_of(min(sets, key=lambda chosen: total(weights, chosen)))
