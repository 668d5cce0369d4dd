"""Levels that a gang asks for: the one it must share, the one that will do, and how the first loosens while it waits.

Each is a plan of its own, tried in turn: within the preferred level as close as can be had now; as the rules have it;
and, once a gang with ``relax-after`` has waited so long, one level further out for every such interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.durations import format_duration
from topo_scheduler.scheduling.placing.ask import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.placing.second_tree import brought_back, cut_no_more, joined, moved, seen_fabric
from topo_scheduler.state.crossing import crossed
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.workloads import Member, Workload


@dataclass(frozen=True, slots=True)
class Wish:
    """What a gang says of levels beside the one it must share.

    ``preferred`` the level that will do without waiting, empty for none; ``steps`` levels to loosen by, of which each
    took ``interval`` seconds.
    """

    preferred: str = ""
    steps: int = 0
    interval: float = 0.0


NO_WISH: Final = Wish()
_DEEPEST: Final = 64
"""Levels: no fabric has as many."""


def required_level(workload: Workload, layout: Layout) -> tuple[int, str, str]:
    """Return the depth of the domain that all members must share, its level's name, and who asks for it.

    Depth 0 is the whole fabric, -1 a level that no node tells. Where the PodGroup and the annotation both ask, the
    tighter one holds.
    """
    asked = workload.request.required_level if workload.gang else ""
    found = [
        (_depth(name, layout), name, said)
        for name, said in ((asked, "its annotation required-level"), (workload.level, ""))
        if name
    ]
    if workload.tiers:
        # Tiers are those of the network.
        network = layout.network
        name = network.levels[max(0, network.depth - workload.tiers)] if workload.tiers <= network.depth else ""
        found.append((_depth(name, layout), name, ""))
    unknown = [one for one in found if one[0] < 0]
    depth, name, said = unknown[0] if unknown else max(found, default=(0, "", ""), key=lambda one: one[0])
    return depth, name, said or "its PodGroup"


def wish_of(workload: Workload, members: Sequence[Member], layout: Layout, now: float) -> Wish:
    """Return what a gang says of levels at a time in seconds."""
    request = workload.request
    if not workload.gang or not (request.preferred_level or request.relax_after):
        return NO_WISH
    steps = _waited(members, now, request.relax_after)
    preferred = request.preferred_level if request.preferred_level in layout.every_level else ""
    return Wish(preferred, min(steps, layout.depth), request.relax_after)


def next_loosening(workload: Workload, members: Sequence[Member], layout: Layout, now: float) -> float | None:
    """Return when a gang that waits is loosened next, in seconds; None when it is not."""
    interval = workload.request.relax_after
    if not interval or not workload.gang or not members:
        return None
    layout = seen_fabric(workload, layout)
    steps = _waited(members, now, interval)
    return _since(members) + (steps + 1) * interval if steps < layout.depth else None


def plan_by_levels(
    planner: Planner, ask: PlacementQuery, layout: Layout, now: float, wish: Wish
) -> tuple[PlacementQuery, Placement | PlacementFailure, str]:
    """Return the ask that was met, or came furthest; how it ended; and what is to be said of its level.

    The first two are meant on the fabric that has woven in what the ask says.

    Raises:
        PluginError: a plugin failed, so that nothing can be said.
    """
    if wish.preferred and ask.within >= 0 and not ask.running:
        there = joined(ask, layout, (wish.preferred,))
        near = moved(ask, layout, there)
        within = max(_depth(wish.preferred, there), near.within)
        near = replace(near, within=within, enforcement=Enforcement.PREFERRED)
        found = brought_back(planner.plan(near, there, now), near, there, layout)
        if isinstance(found, Placement):
            return (near if there is layout else replace(ask, enforcement=Enforcement.PREFERRED)), found, ""
    outcome = planner.plan(ask, layout, now)
    base = _base(ask, outcome, layout)
    if isinstance(outcome, Placement) or not wish.steps or base <= 0:
        return ask, outcome, ""
    strictest = layout.levels[base - 1]
    looser, layout = _looser(ask, layout, base, wish)
    depth, level = looser.within, looser.level
    told = f"level loosened from {strictest} to {level} after {format_duration(wish.steps * wish.interval)}"
    # Leaves are whole again where no accelerator domain is to be shared any more.
    there = crossed(layout, (name for name in layout.woven if name in (*layout.levels[:depth], ask.segments.level)))
    inside = moved(looser, layout, there)
    outcome = brought_back(planner.plan(inside, there, now), inside, there, layout)
    if isinstance(outcome, PlacementFailure) and outcome.rule is not None:
        where = f"no {level} has" if depth else "the cluster does not have"
        outcome = replace(outcome, sentence=f"{where} room for {ask.members} pods now; {told}")
    elif isinstance(outcome, PlacementFailure):
        outcome = replace(outcome, sentence=f"{outcome.sentence}; {told}")
    return looser, outcome, told


def as_loosened(planner: Planner, ask: PlacementQuery, layout: Layout, now: float, wish: Wish) -> PlacementQuery:
    """Return what is asked by now of a gang that has no room: its level as ``relax-after`` has loosened it.

    Raises:
        PluginError: a plugin failed, so that nothing can be said.
    """
    if not wish.steps:
        return ask
    base = ask.within or _base(ask, planner.plan(ask, layout, now), layout)
    return _looser(ask, layout, base, wish)[0] if base > 0 else ask


def _looser(ask: PlacementQuery, layout: Layout, base: int, wish: Wish) -> tuple[PlacementQuery, Layout]:
    """Return what is asked once the level is loosened, and the fabric on which it is meant."""
    depth = max(0, base - wish.steps)
    looser = replace(
        ask,
        within=depth,
        level=layout.levels[depth - 1] if depth else "cluster",
        because="its annotation relax-after",
        enforcement=Enforcement.PREFERRED,
    )
    there = cut_no_more(ask, layout, depth)
    return moved(looser, layout, there), there


def _base(ask: PlacementQuery, outcome: Placement | PlacementFailure, layout: Layout) -> int:
    """Return the depth from which a gang is loosened: what it must share, else what the size rule says."""
    if ask.within:
        return ask.within
    rule = outcome.rule
    if rule is None:
        return 0
    return layout.depth if rule.leaves == 1 else rule.depth


def _depth(name: str, layout: Layout) -> int:
    if not name:
        return 0
    return layout.levels.index(name) + 1 if name in layout.levels else -1


def _since(members: Sequence[Member]) -> float:
    """Since when all of them wait."""
    return max(member.enqueued for member in members)


def _waited(members: Sequence[Member], now: float, interval: float) -> int:
    """Return how many intervals have passed since all of them wait."""
    if not interval or not members:
        return 0
    # No division: the engine is called at the very second that `next_loosening` says, whatever floats make of it.
    since, steps = _since(members), 0
    while steps < _DEEPEST and since + (steps + 1) * interval <= now:
        steps += 1
    return steps
