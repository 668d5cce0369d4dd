"""Pods on nodes with the GPUs of NVIDIA's DRA driver: what its demos and its documentation ask for.

The slices are those of a real H100, `tests.devices.driver_slices`.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.devices.driver_slices import (
    DRIVER,
    Json,
    classes,
    pool_of,
    read_classes,
    read_slices,
    request,
    spec_of,
)
from tests.helpers import make_pod
from tests.scheduling.device_driver import DeviceDriver, nodes_of
from tests.scheduling.driver import fabric
from tests.scheduling.extended_driver import ExtendedDriver
from topo_scheduler.scheduling.devices import device_choice
from topo_scheduler.scheduling.devices.allocator import allocate
from topo_scheduler.state.devices.hardware import UNKNOWN_NUMA

MIG = "mig.nvidia.com"
OF_DRIVER = f"device.attributes['{DRIVER}']"
CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}


def driver(mode: str = "whole", *, nodes: int = 1, gpus: int = 4, d: DeviceDriver | None = None) -> DeviceDriver:
    """Return a driver of nodes with so many H100."""
    cluster = fabric({"s1/l1": nodes}, gpus=0)
    d = d or DeviceDriver(cluster, gpus=0)
    d.classes(*read_classes(classes()))
    publish(d, [item for node in cluster for item in pool_of(node.metadata.name, mode, gpus)])
    return d


def publish(d: DeviceDriver, items: list[Json]) -> None:
    """The driver publishes slices, of a higher generation than before."""
    d.slices(*read_slices(items))


def selector(profile: str) -> str:
    """Return the expression that the driver's demos have for a MIG profile."""
    return f"{OF_DRIVER}.profile == '{profile}'"


def split(name: str, *profiles: str, **devices: Any) -> Json:
    """Return the spec of a claim for MIG instances."""
    return spec_of(*(request(f"{name}-{n}", MIG, selector(profile)) for n, profile in enumerate(profiles)), **devices)


# ---------------------------------------------------------------- nodes that are alike


def test_nodes_that_are_alike_share_the_search_and_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[object] = []

    def counted(candidates: Any, claims: Any, *more: Any) -> Any:
        searches.append(claims)
        return allocate(candidates, claims, *more)

    monkeypatch.setattr(device_choice, "allocate", counted)
    d = driver("dynamicMIG", nodes=3, gpus=1)
    pods = []
    for number, profile in enumerate(["4g.40gb", "3g.40gb"] * 3):
        pods.append(d.pod(f"p{number}", spec_of(request("gpu", MIG, selector(profile)))))
        d.run(pods[-1])
    assert sorted(nodes_of(pods)) == sorted(["s1-l1-1", "s1-l1-2", "s1-l1-3"] * 2)
    assert len(searches) == 2
    names = {"gpu-0-mig-4g40gb-5-0", "gpu-0-mig-3g40gb-9-4"}
    assert set(d.allocated()) == {(node, name) for node in set(nodes_of(pods)) for name in names}


# ---------------------------------------------------------------- whole GPUs


def test_a_claim_for_one_gpu_each() -> None:
    d = driver()
    pods = [d.pod(f"p{number}", spec_of(request())) for number in range(5)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 4
    assert set(d.allocated()) == {("s1-l1-1", f"gpu-{number}") for number in range(4)}


def test_pods_that_share_a_claim_share_its_gpu() -> None:
    d = driver(nodes=2, gpus=1)
    d.claim("single-gpu", spec_of(request()))
    pods = [d.sharing(make_pod(f"pod{number}"), "single-gpu") for number in range(2)]
    d.run(*pods)
    assert len(set(nodes_of(pods))) == 1 and len(nodes_of(pods)) == 2
    assert d.devices_of("single-gpu") == ["gpu-0"]


def test_a_pod_with_two_claims_of_one_template_gets_two_gpus() -> None:
    d = driver(nodes=2, gpus=2)
    pod = d.pod("p", spec_of(request(count=2)))
    d.run(pod)
    assert pod.spec.node_name
    assert len(d.allocated()) == 2


def test_configuration_of_sharing_is_copied_to_each_request() -> None:
    d = driver(gpus=2)
    slicing = CONFIG | {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}
    mps = CONFIG | {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}}
    config = [
        {"requests": [name], "opaque": {"driver": DRIVER, "parameters": parameters}}
        for name, parameters in (("ts-gpu", slicing), ("mps-gpu", mps))
    ]
    pod = d.pod("p", spec_of(request("ts-gpu"), request("mps-gpu"), config=config))
    d.run(pod)
    allocation = d.claims["default", "p-claim"].status.allocation
    assert pod.spec.node_name and allocation is not None
    assert len({result.device for result in allocation.devices.results}) == 2
    assert [entry.requests for entry in allocation.devices.config] == [["ts-gpu"], ["mps-gpu"]]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*h100.*$')", True),
        ("device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3'", True),
        ('device.capacity[\'gpu.nvidia.com\'].memory.isGreaterThan(quantity("40Gi"))', True),
        ("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('81559Mi')) == 0", True),
        ("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('80Gi')) >= 0", False),
        ("device.attributes['gpu.nvidia.com'].cudaComputeCapability.isGreaterThan(semver('8.9.0'))", True),
        ("device.attributes['gpu.nvidia.com'].driverVersion.isLessThan(semver('580.159.5'))", True),
        ("device.attributes['gpu.nvidia.com'].architecture == 'Hopper'", True),
        ("device.attributes['resource.kubernetes.io'].pciBusID == '0000:02:06.0'", True),
        ("device.attributes['resource.kubernetes.io'].pcieRoot in ['pci0000:03', 'pci0000:ff']", True),
        ("'numaNode' in device.attributes['resource.kubernetes.io']", False),
        # A demo of the driver asks for an index, which it publishes no more: false for other products all the same.
        (f"{OF_DRIVER}.productName.matches('A100') && {OF_DRIVER}.index == 0", False),
    ],
)  # fmt: skip
def test_selectors_of_demos_and_documentation(expression: str, expected: bool) -> None:
    d = driver()
    pod = d.pod("p", spec_of(request("gpu", "gpu.nvidia.com", expression)))
    d.run(pod)
    assert bool(pod.spec.node_name) is expected


