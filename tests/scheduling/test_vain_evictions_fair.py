"""Evictions in vain: what takes a failure back, what is no failure, and which namespace pays for the pods of others."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.affinity_pods import HOSTNAME, pod_anti_affinity
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import refill, run_pod, urgent_pod, victims, with_priority
from tests.scheduling.storage import DELAYED, StorageDriver, claim, using, zoned
from topo_scheduler.api.objects import Pod, Taint
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.scheduling.preemption.freed_room import TakenBy
from topo_scheduler.scheduling.preemption.vain_evictions import (
    FREE_LOST_ROOMS,
    LONGEST_SHARED_PAUSE_SECONDS,
    TURN_SECONDS,
    USED_AFTER_SECONDS,
    VainEvictions,
)
from topo_scheduler.state.nodes.resources import GPU

NODES = [f"s1-l1-{number}" for number in range(1, 5)]


def of(namespace: str, pods: list[Pod]) -> list[Pod]:
    for pod in with_priority(pods, 10):
        pod.metadata.namespace = namespace
    return pods


def evict_in_vain(d: Driver, name: str) -> int:
    pods = of("hostile", [make_pod(f"{name}-{n}", gpus=8) for n in range(4)])
    d.forget()
    d.apply(*pods)
    d.step(0.5)
    evicted = victims(d)
    d.delete(*pods)
    d.evict(*evicted)
    d.step(0.5)
    return len(evicted)


def redeem(d: Driver, name: str) -> None:
    """A gang loses a pod, gets another one, and is bound."""
    pods = of("hostile", gang(2, name=name))
    d.forget()
    d.apply(*pods)
    d.step(0.5)
    evicted = victims(d)
    d.delete(pods[0])
    again = of("hostile", gang(2, name=name))[:1]
    again[0].metadata.name = again[0].metadata.uid = f"{name}-again"
    d.apply(*again)
    d.evict(*evicted)
    for _ in range(2):
        d.settle(1)
    d.delete(pods[1], *again)
    d.step(0.5)


def evictions_in_five_minutes(*, redeems: bool) -> int:
    d, evictions, number = fabric_driver({"s1/l1": 4}), 0, 0
    d.now = 1000.0
    while d.now < 1300:
        number += 1
        refill(d, NODES, number)
        evictions += evict_in_vain(d, f"vain-{number}")
        refill(d, NODES, -number)
        if redeems:
            redeem(d, f"good-{number}")
        d.step(1)
    return evictions


def test_a_failure_that_is_taken_back_takes_no_other_with_it() -> None:
    assert 4 < evictions_in_five_minutes(redeems=True) <= evictions_in_five_minutes(redeems=False) + 4


def one_node() -> StorageDriver:
    d = StorageDriver(zoned("a"))
    d.engine.budgets_known()
    return d


def pod_with_claim(d: StorageDriver, number: int) -> Pod:
    """Create a claim, and return a pod that uses it: its bind waits for the volume."""
    d.tell(claim(f"c{number}", DELAYED))
    return with_priority([using(f"c{number}", name=f"a{number}", gpus=8)], 10)[0]


@pytest.mark.unrecorded
def test_places_that_small_pods_of_the_namespace_spoil_again_are_in_vain() -> None:
    """They come while the binds wait for volumes, so that these are withdrawn, and no bind is ever refused."""
    d = one_node()
    low, evictions = run_pod(d, "low-0", "n1"), 0
    for number in range(20):
        pod = pod_with_claim(d, number)
        pod.metadata.labels["app"] = "web"
        d.apply(pod)
        d.step(1)
        if low.metadata.name in d.preempted():
            evictions += 1
            d.evict(low)
            d.step(0.2)
            tiny = make_pod(f"tiny-{number}", cpu="1m", node="n1", phase="Running", scheduler="other", priority=10)
            tiny.spec.affinity = pod_anti_affinity(HOSTNAME)
            d.apply(tiny)
            d.carry_out(pod)
            d.provision()
            d.step(0.2)
            assert all(d.refused(uid) for uid in list(d.flight)), "the bind is withdrawn"
            d.step(0.2)
            d.delete(tiny)
            low = run_pod(d, f"low-{evictions}", "n1")
        d.step(2)
        d.delete(pod)
    assert 2 <= evictions <= 5, "in a minute: after 0, 0, 10 and 30 seconds, and once more at its end"


@pytest.mark.unrecorded
def test_a_place_that_a_workload_of_higher_priority_needs_is_no_failure() -> None:
    d = one_node()
    for number in range(4):
        low = run_pod(d, f"low-{number}", "n1")
        pod = pod_with_claim(d, number)
        d.apply(pod)
        d.step(1)
        d.evict(low)
        d.step(1)
        urgent = urgent_pod(f"urgent-{number}", priority=20)
        urgent.metadata.namespace = "other"
        d.apply(urgent)
        for _ in range(3):
            d.step(1)
        assert list(d.flight) == [urgent.metadata.uid]
        d.answer(urgent.metadata.uid)
        d.delete(pod, urgent)
        d.step(1)
    assert d.engine.preempting.vain_evictions.until("default") <= d.now


@pytest.mark.unrecorded
@pytest.mark.parametrize("placed", [False, True])
def test_room_that_passes_from_one_workload_to_another_of_higher_priority_is_in_vain_in_the_end(placed: bool) -> None:
    """The first has pods evicted, the second takes its claim or its place over, and then both are deleted."""
    d = one_node()
    low, evictions = run_pod(d, "low-0", "n1"), 0
    for number in range(20):
        first, second = pod_with_claim(d, number), urgent_pod(f"b{number}", priority=11)
        d.apply(first)
        d.step(1)
        if low.metadata.name in d.preempted():
            evictions += 1
            d.evict(low, vanish=placed)
            d.step(0.2)
            d.apply(second)
            for _ in range(3):
                d.step(0.2)
            d.delete(first, second)
            d.step(0.2)
            d.delete(low)
            low = run_pod(d, f"low-{evictions}", "n1")
        d.delete(first)
        d.step(2)
    assert 2 <= evictions <= 5, "in 70 seconds: after 0, 0, 10, 30 and 70"


def test_pods_that_are_deleted_while_they_are_bound_are_in_vain_though_their_gang_lives_on() -> None:
    d = fabric_driver({"s1/l1": 3})
    said = {"gang-name": "g", "gang-size": "4"}
    small = [make_pod(f"small-{n}", cpu="1m", namespace="hostile", priority=10, annotations=said) for n in range(4)]
    assert len(d.run(*small)) == 4
    d.step(10)
    d.delete(*small[1:])
    rounds = number = 0
    while d.now < 130:
        number += 1
        low = [run_pod(d, f"low-{number}-{node}", node) for node in NODES[:3]]
        large = [
            make_pod(f"large-{number}-{n}", gpus=8, namespace="hostile", priority=10, annotations=said)
            for n in range(3)
        ]
        d.forget()
        d.apply(*large)
        for _ in range(20):
            if not d.preempted():
                d.step(0.5)
        if evicted := victims(d):
            rounds += 1
            d.evict(*evicted)
            d.step(0.5)
            assert d.flight
            d.flight.clear()
        d.delete(*large, *low)
        d.step(0.5)
    assert 2 <= rounds <= 5, "after 0, 0, 10, 30 and 70 seconds"


def test_room_that_others_have_each_time_leads_to_short_pauses_in_the_end() -> None:
    """They may be accomplices, with pods of half the room that leave again at once."""
    d = fabric_driver({"s1/l1": 4})
    evictions = 0
    for number in range(60):
        refill(d, NODES, number)
        d.forget()
        pods = of("hostile", gang(4, name=f"g{number}"))
        d.apply(*pods)
        d.step(1)
        if evicted := victims(d):
            evictions += 1
            for node in NODES:
                run_pod(d, f"accomplice-{number}-{node}", node, priority=100).metadata.namespace = "accomplice"
            d.evict(*evicted)
            pods[0].metadata.labels["edited"] = "true"
            d.apply(pods[0])
            d.step(1)
        d.delete(*d.pods.values())
        d.step(1)
    assert FREE_LOST_ROOMS < evictions <= FREE_LOST_ROOMS + 5, "then 10, 20, 40 and 60 seconds apart"


def test_room_on_a_node_that_gets_a_taint_or_where_a_pod_of_others_grows_is_no_failure_of_its_own() -> None:
    for taints, grows in (((Taint("broken", "", "NoSchedule"),), False), ((), True)):
        d = fabric_driver({"s1/l1": 1})
        vain_evictions = d.engine.preempting.vain_evictions
        for number in range(4):
            beside = make_pod("beside", cpu="1", node=NODES[0], namespace="theirs", priority=100, phase="Running")
            low = run_pod(d, f"low-{number}", NODES[0])
            (pod,) = of("honest", [make_pod(f"p{number}", gpus=8, cpu="32")])
            d.apply(beside, pod)
            d.forget()
            d.step(61)
            assert victims(d) == [low]
            if grows:
                grown = make_pod("beside", cpu="40", node=NODES[0], namespace="theirs", priority=100, phase="Running")
                grown.metadata.uid = beside.metadata.uid
                d.apply(grown)
            d.nodes(make_node(NODES[0], "s1/l1", taints=taints))
            d.evict(low)
            d.step(61)
            d.nodes(make_node(NODES[0], "s1/l1"))
            d.delete(*d.pods.values())
            d.step(1)
        assert vain_evictions.until("honest") <= d.now + LONGEST_SHARED_PAUSE_SECONDS


def test_failures_of_claims_are_taken_back_once_the_workload_is_bound() -> None:
    d = fabric_driver({"s1/l1": 1})
    for number in range(4):
        low = run_pod(d, f"low-{number}", NODES[0])
        small = make_pod(f"small-{number}", gpus=1, namespace="honest", node=NODES[0], priority=100, phase="Running")
        (pod,) = of("honest", [make_pod(f"p{number}", gpus=8)])
        d.forget()
        d.apply(pod)
        d.step(61)
        assert victims(d) == [low]
        d.apply(small)
        d.evict(low)
        d.step(61)
        assert d.where(pod) == {}
        d.delete(small)
        for _ in range(2):
            d.settle(1)
        assert d.where(pod) == {f"p{number}": NODES[0]}
        d.step(USED_AFTER_SECONDS)
        d.delete(pod)
        d.step(1)
    assert d.engine.preempting.vain_evictions.until("honest") <= d.now


def another_scheduler_takes_it(d: Driver, pods: list[Pod]) -> None:
    for number, node in enumerate(NODES):
        run_pod(d, f"quick-{d.now}-{number}", node, priority=100)
    for uid in list(d.flight):
        d.answer(uid, BindOutcome.WITHDRAWN, "another scheduler took its GPUs at the same moment")
    d.delete(*pods)


def they_end_before_their_bind_is_seen(d: Driver, pods: list[Pod]) -> None:
    """The watch reports both at once, and the answers to the binds come too late."""
    for bind in list(d.flight.values()):
        pod = d.pods[bind.pod.uid]
        pod.spec.node_name = bind.node
        ended = make_pod(pod.metadata.name, namespace="honest", gpus=8, node=bind.node, priority=10, phase="Succeeded")
        ended.metadata.uid = pod.metadata.uid
        d.engine.pods_applied([pod, ended], d.now)
    d.flight.clear()


def their_node_is_deleted(d: Driver, pods: list[Pod]) -> None:
    for node in NODES:
        d.drop_node(node)
    for uid in list(d.flight):
        d.answer(uid, BindOutcome.WITHDRAWN, "its node was deleted")
    d.delete(*pods)
    d.nodes(*(make_node(node, "s1/l1") for node in NODES))


@pytest.mark.unrecorded
@pytest.mark.parametrize(
    "scene", [another_scheduler_takes_it, they_end_before_their_bind_is_seen, their_node_is_deleted]
)
def test_what_happens_to_a_place_without_its_namespace_is_no_failure(
    scene: Callable[[Driver, list[Pod]], None],
) -> None:
    d = fabric_driver({"s1/l1": 4})
    for number in range(4):
        refill(d, NODES, number)
        pods = of("honest", [make_pod(f"p{number}-{n}", gpus=8) for n in range(4)])
        d.forget()
        d.apply(*pods)
        d.step(1)
        evicted = victims(d)
        assert len(evicted) == 4
        d.evict(*evicted)
        d.step(1)
        assert len(d.flight) == 4
        scene(d, pods)
        d.step(1)
        d.delete(*d.pods.values())
        d.step(1)
    assert d.engine.preempting.vain_evictions.until("honest") <= d.now


def test_crumbs_that_another_namespace_takes_keep_the_others_of_a_namespace_waiting_for_a_minute_at_most() -> None:
    d = fabric_driver({"s1/l1": 4})
    refill(d, NODES, 0)
    pods = of("honest", gang(4))
    d.apply(*pods)
    longest = 0.0
    for second in range(600):
        d.step(1)
        if evicted := victims(d):
            d.forget()
            d.evict(*evicted, vanish=False)
            crumb = run_pod(d, f"crumb-{second}", evicted[-1].spec.node_name, gpus=1)
            crumb.metadata.namespace = "attacker"
            d.apply(crumb)
            d.delete(*evicted)
        longest = max(longest, d.engine.preempting.vain_evictions.until("honest") - d.now)
    assert d.where(*pods) == {}
    assert 0 < longest <= LONGEST_SHARED_PAUSE_SECONDS


@pytest.mark.unrecorded
def test_workloads_that_wait_for_a_pause_search_once_it_is_taken_back() -> None:
    d = fabric_driver({"s1/l1": 4})
    vain_evictions = d.engine.preempting.vain_evictions
    refill(d, NODES, 0)
    for _ in range(2):
        d.step(1)
        vain_evictions.in_vain("honest", d.now)
    d.step(15)
    pods = of("honest", gang(2))
    d.apply(*pods)
    d.step(1)
    evicted = victims(d)
    d.delete(pods[0])
    assert vain_evictions.until("honest") > d.now + 10
    again, waiting = of("honest", gang(1, name="g")), of("honest", [make_pod("waits", gpus=8)])
    again[0].metadata.name = again[0].metadata.uid = "again"
    for pod in again:
        pod.metadata.annotations = dict(pods[1].metadata.annotations)
    d.apply(*again, *waiting)
    d.step(1)
    d.forget()
    d.evict(*evicted)
    for _ in range(3):
        d.settle(1)
    assert len(d.where(pods[1], *again)) == 2
    assert len(d.preempted()) == 1, "for the pod that waited"


def test_workloads_that_await_another_are_spaced_by_namespace() -> None:
    d = fabric_driver({"s1/l1": 1})
    vain_evictions = d.engine.preempting.vain_evictions
    crowd = [vain_evictions.next_turn("crowded", d.now) for _ in range(5_000)]
    assert crowd[-1] - d.now >= 100
    assert vain_evictions.next_turn("quiet", d.now) == d.now + 5


def test_a_failure_that_is_taken_back_stands_for_those_within_its_pause() -> None:
    evictions, now = VainEvictions(), 0.0
    evictions.in_vain("hostile", now)
    rounds = 0
    while evictions.until("hostile") <= now and rounds < 10:
        now, rounds = now + 1, rounds + 1
        evictions.lose_room("w", "hostile", Counter({GPU: 8}), TakenBy.ITS_NAMESPACE, now, nodes=("n1",), pods=("a",))
        for _ in range(20):
            evictions.in_vain("hostile", now + 0.1)
        evictions.placed_again("w", {"a": ((GPU, 8),)}, {"a": "n1"})
        evictions.bound("a", now)
        now += 1
    assert rounds == 1 and evictions.is_doubted("hostile", now)


def test_after_a_pause_another_workload_of_the_namespace_has_pods_evicted_first() -> None:
    """Small pods of others come to the room of one workload again and again; another one waits for other nodes."""
    d = fabric_driver({"s1/l1": 1, "s2/l1": 1})
    for node in ("s1-l1-1", "s2-l1-1"):
        run_pod(d, f"low-{node}", node)
    attacked, urgent = urgent_pod("attacked"), urgent_pod("urgent")
    for pod, spine in (attacked, "s1"), (urgent, "s2"):
        pod.metadata.namespace = "team"
        pod.spec.node_selector = {"topology.scheduler/spine": spine}
    d.apply(attacked)
    evictions = d.engine.preempting.vain_evictions
    for number in range(40):
        for low in victims(d):
            d.evict(low)
            if low.spec.node_name == "s1-l1-1":
                run_pod(d, f"hostile-{number}", "s1-l1-1", gpus=1)
        d.step(1)
        if evictions.until("team") > d.now + 15:
            d.apply(urgent)
            break
    assert urgent.metadata.uid in d.pods, "its evictions paused"
    until = evictions.until("team")
    while d.now < until + TURN_SECONDS - 1:
        for low in victims(d):
            d.evict(low)
        d.settle(1)
    assert d.where(urgent) == {"urgent": "s2-l1-1"}


def test_while_a_bind_hangs_pods_are_evicted_for_no_other_workload_of_the_namespace() -> None:
    d = fabric_driver({"s1/l1": 4})
    low = [run_pod(d, f"low-{node}", node) for node in NODES]
    first = urgent_pod("first")
    d.apply(first)
    d.step(1)
    d.evict(*victims(d))
    d.step(1)
    assert first.metadata.uid in d.flight
    d.engine.bind_hangs(first.metadata.uid, d.now)
    later = [urgent_pod(f"later-{number}") for number in range(2)]
    d.apply(*later)
    for _ in range(20):
        d.step(1)
    assert len([pod for pod in low if pod.metadata.name in d.preempted()]) == 1
    assert any("has not answered their binds" in text for text in d.told(later[0]))
    d.answer(first.metadata.uid)
    for _ in range(20):
        d.evict(*victims(d))
        d.settle(1)
    assert len(d.where(*later)) == 2
