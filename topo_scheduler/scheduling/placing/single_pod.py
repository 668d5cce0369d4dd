"""Placement of single pods that ask for GPUs, or for one partition of a GPU, over all nodes of the fabric.

For GPUs a score of nodes decides. For a partition, such as a MIG instance, the capacity that its GPU loses decides.
"""

from typing import Final

import numpy as np

from topo_scheduler.api.annotations import PlacementStrategy
from topo_scheduler.api.small_pods import FGD
from topo_scheduler.scheduling.extensions.extension import WHOLE
from topo_scheduler.scheduling.extensions.gradient import kernels
from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext, PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.scoring.leaf_facts import load_of_leaves
from topo_scheduler.scheduling.rules.gpu_rules import asks_close_gpus, device_scores
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.topology.fabric import Layout

_NOTHING: Final[Int64] = np.empty(0, np.int64)


def plan_alone(task: PlanningTask, view: ClassView, rule: SizeRule) -> Placement | None:
    """Return the best place for a single pod.

    None where no node has room, or where the pod has to be placed as a gang of one.

    Raises:
        PluginError: a plugin computes the score, and it failed.
    """
    context, query, layout = task.context, task.query, task.layout
    score = context.extensions.alone.get(context.policy.alone)
    if score is None or query.gang or query.running or query.strategy != PlacementStrategy.BALANCED or query.within:
        return None
    if not (view.cls.gpus or view.cls.share) and not _only_with_gpus(context.nodes, view):
        return None
    node_scores = context.node_scores.get(score, view, context.typical_pods.now(context.policy.typical))
    # FGD takes the first of equal rows, as published.
    free_gpus = _NOTHING if score.name == FGD else _free_gpus(context, layout)
    best_row = _best_row(task, view, node_scores.score, node_scores.left, free_gpus)
    if best_row < 0:
        return None
    row_score = int(node_scores.score[best_row])
    needs_gpus = view.cls.gpu_needs is not None
    added = ((score.name, row_score), *(_device_parts(context, view, best_row) if needs_gpus else ()))
    return _placed(task, view, rule, best_row, ScoreParts(0, 0, 0, 0, row_score, added, by_node=True))


def plan_partition(task: PlanningTask, view: ClassView, rule: SizeRule) -> Placement | None:
    """Return the place of a single pod that asks for one partition: there where a GPU loses the least capacity.

    Of equal nodes, that with room for the fewest such pods is taken. None for other pods, and where no node has room.
    """
    query = task.query
    if query.gang or query.running or query.strategy != PlacementStrategy.BALANCED or query.within:
        return None
    ranks, thousandths = view.capacity_lost
    if not ranks.size or not ranks[view.fit > 0].any() or task.context.extensions.scores_nodes:
        return None
    best_row = _best_row(task, view, -ranks, view.fit, _NOTHING)
    if best_row < 0:
        return None
    kept = WHOLE - int(thousandths[best_row])
    parts = ScoreParts(0, 0, 0, 0, kept, (("capacity-kept", kept),), by_node=True)
    return _placed(task, view, rule, best_row, parts)


def _best_row(task: PlanningTask, view: ClassView, score: Int64, left: Int64, free_gpus: Int64) -> int:
    """Return the row with room that is best by preference, traffic and score, -1 if there is none.

    Of equal rows, that with the least ``left`` comes first, then that with the fewest ``free_gpus``.
    """
    context, query, layout = task.context, task.query, task.layout
    first_preferred, end_preferred = query.preferred or (0, 0)
    load = load_of_leaves(context, layout, context.totals(view.cls.scarce, layout), None) if query.latency else _NOTHING
    return int(
        kernels().choose_row(
            layout.order,
            layout.leaf_of_row,
            view.fit,
            view.liking,
            view.preference,
            layout.aligned,
            first_preferred,
            end_preferred,
            load,
            score,
            left,
            free_gpus,
        )
    )


def _placed(task: PlanningTask, view: ClassView, rule: SizeRule, row: int, parts: ScoreParts) -> Placement:
    leaf = int(task.layout.leaf_of_row[row])
    return Placement([[row]], [leaf], rule, parts, int(np.count_nonzero(view.fit)))


def _device_parts(context: PlanningContext, view: ClassView, row: int) -> tuple[tuple[str, int], ...]:
    """Return the score of the GPUs of a row and its parts in thousandths, for a pod that asks how close they are."""
    if not asks_close_gpus(view.cls):
        return ()
    scores = device_scores(context.around, view.cls, np.array([row], np.int64))
    parts = (("device", scores.total), *((f"device-{name}", part) for name, part in scores._asdict().items()))
    return tuple((name, 10 * int(part[0])) for name, part in parts)


def gpu_share_error(query: PlacementQuery) -> str:
    """Return why a gang that asks for shares of GPUs can't be placed, or an empty string."""
    if not query.gang or not any(cls.share for cls, _ in query.groups):
        return ""
    if len(query.groups) == 1 and not is_constrained(query.groups):
        return ""
    return (
        "its pods request shares of GPUs, which a gang with different requests or inter-pod constraints does not"
        ' support yet; request whole GPUs, or place the pods singly with topology.scheduler/gang: "false"'
    )


def _free_gpus(context: PlanningContext, layout: Layout) -> Int64:
    """Return the free GPUs of each leaf (int64[leaves]); leaves with fewer come first, to keep empty leaves whole."""
    gpus = context.totals(GPU, layout)
    return gpus.capacity - gpus.used


def _only_with_gpus(nodes: NodeTable, view: ClassView) -> bool:
    """Return whether some node with GPUs has room for a class, and no node without GPUs has."""
    room = view.fit > 0
    return bool(room.any()) and not bool((nodes.allocatable[room, GPU] == 0).any())
