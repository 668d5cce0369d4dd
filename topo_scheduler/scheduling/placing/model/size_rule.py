"""The size rule: the fewest leaves that could hold a gang, and the smallest domain they must share.

It is computed on nodes that are ready and match, as if they were empty except for DaemonSets. So it defines the
placement for which it is worth waiting. Leaves without all labels count only for gangs that fully labelled leaves could
not hold.
"""

from collections.abc import Callable, Sequence

import numpy as np

from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.kernels.fit import fewest_leaves, fit_leaves
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import (
    ANYWHERE,
    PlacementQuery,
    SizeRuleLimits,
    SpreadLimits,
)
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout


def leaf_fits(
    view: ClassView,
    layout: Layout,
    limits: SizeRuleLimits,
    *,
    empty: bool = False,
    fit: Int64 | None = None,
    segment: int = 1,
) -> Int64:
    """Return the units that each leaf holds (int64[leaves]): now, if it were ``empty``, or with ``fit`` on each row.

    A unit is ``segment`` members that must share a leaf. ``fit`` int64[rows]: members that each row takes.
    """
    units = np.zeros(len(layout.paths), np.int64)
    gpus = view.cls.gpus
    max_members = limits.members_per_leaf(gpus)
    if limits.max_gpus_per_leaf and gpus and max_members == 0:
        return units
    if fit is None:
        fit = view.empty_fit if empty else view.fit
    if layout.inner is not None:
        members_by_leaf = leaf_fits(view, layout.inner, limits, fit=fit)
        return np.add.reduceat(members_by_leaf, layout.blocks[:-1]) // segment
    all_leaves = np.arange(len(units), dtype=np.int64)
    fit_leaves(fit, layout.order, layout.offsets, all_leaves, limits.max_nodes_per_leaf, max_members, units)
    return units if segment == 1 else units // segment


def named_at(layout: Layout, depth: int) -> Int64:
    """Return 1 for each leaf in a domain that has a name at a depth, else 0 (int64[leaves]).

    Nodes without the label of a level share one unnamed domain at that level, although they may be far apart.
    """
    named = (path[depth - 1] != UNLABELLED for path in layout.paths)
    return np.fromiter(named, np.int64, len(layout.paths)) if depth else np.ones(len(layout.paths), np.int64)


def spread_needed(
    fits: Int64, layout: Layout, members: int, within: int = 0, bounds: SpreadLimits = ANYWHERE
) -> tuple[int, int] | None:
    """Return (depth, leaves): the deepest level at which one domain holds the members, and the fewest leaves there.

    Depth counts from the outside; the deepest candidate is the level above the leaves. The domain lies inside a domain
    of the depth ``within``. None if nothing within the bounds holds the members.
    """
    if within >= layout.depth:
        return (layout.depth - 1, 1) if len(fits) and int(fits.max()) >= members else None
    for depth in range(layout.depth - 1, max(within, bounds.depth) - 1, -1):
        leaves_needed = np.empty(len(layout.domains[depth]) - 1, np.int64)
        fewest_leaves(fits, layout.domains[depth], members, leaves_needed)
        counts = leaves_needed[leaves_needed > 0]
        if bounds.leaves:
            counts = counts[counts <= bounds.leaves]
        if len(counts):
            return depth, int(counts.min())
    return None


def size_rule(
    views: Sequence[ClassView], query: PlacementQuery, layout: Layout, limits: SizeRuleLimits
) -> tuple[SizeRule | None, int]:
    """Return the size rule of a gang of one class.

    Args:
        views: one per GPU model if the gang must use one model; the model that needs the narrowest spread decides.
        query: the members to place, in units: a unit is a member, or a segment of members that must share a leaf.
        layout: the fabric.
        limits: limits per leaf.

    Returns:
        The rule, None if not even an empty cluster could hold the gang; and the units that an empty cluster holds.
    """
    total, segment = query.total_units, query.segment
    fits_if_empty = [leaf_fits(view, layout, limits, empty=True, segment=segment) for view in views]
    if query.within:
        fits_if_empty = [fits * named_at(layout, query.within) for fits in fits_if_empty]

    def needed(number: int, unlabelled: int) -> tuple[int, int] | None:
        fits = fits_if_empty[number] if unlabelled else fits_if_empty[number] * layout.aligned
        return spread_needed(fits, layout, total, query.within, query.bounds)

    rule = narrowest_rule(views, layout, total * segment, needed)
    return rule, max((int(fits.sum()) for fits in fits_if_empty), default=0)


