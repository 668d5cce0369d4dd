"""Whether a workload fits once pods have ended, by the planner on a copy of the state, and the remedies that follow."""

from collections.abc import Generator, Sequence
from typing import Final

from topo_scheduler.scheduling.explaining.remedies import EndingPods, Remedy, RemedyCost, RemedyKind, Scene
from topo_scheduler.scheduling.explaining.running import Running, Unit
from topo_scheduler.state.decision import Decision

PODS_PER_PART: Final = 250
"""Pods that one part of the work removes from the copy, between two pauses."""


def place_without(scene: Scene, running: Running, units: Sequence[int]) -> Generator[None, None, Decision | None]:
    """Return the decision once units have ended. The generator removes and restores their pods in parts.

    A caller that stops in between must discard the copy.
    """
    pods = [pod for number in units for pod in running.units[number].pods]
    parts = [pods[first : first + PODS_PER_PART] for first in range(0, len(pods), PODS_PER_PART)]
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
    """Offer to wait for the units, or only for those on the nodes that the workload would use, if that is enough."""
    decision = yield from place_without(scene, running, units)
    if decision is None:
        return False
    rows = {seat.row for seat in decision.seats}
    on_placed_nodes = [number for number in units if any(pod.row in rows for pod in running.units[number].pods)]
    if len(on_placed_nodes) < len(units) and (yield from fits_without(scene, running, on_placed_nodes)):
        units = on_placed_nodes
    ended = tuple(_ended(running.units[number]) for number in units)
    until = max(unit.ends for unit in ended)
    seconds = max(0, round(until - scene.wall))
    scene.remedies.append(Remedy(RemedyKind.WAIT, RemedyCost(seconds=seconds), ended=ended, until=until))
    return True


def offer_to_end(scene: Scene, running: Running, numbers: Sequence[int], *, least: bool) -> None:
    """Offer to end units. ``least``: whether certainly no cheaper set of units is enough."""
    units = [running.units[number] for number in sorted(numbers)]
    names = scene.what_if.planner.nodes.names
    nodes = tuple(sorted({names[pod.row] for unit in units for pod in unit.pods}))
    pods, gpus = running.cost(numbers)
    ended = tuple(_ended(unit) for unit in units)
    scene.remedies.append(
        Remedy(RemedyKind.FREE, RemedyCost(pods=pods, gpus=gpus), ended=ended, nodes=nodes, least=least)
    )


def _ended(unit: Unit) -> EndingPods:
    pods = tuple(sorted(pod.occupant.key for pod in unit.pods))
    return EndingPods(unit.name, unit.gang, pods, unit.gpus, unit.ends)
