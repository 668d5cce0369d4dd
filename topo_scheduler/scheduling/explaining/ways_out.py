"""What would help a workload that can't be placed, one change by itself, each verified on a copy of the state.

Ways are compared by what they cost, part by part: pods that must end, the GPUs these hold, members given up, demands
dropped, levels of the fabric more, nodes to be put back into use, seconds to wait. So what only takes patience comes
first, and what ends the work of others last.
"""

import copy
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import PLACEMENT, REQUIRED_LEVEL, Enforcement
from topo_scheduler.scheduling.explaining.freeing import Board
from topo_scheduler.scheduling.explaining.running import Running, Unit
from topo_scheduler.scheduling.explaining.ways import Cost, Ended, Kind, Scene, Way
from topo_scheduler.scheduling.placing.tied import is_tied
from topo_scheduler.scheduling.rules.demands import Demand, demands_of
from topo_scheduler.scheduling.rules.neighbours import looks_around
from topo_scheduler.state.crossing import depth_in
from topo_scheduler.state.decision import Decision, SizeRule
from topo_scheduler.state.workloads import Member, Workload

VERIFIED: Final = 6
"""Sets of pods to end that the planner is asked about, the cheapest first."""
NODES_SINGLY: Final = 12
"""Nodes to be put back of which it is tried one by one whether they are needed."""
TRIALS: Final = 48
"""How often the planner is asked where pods look at each other, and it can't be worked out on arrays."""
AT_ONCE: Final = 250
"""Pods that are taken away between two pauses."""
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


def pods_that_end(scene: Scene, running: Running) -> Iterator[None]:
    """Wait until pods end of which that is known, or end some."""
    if scene.rule is not None and running.pods:
        alike = len(scene.ask.groups) == 1 and not looks_around(scene.ask.groups[0][0])
        if alike and not scene.ask.in_segments:
            yield from _by_arrays(scene, scene.rule, running)
        else:
            yield from _by_trial(scene, running)


def changed(workload: Workload, members: Iterable[Member] = (), **changes: object) -> Workload:
    """Return a workload that asks for something else. Members replace those of the same uid."""
    other = copy.copy(workload)
    other.members = {**workload.members, **{member.uid: member for member in members}}
    for name, value in changes.items():
        setattr(other, name, value)
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
        cost = Cost(levels=max(1, decision.quality.levels - _levels_of(scene)), demands=demands)
        if best is None or cost < best.cost:
            nodes = tuple(sorted({seat.node for seat in decision.seats}))
            best = Way(Kind.RELAX, cost, nodes=nodes, level=decision.quality.level, demand=demand, value=value)
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
            scene.found.append(Way(Kind.DROP, Cost(demands=1), nodes=nodes, demand=demand.name, value=demand.value))


def without(scene: Scene, demand: Demand) -> tuple[Workload, list[Member]]:
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
            scene.found.append(Way(Kind.REDUCE, Cost(members=given_up), size=size + seated))
            return


def reduced(scene: Scene, size: int) -> tuple[Workload, list[Member]]:
    """Return the workload and its members if only so many of those were to be placed."""
    seated = scene.ask.total - scene.ask.members
    # A gang of one is a single pod, unless pods that come later must be near it.
    single = size + seated == 1 and scene.workload.group is None
    gone = {member.uid for member in scene.members[size:]}
    other = changed(scene.workload, size=size + seated, gang=not single)
    other.members = {uid: member for uid, member in other.members.items() if uid not in gone}
    return other, scene.members[:size]


def _room(scene: Scene) -> int:
    """Members for which there is room on single nodes, whatever the domain: an upper bound."""
    groups = scene.ask.groups
    if len(groups) > 1 or is_tied(groups):
        return len(scene.members)
    return int(scene.what_if.planner.views.get(replace(groups[0][0], caps=())).fit.sum())


# ---------------------------------------------------------------- nodes that come back


def _nodes_back(scene: Scene) -> Iterator[None]:
    """Nodes that are cordoned, or not ready: the fewest found of those that would have to be used again."""
    nodes = scene.what_if.planner.nodes
    cordoned = np.flatnonzero(nodes.exists & nodes.unschedulable & nodes.ready).tolist()
    away = np.flatnonzero(nodes.exists & ~nodes.ready).tolist()
    for rows, value in ((cordoned, "uncordon"), ([*cordoned, *away] if away else [], "repair")):
        if not rows:
            continue
        with scene.what_if.back(rows):
            decision = scene.what_if.decide(scene.workload, scene.members)
        yield
        if decision is None:
            continue
        used = {seat.row for seat in decision.seats}
        needed = [row for row in rows if row in used]
        for row in list(needed) if len(needed) <= NODES_SINGLY else []:
            rest = [one for one in needed if one != row]
            with scene.what_if.back(rest):
                if scene.what_if.decide(scene.workload, scene.members) is not None:
                    needed = rest
            yield
        with scene.what_if.back(needed):
            verified = scene.what_if.decide(scene.workload, scene.members) is not None
        yield
        if verified and needed:
            names = tuple(sorted(nodes.names[row] for row in needed))
            told = "uncordon" if all(nodes.ready[row] for row in needed) else value
            scene.found.append(Way(Kind.RETURN, Cost(nodes=len(names)), nodes=names, value=told))
            return


# ---------------------------------------------------------------- pods that end


