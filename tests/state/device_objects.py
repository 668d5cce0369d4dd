"""ResourceSlices and claims as drivers and schedulers write them, and an inventory of them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from topo_scheduler.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from topo_scheduler.state.devices.inventory import DeviceInventory

Json = dict[str, Any]
DRIVER: Final = "gpu.example.com"
PLACES: Final[Mapping[str, tuple[int, int, Iterable[int]]]] = {
    "1g.10gb": (1, 1, range(7)),
    "2g.20gb": (2, 2, (0, 2, 4)),
    "3g.40gb": (3, 4, (0, 4)),
}
"""Compute slices, memory slices and first memory slices of some MIG profiles of an H100."""


def slice_of(
    node: str,
    devices: Iterable[Json] = (),
    *,
    name: str = "",
    generation: int = 1,
    slices: int = 1,
    counters: Iterable[Json] = (),
    driver: str = DRIVER,
) -> Json:
    """Return a slice of the pool of a node."""
    pool = {"name": node, "generation": generation, "resourceSliceCount": slices}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [*devices], "sharedCounters": [*counters]}
    return {"metadata": {"name": name or f"{node}-{driver}"}, "spec": spec}


def gpu(number: int, **device: Any) -> Json:
    """Return a whole GPU."""
    attributes = {
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "numa": {"int": number // 4},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number // 2}0"},
    }
    return {
        "name": f"gpu-{number}",
        "attributes": attributes,
        "capacity": {"memory": {"value": "80Gi"}},
        **device,
    }


def mig_gpu(number: int) -> list[Json]:
    """Return a GPU that can be split: the whole GPU and the places of each profile."""
    set_ = f"gpu-{number}-set"
    whole = {f"memory-slice-{slot}": {"value": "1"} for slot in range(8)} | {"compute": {"value": "7"}}
    devices = [gpu(number, consumesCounters=[{"counterSet": set_, "counters": whole}])]
    for profile, (compute, memory, starts) in PLACES.items():
        for start in starts:
            taken = {f"memory-slice-{slot}": {"value": "1"} for slot in range(start, start + memory)}
            taken["compute"] = {"value": str(compute)}
            devices.append(
                {
                    "name": f"gpu-{number}-mig-{profile.replace('.', '-')}-{start}",
                    "attributes": {"profile": {"string": profile}},
                    "consumesCounters": [{"counterSet": set_, "counters": taken}],
                }
            )
    return devices


def mig_counters(number: int) -> Json:
    """Return the counters of such a GPU."""
    amounts = {f"memory-slice-{slot}": {"value": "1"} for slot in range(8)} | {"compute": {"value": "7"}}
    return {"name": f"gpu-{number}-set", "counters": amounts}


def mig_slices(node: str, gpus: int = 1) -> list[Json]:
    """Return the slices of a node with such GPUs."""
    devices = [device for number in range(gpus) for device in mig_gpu(number)]
    return [
        slice_of(node, devices, name=f"{node}-devices", slices=2),
        slice_of(node, counters=map(mig_counters, range(gpus)), name=f"{node}-counters", slices=2),
    ]


def claim(name: str, node: str = "", *devices: str, namespace: str = "default", pods: Iterable[str] = ()) -> Json:
    """Return a claim, allocated if it has devices."""
    results = [{"request": "gpus", "driver": DRIVER, "pool": node, "device": device} for device in devices]
    reserved = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved} if results else {}
    return {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"}, "status": status}


def put(inventory: DeviceInventory, *objects: Json) -> None:
    """Store slices and claims, or remove what was stored under a name."""
    for item in objects:
        if "spec" in item and "driver" in item["spec"]:
            read = msgspec.convert(item, ResourceSlice)
            inventory.put(inventory.slices, read.metadata.name, read)
        elif "spec" in item and "selectors" in item["spec"]:
            read_class = msgspec.convert(item, DeviceClass)
            inventory.put(inventory.classes, read_class.metadata.name, read_class)
        else:
            read_claim = msgspec.convert(item, ResourceClaim)
            key = read_claim.metadata.namespace, read_claim.metadata.name
            inventory.put(inventory.claims, key, read_claim)


def inventory_of(*objects: Json) -> DeviceInventory:
    """Return an inventory of slices and claims."""
    inventory = DeviceInventory()
    put(inventory, *objects)
    return inventory
