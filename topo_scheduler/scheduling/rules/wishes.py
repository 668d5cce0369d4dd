"""What a class of pods would like of its node, in the parts that kube-scheduler 1.36 scores, each from 0 to 100.

Parts and weights are those of its default profile: untolerated taints with PreferNoSchedule (3), preferred node
affinity (2), preferred pod affinity and anti-affinity, that of pods which are there included (2),
topologySpreadConstraints with ScheduleAnyway (2). Image locality is kept apart: it only decides between nodes that are
otherwise liked alike. One part is ours: nodes whose kubelets refused pods lately are liked less (3).
"""

import math
from typing import Final

import numpy as np

from topo_scheduler.scheduling.rules.filters import Bool, matches_affinity, term_matches, tolerated
from topo_scheduler.scheduling.rules.neighbours import (
    FilterContext,
    add_counts,
    by_domain,
    by_row,
    condition_of,
    pods_matching,
)
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.constraints import HOSTNAME, Spread
from topo_scheduler.state.nodes import UNKNOWN, Int64, NodeTable

BEST: Final = 100
TAINT_WEIGHT: Final = 3
WEIGHT: Final = 2
REFUSAL_WEIGHT: Final = 3
SMALL_IMAGE: Final = 23 * 1024 * 1024
LARGE_IMAGE: Final = 1000 * 1024 * 1024
"""Bytes: images of less altogether make no difference, of more no further one. The larger is for each container."""


def preferred_nodes(nodes: NodeTable, cls: PodClass, rows: Int64) -> Int64:
    """Return the weights of the preferred node affinity each row meets (int64 of the length of ``rows``)."""
    total = np.zeros(len(rows), np.int64)
    for preferred in cls.preferred:
        total += preferred.weight * term_matches(nodes, preferred.preference, rows)
    return total


def deterring_taints(nodes: NodeTable, cls: PodClass, rows: Int64) -> Int64:
    """Return how many taints with PreferNoSchedule each row has that the class does not tolerate."""
    counts = np.array(
        [
            sum(taint.effect == "PreferNoSchedule" and not tolerated(taint, cls.tolerations) for taint in taints)
            for taints in nodes.taint_sets
        ],
        np.int64,
    )
    return counts[nodes.taint_set[rows]]


def wishes_around(cls: PodClass) -> bool:
    """Return whether other pods decide how much a class likes a node."""
    return bool(cls.attracted) or (cls.wishes is not None and bool(cls.wishes.near or cls.wishes.spread))


def liking(around: FilterContext, cls: PodClass, affine: Int64, taints: Int64, usable: Bool) -> Int64:
    """Return how much the class likes each row: int64[rows], 0 where it may not go.

    Args:
        around: everything there is.
        cls: the class.
        affine: int64[rows] of `preferred_nodes`.
        taints: int64[rows] of `deterring_taints`.
        usable: bool[rows], where it may go at all: parts are relative to the best and the worst of these.
    """
    total = np.zeros(len(usable), np.int64)
    if not usable.any():
        return total
    if (most := int(affine[usable].max())) > 0:
        total += WEIGHT * (BEST * affine // most)
    if (most := int(taints[usable].max())) > 0:
        total += TAINT_WEIGHT * (BEST - BEST * taints // most)
    if (most := int(around.nodes.penalty[usable].max())) > 0:
        total += REFUSAL_WEIGHT * (BEST - BEST * around.nodes.penalty // most)
    if wishes_around(cls):
        total += WEIGHT * _nearness(around, cls, usable)
        total += WEIGHT * _evenness(around, cls, usable)
    total[~usable] = 0
    return total


def _nearness(around: FilterContext, cls: PodClass, usable: Bool) -> Int64:
    """InterPodAffinity."""
    nodes = around.nodes
    by_key: dict[str, Int64] = {}
    for weight, term in cls.wishes.near if cls.wishes else ():
        add_counts(by_key, term.topology_key, weight * pods_matching(around, (condition_of(around, term),)))
    for weight, term in cls.attracted:
        counts = by_row(nodes, around.residents.attracting.get((weight, term), {}))
        add_counts(by_key, term.topology_key, weight * counts)
    total = np.zeros(nodes.rows, np.int64)
    for key, counts in by_key.items():
        total += by_domain(nodes, key, counts)[1]
    least, most = int(total[usable].min()), int(total[usable].max())
    return BEST * (total - least) // max(1, most - least)


def _evenness(around: FilterContext, cls: PodClass, usable: Bool) -> Int64:
    """PodTopologySpread."""
    nodes = around.nodes
    spread = cls.wishes.spread if cls.wishes else ()
    total = np.zeros(nodes.rows, np.int64)
    if not spread:
        return total
    labelled = usable.copy()
    for constraint in spread:
        labelled &= nodes.label_column(constraint.topology_key) != UNKNOWN
    if not labelled.any():
        return total
    for constraint in spread:
        total += _crowd(around, cls, constraint, labelled)
    least, most = int(total[labelled].min()), int(total[labelled].max())
    even = np.full(len(total), BEST, np.int64) if most == 0 else BEST * (most + least - total) // most
    return np.where(labelled, even, 0)


def _crowd(around: FilterContext, cls: PodClass, constraint: Spread, labelled: Bool) -> Int64:
    """Pods that a constraint counts in the domain of each row, in thousandths and weighted by how many there are."""
    nodes = around.nodes
    own = frozenset((cls.wishes.namespace,)) if cls.wishes else frozenset()
    counts = pods_matching(around, ((constraint.selector, own),), living=True)
    if constraint.selector.everything:
        counts = np.zeros(nodes.rows, np.int64)
    if constraint.topology_key == HOSTNAME:
        here, domains = counts, int(labelled.sum())
    else:
        everything = np.arange(nodes.rows, dtype=np.int64)
        counted = np.where(matches_affinity(nodes, cls, everything), counts, 0)
        here = by_domain(nodes, constraint.topology_key, counted)[1]
        domains = len(set(nodes.label_column(constraint.topology_key)[labelled].tolist()))
    return here * round(1000 * math.log(domains + 2)) + 1000 * (constraint.max_skew - 1)


def images_there(nodes: NodeTable, cls: PodClass) -> Int64 | None:
    """Return how much of the class's images each row has (0 to 100, int64[rows]); None where no node has any."""
    images = cls.wishes.images if cls.wishes else ()
    found = [there for image in images if (there := nodes.images.sizes.get(image))]
    if not found:
        return None
    total = np.zeros(nodes.rows, np.int64)
    for there in found:
        rows = np.fromiter(there.keys(), np.int64, len(there))
        # Scaled by how many have it: a few nodes with a rare image are not to be overrun.
        total[rows] += np.fromiter(there.values(), np.int64, len(there)) * len(there) // max(1, len(nodes))
    most = LARGE_IMAGE * len(images)
    return BEST * (np.clip(total, SMALL_IMAGE, most) - SMALL_IMAGE) // (most - SMALL_IMAGE)
