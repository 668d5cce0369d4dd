"""Random clusters where controllers create each evicted pod again: urgent gangs are placed in the end.

Pods of their own namespace end slowly, so that plans take several stages.
"""

import random
from collections.abc import Callable

import pytest

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import with_priority
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import EvictionOutcome, Preempt

GRACES_SECONDS = (0, 30, 90, 300, 590)


class Recreated:
    """Pods that get their grace period when they are evicted, and a successor at once."""

    def __init__(self, d: Driver) -> None:
        self.d = d
        self._make: dict[str, Callable[[], Pod]] = {}
        self._ends: dict[str, float] = {}
        self._count = 0
        self._read = 0

    def run(self, namespace: str, node: str, gpus: int, priority: int, grace: int) -> None:
        def make() -> Pod:
            self._count += 1
            pod = make_pod(f"own-{self._count}", namespace=namespace, gpus=gpus, priority=priority)
            pod.spec.termination_grace_period_seconds = grace
            pod.metadata.creation_timestamp = timestamp(self.d.now)
            self._make[pod.metadata.uid] = make
            return pod

        first = make()
        first.spec.node_name, first.status.phase = node, "Running"
        self.d.apply(first)

    def pass_time(self, seconds: float, step: float) -> None:
        """Let time pass; evicted pods end after their grace period."""
        until = self.d.now + seconds
        while self.d.now < until:
            self.d.settle(step)
            for instruction in self.d.said[self._read :]:
                if isinstance(instruction, Preempt) and (pod := self.d.pods.get(instruction.pod.uid)) is not None:
                    self._evict(pod)
            self._read = len(self.d.said)
            for uid in [uid for uid, at in self._ends.items() if at <= self.d.now]:
                del self._ends[uid]
                self.d.delete(self.d.pods[uid])

    def _evict(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if not self.d.engine.may_evict(uid):
            self.d.engine.eviction_finished(uid, EvictionOutcome.WITHDRAWN, "withdrawn", self.d.now)
            return
        self.d.engine.eviction_finished(uid, EvictionOutcome.GOING, "granted", self.d.now)
        grace = pod.spec.termination_grace_period_seconds or 0
        pod.metadata.deletion_timestamp = timestamp(self.d.now + grace)
        self.d.apply(pod, self._make[uid]())
        self._ends[uid] = self.d.now + grace


@pytest.mark.parametrize("seed", range(40))
def test_urgent_gangs_are_placed_though_controllers_create_their_victims_again(seed: int) -> None:
    chance = random.Random(seed)
    leaves, size = chance.randint(1, 2), chance.choice([4, 8, 14])
    d = fabric_driver({f"s1/l{leaf}": size for leaf in range(1, leaves + 1)})
    pods = Recreated(d)
    nodes = [f"s1-l{leaf}-{number}" for leaf in range(1, leaves + 1) for number in range(1, size + 1)]
    free = dict.fromkeys(nodes, 8)
    for _ in range(chance.randint(len(nodes) // 2, 2 * len(nodes))):
        node, gpus = chance.choice(nodes), chance.choice([1, 1, 2, 4, 8])
        if free[node] >= gpus:
            free[node] -= gpus
            pods.run(chance.choice("abc"), node, gpus, chance.choice([-10, -5]), chance.choice(GRACES_SECONDS))
    pods.pass_time(30, 10)
    members = with_priority(gang(chance.randint(2, size), gpus=8), 10)
    for pod in members:
        pod.metadata.namespace = chance.choice("ab") if pod is members[0] else members[0].metadata.namespace
    d.apply(*members)
    pods.pass_time(4000, 5)
    assert len(d.where(*members)) == len(members)
