"""Pods that hold devices by claims, on nodes where they may be preempted."""

from tests.helpers import timestamp
from tests.scheduling.device_driver import DeviceDriver, asking, driver
from topo_scheduler.api.objects import Pod


def ready(leaves: dict[str, int] | None = None) -> DeviceDriver:
    """Return a driver that may preempt, of one node if nothing else is said."""
    d = driver(leaves or {"s1/l1": 1})
    d.engine.budgets_known()
    return d


def running(d: DeviceDriver, name: str, count: int, *, priority: int = 0) -> Pod:
    """Return a pod that runs with some devices."""
    pod = d.pod(name, asking(count), priority=priority)
    d.run(pod)
    assert pod.spec.node_name
    pod.status.phase, pod.status.start_time = "Running", timestamp(d.now)
    d.apply(pod)
    d.settle()
    return pod


def end(d: DeviceDriver, *pods: Pod, deallocated: bool = True) -> None:
    """Pods are evicted and end; their claims go with them at once or later."""
    d.evict(*pods)
    if deallocated:
        deallocate(d, *pods)


def deallocate(d: DeviceDriver, *pods: Pod) -> None:
    """Kubernetes deletes the claims of pods."""
    for pod in pods:
        d.drop_claim(f"{pod.metadata.name}-claim")
