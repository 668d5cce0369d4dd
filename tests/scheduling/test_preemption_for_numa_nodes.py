"""Preemption for pods that a kubelet aligns to NUMA nodes: one NUMA node surely has room then, or no pod goes."""

from collections.abc import Collection, Sequence
from itertools import combinations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.helpers import NVIDIA, make_node
from tests.scheduling.ending_victims import preempt
from tests.scheduling.numa_nodes import Kubelet, NumaDriver, container, pod_of, topology
from topo_scheduler.api.objects import Pod

EIGHT = {NVIDIA: [4, 4]}


def running(name: str, gpus: int, node: str = "n0", **more: object) -> Pod:
    pod = pod_of(name, container(gpu=gpus), **more)  # type: ignore[arg-type]
    pod.spec.node_name, pod.status.phase = node, "Running"
    return pod


def cluster(pods: Sequence[Pod], free: Sequence[int], nodes: int = 1) -> NumaDriver:
    """Return machines with running pods that their reports show; only the first one has some."""
    d = NumaDriver([make_node(f"n{number}", "s/l1", gpus=8) for number in range(nodes)])
    d.engine.budgets_known()
    reports = [topology("n0", {NVIDIA: free}, EIGHT)] + [topology(f"n{n}", EIGHT) for n in range(1, nodes)]
    d.report(*reports)
    d.apply(*pods)
    d.report(*reports)
    d.report(*reports)  # both are from after the pods came
    return d


def urgent(gpus: int) -> Pod:
    return pod_of("urgent", container(gpu=gpus), priority=10)


def preempt_once(d: NumaDriver, pod: Pod) -> list[str]:
    """Let a pod preempt others, which end; it must then have a place, before any report."""
    victims = preempt(d, pod)
    assert d.preempted() == victims, "pods were evicted twice"
    return victims


def test_one_of_two_pods_with_a_numa_node_each_goes() -> None:
    """It is not known which pod has which NUMA node, and it does not matter."""
    d = cluster([running("a", 4), running("b", 4)], [0, 0])
    assert preempt_once(d, urgent(4)) in (["a"], ["b"])


def test_a_pod_goes_that_must_be_on_the_numa_node_with_free_gpus() -> None:
    d = cluster([running("three", 3), running("two", 2), running("other", 2, priority=20)], [1, 0])
    assert preempt_once(d, urgent(4)) == ["three"]


def test_no_pod_goes_if_it_may_be_on_either_numa_node() -> None:
    """Two GPUs are free on each NUMA node, and it is not known where the pod of low priority is."""
    d = cluster([running("low", 2), running("high", 2, priority=20)], [2, 2])
    assert preempt_once(d, urgent(4)) == ["low"]
    d = cluster([running("low", 1), running("high-1", 1, priority=20), running("high-2", 2, priority=20)], [2, 2])
    assert preempt_once(d, urgent(4)) == []


def test_pods_of_which_no_report_shows_anything_yet_are_spared() -> None:
    d = cluster([running("a", 4)], [0, 4])
    d.apply(running("b", 4))
    assert preempt_once(d, urgent(4)) == []


def test_pods_on_other_machines_go_as_before() -> None:
    d = cluster([running("a", 8, "n1")], [4, 4], nodes=1)
    d.nodes(make_node("n1", "s/l1", gpus=8))
    assert preempt_once(d, urgent(8)) == ["a"]


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    priorities=st.lists(st.sampled_from([0, 5, 20]), min_size=5, max_size=5),
    gpus=st.integers(2, 4),
)
def test_victims_are_the_cheapest_that_free_a_numa_node_wherever_pods_are(
    sizes: list[int], priorities: list[int], gpus: int
) -> None:
    kubelet, pods = Kubelet(EIGHT, "single-numa-node", "container"), []
    for number, size in enumerate(sizes):
        pod = running(f"p{number}", size, priority=priorities[number])
        if kubelet.admit(pod):
            pods.append(pod)
    free = kubelet.free()[NVIDIA]
    d = cluster(pods, free)
    pod = urgent(gpus)
    victims = preempt_once(d, pod)
    low = [p for p in pods if p.spec.priority < 10]
    sets = [chosen for size in range(1, len(low) + 1) for chosen in combinations(low, size)]
    enough = [chosen for chosen in sets if leaves_room(pods, chosen, free, gpus)]
    if max(free) >= gpus:
        assert victims == []
    else:
        assert bool(victims) == bool(enough)
    if victims:
        event("preempted")
        for name in victims:
            kubelet.remove(name)
        assert kubelet.admit(pod)
        highest = max(p.spec.priority for p in pods if p.metadata.name in victims)
        assert highest == min(max(p.spec.priority for p in chosen) for chosen in enough)
        of_level = [chosen for chosen in enough if max(p.spec.priority for p in chosen) == highest]
        assert tuple(victims) in {tuple(p.metadata.name for p in chosen) for chosen in of_level}


def leaves_room(pods: Sequence[Pod], removed: Collection[Pod], free: Sequence[int], gpus: int) -> bool:
    """Return whether a NUMA node has room without some pods, wherever pods are as far as the report allows."""
    used = [4 - amount for amount in free]
    sizes = [int(pod.spec.containers[0].resources.limits[NVIDIA]) for pod in pods]
    left = [size for pod, size in zip(pods, sizes, strict=True) if pod not in removed]
    ways = [w for w in range(1 << len(pods)) if sum(s for n, s in enumerate(sizes) if w >> n & 1) == used[0]]
    assert ways and sum(left) <= sum(used)
    for way in ways:
        taken = [0, 0]
        for number, (pod, size) in enumerate(zip(pods, sizes, strict=True)):
            if pod not in removed:
                taken[0 if way >> number & 1 else 1] += size
        if 4 - min(taken) < gpus:
            return False
    return True


@pytest.mark.parametrize("count", [2, 3])
def test_a_gang_gets_a_numa_node_for_each_member(count: int) -> None:
    d = cluster([running(f"p{number}", 4) for number in range(2)], [0, 0])
    gang = [
        pod_of(f"g-{n}", container(gpu=4), priority=10, annotations={"gang-name": "g", "gang-size": str(count)})
        for n in range(count)
    ]
    d.apply(*gang)
    d.step()
    assert d.preempted() == (["p0", "p1"] if count == 2 else [])
    for name in d.preempted():
        d.delete(next(other for other in d.pods.values() if other.metadata.name == name))
    d.settle()
    assert len(d.where(*gang)) == (2 if count == 2 else 0)
