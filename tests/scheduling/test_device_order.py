"""Which devices a pod gets of those that match: those whose use leaves the most for pods that come later."""

from typing import Any

import msgspec

from tests.helpers import make_node
from tests.scheduling.device_driver import DeviceDriver, asking, slice_of
from tests.scheduling.partitioned_nodes import profile, split_node

ROOT = "resource.kubernetes.io/pcieRoot"
Json = dict[str, Any]


def chosen(d: DeviceDriver, name: str, spec: Json) -> list[str]:
    pod = d.pod(name, spec)
    d.run(pod)
    assert pod.spec.node_name
    return sorted(d.devices_of(f"{name}-claim"))


def test_a_partition_goes_where_it_blocks_the_least_and_whole_gpus_stay_whole() -> None:
    d = split_node()
    first = chosen(d, "first", profile("1g"))[0]
    assert first in ("gpu-0-1g-6", "gpu-1-1g-6"), "the last slot overlaps the fewest larger ones"
    gpu = first[:5]
    assert chosen(d, "second", profile("3g")) == [f"{gpu}-3g-0"]
    assert chosen(d, "third", profile("1g"))[0].startswith(gpu)
    other = "gpu-1" if gpu == "gpu-0" else "gpu-0"
    assert chosen(d, "whole", profile("7g")) == [f"{other}-7g-0"]


def test_devices_come_from_the_pcie_root_that_has_just_enough() -> None:
    d = DeviceDriver([make_node("n1", "s1/l1", gpus=0)])
    slices = slice_of("n1", 8)
    for number, device in enumerate(slices.spec.devices):
        root = {ROOT: {"string": "pci0" if number < 5 else "pci1"}}
        slices.spec.devices[number] = msgspec.convert({**msgspec.to_builtins(device), "attributes": root}, type(device))
    d.slices(slices)
    assert chosen(d, "three", asking(3)) == ["gpu-5", "gpu-6", "gpu-7"]
    assert chosen(d, "four", asking(4)) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]


def test_a_share_goes_to_the_device_that_is_shared_already() -> None:
    policy = {"default": "10Gi", "validRange": {"min": "10Gi", "step": "10Gi", "max": "80Gi"}}
    capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    d = DeviceDriver([make_node("n1", "s1/l1", gpus=0)], 4, allowMultipleAllocations=True, capacity=capacity)
    wanted = [asking(1, capacity={"requests": {"memory": amount}}) for amount in ("30Gi", "60Gi", "20Gi", "50Gi")]
    devices = [chosen(d, f"p{number}", spec)[0] for number, spec in enumerate(wanted)]
    assert len(set(devices)) == 2, devices
    assert devices[2] == devices[1], "the fullest that has room"
