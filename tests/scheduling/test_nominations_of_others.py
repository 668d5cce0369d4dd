"""Nominations of pods of other schedulers take room for as long as victims may take to end, and not without end."""

import pytest

from tests.helpers import make_node, make_pod, ours, timestamp
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.selectors import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from topo_scheduler.scheduling.preemption.nomination_trust import (
    COUNTS_SECONDS,
    DOUBTED_SECONDS,
    MAX_NAMESPACE_WEIGHT,
    MAX_WEIGHT,
    PREDECESSOR_FACTOR,
)


def nominated(name: str, node: str, namespace: str = "hostile", gpus: int = 8) -> Pod:
    pod = make_pod(name, gpus=gpus, scheduler="other", namespace=namespace)
    pod.status.nominated_node_name = node
    return pod


def ready(nodes: int = 1) -> Driver:
    d = Driver([make_node(f"n{number}", "s/l", gpus=8) for number in range(nodes)])
    d.engine.budgets_known()
    return d


def wait(d: Driver, pod: Pod, longest: float) -> float:
    """Return how long a pod is pending."""
    d.apply(pod)
    began = d.now
    d.settle()
    while not pod.spec.node_name and d.now < began + longest:
        d.settle(1)
    return d.now - began


def test_pods_of_no_scheduler_take_no_room_without_end() -> None:
    d = ready(2)
    d.apply(nominated("a", "n0"), nominated("b", "n1"))
    assert 1 < wait(d, make_pod("first", gpus=8, namespace="victim"), 300) <= COUNTS_SECONDS + 1
    d.apply(nominated("c", "n0"), nominated("d", "n1"))
    assert wait(d, make_pod("second", gpus=8, namespace="victim"), 300) == 0


def test_the_end_of_one_wakes_others_at_once() -> None:
    d = ready()
    d.apply(nominated("a", "n0"))
    waits = make_pod("waits", gpus=8)
    d.run(waits)
    d.settle(COUNTS_SECONDS)
    due = d.engine.next_due()
    assert due is not None and due <= d.now
    d.settle()
    assert waits.spec.node_name


def test_one_line_names_the_namespace() -> None:
    d = ready(2)
    d.apply(nominated("a", "n0"), nominated("b", "n1"))
    d.settle(COUNTS_SECONDS)
    (warning,) = d.complaints()
    assert "namespace hostile" in warning


def test_nominations_of_other_namespaces_count_on_and_those_of_the_namespace_do_later() -> None:
    d = ready()
    d.apply(nominated("a", "n0"))
    d.settle(COUNTS_SECONDS)
    d.apply(nominated("b", "n0", namespace="other"))
    assert d.run(make_pod("waits", gpus=8)) == {}
    d.settle(DOUBTED_SECONDS)
    d.delete(*[pod for pod in d.pods.values() if pod.metadata.name in ("b", "waits")])
    d.apply(nominated("c", "n0"))
    assert d.run(make_pod("later", gpus=8)) == {}


def test_a_nomination_counts_while_a_victim_on_the_node_ends() -> None:
    d = ready()
    victim = make_pod("v", gpus=8, node="n0", phase="Running")
    victim.spec.termination_grace_period_seconds = 200
    d.apply(victim)
    victim.metadata.deletion_timestamp, victim.metadata.deletion_grace_period_seconds = timestamp(d.now + 200), 200
    d.apply(victim, nominated("theirs", "n0"))
    waiting = make_pod("waiting", gpus=8)
    d.apply(waiting)
    d.settle(190)
    d.delete(victim)
    d.settle(20)
    assert not waiting.spec.node_name, "the other scheduler is about to bind its pod"
    d.settle(COUNTS_SECONDS)
    d.settle(1)
    assert waiting.spec.node_name


def test_a_nominated_pod_that_is_bound_lets_those_after_it_count() -> None:
    d = ready(2)
    first = nominated("first", "n0")
    d.apply(first)
    d.settle(COUNTS_SECONDS - 1)
    first.spec.node_name = "n0"
    d.apply(first)
    d.settle(COUNTS_SECONDS)
    d.apply(nominated("second", "n1"))
    assert d.run(make_pod("waits", gpus=8)) == {}


def test_time_begins_when_the_node_exists() -> None:
    d = ready(1)
    d.apply(nominated("theirs", "n1"), make_pod("full", gpus=8, node="n0", phase="Running"))
    d.settle(5 * COUNTS_SECONDS)
    d.nodes(make_node("n1", "s/l", gpus=8))
    assert d.run(make_pod("waits", gpus=8)) == {}


