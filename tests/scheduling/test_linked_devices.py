"""Pods get the free GPUs with the best links also if they do not ask for that: by claims, by requests, by index."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import Json, asking
from tests.scheduling.driver import Driver
from tests.scheduling.linked_gpus import V100, are_linked, best_ring, cluster, numbers_of, running
from topo_scheduler.api.annotations import GPU_INDEX
from topo_scheduler.api.labels import GPU_SHARING
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.devices.gpu_tables import shape_of

TWO_REQUESTS: Json = {
    "devices": {
        "requests": [
            {"name": f"gpu-{number}", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
            for number in range(2)
        ]
    }
}


@pytest.mark.parametrize("claim", [None, asking(2), TWO_REQUESTS], ids=["requests", "a claim", "two requests"])
def test_a_pod_gets_linked_devices_without_asking(claim: Json | None) -> None:
    """The first free devices are 0 and 5, without a link between them."""
    d = cluster("n")
    running(d, "other", (1, 2, 3, 4))
    pod = make_pod("p", gpus=2) if claim is None else d.pod("p", claim)
    assert d.run(pod)
    assert are_linked(sorted(numbers_of(d, pod)))


def test_a_gang_gets_linked_devices_for_each_member() -> None:
    d = cluster("n")
    running(d, "other", (1, 2))
    pods = [d.pod(f"p{number}", asking(2)) for number in range(3)]
    assert len(d.run(*pods)) == 3
    got = [sorted(numbers_of(d, pod)) for pod in pods]
    assert sorted(gpu for gpus in got for gpu in gpus) == [0, 3, 4, 5, 6, 7]
    assert all(are_linked(gpus) for gpus in got)


def test_what_a_selector_excludes_is_not_counted_on() -> None:
    """0 and 3 would be best, but the claim can have 0 to 2 only: there it is 1 and 2."""
    d = cluster("n")
    spec = asking(2, selectors=[{"cel": {"expression": "device.attributes['gpu.example.com'].number <= 2"}}])
    pod = d.pod("p", spec)
    assert d.run(pod)
    assert numbers_of(d, pod) == {1, 2}


@pytest.mark.parametrize(("locality", "gpus"), [("same-socket", {0, 1, 2, 3}), ("nvlink", {0, 1, 2, 3})])
def test_devices_of_a_claim_are_close_if_the_pod_prefers_that(locality: str, gpus: set[int]) -> None:
    d = cluster("n")
    annotations = {"gpu-locality": locality, "gpu-requirements": "preferred"}
    pod = d.pod("p", asking(4), annotations=annotations)
    assert d.run(pod)
    assert numbers_of(d, pod) == gpus
    assert d.told(pod, Reason.ANNOTATION) == []


def test_a_pod_gets_linked_gpus_by_index() -> None:
    d = Driver([make_node("n", "s/l", gpus=8, model=V100, labels={GPU_SHARING: "true"})])
    share = make_pod("share", annotations={"gpu-fraction": "0.5"})
    assert d.run(share) == {"share": "n"}
    pods = [make_pod(f"p{number}", gpus=2) for number in range(3)]
    for pod in pods:
        assert d.run(pod)
        assert are_linked([int(index) for index in pod.metadata.annotations[GPU_INDEX].split(",")])


@settings(max_examples=40, deadline=None)
@given(taken=st.sets(st.integers(0, 7), max_size=5), size=st.integers(2, 4))
def test_no_other_free_gpus_have_a_betterbest_ring(taken: set[int], size: int) -> None:
    free = sorted(set(range(8)) - taken)
    if len(free) < size:
        return
    d = cluster("n")
    if taken:
        running(d, "other", sorted(taken))
    pod = d.pod("p", asking(size))
    assert d.run(pod)
    hardware = d.engine.world.hardware.of(0)
    assert hardware is not None
    pairs = shape_of(hardware.hardware).pairs
    assert best_ring(pairs, tuple(numbers_of(d, pod))) == max(
        best_ring(pairs, chosen) for chosen in combinations(free, size)
    )
