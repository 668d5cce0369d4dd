"""Pods that run before a test begins, and the pods that may preempt them or wait for their end."""

from collections.abc import Iterable
from math import inf

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import Pod


def fill_nodes(d: Driver, *nodes: str) -> list[Pod]:
    """Fill nodes of 8 GPUs with running pods of another scheduler."""
    busy = [make_pod(f"busy-{node}", gpus=8, scheduler="other", node=node, phase="Running") for node in nodes]
    d.apply(*busy)
    return busy


def run_pod(d: Driver, name: str, node: str, *, gpus: int = 8, priority: int = 0, scheduler: str = "other") -> Pod:
    """Apply a pod that runs on a node."""
    pod = make_pod(name, gpus=gpus, node=node, priority=priority, scheduler=scheduler, phase="Running")
    d.apply(pod)
    return pod


def refill(d: Driver, nodes: Iterable[str], number: int) -> None:
    """Pods of other tenants come to those nodes that are empty."""
    taken = {pod.spec.node_name for pod in d.pods.values()}
    for node in nodes:
        if node not in taken:
            run_pod(d, f"low-{number}-{node}", node)


def victims(d: Driver) -> list[Pod]:
    """Return the pods that were preempted and have not ended."""
    return [pod for pod in d.pods.values() if pod.metadata.name in d.preempted()]


def urgent_pod(name: str = "urgent", priority: int = 10, gpus: int = 8) -> Pod:
    """Return a pod with a priority."""
    return make_pod(name, gpus=gpus, priority=priority)


def with_priority(pods: list[Pod], priority: int) -> list[Pod]:
    """Give pods a priority."""
    for pod in pods:
        pod.spec.priority = priority
    return pods


def run_pod_until(
    d: Driver,
    name: str,
    node: str,
    *,
    ends: float = inf,
    gpus: int = 8,
    restart: str = "Never",
    namespace: str = "default",
) -> Pod:
    """Apply a pod of another scheduler that has run since time 0, with the second at which it should end."""
    annotations = {"expected-duration": f"{ends:g}s"} if ends < inf else {}
    pod = make_pod(name, gpus=gpus, node=node, annotations=annotations, namespace=namespace, phase="Running")
    pod.spec.scheduler_name = "other"
    pod.status.start_time, pod.spec.restart_policy = timestamp(0), restart
    d.apply(pod)
    return pod


def with_duration(pods: list[Pod], says: str) -> list[Pod]:
    """Give pods an expected duration."""
    for pod in pods:
        pod.metadata.annotations["topology.scheduler/expected-duration"] = says
    return pods


def timed_pod(name: str, says: str = "", gpus: int = 8, priority: int = 0) -> Pod:
    """Return a pod with an expected duration."""
    annotations = {"expected-duration": says} if says else {}
    return make_pod(name, gpus=gpus, annotations=annotations, priority=priority, created=1000)


def foreign_pod(name: str, node: str, gpus: int = 8, *, expected: str = "") -> Pod:
    """Return a pod of another scheduler that runs on a node."""
    annotations = {"expected-duration": expected} if expected else {}
    return make_pod(name, gpus=gpus, node=node, scheduler="other", annotations=annotations, phase="Running")
