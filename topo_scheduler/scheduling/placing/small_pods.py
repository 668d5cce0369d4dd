"""Scores of nodes for pods that are placed alone, and the typical pods by which the built-in one measures.

The score of a class on a node depends on that node alone, so it is kept, and computed again for the rows that the node
table says have changed since; for all rows when the typical pods become others.
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
from topo_scheduler.scheduling.placing.share_prices import share_worth
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.nodes import Int64, NodeTable
from topo_scheduler.state.resources import CPU, GPU
from topo_scheduler.state.typical import (
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

KEEP: Final = 256
"""Classes of which scores are kept at most; the least recently used goes first."""
AGAIN_AFTER: Final = 10
"""Typical pods are counted again when as many pods came or went as a tenth of those there are."""
AT_LEAST: Final = 100
MOVED: Final = MILLIONTHS // 20
"""They become others when more than so much of their popularity moved: every score is made anew then."""


class TypicalPods:
    """The typical pods by which scores are made: those configured, or the most popular of those that are counted."""

    def __init__(self, nodes: NodeTable, kinds: PodKinds) -> None:
        self._nodes = nodes
        self._kinds = kinds
        self._popular: Popular = ()
        self._counted_at: int | None = None
        self._made: tuple[Popular, int] | None = None
        self._shares = ShareWorth.nothing()
        self._typical = typical_of((), (), self._shares)

    def now(self, configured: Popular) -> Typical:
        """Return them as arrays; the same object as long as they are the same."""
        made = (configured or self._counted(), len(self._nodes.models))
        if made != self._made:
            if self._made is None or made[0] != self._made[0]:
                self._shares = share_worth(made[0])
            self._made = made
            self._typical = typical_of(made[0], self._nodes.models, self._shares)
        return self._typical

    def _counted(self) -> Popular:
        kinds = self._kinds
        if self._counted_at is None or kinds.changes - self._counted_at >= max(AT_LEAST, len(kinds) // AGAIN_AFTER):
            self._counted_at = kinds.changes
            found = popular(kinds.counts)
            if moved(self._popular, found) > MOVED:
                self._popular = found
        return self._popular


@dataclass(slots=True)
class Kept:
    """Scores of one class. ``score`` and ``left`` int64[rows]: what is free on a row now, GPUs first."""

    typical: Typical
    at: int = -1
    score: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    left: Int64 = field(default_factory=lambda: np.empty(0, np.int64))


class NodeScores:
    """Scores of nodes by class, kept until a row changes."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._kept: OrderedDict[tuple[str, int], Kept] = OrderedDict()

    def clear(self) -> None:
        """Drop all scores."""
        self._kept.clear()

    def get(self, score: Score, view: ClassView, typical: Typical) -> Kept:
        """Return the scores of a view's class, up to date.

        Raises:
            PluginError: the score is a plugin's, and failed.
        """
        nodes, key = self._nodes, (score.name, view.number)
        kept = self._kept.pop(key, None)
        if kept is None or kept.typical is not typical:
            kept = Kept(typical)
        rows = nodes.capacity_changes.since(kept.at) if kept.at >= 0 else None
        if rows is None:
            rows = np.arange(nodes.rows, dtype=np.int64)
            kept.score, kept.left = np.zeros(nodes.rows, np.int64), np.zeros(nodes.rows, np.int64)
        if len(rows):
            assert score.nodes is not None
            request = Request(view.cls, 1, False, PlacementStrategy.BALANCED, typical=typical)
            kept.score[rows] = score.nodes(nodes, request, rows)
            if score.name != FGD:  # that one takes the first of equals, as published
                kernels().left_free(nodes.allocatable, nodes.requested, CPU, GPU, nodes.gpu_free, rows, kept.left)
        kept.at = nodes.capacity_changes.position
        self._kept[key] = kept
        if len(self._kept) > KEEP:
            self._kept.popitem(last=False)
        return kept


class SmallPodScores:
    """What is kept for placing pods alone: the typical pods, and the scores by them."""

    def __init__(self, nodes: NodeTable, kinds: PodKinds) -> None:
        self.typical = TypicalPods(nodes, kinds)
        self.scores = NodeScores(nodes)


def configured_kinds(config: SmallPods) -> Popular:
    """Return the typical pods of a configuration, with their popularity in millionths."""
    return in_millionths(
        [
            (PodKind(parse_quantity(one.cpu, 1000), one.gpus, one.share, tuple(sorted(one.gpu_models))), one.weight)
            for one in config.typical_pods
        ]
    )


def scoring_of(spec: TopologySpec, extensions: Extensions) -> str:
    """Return the name of the score that decides for pods placed alone."""
    if spec.small_pods.scoring is not None:
        return spec.small_pods.scoring
    # What a plugin scores was meant for every pod: it goes on to be.
    added = {score.name: score.weight for score in extensions.added_scores}
    return OFF if any(spec.scoring_weights.added_milli(added)) else FRAGMENTATION
