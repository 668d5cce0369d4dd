"""Nodes whose GPUs can be split by MIG, as drivers publish them: devices that consume shared counters."""

from typing import Any

import msgspec

from tests.helpers import make_node
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking
from topo_scheduler.api.devices import ResourceSlice

Json = dict[str, Any]
PLACES = {"1g": (1, 1, range(7)), "2g": (2, 2, (0, 2, 4)), "3g": (3, 4, (0, 4)), "7g": (7, 8, (0,))}
"""Compute slices, memory slices and first memory slices of some MIG profiles of an H100."""


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