@pytest.mark.parametrize("way", ["deleted", "cleared", "moved", "overlapping"])
def test_those_that_end_just_before_their_time_take_no_room_without_end(way: str) -> None:
    d = ready(2)
    waits = make_pod("waits", gpus=8, namespace="victim")
    pods = [nominated("a0", "n0"), nominated("b0", "n1")]
    d.apply(*pods, waits)
    began = d.now
    for turn in range(1, 20):
        d.settle(COUNTS_SECONDS - 5)
        match way:
            case "deleted":
                d.delete(*pods)
            case "cleared":
                for pod in pods:
                    pod.status.nominated_node_name = ""
                d.apply(*pods)
            case "moved":
                for pod in pods:
                    pod.status.nominated_node_name = {"n0": "n1", "n1": "n0"}[pod.status.nominated_node_name]
                d.apply(*pods)
        if way != "moved":
            fresh = [nominated(f"a{turn}", "n0"), nominated(f"b{turn}", "n1")]
            d.apply(*fresh)
            if way == "overlapping":
                short = nominated(f"short-{turn}", "n0", gpus=0)
                d.apply(short)
                d.settle(1)
                d.delete(short, *pods)
            pods = fresh
        d.settle()
        if waits.spec.node_name:
            break
    assert waits.spec.node_name
    assert d.now - began <= 3 * COUNTS_SECONDS


def test_a_deleted_pod_now_and_then_is_no_reason_for_doubt() -> None:
    d = ready(1)
    for turn in range(6):
        pod = nominated(f"p{turn}", "n0")
        d.apply(pod)
        d.settle(COUNTS_SECONDS / 4)
        d.delete(pod)
        d.settle(DOUBTED_SECONDS / 3)
    d.apply(nominated("last", "n0"))
    assert d.run(make_pod("waits", gpus=8)) == {}


@pytest.mark.parametrize("scheduler", ["other", "topology-aware-scheduler"])
@pytest.mark.parametrize("terms", [0, 64])
@pytest.mark.parametrize("listed", [False, True])
def test_only_so_many_count_as_decisions_can_charge(scheduler: str, terms: int, listed: bool) -> None:
    """All that count are charged for each decision: 2,000 pods with 64 terms each took 1.5 s of each."""
    d = ready(2)
    if not listed:
        d.step()
    factor = PREDECESSOR_FACTOR if listed and scheduler != "other" else 1
    required = [PodAffinityTerm(LabelSelector({"app": f"a{number}"}), topology_key="rack") for number in range(terms)]
    affinity = Affinity(pod_anti_affinity=PodAffinity(required))
    for namespace in ("first", "second", "third"):
        count = factor * MAX_NAMESPACE_WEIGHT // (1 + terms) + 10
        pods = [nominated(f"p{number}", "n0", namespace, gpus=0) for number in range(count)]
        for pod in pods:
            pod.spec.scheduler_name, pod.spec.affinity = scheduler, affinity
            pod.metadata.annotations |= ours({"gang-name": "never-complete", "gang-size": "4000"})
        d.apply(*pods)
        assert len(d.engine.preempting.nominations) <= factor * MAX_WEIGHT // (1 + terms)
        if namespace == "first":
            assert len(d.engine.preempting.nominations) == factor * MAX_NAMESPACE_WEIGHT // (1 + terms)


@pytest.mark.parametrize("scheduler", ["other", "topology-aware-scheduler"])
@pytest.mark.parametrize("namespaces", [1, 30])
def test_pods_that_are_nominated_to_all_nodes_leave_most_to_others(scheduler: str, namespaces: int) -> None:
    d = ready(100)
    d.step()
    pods = [nominated(f"p{number}", f"n{number}", f"hostile-{number % namespaces}") for number in range(100)]
    for pod in pods:
        pod.spec.scheduler_name = scheduler
        pod.metadata.annotations |= ours({"gang-name": "never-complete", "gang-size": "4000"})
    d.apply(*pods)
    assert len(d.engine.preempting.nominations) == (5 if namespaces == 1 else 10)
    d.delete(*pods[:50])
    d.apply(*pods[50:])
    d.settle()
    victims = [make_pod(f"victim-{number}", gpus=8, namespace="victim") for number in range(90)]
    assert len(d.run(*victims)) == 90


def test_nominations_of_a_predecessor_count_on_all_nodes() -> None:
    d = ready(100)
    pods = [nominated(f"p{number}", f"n{number}") for number in range(100)]
    for pod in pods:
        pod.spec.scheduler_name = "topology-aware-scheduler"
        pod.metadata.annotations |= ours({"gang-name": "never-complete", "gang-size": "4000"})
    d.apply(*pods)
    assert d.run(make_pod("waits", gpus=8)) == {}
