"""Placement of gangs with members of several classes, such as a launcher and its workers.

First the planner fills windows of neighbouring leaves, the most demanding class before the others. That is quick and
finds most placements. Where it fails, or where fewer leaves might suffice, `Packer` runs a complete search with a bound
on its work. For gangs in segments, the planner fills leaves with whole segments, and the search counts segments.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext, PlanningTask
from topo_scheduler.scheduling.placing.heterogeneous.bandwidth_size_rule import links_key, rule_with_links
from topo_scheduler.scheduling.placing.heterogeneous.filling import Filler
from topo_scheduler.scheduling.placing.heterogeneous.packer import FEW_NODES, Found, Packer
from topo_scheduler.scheduling.placing.heterogeneous.segment_packing import SegmentFiller, SegmentPacker
from topo_scheduler.scheduling.placing.model.class_views import ANY_MODEL, ClassView
from topo_scheduler.scheduling.placing.model.placement_query import (
    Placement,
    PlacementFailure,
    PlacementQuery,
    SpreadLimits,
)
from topo_scheduler.scheduling.placing.model.segment_shapes import SegmentBounds, kinds_of
from topo_scheduler.scheduling.placing.model.size_rule import leaf_fits, named_at
from topo_scheduler.scheduling.placing.scoring.tie_breaking import EqualSearch, best_of_equals
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge_rows
from topo_scheduler.state.topology.fabric import Layout

MAX_WINDOWS: Final = 512
"""The most windows to fill for one width: more are not worth the time."""


def plan_mixed(task: PlanningTask) -> Placement | PlacementFailure:
    """Place a gang of several classes."""
    query, layout = task.query, task.layout
    views = variants(task.context, query)
    running_leaves = layout.leaves_of(query.running)
    rule = rule_of(task, views)
    if rule is None:
        return PlacementFailure(_too_large(query), too_large=True)
    if running_leaves:
        nearest = _look(_GangNodes(task, views), near=running_leaves)
        if nearest is None:
            return PlacementFailure("", rule)
        used = sorted(running_leaves | layout.leaves_of(row for group in nearest[2] for row in group))
        if 0 < query.bounds.leaves < len(used) > len(running_leaves):
            return PlacementFailure("", rule)
        return Placement(nearest[2], used, rule, common_score(task, used, rule), 1)
    for labelled in labelled_first(layout):
        gang_nodes = _GangNodes(task, views, labelled=labelled)
        result = _look(gang_nodes, rule=rule)
        if result is None and query.enforcement is Enforcement.PREFERRED:
            result = _look(gang_nodes)
        if result is not None:
            search = gang_nodes.among(result[0], rule)
            (_, _, rows), score, compared = best_of_equals(task, search, result)
            return Placement(rows, sorted(layout.leaves_of(itertools.chain(*rows))), rule, score, compared)
    return PlacementFailure("", rule)


def labelled_first(layout: Layout) -> tuple[bool, ...]:
    """Return the values of ``labelled`` to try in turn: True for fully labelled leaves only, False for all leaves."""
    any_labelled = bool(layout.aligned.any())
    return (True, False) if any_labelled and not layout.aligned.all() else (any_labelled,)


def _too_large(query: PlacementQuery) -> str:
    """Return the reason for a gang that not even an empty cluster could hold."""
    gang = f"the gang of {query.total} pods"
    if query.in_segments:
        gang += f" in segments that must each share one {query.segments.level}"
    if query.within:
        return f"no {query.level} holds {gang} even when empty, and {query.because} asks for one"
    return f"{gang} is larger than the cluster: no domain holds it even when empty"


def rule_of(task: PlanningTask, variants: list[list[ClassView]]) -> SizeRule | None:
    """Return the size rule of a gang of several classes, None if not even an empty cluster holds the gang.

    ``variants``: a view of each class, for each GPU model that the whole gang may use.
    """
    context, query, layout = task.context, task.query, task.layout

    def compute() -> tuple[SizeRule | None, int]:
        def find(query: PlacementQuery, depth: int | None) -> Found | None:
            candidates = (
                _GangNodes(PlanningTask(context, query, layout), variants, labelled=labelled, empty=True)
                for labelled in labelled_first(layout)
            )
            return next(
                (result for gang_nodes in candidates if (result := _look(gang_nodes, only_depth=depth)) is not None),
                None,
            )

        return rule_with_links(task, find, variants), 0

    view_states = tuple((view.number, view.reach_changes) for views in variants for view in views)
    counts = tuple(count for _, count in query.groups)
    limits, segments = context.limits_for(query), query.segments.parts
    key = (
        "mixed",
        view_states,
        counts,
        limits,
        query.within,
        query.bounds,
        layout.depth,
        segments,
        links_key(task),
    )
    return context.remembered(key, layout, compute)[0]


def variants(context: PlanningContext, query: PlacementQuery) -> list[list[ClassView]]:
    """Return the views of all classes, one list for each GPU model that the whole gang may use."""
    classes = [cls for cls, _ in query.groups]
    with_gpus = [cls for cls in classes if cls.gpus]
    if query.mixed_models or not with_gpus:
        return [[context.views.get(cls) for cls in classes]]
    model = context.running_model(query)
    models = [model] if model != UNKNOWN else context.views.get(with_gpus[0]).models or [ANY_MODEL]
    return [[context.views.get(cls, model if cls.gpus else ANY_MODEL) for cls in classes] for model in models]


class _GangNodes:
    """The nodes as one gang sees them: as they are or empty, all nodes or only those in fully labelled leaves."""

    def __init__(
        self, task: PlanningTask, variants: list[list[ClassView]], *, labelled: bool = False, empty: bool = False
    ) -> None:
        nodes, limits, query, layout = task.context.nodes, task.limits, task.query, task.layout
        self.variants, self.query, self.layout = variants, query, layout
        self.fit = [[query.within_links(view.empty_fit if empty else view.fit) for view in views] for views in variants]
        fits = [
            np.stack([leaf_fits(view, layout, limits, fit=fit) for view, fit in zip(views, row_fits, strict=True)])
            for views, row_fits in zip(variants, self.fit, strict=True)
        ]
        usable_leaves = named_at(layout, query.within) if query.within else np.ones(len(layout.paths), np.int64)
        self.fits = [fit * (usable_leaves * layout.aligned if labelled else usable_leaves) for fit in fits]
        self.needed = np.array([count for _, count in query.groups], np.int64)
        used = nodes.daemons if empty else nodes.requested
        self._fillers = [Filler(task, views, used, empty=empty) for views in variants]
        self._segments: tuple[SegmentFiller, SegmentBounds] | None = None
        self._packer = Packer(task, used, empty=empty)
        if query.segments.parts:
            kinds = kinds_of(query)
            self._segments = SegmentFiller(kinds, query, layout), SegmentBounds(kinds)
            self._packer = SegmentPacker(task, used, kinds, empty=empty)
        self._sums = [_sums_of(self._segments[1].of(fits) if self._segments else fits) for fits in self.fits]

    def at_width(self, depth: int, width: int, near: set[int] | None) -> Found | None:
        """Return the first window of ``width`` leaves at a depth that can be filled, None if there is none."""
        needed = self.needed[:, None] if self._segments is None else self._segments[1].required
        for number, sums in enumerate(self._sums):
            charge_rows(len(sums) * (sums.shape[1] - 1), 2)
            windows = _windows(self.layout, depth, width, sums, needed, near)
            for first in itertools.islice(windows, MAX_WINDOWS):
                if (rows := self._filled(number, first, width)) is not None:
                    return depth, width, rows
        return None

    def fewest(self, depth: int, max_leaves: int, leaves: Sequence[int] | None = None) -> Found | None:
        """Search one depth completely, for a placement in at most ``max_leaves`` leaves; ``leaves``: only in these."""
        fits = self.fits
        if leaves is not None:
            mask = np.zeros(len(self.layout.paths), np.int64)
            mask[list(leaves)] = 1
            fits = [fit * mask for fit in fits]
        return self._packer.fewest(self.variants, fits, depth, max_leaves)

    def among(self, depth: int, rule: SizeRule) -> EqualSearch[Found]:
        """Return the search that compares the placements at a depth."""

        def hold(leaves: Sequence[int]) -> Found | None:
            if leaves[-1] - leaves[0] == len(leaves) - 1:
                for number in range(len(self.fits)):
                    if (rows := self._filled(number, leaves[0], len(leaves))) is not None:
                        return depth, len(leaves), rows
            return self.fewest(depth, len(leaves), leaves)

        few_nodes = max(int((np.max(fit, axis=0) > 0).sum()) for fit in self.fit) <= FEW_NODES
        most_held = np.max(self.fits, axis=0)
        view, fit = self.variants[0][0], self.fit[0][0]
        return EqualSearch(depth, rule, view, fit, most_held, few_nodes, hold, lambda placed: placed[2])

    def _filled(self, number: int, first: int, width: int) -> list[list[int]] | None:
        """Fill a window, the most demanding class first; return the rows of each group, or None where that fails."""
        layout, filler, fits = self.layout, self._fillers[number], self.fits[number]
        if self._segments is not None:
            return self._segments[0].fill(filler, fits, first, width)
        rows = layout.order[layout.offsets[first] : layout.offsets[first + width]]
        usable = fits[:, first : first + width].max(axis=0)
        if not usable.all():
            rows = rows[usable[layout.leaf_of_row[rows] - first] > 0]
        filled = filler.fill(rows, self.needed)
        return None if filled is None else [np.repeat(rows, group).tolist() for group in filled]


def _look(
    gang_nodes: _GangNodes, *, rule: SizeRule | None = None, near: set[int] | None = None, only_depth: int | None = None
) -> Found | None:
    """Return the deepest level that holds the gang, the fewest leaves there, and the rows of each group.

    ``rule``: keep to its level and number of leaves. ``near``: leaves where members run already. ``only_depth``: search
    this depth only.
    """
    query, layout = gang_nodes.query, gang_nodes.layout
    within = bound(layout, query.within, near)
    spreads = _spreads(layout, rule, within, query.bounds)
    if near and within >= layout.depth:
        spreads = iter([(layout.depth, [1])])  # no other leaf of the same parent
    for depth, widths in spreads:
        if only_depth is not None and depth != only_depth:
            continue
        placed = None
        for width in widths:
            placed = gang_nodes.at_width(depth, width, near)
            if placed is not None:
                break
        limit = widths[-1] if placed is None else placed[1] - 1
        if not near and limit > 0:
            placed = gang_nodes.fewest(depth, limit) or placed
        if placed is not None:
            return placed
    return None


def bound(layout: Layout, within: int, near: set[int] | None) -> int:
    """Return the depth of the domain that the gang must share, 0 if its running members are in several domains."""
    return 0 if near and len({layout.domain_of_leaf(within, leaf) for leaf in near}) > 1 else within


def _spreads(
    layout: Layout, rule: SizeRule | None, within: int, bounds: SpreadLimits
) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield depths, the innermost first, each with the numbers of leaves to try."""
    if rule is not None:
        yield rule.depth, [rule.leaves]
        return
    if within >= layout.depth:
        yield layout.depth - 1, [1]
        return
    for depth in range(layout.depth - 1, max(within, bounds.depth) - 1, -1):
        largest = int(np.diff(layout.domains[depth]).max(initial=0))
        if largest:
            yield depth, range(1, min(largest, bounds.leaves or largest) + 1)


