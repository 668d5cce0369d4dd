"""Re-placing lost members of a gang next to those that run."""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.ask import ANYWHERE, Placement, PlacementFailure, PlacementQuery, SpreadLimits
from topo_scheduler.scheduling.placing.leaf_facts import leaf_facts
from topo_scheduler.scheduling.placing.seats import seat
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.size_rule import leaf_fits, named_at
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64


def plan_repair(
    site: PlanningContext, ask: PlacementQuery, layout: Layout, rule: SizeRule, views: Sequence[ClassView], now: float
) -> Placement | PlacementFailure:
    """Place missing members in the leaves where the gang runs, then in the nearest ones the size rule still allows.

    Where the running members break the rule already (the fabric or the limits changed under them), nearest is all
    that can be asked.
    """
    home = sorted(layout.leaves_of(ask.running))
    for view in views:
        fits, fit = fits_beside(site, ask, layout, view)
        for leaves in _choices(ask, layout, rule, fits, home):
            chosen = np.array(leaves, np.int64)
            rows = seat(site, ask, view, chosen, fits, layout, fit)
            if rows is not None:
                used = sorted({*home, *layout.leaves_of(rows)})
                score = repair_score(site, ask, layout, view, used, rule, now)
                return Placement([rows], used, rule, score, len(leaves))
    return PlacementFailure("", rule)


def fits_beside(site: PlanningContext, ask: PlacementQuery, layout: Layout, view: ClassView) -> tuple[Int64, Int64]:
    """Return how many more members each leaf and each row holds, with what the gang uses counted against the limits."""
    limits = site.limits_for(ask)
    fit = ask.within_links(view.fit)
    fits = leaf_fits(view, layout, limits, fit=fit)
    running: dict[int, list[int]] = {}
    for row in ask.running:
        running.setdefault(int(layout.leaf_of_row[row]), []).append(row)
    most = limits.members_per_leaf(view.cls.gpus)
    if limits.max_nodes_per_leaf:
        fit = fit.copy()
    for leaf, rows in running.items():
        if leaf < 0:
            continue
        if limits.max_nodes_per_leaf:
            # Of the nodes that the gang does not use yet only the roomiest may be opened, as many as are left to it.
            inside = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
            spare = max(0, limits.max_nodes_per_leaf - len(set(rows)))
            others = [row for row in inside.tolist() if row not in rows]
            others.sort(key=lambda row: -int(fit[row]))
            fit[others[spare:]] = 0
            fits[leaf] = min(int(fits[leaf]), int(np.sort(fit[inside])[-limits.max_nodes_per_leaf :].sum()))
        if most:
            fits[leaf] = min(fits[leaf], max(0, most - len(rows)))
    return fits, fit


def _choices(ask: PlacementQuery, layout: Layout, rule: SizeRule, fits: Int64, home: list[int]) -> list[list[int]]:
    at_home = [leaf for leaf in home if fits[leaf] > 0]
    held = int(sum(fits[leaf] for leaf in at_home))
    if held >= ask.members:
        # The fewest of the gang's own leaves, those with most room first.
        chosen: list[int] = []
        for leaf in sorted(at_home, key=lambda leaf: (-int(fits[leaf]), leaf)):
            chosen.append(leaf)
            if sum(int(fits[at]) for at in chosen) >= ask.members:
                return [sorted(chosen)]
    near, extra = reachable(ask, layout, rule, home)
    others = [leaf for leaf in near if leaf not in home and fits[leaf] > 0]
    others.sort(key=lambda leaf: (*distance(layout, leaf, home), -int(fits[leaf]), leaf))
    missing = ask.members - held
    for count in range(1, min(extra, len(others)) + 1):
        if count == 1:
            picked = next(([leaf] for leaf in others if fits[leaf] >= missing), [])
        else:
            picked = sorted(others, key=lambda leaf: -int(fits[leaf]))[:count]
        if picked and sum(int(fits[leaf]) for leaf in picked) >= missing:
            return [sorted([*at_home, *picked])]
    return []


