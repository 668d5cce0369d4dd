"""Devices with binding conditions: allocate, wait, then bind or give back."""

from typing import Any

import msgspec

from tests.helpers import make_node
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking
from topo_scheduler.api.devices import ResourceClaim
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.binding.claim_binding import CONDITIONS_TIMEOUT_SECONDS
from topo_scheduler.scheduling.binding.waiting_decisions import EVENT_AFTER_SECONDS
from topo_scheduler.state.devices.claim_writes import AllocateClaim, ReleaseClaim


def scene() -> tuple[DeviceDriver, Pod]:
    """Return a driver and a pod whose claim is allocated and which waits for the conditions of its device."""
    d = DeviceDriver(
        [make_node("n1", "s1/l1", gpus=0)], bindingConditions=["ready"], bindingFailureConditions=["failed"]
    )
    pod = d.pod("p", asking(1))
    d.apply(pod)
    d.step()
    assert d.allocated()
    assert not d.flight
    return d, pod


def report(d: DeviceDriver, **conditions: bool) -> None:
    """The driver of the devices reports conditions of the device of the claim."""
    claim = d.claims["default", "p-claim"]
    listed: list[dict[str, Any]] = [{"type": name, "status": str(value)} for name, value in conditions.items()]
    device = {"driver": DRIVER, "pool": "n1", "device": d.devices_of("p-claim")[0], "conditions": listed}
    status = msgspec.to_builtins(claim.status) | {"devices": [device]}
    d.put_claim(msgspec.convert(msgspec.to_builtins(claim) | {"status": status}, ResourceClaim))


def test_a_device_that_reports_failure_is_given_back_and_the_pod_decided_again() -> None:
    d, pod = scene()
    report(d, failed=True)
    d.step()
    assert not pod.spec.node_name and not d.flight
    assert any("n1/gpu-0 reports failed" in text for text in d.told(pod))
    d.step(60)
    released = [write for written in d.writes for write in written.writes if isinstance(write, ReleaseClaim)]
    assert [write.key for write in released] == [("default", "p-claim")]
    allocations = [write for written in d.writes for write in written.writes if isinstance(write, AllocateClaim)]
    assert len(allocations) == 2, "the pod is decided again"
    assert not d.claims["default", "p-claim"].status.devices, "what was reported of the first allocation is gone"
    report(d, ready=True)
    d.settle()
    assert d.where(pod) == {"p": "n1"}


def test_a_device_that_is_not_ready_in_time_is_given_back() -> None:
    d, pod = scene()
    report(d, ready=False)
    d.step(CONDITIONS_TIMEOUT_SECONDS - 1)
    assert not d.told(pod, Reason.BIND_FAILED)
    assert len(d.writes) == 1
    d.step(1)
    assert any("n1/gpu-0 does not report ready" in text for text in d.told(pod, Reason.BIND_FAILED))
    d.step(60)
    assert any(isinstance(write, ReleaseClaim) for written in d.writes for write in written.writes)
    assert not pod.spec.node_name


def test_an_event_names_a_device_that_is_not_ready_after_a_while() -> None:
    d, pod = scene()
    d.step(EVENT_AFTER_SECONDS - 1)
    assert not d.told(pod)
    due = d.engine.next_due()
    assert due is not None and due <= d.now + 1
    d.step(1)
    text = f"waiting for devices on node n1: device {DRIVER}/n1/gpu-0 does not report ready"
    assert d.told(pod, Reason.WAITING_FOR_DEVICES) == [text]
    report(d, ready=False)
    d.step(60)
    assert d.told(pod) == [text], "once is enough"
    report(d, ready=True)
    d.settle()
    assert d.where(pod) == {"p": "n1"}


def test_a_pod_that_is_deleted_while_it_waits_leaves_its_devices_to_others() -> None:
    d, pod = scene()
    d.delete(pod)
    d.drop_claim("p-claim")
    other = d.pod("q", asking(8))
    d.apply(other)
    d.step(30)
    assert len(d.devices_of("q-claim")) == 8
