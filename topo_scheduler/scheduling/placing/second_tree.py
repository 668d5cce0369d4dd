"""Placements by the second tree: on which fabric a gang is planned that asks for accelerator domains.

A fabric with levels of the second tree woven in is a fabric like any other, so everything else plans on it as it is.
What is asked on one fabric is moved to another by the names of levels, and what was found there is brought back.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np

from topo_scheduler.scheduling.placing.ask import Placement, PlacementFailure, PlacementQuery, Segments, SpreadLimits
from topo_scheduler.state.crossing import crossed, depth_around, depth_in, leaves_in, second_levels
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.workloads import Workload


def seen_fabric(workload: Workload, layout: Layout) -> Layout:
    """Return the fabric on which a workload is planned: with the levels of the second tree that it must keep to."""
    if layout.accelerators is None:
        return layout
    request = workload.request
    asked = {workload.level}
    if workload.gang:
        asked.add(request.required_level)
        if request.segment_size or workload.subgroups.size > 1:
            if workload.tiers:
                asked |= _tier(workload, layout)
            return _around_segments(layout, request.segment_level, asked)
    return crossed(layout, asked, whole=True)


def joined(ask: PlacementQuery, layout: Layout, levels: Iterable[str]) -> Layout:
    """Return the fabric on which a gang is planned that is to share domains of some levels more."""
    shared = [*layout.woven, *levels]
    if ask.in_segments and ask.within < (ask.segments.depth or layout.depth):
        return _around_segments(layout, ask.segments.level, {*shared} - {ask.segments.level})
    return crossed(layout, shared, whole=True)


def cut_no_more(ask: PlacementQuery, layout: Layout, depth: int) -> Layout:
    """Return the fabric of a gang that must share a domain of this depth only, where one further in cuts now."""
    if not layout.cut:
        return layout
    shared = {*second_levels(layout, layout.woven), *layout.levels[:depth]} - {ask.segments.level}
    return _around_segments(layout, ask.segments.level, shared)


def _tier(workload: Workload, layout: Layout) -> set[str]:
    """Return the level of the network that a workload must share by its number."""
    levels = layout.network.levels
    return {levels[-workload.tiers]} if workload.tiers <= len(levels) else set()


def _around_segments(layout: Layout, level: str, shared: Collection[str]) -> Layout:
    """Return the fabric for segments of a level, of a gang that must share domains of others.

    Where an accelerator domain of that level lies across several of the network, of which all must share one, only its
    part in that one can hold a segment: it is cut.
    """
    whole = crossed(layout, (*shared, level), whole=True)
    tree = layout.accelerators
    if tree is None or level not in tree.levels:
        return whole
    network = [one for one in layout.network.levels if one in shared]
    if not network or any(one in shared for one in tree.levels[tree.levels.index(level) :]):
        return whole  # one domain holds the gang anyway
    if whole.levels.index(network[-1]) < whole.levels.index(level):
        return whole
    return crossed(layout, (*whole.woven, network[-1]))


def moved(ask: PlacementQuery, one: Layout, other: Layout) -> PlacementQuery:
    """Return an ask on one fabric as it is on another, as far as that has its levels."""
    if one is other:
        return ask
    return replace(
        ask,
        within=depth_in(one, other, ask.within) if ask.within > 0 else ask.within,
        bounds=SpreadLimits(ask.bounds.leaves, depth_in(one, other, ask.bounds.depth)),
        preferred=leaves_in(one, other, ask.preferred) if ask.preferred else None,
        segments=_moved_segments(ask, one, other),
        woven=other.woven,
    )


def _moved_segments(ask: PlacementQuery, one: Layout, other: Layout) -> Segments:
    segments = ask.segments
    if not ask.in_segments or segments.depth < 0 or segments.level not in other.levels:
        return segments
    before, depth = one.outer(segments.depth), other.levels.index(segments.level) + 1
    depth = depth if depth < other.depth else 0
    after = other.outer(depth)
    # A domain may be in parts there: home is the part in which the gang runs, not the one that comes first.
    there = {int(before.leaf_of_row[row]): int(after.leaf_of_row[row]) for row in reversed(ask.running)}
    places, homes = (
        tuple((number, there.get(leaf, -1)) for number, leaf in some) for some in (segments.places, segments.homes)
    )
    return replace(segments, depth=depth, places=places, homes=homes)


def brought_back(
    found: Placement | PlacementFailure, ask: PlacementQuery, there: Layout, layout: Layout
) -> Placement | PlacementFailure:
    """Return what was found on another fabric as it is on this; leaves are those of the network."""
    if there is layout:
        return found
    rule = None
    if found.rule is not None:
        single = found.rule.leaves == 1
        depth = layout.depth - 1 if single else depth_around(there, layout, found.rule.depth)
        if ask.in_segments and ask.segments.level in layout.levels:
            depth = min(depth, layout.levels.index(ask.segments.level))  # a leaf is a domain of their level
        rule = replace(found.rule, depth=depth)
    if isinstance(found, PlacementFailure):
        return replace(found, rule=rule)
    assert rule is not None
    depth = depth_around(there, layout, found.bounds.depth)
    shared = tuple(dict.fromkeys((*found.shared, *shared_levels(there, max(found.bounds.depth, ask.within)))))
    leaves = network_leaves_of(layout, ask, found)
    return replace(found, leaves=leaves, rule=rule, bounds=SpreadLimits(found.bounds.leaves, depth), shared=shared)


def shared_levels(layout: Layout, depth: int) -> tuple[str, ...]:
    """Return the levels that are woven in, or cut these, of which one domain is shared where one of this depth is."""
    return tuple(level for level in layout.levels[: max(0, depth)] if level in layout.woven)


def network_leaves_of(layout: Layout, ask: PlacementQuery, found: Placement) -> list[int]:
    """Return the leaves of the network that a whole gang uses."""
    return sorted(layout.network.leaves_of(row for some in (*found.rows, ask.running) for row in some))


def torn_domain(layout: Layout, ask: PlacementQuery, placement: Placement) -> str:
    """Return the level that members should share beside those of their fabric and don't, or an empty string."""
    levels = {*placement.shared, *shared_levels(layout, ask.within)}
    tree, network = layout.accelerators, layout.network
    if not levels or ask.running or tree is None:
        return ""
    rows = np.fromiter((row for some in placement.rows for row in some), np.int64)
    for level in levels:
        of_row = tree.of_row(level) if level in tree.levels else _network_domains(network, level)
        found = np.unique(of_row[rows])
        if len(found) > 1 or int(found[0]) < 0:
            return level
    return ""


def _network_domains(network: Layout, level: str) -> Int64:
    """Return the domain of each row at a level of the network (int64[rows]), -1 where there is none."""
    return network.outer(network.levels.index(level) + 1).leaf_of_row


def domains_apart(ask: PlacementQuery, layout: Layout, fit: Int64) -> Iterator[Int64]:
    """Yield how many members each row takes (int64[rows]), once for each accelerator domain that the gang may share.

    As it is where it need not share one; the domain with most room first, none without enough.
    """
    shared = second_levels(layout, shared_levels(layout, ask.within))
    if not shared or layout.accelerators is None:
        yield fit
        return
    of_row = layout.accelerators.of_row(shared[-1])
    known = of_row >= 0
    room = np.bincount(of_row[known], weights=fit[known]).astype(np.int64)
    for domain in np.argsort(-room, kind="stable").tolist():
        if int(room[domain]) < ask.members:
            return
        yield np.where(of_row == domain, fit, 0)
