"""What comes of it when pods end, asked of the planner on a copy of the state, and the ways out made of that."""

from collections.abc import Generator, Sequence
from typing import Final

from topo_scheduler.scheduling.explaining.running import Running, Unit
from topo_scheduler.scheduling.explaining.ways import EndingPods, RemedyCost, RemedyKind, Scene, Way
from topo_scheduler.state.decision import Decision

AT_ONCE: Final = 250
"""Pods that are taken away between two pauses."""


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


def fits_without(scene: Scene, running: Running, units: Sequence[int]) -> Generator[None, None, bool]:
    """Return whether the workload has a place once units have ended."""
    decision = yield from place_without(scene, running, units)
    return decision is not None


def wait_for(scene: Scene, running: Running, units: Sequence[int]) -> Generator[None, None, bool]:
    """Offer to wait for units, or for those of them on whose nodes the workload would go, if that is enough."""
    decision = yield from place_without(scene, running, units)
    if decision is None:
        return False
    rows = {seat.row for seat in decision.seats}
    fewer = [n for n in units if any(pod.row in rows for pod in running.units[n].pods)]
    if len(fewer) < len(units) and (yield from fits_without(scene, running, fewer)):
        units = fewer
    ended = tuple(_ended(running.units[n]) for n in units)
    until = max(one.ends for one in ended)
    seconds = max(0, round(until - scene.wall))
    scene.found.append(Way(RemedyKind.WAIT, RemedyCost(seconds=seconds), ended=ended, until=until))
    return True


def offer_to_end(scene: Scene, running: Running, numbers: Sequence[int], *, least: bool) -> None:
    """Offer to end units. ``least``: whether it is certain that no cheaper set of units would do."""
    units = [running.units[n] for n in sorted(numbers)]
    names = scene.what_if.planner.nodes.names
    nodes = tuple(sorted({names[pod.row] for unit in units for pod in unit.pods}))
    cost = RemedyCost(pods=sum(unit.cost[0] for unit in units), gpus=sum(unit.cost[1] for unit in units))
    ended = tuple(_ended(unit) for unit in units)
    scene.found.append(Way(RemedyKind.FREE, cost, ended=ended, nodes=nodes, least=least))


def _ended(unit: Unit) -> EndingPods:
    pods = tuple(sorted(pod.occupant.key for pod in unit.pods))
    return EndingPods(unit.name, unit.gang, pods, unit.gpus, unit.ends)
