"""Pods of users that get others evicted, and then do not use the room: their namespace soon evicts none."""

from collections.abc import Callable

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.affinity_pods import HOSTNAME, pod_anti_affinity
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import run_pod, urgent_pod, with_priority
from tests.scheduling.storage import DELAYED, StorageDriver, claim, using, zoned
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.scheduling.preemption.vain_evictions import USED_AFTER_SECONDS

NODE = "s1-l1-1"


def victim(d: Driver, number: int) -> Pod:
    """Apply a pod of another tenant, as its controller makes it again."""
    return run_pod(d, f"low-{number}", NODE)


def hostile(number: int, namespace: str = "hostile") -> Pod:
    pod = urgent_pod(f"urgent-{number}")
    pod.metadata.namespace = namespace
    return pod


def evict_and_delete(d: Driver, rounds: int) -> int:
    """Every 5 seconds a pod has another one evicted, and is deleted before it gets the room; return the evictions."""
    low, evictions = victim(d, 0), 0
    for number in range(rounds):
        pod = hostile(number)
        d.apply(pod)
        d.step(1)
        if low.metadata.name in d.preempted():
            d.evict(low, vanish=False)
            d.delete(pod)
            d.step(1)
            d.delete(low)
            evictions += 1
            low = victim(d, evictions)
        else:
            d.delete(pod)
        d.step(3)
    return evictions


def test_pods_that_are_deleted_before_they_are_bound_have_few_others_evicted() -> None:
    d = fabric_driver({"s1/l1": 1})
    assert evict_and_delete(d, 24) == 5, "after 0, 5, 20, 40 and 80 seconds"


def test_the_reason_says_why_none_is_evicted_and_other_namespaces_go_on() -> None:
    d = fabric_driver({"s1/l1": 1})
    evictions = evict_and_delete(d, 2)
    pod = hostile(9)
    d.apply(pod)
    d.step()
    assert f"low-{evictions}" not in d.preempted()
    assert any("evicts no pod to make room for this namespace now" in text for text in d.told(pod))
    d.apply(hostile(10, "other"))
    d.step()
    assert f"low-{evictions}" in d.preempted()


def test_after_the_pause_a_pod_that_waited_evicts_by_itself() -> None:
    d = fabric_driver({"s1/l1": 1})
    evictions = evict_and_delete(d, 2)
    pod = hostile(9)
    d.apply(pod)
    for _ in range(12):
        d.step(1)
    assert f"low-{evictions}" in d.preempted()


def test_pods_that_are_bound_and_deleted_some_time_later_are_no_reason() -> None:
    d = fabric_driver({"s1/l1": 1})
    for number in range(6):
        low, pod = victim(d, number), hostile(number)
        d.apply(pod)
        d.step(1)
        d.evict(low)
        d.settle(1)
        assert d.where(pod) == {pod.metadata.name: NODE}
        d.step(USED_AFTER_SECONDS)
        d.delete(pod)
        d.step(1)
    assert d.told(reason=Reason.PREEMPTION_FAILED) == []
    assert not d.engine.preempting.vain_evictions.follows_pods


def wants_another_model(d: Driver, pod: Pod, freed: str) -> None:
    """The pod is edited: it asks for the nodes that its room is not on."""
    pod.metadata.annotations["topology.scheduler/gpu-model"] = "B" if freed == NODE else "A"
    d.apply(pod)


def is_kept_away(d: Driver, pod: Pod, freed: str) -> None:
    """A small pod of its namespace comes to the node that was cleared, and keeps it away from there."""
    d.delete(*[other for other in d.pods.values() if other.metadata.name == "away"])
    pod.metadata.labels["app"] = "web"
    away = make_pod("away", namespace="hostile", node=freed, priority=100, phase="Running")
    away.spec.affinity = pod_anti_affinity(HOSTNAME)
    d.apply(pod, away)


@pytest.mark.parametrize("change", [wants_another_model, is_kept_away])
def test_pods_that_come_not_to_want_their_room_have_few_others_evicted(
    change: Callable[[Driver, Pod, str], None],
) -> None:
    models = {NODE: "A", "s1-l1-2": "B"}
    d = Driver(make_node(name, "s1/l1", model=model, labels={HOSTNAME: name}) for name, model in models.items())
    d.engine.budgets_known()
    running = {node: run_pod(d, f"low-{node}", node) for node in models}
    pod, evictions = hostile(0), 0
    d.apply(pod)
    for _ in range(120):
        d.step(1)
        low = next((low for low in running.values() if low.metadata.name in d.preempted()), None)
        d.forget()
        if low is not None:
            evictions += 1
            node = low.spec.node_name
            d.evict(low, vanish=False)
            change(d, pod, node)
            d.delete(low)
            d.step(1)
            assert not d.where(pod)
            running[node] = run_pod(d, f"low-{evictions}", node)
    assert 2 <= evictions <= 6, "after 0, 0, 10, 20, 40 and 80 seconds"


