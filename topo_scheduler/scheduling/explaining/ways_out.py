"""What would help a workload that can't be placed, one change by itself, each verified on a copy of the state.

Ways are compared by what they cost, part by part: pods that must end, the GPUs these hold, members given up, demands
dropped, levels of the fabric more, nodes to be put back into use, seconds to wait. So what only takes patience comes
first, and what ends the work of others last.
"""

import copy
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import PLACEMENT, REQUIRED_LEVEL, Enforcement
from topo_scheduler.scheduling.explaining.pods_that_end import pods_that_end
from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.explaining.ways import RemedyCost, RemedyKind, Scene, Way
from topo_scheduler.scheduling.placing.tied import is_tied
from topo_scheduler.scheduling.rules.demands import DroppableDemand, demands_of
from topo_scheduler.state.crossing import depth_in
from topo_scheduler.state.workloads import Member, Workload

NODES_SINGLY: Final = 12
"""Nodes to be put back of which it is tried one by one whether they are needed."""
NODE_SETS: Final = 64
"""Sets of fewer nodes that are tried, the smallest first."""
NODES_OF_ALL_SETS: Final = 6
"""Nodes of which sets are tried though all of them are not enough: with fewer nodes the size rule may ask for less."""
FEW_SIZES: Final = 32
"""Sizes up to which each is asked about as an attempt."""
SIZES: Final = 4096
"""Smaller sizes that are tried at most, the largest first."""


def single_ways(scene: Scene, running: Running) -> Iterator[None]:
    """Look for ways out, the cheapest of each kind; what is found and verified is in ``scene.found``.

    Yields:
        After each part of the work, so that others get their turn.

    Raises:
        PluginError: a plugin failed.
    """
    yield from _nodes_back(scene)
    yield from other_levels(scene)
    yield from fewer_demands(scene)
    yield from fewer_members(scene)
    yield from pods_that_end(scene, running)


def changed(workload: Workload, members: Iterable[Member] = (), **changes: object) -> Workload:
    """Return a workload that asks for something else. Members replace those of the same uid."""
    other = copy.copy(workload)
    other.members = {**workload.members, **{member.uid: member for member in members}}
    for name, value in changes.items():
        setattr(other, name, value)
    other.recount()
    return other


# ---------------------------------------------------------------- other demands


def level_offers(scene: Scene) -> list[tuple[str, str, Workload]]:
    """Return what a gang may ask of levels instead: the demand, its value, and the workload that asks it.

    A spread over more leaves than the size rule asks, or a domain of a higher level than was asked, the lowest first;
    after them both together, which costs one demand more.
    """
    workload, layout = scene.workload, scene.layout
    if not workload.gang:
        return []
    within, strict = scene.ask.within, scene.ask.enforcement is not Enforcement.PREFERRED
    demand = "required level" if workload.level or workload.tiers else REQUIRED_LEVEL
    offers: list[tuple[str, str, Workload]] = []
    both: list[tuple[str, str, Workload]] = []
    if strict:
        preferred = replace(workload.request, placement=Enforcement.PREFERRED)
        offers.append((PLACEMENT, "preferred", changed(workload, request=preferred)))
    for depth in range((within if within > 0 else layout.depth if within else 0) - 1, -1, -1):
        level = layout.levels[depth - 1] if depth else ""
        # The annotation and the PodGroup may both ask: the tighter one would hold.
        request = replace(workload.request, required_level=level if workload.request.required_level else "")
        asked = level if workload.level or workload.tiers else ""
        offers.append((demand, level or "none", changed(workload, level=asked, tiers=0, request=request)))
        if strict:
            request = replace(request, placement=Enforcement.PREFERRED)
            other = changed(workload, level=asked, tiers=0, request=request)
            both.append((f"{demand} and placement", f"{level or 'none'}, preferred", other))
    return offers + both


def other_levels(scene: Scene) -> Iterator[None]:
    """Ask for less of levels: the cheapest offer that does. Two demands are given up only where neither is enough."""
    best: Way | None = None
    for demand, value, other in level_offers(scene):
        demands = value.count(",")
        if best is not None and demands > best.cost.demands:
            break
        decision = scene.what_if.decide(other, scene.members)
        yield
        if decision is None or decision.quality is None:
            continue
        cost = RemedyCost(levels=max(1, decision.quality.levels - _levels_of(scene)), demands=demands)
        if best is None or cost < best.cost:
            nodes = tuple(sorted({seat.node for seat in decision.seats}))
            best = Way(RemedyKind.RELAX, cost, nodes=nodes, level=decision.quality.level, demand=demand, value=value)
    if best is not None:
        scene.found.append(best)


def _levels_of(scene: Scene) -> int:
    """How many levels up the domain lies that the gang must share as things are."""
    layout, rule = scene.layout, scene.rule
    if rule is None:
        return 0
    return 1 if rule.leaves == 1 else layout.network.depth - depth_in(layout, layout.network, rule.depth) + 1


