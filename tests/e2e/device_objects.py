"""ResourceSlices, classes and claims for end-to-end tests, and which devices are allocated."""

from collections import Counter
from typing import Any

from . import objects
from .api import Json
from .cluster import Cluster

DRIVER = "gpu.e2e.example.com"
FINALIZER = "resource.kubernetes.io/delete-protection"
GROUP = "resource.k8s.io/v1"
CLASS: Json = {
    "apiVersion": GROUP,
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}


BACKING: Json = {**CLASS, "spec": {**CLASS["spec"], "extendedResourceName": objects.NVIDIA}}


def slice_of(node: str, gpus: int = 8, driver: str = DRIVER, **device: Any) -> Json:
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"index": {"int": number}, "numa": {"int": number // 4}},
            "capacity": {"memory": {"value": "80Gi"}},
            **device,
        }
        for number in range(gpus)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": GROUP,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver.partition('.')[0]}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices},
    }


def asking(count: int = 1, *expressions: str, **devices: Any) -> Json:
    request: Json = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    if expressions:
        request["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    return {"devices": {"requests": [{"name": "gpus", "exactly": request}], **devices}}


def template(name: str, spec: Json) -> Json:
    return {
        "apiVersion": GROUP,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": spec},
    }


def claim(name: str, spec: Json) -> Json:
    return {
        "apiVersion": GROUP,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def by_template(name: str) -> Json:
    return {"resourceClaims": [{"name": "devices", "resourceClaimTemplateName": name}]}


def by_name(name: str) -> Json:
    return {"resourceClaims": [{"name": "devices", "resourceClaimName": name}]}


async def claims_of(cluster: Cluster) -> list[Json]:
    return await cluster.api.list("resourceclaims", "default")


async def devices_of(cluster: Cluster) -> Counter[tuple[str, str]]:
    """Each allocated device, as pool and name, with how many claims have it."""
    return Counter(
        (result["pool"], result["device"])
        for item in await claims_of(cluster)
        for result in item.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    )


async def add_devices(cluster: Cluster, leaves: list[int], **device: Any) -> None:
    await cluster.add_fabric({"s1": leaves})
    names = [item["metadata"]["name"] for item in await cluster.api.list("nodes", None)]
    await cluster.apply(CLASS, *(slice_of(name, **device) for name in names))


async def add_slices(cluster: Cluster, leaves: list[int], *, plugin: int = 0) -> list[str]:
    """Add a fabric whose nodes have GPUs in slices, and nodes of a device plugin; return the former."""
    await cluster.apply(BACKING)
    nodes = [
        objects.node(f"s1-l{leaf}-n{number}", spine="s1", leaf=f"l{leaf}", gpus=0)
        for leaf, count in enumerate(leaves, 1)
        for number in range(1, count + 1)
    ]
    await cluster.add_nodes(nodes)
    await cluster.add_nodes([objects.node(f"plugin-{number}", spine="s1", leaf="l1") for number in range(plugin)])
    names = [node["metadata"]["name"] for node in nodes]
    await cluster.apply(*(slice_of(name) for name in names))
    return names
