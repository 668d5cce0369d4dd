"""Single changes that would help a workload without a place, each verified on a copy of the state.

Remedies compare by cost, field by field. The fields are pods to end, their GPUs, members given up, dropped demands,
additional levels of the fabric, nodes to restore, and seconds to wait. So a remedy that only takes time comes
first, and a remedy that ends the pods of other users comes last.
"""

import copy
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import PLACEMENT, REQUIRED_LEVEL, Enforcement
from topo_scheduler.scheduling.explaining.blocked_class import blocked_class
from topo_scheduler.scheduling.explaining.pods_that_end import pods_that_end
from topo_scheduler.scheduling.explaining.remedies import Remedy, RemedyCost, RemedyKind, Scene
from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained
from topo_scheduler.scheduling.rules.demands import DroppableDemand, demands_of
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.pods.workloads import Member, Workload
from topo_scheduler.state.topology.topology_merge import depth_in

SINGLY_CHECKED_NODES: Final = 12
"""Nodes to put back up to which the search checks for each whether it is needed."""
MAX_NODE_SETS: Final = 64
"""Smaller sets of nodes that the search tries at most, the smallest first."""
EXHAUSTIVE_NODES: Final = 6
"""Nodes up to which the search tries sets even if all nodes are not enough.

With fewer nodes the size rule may ask for less.
"""
FULL_ATTEMPT_SIZES: Final = 32
"""Sizes up to which the search makes a full attempt for each."""
MAX_SIZES: Final = 4096
"""Smaller sizes that the search tries at most, the largest first."""


def single_ways(scene: Scene, running: Running) -> Iterator[None]:
    """Search for remedies, the cheapest of each kind. The verified ones are in ``scene.remedies``.

    Yields:
        After each part of the work, so that the caller can do other work.

    Raises:
        PluginError: a plugin failed.
    """
    yield from _nodes_back(scene)
    yield from other_levels(scene)
    yield from fewer_demands(scene)
    yield from fewer_members(scene)
    yield from pods_that_end(scene, running)


def changed(workload: Workload, members: Iterable[Member] = (), **changes: object) -> Workload:
    """Return a copy of a workload with changed attributes. ``members`` replace those with the same UID."""
    copied = copy.copy(workload)
    copied.members = {**workload.members, **{member.uid: member for member in members}}
    for name, value in changes.items():
        setattr(copied, name, value)
    copied.recount()
    return copied


# ---------------------------------------------------------------- other demands


def level_offers(scene: Scene) -> list[tuple[str, str, Workload]]:
    """Return looser demands on levels that the gang could make: the demand, its value, and the changed workload.

    Each offer allows more leaves than the size rule asks for, or a domain of a higher level than the gang asks for. The
    lowest level comes first. Offers of both together come last: they cost one demand more.
    """
    workload, layout = scene.workload, scene.layout
    if not workload.gang:
        return []
    within, is_strict = scene.ask.within, scene.ask.enforcement is not Enforcement.PREFERRED
    demand = "required level" if workload.level or workload.tiers else REQUIRED_LEVEL
    offers: list[tuple[str, str, Workload]] = []
    combined_offers: list[tuple[str, str, Workload]] = []
    if is_strict:
        preferred = replace(workload.request, placement=Enforcement.PREFERRED)
        offers.append((PLACEMENT, "preferred", changed(workload, request=preferred)))
    for depth in range((within if within > 0 else layout.depth if within else 0) - 1, -1, -1):
        level = layout.levels[depth - 1] if depth else ""
        # The annotation and the PodGroup may both ask for a level: the tighter one applies.
        request = replace(workload.request, required_level=level if workload.request.required_level else "")
        offered_level = level if workload.level or workload.tiers else ""
        offers.append((demand, level or "none", changed(workload, level=offered_level, tiers=0, request=request)))
        if is_strict:
            request = replace(request, placement=Enforcement.PREFERRED)
            relaxed = changed(workload, level=offered_level, tiers=0, request=request)
            combined_offers.append((f"{demand} and placement", f"{level or 'none'}, preferred", relaxed))
    return offers + combined_offers


def other_levels(scene: Scene) -> Iterator[None]:
    """Find the cheapest offer of a looser level. It drops two demands only where neither alone is enough."""
    best: Remedy | None = None
    for demand, value, relaxed in level_offers(scene):
        demands = value.count(",")
        if best is not None and demands > best.cost.demands:
            break
        decision = scene.what_if.decide(relaxed, scene.members)
        yield
        if decision is None or decision.quality is None:
            continue
        cost = RemedyCost(levels=max(1, decision.quality.levels - _levels_of(scene)), demands=demands)
        if best is None or cost < best.cost:
            nodes = tuple(sorted({seat.node for seat in decision.seats}))
            best = Remedy(RemedyKind.RELAX, cost, nodes=nodes, level=decision.quality.level, demand=demand, value=value)
    if best is not None:
        scene.remedies.append(best)


def _levels_of(scene: Scene) -> int:
    """Return how many levels up the domain lies that the gang must share under the current rule."""
    layout, rule = scene.layout, scene.rule
    if rule is None:
        return 0
    return 1 if rule.leaves == 1 else layout.network.depth - depth_in(layout, layout.network, rule.depth) + 1


def fewer_demands(scene: Scene) -> Iterator[None]:
    """Try the pods without one demand: a selector, a taint that they do not tolerate, a GPU model, a bandwidth."""
    for demand in demands_of(scene.what_if.planner.nodes, scene.workload, scene.members):
        decision = scene.what_if.decide(*without(scene, demand))
        yield
        if decision is not None:
            nodes = tuple(sorted({seat.node for seat in decision.seats}))
            scene.remedies.append(
                Remedy(RemedyKind.DROP, RemedyCost(demands=1), nodes=nodes, demand=demand.name, value=demand.value)
            )


