"""The last check of a placement before it is assumed: topology, bandwidth and capacity, computed without the kernels.

It can't fail while kernels and caches are correct. If it fails, the scheduler drops the placement and logs an error: a
wrong placement of a gang costs more than a late one.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.checks.bandwidth_limits import check_links
from topo_scheduler.scheduling.placing.model.placement_query import ANYWHERE, Placement, PlacementQuery, SizeRuleLimits
from topo_scheduler.scheduling.placing.model.second_tree import split_level
from topo_scheduler.scheduling.placing.model.segments import broken_segment, seen_by
from topo_scheduler.scheduling.rules.device_claims import device_limits, lacks_claims
from topo_scheduler.scheduling.rules.feasible import allowed_rows
from topo_scheduler.scheduling.rules.filters import eligible
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.scheduling.rules.numa import numa_limits
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.topology.fabric import Layout


def check(
    filter_context: FilterContext, layout: Layout, query: PlacementQuery, placement: Placement, limits: SizeRuleLimits
) -> str:
    """Return what is wrong with a placement, or an empty string."""
    nodes = filter_context.nodes
    problem = _check_nodes(filter_context, query, placement)
    if not problem and placement.seated:
        problem = holds_in_turn(filter_context, query, placement.rows, placement.seated)
    if not problem and filter_context.links is not None:
        problem = check_links(filter_context.links, query, placement, nodes.resources)
    return problem or _check_domains(nodes, layout, query, placement, limits)


def _check_nodes(filter_context: FilterContext, query: PlacementQuery, placement: Placement) -> str:
    nodes = filter_context.nodes
    if query.members == 1 and not placement.seated and len(placement.rows) == len(placement.rows[0]) == 1:
        return _check_alone(filter_context, query.groups[0][0], placement.rows[0][0])
    for (cls, count), rows in zip(query.groups, placement.rows, strict=True):
        if len(rows) != count:
            return f"{len(rows)} of {count} members have a node"
        distinct = np.array(sorted(set(rows)), np.int64)
        accepted = eligible(nodes, cls, distinct)
        if not placement.seated:
            accepted &= allowed_rows(filter_context, cls, distinct)
        if exceeded_cap := _check_caps(filter_context, cls, rows):
            return exceeded_cap
        if len(refused := distinct[~accepted]):
            return f"node {nodes.names[int(refused[0])]} may not be used"
        if cls.constraints is not None and cls.constraints.alone and len(distinct) < len(rows):
            return "two members that exclude each other are on one node"
        if cls.share:
            shares_by_row = np.unique(rows, return_counts=True)[1]
            free_gpus = nodes.allocatable[distinct, GPU] - nodes.requested[distinct, GPU]
            if (nodes.devices.fit(distinct, cls.share, free_gpus) < shares_by_row).any():
                return "no GPU has room for a share that was placed on it"
        if lacking := _lacking_devices(filter_context, cls, Counter(rows)):
            return lacking
    return _overdrawn(nodes, [cls for cls, _ in query.groups], placement.rows)


def _lacking_devices(filter_context: FilterContext, cls: PodClass, members_by_row: Mapping[int, int]) -> str:
    nodes = filter_context.nodes
    by_devices = bool(cls.claims or (nodes.backed_columns and lacks_claims(nodes, cls)))
    if not by_devices and (cls.numa is None or not filter_context.numa_zones.machines):
        return ""
    rows = np.array(sorted(members_by_row), np.int64)
    limits = numa_limits(filter_context, cls, rows)
    if len(exceeded := rows[limits < [members_by_row[row] for row in rows.tolist()]]):
        return f"the kubelet of node {nodes.names[int(exceeded[0])]} would reject a member"
    if not by_devices:
        return ""
    for row, limit in zip(rows.tolist(), device_limits(filter_context, cls, rows, empty=False).tolist(), strict=True):
        if members_by_row[row] > limit:
            return f"node {nodes.names[row]} has devices for {limit} of {members_by_row[row]} members"
    return ""


def _overdrawn(nodes: NodeTable, classes: Sequence[PodClass], rows_of_each: Sequence[Sequence[int]]) -> str:
    """Return a message about a node with too little free; resources that no member requests may be overdrawn."""
    used: dict[int, dict[int, int]] = {}
    for cls, rows in zip(classes, rows_of_each, strict=True):
        for row, members in Counter(rows).items():
            used_on_row = used.setdefault(row, {})
            for column, amount in cls.amounts:
                used_on_row[column] = used_on_row.get(column, 0) + members * amount
    for row in sorted(used):
        capacity, taken = nodes.allocatable[row].tolist(), nodes.requested[row].tolist()
        for column, amount in sorted(used[row].items()):
            if amount > 0 and amount > capacity[column] - taken[column]:
                return _too_much(nodes, row, column, capacity[column] - taken[column], amount)
    return ""


def _too_much(nodes: NodeTable, row: int, column: int, free: int, placed: int) -> str:
    return f"node {nodes.names[row]} has {free} {nodes.resources.names[column]} free, {placed} were placed"


def _check_alone(filter_context: FilterContext, cls: PodClass, row: int) -> str:
    """Do the same checks for a single member; most workloads have only one."""
    nodes, rows = filter_context.nodes, np.array([row], np.int64)
    accepted = eligible(nodes, cls, rows)
    if exceeded_cap := _check_caps(filter_context, cls, (row,)):
        return exceeded_cap
    if not accepted[0] or not allowed_rows(filter_context, cls, rows)[0]:
        return f"node {nodes.names[row]} may not be used"
    capacity, taken = nodes.allocatable[row].tolist(), nodes.requested[row].tolist()
    if cls.share and not nodes.devices.fit(rows, cls.share, np.array([capacity[GPU] - taken[GPU]], np.int64))[0]:
        return "no GPU has room for a share that was placed on it"
    if lacking := _lacking_devices(filter_context, cls, {row: 1}):
        return lacking
    for column, amount in cls.amounts:
        free = capacity[column] - taken[column]
        if amount > free:
            return _too_much(nodes, row, column, free, amount)
    return ""


def holds_in_turn(
    filter_context: FilterContext,
    query: PlacementQuery,
    rows: Sequence[Sequence[int]],
    seated: Sequence[tuple[int, int]],
) -> str:
    """Return a message about a member whose node the members before it rule out, or an empty string."""
    seated_pods: list[tuple[int, Profile]] = []
    filter_context = filter_context.remembering()
    for group, position in seated:
        charge(20 + len(seated_pods))
        cls, profile, row = query.groups[group][0], query.profiles[group][position], rows[group][position]
        effective_class = filter_context.seen_beside(cls, profile, seated_pods)
        if not allowed_rows(filter_context, effective_class, np.array([row], np.int64), seated_pods).all():
            return f"node {filter_context.nodes.names[row]} is ruled out for a member by the members placed before it"
        if profile is not None:
            seated_pods.append((row, profile))
    return ""


def _check_caps(filter_context: FilterContext, cls: PodClass, rows: Sequence[int]) -> str:
    for cap in cls.caps:
        members_inside = int(filter_context.domains.rows(cap.domain)[list(rows)].sum()) if filter_context.domains else 0
        if members_inside > cap.now:
            return f"{members_inside} members are in {cap.domain or 'the cluster'}, where {cap.now} may be"
    return ""


def _check_domains(
    nodes: NodeTable, layout: Layout, query: PlacementQuery, placement: Placement, limits: SizeRuleLimits
) -> str:
    if not query.gang:
        return ""
    if query.in_segments and (split_segment := broken_segment(query, placement, layout.outer(query.segments.depth))):
        return split_segment
    if not query.mixed_models:
        with_gpus = [
            row for (cls, _), rows in zip(query.groups, placement.rows, strict=True) if cls.gpus for row in rows
        ]
        if len(set(nodes.model[np.array(with_gpus, np.int64)].tolist())) > 1:
            return "the gang was spread over several GPU models"
    if torn_level := split_level(layout, query, placement):
        return f"the gang was spread over more than one {torn_level}"
    placed = [row for rows in placement.rows for row in rows]
    problem = _check_spread(seen_by(query, layout), query, placement, placed) or _check_bounds(
        layout, placement, placed
    )
    return problem or ("" if query.running else _check_limits(layout, query, placement, limits))


def _check_spread(layout: Layout, query: PlacementQuery, placement: Placement, placed: Sequence[int]) -> str:
    """Check the size rule; ``layout`` goes down to the level of the gang's segments."""
    leaves = layout.leaves_of(placed)
    if query.within and not query.running and not _share(layout, query.within, leaves):
        return f"the gang was spread over more than one {query.level}"
    if query.running or query.enforcement is Enforcement.PREFERRED:
        return ""
    rule = placement.rule
    if len(leaves) > rule.leaves:
        return f"{len(leaves)} leaves were used where the size rule allows {rule.leaves}"
    if not _share(layout, rule.depth, leaves):
        return f"the leaves do not share one {rule.domain}"
    return ""


