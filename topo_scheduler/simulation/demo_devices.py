"""What NVIDIA's DRA driver publishes on the nodes of the demo: whole GPUs, and GPUs that can be split by MIG.

Names and values are those of a real H100 (tests/devices/recorded). Left out are versions, addresses, and what no other
GPU of the demo differs in: instances with media extensions, and counters of engines other than decoders.
"""

from collections.abc import Iterable
from typing import Any, Final
from uuid import NAMESPACE_DNS, uuid5

from topo_scheduler.simulation.apiserver import Store
from topo_scheduler.state.devices.mig import GIB, MigGeometry, MigProfile, geometry_of

DRIVER: Final = "gpu.nvidia.com"
PRODUCT: Final = "NVIDIA H100 80GB HBM3"
GPUS_PER_PCIE_ROOT: Final = 2
MEMORY_MIB: Final = 81_559
INSTANCES: Final = {
    "1g.10gb": (19, 16, 1, 9_984),
    "1g.20gb": (15, 26, 1, 20_096),
    "2g.20gb": (14, 32, 2, 20_096),
    "3g.40gb": (9, 60, 3, 40_448),
    "4g.40gb": (5, 64, 4, 40_448),
    "7g.80gb": (0, 132, 7, 81_152),
}
"""Number of each profile, multiprocessors, decoders, and MiB of memory. The last one is all of the GPU."""
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
    slices = [item for node, gpus in whole for item in whole_slices(node, gpus)]
    for node, gpus in mig:
        slices += mig_slices(node, gpus)
    for item in slices:
        store.create("resourceslices.resource.k8s.io", item)


def whole_slices(node: str, gpus: int) -> list[Json]:
    """Return the slice of a node whose GPUs are given as a whole."""
    return [_slice(node, "gpus", 1, devices=[_gpu(node, number) for number in range(gpus)])]


def mig_slices(node: str, gpus: int) -> list[Json]:
    """Return the slices of a node whose GPUs can be split: the counters, and for each GPU its places."""
    geometry = geometry_of(PRODUCT, 80 * GIB)
    assert geometry is not None
    whole = geometry.profiles[-1]
    sets = [{"name": f"gpu-{number}-counter-set", "counters": _counters(whole, 0)} for number in range(gpus)]
    return [
        _slice(node, "counters", gpus + 1, sharedCounters=sets),
        *(_slice(node, f"gpu-{number}", gpus + 1, devices=_places(node, number, geometry)) for number in range(gpus)),
    ]


def _slice(node: str, name: str, slices: int, **content: Any) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": slices}
    return {
        "metadata": {"name": f"{node}-{name}"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **content},
    }


def _gpu(node: str, number: int, memory_mib: int = MEMORY_MIB) -> Json:
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": _uuid(node, number)}, **_of_board(number)}
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": f"{memory_mib}Mi"}}}


def _of_board(number: int) -> Json:
    """Return the attributes that a GPU shares with its instances."""
    return {
        "productName": {"string": PRODUCT},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number // GPUS_PER_PCIE_ROOT}0"},
    }


def _uuid(node: str, number: int) -> str:
    return f"GPU-{uuid5(NAMESPACE_DNS, f'{node}/{number}')}"


def _places(node: str, number: int, geometry: MigGeometry) -> list[Json]:
    profiles = [profile for profile in geometry.profiles if profile.name in INSTANCES]
    *_, memory_mib = INSTANCES[profiles[-1].name]
    whole = _gpu(node, number, memory_mib) | _consumes(number, profiles[-1], 0)
    return [whole, *(_place(node, number, profile, start) for profile in profiles for start in profile.starts)]


def _place(node: str, number: int, profile: MigProfile, start: int) -> Json:
    id_, multiprocessors, decoders, memory_mib = INSTANCES[profile.name]
    amounts = {"multiprocessors": str(multiprocessors), "decoders": str(decoders), "memory": f"{memory_mib}Mi"}
    return {
        "name": f"gpu-{number}-mig-{profile.name.replace('.', '')}-{id_}-{start}",
        "attributes": {
            "type": {"string": "mig"},
            "profile": {"string": profile.name},
            "parentUUID": {"string": _uuid(node, number)},
            **_of_board(number),
        },
        "capacity": {name: {"value": amount} for name, amount in amounts.items()},
        **_consumes(number, profile, start),
    }


def _consumes(number: int, profile: MigProfile, start: int) -> Json:
    return {"consumesCounters": [{"counterSet": f"gpu-{number}-counter-set", "counters": _counters(profile, start)}]}


def _counters(profile: MigProfile, start: int) -> Json:
    _, multiprocessors, decoders, memory_mib = INSTANCES[profile.name]
    amounts = {"multiprocessors": str(multiprocessors), "decoders": str(decoders), "memory": f"{memory_mib}Mi"}
    amounts |= {f"memory-slice-{slot}": "1" for slot in range(start, start + profile.memory_slices)}
    return {name: {"value": amount} for name, amount in amounts.items()}