def _by_arrays(scene: Scene, rule: SizeRule, running: Running) -> Iterator[None]:
    planner = scene.what_if.planner
    boards = []
    for view in planner.views_for(scene.ask):
        boards.append(Board(planner, view, scene.ask, scene.layout, rule, running))
        yield
    yield from _until_they_end(scene, boards, running)
    cleared: list[tuple[tuple[int, int], int, int, tuple[int, ...]]] = []
    for number, board in enumerate(boards):
        for one in board.clearances():
            if one is not None:
                cleared.append((one.cost, number, one.region, one.units))
            yield
    for cost, _, _, units in sorted(cleared)[:VERIFIED]:
        if (yield from _ends(scene, running, units)):
            _tell_free(scene, cost, [running.units[unit] for unit in units])
            return


def _until_they_end(scene: Scene, boards: Sequence[Board], running: Running) -> Iterator[None]:
    """The time at which enough has ended of what is known to end."""
    # What should have ended by now tells nothing any more.
    ends = np.where(running.ends > scene.wall, running.ends, np.inf)
    times = np.unique(ends[np.isfinite(ends)])
    of_pod = ends[running.unit]
    yield
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if any(board.any_holds(board.fits(of_pod <= times[middle])) is not None for board in boards):
            high = middle
        else:
            low = middle + 1
        yield
    for moment in times[low : low + 3].tolist():
        for board in boards:
            region = board.any_holds(board.fits(of_pod <= moment))
            yield
            if region is None:
                continue
            inside = np.zeros(scene.what_if.planner.nodes.rows, np.bool_)
            inside[region.rows] = True
            near = running.units_on(inside, ends <= moment)
            yield
            if (yield from _waits(scene, running, near)):
                return


def _waits(scene: Scene, running: Running, units: Sequence[int]) -> Generator[None, None, bool]:
    """Tell to wait for units, or for those of them on whose nodes the workload would go, if that is enough."""
    decision = yield from place_without(scene, running, units)
    if decision is None:
        return False
    rows = {seat.row for seat in decision.seats}
    fewer = [n for n in units if any(pod.row in rows for pod in running.units[n].pods)]
    if len(fewer) < len(units) and (yield from _ends(scene, running, fewer)):
        units = fewer
    ended = tuple(_ended(running.units[n]) for n in units)
    until = max(one.ends for one in ended)
    seconds = max(0, round(until - scene.wall))
    scene.found.append(Way(Kind.WAIT, Cost(seconds=seconds), ended=ended, until=until))
    return True


def _by_trial(scene: Scene, running: Running) -> Iterator[None]:
    """The same for gangs in segments, or whose members differ or look at other pods: by asking the planner, a bounded
    number of times.

    First what ends in time, then everything: of it those on whose nodes the gang would go, and of these as many stay as
    can, by halves.
    """
    eligible = np.zeros(scene.what_if.planner.nodes.rows, np.bool_)
    for cls, _ in scene.ask.groups:
        eligible |= scene.what_if.planner.views.get(cls).eligible
    useful = [n for n, unit in enumerate(running.units) if any(eligible[pod.row] for pod in unit.pods)]
    timed = [n for n in useful if scene.wall < running.units[n].ends < inf]
    timed.sort(key=lambda n: running.units[n].ends)
    if timed:
        low, high = 1, len(timed)
        enough = yield from _ends(scene, running, timed)
        while enough and low < high:
            middle = (low + high) // 2
            if (yield from _ends(scene, running, timed[:middle])):
                high = middle
            else:
                low = middle + 1
        if enough:
            yield from _waits(scene, running, timed[:high])
    decision = yield from place_without(scene, running, useful)
    if decision is None:
        return
    rows = {seat.row for seat in decision.seats}
    units = [n for n in useful if any(pod.row in rows for pod in running.units[n].pods)]
    if not units or not (yield from _ends(scene, running, units)):
        return
    units.sort(key=lambda n: (running.units[n].cost, n), reverse=True)
    left, parts = set(units), [units]
    asked = scene.what_if.asked
    while parts and scene.what_if.asked - asked < TRIALS:
        part = parts.pop()
        rest = left - set(part)
        if rest and (yield from _ends(scene, running, sorted(rest))):
            left = rest
        elif len(part) > 1:
            parts += [part[len(part) // 2 :], part[: len(part) // 2]]
    ended = [running.units[n] for n in sorted(left)]
    cost = sum(unit.cost[0] for unit in ended), sum(unit.cost[1] for unit in ended)
    _tell_free(scene, cost, ended)


def place_without(scene: Scene, running: Running, units: Sequence[int]) -> Generator[None, None, Decision | None]:
    """Return the decision once units have ended. They are taken away and put back in parts.

    Whoever stops in between throws the copy away.
    """
    pods = [pod for n in units for pod in running.units[n].pods]
    parts = [pods[at : at + AT_ONCE] for at in range(0, len(pods), AT_ONCE)]
    for part in parts:
        scene.what_if.remove(part)
        yield
    decision = scene.what_if.decide(scene.workload, scene.members)
    for part in parts:
        yield
        scene.what_if.restore(part)
    return decision


def _ends(scene: Scene, running: Running, units: Sequence[int]) -> Generator[None, None, bool]:
    """Return whether the workload has a place once units have ended."""
    decision = yield from place_without(scene, running, units)
    return decision is not None


def _tell_free(scene: Scene, cost: tuple[int, int], units: Sequence[Unit]) -> None:
    names = scene.what_if.planner.nodes.names
    nodes = tuple(sorted({names[pod.row] for unit in units for pod in unit.pods}))
    ended = tuple(_ended(unit) for unit in units)
    scene.found.append(Way(Kind.FREE, Cost(pods=cost[0], gpus=cost[1]), ended=ended, nodes=nodes))


def _ended(unit: Unit) -> Ended:
    pods = tuple(sorted(pod.occupant.key for pod in unit.pods))
    return Ended(unit.name, unit.gang, pods, unit.gpus, unit.ends)
