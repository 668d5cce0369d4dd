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
from topo_scheduler.scheduling.placing.ask import Ask, Bounds, Failure, Placement
from topo_scheduler.scheduling.placing.carried import carried, links_key
from topo_scheduler.scheduling.placing.filling import Filler
from topo_scheduler.scheduling.placing.kinds import Bounds as SegmentBounds
from topo_scheduler.scheduling.placing.kinds import kinds_of
from topo_scheduler.scheduling.placing.packer import Found, Packer
from topo_scheduler.scheduling.placing.segment_packing import SegmentFiller, SegmentPacker
from topo_scheduler.scheduling.placing.site import Site
from topo_scheduler.scheduling.placing.size_rule import leaf_fits, make_rule, named_at
from topo_scheduler.scheduling.placing.views import ANY_MODEL, ClassView
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import UNKNOWN, Int64

TRIES: Final = 512
"""Windows filled in at most for one width: more are not worth the time they take from others."""


def plan_mixed(site: Site, ask: Ask, layout: Layout, now: float) -> Placement | Failure:
    """Place a gang of several classes."""
    views = variants(site, ask)
    home = layout.leaves_of(ask.running)
    empty = _rule_of(site, views, ask, layout)
    if empty is None:
        return Failure(_too_large(ask))
    rule = empty
    if home:
        now_found = _search(site, views, ask, layout, near=home)
    else:
        now_found = _search(site, views, ask, layout, rule=rule)
        if now_found is None and ask.enforcement is Enforcement.PREFERRED:
            now_found = _search(site, views, ask, layout)
    if now_found is None:
        return Failure("", rule)
    _, _, rows = now_found
    used = sorted(home | layout.leaves_of(row for group in rows for row in group))
    if home and 0 < ask.bounds.leaves < len(used) > len(home):
        return Failure("", rule)
    return Placement(rows, used, rule, common_score(site, ask, layout, used, rule), 1)


def _too_large(ask: Ask) -> str:
    """Return the reason for a gang that not even an empty cluster could hold."""
    gang = f"the gang of {ask.total} pods"
    if ask.in_segments:
        gang += f" in segments that must each share one {ask.segments.level}"
    if ask.within:
        return f"no {ask.level} holds {gang} even when empty, and {ask.because} asks for one"
    return f"{gang} is larger than the cluster: no domain holds it even when empty"


def rule_of(site: Site, ask: Ask, layout: Layout) -> SizeRule | None:
    """Return the size rule of a gang of several classes, None when not even an empty cluster holds it."""
    return _rule_of(site, variants(site, ask), ask, layout)


def fewest_nodes(site: Site, ask: Ask, layout: Layout) -> int:
    """Return how many nodes the search gives a gang of several classes on an empty cluster; a node a pod if none."""
    found = _rule_of(site, variants(site, ask), ask, layout)
    return found.nodes if found is not None else ask.total


def _rule_of(site: Site, variants: list[list[ClassView]], ask: Ask, layout: Layout) -> SizeRule | None:
    """Return the size rule, None when not even an empty cluster holds the gang."""

    def compute() -> tuple[SizeRule | None, int]:
        def find(ask: Ask, depth: int | None) -> Found | None:
            return _search(site, variants, ask, layout, empty=True, at=depth)

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


def variants(site: Site, ask: Ask) -> list[list[ClassView]]:
    """Return the views of every class, once a GPU model that the gang may keep to."""
    classes = [cls for cls, _ in ask.groups]
    with_gpus = [cls for cls in classes if cls.gpus]
    if ask.mixed_models or not with_gpus:
        return [[site.views.get(cls) for cls in classes]]
    model = site.running_model(ask)
    models = [model] if model != UNKNOWN else site.views.get(with_gpus[0]).models or [ANY_MODEL]
    return [[site.views.get(cls, model if cls.gpus else ANY_MODEL) for cls in classes] for model in models]


def _search(
    site: Site,
    variants: list[list[ClassView]],
    ask: Ask,
    layout: Layout,
    *,
    empty: bool = False,
    rule: SizeRule | None = None,
    near: set[int] | None = None,
    at: int | None = None,
) -> Found | None:
    """Return the lowest level that holds the gang, the fewest leaves of it, and the rows of each group.

    ``rule`` whose level and leaves are kept to; ``near`` leaves where some of it run; ``at`` the only level to look at.
    """
    limits = site.limits_for(ask)
    by_row = [[ask.within_links(view.empty_fit if empty else view.fit) for view in views] for views in variants]
    fits = [
        np.stack([leaf_fits(view, layout, limits, fit=fit) for view, fit in zip(views, some, strict=True)])
        for views, some in zip(variants, by_row, strict=True)
    ]
    if ask.within:
        named = named_at(layout, ask.within)
        fits = [fit * named for fit in fits]
    needed = np.array([[count] for _, count in ask.groups], np.int64)
    used = site.nodes.daemons if empty else site.nodes.requested
    fillers = [Filler(site, views, ask, layout, used, empty=empty) for views in variants]
    segments: tuple[SegmentFiller, SegmentBounds] | None = None
    packer = Packer(site, ask, layout, used, empty=empty)
    if ask.segments.parts:
        kinds = kinds_of(ask)
        segments = SegmentFiller(kinds, ask, layout), SegmentBounds(kinds)
        packer = SegmentPacker(site, ask, layout, used, kinds, empty=empty)
    for depth, widths in _spreads(layout, rule, bound(layout, ask.within, near), ask.bounds):
        if at is not None and depth != at:
            continue
        found = None
        for width in widths:
            found = _at_width(fillers, segments, fits, ask, layout, depth, width, needed, near)
            if found is not None:
                break
        most = widths[-1] if found is None else found[1] - 1
        if not near and most > 0:
            found = packer.fewest(variants, fits, depth, most) or found
        if found is not None:
            return found
    return None


def _at_width(
    fillers: Sequence[Filler],
    segments: tuple[SegmentFiller, SegmentBounds] | None,
    fits: Sequence[Int64],
    ask: Ask,
    layout: Layout,
    depth: int,
    width: int,
    needed: Int64,
    near: set[int] | None,
) -> Found | None:
    """Fill in windows of so many leaves."""
    counts = np.ascontiguousarray(needed[:, 0])
    for filler, held in zip(fillers, fits, strict=True):
        if segments is not None:
            segment_filler, bounds = segments
            windows = _windows(layout, depth, width, bounds.of(held), bounds.wanted, near)
            for first in itertools.islice(windows, TRIES):
                if (rows := segment_filler.fill(filler, held, first, width)) is not None:
                    return depth, width, rows
            continue
        for first in itertools.islice(_windows(layout, depth, width, held, needed, near), TRIES):
            inside = layout.order[layout.offsets[first] : layout.offsets[first + width]]
            filled = filler.fill(inside, counts)
            if filled is not None:
                return depth, width, [np.repeat(inside, group).tolist() for group in filled]
    return None


def bound(layout: Layout, within: int, near: set[int] | None) -> int:
    """Return the depth of the domain that must not be left; none where those that run left it before."""
    return 0 if near and len({layout.domain_of_leaf(within, leaf) for leaf in near}) > 1 else within


def _spreads(layout: Layout, rule: SizeRule | None, within: int, bounds: Bounds) -> Iterator[tuple[int, Sequence[int]]]:
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


def common_score(site: Site, ask: Ask, layout: Layout, leaves: list[int], rule: SizeRule) -> ScoreParts:
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
