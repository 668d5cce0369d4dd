"""The dominant reason why a workload is pending, in one sentence: what is free, and why that is not enough."""

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from topo_scheduler.api.text import counted, few_of, plural
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.model.size_rule import domain_depth, in_words, leaf_fits, named_at
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.rules.feasible import rejections
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.topology.fabric import Layout

BLOCK: Final = "but the largest free block"
"""Part of the reason where the cluster has enough free GPUs, but no single domain has."""


@dataclass(frozen=True, slots=True)
class Block:
    """The domain of a size rule that has room for most members.

    Attributes:
        members: members, or segments, that the domain takes.
        leaves: the leaves that count, the fullest first.
        held: what each of those leaves takes.
        bound: whether further leaves of the domain have room too, but the rule allows no more leaves.
        anywhere: what all domains take.
    """

    members: int
    leaves: tuple[int, ...]
    held: tuple[int, ...]
    bound: bool
    anywhere: int


def shortage(planner: Planner, ask: PlacementQuery, layout: Layout, rule: SizeRule) -> str:
    """Return why members of one class have no place, without a full stop. Empty where no such reason applies."""
    if len(ask.groups) != 1 or not len(layout.order):
        return ""
    cls = ask.groups[0][0]
    views = planner.views_for(ask)
    fitting = sum(int(view.fit.sum()) for view in views)
    if cls.gpus and (reason := _gpu_shortage(planner, ask, fitting)):
        return reason
    if fitting < ask.members:
        return f"{ask.members} pods are to be placed, and the nodes have room for {fitting}" if not cls.gpus else ""
    if not ask.gang:
        return ""
    if len(views) > 1 and (reason := _model_shortage(planner, ask, views, fitting)):
        return reason
    blocks = [largest_block(planner, view, ask, layout, rule) for view in views]
    block = max(blocks, key=lambda candidate: candidate.members)
    return _fragmentation_text(planner, ask, layout, rule, block, fitting) if 0 < block.members < ask.members else ""


def largest_block(
    planner: Planner, view: ClassView, ask: PlacementQuery, layout: Layout, rule: SizeRule, segment: int = 1
) -> Block:
    """Return the domain of the rule that takes most members now, in as many leaves as the rule allows.

    ``segment``: members of a segment; with more than 1, segments are counted.
    """
    fits = leaf_fits(view, layout, planner.limits_for(ask), segment=segment)
    if ask.within > 0:
        fits = fits * named_at(layout, ask.within)
    best = Block(0, (), (), False, int(fits.sum()))
    offsets = layout.domains[domain_depth(layout, rule)].tolist()
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(fits, dtype=np.int64)))[offsets].tolist()
    for index, (first, last) in enumerate(pairwise(offsets)):
        total = sums[index + 1] - sums[index]
        if total <= best.members:
            continue
        fullest = first + np.argsort(-fits[first:last], kind="stable")[: rule.leaves]
        leaves = [leaf for leaf in fullest.tolist() if fits[leaf]]
        held = [int(fits[leaf]) for leaf in leaves]
        if sum(held) > best.members:
            best = replace(best, members=sum(held), leaves=tuple(leaves), held=tuple(held), bound=sum(held) < total)
    return best


def names_of(layout: Layout, leaves: tuple[int, ...]) -> list[str]:
    """Return the names of leaves: the last part of the path if no other leaf has that name, else the whole path."""
    called = Counter(path[-1] for path in layout.paths)
    paths = [layout.paths[leaf] for leaf in leaves]
    return [path[-1] if called[path[-1]] == 1 else "/".join(path) for path in paths]


# ---------------------------------------------------------------- inside


def _free_gpus(planner: Planner) -> tuple[Int64, Int64]:
    """Return the free GPUs of each row, twice (int64[rows]): of nodes that are ready and schedulable, and of others."""
    nodes = planner.nodes
    free = np.maximum(0, nodes.allocatable[:, GPU] - nodes.requested[:, GPU])
    usable = nodes.exists & nodes.ready & ~nodes.unschedulable
    return np.where(usable, free, 0), np.where(nodes.exists & ~usable, free, 0)


