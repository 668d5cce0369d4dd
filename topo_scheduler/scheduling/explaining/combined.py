"""Remedies for a pending workload: single changes, and combinations of two where no single change helps.

The search tries combinations only if it found no single remedy. It makes a first change that may not help by itself:
nodes back, a looser level, one demand less, or the size that would fit if all pods had ended. On the changed state it
searches for the second change as for a single one. It then verifies each combination from the beginning: it makes both
changes on the copy of the state, and the ordinary attempt must place the workload. The number of trials is bounded, so
the search may miss a combination. Every combination that it returns is true.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

from topo_scheduler.scheduling.explaining.ending import PODS_PER_PART, place_without
from topo_scheduler.scheduling.explaining.pods_that_end import pods_that_end
from topo_scheduler.scheduling.explaining.remedies import Remedy, RemedyCost, RemedyKind, Scene
from topo_scheduler.scheduling.explaining.remedy_search import (
    fewer_demands,
    fewer_members,
    level_offers,
    nodes_away,
    other_levels,
    reduced,
    single_ways,
    without,
)
from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.rules.demands import demands_of
from topo_scheduler.state.pods.workloads import Member, Workload

MAX_COMBINATIONS: Final = 3
"""Combinations that are reported, the cheapest of those found."""
MAX_FIRST_CHANGES: Final = 12
"""First changes for which the search tries a second."""
MAX_QUERIES: Final = 200
"""Queries to the planner for combinations, after which the search tries no further first change."""


def search_remedies(scene: Scene, running: Running) -> Iterator[None]:
    """Search for remedies. The verified ones are in ``scene.remedies``, the cheapest first.

    Yields:
        After each part of the work, so that the caller can do other work.

    Raises:
        PluginError: a plugin failed.
    """
    yield from single_ways(scene, running)
    if not scene.remedies:
        yield from _combinations(scene, running)
    scene.remedies.sort(key=_order)


def _order(way: Remedy) -> tuple[object, ...]:
    return way.cost, way.kind, way.value, way.nodes, tuple(_order(part) for part in way.parts)


def _combinations(scene: Scene, running: Running) -> Iterator[None]:
    queries_before, combinations = scene.what_if.queries, dict[frozenset[Remedy], Remedy]()
    for first in _first_changes(scene)[:MAX_FIRST_CHANGES]:
        if scene.what_if.queries - queries_before > MAX_QUERIES:
            break
        rows = _returned_rows(scene, first)
        with scene.what_if.back(rows) if rows else nullcontext():
            changed = _scene(scene, *_applied(scene, first))
            yield
            if first.kind is RemedyKind.RETURN:
                yield from other_levels(changed)
            yield from fewer_demands(changed)
            yield from fewer_members(changed)
            yield from pods_that_end(changed, running)
        kinds = {tuple(part.kind for part in way.parts) for way in combinations.values()}
        for second in changed.remedies:
            # The least change of its kind is enough.
            if first.kind is RemedyKind.DROP or (first.kind, second.kind) not in kinds:
                yield from _add_if_verified(scene, running, first, second, combinations)
    smaller = yield from _size_for_all(scene, running)
    if smaller is not None:
        changed = _scene(scene, *_applied(scene, smaller))
        yield from pods_that_end(changed, running)
        for second in changed.remedies:
            yield from _add_if_verified(scene, running, smaller, second, combinations)
    scene.remedies += sorted(combinations.values(), key=_order)[:MAX_COMBINATIONS]


def _first_changes(scene: Scene) -> list[Remedy]:
    """Return changes that may not help by themselves, in order of cost."""
    nodes, layout = scene.what_if.planner.nodes, scene.layout
    changes: list[Remedy] = []
    for rows, value in nodes_away(nodes):
        names = tuple(sorted(nodes.names[row] for row in rows))
        changes.append(Remedy(RemedyKind.RETURN, RemedyCost(nodes=len(names)), nodes=names, value=value))
    asked_depth = scene.ask.within or layout.depth
    for demand, value, _ in level_offers(scene):
        level = value.partition(",")[0]
        depth = layout.levels.index(level) + 1 if level in layout.levels else 0 if level == "none" else asked_depth - 1
        cost = RemedyCost(levels=max(1, asked_depth - depth), demands=value.count(","))
        changes.append(Remedy(RemedyKind.RELAX, cost, demand=demand, value=value))
    demands = demands_of(nodes, scene.workload, scene.members)
    return [
        *changes,
        *(
            Remedy(RemedyKind.DROP, RemedyCost(demands=1), demand=droppable.name, value=droppable.value)
            for droppable in demands
        ),
    ]


def _size_for_all(scene: Scene, running: Running) -> Generator[None, None, Remedy | None]:
    """Return the largest size that would fit if all running pods had ended."""
    pods = [pod for unit in running.units for pod in unit.pods]
    if not scene.workload.gang or not pods:
        return None
    without_pods = _scene(scene, scene.workload, scene.members)
    parts = [pods[at : at + PODS_PER_PART] for at in range(0, len(pods), PODS_PER_PART)]
    for part in parts:
        scene.what_if.remove(part)
        yield
    yield from fewer_members(without_pods)
    for part in parts:
        scene.what_if.restore(part)
        yield
    return next(iter(without_pods.remedies), None)


# ---------------------------------------------------------------- verification


def _add_if_verified(
    scene: Scene, running: Running, first: Remedy, second: Remedy, combinations: dict[frozenset[Remedy], Remedy]
) -> Iterator[None]:
    """Add two changes to the combinations if they help together, with no more nodes back than needed."""
    if first.kind is RemedyKind.RETURN:
        used = yield from _placed_nodes(scene, running, (first, second))
        needed_nodes = tuple(sorted(used & set(first.nodes)))
        if used and len(needed_nodes) < len(first.nodes):
            nodes = scene.what_if.planner.nodes
            ready = all(nodes.ready[nodes.row_of[name]] for name in needed_nodes)
            reduced_first = replace(
                first,
                nodes=needed_nodes,
                cost=RemedyCost(nodes=len(needed_nodes)),
                value="uncordon" if ready else first.value,
            )
            if needed_nodes and (yield from _placed_nodes(scene, running, (reduced_first, second))):
                first = reduced_first
    if second.kind is RemedyKind.RELAX:
        second = replace(second, nodes=(), level="")
    parts = yield from _with_fewest_demands(scene, running, (first, second))
    if (yield from _placed_nodes(scene, running, parts)):
        way = Remedy(RemedyKind.COMBINE, parts[0].cost + parts[1].cost, parts=parts)
        combinations.setdefault(frozenset(replace(part, cost=RemedyCost(), nodes=()) for part in parts), way)


def _with_fewest_demands(
    scene: Scene, running: Running, parts: tuple[Remedy, Remedy]
) -> Generator[None, None, tuple[Remedy, Remedy]]:
    """Return the parts, with only the level or only the placement relaxed where both are and one is enough.

    The search found the second change with all of the first. With fewer nodes back the size rule may ask for less.
    """
    for index, part in enumerate(parts):
        if part.kind is not RemedyKind.RELAX or not part.cost.demands:
            continue
        for demand, value, _ in level_offers(scene):
            if "," in value:
                continue
            lesser = replace(part, demand=demand, value=value, cost=replace(part.cost, demands=0), nodes=(), level="")
            lesser_parts = (lesser, parts[1]) if index == 0 else (parts[0], lesser)
            if (yield from _placed_nodes(scene, running, lesser_parts)):
                return lesser_parts
    return parts


def _placed_nodes(scene: Scene, running: Running, parts: Sequence[Remedy]) -> Generator[None, None, set[str]]:
    """Return the nodes that the workload would take after all changes, none where it has no place."""
    rows = [row for part in parts for row in _returned_rows(scene, part)]
    ended_units = {(ended.name, ended.gang) for part in parts for ended in part.ended}
    units = [number for number, unit in enumerate(running.units) if (unit.name, unit.gang) in ended_units]
    with scene.what_if.back(rows):
        changed = scene
        for part in parts:
            changed = _scene(changed, *_applied(changed, part))
        decision = yield from place_without(changed, running, units)
    return {seat.node for seat in decision.seats} if decision is not None else set()


def _scene(scene: Scene, workload: Workload, members: list[Member]) -> Scene:
    ask = scene.what_if.ask(workload, members)
    return Scene(scene.what_if, workload, members, ask, scene.what_if.rule(ask), scene.wall)


def _returned_rows(scene: Scene, way: Remedy) -> list[int]:
    row_of = scene.what_if.planner.nodes.row_of
    return [row_of[name] for name in way.nodes] if way.kind is RemedyKind.RETURN else []


def _applied(scene: Scene, way: Remedy) -> tuple[Workload, list[Member]]:
    """Return the workload and its members after one change. Changes of nodes and of other pods are not applied."""
    match way.kind:
        case RemedyKind.RELAX:
            offered = (way.demand, way.value)
            return next(workload for *offer, workload in level_offers(scene) if tuple(offer) == offered), scene.members
        case RemedyKind.DROP:
            demands = demands_of(scene.what_if.planner.nodes, scene.workload, scene.members)
            return without(
                scene, next(demand for demand in demands if (demand.name, demand.value) == (way.demand, way.value))
            )
        case RemedyKind.REDUCE:
            return reduced(scene, way.size - (scene.ask.total - scene.ask.members))
        case _:
            return scene.workload, scene.members
