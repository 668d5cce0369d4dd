"""Objects of benchmarks with devices: a class of GPUs, a template of a claim for one, slices of nodes, and pods."""

from collections.abc import Sequence
from typing import Final

from tests.e2e import objects

from .objects import Json

DRIVER: Final = "gpu.bench.example.com"
GROUP: Final = "resource.k8s.io/v1"
CLASS: Final = "gpu"
TEMPLATE: Final = "one"
GPUS: Final = 8
"""Devices of a node."""


def device_class(expression: str = f"device.driver == '{DRIVER}'", name: str = CLASS) -> Json:
    """A class of devices that an expression selects."""
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def claim_template(namespace: str = "default", device_class_name: str = CLASS) -> Json:
    """A template of claims for one device each."""
    exactly = {"deviceClassName": device_class_name, "allocationMode": "ExactCount", "count": 1}
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    metadata = {"name": TEMPLATE, "namespace": namespace}
    return {"apiVersion": GROUP, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def resource_slice(node: str, driver: str = DRIVER) -> Json:
    """A node's GPUs, without attributes."""
    devices = [{"name": f"gpu-{number}"} for number in range(GPUS)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return {"apiVersion": GROUP, "kind": "ResourceSlice", "metadata": {"name": f"{node}-gpus"}, "spec": spec}


def claiming_pod(name: str, scheduler: str, namespace: str = "default") -> Json:
    """A pod with a claim of the template."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": TEMPLATE}]
    return objects.pod(name, cpu="10m", scheduler=scheduler, namespace=namespace, resourceClaims=claims)


def devices_of(claims: Sequence[Json]) -> list[tuple[str, str, str]]:
    """Return the devices of allocated claims: driver, pool and name of each."""
    return [
        (result["driver"], result["pool"], result["device"])
        for claim in claims
        if claim.get("status", {}).get("allocation")
        for result in claim["status"]["allocation"]["devices"]["results"]
    ]
