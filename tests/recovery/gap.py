"""How much more than the least it costs when others make room, where there are too many for all sets to be tried.

``python -m tests.recovery.gap [--cases 200] [--least 11] [--most 16]``: random clusters with so many pods that might
move, `look_for_room` against the integer program below, solved by HiGHS.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.milp import Model
from tests.helpers import EPOCH, controlled_by, make_pod
from tests.recovery.world import World
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.seating import find_moving_pod
from topo_scheduler.recovery.planning.relocation import RESTART_SECONDS, look_for_room

GPUS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """What came of a random cluster. ``planned`` and ``least`` in GPU-seconds; None where there is no way."""

    seed: int
    movable: int
    planned: float | None
    least: float | None


def case(seed: int, least: int, max_movable: int) -> Case | None:
    """Return what comes of a cluster; None where no pod need move, or there are not so many that might."""
    draw = random.Random(seed)
    leaves, nodes = draw.choice([(3, 6), (4, 5), (5, 4), (6, 3)])
    world = World(RecoverySpec(enabled=True), {f"s1/l{n}": nodes for n in range(1, leaves + 1)})
    world.gang("g", draw.randint(2, nodes - 1))
    world.run()
    where = world.nodes_of("g")
    home = where["g-0"].rpartition("-")[0]
    lost = [f"g-{n}" for n in range(draw.choice([1, 1, 2]) if len(where) > 2 else 1)]
    free = {name: 0 if name in where.values() else GPUS for name in sorted(world.node_objects)}
    costs: dict[str, tuple[str, int, float]] = {}
    for node in sorted(free, key=lambda name: (not name.startswith(home + "-"), draw.random())):
        # The leaf of the gang is full; elsewhere some nodes are, of pods that stay.
        inside = node.startswith(home + "-")
        while free[node] and (inside or draw.random() < 0.7):
            gpus = draw.choice([size for size in (1, 2, 2, 4, 4, 8) if size <= free[node]])
            stays = not inside and draw.random() < 0.6
            name, ran = f"p{len(world.pods)}", draw.choice([0, 30, 300, 3000])
            _put(world, name, node, gpus, ran, stays=stays)
            free[node] -= gpus
            if not stays:
                costs[name] = (node, gpus, max(1, gpus) * (RESTART_SECONDS + ran))
    failed = {where[name] for name in lost}
    if not least <= len(costs) <= max_movable:
        return None
    if sum(n.startswith(home + "-") and n not in failed and left == GPUS for n, left in free.items()) >= len(lost):
        return None
    lost_pods = [pod for pod in (find_moving_pod(world.view, uid) for uid in lost) if pod is not None]
    rooms = look_for_room(world.view, lost_pods, failed, (), "default/m", world.now, EPOCH + world.now)
    room = next((room for room in rooms if room is not None), None)
    best = cheapest(costs, free, failed, [name for name in free if name.startswith(home + "-")], len(lost))
    return Case(seed, len(costs), None if room is None else room.cost, best)


def _put(world: World, name: str, node: str, gpus: int, ran: int, *, stays: bool) -> None:
    said = {"movable": "false"} if stays else {}
    pod = make_pod(name, gpus=gpus, uid=name, owner=controlled_by("ReplicaSet", name), annotations=said, created=-ran)
    world.add(pod)
    world.d.step()
    world.d.flight.clear()
    world.d.tried.clear()
    pod.spec.node_name = node
    world.tell_pod(name)


def cheapest(
    pods: dict[str, tuple[str, int, float]], free: dict[str, int], failed: set[str], home: list[str], seats: int
) -> int | None:
    """Return the least that it costs to free so many nodes of a leaf; None where that can't be.

    Args:
        pods: node, GPUs and cost of each that might move.
        free: number of free GPUs of each node.
        failed: nodes onto which no pod goes.
        home: the nodes of the leaf.
        seats: how many whole nodes are needed.
    """
    model = Model()
    good = [node for node in free if node not in failed]
    for node in good:
        if node in home:
            model.variable(("seat", node), 1)
    for name, (own, _, _) in pods.items():
        model.variable(name, 1)
        targets = [node for node in good if node != own]
        for node in targets:
            model.variable((name, node), 1)
        model.limit({name: 1.0, **{(name, node): -1.0 for node in targets}}, 0.0, 0.0)
    model.limit({("seat", node): 1.0 for node in good if node in home}, float(seats), float(seats))
    for node in good:
        terms: dict[object, float] = {("seat", node): float(GPUS)} if node in home else {}
        for name, (own, gpus, _) in pods.items():
            terms[name if own == node else (name, node)] = float(-gpus if own == node else gpus)
        model.limit(terms, upper=float(free[node]))
    return model.least({name: cost for name, (_, _, cost) in pods.items()})


def measure(count: int, least: int, max_movable: int, tell: Callable[[str], None]) -> list[Case]:
    """Return so many cases of clusters with so many pods that might move."""
    cases: list[Case] = []
    seed = 0
    while len(cases) < count:
        seed += 1
        result = case(seed, least, max_movable)
        if result is not None:
            cases.append(result)
            if len(cases) % 20 == 0:
                tell(f"{len(cases)} of {count}")
    return cases


def summary(cases: list[Case]) -> str:
    """Return what came of all cases, in a few lines."""
    movable = [result.movable for result in cases]
    feasible = [result for result in cases if result.least is not None]
    ratios = [result.planned / result.least for result in feasible if result.planned is not None and result.least]
    same = sum(ratio < 1.0 + 1e-9 for ratio in ratios)
    worse = sorted(ratio for ratio in ratios if ratio >= 1.0 + 1e-9)
    missed = sum(result.planned is None for result in feasible)
    wrong = [
        result.seed
        for result in cases
        if result.planned is not None and (result.least is None or result.planned < result.least - 1e-6)
    ]
    return "\n".join(
        [
            f"{len(cases)} clusters, {min(movable)} to {max(movable)} movable",
            f"{len(feasible)} can be made room in; a plan was found in {len(ratios)}, missed in {missed}",
            f"as cheap as can be {same} of {len(ratios)}; mean {sum(ratios) / max(1, len(ratios)):.4f} times the least,"
            f" worst {max(worse, default=1.0):.3f}",
            f"impossible plans: {wrong or 'none'}",
        ]
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.recovery.gap", description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--least", type=int, default=11)
    parser.add_argument("--most", type=int, default=16)
    given = parser.parse_args()
    cases = measure(given.cases, given.least, given.most, lambda text: print(text, file=sys.stderr, flush=True))
    print(summary(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
