"""Gangs whose members look at each other, or ask for different things and look at other pods: seated one by one.

Each member is tried with those before it counted as if they ran, so what is found holds in the order in which it was
found. Who can't be placed yet (a worker that wants to be near the launcher) is tried again after the others. Members
go where the gang is already: same leaf, then the nearest one, same node, then the node they prefer.

How they are searched for is told in `tied_search`. The size rule is what the same search finds in an empty cluster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.kernels.fit import fit_rows
from topo_scheduler.scheduling.placing.ask import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.carried import carried, links_key
from topo_scheduler.scheduling.placing.equals import best_of_equals
from topo_scheduler.scheduling.placing.mixed import common_score, labelled_first, variants
from topo_scheduler.scheduling.placing.packer import Found as Placed
from topo_scheduler.scheduling.placing.seating import SearchState, Step, spread_over_nodes
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.size_rule import in_words, make_rule
from topo_scheduler.scheduling.placing.tied_search import ConstrainedSearch, Found, ceilings_of, look
from topo_scheduler.scheduling.placing.validation import holds_in_turn
from topo_scheduler.scheduling.rules.neighbours import FilterContext, means
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.operation_budget import charge

MOST_LOOKED_AT: Final = 64
"""Domains of which it is told how many members they hold with what ties these."""


def is_tied(groups: Sequence[tuple[PodClass, int]]) -> bool:
    """Return whether the members of a gang must be seated one by one."""
    if len(groups) > 1:
        return any(cls.constraints is not None for cls, _ in groups)
    cls, members = groups[0]
    constraints = cls.constraints
    return constraints is not None and members > 1 and constraints.mutual


def plan_tied(site: PlanningContext, ask: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
    """Place the members of a tied gang."""
    home = layout.leaves_of(ask.running)
    if home:
        rule: SizeRule | None = make_rule(layout, 0, max(1, len(layout.paths)), 1)
    else:
        rule = rule_of(site, ask, layout)
    if rule is None:
        return PlacementFailure(
            f"the gang's {ask.total} pods{_split(ask)} have {_tie(ask)}: no domain could hold them together even if it"
            " were empty"
        )
    for labelled in (False,) if home else labelled_first(layout):
        search = ConstrainedSearch(site, list(_now(site, ask, layout, labelled=labelled)), ask, layout, home)
        found = look(search, rule=rule)
        if found is None and ask.enforcement is Enforcement.PREFERRED:
            found = look(search)
        if found is not None:
            return _placed(site, ask, layout, rule, search, found, now)
    needs = f"1 {in_words(rule.domain, layout)}" if rule.leaves == 1 else f"{rule.leaves} leaves in 1 {rule.domain}"
    where = f"near the {len(ask.running)} members that run" if home else f"in {needs}"
    return PlacementFailure(f"no room {where} for {ask.members} pods{_split(ask)} that have {_tie(ask)}", rule)


def _placed(
    site: PlanningContext,
    ask: PlacementQuery,
    layout: Layout,
    rule: SizeRule,
    search: ConstrainedSearch,
    found: Found,
    now: float,
) -> Placement:
    if search.home:
        used = sorted(search.home | layout.leaves_of(row for _, row, _ in found.steps))
        score, compared = common_score(site, ask, layout, used, rule), 1
    else:
        found, score, compared = best_of_equals(site, ask, layout, search.among(found.depth, rule), found, now)
        used = sorted(layout.leaves_of(row for _, row, _ in found.steps))
    rows, seated = _in_order(site.around, ask, layout, found.steps)
    return Placement(rows, used, rule, score, compared, seated)


def _split(ask: PlacementQuery) -> str:
    return f" in segments that must each share one {ask.segments.level}" if ask.in_segments else ""


def _tie(ask: PlacementQuery) -> str:
    """Return what ties the members to each other, in words."""
    constraints = [cls.constraints for cls, _ in ask.groups if cls.constraints is not None]
    named: dict[str, list[tuple[object, ...]]] = {
        "host ports": [one.ports for one in constraints],
        "required pod affinity": [one.affinity for one in constraints],
        "required pod anti-affinity": [one.anti_affinity for one in constraints],
        "topologySpreadConstraints": [one.spread for one in constraints],
        "volume claims": [one.claims for one in constraints],
        "disks of their own": [one.disks for one in constraints],
    }
    return " and ".join(name for name, found in named.items() if any(found)) or "features they need of a node"


# ---------------------------------------------------------------- where a search looks


def _now(site: PlanningContext, ask: PlacementQuery, layout: Layout, *, labelled: bool) -> Iterator[SearchState]:
    """The cluster as it is, once a GPU model that the gang may keep to; of leaves only those with all labels."""
    nodes = site.nodes
    everything = np.arange(nodes.rows, dtype=np.int64)
    for views in variants(site, ask):
        fits = []
        for view in views:
            fit = np.zeros(nodes.rows, np.int64)
            usable = view.reachable
            if (shut := site.around.shut(view.cls, everything)) is not None:
                usable = usable & ~shut
            fit_rows(nodes.allocatable, nodes.requested, view.columns, view.amounts, usable, everything, fit)
            fits.append(_labelled(layout, ask.within_links(fit)) if labelled else ask.within_links(fit))
        ground = SearchState(
            site.around.remembering(), nodes.requested, [cls for cls, _ in ask.groups], views, fits, ask.members
        )
        yield spread_over_nodes(ground)


def _labelled(layout: Layout, fit: Int64) -> Int64:
    leaves = layout.leaf_of_row
    return np.where((leaves >= 0) & (layout.aligned[leaves] > 0), fit, 0)


def _empty(site: PlanningContext, ask: PlacementQuery, layout: Layout, *, labelled: bool) -> Iterator[SearchState]:
    """The cluster with nobody in it but what DaemonSets hold."""
    around = replace(site.around, residents=site.nobody).remembering()
    for views in variants(site, ask):
        classes = [_among_themselves(around, cls, ask) for cls, _ in ask.groups]
        fits = [ask.within_links(view.empty_fit) for view in views]
        if labelled:
            fits = [_labelled(layout, fit) for fit in fits]
        yield spread_over_nodes(SearchState(around, site.nodes.daemons, classes, views, fits, ask.members))


def _among_themselves(around: FilterContext, cls: PodClass, ask: PlacementQuery) -> PodClass:
    """Return the class without what can only be met by pods or volumes outside the gang.

    Only a pod that meets all terms of affinity counts for any of them.
    """
    constraints = cls.constraints
    if constraints is None:
        return replace(cls, repelled=frozenset())
    members = {one for profiles in ask.profiles for one in profiles if one is not None}
    charge(len(members) * len(constraints.affinity))
    met = all(means(around, term, constraints.namespace) for term in constraints.affinity) and any(
        all(term.selector.matches(one.labels) for term in constraints.affinity) for one in members
    )
    affinity = constraints.affinity if met else ()
    return replace(cls, repelled=frozenset(), constraints=replace(constraints, affinity=affinity, claims=()))


def rule_of(site: PlanningContext, ask: PlacementQuery, layout: Layout) -> SizeRule | None:
    """Return the size rule of a tied gang, None when not even an empty cluster could hold it."""
    reach = tuple(site.views.get(cls).reach_changes for cls, _ in ask.groups)
    meant = tuple(_meant(site.around, cls) for cls, _ in ask.groups)
    about = (meant, ask.mixed_models, site.limits_for(ask), ask.within, ask.bounds, reach)
    key = (tuple(ask.groups), ask.profiles, *about, layout.depth, ask.segments.parts, links_key(site, ask, layout))
    return site.remembered(key, layout, lambda: (_rule_of(site, ask, layout), 0))[0]


def _meant(around: FilterContext, cls: PodClass) -> tuple[bool, ...]:
    """Return whether terms that choose namespaces by labels mean that of the class: labels of namespaces change."""
    if cls.constraints is None:
        return ()
    terms = (*cls.constraints.affinity, *cls.constraints.anti_affinity)
    return tuple(means(around, one, cls.constraints.namespace) for one in terms if not one.namespace_selector.nothing)


def _rule_of(site: PlanningContext, ask: PlacementQuery, layout: Layout) -> SizeRule | None:
    def find(ask: PlacementQuery, depth: int | None) -> Placed | None:
        for labelled in labelled_first(layout):
            search = ConstrainedSearch(site, list(_empty(site, ask, layout, labelled=labelled)), ask, layout, set())
            if (found := look(search, at=depth)) is not None:
                return found.depth, found.leaves, [[row for _, row, _ in found.steps]]
        return None

    fit = np.max([np.sum([view.empty_fit for view in views], axis=0) for views in variants(site, ask)], axis=0)
    found = carried(site, ask, layout, find, fit)
    if found is None:
        return None
    depth, leaves, rows = found
    return make_rule(layout, depth, leaves, len({row for group in rows for row in group}))


def _in_order(
    around: FilterContext, ask: PlacementQuery, layout: Layout, steps: Sequence[Step]
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Return the rows of each group in order of the fabric, so that ranks follow it, and the members in turn.

    Where it matters who of a class sits where (labels tell them apart, or segments), they stay where they were tried.
    """
    tried: list[list[int]] = [[-1] * count for _, count in ask.groups]
    turns: list[tuple[int, int]] = []
    for group, row, position in steps:
        turns.append((group, position))
        tried[group][position] = row
    if ask.segments.parts:
        return tried, turns
    places = [sorted(range(len(rows)), key=lambda at: (layout.position[rows[at]], at)) for rows in tried]
    rank = [{at: position for position, at in enumerate(order)} for order in places]
    rows = [[tried[group][at] for at in order] for group, order in enumerate(places)]
    seated = [(group, rank[group][at]) for group, at in turns]
    if holds_in_turn(around, ask, rows, seated):
        return tried, turns
    return rows, seated


