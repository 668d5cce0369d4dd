"""Room that was promised to a pod, beside the pods that are to leave for it: neither counts twice, nor too little."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, fabric_driver, gang, reservations_by_name
from tests.scheduling.running_pods import run_pod, run_pod_until, with_priority
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import EvictionOutcome
from topo_scheduler.scheduling.preemption.nominations import Nomination
from topo_scheduler.state.nodes.resources import GPU

NODE, OTHER_NODE = "s1-l1-1", "s1-l1-2"
GRACE_SECONDS = 300


def pending(d: Driver, name: str, gpus: int, age_seconds: float = 0.0) -> Pod:
    """A pod of a namespace of its own appears; all such pods have the same priority."""
    pod = make_pod(name, gpus=gpus, namespace=name, priority=10, created=d.now - age_seconds)
    d.apply(pod)
    return pod


def running(d: Driver, name: str, gpus: int, priority: int = 0) -> Pod:
    pod = run_pod(d, name, NODE, gpus=gpus, priority=priority)
    pod.spec.termination_grace_period_seconds = GRACE_SECONDS
    return pod


def terminate(d: Driver, pod: Pod) -> None:
    """The eviction of a pod is granted, and the pod begins to end."""
    d.engine.eviction_finished(pod.metadata.uid, EvictionOutcome.GOING, "", d.now)
    pod.metadata.deletion_timestamp = timestamp(d.now + GRACE_SECONDS)
    d.tell_again(pod)


def with_two_claims(age_seconds: float = 0.0) -> tuple[Driver, dict[str, Pod]]:
    """Pods ``a`` (4 GPUs) and ``b`` (1 GPU) each have a pod of this size evicted from one node, which ends slowly.

    With an age, ``b`` is tried first.
    """
    d = fabric_driver({"s1/l1": 1})
    d.now = 5000.0
    pods = {"for-a": running(d, "for-a", 4), "for-b": running(d, "for-b", 1)}
    running(d, "rest", 3, priority=10)
    d.step(1)
    for name, gpus, age in (("a", 4, 0.0), ("b", 1, age_seconds)):
        pods[name] = pending(d, name, gpus, age)
        d.step(1)
        d.step(1)
    assert d.preempted() == ["for-a", "for-b"]
    for name in ("for-a", "for-b"):
        terminate(d, pods[name])
    return d, pods


@pytest.mark.parametrize("age_seconds", [0, 1000])
def test_a_pod_gets_the_room_of_its_own_victims_though_those_of_another_have_not_ended(age_seconds: float) -> None:
    d, pods = with_two_claims(age_seconds)
    d.delete(pods["for-a"])
    d.settle(1)
    assert d.where(pods["a"], pods["b"]) == {"a": NODE}
    assert d.engine.preempting.vain_evictions.until("a") <= d.now
    assert not d.engine.preempting.vain_evictions.is_doubted("a", d.now)
    d.delete(pods["for-b"])
    d.settle(1)
    assert d.where(pods["b"]) == {"b": NODE}


@pytest.mark.parametrize("awaits_victim", [False, True])
def test_a_pod_gets_the_room_of_its_own_victims_though_others_await_pods_that_end(*, awaits_victim: bool) -> None:
    """Another pod of its priority awaits a pod that its user deletes, or what a victim of a third pod leaves over."""
    d = fabric_driver({"s1/l1": 1})
    d.now = 5000.0
    other = running(d, "other", 5 if awaits_victim else 4, 0 if awaits_victim else 10)
    victim = running(d, "victim", 8 - pod_gpus(other))
    other.status.start_time, victim.status.start_time = timestamp(4000), timestamp(4000)
    d.apply(other, victim)
    d.step(1)
    pod = pending(d, "pod", pod_gpus(victim))
    d.settle(2)
    assert d.preempted() == ["victim"]
    terminate(d, victim)
    if awaits_victim:
        pending(d, "third", 2)
        d.settle(2)
    terminate(d, other)
    d.step(1)
    waits = pending(d, "waits", 3 if awaits_victim else 4)
    d.settle(2)
    d.delete(victim)
    d.settle(1)
    assert d.where(pod, waits) == {"pod": NODE}
    assert not d.engine.preempting.vain_evictions.waves
    d.delete(other)
    d.settle(1)
    assert d.where(pod, waits) == {"pod": NODE, "waits": NODE}


def test_a_pod_gets_its_room_as_soon_as_it_is_free_though_the_victims_of_the_first_pod_end_last() -> None:
    d, pods = with_two_claims()
    d.delete(pods["for-b"])
    d.settle(1)
    assert d.where(pods["a"], pods["b"]) == {"b": NODE}
    d.delete(pods["for-a"])
    d.settle(1)
    assert d.where(pods["a"]) == {"a": NODE}


def test_no_other_pod_gets_room_of_which_the_rest_has_yet_to_come_free() -> None:
    """Of 8 GPUs 4 are free, and all are promised."""
    d = fabric_driver({"s1/l1": 1})
    leaves = [running(d, "leaves", 4)]
    whole, other = pending(d, "whole", 8), pending(d, "other", 4)
    d.step(1)
    d.step(1)
    assert d.preempted() == ["leaves"] and d.where(whole, other) == {}
    terminate(d, leaves[0])
    for _ in range(3):
        d.settle(5)
        assert d.where(whole, other) == {}
    d.delete(leaves[0])
    d.settle(1)
    assert d.where(whole, other) == {"whole": NODE}


def test_no_second_pod_waits_for_the_room_of_the_victims_of_another() -> None:
    d, pods = with_two_claims()
    third = pending(d, "third", 4)
    for _ in range(5):
        d.step(1)
    workload, _ = d.engine.workloads.of_pod(third.metadata.uid) or (None, None)
    assert workload is not None and not d.engine.preempting.claims(workload.id)
    d.delete(pods["for-a"])
    d.settle(1)
    assert d.where(pods["a"], third) == {"a": NODE}


def test_a_pod_gets_the_room_of_its_own_victims_beside_nodes_that_are_reserved() -> None:
    """Of 8 GPUs 4 are reserved for a gang. Two pods have a pod of 2 GPUs each evicted; the second one ends slowly."""
    d = fabric_driver({"s1/l1": 2})
    d.now = 5000.0
    running(d, "for-a", 2)
    running(d, "for-b", 2)
    run_pod(d, "keep", OTHER_NODE, gpus=4, priority=30)
    busy = run_pod_until(d, "busy", OTHER_NODE, ends=d.now + 36_000, gpus=4)
    d.apply(*with_priority([busy], 10))
    large = with_priority(gang(2, gpus=4, name="reserved"), 10)
    for pod in large:
        pod.spec.preemption_policy = "Never"
        pod.metadata.creation_timestamp = timestamp(d.now)
    d.apply(*large)
    for _ in range(700):
        d.step(1)
        if reservations_by_name(d):
            break
    assert reservations_by_name(d)
    a = pending(d, "a", 2)
    d.settle(3)
    b = pending(d, "b", 2)
    d.settle(3)
    first, second = (next(pod for pod in d.pods.values() if pod.metadata.name == name) for name in d.preempted())
    terminate(d, first)
    terminate(d, second)
    d.settle(1)
    d.delete(first)
    d.settle(1)
    assert d.where(a, b, *large) == {"a": NODE}
    d.delete(second)
    d.settle(1)
    assert d.where(a, b, *large) == {"a": NODE, "b": NODE}


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=6),
    requests=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_charges_leave_nothing_behind_and_no_gpu_is_given_twice(
    sizes: list[int], requests: list[int], order: object
) -> None:
    d = fabric_driver({"s1/l1": 1})
    free, low = 8, list[Pod]()
    for number, gpus in enumerate(sizes):
        if gpus <= free:
            low.append(running(d, f"low-{number}", gpus))
            free -= gpus
    wanted = [pending(d, f"p{number}", gpus) for number, gpus in enumerate(requests)]
    nodes = d.engine.world.nodes
    for _ in range(4 * len(low) + 4):
        d.settle(2)
        pods = [pod for pod in d.pods.values() if pod.spec.node_name]
        used = sum(int(pod.spec.containers[0].resources.limits["nvidia.com/gpu"]) for pod in pods)
        assert used <= 8
        held = np.zeros_like(nodes.requested)
        for uid, entry in d.engine.world.ledger.items():
            assert entry.row >= 0, uid
            for column, amount in entry.amounts:
                held[entry.row, column] += amount
        assert (nodes.requested == held).all(), "charges of nominations remain after a step"
        for pod in low:
            if pod.metadata.name in d.preempted() and not pod.metadata.deletion_timestamp:
                terminate(d, pod)
        going = [pod for pod in low if pod.metadata.deletion_timestamp and pod.metadata.uid in d.pods]
        if going:
            d.delete(order.choice(going))  # type: ignore[attr-defined]
    free = 8 - sum(pod_gpus(pod) for pod in d.pods.values() if pod.spec.node_name)
    assert all(pod.spec.node_name or pod_gpus(pod) > free for pod in wanted), "room is left, and no pod gets it"


class Planned:
    """One workload with a plan for all pods, for which some pods are evicted."""

    def __init__(self, victims: list[str]) -> None:
        self._victims = victims

    def claimant(self, uid: str) -> str:
        return "other"

    def victims(self, workload: str) -> list[tuple[str, bool]]:
        return [(uid, True) for uid in self._victims] if workload == "other" else []


def pod_gpus(pod: Pod) -> int:
    return int(pod.spec.containers[0].resources.limits["nvidia.com/gpu"])


@given(
    free=st.integers(0, 8),
    leaving=st.integers(0, 8),
    own=st.integers(1, 8),
    others=st.lists(st.integers(1, 8), max_size=3),
)
def test_a_workload_sees_as_much_room_as_was_planned_for_it_and_no_more(
    free: int, leaving: int, own: int, others: list[int]
) -> None:
    """What counts twice is reduced: of what others are promised, what the pods still hold that leave for them."""
    d = fabric_driver({"s1/l1": 1})
    leaving = min(leaving, 8 - free)
    victims = [run_pod(d, "leaves", NODE, gpus=leaving).metadata.uid] if leaving else []
    if free + leaving < 8:
        run_pod(d, "rest", NODE, gpus=8 - free - leaving, priority=20)
    d.step(1)
    nominations, nodes = d.engine.preempting.nominations, d.engine.world.nodes
    row, before = nodes.row_of[NODE], nodes.requested.copy()
    for uid, gpus in (("own", own), *((f"other-{number}", gpus) for number, gpus in enumerate(others))):
        nominations.put(Nomination(uid, NODE, 10, ((GPU, gpus),), None, "default", planned=True))
    nominations.count_for({"own": None}, 10, "workload", None, Planned(victims))
    seen, charged = int(nodes.allocatable[row, GPU] - nodes.requested[row, GPU]), free - sum(others)
    assert seen == charged + min(max(0, own - charged), sum(others), leaving)
    nominations.count_for({"own": None}, 10, "workload")
    assert int(nodes.allocatable[row, GPU] - nodes.requested[row, GPU]) == charged
    nominations.count_for({"own": None}, 10, "workload", None, Planned(victims))
    nominations.remove_charges()
    assert (nodes.requested == before).all()


def test_nominations_that_this_process_did_not_plan_are_charged_in_full() -> None:
    """Users can nominate their own pods, and other schedulers do not know of the plans."""
    d = fabric_driver({"s1/l1": 1})
    nominations, nodes = d.engine.preempting.nominations, d.engine.world.nodes
    row = nodes.row_of[NODE]
    victim = run_pod(d, "leaves", NODE, gpus=4).metadata.uid
    for planned in ("own", "other"):
        for uid in ("own", "other"):
            nominations.put(Nomination(uid, NODE, 10, ((GPU, 8),), None, "default", planned=uid == planned))
        nominations.count_for({"own": None}, 10, "workload", None, Planned([victim]))
        assert int(nodes.allocatable[row, GPU] - nodes.requested[row, GPU]) == -4
        nominations.remove_charges()
