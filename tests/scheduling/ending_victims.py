"""Pods that preempt others, which end at once."""

from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import Pod


def preempt(d: Driver, pod: Pod) -> list[str]:
    """Let a pod preempt others, which end; return the evicted ones. The pod must then have a place."""
    d.apply(pod)
    d.step()
    victims = d.preempted()
    for name in victims:
        d.delete(next(other for other in d.pods.values() if other.metadata.name == name))
    d.settle()
    d.settle(60)
    assert bool(victims) <= bool(pod.spec.node_name), "pods were evicted in vain"
    return victims
