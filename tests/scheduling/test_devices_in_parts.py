"""Devices of which several claims have parts: counters that devices of several nodes consume, and shares."""

from typing import Any

import msgspec
import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking, nodes_of, taken
from tests.scheduling.driver import gang
from tests.scheduling.partitioned_nodes import profile, split_node
from topo_scheduler.api.devices import AllocatedDevice, Allocation, DeviceAllocation, ResourceSlice
from topo_scheduler.api.objects import Pod, PodClaimStatus, PodResourceClaim

Json = dict[str, Any]


def slices_of(pool: str, *specs: Json) -> list[ResourceSlice]:
    of_pool = {"name": pool, "generation": 1, "resourceSliceCount": len(specs)}
    return [
        msgspec.convert(
            {"metadata": {"name": f"{pool}-{number}"}, "spec": {"driver": DRIVER, "pool": of_pool, **spec}},
            ResourceSlice,
        )
        for number, spec in enumerate(specs)
    ]


@pytest.mark.parametrize(("ports", "placed"), [(1, 0), (2, 2)])
def test_devices_of_several_nodes_that_consume_one_counter_are_counted_together(ports: int, placed: int) -> None:
    names = ["n1", "n2"]
    d = DeviceDriver([make_node(name, "s1/l1", gpus=0) for name in names], 0)
    counters = [{"name": "switch", "counters": {"ports": {"value": str(ports)}}}]
    consumed = [{"counterSet": "switch", "counters": {"ports": {"value": "1"}}}]
    devices = [{"name": f"link-{name}", "nodeName": name, "consumesCounters": consumed} for name in names]
    d.slices(
        *slices_of(
            "fabric",
            {"allNodes": True, "sharedCounters": counters},
            {"perDeviceNodeSelection": True, "devices": devices},
        )
    )
    pods = [d.with_claim(pod, asking(1)) for pod in gang(2, gpus=0)]
    d.run(*pods)
    d.settle(60)
    assert len(nodes_of(pods)) == placed
    assert sum(d.allocated().values()) == placed


def with_a_slice() -> tuple[DeviceDriver, Pod, str]:
    """Return a pod that was given a slice and is not bound yet, its device, and a claim of another scheduler."""
    d = split_node()
    pod = d.pod("p", profile("1g"))
    d.apply(pod)
    d.step()
    (device,) = d.devices_of("p-claim")
    d.claim("theirs", asking(1))
    return d, pod, device


def test_a_partition_that_another_scheduler_gave_meanwhile_is_given_way_to() -> None:
    """It took the whole GPU of which this scheduler has given a slice: each device is given once."""
    d, pod, device = with_a_slice()
    d.put_claim(taken(d.claims["default", "theirs"], "n1", f"{device[:5]}-7g-0"))
    assert device in d.refused(pod.metadata.uid)
    d.settle(60)
    assert pod.spec.node_name
    (instead,) = d.devices_of("p-claim")
    assert instead[:5] != device[:5]


def test_partitions_of_one_gpu_that_fit_beside_each_other_are_bound() -> None:
    d, pod, device = with_a_slice()
    d.put_claim(taken(d.claims["default", "theirs"], "n1", f"{device[:5]}-3g-{0 if device.endswith('6') else 4}"))
    assert not d.refused(pod.metadata.uid)


@pytest.mark.parametrize("theirs", [50, 60])
def test_a_share_that_another_scheduler_gave_meanwhile_is_given_way_to(theirs: int) -> None:
    d = DeviceDriver(
        [make_node("n1", "s1/l1", gpus=0)], 1, allowMultipleAllocations=True, capacity={"m": {"value": 100}}
    )
    pod = d.pod("p", asking(1, capacity={"requests": {"m": 50}}))
    d.apply(pod)
    d.step()
    d.claim("theirs", asking(1))
    result = AllocatedDevice("gpus", DRIVER, "n1", "gpu-0", share_id="s", consumed_capacity={"m": theirs})
    claim = d.claims["default", "theirs"]
    status = msgspec.structs.replace(claim.status, allocation=Allocation(DeviceAllocation([result])))
    d.put_claim(msgspec.structs.replace(claim, status=status))
    assert bool(d.refused(pod.metadata.uid)) is (theirs > 50)


@pytest.mark.parametrize(("claims", "placed"), [(8, True), (9, False)])
def test_a_pod_may_have_as_many_requests_as_devices(claims: int, placed: bool) -> None:
    d = DeviceDriver([make_node("n1", "s1/l1", gpus=0)], 1, allowMultipleAllocations=True)
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    spec = {"devices": {"requests": [{"name": f"r{number}", "exactly": exactly} for number in range(32)]}}
    pod = make_pod("p")
    for number in range(claims):
        _, name = d.claim(f"c{number}", spec, pod=pod)
        pod.spec.resource_claims.append(PodResourceClaim(name, resource_claim_template_name="template"))
        pod.status.resource_claim_statuses.append(PodClaimStatus(name, name))
    d.run(pod)
    assert bool(pod.spec.node_name) is placed
    assert placed or any("asks for 288 devices" in text or "ask for 288 devices" in text for text in d.told(pod))
