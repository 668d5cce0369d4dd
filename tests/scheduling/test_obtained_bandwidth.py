"""Which share of the bandwidth of an empty node the GPUs of a placed pod have, for metrics."""

from itertools import combinations

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import asking
from tests.scheduling.driver import Driver
from tests.scheduling.linked_gpus import best_ring, cluster, numbers_of, running
from topo_scheduler.api.annotations import PREDICTED_GPUS
from topo_scheduler.scheduling.devices.gpu_tables import shape_of
from topo_scheduler.scheduling.devices.obtained_bandwidth import obtained_bandwidths
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.state.decision import Seat

V100 = "Tesla-V100-SXM2-16GB"
"""The DGX-1: GPUs 0 and 3 have two links of 25 GB/s, 0 and 1 one, 0 and 5 none."""


def _seat(engine: Engine, node: str, *devices: int, predicted: bool = False) -> Seat:
    row = engine.world.nodes.row_of[node]
    return Seat("p", "default", "p", row, node, 0, "", devices=devices, predicted=predicted)


def _shares(engine: Engine, *seats: Seat) -> list[tuple[int, bool, float]]:
    bandwidths = obtained_bandwidths(engine.world.nodes, engine.world.around.gpu_sets, seats)
    return [(bandwidth.gpus, bandwidth.predicted, bandwidth.share) for bandwidth in bandwidths]


def _engine() -> Engine:
    unknown = make_node("unknown", "s1/l1", gpus=8, model="Some-Accelerator")
    return Driver([make_node("mesh", "s1/l1", gpus=8, model=V100), unknown]).engine


@pytest.mark.parametrize(("devices", "share"), [((0, 3), 1.0), ((0, 1), 0.5), ((0, 1, 2, 3), 1.0)])
def test_the_share_is_that_of_the_best_set_of_the_same_size(devices: tuple[int, ...], share: float) -> None:
    engine = _engine()
    assert _shares(engine, _seat(engine, "mesh", *devices)) == [(len(devices), False, share)]


def test_gpus_without_a_link_get_less_and_a_prediction_is_marked() -> None:
    engine = _engine()
    ((gpus, predicted, share),) = _shares(engine, _seat(engine, "mesh", 0, 5, predicted=True))
    assert (gpus, predicted) == (2, True) and 0 < share < 0.5


def test_pods_of_which_nothing_is_known_are_left_out() -> None:
    engine = _engine()
    seats = [
        _seat(engine, "mesh"),
        _seat(engine, "mesh", 3),
        _seat(engine, "unknown", 0, 1),
        _seat(engine, "mesh", 8, 9),
    ]
    moved = Seat("p", "default", "p", engine.world.nodes.row_of["mesh"], "gone", 0, "", devices=(0, 3))
    assert _shares(engine, *seats, moved) == []


def test_the_gpus_of_a_decision_are_those_of_its_annotation() -> None:
    driver = Driver([make_node("mesh", "s1/l1", gpus=8, model=V100)])
    pod = make_pod("p", gpus=2, annotations={"gpu-locality": "nvlink"})
    assert driver.run(pod) == {"p": "mesh"}
    devices = tuple(int(text) for text in pod.metadata.annotations[PREDICTED_GPUS].split(","))
    assert _shares(driver.engine, _seat(driver.engine, "mesh", *devices)) == [(2, False, 1.0)]


@pytest.mark.parametrize("taken", [(1, 2, 3, 4), (0,), (0, 5)])
def test_the_gpus_of_claims_count(taken: tuple[int, ...]) -> None:
    d = cluster("n")
    running(d, "other", taken)
    pod = d.pod("p", asking(8 - len(taken)))
    assert d.run(pod)
    (decision,) = [said for said in d.decisions() if said.name == "default/p"]
    ((gpus, predicted, share),) = _shares(d.engine, *decision.seats)
    assert (gpus, predicted) == (8 - len(taken), False)
    hardware = d.engine.world.hardware.of(0)
    assert hardware is not None
    pairs = shape_of(hardware.hardware).pairs
    best = max(best_ring(pairs, chosen) for chosen in combinations(range(8), gpus))
    assert share == best_ring(pairs, tuple(numbers_of(d, pod))) / best


def test_nothing_is_counted_as_long_as_tables_are_computed() -> None:
    engine = _engine()
    sets = engine.world.around.gpu_sets
    assert sets is not None
    sets.tables.defer()
    assert _shares(engine, _seat(engine, "mesh", 0, 3)) == []
    assert sets.tables.take_wanted(), "they are computed then"
