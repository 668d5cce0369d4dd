"""Which leaves a workload goes to: every window of neighbouring leaves of every domain is looked at.

The order in which they are preferred stands in docs/explanation/placement.md. All numbers are in units: a member, or a
segment of members that must share a leaf.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.kernels.fit import fewest_leaves
from topo_scheduler.kernels.windows import choose_sets, narrowest_windows
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.size_rule import named_at, spread_needed
from topo_scheduler.scheduling.placing.stranding import least_stranding
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.scheduling.placing.weighing import LOAD, Sets, Weighed, weigh
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64

MOST_SETS: Final = 4096
"""Sets of leaves scored at most beside those that hold most of their windows."""
MOST_LOOKS: Final = 65_536
"""Sets of leaves looked at at most, whether they hold the gang or not."""


class CandidateNodes(msgspec.Struct, frozen=True):
    """Nodes to look at. ``fit`` int64[rows] members a node takes, ``fits`` int64[leaves] units a leaf takes.

    ``modest`` 0 for the nodes that the class likes best, 1 for all; ``unlabelled`` 1 where those without a full path
    count.
    """

    number: int
    view: ClassView
    fit: Int64
    fits: Int64
    modest: int
    unlabelled: int


class Window(msgspec.Struct, frozen=True):
    """Leaves that hold the gang, and how they compare: lower ``order`` is better."""

    order: tuple[int, ...]
    view: ClassView
    leaves: Int64
    fit: Int64
    fits: Int64
    score: ScoreParts
    candidates: int


def best_window(
    site: PlanningContext, views: Sequence[ClassView], ask: PlacementQuery, layout: Layout, rule: SizeRule, now: float
) -> Window | None:
    """Return the best window of all views, None where none holds the workload."""
    best = _liked_best(site, views, ask)
    found = [
        window
        for number, view in enumerate(views)
        if (window := _best_of(site, number, view, best, ask, layout, rule, now)) is not None
    ]
    return min(found, key=lambda window: window.order) if found else None


def _best_of(
    site: PlanningContext,
    number: int,
    view: ClassView,
    best: Bool | None,
    ask: PlacementQuery,
    layout: Layout,
    rule: SizeRule,
    now: float,
) -> Window | None:
    """Return the best window on the nodes of one view: on those the class likes best, or on all of them."""
    named = named_at(layout, ask.within) if ask.within else 1
    fit = ask.within_links(view.fit)
    liked = [
        (modest, some, site.leaf_fits(view, ask, layout, some) * named)
        for modest, some in enumerate([fit] if best is None else [np.where(best, fit, 0), fit])
    ]
    # Alone, a pod goes where it likes to be, wherever that hangs.
    for alike in [liked] if ask.gang else [[one] for one in liked]:
        for unlabelled, counted in ((0, layout.aligned), (1, 1)):
            tried = [
                CandidateNodes(number, view, fit, fits * counted, modest, unlabelled) for modest, fit, fits in alike
            ]
            windows = [found for ground in tried if (found := _window(site, ground, ask, layout, rule, now))]
            if windows:
                return min(windows, key=lambda window: window.order)
    return None


def _apart(ask: PlacementQuery, layout: Layout, fits: Int64) -> Int64:
    """Keep to the leaves with the fewest siblings of a pod that is placed alone."""
    if ask.gang or not ask.siblings or not (open_ := fits >= ask.members).any():
        return fits
    leaves = layout.leaf_of_row[np.asarray(ask.siblings, np.int64)]
    siblings = np.bincount(leaves[leaves >= 0], minlength=len(fits))
    return np.where(siblings == siblings[open_].min(), fits, 0)


def _window(
    site: PlanningContext, ground: CandidateNodes, ask: PlacementQuery, layout: Layout, rule: SizeRule, now: float
) -> Window | None:
    fits = _apart(ask, layout, ground.fits)
    depth, leaves = rule.depth, rule.leaves
    if ground.unlabelled:
        # The rule is that of labelled leaves; with the others it may be fewer.
        leaves = _fewest(fits, layout, depth, leaves, ask)
    first = np.empty(len(fits), np.int64)
    last = np.empty(len(fits), np.int64)
    count = narrowest_windows(fits, layout.domains[depth], leaves, ask.units, first, last)
    if count == 0 and ask.enforcement is Enforcement.PREFERRED:
        needed = spread_needed(fits, layout, ask.units, ask.within, ask.bounds)
        if needed is not None:
            depth, leaves = needed
            count = narrowest_windows(fits, layout.domains[depth], leaves, ask.units, first, last)
    if count == 0:
        return None
    count = _scored(site, layout, first, last, count)
    listed, sizes, listed_count = _sets(fits, first, last, count, leaves, ask.units)
    sets = Sets(listed, sizes, listed_count, depth, leaves, rule, last[:count])
    best, weighed = _best_set(site, ground, ask, layout, sets, fits, now)
    score = weighed.score(best)
    chosen = listed[best, : sizes[best]].copy()
    width = int(chosen[-1] - chosen[0])
    load = int(weighed.parts[best, LOAD]) if ask.latency else 0
    place = (ground.unlabelled, -depth, leaves, ground.modest, width, load, -score.total, ground.number)
    return Window(place, ground.view, chosen, ground.fit, fits, score, count)


def _fewest(fits: Int64, layout: Layout, depth: int, leaves: int, ask: PlacementQuery) -> int:
    """Return in how few leaves of one domain the gang fits now, if that is fewer."""
    needed = np.zeros(len(layout.domains[depth]) - 1, np.int64)
    fewest_leaves(fits, layout.domains[depth], ask.units, needed)
    found = needed[needed > 0]
    return min(leaves, int(found.min())) if len(found) else leaves


def _sets(fits: Int64, first: Int64, last: Int64, count: int, leaves: int, units: int) -> tuple[Int64, Int64, int]:
    """Return the sets of leaves to choose from: that which holds most of each window, then all others."""
    width = int(last[0] - first[0]) + 1
    wide = width > leaves > 2
    sets = np.empty((count + (MOST_SETS if wide else 0), leaves + 2), np.int64)
    sizes = np.empty(len(sets), np.int64)
    choose_sets(fits, first, last, count, leaves, units, sets, sizes)
    if not wide or int(sizes[:count].min()) < leaves:
        return sets, sizes, count
    # Not above: most clusters never come to this.
    from topo_scheduler.kernels.sets import other_sets

    return sets, sizes, int(other_sets(fits, count, width, units, MOST_LOOKS, sets, sizes))


def _scored(site: PlanningContext, layout: Layout, first: Int64, last: Int64, count: int) -> int:
    """Return how many of the first windows are to be scored."""
    if not site.policy.most_scored:
        return count
    nodes = np.cumsum(layout.offsets[last[:count] + 1] - layout.offsets[first[:count]])
    return max(1, int(np.searchsorted(nodes, site.policy.most_scored, side="right")))


def _best_set(
    site: PlanningContext,
    ground: CandidateNodes,
    ask: PlacementQuery,
    layout: Layout,
    sets: Sets,
    fits: Int64,
    now: float,
) -> tuple[int, Weighed]:
    """Return the best of some sets of leaves: by their score, then by what they leave for others."""
    view = ground.view
    column = view.cls.scarce
    amount = view.cls.amount(column) * ask.segment
    weighed = weigh(site, ask, layout, view, ground.fit, sets, ask.units * amount, now)
    if not ask.gang or sets.count == 1 or not (usual := site.history.gangs.sizes(column)):
        return weighed.best, weighed
    ties = weighed.ties(weighed.best, latency=ask.latency)
    if len(ties) == 1:
        return weighed.best, weighed
    strategy = site.extensions.strategy(ask.strategy)
    best = least_stranding(
        ties,
        sets.leaves,
        sets.sizes,
        fits,
        usual,
        weighed.totals,
        weighed.outside,
        ask.units * amount,
        lambda leaves: amount * strategy.leaves(np.ascontiguousarray(fits[leaves]), ask.units),
    )
    return best, weighed


def _liked_best(site: PlanningContext, views: Sequence[ClassView], ask: PlacementQuery) -> Bool | None:
    """Return where the class likes best to be of all nodes that have room (bool[rows]), whatever their GPU model.

    None where it does not mind, or none has room.
    """
    whole = views[0] if len(views) == 1 else site.views.get(views[0].cls)
    if not whole.choosy:
        return None
    room = np.logical_or.reduce([ask.within_links(view.fit) > 0 for view in views])
    if not room.any():
        return None
    best: Bool = whole.liking == whole.liking[room].max()
    return best
