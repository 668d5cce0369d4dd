"""Choosers of device plugins, against cases worked out by hand from their rules, and every division of the GPUs."""

from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.devices.gpu_stream import bandwidth_kept, usual_sizes
from tests.devices.shapes import dgx_1v, from_file
from topo_scheduler.scheduling.devices.gpu_tables import GpuTables, shape_of
from topo_scheduler.scheduling.devices.plugin_choice import members_of, set_of
from topo_scheduler.simulation.devices.gpu_choosers import (
    NvidiaBestEffort,
    RandomChoice,
    RocmWeights,
    first_fit,
)
from topo_scheduler.state.devices.hardware import Gpu, GpuLink, NodeHardware, PciePath


def _node(
    count: int, links: dict[tuple[int, int], int], numa: int = 8, paths: dict[tuple[int, int], PciePath] | None = None
) -> NodeHardware:
    """Return a node with links by pair; ``numa`` GPUs share a NUMA node."""
    between = paths or {}
    return NodeHardware(
        gpus=tuple(Gpu(index, numa_node=index // numa) for index in range(count)),
        links=tuple(GpuLink(first, second, links[first, second], 1) for first, second in sorted(links)),
        gpu_paths=tuple(
            tuple(between.get((min(a, b), max(a, b)), PciePath.SYSTEM) for b in range(count)) for a in range(count)
        ),
    )


@pytest.mark.parametrize("choose", [first_fit, RandomChoice(1).choose, NvidiaBestEffort(dgx_1v()).choose])
def test_fewer_free_gpus_than_asked_for_are_no_choice(choose) -> None:  # type: ignore[no-untyped-def]
    assert choose(0b101, 3) == -1
    assert choose(0b101, 2) == 0b101


def test_first_fit_takes_the_lowest() -> None:
    assert first_fit(0b11011010, 3) == 0b00011010


# ---------------------------------------------------------------- NVIDIA


def test_nvidia_divides_all_free_gpus_instead_of_taking_the_best_pair() -> None:
    """Pairs 1-2 (3 links), 0-1 and 2-3 (2 links each): 0-1 and 2-3 score 420, 1-2 and 0-3 score 320."""
    node = _node(4, {(1, 2): 3, (0, 1): 2, (2, 3): 2})
    assert NvidiaBestEffort(node).choose(0b1111, 2) == 0b0011


def test_nvidia_takes_the_best_set_of_the_best_division() -> None:
    node = _node(4, {(0, 1): 1, (2, 3): 2})
    assert NvidiaBestEffort(node).choose(0b1111, 2) == 0b1100


def test_nvidia_leaves_out_the_gpu_that_lacks_links_if_the_number_is_odd() -> None:
    """Of 0, 1 and 2 a pair is asked for: 1-2 has a link."""
    assert NvidiaBestEffort(_node(3, {(1, 2): 1})).choose(0b111, 2) == 0b110


def test_nvidia_takes_the_first_for_a_pod_of_one_gpu_even_if_it_breaks_a_pair() -> None:
    assert NvidiaBestEffort(_node(3, {(0, 1): 4})).choose(0b111, 1) == 0b001


def test_nvidia_counts_nothing_for_links_to_a_switch() -> None:
    """Below one NVSwitch all pairs are equal, so the PCIe path decides."""
    paths = {(0, 1): PciePath.SYSTEM, (0, 2): PciePath.SWITCH, (1, 3): PciePath.SWITCH}
    plain = _node(4, {}, paths=paths)
    gpus = tuple(Gpu(index, switch_links=18, link_mb_per_second=25_000) for index in range(4))
    switched = NodeHardware(gpus, gpu_paths=plain.gpu_paths)
    assert NvidiaBestEffort(switched).choose(0b1111, 2) == NvidiaBestEffort(plain).choose(0b1111, 2) == 0b0101


def test_nvidia_scores_no_more_than_twelve_links() -> None:
    """Its list of link types ends there; 13 links count for nothing."""
    assert NvidiaBestEffort(_node(3, {(0, 1): 13, (1, 2): 12})).choose(0b111, 2) == 0b110


def _divisions(left: tuple[int, ...], size: int, lacking: int) -> Iterator[list[tuple[int, ...]]]:
    """Yield every division into sets of the size, of which at most one lacks members, all of them."""
    if not left:
        yield []
        return
    first, rest = left[0], left[1:]
    for count, still in {(size, lacking), (size - lacking, 0)}:
        for others in combinations(rest, count - 1) if 0 < count <= len(left) else ():
            remaining = tuple(index for index in rest if index not in others)
            for division in _divisions(remaining, size, still):
                yield [(first, *others), *division]


@given(
    st.dictionaries(st.sampled_from(list(combinations(range(7), 2))), st.integers(1, 6), max_size=12),
    st.sets(st.integers(0, 6), min_size=1),
    st.integers(2, 4),
)
def test_nvidia_chooses_a_best_set_of_a_best_division(
    links: dict[tuple[int, int], int], free: set[int], size: int
) -> None:
    """Compared with every division, by scores; which of equal ones is chosen is not compared."""
    chosen = NvidiaBestEffort(_node(7, links)).choose(set_of(tuple(free)), size)
    if len(free) < size:
        assert chosen == -1
        return

    def score(gpus: tuple[int, ...]) -> int:
        return sum(100 * links.get(pair, 0) + 10 for pair in combinations(sorted(gpus), 2))

    divisions = [
        division
        for division in _divisions(tuple(sorted(free)), size, -len(free) % size)
        if any(len(gpus) == size for gpus in division)
    ]
    highest = max(sum(map(score, division)) for division in divisions)
    best = [division for division in divisions if sum(map(score, division)) == highest]
    full = [[gpus for gpus in division if len(gpus) == size] for division in best]
    assert members_of(chosen) in [gpus for sets in full for gpus in sets if score(gpus) == max(map(score, sets))]


# ---------------------------------------------------------------- ROCm


def test_rocm_does_not_count_links() -> None:
    """One link is as good as four, so the first pair is taken."""
    assert RocmWeights(_node(4, {(0, 1): 1, (2, 3): 4})).choose(0b1111, 2) == 0b0011


def test_rocm_prefers_a_link_to_one_numa_node() -> None:
    """0-1 in one NUMA node without a link: 20 + 40 + 10. 1-2 across with a link: 20 + 10 + 20."""
    assert RocmWeights(_node(4, {(1, 2): 1}, numa=2)).choose(0b1111, 2) == 0b0110


def test_rocm_prefers_one_numa_node_of_equal_links() -> None:
    assert RocmWeights(_node(4, {(0, 2): 1, (2, 3): 1}, numa=2)).choose(0b1111, 2) == 0b1100


# ---------------------------------------------------------------- streams


def test_a_stream_without_competition_gets_the_bandwidth_of_the_empty_node() -> None:
    tables = GpuTables(shape_of(dgx_1v()), usual_sizes(8))
    kept = bandwidth_kept(tables, tables.choose, 1, pods=200, load=0.001)
    assert kept.share == kept.ideal == 1.0 and not kept.blocked


def test_where_all_pairs_are_equal_every_chooser_keeps_everything() -> None:
    hardware = from_file("rccl/topo_8p_940.xml")
    tables = GpuTables(shape_of(hardware), usual_sizes(8))
    assert bandwidth_kept(tables, first_fit, 1, pods=300, load=0.9).share == 1.0
