"""From victims with devices to a pod that has them: evicted, ended, deallocated, and only then bound."""

import msgspec
import pytest

from tests.helpers import make_pod
from tests.scheduling.device_driver import DRIVER, DeviceDriver, Json, asking, nodes_of, slice_of
from tests.scheduling.driver import fabric
from tests.scheduling.preempted_claims import deallocate, end, ready, running
from topo_scheduler.api.devices import ResourceSlice
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.devices.node_devices import PROMISED
from topo_scheduler.scheduling.instructions import EvictionOutcome, Nominate


def test_the_pod_whose_devices_make_room_is_evicted_and_then_the_pod_is_bound() -> None:
    d = ready()
    small, large = running(d, "small", 2), running(d, "large", 6)
    urgent = d.pod("urgent", asking(5), priority=10)
    d.apply(urgent)
    d.step()
    assert d.preempted() == ["large"]
    assert d.nominated() == {"urgent": "s1-l1-1"}
    end(d, large)
    d.settle()
    assert nodes_of([urgent, small]) == 2 * ["s1-l1-1"]
    assert set(d.allocated().values()) == {1}


def test_the_pod_waits_until_the_claims_of_its_victims_are_deallocated() -> None:
    d = ready({"s1/l1": 2})
    first, second = running(d, "first", 8), running(d, "second", 8)
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    (victim,) = d.preempted()
    evicted = first if victim == "first" else second
    end(d, evicted, deallocated=False)
    d.step()
    for _ in range(5):
        d.step(60)
    assert d.preempted() == [victim], "no other pod while Kubernetes deallocates the claim"
    nominations = [said for said in d.said if isinstance(said, Nominate)]
    assert len(nominations) == 1, "it keeps its nomination all the time"
    deallocate(d, evicted)
    d.settle()
    assert urgent.spec.node_name


def test_while_kubernetes_deallocates_no_claim_no_further_pods_are_evicted_for_devices() -> None:
    """Otherwise each pod that preempts would evict one pod every ten minutes while kube-controller-manager is down."""
    d = ready({"s1/l1": 3})
    lower = {name: running(d, name, 8) for name in ("first", "second", "third")}
    urgent, later = d.pod("urgent", asking(8), priority=10), d.pod("later", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    (victim,) = d.preempted()
    end(d, lower[victim], deallocated=False)
    for _ in range(30):
        d.step(30)
    d.apply(later)
    for _ in range(100):
        d.step(60)
    assert d.preempted() == [victim]
    messages = d.told(urgent, Reason.PREEMPTION_FAILED)
    assert sum("check that kube-controller-manager runs" in text for text in messages) == 1
    assert any("no other pod is evicted for devices" in text for text in d.told(later, Reason.FAILED_SCHEDULING))

    deallocate(d, lower[victim])
    d.settle(60)
    d.settle(60)
    assert urgent.spec.node_name or later.spec.node_name
    assert len(d.preempted()) == 2, "Kubernetes deallocates claims again"


def test_a_claim_that_is_not_deallocated_although_others_are_leads_to_other_victims() -> None:
    d = ready({"s1/l1": 3})
    lower = {name: running(d, name, 8) for name in ("first", "second")}
    ends = running(d, "ends", 1, priority=20)
    running(d, "stays", 7, priority=20)
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    (victim,) = d.preempted()
    end(d, lower.pop(victim), deallocated=False)
    d.step(30)
    end(d, ends)
    for _ in range(30):
        d.step(30)
    assert d.preempted() == sorted([victim, *lower])
    assert any("although Kubernetes has deallocated others" in text for text in d.told(urgent))


def test_devices_of_a_pod_that_has_ended_are_waited_for_and_no_other_pod_is_evicted() -> None:
    d = ready({"s1/l1": 2})
    first = running(d, "first", 8)
    running(d, "second", 8)
    d.delete(first)
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    d.step(20)
    assert d.preempted() == []
    deallocate(d, first)
    d.settle()
    assert urgent.spec.node_name


def test_devices_that_come_free_are_kept_for_the_pod_that_evicted_their_pods() -> None:
    d = ready()
    lows = [running(d, f"low-{number}", 4) for number in range(2)]
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    assert d.preempted() == ["low-0", "low-1"]
    end(d, lows[0])
    thief = d.pod("thief", asking(2))
    d.apply(thief)
    d.settle(1)
    assert not thief.spec.node_name, "four devices are free, but the urgent pod needs them"
    end(d, lows[1])
    d.settle(1)
    assert nodes_of([urgent, thief]) == ["s1-l1-1"]


def test_a_gang_evicts_for_the_devices_of_all_its_members() -> None:
    d = ready({"s1/l1": 2, "s1/l2": 2})
    lows = [running(d, f"low-{number}", 8) for number in range(4)]
    members = d.gang(2, asking(6))
    for pod in members:
        pod.spec.priority = 10
    d.apply(*members)
    d.step()
    assert len(d.preempted()) == 2
    end(d, *(pod for pod in lows if pod.metadata.name in d.preempted()))
    d.settle(1)
    assert len({node.rpartition("-")[0] for node in nodes_of(members)}) == 1


def test_a_claim_that_a_remaining_pod_shares_frees_nothing() -> None:
    d = ready()
    d.claim("shared", asking(8))
    users = [d.sharing(make_pod(name, priority=priority), "shared") for name, priority in (("low", 0), ("high", 20))]
    d.run(*users)
    assert len(nodes_of(users)) == 2
    urgent = d.pod("urgent", asking(1), priority=10)
    d.apply(urgent)
    d.step(1)
    assert d.preempted() == []


def test_a_shared_claim_whose_users_are_all_evicted_is_free_once_it_is_deallocated() -> None:
    d = ready()
    d.claim("shared", asking(8))
    users = [d.sharing(make_pod(f"low-{number}"), "shared") for number in range(2)]
    d.run(*users)
    urgent = d.pod("urgent", asking(1), priority=10)
    d.apply(urgent)
    d.step(1)
    assert d.preempted() == ["low-0", "low-1"]
    d.evict(*users)
    d.step()
    assert not urgent.spec.node_name
    claim = d.claims["default", "shared"]
    d.put_claim(msgspec.structs.replace(claim, status=type(claim.status)()))
    d.settle()
    assert urgent.spec.node_name


def contended(kind: str) -> DeviceDriver:
    """Return a driver of one node, where one claim leaves nothing for others: of its device, or of what it consumes."""
    part = {"counterSet": "set", "counters": {"memory": {"value": "8"}}}
    kinds: dict[str, Json] = {
        "whole": {},
        "share": {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "8"}}},
        "partition": {"consumesCounters": [part]},
    }
    d = DeviceDriver(fabric({"s1/l1": 1}, gpus=0), 1 + (kind == "partition"), synced=False, **kinds[kind])
    if kind == "partition":
        pool = {"name": "s1-l1-1", "generation": 2, "resourceSliceCount": 2}
        counters = [{"name": "set", "counters": part["counters"]}]
        spec = {"driver": DRIVER, "nodeName": "s1-l1-1", "pool": pool, "sharedCounters": counters}
        devices = slice_of("s1-l1-1", 2, generation=2, **kinds[kind])
        devices.spec.pool.resource_slice_count = 2
        d.slices(devices, msgspec.convert({"metadata": {"name": "counters"}, "spec": spec}, ResourceSlice))
    d.sync()
    d.engine.budgets_known()
    return d