def without(scene: Scene, demand: DroppableDemand) -> tuple[Workload, list[Member]]:
    """Return the workload and its members without one demand."""
    members = [replace(member, cls=demand.drop(member.cls)) for member in scene.members]
    request = replace(scene.workload.request, gpu_model_mixed=demand.mixes or scene.workload.request.gpu_model_mixed)
    return changed(scene.workload, members, request=request), members


def fewer_members(scene: Scene) -> Iterator[None]:
    """Find the largest size that fits now, by the same rules. A smaller gang may need a smaller domain."""
    if not scene.workload.gang:
        return
    blocked = blocked_class(scene.what_if.planner, scene.ask)
    if blocked is not None and (blocked.text or blocked.lasting):
        return  # a smaller gang fits only without the pods that have no node, and a size does not name these
    seated, segments = scene.ask.total - scene.ask.members, scene.ask.segments
    largest = min(len(scene.members) - 1, _upper_bound(scene))
    for size in range(largest, max(0, largest - MAX_SIZES), -1):
        if (size + seated - segments.ahead) % segments.size:
            continue  # the scheduler would refuse this size
        smaller, members = reduced(scene, size)
        # A failed attempt also computes reasons. With many sizes, the planner alone checks each first.
        fits = largest <= FULL_ATTEMPT_SIZES or scene.what_if.fits(smaller, members)
        fits = fits and scene.what_if.decide(smaller, members) is not None
        yield
        if fits:
            given_up = len(scene.members) - size
            scene.remedies.append(Remedy(RemedyKind.REDUCE, RemedyCost(members=given_up), size=size + seated))
            return


def reduced(scene: Scene, size: int) -> tuple[Workload, list[Member]]:
    """Return the workload and its members, reduced to ``size`` members that are still to be placed."""
    seated = scene.ask.total - scene.ask.members
    # A gang of one pod is a single pod, unless later pods must be near it.
    single = size + seated == 1 and scene.workload.group is None
    removed = {member.uid for member in scene.members[size:]}
    smaller = changed(scene.workload, size=size + seated, gang=not single)
    for uid in removed:
        smaller.take(uid)
    return smaller, scene.members[:size]


def _upper_bound(scene: Scene) -> int:
    """Return how many members fit on the nodes regardless of domains: an upper bound."""
    groups = scene.ask.groups
    if len(groups) > 1 or is_constrained(groups):
        return len(scene.members)
    return int(scene.what_if.planner.views.get(replace(groups[0][0], caps=())).fit.sum())


# ---------------------------------------------------------------- nodes that come back


def nodes_away(nodes: NodeTable) -> Iterator[tuple[list[int], str]]:
    """Yield the cordoned nodes, then all that are cordoned or not ready, if there are any; each with the action."""
    cordoned = np.flatnonzero(nodes.exists & nodes.unschedulable & nodes.ready).tolist()
    away = np.flatnonzero(nodes.exists & ~nodes.ready).tolist()
    if cordoned:
        yield cordoned, "uncordon"
    if away:
        yield [*cordoned, *away], "repair"


def _nodes_back(scene: Scene) -> Iterator[None]:
    """Find the fewest cordoned or not ready nodes that would have to be back in use."""
    nodes = scene.what_if.planner.nodes
    for rows, value in nodes_away(nodes):
        needed = yield from _needed_nodes(scene, rows)
        if needed or len(rows) <= EXHAUSTIVE_NODES:
            smaller_set = yield from _fewest_nodes(scene, rows, len(needed) or len(rows))
            needed = smaller_set or needed
        if needed:
            names = tuple(sorted(nodes.names[row] for row in needed))
            action = "uncordon" if all(nodes.ready[row] for row in needed) else value
            scene.remedies.append(Remedy(RemedyKind.RETURN, RemedyCost(nodes=len(names)), nodes=names, value=action))
            return


def _needed_nodes(scene: Scene, rows: Sequence[int]) -> Generator[None, None, Sequence[int]]:
    """Return the nodes that the workload would use if all were back, and that it needs."""
    with scene.what_if.back(rows):
        decision = scene.what_if.decide(scene.workload, scene.members)
    yield
    used = {seat.row for seat in decision.seats} if decision is not None else set()
    needed = [row for row in rows if row in used]
    for row in list(needed) if len(needed) <= SINGLY_CHECKED_NODES else []:
        still_needed = [other for other in needed if other != row]
        if (yield from _fits_with(scene, still_needed)):
            needed = still_needed
    return needed if needed and (yield from _fits_with(scene, needed)) else ()


def _fewest_nodes(scene: Scene, rows: Sequence[int], count: int) -> Generator[None, None, Sequence[int]]:
    """Return the fewest nodes that are enough, fewer than ``count``. Empty where none are, or with too many sets."""
    candidates = (subset for size in range(1, count) for subset in combinations(rows, size))
    for subset in islice(candidates, MAX_NODE_SETS):
        if (yield from _fits_with(scene, subset)):
            return subset
    return ()


def _fits_with(scene: Scene, rows: Sequence[int]) -> Generator[None, None, bool]:
    """Return whether the workload has a place once these nodes are back."""
    with scene.what_if.back(rows):
        fits = scene.what_if.decide(scene.workload, scene.members) is not None
    yield
    return fits
