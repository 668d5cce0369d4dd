"""After a failover, pods that were nominated by the former leader still get the devices of its victims."""

from tests.helpers import timestamp
from tests.scheduling.device_driver import DeviceDriver, asking
from tests.scheduling.driver import fabric
from tests.scheduling.preempted_claims import deallocate, end, ready, running
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.pods.victim_info import DEFAULT_GRACE_SECONDS

LEAVES = {"s1/l1": 2}


def taken_over(first: DeviceDriver, *pods: Pod, nominated: dict[str, str] | None = None) -> DeviceDriver:
    """Return the engine of the next leader, which reads what the API server has."""
    second = DeviceDriver(fabric(LEAVES, gpus=0), synced=False)
    second.now = first.now
    second.engine.budgets_known()
    for claim in first.claims.values():
        second.put_claim(claim)
    second.sync()
    for pod in pods:
        pod.status.nominated_node_name = (nominated or first.nominated()).get(pod.metadata.name, "")
        if pod.metadata.name in first.preempted():
            pod.metadata.deletion_timestamp = timestamp(first.now + DEFAULT_GRACE_SECONDS)
    second.apply(*pods)
    return second


def test_devices_that_come_free_one_after_the_other_are_kept_after_a_failover() -> None:
    d = ready(LEAVES)
    lows = [running(d, f"low-{number}", 4) for number in range(4)]
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    victims = [pod for pod in lows if pod.metadata.name in d.preempted()]
    assert len(victims) == 2
    second = taken_over(d, *lows, urgent)
    second.step()
    end(second, victims[0])
    thief = second.pod("thief", asking(2))
    second.apply(thief)
    second.settle(1)
    assert not thief.spec.node_name, "four devices are free, but the urgent pod needs them"
    end(second, victims[1])
    second.settle(1)
    assert urgent.spec.node_name == d.nominated()["urgent"]
    assert second.preempted() == []


def test_they_are_kept_too_if_all_victims_have_ended_and_some_are_not_deallocated() -> None:
    d = ready(LEAVES)
    lows = [running(d, f"low-{number}", 4, priority=0 if number < 2 else 20) for number in range(4)]
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    victims = [pod for pod in lows if pod.metadata.name in d.preempted()]
    second = taken_over(d, *(pod for pod in lows if pod not in victims), urgent)
    deallocate(second, victims[0])
    thief = second.pod("thief", asking(2))
    second.apply(thief)
    second.settle(1)
    assert not thief.spec.node_name
    deallocate(second, victims[1])
    second.settle(1)
    assert urgent.spec.node_name == d.nominated()["urgent"]


def test_pods_that_are_nominated_to_each_other_s_node_evict_no_other_pod() -> None:
    d = ready(LEAVES)
    lows = [running(d, f"low-{number}", 8) for number in range(2)]
    urgent = [d.pod(f"urgent-{number}", asking(8), priority=10) for number in range(2)]
    d.apply(*urgent)
    d.step()
    first, second = d.nominated().values()
    swapped = {"urgent-0": second, "urgent-1": first}
    taking_over = taken_over(d, *lows, *urgent, nominated=swapped)
    taking_over.step()
    end(taking_over, *lows)
    taking_over.settle(1)
    assert len(set(taking_over.where(*urgent).values())) == 2
    assert taking_over.preempted() == []
