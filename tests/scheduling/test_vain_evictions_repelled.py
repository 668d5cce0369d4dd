"""Evictions beside moves, for devices, and for workloads that others repel: when they are in vain."""

import pytest

from tests.helpers import make_pod
from tests.scheduling.affinity_pods import pod_anti_affinity
from tests.scheduling.device_driver import DeviceDriver, asking, driver
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import run_pod, urgent_pod, with_priority
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.selectors import Affinity, LabelSelector
from topo_scheduler.scheduling.instructions import EvictionOutcome
from topo_scheduler.scheduling.preemption.namespace_pauses import LONGEST_PAUSE_SECONDS, NamespacePauses
from topo_scheduler.scheduling.preemption.vain_evictions import LONGEST_SHARED_PAUSE_SECONDS

NODES = [f"s1-l1-{number}" for number in range(1, 5)]


def test_a_workload_that_gets_its_place_by_evictions_leaves_no_room_by_moves() -> None:
    d = fabric_driver({"s1/l1": 2})
    moving, low = run_pod(d, "moving", "s1-l1-1", priority=10), run_pod(d, "low", "s1-l1-2", priority=20)
    pod = urgent_pod()
    d.apply(pod)
    d.step(1)
    membership = d.engine.workloads.of_pod(pod.metadata.uid)
    assert membership is not None
    d.engine.moved_for([moving.metadata.uid], membership[0].id, "default", d.now + 300, d.now)
    d.delete(low)
    victim = run_pod(d, "victim", "s1-l1-2")
    for _ in range(15):
        d.step(1)
    assert d.preempted() == ["victim"]
    d.evict(victim)
    d.settle(1)
    assert d.where(pod) == {"urgent": "s1-l1-2"}
    room_by_moves = d.engine.preempting.room_by_moves
    assert not room_by_moves.rooms and room_by_moves.obstacle("default", d.now) == ""


def test_a_refused_eviction_of_a_pod_that_has_ended_is_not_remembered() -> None:
    d = fabric_driver({"s1/l1": 1})
    low = run_pod(d, "low", "s1-l1-1")
    d.apply(urgent_pod())
    d.step(1)
    assert d.preempted() == ["low"]
    d.delete(low)
    d.engine.eviction_finished(low.metadata.uid, EvictionOutcome.REFUSED, "not this one", d.now)
    d.settle(1)
    assert not d.engine.preempting._claims.spared._pods


def device_rounds(d: DeviceDriver, taker_namespace: str) -> None:
    """Pods of higher priority take the devices that were freed for others, two times."""
    for number in range(2):
        low = d.pod(f"low-{number}", asking(8), gpus=0)
        d.apply(low)
        d.settle(1)
        urgent = d.pod(f"urgent-{number}", asking(8), gpus=0, priority=10)
        d.apply(urgent)
        d.step(1)
        assert d.preempted()[-1] == f"low-{number}"
        taker = d.pod(f"taker-{number}", asking(8), gpus=0, priority=20, namespace=taker_namespace)
        d.engine.eviction_finished(low.metadata.uid, EvictionOutcome.GOING, "", d.now)
        d.delete(low)
        d.drop_claim(f"low-{number}-claim")
        d.apply(taker)
        for _ in range(3):
            d.settle(1)
        assert d.where(taker) == {f"taker-{number}": "s1-l1-1"}
        for pod in (taker, urgent):
            d.delete(pod)
        for name in ("taker", "urgent"):
            d.drop_claim(f"{name}-{number}-claim")
        d.step(1)


def test_devices_that_pods_of_the_same_namespace_take_were_freed_in_vain() -> None:
    d = driver({"s1/l1": 1})
    d.engine.budgets_known()
    device_rounds(d, "default")
    pauses = d.engine.preempting.vain_evictions._pauses_by_taker
    assert [taken.name for taken, pause in pauses.items() if list(pause.items())] == ["ITS_NAMESPACE"]


def test_a_failure_that_was_forgotten_takes_back_no_later_one() -> None:
    pauses = NamespacePauses()
    old = pauses.failed("a", 0.0)
    assert old is not None
    for at in (LONGEST_PAUSE_SECONDS + 1, LONGEST_PAUSE_SECONDS + 2):
        assert pauses.failed("a", at) is not None
    until = pauses.until("a")
    pauses.forgive(old)
    assert pauses.until("a") == until and pauses.is_doubted("a", LONGEST_PAUSE_SECONDS + 3)


def repelling() -> Affinity:
    """Anti-affinity to the pods of a workload in any namespace, on all nodes of a spine."""
    affinity = pod_anti_affinity("topology.scheduler/spine")
    assert affinity.pod_anti_affinity is not None
    (term,) = affinity.pod_anti_affinity.required
    term.namespace_selector = LabelSelector()
    return affinity


def longest_pause(namespace: str, *, edited: bool = False) -> float:
    """Let pods of a namespace keep a gang away from its room, again and again; return its longest pause in seconds.

    ``edited``: the gang has other labels at first, so that they do not repel it until its labels are edited.
    """
    d = fabric_driver({"s1/l1": 4, "s1/l2": 1})
    d.now, longest = 1000.0, 0.0
    pods = with_priority(gang(2), 10)
    low = [run_pod(d, f"low-{node}", node) for node in NODES]
    run_pod(d, "elsewhere", "s1-l2-1", priority=20)
    d.apply(*pods)
    for number in range(12):
        d.forget()
        label(d, pods, "other" if edited else "web")
        for _ in range(700):
            d.step(1)
            if d.preempted():
                break
        evicted = [pod for pod in low if pod.metadata.name in d.preempted()]
        assert len(evicted) == 2
        tiny = make_pod(f"tiny-{number}", cpu="1m", node="s1-l2-1", scheduler="other", namespace=namespace)
        tiny.spec.affinity, tiny.spec.priority = repelling(), 10
        d.apply(tiny)
        label(d, pods, "web")
        d.evict(*evicted)
        d.settle(1)
        longest = max(longest, d.engine.preempting.vain_evictions.until("default") - d.now)
        low = [pod for pod in low if pod not in evicted]
        low += [run_pod(d, f"low-{number}-{pod.spec.node_name}", pod.spec.node_name) for pod in evicted]
        d.delete(tiny)
        d.settle(1)
    return longest


def label(d: Driver, pods: list[Pod], app: str) -> None:
    """Give pods a label."""
    for pod in pods:
        if pod.metadata.labels.get("app") != app:
            pod.metadata.labels["app"] = app
            d.tell_again(pod)


@pytest.mark.parametrize("namespace", ["hostile", "default"])
def test_pods_that_repel_a_workload_from_its_room_pause_its_namespace_for_a_minute_only(namespace: str) -> None:
    """The room is free, so nothing shows who keeps the workload away."""
    assert 0 < longest_pause(namespace) <= LONGEST_SHARED_PAUSE_SECONDS


def test_labels_that_its_own_users_edit_pause_a_namespace_for_longer() -> None:
    assert longest_pause("hostile", edited=True) > LONGEST_SHARED_PAUSE_SECONDS
