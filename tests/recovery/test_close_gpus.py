"""Pods that require close GPUs, or that a kubelet aligns to NUMA nodes, move only where that is so after the move."""

import pytest

from tests.helpers import NVIDIA, controlled_by, make_node, make_pod, owner
from tests.scheduling.driver import Driver
from tests.scheduling.numa_nodes import NumaDriver, container, pod_of, topology
from tests.scheduling.repair_moves import REPAIR_ONLY, moves_by_pod, plan_moves
from topo_scheduler.api.annotations import PREDICTED_GPUS
from topo_scheduler.api.objects import Pod
from topo_scheduler.recovery.model.seating import find_moving_pods, find_seats
from topo_scheduler.scheduling.scheduler_view import SchedulerView

V100 = "Tesla-V100-SXM2-16GB"
H100 = "NVIDIA-H100-80GB-HBM3"


def with_gpus(d: Driver, name: str, node: str, indexes: str) -> None:
    gpus = len(indexes.split(","))
    d.apply(make_pod(name, gpus=gpus, node=node, phase="Running", annotations={PREDICTED_GPUS: indexes}))


def linked(d: Driver, name: str, gpus: int = 2) -> Pod:
    d.own(owner("StatefulSet", "set"))
    by = controlled_by("StatefulSet", "set")
    return make_pod(name, gpus=gpus, owner=by, annotations={"gpu-locality": "nvlink"})


def seats_of(d: Driver, *pods: Pod, avoided: str) -> dict[str, str]:
    view = SchedulerView(d.engine)
    moving = find_moving_pods(view, [pod.metadata.uid for pod in pods])
    assert len(moving) == len(pods)
    return dict(find_seats(view, moving, {avoided}, "default/m", d.now))


@pytest.mark.parametrize("pods", [1, 2])
def test_each_pod_that_moves_has_linked_gpus_beside_the_others(pods: int) -> None:
    """On node b the GPUs 0, 1, 2 and 7 are free: 7 is linked with none of the others."""
    d = Driver([make_node("a", "s1/l1", model=V100)])
    moving = [linked(d, f"m{number}") for number in range(pods)]
    assert len(d.run(*moving)) == pods
    d.nodes(make_node("b", "s1/l1", model=V100))
    with_gpus(d, "other", "b", "3,4,5,6")
    assert bool(seats_of(d, *moving, avoided="a")) == (pods == 1)
    d.nodes(make_node("c", "s1/l1", model=V100))
    assert set(seats_of(d, *moving, avoided="a").values()) <= {"b", "c"}
    assert len(seats_of(d, *moving, avoided="a")) == pods


def test_no_pod_moves_to_a_node_whose_free_gpus_are_not_linked() -> None:
    d = Driver([make_node("a", "s1/l1", model=V100)])
    pod = linked(d, "m")
    d.run(pod)
    d.nodes(make_node("b", "s1/l1", model=V100))
    with_gpus(d, "other", "b", "1,2,3,4,5,6")
    assert seats_of(d, pod, avoided="a") == {}


@pytest.mark.parametrize(("pods", "fit"), [(1, True), (2, False)])
def test_each_pod_that_moves_has_a_numa_node_beside_the_others(pods: int, fit: bool) -> None:
    """Node n1 has 3 GPUs free on one NUMA node and 1 on the other: enough for two pods by their sum."""
    d = NumaDriver([make_node("n0", "s1/l1", gpus=8)])
    d.own(owner("StatefulSet", "set"))
    by = controlled_by("StatefulSet", "set")
    moving = [pod_of(f"m{number}", container(gpu=2), owner=by) for number in range(pods)]
    d.run(*moving)
    d.nodes(make_node("n1", "s1/l1", gpus=8))
    filler = pod_of("filler", container(gpu=4))
    filler.spec.node_name = "n1"
    d.apply(filler)
    report = topology("n1", {NVIDIA: [3, 1]}, {NVIDIA: [4, 4]})
    d.report(report)
    d.report(report)
    d.report(report)
    assert bool(seats_of(d, *moving, avoided="n0")) == fit


def test_a_pod_that_makes_room_for_a_gang_goes_where_its_gpus_are_linked() -> None:
    """By its GPUs alone, node b is the best fit; but its two free GPUs have no link."""
    d = Driver([make_node(name, "s1/l1", model=V100) for name in "abc"], REPAIR_ONLY)
    d.engine.budgets_known()
    d.own(owner("StatefulSet", "set"))
    with_gpus(d, "on-b", "b", "1,2,3,4,5,6")
    with_gpus(d, "on-c", "c", "4,5")
    pod = linked(d, "m")
    d.apply(pod)
    pod.spec.node_name, pod.metadata.annotations[PREDICTED_GPUS] = "a", "0,1"
    d.apply(pod)
    large = [make_pod("large", gpus=8, annotations={"gang-name": "large", "gang-size": "1"})]
    d.apply(*large)
    d.step()
    assert moves_by_pod(d, plan_moves(d, large)) == {"m": ("a", "c")}


def test_links_over_a_switch_hinder_no_move() -> None:
    d = Driver([make_node("a", "s1/l1", model=H100)])
    moving = [linked(d, f"m{number}", 4) for number in range(2)]
    d.run(*moving)
    d.nodes(make_node("b", "s1/l1", model=H100))
    assert set(seats_of(d, *moving, avoided="a").values()) == {"b"}
