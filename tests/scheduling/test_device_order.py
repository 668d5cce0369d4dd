"""Which devices a pod gets of those that match: those whose use leaves the most for pods that come later."""

from typing import Any

import msgspec

from tests.helpers import make_node
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking, slice_of
from topo_scheduler.api.devices import ResourceSlice

ROOT = "resource.kubernetes.io/pcieRoot"
PLACES = {"1g": (1, 1, range(7)), "2g": (2, 2, (0, 2, 4)), "3g": (3, 4, (0, 4)), "7g": (7, 8, (0,))}
"""Compute slices, memory slices and first memory slices of some MIG profiles of an H100."""
Json = dict[str, Any]


def profile(name: str) -> Json:
    return asking(1, selectors=[{"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '{name}'"}}])


def partitioned(node: str, gpus: int = 2) -> list[ResourceSlice]:
    """Slices of a node whose GPUs can be split."""
    places = [(gpu, name, start) for gpu in range(gpus) for name, (_, _, starts) in PLACES.items() for start in starts]
    devices = [
        {
            "name": f"gpu-{gpu}-{name}-{start}",
            "attributes": {"profile": {"string": name}},
            "consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": _counters(name, start)}],
        }
        for gpu, name, start in places
    ]
    every = {**{f"memory-{number}": {"value": "1"} for number in range(8)}, "compute": {"value": "7"}}
    counters = [{"name": f"gpu-{gpu}", "counters": every} for gpu in range(gpus)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool}
    return [
        msgspec.convert({"metadata": {"name": f"{node}-gpus"}, "spec": {**spec, "devices": devices}}, ResourceSlice),
        msgspec.convert(
            {"metadata": {"name": f"{node}-sets"}, "spec": {**spec, "sharedCounters": counters}}, ResourceSlice
        ),
    ]


def _counters(name: str, start: int) -> Json:
    compute, memory, _ = PLACES[name]
    taken = {f"memory-{number}": {"value": "1"} for number in range(start, start + memory)}
    return {**taken, "compute": {"value": str(compute)}}


def split_node() -> DeviceDriver:
    d = DeviceDriver([make_node("n1", "s1/l1", gpus=0)])
    d.slices(*partitioned("n1"))
    return d


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
