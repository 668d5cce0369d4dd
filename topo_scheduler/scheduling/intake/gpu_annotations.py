"""Messages for pods that request GPUs by annotation and have no GPU limits."""

from collections.abc import Sequence

from topo_scheduler.api.annotations import GPU_COUNT, GPU_FRACTION
from topo_scheduler.api.text import few_of
from topo_scheduler.state.nodes.resources import Amounts, ResourceTable

_PERMISSION = "ask an administrator to add the namespace to gpusByAnnotation.namespaces of the TopologySchedulerConfig"


def devices_of(amounts: Amounts, resources: ResourceTable) -> list[str]:
    """Return the GPU vendors' resources in a pod's request that are not whole GPUs, such as nvidia.com/mig-1g.10gb."""
    vendors = tuple({f"{name.partition('/')[0]}/" for name in resources.gpu_resources if "/" in name})
    names = (resources.names[column] for column, _ in amounts)
    return sorted(name for name in names if name.startswith(vendors) and name not in resources.gpu_resources)


def reserved_only(gpus: int, devices: Sequence[str]) -> str:
    """Return the message for a pod whose GPUs no limit names: what it gets, and what to do.

    Args:
        gpus: how many its annotation requests.
        devices: the other resources of GPU vendors that its limits name.
    """
    if devices:
        return (
            f"{GPU_COUNT} asks for {gpus} GPUs, and the limits of the pod for {few_of(devices)}: whole GPUs are"
            f" reserved for it here as well, and its node gives it only what the limits name; remove {GPU_COUNT}"
        )
    return (
        f"{GPU_COUNT} asks for {gpus} GPUs but the pod has no GPU limits: they are reserved for it here, and its node"
        " gives it no device; set limits on nvidia.com/gpu or amd.com/gpu"
    )


def not_permitted(namespace: str, gpus: int, devices: Sequence[str]) -> str:
    """Return why a namespace gets no GPUs by annotation alone, and what to do.

    Args:
        namespace: that of the pod.
        gpus: how many its annotation requests; 0 if it requests a share of one.
        devices: the other resources of GPU vendors that its limits name.
    """
    if gpus and devices:
        asks = f"annotation {GPU_COUNT} asks for {gpus} GPUs, and the limits of the pod for {few_of(devices)} only"
        remedy = f"remove the annotation, as the limits are enough to get {few_of(devices)}, or"
    elif gpus:
        asks = f"annotation {GPU_COUNT} asks for {gpus} GPUs, and the pod has no GPU limits"
        remedy = "set limits on nvidia.com/gpu or amd.com/gpu, or"
    else:
        asks, remedy = f"annotation {GPU_FRACTION} asks for a share of a GPU", "set GPU limits instead, or"
    return f"{asks}: no ResourceQuota counts that, and namespace {namespace} may not ask so; {remedy} {_PERMISSION}"
