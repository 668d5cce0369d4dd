"""Pods that wait for conditions of their devices hold room in which nothing runs: they give it up when outranked."""

from typing import Any

import msgspec

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking
from tests.scheduling.driver import gang
from topo_scheduler.api.devices import ResourceClaim
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import Nominate

OUTRANKED = "allocating resource claims: a pod of higher priority needs the room"


def scene(nodes: int = 1, gpus: int = 8, *, plugin_gpus: int = 0) -> DeviceDriver:
    """Return a driver of nodes whose devices report ``ready`` when they are, which no device does by itself."""
    names = [f"n{number}" for number in range(nodes)]
    d = DeviceDriver([make_node(name, "s1/l1", gpus=plugin_gpus) for name in names], gpus, bindingConditions=["ready"])
    d.engine.budgets_known()
    return d


def report(d: DeviceDriver, claim_name: str) -> None:
    """The driver of the devices of a claim reports that they are ready."""
    claim = d.claims["default", claim_name]
    assert claim.status.allocation is not None
    conditions: list[dict[str, Any]] = [{"type": "ready", "status": "True"}]
    devices = [
        {"driver": DRIVER, "pool": result.pool, "device": result.device, "conditions": conditions}
        for result in claim.status.allocation.devices.results
    ]
    status = msgspec.to_builtins(claim.status) | {"devices": devices}
    d.put_claim(msgspec.convert(msgspec.to_builtins(claim) | {"status": status}, ResourceClaim))


def waiting(d: DeviceDriver, *pods: Pod) -> None:
    """Pods get devices, which are not ready yet."""
    d.apply(*pods)
    d.step()
    for pod in pods:
        assert len(d.devices_of(f"{pod.metadata.name}-claim")) == 8
        assert not pod.spec.node_name


def failures(d: DeviceDriver, pod: Pod) -> list[str]:
    return [text.split("failed: ", 1)[1] for text in d.told(pod, Reason.BIND_FAILED)]


def test_a_pod_of_higher_priority_gets_devices_that_are_not_ready_yet() -> None:
    d = scene()
    low, high = d.pod("low", asking(8)), d.pod("high", asking(8), priority=5)
    waiting(d, low)
    d.apply(high)
    d.step()
    d.step(1.0)
    assert failures(d, low) == [OUTRANKED]
    assert len(d.devices_of("high-claim")) == 8
    assert d.devices_of("low-claim") == []
    report(d, "high-claim")
    d.settle()
    assert d.where(high) == {"high": "n0"}
    assert d.preempted() == [], "it was not bound, so it stays"


def test_a_pod_without_claims_gets_the_room_beside_them() -> None:
    d = scene(plugin_gpus=8)
    low = d.with_claim(make_pod("low", gpus=8), asking(8))
    waiting(d, low)
    high = make_pod("high", gpus=8, priority=5)
    d.run(high)
    d.settle()
    assert d.where(high) == {"high": "n0"}
    assert failures(d, low) == [OUTRANKED]
    assert d.preempted() == []


def test_one_of_equal_priority_waits() -> None:
    d = scene()
    low, other = d.pod("low", asking(8)), d.pod("other", asking(8))
    waiting(d, low)
    d.apply(other)
    d.step(60.0)
    assert failures(d, low) == []
    report(d, "low-claim")
    d.settle()
    assert d.where(low, other) == {"low": "n0"}


def test_a_gang_gives_up_all_its_room() -> None:
    d = scene(nodes=2)
    members = d.gang(2, asking(8))
    waiting(d, *members)
    report(d, f"{members[0].metadata.name}-claim")
    high = d.pod("high", asking(8), priority=5)
    d.apply(high)
    d.step()
    d.step(1.0)
    assert len(d.devices_of("high-claim")) == 8
    assert {OUTRANKED} == {text.rsplit("its gang: ", 1)[-1] for member in members for text in failures(d, member)}
    assert sum(len(d.devices_of(f"{member.metadata.name}-claim")) for member in members) == 0


def test_only_as_many_as_are_needed_give_up_their_devices() -> None:
    d = scene(nodes=3)
    pods = [d.pod(f"low-{number}", asking(8)) for number in range(3)]
    waiting(d, *pods)
    high = d.pod("high", asking(8), priority=5)
    d.apply(high)
    d.step()
    d.step(1.0)
    assert len(d.devices_of("high-claim")) == 8
    assert sum(bool(failures(d, pod)) for pod in pods) == 1


def test_nothing_is_given_up_for_a_gang_that_would_have_no_room_all_the_same() -> None:
    d = scene(nodes=2)
    low = d.pod("low", asking(8))
    waiting(d, low)
    members = [d.with_claim(pod, asking(8)) for pod in gang(3, gpus=0, name="high")]
    for member in members:
        member.spec.priority = 5
    d.apply(*members)
    d.step()
    d.step(60.0)
    assert failures(d, low) == []


def test_one_whose_devices_are_ready_is_bound_and_then_a_victim_like_any_other() -> None:
    d = scene()
    low = d.pod("low", asking(8))
    waiting(d, low)
    report(d, "low-claim")
    d.settle()
    assert d.where(low) == {"low": "n0"}
    d.apply(d.pod("high", asking(8), priority=5))
    d.step()
    assert d.preempted() == ["low"]
    assert failures(d, low) == []


def test_devices_that_become_ready_as_they_are_given_up_are_given_up() -> None:
    d = scene()
    low, high = d.pod("low", asking(8)), d.pod("high", asking(8), priority=5)
    waiting(d, low)
    d.apply(high)
    said = d.engine.step(d.now, d.clock)
    assert any(isinstance(instruction, Nominate) for instruction in said), "the next step takes the room"
    report(d, "low-claim")
    d.step()
    assert low.metadata.uid not in d.flight, "a bind that failed is not written as well"
    assert failures(d, low) == [OUTRANKED]
    d.step(1.0)
    assert len(d.devices_of("high-claim")) == 8