@pytest.mark.parametrize("kind", ["whole", "share", "partition"])
def test_a_claim_that_a_pod_waits_for_gets_no_further_pods_of_lower_priority(kind: str) -> None:
    """Otherwise a controller that makes the victims again holds up the pod of higher priority for ever."""
    d = contended(kind)
    d.claim("shared", asking(1))
    lows = [d.sharing(make_pod(f"low-{number}"), "shared") for number in range(2)]
    d.run(*lows)
    urgent = d.pod("urgent", asking(1), priority=10)
    d.apply(urgent)
    d.step(1)
    assert d.preempted() == ["low-0", "low-1"]
    others = [d.sharing(make_pod(f"other-{number}", priority=number), "shared") for number in (0, 10)]
    d.apply(*others)
    d.settle(1)
    assert not nodes_of(others)
    assert all(any(PROMISED in text for text in d.told(pod)) for pod in others)
    d.evict(*lows)
    claim = d.claims["default", "shared"]
    d.put_claim(msgspec.structs.replace(claim, status=type(claim.status)()))
    d.settle()
    assert urgent.spec.node_name
    d.delete(urgent)
    deallocate(d, urgent)
    d.settle(1)
    assert nodes_of(others) == 2 * ["s1-l1-1"]


def test_a_refused_eviction_leads_to_other_victims_with_devices() -> None:
    d = ready({"s1/l1": 2})
    pods = {name: running(d, name, 8) for name in ("first", "second")}
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    (victim,) = d.preempted()
    d.evict(pods[victim], outcome=EvictionOutcome.BLOCKED)
    d.step(2)
    assert d.preempted() == ["first", "second"]


def test_devices_that_a_driver_withdraws_are_no_fault_of_the_namespace_that_had_pods_evicted_for_them() -> None:
    d = ready()
    low, urgent = running(d, "low", 8), d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    assert d.preempted() == ["low"]
    d.slices(slice_of("s1-l1-1", 2, generation=2))
    end(d, low)
    d.settle(60)
    vain = d.engine.preempting.vain_evictions
    assert not urgent.spec.node_name
    assert not dict(vain._pauses.items()) and len(dict(vain._lost_rooms.items())) == 1


@pytest.mark.parametrize(("devices", "answers"), [(0, False), (1, False), (3, False), (4, True), (8, True)])
def test_a_pod_that_takes_over_answers_for_devices_that_pods_were_evicted_for_if_it_uses_half(
    devices: int, *, answers: bool
) -> None:
    """One claim has all devices of a pod."""
    d = ready()
    running(d, "low", 8)
    d.apply(make_pod("own", cpu="60", node="s1-l1-1", phase="Running"))
    d.step(1)
    d.apply(d.pod("urgent", asking(8), priority=10))
    d.step(1)
    assert d.preempted() == ["low"]
    above = make_pod("above", cpu="10", priority=20)
    d.apply(d.with_claim(above, asking(devices)) if devices else above)
    d.step(1)
    assert "own" in d.preempted()
    assert len(dict(d.engine.preempting.vain_evictions._pauses.items())) == (0 if answers else 1)