def test_pods_whose_room_others_take_are_no_reason() -> None:
    d = fabric_driver({"s1/l1": 1})
    pod = hostile(0)
    d.apply(pod)
    for number in range(4):
        low = victim(d, number)
        d.step(61)
        assert low.metadata.name in d.preempted(), "after the pause of the pod itself"
        d.evict(low)
        other = run_pod(d, f"other-{number}", NODE, gpus=4, priority=100)
        d.step(61)
        d.delete(other)


WHY = "a policy denies it"


def refused_pods(d: Driver, pods: list[Pod], seconds: int, *, dry_runs_too: bool) -> tuple[int, list[str]]:
    """Victims come again as often as they are evicted, and no pod is bound; return the evictions and what pods say."""
    d.answers_trials = False
    low, evictions, texts = victim(d, 0), 0, list[str]()
    d.apply(*pods)
    for _ in range(seconds):
        d.step(1)
        for uid in list(d.tried):
            d.rehearsed(uid, BindOutcome.REJECTED if dry_runs_too else BindOutcome.BOUND, WHY)
        for uid in list(d.flight):
            d.answer(uid, BindOutcome.REJECTED, WHY)
        if low.metadata.name in d.preempted():
            evictions += 1
            d.evict(low)
            d.step(0.1)
            texts += [text for pod in pods for text in d.told(pod)]
            for uid in list(d.tried):
                d.rehearsed(uid, BindOutcome.REJECTED if dry_runs_too else BindOutcome.BOUND, WHY)
            for uid in list(d.flight):
                d.answer(uid, BindOutcome.REJECTED, WHY)
            low = victim(d, evictions)
        texts += [text for pod in pods for text in d.told(pod)]
        d.forget()
    return evictions, texts


@pytest.mark.parametrize("dry_runs_too", [False, True])
def test_a_pod_whose_binds_are_refused_has_others_evicted_twice(dry_runs_too: bool) -> None:
    evictions, texts = refused_pods(fabric_driver({"s1/l1": 1}), [hostile(0)], 400, dry_runs_too=dry_runs_too)
    assert evictions == 2
    assert any("evicts no pod to make room, as" in text and WHY in text for text in texts)


@pytest.mark.parametrize("size", [1, 4])
def test_a_bind_that_is_refused_once_and_then_succeeds_costs_nothing(size: int) -> None:
    d = fabric_driver({"s1/l1": size})
    for number in range(4):
        running = [run_pod(d, f"low-{number}-{node}", f"s1-l1-{node + 1}") for node in range(size)]
        pods = with_priority(gang(size, name=f"g{number}"), 10)
        d.apply(*pods)
        d.step(1)
        d.evict(*running)
        d.step(0.1)
        d.answer(next(iter(d.flight)), BindOutcome.REJECTED, WHY)
        for _ in range(30):
            d.settle(1)
        assert len(d.where(*pods)) == size
        d.delete(*pods)
        d.step(1)
    assert not d.engine.preempting.vain_evictions.until("default")
    assert not d.engine.preempting.vain_evictions.is_doubted("default", d.now)


@pytest.mark.parametrize("dry_runs_too", [False, True])
def test_pods_of_many_kinds_whose_binds_are_refused_have_few_others_evicted(dry_runs_too: bool) -> None:
    pods = [hostile(number) for number in range(12)]
    for number, pod in enumerate(pods):
        pod.spec.containers[0].resources.requests["cpu"] = f"{number + 1}m"
    evictions, _ = refused_pods(fabric_driver({"s1/l1": 1}), pods, 60, dry_runs_too=dry_runs_too)
    assert 2 <= evictions <= 4, "after 0, 0, 10 and 30 seconds"


@pytest.mark.unrecorded
@pytest.mark.parametrize("edits", [False, True])
def test_pods_that_lose_their_volume_claims_have_few_others_evicted(edits: bool) -> None:
    """Also as members of a gang that runs, whatever happens to its other members meanwhile."""
    d = StorageDriver(zoned("a"))
    d.engine.budgets_known()
    member = {"topology.scheduler/gang-name": "g", "topology.scheduler/gang-size": "2"}
    running = [make_pod(f"running-{number}", gpus=0, cpu="1m", annotations=member, priority=10) for number in range(2)]
    d.apply(*running)
    d.settle()
    d.tell(claim("data", DELAYED))
    pod = using("data", gpus=8)
    pod.spec.priority = 10
    pod.metadata.annotations |= member
    low, evictions = run_pod(d, "low-0", "n1"), 0
    d.apply(pod)
    for second in range(60):
        d.step(1)
        if edits:
            running[0].metadata.annotations["edited"] = str(second)
            d.apply(running[0])
        if low.metadata.name in d.preempted():
            evictions += 1
            d.evict(low)
            d.step(0.5)
            if edits:
                running[0].metadata.annotations["edited"] = f"{second}, once more"
                d.apply(running[0])
            d.carry_out(pod)
            d.step()
            d.storage.drop(d.storage.claims, ("default", "data"))
            low = run_pod(d, f"low-{evictions}", "n1")
            d.step()
            d.tell(claim("data", DELAYED))
    assert 2 <= evictions <= 4
