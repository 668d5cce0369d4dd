"""The slices and classes of NVIDIA's DRA driver for a real H100 on an API server, and pods that ask for its devices."""

import re

from tests.devices.driver_slices import DRIVER, Json, classes, pool_of, request, spec_of

from . import objects
from .cluster import Cluster, nodes_of
from .device_objects import by_name, by_template, claim, claims_of, devices_of, template
from .replica import Replica

PARENT = f"{DRIVER}/parentUUID"


async def add_driver(cluster: Cluster, nodes: int, mode: str, gpus: int = 2, *, extended: bool = False) -> None:
    """Add nodes whose GPUs the driver publishes, and its classes."""
    node_objects = [objects.node(f"s1-l1-n{number}", spine="s1", leaf="l1", gpus=0) for number in range(1, nodes + 1)]
    await cluster.add_nodes(node_objects)
    slices = [item for node in node_objects for item in pool_of(node["metadata"]["name"], mode, gpus)]
    await cluster.apply(*classes(extended=extended), *slices)


def instances(*profiles: str) -> Json:
    """The spec of a claim for MIG instances of one GPU."""
    expression = f"device.attributes['{DRIVER}'].profile == '%s'"
    asked = (request(f"mig-{n}", "mig.nvidia.com", expression % profile) for n, profile in enumerate(profiles))
    return spec_of(*asked, constraints=[{"requests": [], "matchAttribute": PARENT}])


async def test_the_api_server_keeps_the_slices_as_the_driver_writes_them(cluster: Cluster, daemon: Replica) -> None:
    await add_driver(cluster, 1, "dynamicMIG", 8)
    written = {item["metadata"]["name"]: item["spec"] for item in pool_of("s1-l1-n1", "dynamicMIG", 8)}
    kept = {item["metadata"]["name"]: item["spec"] for item in await cluster.api.list("resourceslices", None)}
    assert kept == written


async def test_pods_get_whole_gpus_by_claim_and_share_one(cluster: Cluster, daemon: Replica) -> None:
    await add_driver(cluster, 1, "whole", 3)
    big = "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('40Gi'))"
    h100 = "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*h100.*$')"
    await cluster.apply(
        template("single-gpu", spec_of(request("gpu", "gpu.nvidia.com", h100, big))),
        claim("shared", spec_of(request())),
        *(objects.pod(f"own{number}", **by_template("single-gpu")) for number in range(2)),
        *(objects.pod(f"sharing{number}", **by_name("shared")) for number in range(2)),
    )
    for name in ("own0", "own1", "sharing0", "sharing1"):
        await cluster.wait_bound(name, 1)
    assert await devices_of(cluster) == {("s1-l1-n1", f"gpu-{number}"): 1 for number in range(3)}


async def test_pods_get_instances_of_one_gpu_each(cluster: Cluster, daemon: Replica) -> None:
    await add_driver(cluster, 2, "dynamicMIG", 1)
    await cluster.apply(
        template("mig-devices", instances("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb")),
        *(objects.pod(f"p{number}", **by_template("mig-devices")) for number in range(2)),
    )
    bound = [pod for number in range(2) for pod in await cluster.wait_bound(f"p{number}", 1)]
    assert set(nodes_of(bound)) == {"s1-l1-n1", "s1-l1-n2"}
    used = await devices_of(cluster)
    assert set(used.values()) == {1}
    for made in await claims_of(cluster):
        names = [result["device"] for result in made["status"]["allocation"]["devices"]["results"]]
        slots = [slot for name in names for slot in slots_of(name)]
        assert sorted(slots) == sorted(set(slots)), "instances overlap"


async def test_an_unchanged_pod_gets_a_gpu_by_the_class_of_the_chart(cluster: Cluster, daemon: Replica) -> None:
    await add_driver(cluster, 1, "whole", 2, extended=True)
    await cluster.apply(objects.pod("p", 2), objects.pod("q", 1))
    await cluster.wait_bound("p", 1)
    assert await devices_of(cluster) == {("s1-l1-n1", f"gpu-{number}"): 1 for number in range(2)}
    await cluster.wait_unschedulable((await cluster.pods_of("q"))[0])


def slots_of(device: str) -> range:
    """Return the memory slices of an instance, by its name such as ``gpu-0-mig-2g20gb-14-4``."""
    match = re.fullmatch(r"gpu-\d+-mig-(\d)g(\d+)gb-\d+-(\d)", device)
    assert match is not None, device
    return range(int(match[3]), int(match[3]) + int(match[2]) // 10)
