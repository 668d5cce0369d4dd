"""Gangs whose members ask for different things (a launcher and its workers): placed as one.

Windows of neighbouring leaves are filled in first, the most demanding class before the others: that is quick, and finds
most. Where it fails, or might have used fewer leaves, `Packer` searches completely, as long as its work is bounded.
Where they are in segments, leaves are filled with whole segments, and the search counts these.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.ask import Placement, PlacementFailure, PlacementQuery, SpreadLimits
from topo_scheduler.scheduling.placing.carried import carried, links_key
from topo_scheduler.scheduling.placing.equals import EqualSearch as EqualSearch
from topo_scheduler.scheduling.placing.equals import best_of_equals
from topo_scheduler.scheduling.placing.filling import Filler
from topo_scheduler.scheduling.placing.kinds import SegmentBounds as SegmentBounds
from topo_scheduler.scheduling.placing.kinds import kinds_of
from topo_scheduler.scheduling.placing.packer import FEW_NODES, Found, Packer
from topo_scheduler.scheduling.placing.segment_packing import SegmentFiller, SegmentPacker
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.size_rule import leaf_fits, make_rule, named_at
from topo_scheduler.scheduling.placing.views import ANY_MODEL, ClassView
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge_rows

TRIES: Final = 512
"""Windows filled in at most for one width: more are not worth the time they take from others."""


def plan_mixed(site: PlanningContext, ask: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
    """Place a gang of several classes."""
    views = variants(site, ask)
    home = layout.leaves_of(ask.running)
    empty = _rule_of(site, views, ask, layout)
    if empty is None:
        return PlacementFailure(_too_large(ask))
    rule = empty
    if home:
        near = _look(_GangNodes(site, views, ask, layout), near=home)
        if near is None:
            return PlacementFailure("", rule)
        used = sorted(home | layout.leaves_of(row for group in near[2] for row in group))
        if 0 < ask.bounds.leaves < len(used) > len(home):
            return PlacementFailure("", rule)
        return Placement(near[2], used, rule, common_score(site, ask, layout, used, rule), 1)
    for labelled in labelled_first(layout):
        ground = _GangNodes(site, views, ask, layout, labelled=labelled)
        found = _look(ground, rule=rule)
        if found is None and ask.enforcement is Enforcement.PREFERRED:
            found = _look(ground)
        if found is not None:
            search = ground.among(found[0], rule)
            (_, _, rows), score, compared = best_of_equals(site, ask, layout, search, found, now)
            return Placement(rows, sorted(layout.leaves_of(itertools.chain(*rows))), rule, score, compared)
    return PlacementFailure("", rule)


def labelled_first(layout: Layout) -> tuple[bool, ...]:
    """Return in which turns to look for a place: without leaves that lack a label, then with them."""
    some = bool(layout.aligned.any())
    return (True, False) if some and not layout.aligned.all() else (some,)


def _too_large(ask: PlacementQuery) -> str:
    """Return the reason for a gang that not even an empty cluster could hold."""
    gang = f"the gang of {ask.total} pods"
    if ask.in_segments:
        gang += f" in segments that must each share one {ask.segments.level}"
    if ask.within:
        return f"no {ask.level} holds {gang} even when empty, and {ask.because} asks for one"
    return f"{gang} is larger than the cluster: no domain holds it even when empty"


def rule_of(site: PlanningContext, ask: PlacementQuery, layout: Layout) -> SizeRule | None:
    """Return the size rule of a gang of several classes, None when not even an empty cluster holds it."""
    return _rule_of(site, variants(site, ask), ask, layout)


def fewest_nodes(site: PlanningContext, ask: PlacementQuery, layout: Layout) -> int:
    """Return how many nodes the search gives a gang of several classes on an empty cluster; a node a pod if none."""
    found = _rule_of(site, variants(site, ask), ask, layout)
    return found.nodes if found is not None else ask.total


def _rule_of(
    site: PlanningContext, variants: list[list[ClassView]], ask: PlacementQuery, layout: Layout
) -> SizeRule | None:
    """Return the size rule, None when not even an empty cluster holds the gang."""

    def compute() -> tuple[SizeRule | None, int]:
        def find(ask: PlacementQuery, depth: int | None) -> Found | None:
            grounds = (
                _GangNodes(site, variants, ask, layout, labelled=one, empty=True) for one in labelled_first(layout)
            )
            return next((found for ground in grounds if (found := _look(ground, at=depth)) is not None), None)

        fit = np.max([np.sum([view.empty_fit for view in views], axis=0) for views in variants], axis=0)
        found = carried(site, ask, layout, find, fit)
        if found is None:
            return None, 0
        depth, leaves, rows = found
        return make_rule(layout, depth, leaves, len({row for group in rows for row in group})), 0

    seen = tuple((view.number, view.reach_changes) for views in variants for view in views)
    counts = tuple(count for _, count in ask.groups)
    limits, segments = site.limits_for(ask), ask.segments.parts
    key = ("mixed", seen, counts, limits, ask.within, ask.bounds, layout.depth, segments, links_key(site, ask, layout))
    return site.remembered(key, layout, compute)[0]


def variants(site: PlanningContext, ask: PlacementQuery) -> list[list[ClassView]]:
    """Return the views of every class, once a GPU model that the gang may keep to."""
    classes = [cls for cls, _ in ask.groups]
    with_gpus = [cls for cls in classes if cls.gpus]
    if ask.mixed_models or not with_gpus:
        return [[site.views.get(cls) for cls in classes]]
    model = site.running_model(ask)
    models = [model] if model != UNKNOWN else site.views.get(with_gpus[0]).models or [ANY_MODEL]
    return [[site.views.get(cls, model if cls.gpus else ANY_MODEL) for cls in classes] for model in models]


class _GangNodes:
    """The nodes as one gang sees them: as they are or empty, all of them or those whose leaf has all labels."""

    def __init__(
        self,
        site: PlanningContext,
        variants: list[list[ClassView]],
        ask: PlacementQuery,
        layout: Layout,
        *,
        labelled: bool = False,
        empty: bool = False,
    ) -> None:
        limits = site.limits_for(ask)
        self.variants, self.ask, self.layout = variants, ask, layout
        self.fit = [[ask.within_links(view.empty_fit if empty else view.fit) for view in views] for views in variants]
        fits = [
            np.stack([leaf_fits(view, layout, limits, fit=fit) for view, fit in zip(views, some, strict=True)])
            for views, some in zip(variants, self.fit, strict=True)
        ]
        open_ = named_at(layout, ask.within) if ask.within else np.ones(len(layout.paths), np.int64)
        self.fits = [fit * (open_ * layout.aligned if labelled else open_) for fit in fits]
        self.needed = np.array([count for _, count in ask.groups], np.int64)
        used = site.nodes.daemons if empty else site.nodes.requested
        self._fillers = [Filler(site, views, ask, layout, used, empty=empty) for views in variants]
        self._segments: tuple[SegmentFiller, SegmentBounds] | None = None
        self._packer = Packer(site, ask, layout, used, empty=empty)
        if ask.segments.parts:
            kinds = kinds_of(ask)
            self._segments = SegmentFiller(kinds, ask, layout), SegmentBounds(kinds)
            self._packer = SegmentPacker(site, ask, layout, used, kinds, empty=empty)

    def at_width(self, depth: int, width: int, near: set[int] | None) -> Found | None:
        """Fill in windows of so many leaves of a level."""
        for number, held in enumerate(self.fits):
            bounds, needed = held, self.needed[:, None]
            if self._segments is not None:
                bounds, needed = self._segments[1].of(held), self._segments[1].wanted
            charge_rows(bounds.size, 2)
            windows = _windows(self.layout, depth, width, bounds, needed, near)
            for first in itertools.islice(windows, TRIES):
                if (rows := self._filled(number, first, width)) is not None:
                    return depth, width, rows
        return None

    def fewest(self, depth: int, most: int, leaves: Sequence[int] | None = None) -> Found | None:
        """Search a level completely, for a place in so many leaves at most; ``leaves``: in no others."""
        fits = self.fits
        if leaves is not None:
            mask = np.zeros(len(self.layout.paths), np.int64)
            mask[list(leaves)] = 1
            fits = [fit * mask for fit in fits]
        return self._packer.fewest(self.variants, fits, depth, most)

    def among(self, depth: int, rule: SizeRule) -> EqualSearch[Found]:
        """Return how the places of a level are compared."""

        def hold(leaves: Sequence[int]) -> Found | None:
            if leaves[-1] - leaves[0] == len(leaves) - 1:
                for number in range(len(self.fits)):
                    if (rows := self._filled(number, leaves[0], len(leaves))) is not None:
                        return depth, len(leaves), rows
            return self.fewest(depth, len(leaves), leaves)

        few = max(int((np.max(fit, axis=0) > 0).sum()) for fit in self.fit) <= FEW_NODES
        held = np.max(self.fits, axis=0)
        view, fit = self.variants[0][0], self.fit[0][0]
        return EqualSearch(depth, rule, view, fit, held, few, hold, lambda found: found[2])

    def _filled(self, number: int, first: int, width: int) -> list[list[int]] | None:
        """Return rows of each group in a window, the most demanding class before the others; None where that fails."""
        layout, filler, held = self.layout, self._fillers[number], self.fits[number]
        if self._segments is not None:
            return self._segments[0].fill(filler, held, first, width)
        inside = layout.order[layout.offsets[first] : layout.offsets[first + width]]
        room = held[:, first : first + width].max(axis=0)
        if not room.all():
            inside = inside[room[layout.leaf_of_row[inside] - first] > 0]
        filled = filler.fill(inside, self.needed)
        return None if filled is None else [np.repeat(inside, group).tolist() for group in filled]


def _look(
    ground: _GangNodes, *, rule: SizeRule | None = None, near: set[int] | None = None, at: int | None = None
) -> Found | None:
    """Return the lowest level that holds the gang, the fewest leaves of it, and the rows of each group.

    ``rule`` whose level and leaves are kept to; ``near`` leaves where some of it run; ``at`` the only level to look at.
    """
    ask, layout = ground.ask, ground.layout
    within = bound(layout, ask.within, near)
    spreads = _spreads(layout, rule, within, ask.bounds)
    if near and within >= layout.depth:
        spreads = iter([(layout.depth, [1])])  # no other leaf of the same parent
    for depth, widths in spreads:
        if at is not None and depth != at:
            continue
        found = None
        for width in widths:
            found = ground.at_width(depth, width, near)
            if found is not None:
                break
        most = widths[-1] if found is None else found[1] - 1
        if not near and most > 0:
            found = ground.fewest(depth, most) or found
        if found is not None:
            return found
    return None


def bound(layout: Layout, within: int, near: set[int] | None) -> int:
    """Return the depth of the domain that must not be left; none where those that run left it before."""
    return 0 if near and len({layout.domain_of_leaf(within, leaf) for leaf in near}) > 1 else within


def _spreads(
    layout: Layout, rule: SizeRule | None, within: int, bounds: SpreadLimits
) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield levels with how many leaves may be used, the innermost first."""
    if rule is not None:
        yield rule.depth, [rule.leaves]
        return
    if within >= layout.depth:
        yield layout.depth - 1, [1]
        return
    for depth in range(layout.depth - 1, max(within, bounds.depth) - 1, -1):
        most = int(np.diff(layout.domains[depth]).max(initial=0))
        if most:
            yield depth, range(1, min(most, bounds.leaves or most) + 1)


