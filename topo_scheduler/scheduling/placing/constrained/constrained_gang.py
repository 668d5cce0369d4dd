"""Gangs whose members have constraints on each other, or whose classes differ and have constraints on other pods.

The planner seats the members of such a gang one by one. Each check counts the members before as if they ran, so the
placement is valid in the order in which it was found. A member that can't be placed yet, such as a worker with affinity
to the launcher, is tried again after the others. Members go where the gang is already: the same leaf, then the nearest
leaf, the same node, then the node that they prefer.

For the search see `leaf_search`. The size rule is the result of the same search in an empty cluster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.kernels.fit import fit_rows
from topo_scheduler.scheduling.placing.checks.validation import holds_in_turn
from topo_scheduler.scheduling.placing.constrained.leaf_search import (
    ConstrainedSearch,
    LeafPlacement,
    by_leaf,
    ceilings_of,
    look,
)
from topo_scheduler.scheduling.placing.constrained.sequential_assignment import SearchState, Step, spread_over_nodes
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext, PlanningTask
from topo_scheduler.scheduling.placing.heterogeneous.bandwidth_size_rule import links_key, rule_with_links
from topo_scheduler.scheduling.placing.heterogeneous.heterogeneous_gang import common_score, labelled_first, variants
from topo_scheduler.scheduling.placing.heterogeneous.packer import Found as Placed
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.model.size_rule import in_words, make_rule
from topo_scheduler.scheduling.placing.scoring.tie_breaking import best_of_equals
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext, selects_namespace
from topo_scheduler.scheduling.rules.volumes import uses_volumes
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import Amounts
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.topology.fabric import Layout

MAX_DOMAINS: Final = 64
"""The most domains for which constraints between members are evaluated in `most_held`."""


def is_constrained(groups: Sequence[tuple[PodClass, int]]) -> bool:
    """Return whether the planner has to seat the members of a gang one by one; False without members."""
    if len(groups) != 1:
        return any(cls.constraints is not None for cls, _ in groups)
    cls, members = groups[0]
    constraints = cls.constraints
    return constraints is not None and members > 1 and constraints.mutual


def plan_constrained(task: PlanningTask) -> Placement | PlacementFailure:
    """Place the members of a tied gang."""
    query, layout = task.query, task.layout
    running_leaves = layout.leaves_of(query.running)
    if running_leaves:
        rule: SizeRule | None = make_rule(layout, 0, max(1, len(layout.paths)), 1)
    else:
        rule = rule_of(task)
    if rule is None:
        return PlacementFailure(
            f"the gang's {query.total} pods{_split(query)} have {_tie(query)}: no domain could hold them together even"
            " if it were empty",
            too_large=True,
        )
    for labelled in (False,) if running_leaves else labelled_first(layout):
        search = ConstrainedSearch(task, list(_now(task, labelled=labelled)), running_leaves)
        result = look(search, rule=rule)
        if result is None and query.enforcement is Enforcement.PREFERRED:
            result = look(search)
        if result is not None:
            return _placed(task, rule, search, result)
    needs = f"1 {in_words(rule.domain, layout)}" if rule.leaves == 1 else f"{rule.leaves} leaves in 1 {rule.domain}"
    scope = f"near the {len(query.running)} members that run" if running_leaves else f"in {needs}"
    return PlacementFailure(f"no room {scope} for {query.members} pods{_split(query)} that have {_tie(query)}", rule)


def _placed(task: PlanningTask, rule: SizeRule, search: ConstrainedSearch, result: LeafPlacement) -> Placement:
    layout = task.layout
    if search.home:
        used = sorted(search.home | layout.leaves_of(row for _, row, _ in result.steps))
        score, compared = common_score(task, used, rule), 1
    else:
        result, score, compared = best_of_equals(task, search.among(result.depth, rule), result)
        used = sorted(layout.leaves_of(row for _, row, _ in result.steps))
    rows, seated = _in_order(task.context.around, task.query, layout, result.steps)
    return Placement(rows, used, rule, score, compared, seated)


def _split(query: PlacementQuery) -> str:
    return f" in segments that must each share one {query.segments.level}" if query.in_segments else ""


def _tie(query: PlacementQuery) -> str:
    """Return a text that names the constraints between members."""
    constraints = [cls.constraints for cls, _ in query.groups if cls.constraints is not None]
    named: dict[str, list[tuple[object, ...]]] = {
        "host ports": [entry.ports for entry in constraints],
        "required pod affinity": [entry.affinity for entry in constraints],
        "required pod anti-affinity": [entry.anti_affinity for entry in constraints],
        "topologySpreadConstraints": [entry.spread for entry in constraints],
        "volume claims": [entry.claims for entry in constraints],
        "disks of their own": [entry.disks for entry in constraints],
    }
    return (
        " and ".join(name for name, constraint_values in named.items() if any(constraint_values))
        or "features they need of a node"
    )


# ---------------------------------------------------------------- the cluster that a search sees


def _now(task: PlanningTask, *, labelled: bool) -> Iterator[SearchState]:
    """Yield the current cluster, once per GPU model that the gang may use; ``labelled``: fully labelled leaves only."""
    context, query, layout, nodes = task.context, task.query, task.layout, task.context.nodes
    all_rows = np.arange(nodes.rows, dtype=np.int64)
    for views in variants(context, query):
        fits = []
        for view in views:
            fit = np.zeros(nodes.rows, np.int64)
            usable = view.reachable
            if (capped_rows := context.around.closed_by_caps(view.cls, all_rows)) is not None:
                usable = usable & ~capped_rows
            fit_rows(nodes.allocatable, nodes.requested, view.columns, view.amounts, usable, all_rows, fit)
            view.limit_by_devices(fit, all_rows, empty=False)
            fits.append(_labelled(layout, query.within_links(fit)) if labelled else query.within_links(fit))
        state = SearchState(
            context.around.remembering(), nodes.requested, [cls for cls, _ in query.groups], views, fits, query.members
        )
        yield spread_over_nodes(state)


def _labelled(layout: Layout, fit: Int64) -> Int64:
    leaves = layout.leaf_of_row
    return np.where((leaves >= 0) & (layout.aligned[leaves] > 0), fit, 0)


def _empty(task: PlanningTask, *, labelled: bool) -> Iterator[SearchState]:
    """Yield the cluster without pods except DaemonSets, once per GPU model that the whole gang may use."""
    context, query = task.context, task.query
    filter_context = replace(context.around, pod_index=context.no_pods).remembering()
    for views in variants(context, query):
        classes = [_among_themselves(filter_context, cls, query) for cls, _ in query.groups]
        fits = [query.within_links(view.empty_fit) for view in views]
        if labelled:
            fits = [_labelled(task.layout, fit) for fit in fits]
        yield spread_over_nodes(SearchState(filter_context, context.nodes.daemons, classes, views, fits, query.members))


def _among_themselves(filter_context: FilterContext, cls: PodClass, query: PlacementQuery) -> PodClass:
    """Return the class without the constraints that only pods or volumes outside the gang can meet."""
    constraints = cls.constraints
    if constraints is None:
        return replace(cls, repelled=None)
    affinity = constraints.affinity if affinity_met_by_members(filter_context, cls, query) else ()
    return replace(cls, repelled=None, constraints=replace(constraints, affinity=affinity, claims=()))


def affinity_met_by_members(filter_context: FilterContext, cls: PodClass, query: PlacementQuery) -> bool:
    """Return whether members of the gang meet the affinity of a class.

    A pod counts for a term of affinity only if it meets all terms.
    """
    constraints = cls.constraints
    if constraints is None:
        return True
    members = {profile for profiles in query.profiles for profile in profiles if profile is not None}
    charge(len(members) * len(constraints.affinity))
    return all(selects_namespace(filter_context, term, constraints.namespace) for term in constraints.affinity) and any(
        all(term.selector.matches(profile.labels) for term in constraints.affinity) for profile in members
    )


def rule_of(task: PlanningTask) -> SizeRule | None:
    """Return the size rule of a tied gang, None if not even an empty cluster could hold it."""
    context, query, layout = task.context, task.query, task.layout
    reach = tuple(context.views.get(cls).reach_changes for cls, _ in query.groups)
    namespace_matches = tuple(_selects_own_namespace(context.around, cls) for cls, _ in query.groups)
    settings = (namespace_matches, query.mixed_models, task.limits, query.within, query.bounds, reach)
    key = (
        tuple(query.groups),
        query.profiles,
        *settings,
        layout.depth,
        query.segments.parts,
        links_key(task),
    )
    return context.remembered(key, layout, lambda: (_rule_of(task), 0))[0]


def _selects_own_namespace(filter_context: FilterContext, cls: PodClass) -> tuple[bool, ...]:
    """Return whether each term with a namespace selector selects the namespace of the class; labels may change."""
    if cls.constraints is None:
        return ()
    terms = (*cls.constraints.affinity, *cls.constraints.anti_affinity)
    return tuple(
        selects_namespace(filter_context, term, cls.constraints.namespace)
        for term in terms
        if not term.namespace_selector.nothing
    )


def _rule_of(task: PlanningTask) -> SizeRule | None:
    context, layout = task.context, task.layout

    def find(query: PlacementQuery, depth: int | None) -> Placed | None:
        for labelled in labelled_first(layout):
            empty_task = PlanningTask(context, query, layout)
            search = ConstrainedSearch(empty_task, list(_empty(empty_task, labelled=labelled)), set())
            if (result := look(search, only_depth=depth)) is not None:
                groups = range(len(query.groups))
                rows = [[row for group, row, _ in result.steps if group == number] for number in groups]
                return result.depth, result.leaves, rows
        return None

    return rule_with_links(task, find, variants(context, task.query))


def _in_order(
    filter_context: FilterContext, query: PlacementQuery, layout: Layout, steps: Sequence[Step]
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Return the rows of each group in order of the fabric, so that ranks follow it, and the members in turn.

    Members of one class may differ by labels, or be in segments. Then they keep the rows that the search gave them.
    """
    found_rows: list[list[int]] = [[-1] * count for _, count in query.groups]
    turns: list[tuple[int, int]] = []
    for group, row, position in steps:
        turns.append((group, position))
        found_rows[group][position] = row
    if query.segments.parts:
        return found_rows, turns
    places = [sorted(range(len(rows)), key=lambda index: (layout.position[rows[index]], index)) for rows in found_rows]
    rank = [{index: position for position, index in enumerate(order)} for order in places]
    rows = [[found_rows[group][index] for index in order] for group, order in enumerate(places)]
    seated = [(group, rank[group][index]) for group, index in turns]
    if holds_in_turn(filter_context, query, rows, seated):
        return found_rows, turns
    return rows, seated


