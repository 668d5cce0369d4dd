"""Why a pod that asks how close its GPUs are has no place, by the node that comes closest."""

import numpy as np

from topo_scheduler.api.text import counted
from topo_scheduler.scheduling.devices.gpu_closeness import closeness_text, name_of_links
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.rules.gpu_rules import needs_close_gpus
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.operation_budget import charge_rows


def close_gpu_shortage(planner: Planner, ask: PlacementQuery) -> str:
    """Return a sentence without a full stop; empty if enough GPUs are close, or too few are free on every node.

    Of the nodes that a pod may use and that have enough free GPUs, the one is named where most of these are close.
    """
    cls, sets = ask.groups[0][0], planner.around.gpu_sets
    if sets is None or cls.gpu_needs is None or not needs_close_gpus(cls):
        return ""
    needs = cls.gpu_needs.closeness()
    view, nodes = planner.views.get(cls), planner.nodes
    free = nodes.allocatable[:, GPU] - nodes.requested[:, GPU]
    rows = np.flatnonzero(view.open & (free >= cls.gpus)).astype(np.int64)
    charge_rows(len(rows))
    if (view.fit[rows] > 0).any():
        return ""
    if not len(rows):
        return ""
    row_fits, causes = sets.fits(needs, cls.gpus, rows), sets.shortages(needs, cls.gpus, rows)
    ranked = [
        (fit.most, fit.free, -index)
        for index, fit in enumerate(row_fits.fits[number] for number in row_fits.of_row.tolist())
        if causes[index]
    ]
    if not ranked:
        return ""
    close_gpus, _, negative = max(ranked)
    best, cause = int(rows[-negative]), causes[-negative]
    gpus = sets.hardware.of(best)
    text = name_of_links(gpus.vendor if gpus is not None else "", closeness_text(needs))
    of_best = f"{nodes.names[best]} has {cause}" if close_gpus else f"of those of {nodes.names[best]} {cause}"
    return f"No node has {counted(cls.gpus, 'free GPU')} that are {text}: {of_best}"
