"""Re-placing lost members of a gang in segments: each in the leaf where the rest of its segment runs."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from topo_scheduler.scheduling.placing.ask import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.repair import distance, fits_beside, reachable, repair_score
from topo_scheduler.scheduling.placing.seats import seat_dealt
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64


def plan_segment_repair(
    site: PlanningContext, ask: PlacementQuery, layout: Layout, rule: SizeRule, views: Sequence[ClassView], now: float
) -> Placement | PlacementFailure:
    """Place what is lost of a segment where the rest runs, and segments of which nothing runs near the others."""
    reason = ""
    for view in views:
        fits, fit = fits_beside(site, ask, layout, view)
        leaf_of, lacking = _leaves(ask, layout, rule, fits)
        if lacking:
            reason = reason or lacking
            continue
        dealt = Counter(leaf_of[number] for number, _ in ask.segments.places)
        leaves = np.array(sorted(dealt), np.int64)
        rows = seat_dealt(site, ask, view, leaves, [dealt[leaf] for leaf in leaves.tolist()], layout, fit)
        if rows is None:
            reason = reason or f"the leaves of its segments could not be filled{site.limits_for(ask).within}"
            continue
        inside: dict[int, list[int]] = {}
        for row in rows:
            inside.setdefault(int(layout.leaf_of_row[row]), []).append(row)
        in_turn = {leaf: iter(some) for leaf, some in inside.items()}
        placed = [next(in_turn[leaf_of[number]]) for number, _ in ask.segments.places]
        used = sorted({*layout.leaves_of(ask.running), *leaf_of.values()})
        return Placement([placed], used, rule, repair_score(site, ask, layout, view, used, rule, now), 1)
    return PlacementFailure(reason, rule)


def _leaves(ask: PlacementQuery, layout: Layout, rule: SizeRule, fits: Int64) -> tuple[dict[int, int], str]:
    """Return the leaf of each segment that lacks members, or why one has none."""
    missing = Counter(number for number, _ in ask.segments.places)
    found: dict[int, int] = {}
    left = fits.copy()
    for number, leaf in dict(ask.segments.places).items():
        if leaf >= 0:
            if left[leaf] < missing[number]:
                path = "/".join(layout.paths[leaf])
                return {}, f"no room for {missing[number]} pods in {path}, where the rest of their segment runs"
            left[leaf] -= missing[number]
            found[number] = leaf
    home = sorted(layout.leaves_of(ask.running))
    near, extra = reachable(ask, layout, rule, home)
    order = sorted({*near, *home}, key=lambda leaf: (*distance(layout, leaf, home), -int(left[leaf]), leaf))
    opened: set[int] = set()
    for number, count in missing.items():
        if number in found:
            continue
        for leaf in order:
            more = leaf not in home and leaf not in opened
            if left[leaf] >= count and not (more and len(opened) >= extra):
                opened |= {leaf} if more else set()
                left[leaf] -= count
                found[number] = leaf
                break
        else:
            return {}, f"no leaf near the {len(ask.running)} members that run has room for a segment of {count} pods"
    return found, ""
