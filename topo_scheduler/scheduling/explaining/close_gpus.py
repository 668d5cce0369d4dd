"""Why a pod that asks how close its GPUs are has no place, by the node that comes closest."""

from typing import NamedTuple

import numpy as np

from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.api.text import counted
from topo_scheduler.scheduling.devices.claim_query import ClaimQueryError
from topo_scheduler.scheduling.devices.gpu_closeness import closeness_text, name_of_links
from topo_scheduler.scheduling.devices.gpu_sets import GpuSets
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.rules.device_claims import device_fits, requires_of_devices
from topo_scheduler.scheduling.rules.gpu_rules import needs_close_gpus
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.operation_budget import charge_rows


class _CloseNode(NamedTuple):
    """A node with too few close GPUs: how many are, how many are free, and the row as a negative number; the cause."""

    most: int
    free: int
    negative_row: int
    cause: str


def close_gpu_shortage(planner: Planner, ask: PlacementQuery) -> str:
    """Return a sentence without a full stop; empty if enough GPUs are close, or too few are free on every node.

    Of the nodes that a pod may use and that have enough free GPUs, the one is named where most of these are close.
    """
    cls, sets = ask.groups[0][0], planner.around.gpu_sets
    if sets is None or cls.gpu_needs is None or not (needs_close_gpus(cls) or requires_of_devices(cls)):
        return ""
    view, needs = planner.views.get(cls), cls.gpu_needs.closeness()
    if (view.fit[view.open] > 0).any():
        return ""
    of_requests = _by_requests(planner, sets, view, needs) if needs_close_gpus(cls) else []
    of_claims = _by_claims(planner, view) if requires_of_devices(cls) else []
    if not of_requests and not of_claims:
        return ""
    best = max([*of_requests, *of_claims])
    row, name = -best.negative_row, planner.nodes.names[-best.negative_row]
    gpus = sets.hardware.of(row)
    text = name_of_links(gpus.vendor if gpus is not None else "", closeness_text(needs))
    of_best = f"{name} has {best.cause}" if best.most else f"of those of {name} {best.cause}"
    wanted = counted(cls.gpus, "free GPU") if of_requests else "free GPUs for the claims of a pod"
    return f"No node has {wanted} that are {text}: {of_best}"


def _by_requests(planner: Planner, sets: GpuSets, view: ClassView, needs: GpuNeeds) -> list[_CloseNode]:
    """Return the nodes with enough free GPUs for the requests of a pod."""
    nodes, size = planner.nodes, view.cls.gpus
    free = nodes.allocatable[:, GPU] - nodes.requested[:, GPU]
    rows = np.flatnonzero(view.open & (free >= size)).astype(np.int64)
    charge_rows(len(rows))
    if not len(rows):
        return []
    row_fits, causes = sets.fits(needs, size, rows), sets.shortages(needs, size, rows)
    fits = [row_fits.fits[number] for number in row_fits.of_row.tolist()]
    return [
        _CloseNode(fit.most, fit.free, -row, cause)
        for row, fit, cause in zip(rows.tolist(), fits, causes, strict=True)
        if cause
    ]


def _by_claims(planner: Planner, view: ClassView) -> list[_CloseNode]:
    """Return the nodes with enough free devices for the claims of a pod."""
    rows = np.flatnonzero(view.open).astype(np.int64)
    try:
        fits = device_fits(planner.around, view.cls, rows)
    except ClaimQueryError:
        return []
    return [
        _CloseNode(fit.most_close, 0, -row, fit.closeness)
        for row, fit in zip(rows.tolist(), fits, strict=True)
        if fit.closeness
    ]
