"""The size rule: the fewest leaves that could hold a gang, and the smallest domain they must share.

Computed on nodes that are ready and match, as if they were empty (less what DaemonSets hold, which never leaves): it
says what is worth waiting for. Leaves without a full path count only for gangs that no labelled leaves could hold.
"""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.kernels.fit import fewest_leaves, fit_leaves
from topo_scheduler.scheduling.placing.ask import ANYWHERE, PlacementQuery, SizeRuleLimits, SpreadLimits
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64


def leaf_fits(
    view: ClassView,
    layout: Layout,
    limits: SizeRuleLimits,
    *,
    empty: bool = False,
    fit: Int64 | None = None,
    segment: int = 1,
) -> Int64:
    """Return how many units each leaf holds (int64[leaves]): now, if it were empty, or with so many on each row.

    A unit is so many members that must share a leaf.
    """
    out = np.zeros(len(layout.paths), np.int64)
    gpus = view.cls.gpus
    most = limits.members_per_leaf(gpus)
    if limits.max_gpus_per_leaf and gpus and most == 0:
        return out
    if fit is None:
        fit = view.empty_fit if empty else view.fit
    if layout.inner is not None:
        held = leaf_fits(view, layout.inner, limits, fit=fit)
        return np.add.reduceat(held, layout.blocks[:-1]) // segment
    every = np.arange(len(out), dtype=np.int64)
    fit_leaves(fit, layout.order, layout.offsets, every, limits.max_nodes_per_leaf, most, out)
    return out if segment == 1 else out // segment


def named_at(layout: Layout, depth: int) -> Int64:
    """Return 1 for each leaf that lies in a domain with a name at a depth (int64[leaves]).

    Nodes that do not tell a level share a domain of that level for want of a better one, and nothing else.
    """
    named = (path[depth - 1] != UNLABELLED for path in layout.paths)
    return np.fromiter(named, np.int64, len(layout.paths)) if depth else np.ones(len(layout.paths), np.int64)


def spread_needed(
    fits: Int64, layout: Layout, members: int, within: int = 0, bounds: SpreadLimits = ANYWHERE
) -> tuple[int, int] | None:
    """Return (depth, leaves): the deepest level at which one domain holds the members, and in how few leaves.

    Depth counts from the outside; the innermost one asked is that of the leaves' parents. The domain lies ``within``
    one of that depth. None where nothing within the bounds holds them.
    """
    if within >= layout.depth:
        return (layout.depth - 1, 1) if len(fits) and int(fits.max()) >= members else None
    for depth in range(layout.depth - 1, max(within, bounds.depth) - 1, -1):
        out = np.empty(len(layout.domains[depth]) - 1, np.int64)
        fewest_leaves(fits, layout.domains[depth], members, out)
        found = out[out > 0]
        if bounds.leaves:
            found = found[found <= bounds.leaves]
        if len(found):
            return depth, int(found.min())
    return None


def size_rule(
    views: Sequence[ClassView],
    layout: Layout,
    limits: SizeRuleLimits,
    total: int,
    within: int = 0,
    bounds: SpreadLimits = ANYWHERE,
    segment: int = 1,
) -> tuple[SizeRule | None, int]:
    """Return what the rule asks of a gang of ``total`` units of one class.

    Args:
        views: one a GPU model when the gang must keep to one; the least demanding model decides.
        layout: the fabric.
        limits: limits in one leaf.
        total: units of the whole gang.
        within: depth of a domain that must not be left, 0 for none.
        bounds: of placement rules, within which the rule must lie.
        segment: members of a unit, which must share a leaf.

    Returns:
        The rule, or None when the gang could not be held so even by an empty cluster; and how many that cluster could
        hold.
    """
    best: tuple[int, int, int, int] | None = None
    most = 0
    for view in views:
        empty = leaf_fits(view, layout, limits, empty=True, segment=segment)
        if within:
            empty *= named_at(layout, within)
        most = max(most, int(empty.sum()))
        for unlabelled in (0, 1):
            fits = empty if unlabelled else empty * layout.aligned
            needed = spread_needed(fits, layout, total, within, bounds)
            if needed is not None:
                depth, leaves = needed
                nodes = -(-total * segment // max(1, int(view.empty_fit.max())))
                candidate = (unlabelled, -depth, leaves, nodes)
                best = candidate if best is None else min(best, candidate)
                break
    if best is None:
        return None, most
    _, negative_depth, leaves, nodes = best
    return make_rule(layout, -negative_depth, leaves, nodes), most


def make_rule(layout: Layout, depth: int, leaves: int, nodes: int) -> SizeRule:
    """Return a rule with its domain's name: the leaf itself for a gang that one leaf holds."""
    if leaves == 1:
        name = layout.levels[-1] if layout.levels else "cluster"
    else:
        name = layout.levels[depth - 1] if depth else "cluster"
    return SizeRule(nodes=nodes, leaves=leaves, depth=depth, domain=name)


def in_words(level: str, layout: Layout) -> str:
    """Return what a domain of the innermost level of a fabric is called."""
    return f"{level} inside one {layout.cut}" if layout.cut else level


def too_large_within(ask: PlacementQuery, layout: Layout) -> str:
    """Return the reason for a gang that the cluster could hold, but none of the domains it must share."""
    segments = f" in segments that must each share one {ask.segments.level}" if layout.cut else ""
    return (
        f"no {ask.level} could hold the gang's {ask.total} pods{segments} even if it were empty, and {ask.because} asks"
        " for one"
    )


def too_large(ask: PlacementQuery, most: int, limits: SizeRuleLimits, layout: Layout) -> str:
    """Return the reason for a workload that not even an empty cluster could hold."""
    gpus = ask.groups[0][0].gpus
    if ask.total == 1:
        return "no matching node could hold this pod even if it were empty"
    if gpus > limits.max_gpus_per_leaf > 0:
        return f"one pod of the gang asks for {gpus} GPUs, and maxGPUsPerLeaf is {limits.max_gpus_per_leaf}"
    if most == 0 and ask.segment > 1:
        return f"no {in_words(ask.segments.level, layout)} holds a segment of {ask.segment} pods even when empty"
    if most == 0:
        return f"no matching node could hold one of the gang's {ask.total} pods even if it were empty"
    most *= ask.segment
    held = f"matching nodes of one GPU model hold {most} of {ask.total} pods even when empty"
    if most >= ask.total:
        held = "no single domain holds it even when empty"
    return f"the gang is larger than the cluster: {held}{limits.within}"