def test_a_selector_of_an_attribute_that_the_driver_has_no_more_is_reported_on_the_pod() -> None:
    d = driver()
    pod = d.pod("p", spec_of(request("gpu", "gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].index == 0")))
    d.run(pod)
    assert not pod.spec.node_name
    assert any("index" in text for text in d.told(pod))


def test_gpus_of_one_pcie_root() -> None:
    d = driver()
    constraints = [{"requests": ["gpu"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}]
    pod = d.pod("p", spec_of(request(count=2), constraints=constraints))
    d.run(pod)
    assert not pod.spec.node_name, "each of the GPUs has a root of its own"


def test_unchanged_pods_get_gpus_by_the_extended_resource_of_the_chart() -> None:
    d = driver(d=ExtendedDriver(fabric({"s1/l1": 1}, gpus=0)))
    d.drop_class("gpu")  # the class of the other tests backs the same resource
    d.classes(*read_classes(classes(extended=True)))
    pods = [make_pod(f"p{number}", gpus=2) for number in range(3)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 2
    assert {device for _, device in d.allocated() if device.startswith("gpu-")} == {f"gpu-{n}" for n in range(4)}


# ---------------------------------------------------------------- what a node is made of


@pytest.mark.parametrize("mode", ["whole", "dynamicMIG"])
def test_the_hardware_of_a_node_is_read_from_its_slices(mode: str) -> None:
    d = driver(mode)
    d.step()
    gpus = d.engine.world.hardware.of(0)
    assert gpus is not None
    assert gpus.architecture == "hopper"
    assert gpus.model == "NVIDIA H100 80GB HBM3"
    assert [gpu.pcie_root for gpu in gpus.hardware.gpus] == [f"pci0000:{number:02x}" for number in range(4)]
    assert {gpu.numa_node for gpu in gpus.hardware.gpus} == {UNKNOWN_NUMA}, "as sysfs says in that virtual machine"


def test_the_numa_node_is_read_where_kubernetes_defines_it() -> None:
    d = driver()
    (item,) = pool_of("s1-l1-1", gpus=4)
    for number, device in enumerate(item["spec"]["devices"]):
        device["attributes"]["resource.kubernetes.io/numaNode"] = {"int": number // 2}
    item["spec"]["pool"]["generation"] = 2
    publish(d, [item])
    d.step()
    gpus = d.engine.world.hardware.of(0)
    assert gpus is not None
    assert [gpu.numa_node for gpu in gpus.hardware.gpus] == [0, 0, 1, 1]


# ---------------------------------------------------------------- MIG


def test_four_instances_of_one_gpu_for_each_of_four_pods() -> None:
    d = driver("dynamicMIG")
    constraint = {"requests": [], "matchAttribute": f"{DRIVER}/parentUUID"}
    spec = split("mig", "1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", constraints=[constraint])
    pods = [d.pod(f"p{number}", spec) for number in range(5)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 4
    boards = [{device.split("-mig-")[0] for device in d.devices_of(f"{pod.metadata.name}-claim")} for pod in pods[:5]]
    assert sorted(len(board) for board in boards) == [0, 1, 1, 1, 1]
    assert set.union(*boards) == {f"gpu-{number}" for number in range(4)}


def test_instances_go_to_a_gpu_that_is_split_already_and_leave_the_others_whole() -> None:
    d = driver("dynamicMIG")
    small = [d.pod(f"small{number}", split("mig", "1g.10gb")) for number in range(7)]
    d.run(*small)
    whole = [d.pod(f"whole{number}", spec_of(request())) for number in range(4)]
    d.run(*whole)
    assert len(nodes_of(small)) == 7
    assert len(nodes_of(whole)) == 3


def test_a_request_for_any_instance_gets_a_small_one_without_media_extensions() -> None:
    d = driver("dynamicMIG")
    pod = d.pod("p", spec_of(request("mig", MIG)))
    d.run(pod)
    (device,) = d.devices_of("p-claim")
    assert "-mig-1g10gb-19-" in device


def test_the_only_instance_with_media_extensions_is_given_once_a_gpu() -> None:
    d = driver("dynamicMIG", gpus=2)
    pods = [d.pod(f"p{number}", split("mig", "1g.10gb+me")) for number in range(3)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 2


def test_instances_of_the_largest_memory_that_fit() -> None:
    """By capacity, as a claim says that does not know profiles."""
    d = driver("dynamicMIG", gpus=1)
    memory = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('39Gi')) >= 0"
    pods = [d.pod(f"p{number}", spec_of(request("mig", MIG, memory))) for number in range(3)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 2, "3g.40gb twice, or 3g.40gb and 4g.40gb"


# ---------------------------------------------------------------- taints of the driver's health check


def _tainted(key: str, effect: str, number: int = 0) -> Iterator[Json]:
    for item in pool_of("s1-l1-1", gpus=2):
        item["spec"]["devices"][number]["taints"] = [{"key": f"{DRIVER}/{key}", "value": "79", "effect": effect}]
        item["spec"]["pool"]["generation"] = 2
        yield item


@pytest.mark.parametrize(("key", "effect", "places"), [
    ("xid", "NoSchedule", 1),
    ("gpu-lost", "NoSchedule", 1),
    ("xid", "None", 2),  # an error of the application
    ("unmonitored", "None", 2),
])  # fmt: skip
def test_taints_of_the_health_check_keep_pods_off_as_their_effect_says(key: str, effect: str, places: int) -> None:
    d = driver(gpus=2)
    publish(d, list(_tainted(key, effect)))
    pods = [d.pod(f"p{number}", spec_of(request())) for number in range(2)]
    d.run(*pods)
    assert len(nodes_of(pods)) == places


# ---------------------------------------------------------------- consumable shares


def _shared(option: str) -> list[Json]:
    """Return the slices with the driver's option for consumable shares."""
    items = pool_of("s1-l1-1", gpus=1)
    for device in items[0]["spec"]["devices"]:
        device["allowMultipleAllocations"] = True
        limits = {"min": "1Mi" if option == "memory" else "0", "max": "81559Mi", "step": "1Mi"}
        default = "81559Mi" if option == "memory" else "0"
        device["capacity"]["memory"]["requestPolicy"] = {"default": default, "validRange": limits}
        if option.isdecimal():
            policy = {"default": "1", "validRange": {"min": "1", "max": option, "step": "1"}}
            device["capacity"]["shares"] = {"value": option, "requestPolicy": policy}
        items[0]["spec"]["pool"]["generation"] = 2
    return items


@pytest.mark.parametrize(("option", "exactly", "places"), [
    ("4", {}, 4),
    ("4", {"capacity": {"requests": {"shares": "2"}}}, 2),
    ("memory", {}, 1),
    ("memory", {"capacity": {"requests": {"memory": "4Gi"}}}, 6),
    ("memory", {"capacity": {"requests": {"memory": "30Gi"}}}, 2),
    ("unlimited", {}, 6),
])  # fmt: skip
def test_consumable_shares(option: str, exactly: Json, places: int) -> None:
    d = driver(gpus=1)
    publish(d, _shared(option))
    pods = [d.pod(f"p{number}", spec_of(request(**exactly))) for number in range(6)]
    d.run(*pods)
    assert len(nodes_of(pods)) == places
    assert set(d.allocated()) == {("s1-l1-1", "gpu-0")}


# ---------------------------------------------------------------- passthrough


def test_a_gpu_that_is_published_twice_can_be_given_twice_until_the_driver_takes_one_away() -> None:
    """As kube-scheduler does: nothing in the slice says that they are one GPU."""
    d = driver(gpus=1)
    (item,) = pool_of("s1-l1-1")
    (gpu,) = item["spec"]["devices"]
    passthrough = {"name": "gpu-vfio-0", "attributes": gpu["attributes"] | {"type": {"string": "vfio"}}}
    item["spec"] |= {"devices": [gpu, passthrough], "pool": item["spec"]["pool"] | {"generation": 2}}
    publish(d, [item])
    pods = [d.pod(f"p{kind}", spec_of(request("gpu", kind))) for kind in ("gpu.nvidia.com", "vfio.gpu.nvidia.com")]
    d.run(pods[0])
    d.run(pods[1])
    assert len(nodes_of(pods)) == 2
    hardware = d.engine.world.hardware.of(0)
    assert hardware is not None and hardware.count == 1
    item["spec"] |= {"devices": [gpu], "pool": item["spec"]["pool"] | {"generation": 3}}
    publish(d, [item])
    d.drop_claim("pvfio.gpu.nvidia.com-claim")
    more = d.pod("more", spec_of(request("gpu", "vfio.gpu.nvidia.com")))
    d.run(more)
    assert not more.spec.node_name
