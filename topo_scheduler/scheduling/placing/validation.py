"""The last look before a placement is assumed: topology, bandwidth and capacity, checked anew without the kernels.

It can't fail while kernels and caches are right. When it does, the placement is dropped and the fault is told
loudly: a wrong placement of a gang costs more than a late one.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.ask import ANYWHERE, Placement, PlacementQuery, SizeRuleLimits
from topo_scheduler.scheduling.placing.bandwidth import check_links
from topo_scheduler.scheduling.placing.second_tree import torn_domain
from topo_scheduler.scheduling.placing.segments import broken_segment, seen_by
from topo_scheduler.scheduling.rules.feasible import allowed_rows
from topo_scheduler.scheduling.rules.filters import eligible
from topo_scheduler.scheduling.rules.neighbours import FilterContext
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import NodeTable
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.resources import GPU

_FEW: Final = 32
"""Rows up to which Python counts them faster than NumPy."""


def check(
    around: FilterContext, layout: Layout, ask: PlacementQuery, placement: Placement, limits: SizeRuleLimits
) -> str:
    """Return what is wrong with a placement, or an empty string."""
    nodes = around.nodes
    wrong = _check_nodes(around, ask, placement)
    if not wrong and placement.seated:
        wrong = holds_in_turn(around, ask, placement.rows, placement.seated)
    if not wrong and around.links is not None:
        wrong = check_links(around.links, ask, placement)
    return wrong or _check_domains(nodes, layout, ask, placement, limits)


def _check_nodes(around: FilterContext, ask: PlacementQuery, placement: Placement) -> str:
    nodes = around.nodes
    if ask.members == 1 and not placement.seated and len(placement.rows) == len(placement.rows[0]) == 1:
        return _check_alone(around, ask.groups[0][0], placement.rows[0][0])
    for (cls, count), rows in zip(ask.groups, placement.rows, strict=True):
        if len(rows) != count:
            return f"{len(rows)} of {count} members have a node"
        distinct = np.array(sorted(set(rows)), np.int64)
        accepted = eligible(nodes, cls, distinct)
        if not placement.seated:
            accepted &= allowed_rows(around, cls, distinct)
        if broken := _check_caps(around, cls, rows):
            return broken
        if len(refused := distinct[~accepted]):
            return f"node {nodes.names[int(refused[0])]} may not be used"
        if cls.constraints is not None and cls.constraints.alone and len(distinct) < len(rows):
            return "two members that exclude each other are on one node"
        if cls.share:
            numbers = np.unique(rows, return_counts=True)[1]
            whole = nodes.allocatable[distinct, GPU] - nodes.requested[distinct, GPU]
            if (nodes.devices.fit(distinct, cls.share, whole) < numbers).any():
                return "no GPU has room for a share that was placed on it"
    classes = [cls for cls, _ in ask.groups]
    few = sum(len(rows) for rows in placement.rows) <= _FEW
    return (_overdrawn_few if few else _overdrawn)(nodes, classes, placement.rows)


def _overdrawn(nodes: NodeTable, classes: Sequence[PodClass], rows_of_each: Sequence[Sequence[int]]) -> str:
    """Return which node has less than was placed on it; what nobody asks for may be overdrawn by others."""
    rows_of_all = np.unique(np.array([row for rows in rows_of_each for row in rows], np.int64))
    used = np.zeros((len(rows_of_all), nodes.requested.shape[1]), np.int64)
    for cls, rows in zip(classes, rows_of_each, strict=True):
        distinct, numbers = np.unique(np.array(rows, np.int64), return_counts=True)
        mine = np.searchsorted(rows_of_all, distinct)
        for column, amount in cls.amounts:
            used[mine, column] += amount * numbers
    free = nodes.allocatable[rows_of_all] - nodes.requested[rows_of_all]
    over = (used > 0) & (used > free)
    if not over.any():
        return ""
    at, column = np.argwhere(over)[0].tolist()
    return _too_much(nodes, int(rows_of_all[at]), column, int(free[at, column]), int(used[at, column]))


def _overdrawn_few(nodes: NodeTable, classes: Sequence[PodClass], rows_of_each: Sequence[Sequence[int]]) -> str:
    """Do what `_overdrawn` does without arrays, which takes a third of the time for a few rows."""
    used: dict[int, dict[int, int]] = {}
    for cls, rows in zip(classes, rows_of_each, strict=True):
        for row in rows:
            mine = used.setdefault(row, {})
            for column, amount in cls.amounts:
                mine[column] = mine.get(column, 0) + amount
    for row in sorted(used):
        has, holds = nodes.allocatable[row].tolist(), nodes.requested[row].tolist()
        for column, amount in sorted(used[row].items()):
            if amount > 0 and amount > has[column] - holds[column]:
                return _too_much(nodes, row, column, has[column] - holds[column], amount)
    return ""


def _too_much(nodes: NodeTable, row: int, column: int, free: int, placed: int) -> str:
    return f"node {nodes.names[row]} has {free} {nodes.resources.names[column]} free, {placed} were placed"


def _check_alone(around: FilterContext, cls: PodClass, row: int) -> str:
    """Check the same of one member: most workloads have no more."""
    nodes, rows = around.nodes, np.array([row], np.int64)
    accepted = eligible(nodes, cls, rows)
    if broken := _check_caps(around, cls, (row,)):
        return broken
    if not accepted[0] or not allowed_rows(around, cls, rows)[0]:
        return f"node {nodes.names[row]} may not be used"
    has, holds = nodes.allocatable[row].tolist(), nodes.requested[row].tolist()
    if cls.share and not nodes.devices.fit(rows, cls.share, np.array([has[GPU] - holds[GPU]], np.int64))[0]:
        return "no GPU has room for a share that was placed on it"
    for column, amount in cls.amounts:
        free = has[column] - holds[column]
        if amount > free:
            return _too_much(nodes, row, column, free, amount)
    return ""


def holds_in_turn(
    around: FilterContext, ask: PlacementQuery, rows: Sequence[Sequence[int]], seated: Sequence[tuple[int, int]]
) -> str:
    """Return which member may not be where it is with those before it, or an empty string."""
    extra: list[tuple[int, Profile]] = []
    around = around.remembering()
    for group, position in seated:
        charge(20 + len(extra))
        cls, profile, row = ask.groups[group][0], ask.profiles[group][position], rows[group][position]
        seen = around.seen_beside(cls, profile, extra)
        if not allowed_rows(around, seen, np.array([row], np.int64), extra).all():
            return f"node {around.nodes.names[row]} is closed by members seated before"
        if profile is not None:
            extra.append((row, profile))
    return ""


def _check_caps(around: FilterContext, cls: PodClass, rows: Sequence[int]) -> str:
    for cap in cls.caps:
        inside = int(around.domains.rows(cap.domain)[list(rows)].sum()) if around.domains else 0
        if inside > cap.now:
            return f"{inside} members are in {cap.domain or 'the cluster'}, where {cap.now} may be"
    return ""


def _check_domains(
    nodes: NodeTable, layout: Layout, ask: PlacementQuery, placement: Placement, limits: SizeRuleLimits
) -> str:
    if not ask.gang:
        return ""
    if ask.in_segments and (broken := broken_segment(ask, placement, layout.outer(ask.segments.depth))):
        return broken
    if not ask.mixed_models:
        with_gpus = [row for (cls, _), rows in zip(ask.groups, placement.rows, strict=True) if cls.gpus for row in rows]
        if len(set(nodes.model[np.array(with_gpus, np.int64)].tolist())) > 1:
            return "the gang was spread over several GPU models"
    if torn := torn_domain(layout, ask, placement):
        return f"the gang was spread over more than one {torn}"
    placed = [row for rows in placement.rows for row in rows]
    wrong = _check_spread(seen_by(ask, layout), ask, placement, placed) or _check_bounds(layout, placement, placed)
    return wrong or ("" if ask.running else _check_limits(layout, ask, placement, limits))


def _check_spread(layout: Layout, ask: PlacementQuery, placement: Placement, placed: Sequence[int]) -> str:
    """``layout`` down to the level of the gang's segments."""
    leaves = layout.leaves_of(placed)
    if ask.within and not ask.running and not _share(layout, ask.within, leaves):
        return f"the gang was spread over more than one {ask.level}"
    if ask.running or ask.enforcement is Enforcement.PREFERRED:
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


def _check_limits(layout: Layout, ask: PlacementQuery, placement: Placement, limits: SizeRuleLimits) -> str:
    if not limits.max_nodes_per_leaf and not limits.max_gpus_per_leaf:
        return ""
    nodes_in: dict[int, set[int]] = {}
    gpus_in: Counter[int] = Counter()
    for (cls, _), rows in zip(ask.groups, placement.rows, strict=True):
        for row in rows:
            leaf = int(layout.leaf_of_row[row])
            if leaf < 0:  # not on a fabric with accelerator domains, which need not be shared any more
                leaf = -1 - int(layout.network.leaf_of_row[row])
            nodes_in.setdefault(leaf, set()).add(row)
            gpus_in[leaf] += cls.gpus
    if limits.max_nodes_per_leaf and any(len(rows) > limits.max_nodes_per_leaf for rows in nodes_in.values()):
        return f"more than {limits.max_nodes_per_leaf} nodes of one leaf were used"
    if limits.max_gpus_per_leaf and any(gpus > limits.max_gpus_per_leaf for gpus in gpus_in.values()):
        return f"more than {limits.max_gpus_per_leaf} GPUs of one leaf were used"
    return ""
