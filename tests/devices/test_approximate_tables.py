"""What decides until tables are computed never promises more than they do."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.devices.shapes import dgx_1v
from topo_scheduler.scheduling.devices.approximate_tables import ApproximateTables
from topo_scheduler.scheduling.devices.plugin_choice import set_of
from topo_scheduler.scheduling.devices.shape_tables import compute
from topo_scheduler.state.devices.hardware import Gpu, GpuLink, NodeHardware


@st.composite
def meshes(draw: st.DrawFn) -> NodeHardware:
    count = draw(st.integers(1, 7))
    pairs = list(combinations(range(count), 2))
    bandwidths = draw(st.lists(st.sampled_from([0, 25_000, 50_000]), min_size=len(pairs), max_size=len(pairs)))
    links = tuple(
        GpuLink(first, second, 1, bandwidth)
        for (first, second), bandwidth in zip(pairs, bandwidths, strict=True)
        if bandwidth
    )
    return NodeHardware(tuple(Gpu(index) for index in range(count)), links=links)


@given(meshes())
def test_no_ring_is_promised_that_does_not_exist(hardware: NodeHardware) -> None:
    approximate, exact = ApproximateTables(hardware), compute(hardware, ())
    for chosen in range(1 << len(hardware.gpus)):
        assert approximate.ring(chosen) <= exact.ring(chosen)
        if chosen.bit_count() <= 3:
            assert approximate.ring(chosen) == exact.ring(chosen)


@given(meshes(), st.data())
def test_a_choice_is_of_free_gpus_and_accepted(hardware: NodeHardware, data: st.DataObject) -> None:
    count = len(hardware.gpus)
    free, size = data.draw(st.integers(0, (1 << count) - 1)), data.draw(st.integers(0, count))
    refused = data.draw(st.sets(st.integers(0, (1 << count) - 1)))
    bandwidth = data.draw(st.sampled_from([0, 10_000, 25_000, 50_000]))
    for tables in (ApproximateTables(hardware), compute(hardware, (0, 0, 1))):
        chosen = tables.choose(free, size)
        assert (chosen >= 0) == (size <= free.bit_count())
        assert chosen < 0 or (chosen.bit_count() == size and not chosen & ~free)
        close = tables.closest(free, size, bandwidth, lambda other: other not in refused)
        if close > 0:
            assert close.bit_count() == size and not close & ~free and close not in refused
            assert tables.ring(close) >= bandwidth


@given(meshes(), st.integers(1, 7), st.sampled_from([0, 10_000, 25_000, 50_000]), st.integers(0, 6))
def test_tables_find_the_best_of_the_accepted_sets(
    hardware: NodeHardware, size: int, bandwidth: int, member: int
) -> None:
    tables = compute(hardware, ())
    sets = [set_of(chosen) for chosen in combinations(range(len(hardware.gpus)), size)]
    good = [chosen for chosen in sets if chosen >> member & 1 and tables.ring(chosen) >= bandwidth]
    best = max(good, key=tables.ring) if good else -1  # the first of equal ones
    assert tables.closest(tables.all_gpus, size, bandwidth, lambda chosen: bool(chosen >> member & 1)) == best


@pytest.mark.parametrize("size", range(2, 9))
def test_below_one_switch_both_say_the_same(size: int) -> None:
    hardware = NodeHardware(tuple(Gpu(index, switch_links=18, link_mb_per_second=25_000) for index in range(8)))
    approximate, exact = ApproximateTables(hardware), compute(hardware, ())
    assert approximate.best_ring(255, size) == exact.best_ring(255, size) == 450_000
    assert approximate.choose(0b11110110, size) == exact.choose(0b11110110, size)


def test_in_a_mesh_near_gpus_are_chosen() -> None:
    """GPUs 0 and 3 of a DGX-1 share two links, 0 and 1 only one."""
    assert ApproximateTables(dgx_1v()).choose(0b1011, 2) == 0b1001
