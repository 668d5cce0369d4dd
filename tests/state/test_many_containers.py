"""What is read of a pod's containers takes as many steps as it has requests, however many sidecars there are."""

import sys
from types import FrameType

from tests.helpers import make_pod
from topo_scheduler.api.objects import Container, Pod, ResourceRequirements
from topo_scheduler.state.nodes.resources import ResourceTable
from topo_scheduler.state.pods.requests import pod_amounts


def started_by(containers: int, names: int) -> Pod:
    """Return a pod whose init containers, half of them sidecars, ask for one resource each, of some."""
    pod = make_pod("p")
    pod.spec.init_containers = [
        Container(
            f"c{n}",
            ResourceRequirements({f"example.com/r{n % names}": "1"}, {}),
            restart_policy="Always" if n % 2 else None,
        )
        for n in range(containers)
    ]
    return pod


def lines_of(pod: Pod) -> int:
    """Return how many lines run until a pod's containers are read."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        pod_amounts(ResourceTable(()), pod)
    finally:
        sys.settrace(None)
    return lines


def test_steps_grow_with_the_containers_and_not_with_all_that_the_sidecars_ask() -> None:
    assert lines_of(started_by(256, 60)) < 2 * lines_of(started_by(256, 1))