def reachable(ask: PlacementQuery, layout: Layout, rule: SizeRule, home: list[int]) -> tuple[list[int], int]:
    """Return the leaves that members which are missing may go to, and how many beyond those where the gang runs."""
    domains = {layout.domain_of_leaf(rule.depth, leaf) for leaf in home}
    broken = len(domains) > 1 or len(home) > rule.leaves or not home
    free = broken or ask.enforcement is Enforcement.PREFERRED
    if free and home and ask.bounds != ANYWHERE and _within(layout, home, ask.bounds):
        first, last = _domain(layout, home, ask.bounds.depth)
        near, extra = list(range(first, last)), (ask.bounds.leaves or len(layout.paths)) - len(home)
    elif free:
        near, extra = list(range(len(layout.paths))), len(layout.paths)
    else:
        low, high = layout.domains[rule.depth][domains.pop() :][:2].tolist()
        near, extra = list(range(low, high)), rule.leaves - len(home)
    return _inside(ask, layout, near, home), extra


def _inside(ask: PlacementQuery, layout: Layout, near: list[int], home: list[int]) -> list[int]:
    """Keep to the domain that all must share; not where those that run left it before."""
    domains = {layout.domain_of_leaf(ask.within, leaf) for leaf in home}
    if not ask.within or len(domains) > 1:
        return near
    if not domains:
        return [leaf for leaf, named in zip(near, named_at(layout, ask.within)[near], strict=True) if named]
    low, high = layout.domains[ask.within][domains.pop() :][:2].tolist()
    return [leaf for leaf in near if low <= leaf < high]


def _within(layout: Layout, home: list[int], bounds: SpreadLimits) -> bool:
    """Whether what runs keeps to the bounds; where it does not, nearest is all that can be asked."""
    shared = len({layout.domain_of_leaf(bounds.depth, leaf) for leaf in home}) == 1
    return shared and (not bounds.leaves or len(home) <= bounds.leaves)


def _domain(layout: Layout, home: list[int], depth: int) -> tuple[int, int]:
    first, last = layout.domains[depth][layout.domain_of_leaf(depth, home[0]) :][:2].tolist()
    return first, last


def distance(layout: Layout, leaf: int, home: list[int]) -> tuple[int, int]:
    """Return the levels up to the nearest common domain, then the leaves between."""
    if not home:
        return 0, 0
    return min(
        (
            next(
                layout.depth - depth
                for depth in range(layout.depth, -1, -1)
                if layout.domain_of_leaf(depth, leaf) == layout.domain_of_leaf(depth, other)
            ),
            abs(leaf - other),
        )
        for other in home
    )


def repair_score(
    site: PlanningContext,
    ask: PlacementQuery,
    layout: Layout,
    view: ClassView,
    leaves: list[int],
    rule: SizeRule,
    now: float,
) -> ScoreParts:
    """Return the score of the leaves that the whole gang uses."""
    totals = site.totals(view.cls.scarce, layout)
    index = np.array(leaves, np.int64)
    aligned = 1000 * rule.leaves // max(rule.leaves, len(leaves))
    facts = leaf_facts(site, ask, view, view.fit, layout, totals, aligned, now, index)
    capacity = max(1, int(totals.capacity[index].sum()))
    used = int(totals.used[index].sum()) + ask.members * view.cls.amount(view.cls.scarce)
    parts = (
        max(0, 1000 * (capacity - used) // capacity),
        int(facts[2, index].mean()),
        min(1000, 1000 * used // capacity),
        int(facts[3, index].mean()),
    )
    names = [score.name for score in site.extensions.added_scores]
    added = [int(part) for part in facts[5:, index].mean(axis=1)] if names else []
    weights = [*site.policy.weights.tolist(), *site.policy.added.tolist()]
    total = sum(weight * part for weight, part in zip(weights, (*parts, *added), strict=True)) // max(1, sum(weights))
    return ScoreParts(*parts, total, tuple(zip(names, added, strict=True)))
