"""The second tree: selection of the fabric on which a gang that asks for accelerator domains is planned.

A fabric with levels of the second tree woven in has the same type as any other fabric. So the rest of the planner works
on it unchanged. This module converts queries from one fabric to another by the names of levels. It converts outcomes
back.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np

from topo_scheduler.scheduling.placing.model.placement_query import (
    Placement,
    PlacementFailure,
    PlacementQuery,
    Segments,
    SpreadLimits,
)
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.workloads import Workload
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.topology_merge import crossed, depth_around, depth_in, leaves_in, second_levels


def seen_fabric(workload: Workload, layout: Layout) -> Layout:
    """Return the fabric on which a workload is planned: with the levels of the second tree that it requires."""
    if layout.accelerators is None:
        return layout
    request = workload.request
    levels = {workload.level}
    if workload.gang:
        levels.add(request.required_level)
        if request.segment_size or workload.subgroups.size > 1:
            if 0 < workload.tiers <= layout.network.depth:
                levels.add(layout.network.levels[-workload.tiers])
            return _around_segments(layout, request.segment_level, levels)
    return crossed(layout, levels, whole=True)


def layout_with_levels(query: PlacementQuery, layout: Layout, levels: Iterable[str]) -> Layout:
    """Return the fabric on which a gang is planned that must share domains of additional levels."""
    shared = [*layout.woven, *levels]
    if query.in_segments and query.within < (query.segments.depth or layout.depth):
        return _around_segments(layout, query.segments.level, {*shared} - {query.segments.level})
    return crossed(layout, shared, whole=True)


def layout_without_cut(query: PlacementQuery, layout: Layout, depth: int) -> Layout:
    """Return the fabric of a gang that only has to share a domain of this depth, without cuts by deeper levels."""
    if not layout.cut:
        return layout
    shared = {*second_levels(layout, layout.woven), *layout.levels[:depth]} - {query.segments.level}
    return _around_segments(layout, query.segments.level, shared)


def _around_segments(layout: Layout, level: str, shared: Collection[str]) -> Layout:
    """Return the fabric for segments of one level, in a gang that must share domains of other levels.

    An accelerator domain of the level may lie across several network domains of which the gang must share one. Then
    only the part inside that network domain can hold a segment, so the fabric cuts the accelerator domain.
    """
    uncut = crossed(layout, (*shared, level), whole=True)
    tree = layout.accelerators
    if tree is None or level not in tree.levels:
        return uncut
    shared_network_levels = [name for name in layout.network.levels if name in shared]
    if not shared_network_levels or any(name in shared for name in tree.levels[tree.levels.index(level) :]):
        return uncut  # the whole gang is in one domain anyway
    if uncut.levels.index(shared_network_levels[-1]) < uncut.levels.index(level):
        return uncut
    return crossed(layout, (*uncut.woven, shared_network_levels[-1]))


def convert_query(query: PlacementQuery, source: Layout, target: Layout) -> PlacementQuery:
    """Convert a query from one fabric to another, as far as the other has its levels."""
    if source is target:
        return query
    return replace(
        query,
        within=depth_in(source, target, query.within) if query.within > 0 else query.within,
        bounds=SpreadLimits(query.bounds.leaves, depth_in(source, target, query.bounds.depth)),
        preferred=leaves_in(source, target, query.preferred) if query.preferred else None,
        segments=_moved_segments(query, source, target),
        woven=target.woven,
    )


def _moved_segments(query: PlacementQuery, source: Layout, target: Layout) -> Segments:
    segments = query.segments
    if not query.in_segments or segments.depth < 0 or segments.level not in target.levels:
        return segments
    source_segments, depth = source.outer(segments.depth), target.levels.index(segments.level) + 1
    depth = depth if depth < target.depth else 0
    target_segments = target.outer(depth)
    # The target may divide a domain into parts. Its home is the part in which the gang runs, not the first part.
    target_leaf = {
        int(source_segments.leaf_of_row[row]): int(target_segments.leaf_of_row[row]) for row in reversed(query.running)
    }
    places, homes = (
        tuple((number, target_leaf.get(leaf, -1)) for number, leaf in entries)
        for entries in (segments.places, segments.homes)
    )
    return replace(segments, depth=depth, places=places, homes=homes)


def convert_outcome(
    outcome: Placement | PlacementFailure, query: PlacementQuery, planned_layout: Layout, layout: Layout
) -> Placement | PlacementFailure:
    """Convert an outcome from another fabric to this one; leaves are those of the network."""
    if planned_layout is layout:
        return outcome
    rule = None
    if outcome.rule is not None:
        single = outcome.rule.leaves == 1
        depth = layout.depth - 1 if single else depth_around(planned_layout, layout, outcome.rule.depth)
        if query.in_segments and query.segments.level in layout.levels:
            depth = min(depth, layout.levels.index(query.segments.level))  # a leaf is a domain of the level of segments
        rule = replace(outcome.rule, depth=depth)
    if isinstance(outcome, PlacementFailure):
        return replace(outcome, rule=rule)
    assert rule is not None
    depth = depth_around(planned_layout, layout, outcome.bounds.depth)
    shared = tuple(
        dict.fromkeys((*outcome.shared, *shared_levels(planned_layout, max(outcome.bounds.depth, query.within))))
    )
    leaves = network_leaves_of(layout, query, outcome)
    return replace(outcome, leaves=leaves, rule=rule, bounds=SpreadLimits(outcome.bounds.leaves, depth), shared=shared)


def shared_levels(layout: Layout, depth: int) -> tuple[str, ...]:
    """Return the woven or cutting levels of which one domain is shared if one domain of this depth is shared."""
    return tuple(level for level in layout.levels[: max(0, depth)] if level in layout.woven)


def network_leaves_of(layout: Layout, query: PlacementQuery, placement: Placement) -> list[int]:
    """Return the leaves of the network that the whole gang uses."""
    return sorted(
        layout.network.leaves_of(row for group_rows in (*placement.rows, query.running) for row in group_rows)
    )


def split_level(layout: Layout, query: PlacementQuery, placement: Placement) -> str:
    """Return an additional level that members should share but don't, or an empty string."""
    levels = {*placement.shared, *shared_levels(layout, query.within)}
    tree, network = layout.accelerators, layout.network
    if not levels or query.running or tree is None:
        return ""
    rows = np.fromiter((row for group_rows in placement.rows for row in group_rows), np.int64)
    for level in levels:
        domain_of_row = tree.of_row(level) if level in tree.levels else _network_domains(network, level)
        domains = np.unique(domain_of_row[rows])
        if len(domains) > 1 or int(domains[0]) < 0:
            return level
    return ""


def _network_domains(network: Layout, level: str) -> Int64:
    """Return the domain of each row at a level of the network (int64[rows]), -1 for none."""
    return network.outer(network.levels.index(level) + 1).leaf_of_row


def domains_apart(query: PlacementQuery, layout: Layout, fit: Int64) -> Iterator[Int64]:
    """Yield how many members each row takes (int64[rows]), once for each accelerator domain that the gang may share.

    If the gang needs no accelerator domain, yield ``fit`` itself. Otherwise yield domains with enough room, the
    roomiest first.
    """
    shared = second_levels(layout, shared_levels(layout, query.within))
    if not shared or layout.accelerators is None:
        yield fit
        return
    domain_of_row = layout.accelerators.of_row(shared[-1])
    has_domain = domain_of_row >= 0
    room = np.bincount(domain_of_row[has_domain], weights=fit[has_domain]).astype(np.int64)
    for domain in np.argsort(-room, kind="stable").tolist():
        if int(room[domain]) < query.members:
            return
        yield np.where(domain_of_row == domain, fit, 0)
