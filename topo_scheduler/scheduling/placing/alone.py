"""Pods that are placed alone and ask for GPUs: node by node over the whole fabric, by one score of nodes."""

from typing import Final

import numpy as np

from topo_scheduler.api.annotations import PlacementStrategy
from topo_scheduler.api.small_pods import FGD
from topo_scheduler.scheduling.extensions.gradient import kernels
from topo_scheduler.scheduling.placing.ask import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.leaf_facts import load_of_leaves
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.tied import is_tied
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64, NodeTable
from topo_scheduler.state.resources import GPU

_NOTHING: Final[Int64] = np.empty(0, np.int64)


def plan_alone(
    site: PlanningContext, ask: PlacementQuery, view: ClassView, layout: Layout, rule: SizeRule
) -> Placement | None:
    """Return the best place for a pod alone, None where it is to be placed as a gang of one, or has no room.

    Raises:
        PluginError: the score is a plugin's, and failed.
    """
    score = site.extensions.alone.get(site.policy.alone)
    if score is None or ask.gang or ask.running or ask.strategy != PlacementStrategy.BALANCED or ask.within:
        return None
    if not (view.cls.gpus or view.cls.share) and not _only_with_gpus(site.nodes, view):
        return None
    kept = site.small_pods.scores.get(score, view, site.small_pods.typical.now(site.policy.typical))
    low, high = ask.preferred or (0, 0)
    row = kernels().choose_row(
        layout.order,
        layout.leaf_of_row,
        view.fit,
        view.liking,
        view.preference,
        layout.aligned,
        low,
        high,
        load_of_leaves(site, layout, site.totals(view.cls.scarce, layout), None) if ask.latency else _NOTHING,
        kept.score,
        kept.left,
        _NOTHING if score.name == FGD else _free_gpus(site, layout),  # that one takes the first of equals, as published
    )
    if row < 0:
        return None
    found = int(kept.score[row])
    parts = ScoreParts(0, 0, 0, 0, found, ((score.name, found),), by_node=True)
    leaf = int(layout.leaf_of_row[row])
    return Placement([[int(row)]], [leaf], rule, parts, int(np.count_nonzero(view.fit)))


def shares_in_mixed_gang(ask: PlacementQuery) -> str:
    """Return what is wrong with a gang that asks for shares of GPUs, or an empty string."""
    if not ask.gang or not any(cls.share for cls, _ in ask.groups):
        return ""
    if len(ask.groups) == 1 and not is_tied(ask.groups):
        return ""
    return (
        "its pods ask for shares of GPUs, and a gang of different pods or of pods that look at each other can't have"
        ' these yet; give them whole GPUs, or place them singly with topology.scheduler/gang: "false"'
    )


def _free_gpus(site: PlanningContext, layout: Layout) -> Int64:
    """Return the GPUs that are free in each leaf (int64[leaves]): the fewest first, so that whole leaves stay whole."""
    gpus = site.totals(GPU, layout)
    return gpus.capacity - gpus.used


def _only_with_gpus(nodes: NodeTable, view: ClassView) -> bool:
    """Return whether only nodes with GPUs have room for a class, and any of them has."""
    room = view.fit > 0
    return bool(room.any()) and not bool((nodes.allocatable[room, GPU] == 0).any())
