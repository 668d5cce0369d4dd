"""Levels that a gang asks for: the required level, which is relaxed with time, and the preferred level.

The planner tries one plan after the other. First, the closest placement possible now within the preferred level. Next,
a placement by the rules. Last, if a gang with ``relax-after`` has been pending that long, a placement one level further
out for each such interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.durations import format_duration
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.model.second_tree import (
    convert_outcome,
    convert_query,
    layout_with_levels,
    layout_without_cut,
    seen_fabric,
)
from topo_scheduler.scheduling.placing.model.size_rule import domain_depth
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.state.pods.workloads import Member, Workload
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.topology_merge import crossed


@dataclass(frozen=True, slots=True)
class LevelPreference:
    """What a gang asks of levels in addition to its required level.

    ``preferred``: the level within which the gang is placed at once, empty for none. ``steps``: number of levels by
    which its requirement is relaxed, one per ``interval`` seconds.
    """

    preferred: str = ""
    steps: int = 0
    interval: float = 0.0


NO_WISH: Final = LevelPreference()
_MAX_LEVELS: Final = 64
"""Levels: more than any fabric has."""


def required_level(workload: Workload, layout: Layout) -> tuple[int, str, str]:
    """Return the depth of the domain that all members must share, the name of its level, and what asks for it.

    Depth 0 is the whole fabric, -1 a level without node labels. If both the PodGroup and the annotation name a level,
    the tighter one applies.
    """
    annotated = workload.request.required_level if workload.gang else ""
    levels = [
        (_depth(name, layout), name, source)
        for name, source in ((annotated, "its annotation required-level"), (workload.level, ""))
        if name
    ]
    if workload.tiers:
        # Tiers count levels of the network.
        network = layout.network
        name = network.levels[max(0, network.depth - workload.tiers)] if workload.tiers <= network.depth else ""
        levels.append((_depth(name, layout), name, ""))
    unlabelled = [entry for entry in levels if entry[0] < 0]
    depth, name, source = unlabelled[0] if unlabelled else max(levels, default=(0, "", ""), key=lambda entry: entry[0])
    return depth, name, source or "its PodGroup"


def wish_of(workload: Workload, members: Sequence[Member], layout: Layout, now: float) -> LevelPreference:
    """Return what a gang asks of levels at the time ``now``, in seconds."""
    request = workload.request
    if not workload.gang or not (request.preferred_level or request.relax_after):
        return NO_WISH
    steps = _waited(members, now, request.relax_after)
    preferred = request.preferred_level if request.preferred_level in layout.every_level else ""
    return LevelPreference(preferred, min(steps, layout.depth), request.relax_after)


def next_relaxation(workload: Workload, members: Sequence[Member], layout: Layout, now: float) -> float | None:
    """Return when the level of a pending gang is relaxed next, in seconds; None if it does not."""
    interval = workload.request.relax_after
    if not interval or not workload.gang or not members:
        return None
    layout = seen_fabric(workload, layout)
    steps = _waited(members, now, interval)
    return _since(members) + (steps + 1) * interval if steps < layout.depth else None


def plan_by_levels(
    planner: Planner, query: PlacementQuery, layout: Layout, now: float, wish: LevelPreference
) -> tuple[PlacementQuery, Placement | PlacementFailure, str]:
    """Return the query that was met or tried last, its outcome, and a message about a relaxed level.

    Query and outcome refer to the fabric with the levels of ``query.woven``.

    Raises:
        PluginError: a plugin failed, so there is no outcome.
    """
    if wish.preferred and query.within >= 0 and not query.running:
        other_layout = layout_with_levels(query, layout, (wish.preferred,))
        near_query = convert_query(query, layout, other_layout)
        within = max(_depth(wish.preferred, other_layout), near_query.within)
        near_query = replace(near_query, within=within, enforcement=Enforcement.PREFERRED)
        outcome_near = convert_outcome(planner.plan(near_query, other_layout, now), near_query, other_layout, layout)
        if isinstance(outcome_near, Placement):
            return (
                (near_query if other_layout is layout else replace(query, enforcement=Enforcement.PREFERRED)),
                outcome_near,
                "",
            )
    outcome = planner.plan(query, layout, now)
    base = _base(query, outcome, layout)
    if isinstance(outcome, Placement) or not wish.steps or base <= 0:
        return query, outcome, ""
    strictest = layout.levels[base - 1]
    looser, layout = _looser(query, layout, base, wish)
    depth, level = looser.within, looser.level
    message = f"level relaxed from {strictest} to {level} after {format_duration(wish.steps * wish.interval)}"
    # Leaves are whole again where the gang no longer has to share an accelerator domain.
    other_layout = crossed(
        layout, (name for name in layout.woven if name in (*layout.levels[:depth], query.segments.level))
    )
    looser_query = convert_query(looser, layout, other_layout)
    outcome = convert_outcome(planner.plan(looser_query, other_layout, now), looser_query, other_layout, layout)
    if isinstance(outcome, PlacementFailure) and outcome.rule is not None:
        failed_scope = f"no {level} has" if depth else "the cluster does not have"
        outcome = replace(outcome, sentence=f"{failed_scope} room for {query.members} pods now; {message}")
    elif isinstance(outcome, PlacementFailure):
        outcome = replace(outcome, sentence=f"{outcome.sentence}; {message}")
    return looser, outcome, message


def as_relaxed(
    planner: Planner, query: PlacementQuery, layout: Layout, now: float, wish: LevelPreference
) -> PlacementQuery:
    """Return the query of a gang without room, with its level as ``relax-after`` has relaxed it by now.

    Raises:
        PluginError: a plugin failed, so there is no outcome.
    """
    if not wish.steps:
        return query
    base = query.within or _base(query, planner.plan(query, layout, now), layout)
    return _looser(query, layout, base, wish)[0] if base > 0 else query


def _looser(query: PlacementQuery, layout: Layout, base: int, wish: LevelPreference) -> tuple[PlacementQuery, Layout]:
    """Return the query with the relaxed level, and the fabric to which it refers."""
    depth = max(0, base - wish.steps)
    looser = replace(
        query,
        within=depth,
        level=layout.levels[depth - 1] if depth else "cluster",
        because="its annotation relax-after",
        enforcement=Enforcement.PREFERRED,
    )
    looser_layout = layout_without_cut(query, layout, depth)
    return convert_query(looser, layout, looser_layout), looser_layout


def _base(query: PlacementQuery, outcome: Placement | PlacementFailure, layout: Layout) -> int:
    """Return the depth from which relaxing starts: of the required level, otherwise of the size rule."""
    if query.within:
        return query.within
    return domain_depth(layout, outcome.rule) if outcome.rule is not None else 0


def _depth(name: str, layout: Layout) -> int:
    if not name:
        return 0
    return layout.levels.index(name) + 1 if name in layout.levels else -1


def _since(members: Sequence[Member]) -> float:
    """Return the time since which all members have been pending, in seconds."""
    return max(member.enqueued for member in members)


def _waited(members: Sequence[Member], now: float, interval: float) -> int:
    """Return how many intervals have passed since all members are pending."""
    if not interval or not members:
        return 0
    # No division: the engine acts at the exact second that `next_relaxation` returns, whatever the rounding.
    since, steps = _since(members), 0
    while steps < _MAX_LEVELS and since + (steps + 1) * interval <= now:
        steps += 1
    return steps
