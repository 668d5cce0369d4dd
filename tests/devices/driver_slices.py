"""What NVIDIA's DRA driver gives of a real H100, as its slices and classes: ``recorded/README.md`` says what is real.

Names of slices are those of Kubernetes' library for drivers, but for the end, which is random there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from topo_scheduler.api.devices import DeviceClass, ResourceSlice

Json = dict[str, Any]
DRIVER: Final = "gpu.nvidia.com"
GROUP: Final = "resource.k8s.io/v1"
KINDS: Final = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig", "vfio.gpu.nvidia.com": "vfio"}
"""Classes of the driver's chart, and the attribute ``type`` that each asks for."""
EXTENDED_RESOURCE: Final = "nvidia.com/gpu"
"""The extended resource that the chart gives to the class of whole GPUs."""
UUID: Final = "GPU-00000000-0000-0000-0000-000000000001"
_POOLS: Final = Path(__file__).with_name("recorded") / "h100-80gb-pools.json"


def recorded(mode: str) -> list[Json]:
    """Return what was recorded, a slice an entry: ``whole``, or ``dynamicMIG`` as with the gate of that name."""
    return json.loads(_POOLS.read_text())[mode]  # type: ignore[no-any-return]


def pool_of(node: str, mode: str = "whole", gpus: int = 1) -> list[Json]:
    """Return the slices of a node with so many GPUs, each of which is the recorded one in its own PCIe slot."""
    contents: list[Json] = []
    for number in range(gpus):
        for index, slice_ in enumerate(_numbered(recorded(mode), number)):
            if mode == "whole" or index == 0:  # one slice has all whole GPUs, or the counters of all GPUs
                if not number:
                    contents.append({})
                for key, entries in slice_.items():
                    contents[0].setdefault(key, []).extend(entries)
            else:
                contents.append(slice_)
    pool = {"name": node, "generation": 1, "resourceSliceCount": len(contents)}
    return [
        {
            "apiVersion": GROUP,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{index:x}-{DRIVER}-{node}-x7k9m"},
            "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **content},
        }
        for index, content in enumerate(contents)
    ]


def classes(*, extended: bool = False) -> list[Json]:
    """Return the classes of the driver's chart."""
    made = []
    for name, kind in KINDS.items():
        expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
        spec: Json = {"selectors": [{"cel": {"expression": expression}}]}
        if extended and kind == "gpu":
            spec["extendedResourceName"] = EXTENDED_RESOURCE
        made.append({"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec})
    return made


def read_slices(items: list[Json]) -> list[ResourceSlice]:
    """Return slices as the daemon reads them."""
    return [msgspec.convert(item, ResourceSlice) for item in items]


def read_classes(items: list[Json]) -> list[DeviceClass]:
    """Return classes as the daemon reads them."""
    return [msgspec.convert(item, DeviceClass) for item in items]


def request(name: str = "gpu", kind: str = "gpu.nvidia.com", *expressions: str, **exactly: Any) -> Json:
    """Return a request for one device of a class."""
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": name, "exactly": {"deviceClassName": kind, "allocationMode": "ExactCount", "count": 1} | exactly}


def spec_of(*requests: Mapping[str, Any], **devices: Any) -> Json:
    """Return the spec of a claim."""
    return {"devices": {"requests": list(requests), **devices}}


def _numbered(slices: list[Json], number: int) -> list[Json]:
    """Return slices of the GPU of another number."""
    text = json.dumps(slices)
    text = text.replace('"gpu-0', f'"gpu-{number}').replace(UUID, f"{UUID[:-1]}{number + 1:x}")
    text = text.replace("0000:00:06.0", f"0000:{number:02x}:06.0").replace('"pci0000:00"', f'"pci0000:{number:02x}"')
    return json.loads(text)  # type: ignore[no-any-return]
