"""What a DRA driver of NVIDIA publishes on the nodes of the demo: whole GPUs, and GPUs that can be split by MIG."""

from collections.abc import Iterable
from typing import Any, Final

from topo_scheduler.simulation.apiserver import Store
from topo_scheduler.state.devices.mig import GIB, MigGeometry, MigProfile, geometry_of

DRIVER: Final = "gpu.nvidia.com"
PRODUCT: Final = "NVIDIA H100 80GB HBM3"
GPUS_PER_PCIE_ROOT: Final = 2
Json = dict[str, Any]


def publish(store: Store, *, whole: Iterable[tuple[str, int]] = (), mig: Iterable[tuple[str, int]] = ()) -> None:
    """Create DeviceClasses and the ResourceSlices of nodes.

    Args:
        store: where to create them.
        whole: names of nodes whose GPUs are given as a whole, with their number.
        mig: names of nodes whose GPUs can be split, with their number.
    """
    for name, kind in ((DRIVER, "gpu"), ("mig.nvidia.com", "mig")):
        expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
        body = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        store.create("deviceclasses.resource.k8s.io", body)
    slices = [_slice(node, "gpus", 1, devices=[_gpu(number) for number in range(gpus)]) for node, gpus in whole]
    for node, gpus in mig:
        slices += mig_slices(node, gpus)
    for item in slices:
        store.create("resourceslices.resource.k8s.io", item)


def mig_slices(node: str, gpus: int) -> list[Json]:
    """Return the slices of a node whose GPUs can be split: the counters, and for each GPU its places."""
    geometry = geometry_of(PRODUCT, 80 * GIB)
    assert geometry is not None
    everything = _counters(range(geometry.memory_slices), geometry.compute_slices)
    sets = [{"name": f"gpu-{number}-counters", "counters": everything} for number in range(gpus)]
    return [
        _slice(node, "counters", gpus + 1, sharedCounters=sets),
        *(_slice(node, f"gpu-{number}", gpus + 1, devices=_places(number, geometry)) for number in range(gpus)),
    ]


def _slice(node: str, name: str, slices: int, **content: Any) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": slices}
    return {
        "metadata": {"name": f"{node}-{name}"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **content},
    }


def _gpu(number: int) -> Json:
    attributes = {
        "type": {"string": "gpu"},
        "productName": {"string": PRODUCT},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number // GPUS_PER_PCIE_ROOT}0"},
    }
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}


def _places(number: int, geometry: MigGeometry) -> list[Json]:
    every = _counters(range(geometry.memory_slices), geometry.compute_slices)
    whole = {**_gpu(number), "consumesCounters": [{"counterSet": f"gpu-{number}-counters", "counters": every}]}
    profiles = [profile for profile in geometry.profiles if not profile.name.endswith("+me")]
    return [whole, *(_place(number, profile, start) for profile in profiles for start in profile.starts)]


def _place(number: int, profile: MigProfile, start: int) -> Json:
    taken = _counters(range(start, start + profile.memory_slices), profile.compute_slices)
    return {
        "name": f"gpu-{number}-mig-{profile.name.replace('.', '')}-{start}",
        "attributes": {"type": {"string": "mig"}, "profile": {"string": profile.name}},
        "consumesCounters": [{"counterSet": f"gpu-{number}-counters", "counters": taken}],
    }


def _counters(memory_slices: Iterable[int], compute_slices: int) -> Json:
    memory = {f"memory-slice-{slot}": {"value": "1"} for slot in memory_slices}
    return {**memory, "multiprocessors": {"value": str(compute_slices)}}
