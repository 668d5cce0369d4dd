"""Pods that name their node themselves may request up to 2^53 of anything, many on one node: no number overflows."""

import numpy as np
import pytest

from tests.helpers import make_pod, ours
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.kernels.small_pods import left_free
from topo_scheduler.scheduling.placing.model.leaf_totals import LeafTotals
from topo_scheduler.state.nodes.resources import CPU, GPU

from .driver import Driver, fabric

ABSURD_CORES = 2**53 // 1000


def absurd(count: int, node: str) -> list[Pod]:
    return [
        make_pod(f"absurd-{number}", cpu=ABSURD_CORES, gpus=2**53, node=node, namespace="hostile")
        for number in range(count)
    ]


@pytest.mark.filterwarnings("ignore:overflow")  # as outside of tests
def test_a_node_with_any_number_of_them_has_no_room() -> None:
    """1,025 times 2^53 exceeds 64 bits: the node would seem to have more room than all others together."""
    d = Driver(fabric({"s/l": 1}))
    d.apply(*absurd(1025, "s-l-1"))
    row = d.engine.world.nodes.row_of["s-l-1"]
    assert d.engine.world.nodes.requested[row].min() >= 0
    pod = make_pod("pod", gpus=1)
    assert d.run(pod) == {}


@pytest.mark.parametrize("scheduler", ["other", "topology-aware-scheduler"])
def test_any_number_of_them_that_are_nominated_to_a_node_fail_no_decision(scheduler: str) -> None:
    d = Driver(fabric({"s/l": 1}))
    nominated = absurd(1025, "")
    for pod in nominated:
        pod.spec.scheduler_name, pod.status.nominated_node_name = scheduler, "s-l-1"
        pod.metadata.annotations |= ours({"gang-name": "never-complete", "gang-size": "2000"})
    d.apply(*nominated)
    pod = make_pod("pod", gpus=1)
    assert d.run(pod) == {}
    assert d.told(pod, Reason.SCHEDULER_ERROR) == []


@pytest.mark.parametrize("column", [CPU, GPU])
def test_the_use_of_a_leaf_is_at_most_what_its_nodes_have(column: int) -> None:
    d = Driver(fabric({"s/l1": 2, "s/l2": 2}))
    world = d.engine.world
    totals = LeafTotals(world.nodes, column)
    totals.refresh(world.layout)
    d.apply(*absurd(2, "s-l1-1"))
    totals.refresh(world.layout)
    again = LeafTotals(world.nodes, column)
    again.refresh(world.layout)
    for sums in (totals, again):
        assert sums.used.tolist() == [sums.capacity[0] // 2, 0]
        assert sums.free_by_row.max() * 2 == sums.capacity[0]


def test_a_full_node_has_the_least_left() -> None:
    allocatable = np.zeros((3, 5), np.int64)
    allocatable[:, CPU], allocatable[:, GPU] = 64_000, 8
    requested = np.zeros_like(allocatable)
    requested[0, GPU] = requested[0, CPU] = 2**48 + 2**22
    requested[1, GPU] = 8
    out = np.zeros(3, np.int64)
    left_free(allocatable, requested, CPU, GPU, np.zeros((3, 0), np.int64), np.arange(3), out)
    assert out[0] < out[1] < out[2]