def _share(layout: Layout, depth: int, leaves: Collection[int]) -> bool:
    """Return whether all leaves lie in one domain at this depth."""
    return len(leaves) < 2 or len({layout.domain_of_leaf(depth, leaf) for leaf in leaves}) == 1


def _check_bounds(layout: Layout, placement: Placement, placed: Sequence[int]) -> str:
    bounds = placement.bounds
    if bounds == ANYWHERE:
        return ""
    leaves = layout.leaves_of(placed)
    if bounds.leaves and len(leaves) > bounds.leaves:
        return f"{len(leaves)} leaves were used where a placement rule allows {bounds.leaves}"
    if bounds.depth and not _share(layout, bounds.depth, leaves):
        return f"the leaves do not share one {layout.levels[bounds.depth - 1]}, as a placement rule asks"
    return ""


def _check_limits(layout: Layout, query: PlacementQuery, placement: Placement, limits: SizeRuleLimits) -> str:
    if not limits.max_nodes_per_leaf and not limits.max_gpus_per_leaf:
        return ""
    nodes_in: dict[int, set[int]] = {}
    gpus_in: Counter[int] = Counter()
    for (cls, _), rows in zip(query.groups, placement.rows, strict=True):
        for row in rows:
            leaf = int(layout.leaf_of_row[row])
            if leaf < 0:  # not in this fabric with accelerator domains, which the gang no longer has to share
                leaf = -1 - int(layout.network.leaf_of_row[row])
            nodes_in.setdefault(leaf, set()).add(row)
            gpus_in[leaf] += cls.gpus
    if limits.max_nodes_per_leaf and any(len(rows) > limits.max_nodes_per_leaf for rows in nodes_in.values()):
        return f"more than {limits.max_nodes_per_leaf} nodes of one leaf were used"
    if limits.max_gpus_per_leaf and any(gpus > limits.max_gpus_per_leaf for gpus in gpus_in.values()):
        return f"more than {limits.max_gpus_per_leaf} GPUs of one leaf were used"
    return ""
