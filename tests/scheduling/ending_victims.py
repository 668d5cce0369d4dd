"""Pods that preempt others, which end at once."""

from collections.abc import Callable

from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import Pod


def preempt(d: Driver, pod: Pod, end_with: Callable[[str], object] = str) -> list[str]:
    """Let a pod preempt others, which end; return the evicted ones. The pod must then have a place.

    ``end_with``: ends what else ends with a pod, given its name.
    """
    d.apply(pod)
    d.step()
    victims = d.preempted()
    for name in victims:
        d.delete(next(other for other in d.pods.values() if other.metadata.name == name))
        end_with(name)
    d.settle()
    d.settle(60)
    assert bool(victims) <= bool(pod.spec.node_name), "pods were evicted in vain"
    assert d.preempted() == victims, "more pods were evicted"
    return victims
