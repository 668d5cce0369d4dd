"""Ways out of waiting: single ones, and where none helps, two together.

Combinations are looked for only where no single way was found. One change is made that may not help by itself (nodes
back, a looser level, one demand less, or the size that would fit if everything had ended), and on the state as it is
then the second is looked for as the single ones are. Each is verified once more from the beginning: all of it is
carried out on the copy, and the ordinary attempt has to place the workload. How much is tried is bounded, so a
combination may be missed; what is told is true.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

import numpy as np

from topo_scheduler.scheduling.explaining.ending import AT_ONCE, place_without
from topo_scheduler.scheduling.explaining.pods_that_end import pods_that_end
from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.explaining.ways import RemedyCost, RemedyKind, Scene, Way
from topo_scheduler.scheduling.explaining.ways_out import (
    fewer_demands,
    fewer_members,
    level_offers,
    other_levels,
    reduced,
    single_ways,
    without,
)
from topo_scheduler.scheduling.rules.demands import demands_of
from topo_scheduler.state.workloads import Member, Workload

MOST_TOLD: Final = 3
"""Combinations that are told, the cheapest of those found."""
MOST_CHANGES: Final = 12
"""First changes from which a second is looked for."""
MOST_ASKED: Final = 200
"""How often the planner was asked for combinations when no other first change is tried."""


def ways_out(scene: Scene, running: Running) -> Iterator[None]:
    """Look for ways out; what is found and verified is in ``scene.found``, cheapest first.

    Yields:
        After each part of the work, so that others get their turn.

    Raises:
        PluginError: a plugin failed.
    """
    yield from single_ways(scene, running)
    if not scene.found:
        yield from _combinations(scene, running)
    scene.found.sort(key=_order)


def _order(way: Way) -> tuple[object, ...]:
    return way.cost, way.kind, way.value, way.nodes, tuple(_order(part) for part in way.parts)


def _combinations(scene: Scene, running: Running) -> Iterator[None]:
    asked, found = scene.what_if.asked, dict[frozenset[Way], Way]()
    for first in _first_changes(scene)[:MOST_CHANGES]:
        if scene.what_if.asked - asked > MOST_ASKED:
            break
        rows = _rows(scene, first)
        with scene.what_if.back(rows) if rows else nullcontext():
            other = _scene(scene, *_applied(scene, first))
            yield
            if first.kind is RemedyKind.RETURN:
                yield from other_levels(other)
            yield from fewer_demands(other)
            yield from fewer_members(other)
            yield from pods_that_end(other, running)
        kinds = {tuple(part.kind for part in way.parts) for way in found.values()}
        for second in other.found:
            # The least change of its kind is enough.
            if first.kind is RemedyKind.DROP or (first.kind, second.kind) not in kinds:
                yield from _keep(scene, running, first, second, found)
    smaller = yield from _size_for_all(scene, running)
    if smaller is not None:
        other = _scene(scene, *_applied(scene, smaller))
        yield from pods_that_end(other, running)
        for second in other.found:
            yield from _keep(scene, running, smaller, second, found)
    scene.found += sorted(found.values(), key=_order)[:MOST_TOLD]


def _first_changes(scene: Scene) -> list[Way]:
    """Return what may not help by itself, in order of what it costs."""
    nodes, layout = scene.what_if.planner.nodes, scene.layout
    cordoned = np.flatnonzero(nodes.exists & nodes.unschedulable & nodes.ready).tolist()
    away = np.flatnonzero(nodes.exists & ~nodes.ready).tolist()
    found: list[Way] = []
    for rows, value in ((cordoned, "uncordon"), ([*cordoned, *away] if away else [], "repair")):
        if rows:
            names = tuple(sorted(nodes.names[row] for row in rows))
            found.append(Way(RemedyKind.RETURN, RemedyCost(nodes=len(names)), nodes=names, value=value))
    before = scene.ask.within or layout.depth
    for demand, value, _ in level_offers(scene):
        level = value.partition(",")[0]
        depth = layout.levels.index(level) + 1 if level in layout.levels else 0 if level == "none" else before - 1
        cost = RemedyCost(levels=max(1, before - depth), demands=value.count(","))
        found.append(Way(RemedyKind.RELAX, cost, demand=demand, value=value))
    demands = demands_of(nodes, scene.workload, scene.members)
    return [*found, *(Way(RemedyKind.DROP, RemedyCost(demands=1), demand=one.name, value=one.value) for one in demands)]


def _size_for_all(scene: Scene, running: Running) -> Generator[None, None, Way | None]:
    """Return the largest size that would fit if everything had ended."""
    pods = [pod for unit in running.units for pod in unit.pods]
    if not scene.workload.gang or not pods:
        return None
    other = _scene(scene, scene.workload, scene.members)
    parts = [pods[at : at + AT_ONCE] for at in range(0, len(pods), AT_ONCE)]
    for part in parts:
        scene.what_if.remove(part)
        yield
    yield from fewer_members(other)
    for part in parts:
        scene.what_if.restore(part)
        yield
    return next(iter(other.found), None)


# ---------------------------------------------------------------- verification


def _keep(scene: Scene, running: Running, first: Way, second: Way, found: dict[frozenset[Way], Way]) -> Iterator[None]:
    """Note two changes if they hold together, of nodes that come back no more than are needed."""
    if first.kind is RemedyKind.RETURN:
        used = yield from _seated(scene, running, (first, second))
        fewer = tuple(sorted(used & set(first.nodes)))
        if used and len(fewer) < len(first.nodes):
            nodes = scene.what_if.planner.nodes
            ready = all(nodes.ready[nodes.row_of[name]] for name in fewer)
            needed = replace(
                first, nodes=fewer, cost=RemedyCost(nodes=len(fewer)), value="uncordon" if ready else first.value
            )
            if fewer and (yield from _seated(scene, running, (needed, second))):
                first = needed
    if second.kind is RemedyKind.RELAX:
        second = replace(second, nodes=(), level="")
    parts = yield from _without_a_demand_too_many(scene, running, (first, second))
    if (yield from _seated(scene, running, parts)):
        way = Way(RemedyKind.COMBINE, parts[0].cost + parts[1].cost, parts=parts)
        found.setdefault(frozenset(replace(part, cost=RemedyCost(), nodes=()) for part in parts), way)


def _without_a_demand_too_many(
    scene: Scene, running: Running, parts: tuple[Way, Way]
) -> Generator[None, None, tuple[Way, Way]]:
    """Return the parts, with only the level or only the placement given up where both are and one is enough.

    The second change was found with all of the first: with fewer nodes back the size rule may ask for less.
    """
    for at, part in enumerate(parts):
        if part.kind is not RemedyKind.RELAX or not part.cost.demands:
            continue
        for demand, value, _ in level_offers(scene):
            if "," in value:
                continue
            less = replace(part, demand=demand, value=value, cost=replace(part.cost, demands=0), nodes=(), level="")
            fewer = (less, parts[1]) if at == 0 else (parts[0], less)
            if (yield from _seated(scene, running, fewer)):
                return fewer
    return parts


def _seated(scene: Scene, running: Running, parts: Sequence[Way]) -> Generator[None, None, set[str]]:
    """Return the nodes the workload would take with all parts carried out, none where it has no place."""
    rows = [row for part in parts for row in _rows(scene, part)]
    gone = {(one.name, one.gang) for part in parts for one in part.ended}
    units = [number for number, unit in enumerate(running.units) if (unit.name, unit.gang) in gone]
    with scene.what_if.back(rows):
        other = scene
        for part in parts:
            other = _scene(other, *_applied(other, part))
        decision = yield from place_without(other, running, units)
    return {seat.node for seat in decision.seats} if decision is not None else set()


def _scene(scene: Scene, workload: Workload, members: list[Member]) -> Scene:
    ask = scene.what_if.ask(workload, members)
    return Scene(scene.what_if, workload, members, ask, scene.what_if.rule(ask), scene.wall)


def _rows(scene: Scene, way: Way) -> list[int]:
    row_of = scene.what_if.planner.nodes.row_of
    return [row_of[name] for name in way.nodes] if way.kind is RemedyKind.RETURN else []


def _applied(scene: Scene, way: Way) -> tuple[Workload, list[Member]]:
    """Return the workload and its members as one change makes them; what it does to nodes and others is not in it."""
    match way.kind:
        case RemedyKind.RELAX:
            wanted = (way.demand, way.value)
            return next(one for *offer, one in level_offers(scene) if tuple(offer) == wanted), scene.members
        case RemedyKind.DROP:
            demands = demands_of(scene.what_if.planner.nodes, scene.workload, scene.members)
            return without(scene, next(one for one in demands if (one.name, one.value) == (way.demand, way.value)))
        case RemedyKind.REDUCE:
            return reduced(scene, way.size - (scene.ask.total - scene.ask.members))
        case _:
            return scene.workload, scene.members
