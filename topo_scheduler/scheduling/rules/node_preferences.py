"""Preferences of a class of pods for nodes, in the parts that kube-scheduler 1.36 scores, each from 0 to 100.

Parts and weights are those of its default profile: taints with PreferNoSchedule that the pod does not tolerate (3);
preferred node affinity (2); preferred pod affinity and anti-affinity, including that of running pods (2);
topologySpreadConstraints with ScheduleAnyway (2). Image locality is separate: it only decides between nodes that are
otherwise equal. Two parts are not in kube-scheduler: nodes whose kubelets recently refused pods score lower (3), and
nodes whose GPUs are as annotations of the pod prefer score higher (2).
"""

import math
from typing import Final

import numpy as np

from topo_scheduler.scheduling.rules.filters import Bool, matches_affinity, term_matches, tolerated
from topo_scheduler.scheduling.rules.interpod_filters import (
    FilterContext,
    add_counts,
    by_domain,
    by_row,
    condition_of,
    pods_matching,
)
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64, NodeTable
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.constraints import HOSTNAME, Spread

BEST_SCORE: Final = 100
TAINT_WEIGHT: Final = 3
PREFERENCE_WEIGHT: Final = 2
REFUSAL_WEIGHT: Final = 3
GPU_WEIGHT: Final = 2
SMALL_IMAGE_BYTES: Final = 23 * 1024 * 1024
LARGE_IMAGE_BYTES: Final = 1000 * 1024 * 1024
"""Bytes: a total size of images below the small value does not count; beyond the large value per container, no more."""


def preferred_nodes(nodes: NodeTable, cls: PodClass, rows: Int64) -> Int64:
    """Return the sum of weights of preferred node affinity that each row meets (int64 of the length of ``rows``)."""
    total = np.zeros(len(rows), np.int64)
    for preferred in cls.preferred:
        total += preferred.weight * term_matches(nodes, preferred.preference, rows)
    return total


def deterring_taints(nodes: NodeTable, cls: PodClass, rows: Int64) -> Int64:
    """Return for each row the number of taints with PreferNoSchedule that the class does not tolerate."""
    counts = np.array(
        [
            sum(taint.effect == "PreferNoSchedule" and not tolerated(taint, cls.tolerations) for taint in taints)
            for taints in nodes.taint_sets
        ],
        np.int64,
    )
    return counts[nodes.taint_set[rows]]


def pods_affect_preferences(cls: PodClass) -> bool:
    """Return whether other pods influence the preferences of a class for nodes."""
    return cls.attracted is not None or (
        cls.preferences is not None and bool(cls.preferences.near or cls.preferences.spread)
    )


