"""Filter for claims of devices, as the plugin DynamicResources of kube-scheduler 1.36."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.devices.claim_query import ClaimQueryError
from topo_scheduler.scheduling.devices.close_gpus import CloseGpus
from topo_scheduler.scheduling.devices.gpu_sets import GpuSets
from topo_scheduler.scheduling.devices.node_devices import NodeFit
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.state.devices.extended_resources import may_be_backed
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.classes import NO_LIMIT, PodClass

GPUS_BY_ANNOTATION: Final = "no claim gives the pod the GPUs that annotations reserve"
"""Why a pod can't use a node that has its GPUs in ResourceSlices."""
NOT_READ: Final = "the pod was read before a DeviceClass backed one of its extended resources"


def lacks_claims(nodes: NodeTable, cls: PodClass) -> bool:
    """Return whether a class requests something without a claim that some nodes may have only by devices."""
    return bool(nodes.backed_columns and _by_column(nodes, cls))


def _by_column(nodes: NodeTable, cls: PodClass) -> dict[int, str]:
    """Return the extended resources that a class requests without a claim, by column, and the GPU column if by it."""
    names, claimed = nodes.resources.names, {resource for claim in cls.claims for resource in claim.resources}
    requested = {column: names[column] for column, _ in cls.amounts if may_be_backed(names[column])}
    unclaimed = {column: name for column, name in requested.items() if name not in claimed}
    if cls.gpus and not any(name in nodes.resources.gpu_resources for name in requested.values()):
        unclaimed[GPU] = ""
    return unclaimed


def _without_claim(nodes: NodeTable, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows that have something only by devices for which a class has no claim (bool[rows])."""
    unclaimed = _by_column(nodes, cls) if nodes.backed_columns else {}
    if not unclaimed:
        return np.zeros(len(rows), np.bool_)
    backed = nodes.backed_columns
    return np.array([any(column in unclaimed for column in backed.get(row, ())) for row in rows.tolist()], np.bool_)


def left_to_devices(nodes: NodeTable, cls: PodClass, rows: Int64) -> dict[str, Bool]:
    """Return the rows where devices, not ``allocatable``, decide on an extended resource (bool[rows] by resource)."""
    resources = sorted({resource for claim in cls.claims for resource in claim.resources})
    return {
        resource: np.array([not nodes.offers(row, resource) for row in rows.tolist()], np.bool_)
        for resource in resources
    }


def requires_of_devices(cls: PodClass) -> bool:
    """Return whether a class requires something of the GPUs that claims give a pod, or how close they are."""
    needs = cls.gpu_needs
    return needs is not None and needs.required and (needs.close or needs.of_each) and bool(cls.claims)


def close_gpus(sets: GpuSets | None, nodes: NodeTable, cls: PodClass, row: int) -> CloseGpus | None:
    """Return what a class requires of the GPUs that claims give a pod on a row; None if nothing.

    That is nothing where a device plugin gives the pod its GPUs.
    """
    if sets is None or cls.gpu_needs is None or not requires_of_devices(cls):
        return None
    return None if cls.gpus > 1 and not nodes.has_backed_gpus(row) else CloseGpus(sets, row, cls.gpu_needs)


def device_fits(context: FilterContext, cls: PodClass, rows: Int64) -> list[NodeFit]:
    """Return how many pods of a class the devices of each row are for.

    Raises:
        ClaimQueryError: a claim can't be allocated on any node.
    """
    devices, sets = context.devices, context.gpu_sets
    if devices is None:
        return []
    if not requires_of_devices(cls):
        return [devices.fit(cls.claims, row) for row in rows.tolist()]
    return [devices.fit(cls.claims, row, close_gpus(sets, context.nodes, cls, row)) for row in rows.tolist()]


def device_limits(context: FilterContext, cls: PodClass, rows: Int64, *, empty: bool) -> Int64:
    """Return how many pods of a class the devices of each row allow; with ``empty``, if all of them were free."""
    limits = np.zeros(len(rows), np.int64)
    if context.devices is None:
        return limits
    if not cls.claims:
        limits[~_without_claim(context.nodes, cls, rows)] = NO_LIMIT
        return limits
    try:
        for index, fit in enumerate(device_fits(context, cls, rows)):
            limits[index] = fit.empty if empty else fit.now
    except ClaimQueryError:
        limits[:] = 0
    limits[_without_claim(context.nodes, cls, rows)] = 0
    return limits


def least_capacity_lost(context: FilterContext, cls: PodClass, rows: Int64) -> Int64:
    """Return how much capacity a GPU of each row loses with a pod of a class that asks for one partition.

    Returns:
        int64[2, n]: ranks of which the lowest is best, and thousandths of the capacity of an unused GPU; 0 for pods
        that don't ask for one partition.
    """
    devices = context.devices
    if devices is None:
        return np.zeros((2, len(rows)), np.int64)
    return np.array([devices.fit(cls.claims, row).lost for row in rows.tolist()], np.int64).reshape(-1, 2).T


def device_rejections(context: FilterContext, cls: PodClass, rows: Int64) -> Iterator[tuple[str, Bool]]:
    """Yield reasons, and the rows that each rejects.

    Raises:
        ClaimError: a claim excludes all nodes.
    """
    if context.devices is None:
        return
    without = _without_claim(context.nodes, cls, rows)
    if without.any():
        why = GPUS_BY_ANNOTATION if GPU in _by_column(context.nodes, cls) else NOT_READ
        yield f"{NodeReason.DEVICES}: {why}", without
    if not cls.claims:
        return
    try:
        fits = device_fits(context, cls, rows)
    except ClaimQueryError as error:
        raise ClaimError(f"{NodeReason.DEVICES}: {error}") from error
    yield NodeReason.CLAIM_ELSEWHERE, np.array([fit.elsewhere for fit in fits], np.bool_)
    for cause in sorted({fit.closeness for fit in fits} - {""}):
        yield f"{NodeReason.GPU_CLOSENESS}: {cause}", np.array([fit.closeness == cause for fit in fits], np.bool_)
    reasons = [fit.reason or fit.shortage for fit in fits]
    for reason in sorted(set(filter(None, reasons))):
        yield f"{NodeReason.DEVICES}: {reason}", np.array([other == reason for other in reasons], np.bool_)
    yield NodeReason.DEVICES, np.array([not fit.now for fit in fits], np.bool_)