def _closed(ground: SearchState) -> SearchState:
    """Take away the rows that pods which are there keep the members from, whoever of them comes first."""
    fits = [np.where(open_, fit, 0) for open_, fit in zip(ground.open_to_groups, ground.fit, strict=True)]
    return replace(ground, fit=fits)


def most_held(site: PlanningContext, ask: PlacementQuery, layout: Layout, depth: int, leaves: int) -> Int64:
    """Return how many members each domain of a level holds at most, in so many of its leaves (int64[domains]).

    No more than that can be there together; whether so many can, only the search tells. What ties members over a key is
    looked at in the domains that hold most otherwise, 64 of them.
    """
    offsets = layout.domains[depth]
    best = np.zeros(len(offsets) - 1, np.int64)
    for ground in map(_closed, _now(site, ask, layout, labelled=False)):
        by_group = np.zeros((len(ask.groups), len(best)), np.int64)
        for group, ((_, count), ceiling) in enumerate(zip(ask.groups, ceilings_of(ground, ask, layout), strict=True)):
            for at, (first, last) in enumerate(pairwise(offsets.tolist())):
                by_group[group, at] = min(count, int(np.sort(ceiling[first:last])[-leaves:].sum()))
        for at in np.argsort(-by_group.sum(axis=0), kind="stable")[:MOST_LOOKED_AT].tolist():
            rows = layout.order[layout.offsets[offsets[at]] : layout.offsets[offsets[at + 1]]]
            for group in range(len(ask.groups)):
                together = ground.ceiling(group, rows, all_here=not ask.running)
                by_group[group, at] = min(int(by_group[group, at]), together)
        best = np.maximum(best, by_group.sum(axis=0))
    return best
