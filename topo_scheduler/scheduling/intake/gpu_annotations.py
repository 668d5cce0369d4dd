"""Messages for pods whose annotations are about GPUs that no limit of theirs names."""

from collections.abc import Sequence

from topo_scheduler.api.annotations import (
    GPU_COUNT,
    GPU_FRACTION,
    GPU_LOCALITY,
    GPU_MIN_BANDWIDTH,
    MIG_PROFILE,
    NETWORK_BANDWIDTH,
    PlacementRequest,
)
from topo_scheduler.api.gpu_needs import mig_resource_suffix
from topo_scheduler.api.sharing import matches
from topo_scheduler.api.text import counted, few_of
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE, Amounts, ResourceTable
from topo_scheduler.state.pods.classes import PodClass

_PERMISSION = "ask an administrator to add the namespace to gpusByAnnotation.namespaces of the TopologySchedulerConfig"


def devices_of(amounts: Amounts, resources: ResourceTable) -> list[str]:
    """Return the GPU vendors' resources in a pod's request that are not whole GPUs, such as nvidia.com/mig-1g.10gb."""
    vendors = tuple({f"{name.partition('/')[0]}/" for name in resources.gpu_resources if "/" in name})
    names = (resources.names[column] for column, _ in amounts)
    return sorted(name for name in names if name.startswith(vendors) and name not in resources.gpu_resources)


def holds_devices(amounts: Amounts, resources: ResourceTable) -> bool:
    """Return whether a request has GPUs, a share of one, or other resources of GPU vendors."""
    return any(column in (GPU, GPU_SHARE) and amount for column, amount in amounts) or bool(
        devices_of(amounts, resources)
    )


def bandwidth_alone(namespace: str, permitted: Sequence[str]) -> str:
    """Return the warning for a pod that asks for network bandwidth but for no device; empty if it may."""
    if matches(namespace, permitted):
        return ""
    return f"annotation {NETWORK_BANDWIDTH} has no effect on a pod without GPUs: remove it, or {_PERMISSION}"


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


def mig_problem(profile: str, cls: PodClass, resources: ResourceTable) -> str:
    """Return why the limits of a pod do not get it a MIG device of a profile, and what to do; empty if they may.

    Nodes name MIG devices by their profile (strategy ``mixed``), or like whole GPUs (``single``).
    """
    if not profile:
        return ""
    asked = [name for name in devices_of(cls.amounts, resources) if "/mig-" in name]
    wanted = f"nvidia.com/mig-{mig_resource_suffix(profile)}"
    if asked == [wanted] or (not asked and (cls.gpus or _has_own_claims(cls))):
        return ""
    if asked:
        limits = few_of(asked)
        return f"annotation {MIG_PROFILE} asks for {profile}, and the limits of the pod for {limits}; make them equal"
    return (
        f"annotation {MIG_PROFILE} asks for {profile}, and the pod has no limits for it: its node would give it no"
        f" device; set limits on {wanted}, or on nvidia.com/gpu for nodes with the MIG strategy single"
    )


def needs_without_gpus(request: PlacementRequest, cls: PodClass) -> str:
    """Return a warning for annotations on how close GPUs are, on a pod with fewer than two; empty if there is none."""
    needs = cls.gpu_needs
    if needs is None or not needs.close or cls.gpus > 1 or _has_own_claims(cls):
        return ""
    gpus = counted(cls.gpus, "whole GPU")
    return f"annotation {_closeness(request)} has no effect: it is about GPUs of one pod, and this pod has {gpus}"


def _has_own_claims(cls: PodClass) -> bool:
    """Return whether a pod names claims itself, in addition to those that are made for its requests."""
    return any(not claim.resources for claim in cls.claims)


def _closeness(request: PlacementRequest) -> str:
    """Return the annotation by which a pod asks how close its GPUs are."""
    return GPU_MIN_BANDWIDTH if request.gpu_min_bandwidth else GPU_LOCALITY
