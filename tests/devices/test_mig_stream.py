"""Other choosers of MIG slots, against cases by hand; what a stream counts; and what fits when placed again."""

import random
from collections import Counter

import pytest

from tests.bench.mig_repack import Repacking
from tests.devices.mig_stream import WARM_UP, MigLoad, run_stream
from topo_scheduler.scheduling.devices.mig_slots import MigSlot, MigSlots, SplitGpu
from topo_scheduler.simulation.devices.mig_choosers import RandomSlot, first_fit, packed, spread
from topo_scheduler.simulation.devices.mig_repacking import maximal_sets
from topo_scheduler.state.devices.mig import GIB, MigGeometry, MigProfile, geometry_of


def _geometry() -> MigGeometry:
    geometry = geometry_of("NVIDIA H100 80GB HBM3", 80 * GIB)
    assert geometry is not None
    return geometry


GEOMETRY = _geometry()
SLOTS = MigSlots(GEOMETRY)
MIX = {"1g.10gb": 4, "2g.20gb": 2, "3g.40gb": 2, "7g.80gb": 1}


def _profile(name: str) -> MigProfile:
    profile = GEOMETRY.profile(name)
    assert profile is not None
    return profile


def _gpu(*instances: tuple[str, int]) -> SplitGpu:
    gpu = SplitGpu()
    for name, start in instances:
        gpu = gpu.with_instance(_profile(name), start)
    return gpu


FULLER = [_gpu(("2g.20gb", 0)), SplitGpu(), _gpu(("3g.40gb", 4)), _gpu(("7g.80gb", 0))]


@pytest.mark.parametrize(
    ("make", "slot"),
    [
        (first_fit, MigSlot(0, 2)),
        (spread, MigSlot(1, 0)),
        (packed, MigSlot(2, 3)),
        (lambda slots: RandomSlot(slots, random.Random(0)), None),
    ],
)
def test_each_chooser_takes_the_slot_of_its_rule(make, slot: MigSlot | None) -> None:  # type: ignore[no-untyped-def]
    chosen = make(SLOTS)(FULLER, _profile("1g.10gb"))
    assert chosen is not None and chosen.start in SLOTS.starts(FULLER[chosen.gpu], _profile("1g.10gb"))
    assert slot is None or chosen == slot
    assert make(SLOTS)(FULLER[2:], _profile("7g.80gb")) is None


@pytest.mark.parametrize(
    ("instances", "gpus", "fits"),
    [
        ({"3g.40gb": 2}, 1, True),
        ({"3g.40gb": 2, "1g.10gb": 1}, 1, False),  # all memory slices are taken
        ({"4g.40gb": 1, "3g.40gb": 1}, 1, True),
        ({"4g.40gb": 2}, 1, False),
        ({"1g.10gb": 7}, 1, True),
        ({"1g.10gb": 8}, 1, False),
        ({"1g.10gb": 8}, 2, True),
        ({"1g.10gb+me": 2}, 1, False),
        ({"7g.80gb": 2, "1g.10gb": 1}, 2, False),
    ],
)
def test_what_fits_after_repacking(instances: dict[str, int], gpus: int, fits: bool) -> None:
    assert Repacking(GEOMETRY, gpus).fits(Counter(instances)) is fits


def test_no_maximal_set_is_within_another() -> None:
    sets = maximal_sets(GEOMETRY)
    assert not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for a in sets for b in sets)


def test_a_stream_counts_a_request_as_placed_blocked_or_full() -> None:
    """One GPU under twice its load: some requests are blocked by fragmentation, others because the GPU is full."""
    outcome = run_stream(GEOMETRY, spread(SLOTS), MigLoad(MIX, 2.0, 1, WARM_UP + 500), 1, Repacking(GEOMETRY, 1).fits)
    assert outcome.counted == 500 and outcome.full and outcome.fragmented


def test_a_stream_that_hardly_loads_the_gpus_blocks_nothing() -> None:
    outcome = run_stream(GEOMETRY, SLOTS.choose, MigLoad(MIX, 0.01, 8, WARM_UP + 200), 1, Repacking(GEOMETRY, 8).fits)
    assert not outcome.fragmented and not outcome.full


def test_least_capacity_lost_blocks_less_than_spread_and_first_fit() -> None:
    asked = MigLoad({**MIX, "1g.20gb": 4}, 0.8, 16, 1_200)
    fits = Repacking(GEOMETRY, 16).fits
    ours, others = (
        [sum(run_stream(GEOMETRY, choose, asked, seed, fits).share for seed in range(2)) for choose in choosers]
        for choosers in ([SLOTS.choose], [spread(SLOTS), first_fit(SLOTS)])
    )
    assert ours[0] < min(others)