def _windows(
    layout: Layout, depth: int, width: int, fits: Int64, needed: Int64, near: set[int] | None
) -> Iterator[int]:
    """First leaves of the windows that hold every class taken alone."""
    sums = np.concatenate((np.zeros((len(fits), 1), np.int64), np.cumsum(fits, axis=1)), axis=1)
    held: npt.NDArray[np.bool_] = np.all(sums[:, width:] - sums[:, :-width] >= needed, axis=0)
    firsts = np.arange(held.size, dtype=np.int64)
    ends = np.repeat(layout.domains[depth][1:], np.diff(layout.domains[depth]))
    inside = firsts + width <= ends[: held.size]
    found: list[int] = np.flatnonzero(held & inside).tolist()
    if near:
        # A level of which one domain holds all that runs: nearer than any beyond it.
        homes = {layout.domain_of_leaf(depth, leaf) for leaf in near}
        if len(homes) > 1:
            return iter(())
        low, high = layout.domains[depth][homes.pop() :][:2].tolist()
        found = [first for first in found if low <= first < high]
        found.sort(key=lambda first: (min(abs(leaf - first) for leaf in near), first))
    return iter(found)


def common_score(
    site: PlanningContext, ask: PlacementQuery, layout: Layout, leaves: list[int], rule: SizeRule
) -> ScoreParts:
    """Return the score of leaves used by a gang of several classes."""
    totals = site.totals(ask.groups[0][0].scarce, layout)
    index = np.array(leaves, np.int64)
    capacity = max(1, int(totals.capacity[index].sum()))
    share = 1000 * int(totals.used[index].sum()) // capacity
    aligned = 1000 * rule.leaves // max(rule.leaves, len(leaves)) * int(layout.aligned[index].min())
    parts = (1000 - share, aligned, share, 1000)
    weights = site.policy.weights.tolist()
    total = sum(weight * part for weight, part in zip(weights, parts, strict=True)) // max(1, sum(weights))
    return ScoreParts(*parts, total)