def _closed(state: SearchState) -> SearchState:
    """Remove the rows that other pods or volumes close to the members, in whatever order members are seated."""
    fits = []
    for view, open_, fit in zip(state.views, state.open_to_groups, state.fit, strict=True):
        constraints = view.cls.constraints
        # The view counts volumes too. It also counts what other members may still change: affinity and spreads.
        if constraints is not None and uses_volumes(view.cls) and not (constraints.affinity or constraints.spread):
            open_ &= view.open
        fits.append(np.where(open_, fit, 0))
    return replace(state, fit=fits)


def _held_alike(state: SearchState, layout: Layout) -> Iterator[tuple[list[int], Int64]]:
    """Yield the groups that request the same amounts, and how many pods of them a leaf holds (int64[leaves])."""
    nodes, alike = state.filter_context.nodes, dict[Amounts, list[int]]()
    for group, cls in enumerate(state.classes):
        alike.setdefault(cls.amounts, []).append(group)
    rows = np.arange(nodes.rows, dtype=np.int64)
    for groups in alike.values():
        if len(groups) > 1:
            fit, view = np.zeros(nodes.rows, np.int64), state.views[groups[0]]
            usable = np.any([state.fit[group] > 0 for group in groups], axis=0)
            fit_rows(nodes.allocatable, nodes.requested, view.columns, view.amounts, usable, rows, fit)
            yield groups, by_leaf(layout, fit)


