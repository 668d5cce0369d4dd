"""What a kubelet aligns for a pod with a node is kept up to caps, whatever its tenant writes."""

import tracemalloc

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Container, Pod, ResourceRequirements
from topo_scheduler.state.pods.numa_request import forget_requests, kept_request, numa_request


def _pod(number: int, containers: int, names: int) -> Pod:
    pod = make_pod(f"p{number}", node="s-l1-0")
    pod.spec.containers = [
        Container(f"c{n}", ResourceRequirements({}, {f"example.com/{name}": f"{1 + number}" for name in range(names)}))
        for n in range(containers)
    ]
    return pod


def test_the_request_of_an_ordinary_pod_is_kept_and_that_of_a_large_one_is_not() -> None:
    for containers, names, kept in ((1, 4, True), (32, 4, True), (33, 1, False), (32, 5, False)):
        request = numa_request(_pod(0, containers, names))
        assert request is not None
        assert len(request.containers) == containers, "a pending pod is judged by all of them"
        assert (kept_request(request) is request) is kept


def test_equal_requests_are_one_object() -> None:
    for containers in (1, 16):
        assert numa_request(_pod(0, containers, 4)) is numa_request(_pod(0, containers, 4))


def test_the_ledger_keeps_no_large_request() -> None:
    d = Driver(fabric({"s/l1": 1}))
    small, large = _pod(0, 2, 2), _pod(1, 64, 16)
    d.apply(small, large)
    entries = d.engine.world.ledger._entries
    assert entries[small.metadata.uid].numa is not None
    assert entries[large.metadata.uid].numa is None


def test_the_cache_holds_no_large_requests() -> None:
    forget_requests()
    tracemalloc.start()
    try:
        for number in range(40):
            numa_request(_pod(number, 100, 20))
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 2_000_000, "each takes 0.4 MB"