def fewer_demands(scene: Scene) -> Iterator[None]:
    """One demand of the pods less: a selector, a taint that they don't tolerate, a GPU model, a bandwidth."""
    for demand in demands_of(scene.what_if.planner.nodes, scene.workload, scene.members):
        decision = scene.what_if.decide(*without(scene, demand))
        yield
        if decision is not None:
            nodes = tuple(sorted({seat.node for seat in decision.seats}))
            scene.found.append(
                Way(RemedyKind.DROP, RemedyCost(demands=1), nodes=nodes, demand=demand.name, value=demand.value)
            )


def without(scene: Scene, demand: DroppableDemand) -> tuple[Workload, list[Member]]:
    """Return the workload and its members with one demand less."""
    members = [replace(member, cls=demand.drop(member.cls)) for member in scene.members]
    request = replace(scene.workload.request, gpu_model_mixed=demand.mixes or scene.workload.request.gpu_model_mixed)
    return changed(scene.workload, members, request=request), members


def fewer_members(scene: Scene) -> Iterator[None]:
    """The largest size that fits now, by the same rules. A smaller gang may have to keep closer together."""
    if not scene.workload.gang:
        return
    seated, segments = scene.ask.total - scene.ask.members, scene.ask.segments
    most = min(len(scene.members) - 1, _room(scene))
    for size in range(most, max(0, most - SIZES), -1):
        if (size + seated - segments.ahead) % segments.size:
            continue  # it would be refused
        other, members = reduced(scene, size)
        # An attempt that fails also looks for reasons: of many sizes the planner alone is asked first.
        fits = most <= FEW_SIZES or scene.what_if.fits(other, members)
        fits = fits and scene.what_if.decide(other, members) is not None
        yield
        if fits:
            given_up = len(scene.members) - size
            scene.found.append(Way(RemedyKind.REDUCE, RemedyCost(members=given_up), size=size + seated))
            return


def reduced(scene: Scene, size: int) -> tuple[Workload, list[Member]]:
    """Return the workload and its members if only so many of those were to be placed."""
    seated = scene.ask.total - scene.ask.members
    # A gang of one is a single pod, unless pods that come later must be near it.
    single = size + seated == 1 and scene.workload.group is None
    gone = {member.uid for member in scene.members[size:]}
    other = changed(scene.workload, size=size + seated, gang=not single)
    for uid in gone:
        other.take(uid)
    return other, scene.members[:size]


def _room(scene: Scene) -> int:
    """Members for which there is room on single nodes, whatever the domain: an upper bound."""
    groups = scene.ask.groups
    if len(groups) > 1 or is_tied(groups):
        return len(scene.members)
    return int(scene.what_if.planner.views.get(replace(groups[0][0], caps=())).fit.sum())


# ---------------------------------------------------------------- nodes that come back


def _nodes_back(scene: Scene) -> Iterator[None]:
    """Nodes that are cordoned, or not ready: the fewest of those that would have to be used again."""
    nodes = scene.what_if.planner.nodes
    cordoned = np.flatnonzero(nodes.exists & nodes.unschedulable & nodes.ready).tolist()
    away = np.flatnonzero(nodes.exists & ~nodes.ready).tolist()
    for rows, value in ((cordoned, "uncordon"), ([*cordoned, *away] if away else [], "repair")):
        if not rows:
            continue
        needed = yield from _needed(scene, rows)
        if needed or len(rows) <= NODES_OF_ALL_SETS:
            fewer = yield from _fewer(scene, rows, len(needed) or len(rows))
            needed = fewer or needed
        if needed:
            names = tuple(sorted(nodes.names[row] for row in needed))
            told = "uncordon" if all(nodes.ready[row] for row in needed) else value
            scene.found.append(Way(RemedyKind.RETURN, RemedyCost(nodes=len(names)), nodes=names, value=told))
            return


def _needed(scene: Scene, rows: Sequence[int]) -> Generator[None, None, Sequence[int]]:
    """Return those of some nodes that the workload would use if all came back, and that it can't do without."""
    with scene.what_if.back(rows):
        decision = scene.what_if.decide(scene.workload, scene.members)
    yield
    used = {seat.row for seat in decision.seats} if decision is not None else set()
    needed = [row for row in rows if row in used]
    for row in list(needed) if len(needed) <= NODES_SINGLY else []:
        rest = [one for one in needed if one != row]
        if (yield from _fits_with(scene, rest)):
            needed = rest
    return needed if needed and (yield from _fits_with(scene, needed)) else ()


def _fewer(scene: Scene, rows: Sequence[int], count: int) -> Generator[None, None, Sequence[int]]:
    """Return the fewest nodes, fewer than so many, that are enough; none where there are none, or too many sets."""
    sets = (some for size in range(1, count) for some in combinations(rows, size))
    for some in islice(sets, NODE_SETS):
        if (yield from _fits_with(scene, some)):
            return some
    return ()


def _fits_with(scene: Scene, rows: Sequence[int]) -> Generator[None, None, bool]:
    """Return whether the workload has a place with some nodes back."""
    with scene.what_if.back(rows):
        fits = scene.what_if.decide(scene.workload, scene.members) is not None
    yield
    return fits
