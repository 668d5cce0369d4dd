"""Claims that wait for a pod which nobody evicts any more end at once."""

from collections import deque

import pytest

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import run_pod, urgent_pod, with_priority
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import EvictionOutcome, Preempt


def carry_out(d: Driver) -> list[str]:
    """Answer all evictions that were asked for, as the executor does; return the names of the pods that go."""
    gone = []
    for one in [said for said in d.said if isinstance(said, Preempt)]:
        if d.engine.may_evict(one.pod.uid):
            d.engine.eviction_finished(one.pod.uid, EvictionOutcome.GOING, "", d.now)
            d.delete(d.pods[one.pod.uid])
            gone.append(one.pod.name)
        else:
            d.engine.eviction_finished(one.pod.uid, EvictionOutcome.WITHDRAWN, "nobody waits", d.now)
    d.forget()
    return gone


def test_one_of_higher_priority_that_takes_over_a_claim_before_its_evictions_are_sent() -> None:
    d = fabric_driver({"s1/l1": 1})
    run_pod(d, "low", "s1-l1-1")
    d.apply(urgent_pod("high", 5))
    d.step()
    higher = urgent_pod("higher", 8)
    d.apply(higher)
    d.step()
    carry_out(d)
    d.step(1)
    carry_out(d)
    d.settle(1)
    assert d.where(higher)


def shared(d: Driver) -> tuple[Pod, Pod]:
    """Two pods that wait for the room of one victim."""
    one, other = urgent_pod("one", gpus=4), urgent_pod("other", gpus=4)
    d.apply(one)
    d.step()
    d.apply(other)
    d.step()
    assert set(d.nominated()) == {"one", "other"}
    assert d.preempted() == ["low"]
    return one, other


@pytest.mark.parametrize("gone", ["one", "other"])
def test_a_workload_that_is_deleted_takes_no_victim_from_another(gone: str) -> None:
    d = fabric_driver({"s1/l1": 1})
    run_pod(d, "low", "s1-l1-1")
    pods = {pod.metadata.name: pod for pod in shared(d)}
    d.delete(pods.pop(gone))
    d.step()
    carry_out(d)
    d.step(1)
    carry_out(d)
    d.settle(1)
    (left,) = pods.values()
    assert d.where(left)


@pytest.mark.parametrize("outcome", [EvictionOutcome.UNCONFIRMED, EvictionOutcome.REFUSED])
def test_all_that_wait_for_a_victim_learn_that_it_stays(outcome: EvictionOutcome) -> None:
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    low = run_pod(d, "low", "s1-l1-1")
    run_pod(d, "more", "s1-l2-1", priority=1)
    one, _ = shared(d)
    d.delete(one)
    d.engine.eviction_finished(low.metadata.uid, outcome, "no", d.now)
    d.forget()
    d.step(1)
    assert d.preempted()


def test_a_gang_whose_pod_is_replaced_before_its_evictions_are_sent() -> None:
    d = fabric_driver({"s1/l1": 2})
    run_pod(d, "low-1", "s1-l1-1")
    run_pod(d, "low-2", "s1-l1-2")
    members = with_priority(gang(2), 10)
    d.apply(*members)
    d.step()
    assert len(d.preempted()) == 2
    members[0].metadata.deletion_timestamp = timestamp(30)
    d.apply(members[0])
    new = make_pod("new", gpus=8, priority=10, annotations=dict(members[0].metadata.annotations))
    d.apply(new)
    carry_out(d)
    d.step()
    d.step(1)
    carry_out(d)
    d.settle(1)
    assert len(d.where(new, members[1])) == 2


@pytest.mark.parametrize("priority", [5, 8])
@pytest.mark.parametrize("size", [2, 8])
def test_evictions_that_are_answered_one_by_one_withdraw_one_another_only_once(size: int, priority: int) -> None:
    d = fabric_driver({"s1/l1": size})
    for number in range(1, size + 1):
        run_pod(d, f"low-{number}", f"s1-l1-{number}")
    before, after = with_priority(gang(size, name="before"), 5), with_priority(gang(size, name="after"), priority)
    d.apply(*before)
    d.step()
    d.apply(*after)
    if priority == 5:
        d.delete(*before)
    d.step()
    sent = deque(said for said in d.said if isinstance(said, Preempt))
    answers = 0
    while sent:
        d.forget()
        pod = d.pods[sent.popleft().pod.uid]
        if d.engine.may_evict(pod.metadata.uid):
            d.evict(pod)
        else:
            d.engine.eviction_finished(pod.metadata.uid, EvictionOutcome.WITHDRAWN, "nobody waits", d.now)
        d.step(0.005)
        sent += [said for said in d.said if isinstance(said, Preempt)]
        answers += 1
        assert answers <= 2 * size
    d.settle(1)
    assert len(d.where(*after)) == size