def narrowest_rule(
    views: Sequence[ClassView], layout: Layout, members: int, needed: Callable[[int, int], tuple[int, int] | None]
) -> SizeRule | None:
    """Return the rule of the view that needs the narrowest spread, on labelled leaves if possible; None without any.

    Args:
        views: one per GPU model if the gang must use one model.
        layout: the fabric.
        members: members of the whole gang.
        needed: returns depth and number of leaves, given the index of a view, and 1 if unlabelled leaves count as well.
    """
    best: tuple[int, int, int, int] | None = None
    for number, view in enumerate(views):
        for unlabelled in (0, 1):
            spread = needed(number, unlabelled)
            if spread is not None:
                depth, leaves = spread
                candidate = (unlabelled, -depth, leaves, -(-members // max(1, int(view.empty_fit.max()))))
                best = candidate if best is None else min(best, candidate)
                break
    return None if best is None else make_rule(layout, -best[1], best[2], best[3])


def make_rule(layout: Layout, depth: int, leaves: int, nodes: int) -> SizeRule:
    """Return a rule with the name of its domain: the leaf itself for a gang that fits one leaf."""
    if leaves == 1:
        name = layout.levels[-1] if layout.levels else "cluster"
    else:
        name = layout.levels[depth - 1] if depth else "cluster"
    return SizeRule(nodes=nodes, leaves=leaves, depth=depth, domain=name)


def domain_depth(layout: Layout, rule: SizeRule) -> int:
    """Return the depth of the domains of which one must hold the gang: leaves if the rule allows one leaf."""
    return layout.depth if rule.leaves == 1 else rule.depth


def in_words(level: str, layout: Layout) -> str:
    """Return the text for a domain of the innermost level of a fabric."""
    return f"{level} inside one {layout.cut}" if layout.cut else level


def too_large_within(query: PlacementQuery, layout: Layout) -> str:
    """Return the reason for a gang that the cluster could hold, but no domain of its required level could."""
    segments = f" in segments that must each share one {query.segments.level}" if layout.cut else ""
    return (
        f"no {query.level} could hold the gang's {query.total} pods{segments} even if it were empty, and"
        f" {query.because} asks for one"
    )


def are_unlabelled(views: Sequence[ClassView], layout: Layout, within: int) -> bool:
    """Return whether nodes could hold a pod if they were empty, but none of them has a label at a depth."""
    rows = np.flatnonzero(np.any([view.empty_fit > 0 for view in views], axis=0))
    leaves = layout.leaf_of_row[rows]
    leaves = leaves[leaves >= 0]
    return bool(len(leaves)) and not named_at(layout, within)[leaves].any()


def only_unlabelled(query: PlacementQuery) -> str:
    """Return the reason for a gang of which only nodes without a label of its required level could hold a pod."""
    return (
        f"the nodes that could hold a pod of the gang have no label for {query.level}, and {query.because} asks for one"
    )


def too_large(query: PlacementQuery, capacity: int, limits: SizeRuleLimits, layout: Layout) -> str:
    """Return the reason for a workload that not even an empty cluster could hold."""
    gpus = query.groups[0][0].gpus
    if query.total == 1:
        return "no matching node could hold this pod even if it were empty"
    if gpus > limits.max_gpus_per_leaf > 0:
        return f"one pod of the gang asks for {gpus} GPUs, and maxGPUsPerLeaf is {limits.max_gpus_per_leaf}"
    if capacity == 0 and query.segment > 1:
        return f"no {in_words(query.segments.level, layout)} holds a segment of {query.segment} pods even when empty"
    if capacity == 0:
        return f"no matching node could hold one of the gang's {query.total} pods even if it were empty"
    capacity *= query.segment
    detail = f"matching nodes of one GPU model hold {capacity} of {query.total} pods even when empty"
    if capacity >= query.total:
        detail = "no single domain holds it even when empty"
    return f"the gang is larger than the cluster: {detail}{limits.within}"
