"""Scores of nodes for single pods, and the typical pods on which the built-in score is based.

The score of a class on a node depends on that node alone, so it is cached. It is recomputed for rows that changed in
the node table, and for all rows when the typical pods change.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import PlacementStrategy
from topo_scheduler.api.config import TopologySpec
from topo_scheduler.api.quantity import parse_quantity
from topo_scheduler.api.small_pods import FGD, FRAGMENTATION, OFF, SmallPods
from topo_scheduler.scheduling.extensions.extension import Request, Score
from topo_scheduler.scheduling.extensions.gradient import kernels
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.small_pods.share_prices import share_worth
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.nodes.resources import CPU, GPU
from topo_scheduler.state.statistics.typical_pods import (
    MILLIONTHS,
    PodKind,
    PodKinds,
    Popular,
    ShareWorth,
    Typical,
    in_millionths,
    moved,
    popular,
    typical_of,
)

MAX_CLASSES: Final = 256
"""The most classes with cached scores; the least recently used one is dropped first."""
RECOUNT_DIVISOR: Final = 10
"""Typical pods are recounted after changes by as many pods as 1/10 of the current pods."""
MIN_CHANGED_PODS: Final = 100
"""Typical pods are recounted after at least this number of changed pods."""
MOVED: Final = MILLIONTHS // 20
"""New typical pods replace the old ones if more than this popularity (millionths) moved; then all scores change."""


class TypicalPods:
    """The typical pods for scores: those configured, or the most popular pods of the cluster."""

    def __init__(self, nodes: NodeTable, kinds: PodKinds) -> None:
        self._nodes = nodes
        self._kinds = kinds
        self._most_popular: Popular = ()
        self._counted_at: int | None = None
        self._source: tuple[Popular, int] | None = None
        self._shares = ShareWorth.nothing()
        self._typical = typical_of((), (), self._shares)

    def now(self, configured: Popular) -> Typical:
        """Return the typical pods as arrays; the same object while they are unchanged."""
        source = (configured or self._counted(), len(self._nodes.models))
        if source != self._source:
            if self._source is None or source[0] != self._source[0]:
                self._shares = share_worth(source[0])
            self._source = source
            self._typical = typical_of(source[0], self._nodes.models, self._shares)
        return self._typical

    def _counted(self) -> Popular:
        kinds = self._kinds
        if self._counted_at is None or kinds.changes - self._counted_at >= max(
            MIN_CHANGED_PODS, len(kinds) // RECOUNT_DIVISOR
        ):
            self._counted_at = kinds.changes
            counted = popular(kinds.counts)
            if moved(self._most_popular, counted) > MOVED:
                self._most_popular = counted
        return self._most_popular


@dataclass(slots=True)
class ClassScores:
    """Scores of one class. ``score`` int64[rows]; ``left`` int64[rows]: free GPUs and CPU of a row as one number."""

    typical: Typical
    at: int = -1
    score: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    left: Int64 = field(default_factory=lambda: np.empty(0, np.int64))


class NodeScores:
    """Cached scores of nodes by class, updated when a row changes."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._kept: OrderedDict[tuple[str, int], ClassScores] = OrderedDict()

    def clear(self) -> None:
        """Drop all scores."""
        self._kept.clear()

    def get(self, score: Score, view: ClassView, typical: Typical) -> ClassScores:
        """Return the current scores of the class of a view.

        Raises:
            PluginError: a plugin computes the score, and it failed.
        """
        nodes, key = self._nodes, (score.name, view.number)
        scores = self._kept.pop(key, None)
        if scores is None or scores.typical is not typical:
            scores = ClassScores(typical)
        rows = nodes.capacity_changes.since(scores.at) if scores.at >= 0 else None
        if rows is None:
            rows = np.arange(nodes.rows, dtype=np.int64)
            scores.score, scores.left = np.zeros(nodes.rows, np.int64), np.zeros(nodes.rows, np.int64)
        if len(rows):
            assert score.nodes is not None
            request = Request(view.cls, 1, False, PlacementStrategy.BALANCED, typical=typical)
            scores.score[rows] = score.nodes(nodes, request, rows)
            if score.name != FGD:  # FGD takes the first of equal rows, as published
                kernels().left_free(nodes.allocatable, nodes.requested, CPU, GPU, nodes.gpu_free, rows, scores.left)
        scores.at = nodes.capacity_changes.position
        self._kept[key] = scores
        if len(self._kept) > MAX_CLASSES:
            self._kept.popitem(last=False)
        return scores


def configured_kinds(config: SmallPods) -> Popular:
    """Return the typical pods of a configuration, with their popularity in millionths."""
    return in_millionths(
        [
            (PodKind(parse_quantity(pod.cpu, 1000), pod.gpus, pod.share, tuple(sorted(pod.gpu_models))), pod.weight)
            for pod in config.typical_pods
        ]
    )


def scoring_of(spec: TopologySpec, extensions: Extensions) -> str:
    """Return the name of the score that places single pods."""
    if spec.small_pods.scoring is not None:
        return spec.small_pods.scoring
    # Scores of plugins apply to every pod, so the built-in score stays off if they have a weight.
    added = {score.name: score.weight for score in extensions.added_scores}
    return OFF if any(spec.scoring_weights.added_milli(added)) else FRAGMENTATION
