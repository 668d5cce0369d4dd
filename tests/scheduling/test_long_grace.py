"""The user of a pod chooses its grace period: none a pod of higher priority waiting for ever."""

from math import inf

import pytest

from tests.helpers import EPOCH, make_pod, timestamp
from tests.scheduling.driver import Driver, fabric, fabric_driver
from tests.scheduling.running_pods import run_pod, urgent_pod
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.preemption.claims import SLACK_SECONDS
from topo_scheduler.state.pods.victim_info import LONGEST_WAIT_SECONDS, occupant_of

CENTURIES = 10**9


def going(d: Driver, pod: Pod, seconds: float, grace: int = CENTURIES) -> Pod:
    """A pod that is being deleted, and has this much time left to end."""
    pod.spec.termination_grace_period_seconds = grace
    pod.metadata.deletion_timestamp = timestamp(d.now + seconds)
    d.apply(pod)
    return pod


def two(seconds: float, grace: int = CENTURIES) -> tuple[Driver, Pod, Pod]:
    """One pod that is being deleted, and one that runs and would be the worse victim."""
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    return d, going(d, run_pod(d, "going", "s1-l1-1"), seconds, grace), run_pod(d, "other", "s1-l2-1", priority=1)


@pytest.mark.parametrize("seconds", [LONGEST_WAIT_SECONDS + 1, CENTURIES])
def test_one_that_goes_far_too_late_is_not_waited_for(seconds: float) -> None:
    d, _, other = two(seconds)
    high = urgent_pod()
    d.run(high)
    assert d.preempted() == ["other"]
    d.evict(other)
    d.settle()
    assert d.where(high) == {"urgent": "s1-l2-1"}


def test_one_that_should_have_ended_long_ago_is_not_waited_for() -> None:
    d, _, _ = two(-CENTURIES)
    d.run(urgent_pod())
    assert d.preempted() == ["other"]


def test_one_that_goes_far_too_late_is_not_evicted_again() -> None:
    d = fabric_driver({"s1/l1": 1})
    pod = going(d, run_pod(d, "going", "s1-l1-1"), CENTURIES)
    high = urgent_pod()
    d.run(high)
    d.step(3600)
    assert d.preempted() == []
    assert d.nominated() == {}
    d.delete(pod)
    d.settle()
    assert d.where(high)


@pytest.mark.parametrize("grace", [1, 30, CENTURIES])
def test_it_is_waited_until_the_time_of_its_deletion_whatever_its_grace_period_is(grace: int) -> None:
    d, _, _ = two(500, grace)
    d.run(urgent_pod())
    d.step(500 + SLACK_SECONDS - 1)
    assert d.preempted() == []
    d.step(1)
    assert d.preempted() == ["other"]


def test_a_victim_with_centuries_to_end_is_waited_for_ten_minutes() -> None:
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    low = run_pod(d, "low", "s1-l1-1")
    other = run_pod(d, "other", "s1-l2-1", priority=1)
    low.spec.termination_grace_period_seconds = CENTURIES
    d.apply(low)
    high = urgent_pod()
    d.run(high)
    assert d.preempted() == ["low"]
    d.evict(low, vanish=False)
    going(d, low, CENTURIES)
    d.step(LONGEST_WAIT_SECONDS + SLACK_SECONDS - 1)
    assert d.preempted() == ["low"]
    d.step(1)
    assert d.preempted() == ["low", "other"]
    d.evict(other)
    d.settle()
    assert d.where(high) == {"urgent": "s1-l2-1"}


def test_a_new_leader_does_not_wait_for_it_either() -> None:
    d, _, other = two(CENTURIES)
    high = urgent_pod()
    high.status.nominated_node_name = "s1-l1-1"
    d.run(high)
    assert d.preempted() == ["other"]
    d.evict(other)
    d.settle()
    assert d.where(high)


def test_a_new_leader_waits_for_a_victim_as_long_as_its_predecessor_would_have() -> None:
    grace = 2 * LONGEST_WAIT_SECONDS
    before = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    low = run_pod(before, "low", "s1-l1-1")
    run_pod(before, "other", "s1-l2-1", priority=1)
    low.spec.termination_grace_period_seconds = int(grace)
    before.apply(low)
    before.run(urgent_pod())
    before.evict(low, vanish=False)
    going(before, low, grace, int(grace))
    before.step(100)
    before.step(LONGEST_WAIT_SECONDS)
    assert before.preempted() == ["low"]
    after, low, _ = two(grace - 100, int(grace))
    high = urgent_pod()
    high.status.nominated_node_name = "s1-l1-1"
    after.run(high)
    after.step(LONGEST_WAIT_SECONDS + SLACK_SECONDS)
    assert after.preempted() == []
    after.step(LONGEST_WAIT_SECONDS)
    assert after.preempted() == ["other"]


def test_what_is_left_of_the_grace_period_counts() -> None:
    pod = make_pod("a", node="n")
    pod.spec.termination_grace_period_seconds = 40
    assert occupant_of(pod).seconds_to_end(EPOCH) == 40
    pod.metadata.deletion_timestamp = timestamp(100)
    assert [occupant_of(pod).seconds_to_end(EPOCH + at) for at in (0, 99, 160, 161)] == [100, 1, 0, inf]
    pod.metadata.deletion_timestamp = "some time"
    assert occupant_of(pod).seconds_to_end(EPOCH) == 40


def test_a_fabric_of_pods_that_go_too_late_is_full() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    d.engine.budgets_known()
    going(d, run_pod(d, "a", "s1-l1-1", gpus=4), CENTURIES)
    going(d, run_pod(d, "b", "s1-l1-1", gpus=4), 60)
    half = urgent_pod("half", gpus=4)
    d.run(urgent_pod("whole"), half)
    assert d.nominated() == {"half": "s1-l1-1"}
