"""GPUs that ResourceClaims have are not free for pods that ask how close their GPUs are."""

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import DRIVER, DeviceDriver, Json, asking, slice_of
from tests.scheduling.extended_driver import device_class
from topo_scheduler.api.devices import ResourceSlice
from topo_scheduler.api.labels import GPU_SHARING
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason

V100 = "Tesla-V100-SXM2-16GB"
GPU_TYPE: Json = {"type": {"string": "gpu"}}


def cluster(gpus: int = 8, labels: dict[str, str] | None = None) -> DeviceDriver:
    d = DeviceDriver([make_node("n", "s1/l1", gpus=gpus, model=V100, labels=labels or {})], attributes=GPU_TYPE)
    d.step()
    return d


def free_gpus(d: DeviceDriver) -> int:
    sets = d.engine.world.around.gpu_sets
    assert sets is not None
    return int(sets.free(np.array([0], np.int64))[0])


def linked(name: str, gpus: int = 2) -> Pod:
    return make_pod(name, gpus=gpus, annotations={"gpu-locality": "nvlink"})


def one(device: str) -> Json:
    expression = f"device.attributes['{DRIVER}'].number == {device.removeprefix('gpu-')}"
    return asking(1, selectors=[{"cel": {"expression": expression}}])


def numbered(**more: Any) -> ResourceSlice:
    """Return the slice of a node whose GPUs have numbers to ask for."""
    item = msgspec.to_builtins(slice_of("n", 8, attributes=GPU_TYPE))
    for number, device in enumerate(item["spec"]["devices"]):
        device["attributes"] = {**GPU_TYPE, "number": {"int": number}}
    item["spec"].update(more)
    return msgspec.convert(item, ResourceSlice)


@pytest.mark.parametrize("labels", [{}, {GPU_SHARING: "true"}])
def test_gpus_of_claims_are_not_free(labels: dict[str, str]) -> None:
    d = cluster(labels=labels)
    d.slices(numbered())
    d.run(*[d.pod(f"claims-{number}", one(f"gpu-{number}")) for number in (1, 2, 3, 4, 5, 7)])
    assert free_gpus(d) == 0b01000001
    pod = linked("p")
    assert d.run(pod) == {}
    assert "2 free GPUs but at most 1 is linked by NVLink" in d.told(pod, Reason.FAILED_SCHEDULING)[-1]


def test_gpus_are_free_again_once_kubernetes_has_deallocated_them() -> None:
    d = cluster()
    user = d.pod("user", asking(7))
    pod = linked("p")
    d.run(user, pod)
    assert "p" not in d.where(pod)
    d.delete(user)
    d.settle(30)
    assert "p" not in d.where(pod), "the claim is still allocated"
    d.drop_claim("user-claim")
    d.settle(30)
    assert d.where(pod) == {"p": "n"} and free_gpus(d).bit_count() == 6


def test_within_one_step_a_claim_and_a_pod_do_not_get_the_same_gpus() -> None:
    d = cluster()
    pods = [d.pod("user", asking(6)), linked("p", 4)]
    assert len(d.run(*pods)) == 1


def test_a_part_of_a_gpu_takes_it_whole() -> None:
    """A partition is a part of the GPU with the same set of counters."""
    item, counters = msgspec.to_builtins(numbered()), msgspec.to_builtins(numbered())
    devices = item["spec"]["devices"]
    for number, device in enumerate(devices):
        device["consumesCounters"] = [{"counterSet": f"gpu-{number}", "counters": {"memory": {"value": "8"}}}]
    part = {"counterSet": "gpu-6", "counters": {"memory": {"value": "1"}}}
    attributes = {"type": {"string": "mig"}, "number": {"int": 60}}
    devices.append({"name": "gpu-6-part", "attributes": attributes, "consumesCounters": [part]})
    counters["metadata"]["name"], counters["spec"]["devices"] = "n-counters", []
    counters["spec"]["sharedCounters"] = [
        {"name": f"gpu-{number}", "counters": {"memory": {"value": "8"}}} for number in range(8)
    ]
    for of_pool in (item, counters):
        of_pool["spec"]["pool"] = {"name": "n", "generation": 2, "resourceSliceCount": 2}
    d = cluster()
    d.slices(msgspec.convert(item, ResourceSlice), msgspec.convert(counters, ResourceSlice))
    assert len(d.run(d.pod("part", one("60")))) == 1
    assert d.devices_of("part-claim") == ["gpu-6-part"]
    assert free_gpus(d) == 0b10111111


def test_a_device_that_cannot_be_matched_leaves_no_gpu_known_to_be_free() -> None:
    item = msgspec.to_builtins(numbered())
    item["spec"]["devices"].append({"name": "odd", "attributes": {"number": {"int": 60}, "type": {"string": "mig"}}})
    d = cluster()
    d.slices(msgspec.convert(item, ResourceSlice))
    assert len(d.run(d.pod("odd", one("60")))) == 1
    assert free_gpus(d) == 0
    assert d.run(linked("p")) == {}


def test_devices_that_are_no_gpus_take_none() -> None:
    d = cluster()
    nics = msgspec.to_builtins(slice_of("n", 2, attributes={"type": {"string": "nic"}}))
    nics["metadata"]["name"], nics["spec"]["driver"] = "n-nics", "nic.example.com"
    nics["spec"]["pool"]["name"] = "nics"
    d.slices(msgspec.convert(nics, ResourceSlice))
    spec = {"selectors": [{"cel": {"expression": "device.driver == 'nic.example.com'"}}]}
    d.classes(msgspec.convert({"metadata": {"name": "nic"}, "spec": spec}, type(device_class())))
    assert len(d.run(d.pod("user", asking(2, deviceClassName="nic")))) == 1
    assert free_gpus(d) == 0b11111111


def test_gpus_that_claims_have_for_requests_count_once() -> None:
    d = cluster(gpus=0)
    d.classes(device_class())
    d.run(make_pod("user", gpus=3))
    assert sum(d.allocated().values()) == 3
    assert free_gpus(d).bit_count() == 5
