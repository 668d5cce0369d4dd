"""Preemption for pods that require close GPUs: the GPUs that come free are the wanted set, or no pod goes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from tests.scheduling.ending_victims import preempt
from topo_scheduler.api.annotations import GPU_INDEX, PREDICTED_GPUS
from topo_scheduler.api.labels import GPU_SHARING
from topo_scheduler.api.objects import Pod

V100 = "Tesla-V100-SXM2-16GB"
H100 = "NVIDIA-H100-80GB-HBM3"
SHARED = {GPU_SHARING: "true"}


def cluster(*nodes: str, model: str = V100, shared: bool = False) -> Driver:
    labels = SHARED if shared else {}
    d = Driver([make_node(name, "s1/l1", model=model, labels=labels) for name in nodes])
    d.engine.budgets_known()
    return d


def running(d: Driver, name: str, node: str, indexes: str, *, key: str = PREDICTED_GPUS, **more: Any) -> Pod:
    """Apply a running pod of this scheduler with known GPUs."""
    pod = make_pod(name, gpus=len(indexes.split(",")), node=node, annotations={key: indexes}, phase="Running", **more)
    d.apply(pod)
    return pod


def urgent(gpus: int = 2, **asks: str) -> Pod:
    asks = asks or {"gpu_locality": "nvlink"}
    annotations = {key.replace("_", "-"): value for key, value in asks.items()}
    return make_pod("urgent", gpus=gpus, priority=10, annotations=annotations)


@pytest.mark.parametrize("key", [PREDICTED_GPUS, GPU_INDEX])
def test_the_victim_is_the_pod_whose_gpu_is_linked_with_a_free_one(key: str) -> None:
    """GPU 0 of a DGX-1 is free. It is linked with 3 and 4 by two links, with 1 and 2 by one, and with no other."""
    d = cluster("n", shared=key == GPU_INDEX)
    for index in range(1, 8):
        running(d, f"low-{index}", "n", str(index), key=key)
    pod = urgent(gpu_min_bandwidth="90G")
    assert preempt(d, pod) in (["low-3"], ["low-4"])
    assert pod.metadata.annotations[key] in ("0,3", "0,4")


def test_the_node_is_chosen_where_fewer_pods_must_go() -> None:
    d = cluster("a", "b")
    for index in range(8):
        running(d, f"a-{index}", "a", str(index))
    running(d, "b-0", "b", "0,1,2,3,5,6,7")
    pod = urgent()
    assert preempt(d, pod) == ["b-0"]
    assert pod.spec.node_name == "b"


def test_no_pod_is_evicted_where_links_would_still_be_missing() -> None:
    """GPU 0 is not linked with 5, 6 and 7; the others have pods of higher priority."""
    d = cluster("n")
    running(d, "high", "n", "1,2,3,4", priority=20)
    for index in (5, 6, 7):
        running(d, f"low-{index}", "n", str(index))
    assert preempt(d, urgent(gpu_locality="nvlink", gpu_min_bandwidth="90G")) != ["low-5"]
    d = cluster("n")
    running(d, "high", "n", "1,2,3,4,6,7", priority=20)
    running(d, "low", "n", "5")
    assert preempt(d, urgent()) == []


def test_no_pod_is_evicted_where_its_gpus_are_not_known() -> None:
    d = cluster("n")
    for index in range(8):
        d.apply(make_pod(f"low-{index}", gpus=1, node="n", scheduler="other", phase="Running"))
    assert preempt(d, urgent()) == []


@pytest.mark.parametrize("asks", [{"gpu_locality": "nvlink"}, {"gpu_min_bandwidth": "600G"}])
def test_below_a_switch_it_does_not_matter_which_gpus_come_free(asks: dict[str, str]) -> None:
    d = cluster("n", model=H100)
    for index in range(8):
        d.apply(make_pod(f"low-{index}", gpus=1, node="n", scheduler="other", phase="Running"))
    assert len(preempt(d, urgent(4, **asks))) == 4


def test_a_gang_gets_close_gpus_for_each_member() -> None:
    d = cluster("a", "b")
    for node in "ab":
        for pair in ("0,3", "1,2", "4,7", "5,6"):
            running(d, f"{node}-{pair[0]}", node, pair)
    gang = [
        make_pod(
            f"g-{n}",
            gpus=4,
            priority=10,
            annotations={"gang-name": "g", "gang-size": "3", "gpu-locality": "nvlink", "gpu-min-bandwidth": "45G"},
        )
        for n in range(3)
    ]
    d.apply(*gang)
    d.step()
    for name in d.preempted():
        d.delete(next(other for other in d.pods.values() if other.metadata.name == name))
    d.settle()
    d.settle(60)
    placed = d.where(*gang)
    assert len(placed) in (0, 3)
    assert bool(d.preempted()) == (len(placed) == 3)


@settings(max_examples=60, deadline=None)
@given(
    sets=st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=3), min_size=1, max_size=8),
    priorities=st.lists(st.sampled_from([0, 5, 20]), min_size=8, max_size=8),
    size=st.integers(2, 4),
    asks=st.sampled_from([{"gpu_locality": "nvlink"}, {"gpu_locality": "same-socket"}, {"gpu_min_bandwidth": "90G"}]),
    shared=st.booleans(),
    recorded=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_no_pod_is_ever_evicted_in_vain(
    sets: list[set[int]], priorities: list[int], size: int, asks: dict[str, str], shared: bool, recorded: list[bool]
) -> None:
    d = cluster("n", shared=shared)
    taken: set[int] = set()
    for number, indexes in enumerate(sets):
        if taken & indexes:
            continue
        taken |= indexes
        text = ",".join(map(str, sorted(indexes)))
        if recorded[number]:
            running(
                d, f"p{number}", "n", text, key=GPU_INDEX if shared else PREDICTED_GPUS, priority=priorities[number]
            )
        else:
            pod = make_pod(f"p{number}", gpus=len(indexes), node="n", priority=priorities[number], phase="Running")
            d.apply(pod)
    preempt(d, urgent(size, **asks))
