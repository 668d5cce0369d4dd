"""Placement of gangs that ask for bandwidth: no link may have to carry more than its capacity.

The planner first finds the best placement as if links were unlimited. If the links can't carry the gang there, it
searches again within sets of rows where they can (see `bandwidth.feasible_sets`). It checks each result against every
link and takes the first that passes.

The search is exact for members of one class that take a node each and share one domain of the level above the leaves.
Otherwise it is a heuristic: a gang may stay pending although a placement exists.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.bandwidth.feasible_sets import MAX_ROW_SETS, room_now, row_sets
from topo_scheduler.scheduling.placing.bandwidth.reserving_members import reserving_rows
from topo_scheduler.scheduling.placing.model.placement_query import (
    GangTraffic,
    Placement,
    PlacementFailure,
    PlacementQuery,
)
from topo_scheduler.scheduling.placing.model.second_tree import domains_apart
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.interpod_filters import settled_links
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import ResourceTable
from topo_scheduler.state.pods.workloads import Member, Workload
from topo_scheduler.state.topology.fabric import Layout, Path
from topo_scheduler.state.topology.links import Links, LinkShortage
from topo_scheduler.state.topology.topology_merge import depth_in
from topo_scheduler.state.topology.wiring import readable

if TYPE_CHECKING:
    from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext

Plan = Callable[[PlacementQuery, Layout, float], Placement | PlacementFailure]


def bandwidth_of(workload: Workload, members: Iterable[Member]) -> int:
    """Return the Mbit/s per node for members placed together: the maximum over the members; 0 outside gangs."""
    return max((member.cls.bandwidth for member in members), default=0) if workload.gang else 0


def traffic_of(workload: Workload, members: Iterable[Member]) -> GangTraffic | None:
    """Return the traffic of members that are placed together, None where they ask for no bandwidth."""
    bandwidth = bandwidth_of(workload, members)
    return GangTraffic((workload.namespace, workload.id), bandwidth) if bandwidth else None


def plan_within_links(
    plan: Plan, context: "PlanningContext", query: PlacementQuery, layout: Layout, now: float
) -> Placement | PlacementFailure:
    """Find the best placement whose traffic the links can carry.

    Args:
        plan: finds the best placement on the rows that the query leaves open, and ignores links.
        context: nodes, policy and caches that plans share.
        query: the members to place, with their traffic.
        layout: the fabric.
        now: seconds.

    Raises:
        PluginError: a plugin failed, so there is no outcome.
    """
    links = settled_links(context.around, layout)
    outcome = plan(query, layout, now)
    if isinstance(outcome, PlacementFailure):
        return outcome if outcome.rule is not None else _never(plan, query, layout, now) or outcome
    resources = context.nodes.resources
    shortages = _overloaded(links, query, outcome, resources)
    if not shortages:
        return outcome
    for rows in _row_sets(context, links, query, layout, outcome.rule):
        candidate = plan(query.restricted_to(rows), layout, now)
        if isinstance(candidate, Placement) and not _overloaded(links, query, candidate, resources):
            return candidate
    return PlacementFailure(_sentence(links, shortages), outcome.rule, _domains(links, shortages))


def check_links(links: Links, query: PlacementQuery, placement: Placement, resources: ResourceTable) -> str:
    """Return a message that names a link which the placement would overload, or an empty string."""
    if query.traffic is None:
        return ""
    shortages = _overloaded(links, query, placement, resources)
    return _shortage(links, shortages[0]) if shortages else ""


def _overloaded(
    links: Links, query: PlacementQuery, placement: Placement, resources: ResourceTable
) -> list[LinkShortage]:
    assert query.traffic is not None
    rows = reserving_rows(query.groups, placement.rows, resources)
    return links.shortages(query.traffic.gang, rows, query.traffic.bandwidth)


def _row_sets(
    context: "PlanningContext", links: Links, query: PlacementQuery, layout: Layout, rule: SizeRule
) -> Iterator[Bool]:
    """Yield sets of rows to search: rows whose own network suffices, then sets that uplinks can carry, then a node."""
    assert query.traffic is not None
    room = room_now(links, query.traffic)
    yield room.networks
    any_depth = query.enforcement is Enforcement.PREFERRED or bool(query.running)
    depths = sorted({depth_in(layout, layout.network, depth) for depth in range(rule.depth + 1)}, reverse=True)
    for fit_of_model in _fits(context, query):
        for fit in islice(domains_apart(query, layout, fit_of_model), MAX_ROW_SETS):
            for depth in depths if any_depth else depths[:1]:
                yield from islice(row_sets(room, fit, depth, query.members), MAX_ROW_SETS)
    if len(query.groups) == 1 and not len(room.home):
        # On a single node the gang sends nothing. Take the node with the least room that holds it, then the first.
        for fit in _fits(context, query):
            rows = layout.order[fit[layout.order] >= query.members]
            if len(rows):
                single_row = np.zeros(len(fit), np.bool_)
                single_row[rows[int(fit[rows].argmin())]] = True
                yield single_row


def _fits(context: "PlanningContext", query: PlacementQuery) -> Iterator[Int64]:
    """Yield how many members each row takes (int64[rows]), once per GPU model that the whole gang may use."""
    if len(query.groups) == 1:
        for view in context.views_for(query):
            yield view.fit
    else:
        yield np.sum([context.views.get(cls).fit for cls, _ in query.groups], axis=0)


# ---------------------------------------------------------------- messages


def _never(plan: Plan, query: PlacementQuery, layout: Layout, now: float) -> PlacementFailure | None:
    """Return the failure of a gang that links can't carry even without other traffic; None with another cause."""
    assert query.traffic is not None
    if plan(replace(query, traffic=None), layout, now).rule is None:
        return None
    return PlacementFailure(
        f"no domain could hold the gang's {query.total} pods even if it were empty and carry"
        f" {readable(query.traffic.bandwidth)} Gbit/s a node over its uplinks; ask for less"
    )


def _sentence(links: Links, shortages: Sequence[LinkShortage]) -> str:
    worst = max(shortages, key=lambda shortage: (shortage.needed - shortage.left, -shortage.link))
    return f"there is room for the gang, but not the bandwidth: {_shortage(links, worst)}"


def _shortage(links: Links, shortage: LinkShortage) -> str:
    return (
        f"{_link(links, shortage.link)} has {readable(max(0, shortage.left))} of {readable(shortage.capacity)} Gbit/s"
        f" left, {readable(shortage.needed)} needed"
    )


def _link(links: Links, link: int) -> str:
    depth, index = links.wiring.place(link)
    if not depth:
        return f"network of node {links.node_name(index)}"
    return f"uplink of {'/'.join(links.wiring.layout.domain_path(depth, index))}"


def _domains(links: Links, shortages: Sequence[LinkShortage]) -> tuple[tuple[Path, str], ...]:
    """Return each domain that has an overloaded link, with the message for the first such link."""
    reasons: dict[Path, str] = {}
    layout = links.wiring.layout
    for shortage in shortages:
        depth, index = links.wiring.place(shortage.link)
        path = layout.domain_path(depth, index) if depth else layout.paths[int(layout.leaf_of_row[index])]
        reasons.setdefault(path, _shortage(links, shortage))
    return tuple(reasons.items())