def _gpu_shortage(planner: Planner, ask: PlacementQuery, fitting: int) -> str:
    """Return the reason if too few GPUs are free: in the cluster, on nodes the pods may use, or on single nodes."""
    cls = ask.groups[0][0]
    needed = ask.members * cls.gpus
    free, away = _free_gpus(planner)
    total = int(free.sum())
    if total < needed:
        unavailable = f"; {int(away.sum())} more are on nodes that are cordoned or not ready" if away.any() else ""
        needed_text = counted(needed, "GPU", "is needed", "are needed")
        return f"{needed_text} and {total} {'is' if total == 1 else 'are'} free{unavailable}"
    excluded, reason = _excluded_gpus(planner, ask, free)
    if total - excluded < needed:
        return f"{counted(total, 'GPU', 'is free', 'are free')}, but {excluded} of them on {reason}"
    if fitting < ask.members:
        usable = f"only {fitting * cls.gpus} of them" if fitting else "none of them"
        free_text = counted(total, "GPU", "is free", "are free")
        return f"{free_text}, but {usable} where a pod of {counted(cls.gpus, 'GPU')} has room"
    return ""


def _excluded_gpus(planner: Planner, ask: PlacementQuery, free: Int64) -> tuple[int, str]:
    """Return the free GPUs of nodes that filters exclude, and the reason of the filter that excludes most of them."""
    view = planner.views.get(ask.groups[0][0])
    rows = np.flatnonzero((free > 0) & ~view.open).astype(np.int64)
    excluded_by: Counter[str] = Counter()
    try:
        for reason, rejected in rejections(planner.around, view.cls, rows):
            if not reason.startswith(("Insufficient", "Too many")):
                excluded_by[reason] += int(free[rows[rejected]].sum())
    except ClaimError:
        return 0, ""  # the reason of the claim already covers all nodes
    if not excluded_by:
        return 0, ""
    excluded, (reason, largest) = (
        sum(excluded_by.values()),
        max(excluded_by.items(), key=lambda item: (item[1], item[0])),
    )
    reason_text = nodes_with(reason)
    return (
        excluded,
        reason_text if largest == excluded else f"nodes they may not use, {largest} of these on {reason_text}",
    )


def nodes_with(reason: str) -> str:
    """Return the nodes that a filter excludes, by its reason: ``nodes that had untolerated taint(s)``."""
    of_nodes = re.fullmatch(r"node\(s\) (in |where |unavailable )?(.*)", reason, re.DOTALL)
    if of_nodes is None:
        return f'nodes with "{reason}"'
    return f"nodes {of_nodes[1] or 'that '}{of_nodes[2]}"


def _model_shortage(planner: Planner, ask: PlacementQuery, views: list[ClassView], fitting: int) -> str:
    best_view = max(views, key=lambda candidate: int(candidate.fit.sum()))
    members = int(best_view.fit.sum())
    if members >= ask.members:
        return ""
    gpus_per_pod = ask.groups[0][0].gpus
    model = planner.nodes.models[best_view.model] if best_view.model not in (UNKNOWN, -2) else "nodes without a model"
    return (
        f"{_free_text(planner, gpus_per_pod, fitting)}, but of one GPU model at most {members * gpus_per_pod}: {model}"
    )


def _fragmentation_text(
    planner: Planner, ask: PlacementQuery, layout: Layout, rule: SizeRule, block: Block, fitting: int
) -> str:
    gpus = ask.groups[0][0].gpus
    gpus_per_member = gpus or 1
    free_text = _free_text(planner, gpus, fitting) if gpus else f"There is room for {fitting} pods"
    if rule.leaves == 1:
        where = f"in one {in_words(rule.domain, layout)}"
    else:
        under = f"under one {rule.domain}" if rule.depth else "in the whole cluster"
        where = f"in {rule.leaves} {plural(layout.levels[-1])} {under}" if block.bound else under
    names = names_of(layout, block.leaves)
    if len(block.leaves) == 1:
        leaf_texts = names[0]
    else:
        leaf_texts = few_of(
            [f"{name} {held * gpus_per_member}" for name, held in zip(names, block.held, strict=True)], 8
        )
    limits = planner.limits_for(ask)
    return f"{free_text}, {BLOCK} {where} is {block.members * gpus_per_member}{limits.within}: {leaf_texts}"


def _free_text(planner: Planner, gpus_per_pod: int, fitting: int) -> str:
    """Return how many GPUs are free on nodes where pods have room, as text."""
    free = fitting * gpus_per_pod
    where = f" where a pod of {counted(gpus_per_pod, 'GPU')} has room"
    return counted(free, "GPU", "is free", "are free") + (where if int(_free_gpus(planner)[0].sum()) != free else "")