def liking(
    context: FilterContext,
    cls: PodClass,
    affine: Int64,
    taints: Int64,
    usable: Bool,
    wishes: Int64 | None = None,
) -> Int64:
    """Return the preference of the class for each row: int64[rows], 0 where it may not go.

    Args:
        context: nodes, pods and storage of the cluster.
        cls: the class of pods.
        affine: int64[rows], result of `preferred_nodes`.
        taints: int64[rows], result of `deterring_taints`.
        usable: bool[rows], rows where it may go; parts are relative to the best and the worst of these rows.
        wishes: int64[rows], share of what it prefers of GPUs that each row meets, 0 to 100; None if nothing.
    """
    total = np.zeros(len(usable), np.int64)
    if not usable.any():
        return total
    if (highest := int(affine[usable].max())) > 0:
        total += PREFERENCE_WEIGHT * (BEST_SCORE * affine // highest)
    if (highest := int(taints[usable].max())) > 0:
        total += TAINT_WEIGHT * (BEST_SCORE - BEST_SCORE * taints // highest)
    if (highest := int(context.nodes.penalty[usable].max())) > 0:
        total += REFUSAL_WEIGHT * (BEST_SCORE - BEST_SCORE * context.nodes.penalty // highest)
    if pods_affect_preferences(cls):
        total += PREFERENCE_WEIGHT * _nearness(context, cls, usable)
        total += PREFERENCE_WEIGHT * _evenness(context, cls, usable)
    if wishes is not None:
        total += GPU_WEIGHT * wishes
    total[~usable] = 0
    return total


def _nearness(context: FilterContext, cls: PodClass, usable: Bool) -> Int64:
    """InterPodAffinity."""
    nodes = context.nodes
    by_key: dict[str, Int64] = {}
    for weight, term in cls.preferences.near if cls.preferences else ():
        add_counts(by_key, term.topology_key, weight * pods_matching(context, (condition_of(context, term),)))
    for weight, term in context.terms_attracting(cls):
        counts = by_row(nodes, context.pod_index.attracting.get((weight, term), {}))
        add_counts(by_key, term.topology_key, weight * counts)
    total = np.zeros(nodes.rows, np.int64)
    for key, counts in by_key.items():
        total += by_domain(nodes, key, counts)[1]
    lowest, highest = int(total[usable].min()), int(total[usable].max())
    return BEST_SCORE * (total - lowest) // max(1, highest - lowest)


def _evenness(context: FilterContext, cls: PodClass, usable: Bool) -> Int64:
    """PodTopologySpread."""
    nodes = context.nodes
    spread = cls.preferences.spread if cls.preferences else ()
    total = np.zeros(nodes.rows, np.int64)
    if not spread:
        return total
    labelled = usable.copy()
    for constraint in spread:
        labelled &= nodes.label_column(constraint.topology_key) != UNKNOWN
    if not labelled.any():
        return total
    for constraint in spread:
        total += _crowd(context, cls, constraint, labelled)
    lowest, highest = int(total[labelled].min()), int(total[labelled].max())
    scores = (
        np.full(len(total), BEST_SCORE, np.int64)
        if highest == 0
        else BEST_SCORE * (highest + lowest - total) // highest
    )
    return np.where(labelled, scores, 0)


def _crowd(context: FilterContext, cls: PodClass, constraint: Spread, labelled: Bool) -> Int64:
    """Return the pods counted in the domain of each row, in thousandths, weighted by the number of domains."""
    nodes = context.nodes
    own_namespace = frozenset((cls.preferences.namespace,)) if cls.preferences else frozenset()
    counts = pods_matching(context, ((constraint.selector, own_namespace),), living=True)
    if constraint.selector.everything:
        counts = np.zeros(nodes.rows, np.int64)
    if constraint.topology_key == HOSTNAME:
        pods_in_domain, domains = counts, int(labelled.sum())
    else:
        all_rows = np.arange(nodes.rows, dtype=np.int64)
        counted = np.where(matches_affinity(nodes, cls, all_rows), counts, 0)
        pods_in_domain = by_domain(nodes, constraint.topology_key, counted)[1]
        domains = len(set(nodes.label_column(constraint.topology_key)[labelled].tolist()))
    return pods_in_domain * round(1000 * math.log(domains + 2)) + 1000 * (constraint.max_skew - 1)


def images_there(nodes: NodeTable, cls: PodClass) -> Int64 | None:
    """Return the share of the class's images on each row (0 to 100, int64[rows]); None if no node has any."""
    images = cls.preferences.images if cls.preferences else ()
    known_images = [size_by_row for image in images if (size_by_row := nodes.images.sizes.get(image))]
    if not known_images:
        return None
    total = np.zeros(nodes.rows, np.int64)
    for size_by_row in known_images:
        rows = np.fromiter(size_by_row.keys(), np.int64, len(size_by_row))
        # Scale by the number of nodes with the image, so that a rare image does not attract all pods to a few nodes.
        total[rows] += (
            np.fromiter(size_by_row.values(), np.int64, len(size_by_row)) * len(size_by_row) // max(1, len(nodes))
        )
    largest = LARGE_IMAGE_BYTES * len(images)
    return (
        BEST_SCORE * (np.clip(total, SMALL_IMAGE_BYTES, largest) - SMALL_IMAGE_BYTES) // (largest - SMALL_IMAGE_BYTES)
    )