def _sums_of(fits: Int64) -> Int64:
    """Return the sums of the leaves before each leaf, and of all: int64[classes, leaves + 1]."""
    return np.concatenate((np.zeros((len(fits), 1), np.int64), np.cumsum(fits, axis=1)), axis=1)


def _windows(
    layout: Layout, depth: int, width: int, sums: Int64, needed: Int64, near: set[int] | None
) -> Iterator[int]:
    """Yield the first leaves of the windows that hold each class by itself; ``sums`` are those of `_sums_of`."""
    enough: npt.NDArray[np.bool_] = np.all(sums[:, width:] - sums[:, :-width] >= needed, axis=0)
    if not enough.any():
        return iter(())
    firsts = np.arange(enough.size, dtype=np.int64)
    ends = np.repeat(layout.domains[depth][1:], np.diff(layout.domains[depth]))
    in_domain = firsts + width <= ends[: enough.size]
    starts: list[int] = np.flatnonzero(enough & in_domain).tolist()
    if near:
        # One domain of this level holds all running members: it is nearer than any other.
        domains_of_near = {layout.domain_of_leaf(depth, leaf) for leaf in near}
        if len(domains_of_near) > 1:
            return iter(())
        low, high = layout.domains[depth][domains_of_near.pop() :][:2].tolist()
        starts = [first for first in starts if low <= first < high]
        starts.sort(key=lambda first: (min(abs(leaf - first) for leaf in near), first))
    return iter(starts)


def common_score(task: PlanningTask, leaves: list[int], rule: SizeRule) -> ScoreParts:
    """Return the score of the leaves that a gang of several classes uses."""
    totals = task.context.totals(task.query.groups[0][0].scarce, task.layout)
    index = np.array(leaves, np.int64)
    capacity = max(1, int(totals.capacity[index].sum()))
    share = 1000 * int(totals.used[index].sum()) // capacity
    aligned = 1000 * rule.leaves // max(rule.leaves, len(leaves)) * int(task.layout.aligned[index].min())
    parts = (1000 - share, aligned, share, 1000)
    weights = task.context.policy.weights.tolist()
    total = sum(weight * part for weight, part in zip(weights, parts, strict=True)) // max(1, sum(weights))
    return ScoreParts(*parts, total)