def most_held(context: PlanningContext, query: PlacementQuery, layout: Layout, depth: int, leaves: int) -> Int64:
    """Return an upper bound on the members that each domain at a depth holds in ``leaves`` leaves (int64[domains]).

    Only the search can find whether a domain really holds as many. Constraints between members over a topology key are
    evaluated only in the 64 domains with the highest bounds.
    """
    offsets = layout.domains[depth]
    bounds = np.zeros(len(offsets) - 1, np.int64)
    for state in map(_closed, _now(PlanningTask(context, query, layout), labelled=False)):
        by_group = np.zeros((len(query.groups), len(bounds)), np.int64)
        for group, ((_, count), ceiling) in enumerate(
            zip(query.groups, ceilings_of(state, query, layout), strict=True)
        ):
            for domain, (first, last) in enumerate(pairwise(offsets.tolist())):
                by_group[group, domain] = min(count, int(np.sort(ceiling[first:last])[-leaves:].sum()))
        for domain in np.argsort(-by_group.sum(axis=0), kind="stable")[:MAX_DOMAINS].tolist():
            rows = layout.order[layout.offsets[offsets[domain]] : layout.offsets[offsets[domain + 1]]]
            for group in range(len(query.groups)):
                ceiling_together = state.ceiling(group, rows, all_here=not query.running)
                by_group[group, domain] = min(int(by_group[group, domain]), ceiling_together)
        held = by_group.sum(axis=0)
        for groups, leaf_room in _held_alike(state, layout):
            # Each group alone may have room, but all of them on the same few nodes.
            room = [int(np.sort(leaf_room[first:last])[-leaves:].sum()) for first, last in pairwise(offsets.tolist())]
            of_groups = by_group[groups].sum(axis=0)
            held += np.minimum(room, of_groups) - of_groups
        bounds = np.maximum(bounds, held)
    return bounds
