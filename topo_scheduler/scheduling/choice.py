"""Which leaves a workload goes to: every window of neighbouring leaves of every domain is looked at.

The order in which they are preferred stands in docs/explanation/placement.md. All numbers are in units: a member, or a
segment of members that must share a leaf.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.kernels.windows import choose_leaves, narrowest_windows, score_windows
from topo_scheduler.scheduling.ask import Ask
from topo_scheduler.scheduling.leaf_facts import leaf_facts
from topo_scheduler.scheduling.site import Site
from topo_scheduler.scheduling.size_rule import named_at, spread_needed
from topo_scheduler.scheduling.views import ClassView
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64


@dataclass(frozen=True, slots=True)
class Ground:
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


@dataclass(frozen=True, slots=True)
class Window:
    """Leaves that hold the gang, and how they compare: lower ``order`` is better."""

    order: tuple[int, ...]
    view: ClassView
    leaves: Int64
    fit: Int64
    fits: Int64
    score: ScoreParts
    candidates: int


def best_window(
    site: Site, views: Sequence[ClassView], ask: Ask, layout: Layout, rule: SizeRule, now: float
) -> Window | None:
    """Return the best window of all views, None where none holds the workload."""
    found = [
        window
        for number, view in enumerate(views)
        if (window := _best_of(site, number, view, ask, layout, rule, now)) is not None
    ]
    return min(found, key=lambda window: window.order) if found else None


def _best_of(
    site: Site, number: int, view: ClassView, ask: Ask, layout: Layout, rule: SizeRule, now: float
) -> Window | None:
    """Return the best window on the nodes of one view: on those the class likes best, or on all of them."""
    grounds = [
        Ground(number, view, fit, site.leaf_fits(view, ask, layout, fit), modest, 0)
        for modest, fit in enumerate(_liked(view, ask.within_links(view.fit)))
    ]
    if ask.within:
        named = named_at(layout, ask.within)
        grounds = [replace(ground, fits=ground.fits * named) for ground in grounds]
    # Alone, a pod goes where it likes to be, wherever that hangs.
    for alike in [grounds] if ask.gang else [[ground] for ground in grounds]:
        for unlabelled, counted in ((0, layout.aligned), (1, 1)):
            tried = [replace(ground, fits=ground.fits * counted, unlabelled=unlabelled) for ground in alike]
            windows = [found for ground in tried if (found := _window(site, ground, ask, layout, rule, now))]
            if windows:
                return min(windows, key=lambda window: window.order)
    return None


def _apart(ask: Ask, layout: Layout, fits: Int64) -> Int64:
    """Keep to the leaves with the fewest siblings of a pod that is placed alone."""
    if ask.gang or not ask.siblings or not (open_ := fits >= ask.members).any():
        return fits
    leaves = layout.leaf_of_row[np.asarray(ask.siblings, np.int64)]
    siblings = np.bincount(leaves[leaves >= 0], minlength=len(fits))
    return np.where(siblings == siblings[open_].min(), fits, 0)


def _window(site: Site, ground: Ground, ask: Ask, layout: Layout, rule: SizeRule, now: float) -> Window | None:
    view, fits = ground.view, _apart(ask, layout, ground.fits)
    depth, leaves = rule.depth, rule.leaves
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
    best, parts, added = _score(site, ground, ask, layout, (depth, leaves, rule), fits, first, last, count, now)
    chosen = np.empty(leaves + 2, np.int64)
    used = choose_leaves(fits, int(first[best]), int(last[best]), leaves, ask.units, chosen)
    availability, alignment, utilization, history, total = parts[best, :5].tolist()
    score = ScoreParts(availability, alignment, utilization, history, total, added)
    load = int(parts[best, 5]) if ask.latency else 0
    width = int(last[best] - first[best])
    place = (ground.unlabelled, -depth, leaves, ground.modest, width, load, -score.total, ground.number)
    return Window(place, view, chosen[:used].copy(), ground.fit, fits, score, count)


def _scored(site: Site, layout: Layout, first: Int64, last: Int64, count: int) -> int:
    """Return how many of the first windows are to be scored."""
    if not site.policy.most_scored:
        return count
    nodes = np.cumsum(layout.offsets[last[:count] + 1] - layout.offsets[first[:count]])
    return max(1, int(np.searchsorted(nodes, site.policy.most_scored, side="right")))


def _score(
    site: Site,
    ground: Ground,
    ask: Ask,
    layout: Layout,
    spread: tuple[int, int, SizeRule],
    fits: Int64,
    first: Int64,
    last: Int64,
    count: int,
    now: float,
) -> tuple[int, Int64, tuple[tuple[str, int], ...]]:
    depth, leaves, rule = spread
    view, column = ground.view, ground.view.cls.scarce
    totals = site.totals(column, layout)
    capacity, used = totals.domains(layout, depth)
    aligned = alignment_of(rule, depth, leaves)
    across = depth if leaves > 1 else None
    facts = leaf_facts(site, ask, view, ground.fit, layout, totals, aligned, now, last[:count], across)
    parts = np.empty((count, 6), np.int64)
    whole = max(1, int(totals.capacity.sum()))
    best = score_windows(
        first[:count],
        last[:count],
        count,
        fits,
        leaves,
        ask.units,
        view.cls.amount(column) * ask.segment,
        facts,
        capacity,
        used,
        site.policy.weights,
        int(site.extensions.strategy(ask.strategy).prefers),
        int(ask.latency),
        1000 * int(totals.used.sum()) // whole,
        parts,
    )
    if not site.extensions.added_scores:
        return int(best), parts, ()
    # Not above: only those who have such plugins wait until it is compiled.
    from topo_scheduler.kernels.added import weigh_added

    added = np.empty((count, len(facts) - 5), np.int64)
    weights = np.concatenate((site.policy.weights, site.policy.added))
    latency = int(ask.latency)
    best = weigh_added(
        first[:count], last[:count], count, fits, leaves, ask.units, facts[5:], weights, latency, parts, added
    )
    names = (score.name for score in site.extensions.added_scores)
    return int(best), parts, tuple(zip(names, added[best].tolist(), strict=True))


def _liked(view: ClassView, fit: Int64) -> list[Int64]:
    """Return how many members each row takes: where the class likes best to be, if it minds, then anywhere."""
    if not view.choosy or not (room := fit > 0).any():
        return [fit]
    best = view.liking == view.liking[room].max()
    return [np.where(best, fit, 0), fit]


def alignment_of(rule: SizeRule, depth: int, leaves: int) -> int:
    """Return the alignment in thousandths: 1000 at the rule's level and number of leaves, less beyond."""
    return (1000 * rule.leaves // max(leaves, 1)) >> max(0, rule.depth - depth)
