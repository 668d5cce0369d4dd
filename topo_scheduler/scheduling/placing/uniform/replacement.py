"""Replacement of lost members of a gang, next to its running members."""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import (
    ANYWHERE,
    Placement,
    PlacementFailure,
    PlacementQuery,
    SpreadLimits,
)
from topo_scheduler.scheduling.placing.model.size_rule import leaf_fits, named_at
from topo_scheduler.scheduling.placing.scoring.leaf_facts import leaf_facts
from topo_scheduler.scheduling.placing.uniform.node_assignment import seat
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout


def plan_repair(task: PlanningTask, rule: SizeRule, views: Sequence[ClassView]) -> Placement | PlacementFailure:
    """Place missing members in the leaves where the gang runs, then in the nearest leaves that the size rule allows.

    If the running members break the rule already, because fabric or limits changed, any nearest leaves are allowed.
    """
    query, layout = task.query, task.layout
    home = sorted(layout.leaves_of(query.running))
    for view in views:
        fits, fit = fits_beside(task, view)
        for leaves in _choices(query, layout, rule, fits, home):
            rows = seat(task, view, np.array(leaves, np.int64), fits, fit)
            if rows is not None:
                used = sorted({*home, *layout.leaves_of(rows)})
                score = repair_score(task, view, used, rule)
                return Placement([rows], used, rule, score, len(leaves))
    return PlacementFailure("", rule)


def fits_beside(task: PlanningTask, view: ClassView) -> tuple[Int64, Int64]:
    """Return the additional members that each leaf and each row holds; running members count against the limits."""
    query, layout, limits = task.query, task.layout, task.limits
    fit = query.within_links(view.fit)
    fits = leaf_fits(view, layout, limits, fit=fit)
    running: dict[int, list[int]] = {}
    for row in query.running:
        running.setdefault(int(layout.leaf_of_row[row]), []).append(row)
    max_members = limits.members_per_leaf(view.cls.gpus)
    if limits.max_nodes_per_leaf:
        fit = fit.copy()
    for leaf, rows in running.items():
        if leaf < 0:
            continue
        if limits.max_nodes_per_leaf:
            # Of the nodes that the gang does not use yet, open only the roomiest, up to the rest of the limit.
            leaf_rows = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
            spare = max(0, limits.max_nodes_per_leaf - len(set(rows)))
            unused = [row for row in leaf_rows.tolist() if row not in rows]
            unused.sort(key=lambda row: -int(fit[row]))
            fit[unused[spare:]] = 0
            fits[leaf] = min(int(fits[leaf]), int(np.sort(fit[leaf_rows])[-limits.max_nodes_per_leaf :].sum()))
        if max_members:
            fits[leaf] = min(fits[leaf], max(0, max_members - len(rows)))
    return fits, fit


def _choices(query: PlacementQuery, layout: Layout, rule: SizeRule, fits: Int64, home: list[int]) -> list[list[int]]:
    home_with_room = [leaf for leaf in home if fits[leaf] > 0]
    room_at_home = int(sum(fits[leaf] for leaf in home_with_room))
    if room_at_home >= query.members:
        # Use the fewest leaves where the gang runs, those with most room first.
        chosen: list[int] = []
        for leaf in sorted(home_with_room, key=lambda leaf: (-int(fits[leaf]), leaf)):
            chosen.append(leaf)
            if sum(int(fits[chosen_leaf]) for chosen_leaf in chosen) >= query.members:
                return [sorted(chosen)]
    near, extra = reachable(query, layout, rule, home)
    further = [leaf for leaf in near if leaf not in home and fits[leaf] > 0]
    further.sort(key=lambda leaf: (*distance(layout, leaf, home), -int(fits[leaf]), leaf))
    missing = query.members - room_at_home
    for count in range(1, min(extra, len(further)) + 1):
        if count == 1:
            picked = next(([leaf] for leaf in further if fits[leaf] >= missing), [])
        else:
            picked = sorted(further, key=lambda leaf: -int(fits[leaf]))[:count]
        if picked and sum(int(fits[leaf]) for leaf in picked) >= missing:
            return [sorted([*home_with_room, *picked])]
    return []


def reachable(query: PlacementQuery, layout: Layout, rule: SizeRule, home: list[int]) -> tuple[list[int], int]:
    """Return the leaves that missing members may use, and how many leaves the gang may use beyond its own."""
    domains = {layout.domain_of_leaf(rule.depth, leaf) for leaf in home}
    breaks_rule = len(domains) > 1 or len(home) > rule.leaves or not home
    any_domain = breaks_rule or query.enforcement is Enforcement.PREFERRED
    if any_domain and home and query.bounds != ANYWHERE and _within(layout, home, query.bounds):
        first, last = _domain(layout, home, query.bounds.depth)
        near, extra = list(range(first, last)), (query.bounds.leaves or len(layout.paths)) - len(home)
    elif any_domain:
        near, extra = list(range(len(layout.paths))), len(layout.paths)
    else:
        low, high = layout.domains[rule.depth][domains.pop() :][:2].tolist()
        near, extra = list(range(low, high)), rule.leaves - len(home)
    return _inside(query, layout, near, home), extra


def _inside(query: PlacementQuery, layout: Layout, near: list[int], home: list[int]) -> list[int]:
    """Return the leaves in the domain that the gang must share; all leaves if running members are in several."""
    domains = {layout.domain_of_leaf(query.within, leaf) for leaf in home}
    if not query.within or len(domains) > 1:
        return near
    if not domains:
        return [leaf for leaf, named in zip(near, named_at(layout, query.within)[near], strict=True) if named]
    low, high = layout.domains[query.within][domains.pop() :][:2].tolist()
    return [leaf for leaf in near if low <= leaf < high]


def _within(layout: Layout, home: list[int], bounds: SpreadLimits) -> bool:
    """Return whether the running members are within the bounds."""
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


def repair_score(task: PlanningTask, view: ClassView, leaves: list[int], rule: SizeRule) -> ScoreParts:
    """Return the score of the leaves that the whole gang uses."""
    context = task.context
    totals = context.totals(view.cls.scarce, task.layout)
    index = np.array(leaves, np.int64)
    aligned = 1000 * rule.leaves // max(rule.leaves, len(leaves))
    facts = leaf_facts(task, view, view.fit, totals, aligned, index)
    capacity = max(1, int(totals.capacity[index].sum()))
    used = int(totals.used[index].sum()) + task.query.members * view.cls.amount(view.cls.scarce)
    parts = (
        max(0, 1000 * (capacity - used) // capacity),
        int(facts[2, index].mean()),
        min(1000, 1000 * used // capacity),
        int(facts[3, index].mean()),
    )
    names = [score.name for score in context.extensions.added_scores]
    added = [int(part) for part in facts[5:, index].mean(axis=1)] if names else []
    weights = [*context.policy.weights.tolist(), *context.policy.added.tolist()]
    total = sum(weight * part for weight, part in zip(weights, (*parts, *added), strict=True)) // max(1, sum(weights))
    return ScoreParts(*parts, total, tuple(zip(names, added, strict=True)))
