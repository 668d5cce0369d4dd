"""How far from the best it is when more Migrations wait at once than are planned together exactly.

``python -m tests.recovery.gap_together [--cases 50] [--failed 6] [--leaves 5]``: random clusters in which so many gangs
have lost a member, against the integer program below, solved by HiGHS: first the fewest pods without seats, then the
least cost.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.bench.milp import Model
from tests.docs.results import keep
from tests.helpers import EPOCH
from tests.recovery.joint_claims import (
    GPUS_PER_NODE,
    ClusterWithLosses,
    GangWithLosses,
    check_shares,
    plan_jointly,
    relocation_request,
)
from tests.recovery.world import World, leaf
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.planning.joint_relocation import EligiblePods, one_by_one
from topo_scheduler.recovery.planning.relocation import RESTART_SECONDS
from topo_scheduler.recovery.planning.seat_claims import Copies
from topo_scheduler.scheduling.time_slicing import whole


@dataclass(frozen=True, slots=True)
class Case:
    """What came of a random cluster: pods without seats, and GPU-seconds; and the least there can be of both.

    ``movable``: how many pods alone might have moved.
    """

    seed: int
    nodes: int
    movable: int
    planned: tuple[int, int]
    least: tuple[int, int]


def case(seed: int, failed: int, count: int = 5) -> Case | None:
    """Return what comes of a cluster of so many leaves; None where so many gangs do not fit into it."""
    draw = random.Random(seed)
    leaves = {f"s1/l{n}": draw.randint(4, 7) for n in range(1, count + 1)}
    world = World(RecoverySpec(enabled=True), leaves)
    sizes = [draw.choice([2, 2, 3]) for _ in range(failed)]
    for number, size in enumerate(sizes):
        world.gang(f"g{number}", size)
        world.run()
    where = [world.nodes_of(f"g{number}-") for number in range(failed)]
    if any(len({leaf(node) for node in placement.values()}) != 1 for placement in where):
        return None
    free = dict.fromkeys(sorted(world.node_objects), GPUS_PER_NODE) | {
        node: 0 for placement in where for node in placement.values()
    }
    pods: dict[str, tuple[str, int, float]] = {}
    for node in [node for node in free if free[node]]:
        if draw.random() < 0.75:
            gpus, ran = draw.choice([2, 4, 8, 8]), draw.choice([0, 30, 300, 3000])
            name, stays = f"p{node}", draw.random() < 0.5
            free[node] -= gpus
            world.put(name, node, gpus, ran=float(ran), said={"movable": "false"} if stays else {})
            if not stays:
                pods[name] = (node, gpus, gpus * (RESTART_SECONDS + ran))
    lost = []
    for number, gang_nodes in enumerate(where):
        rest = tuple(node for name, node in sorted(gang_nodes.items()) if name != f"g{number}-0")
        lost.append(GangWithLosses(f"g{number}", 0, leaf(rest[0]), (f"g{number}-0",), rest))
    bad = frozenset(placement[f"g{number}-0"] for number, placement in enumerate(where))
    cluster = ClusterWithLosses({node: left for node, left in free.items() if node not in bad}, pods, lost)
    claims = [relocation_request(world, gang.name, gang.lost, bad) for gang in lost]
    claims.sort(key=lambda claim: claim.key)
    shares = plan_jointly(world, claims)
    copies, others = Copies(world.view, world.now), EligiblePods(frozenset(), EPOCH + world.now)
    after = whole(one_by_one(copies, claims, shares, others))
    assert after is not None
    shares = after
    check_shares(cluster, shares)
    waiting = sum(len(claim.moving_pods) for claim in claims if not shares[claim.key].seats)
    return Case(
        seed,
        sum(leaves.values()),
        len(pods),
        (waiting, round(sum(share.cost for share in shares.values()))),
        least(cluster),
    )


def least(cluster: ClusterWithLosses) -> tuple[int, int]:
    """Return the fewest pods that can go without seats, and the least that it costs then."""
    model = Model()
    goal: dict[object, float] = {}
    used: dict[str, dict[object, float]] = {node: {} for node in cluster.free}
    for gang in cluster.gangs:
        ways: dict[object, float] = {(gang.name, "waits"): 0.0, (gang.name, "near"): 0.0}
        leaves = sorted({leaf(node) for node in cluster.free})
        ways |= {(gang.name, home): len(gang.rest) * gang.gpus * RESTART_SECONDS for home in leaves}
        for way in ways:
            model.variable(way, 1)
        model.limit(dict.fromkeys(ways, 1.0), 1.0, 1.0)
        goal |= ways
        for home in leaves:
            _seats(model, cluster, gang, home, home, len(gang.lost) + len(gang.rest), used)
        _seats(model, cluster, gang, "near", gang.home, len(gang.lost), used)
    for pod, (own_node, gpus, cost) in cluster.pods.items():
        model.variable(pod, 1)
        goal[pod] = cost
        targets = [node for node in cluster.free if node != own_node]
        for node in targets:
            model.variable((pod, node), 1)
            used[node][pod, node] = float(gpus)
        used[own_node][pod] = -float(gpus)
        model.limit({pod: 1.0, **{(pod, node): -1.0 for node in targets}}, 0.0, 0.0)
    for node, terms in used.items():
        model.limit(terms, upper=float(cluster.free[node]))
    waits: dict[object, float] = {(gang.name, "waits"): float(len(gang.lost)) for gang in cluster.gangs}
    fewest = model.least(waits)
    assert fewest is not None
    model.limit(waits, upper=float(fewest))
    cheapest = model.least(goal)
    assert cheapest is not None
    return fewest, cheapest


def _seats(
    model: Model,
    cluster: ClusterWithLosses,
    gang: GangWithLosses,
    way: str,
    home: str,
    count: int,
    used: dict[str, dict[object, float]],
) -> None:
    """Let so many whole nodes of a leaf be those of a gang, if it goes this way."""
    terms: dict[object, float] = {(gang.name, way): -float(count)}
    for node in (node for node in cluster.free if leaf(node) == home):
        seat = (gang.name, way, node)
        model.variable(seat, 1)
        terms[seat] = 1.0
        used[node][seat] = 0.0 if way != "near" and node in gang.rest else float(gang.gpus)
    model.limit(terms, 0.0, 0.0)


def measure(count: int, failed: int, leaves: int, tell: Callable[[str], None]) -> list[Case]:
    """Return so many cases."""
    cases: list[Case] = []
    seed = 0
    while len(cases) < count:
        seed += 1
        result = case(seed, failed, leaves)
        if result is not None and result.least != (0, 0):
            cases.append(result)
            tell(f"{len(cases)} of {count}: {result}")
    return cases


def summary(cases: list[Case]) -> str:
    """Return what came of all cases, in a few lines."""
    movable = [result.movable for result in cases]
    more = Counter(result.planned[0] - result.least[0] for result in cases)
    same = [result for result in cases if result.planned[0] == result.least[0]]
    ratios = sorted(result.planned[1] / result.least[1] for result in same if result.least[1])
    dearer = sum(result.planned[1] > result.least[1] for result in same)
    return "\n".join(
        [
            f"{len(cases)} clusters in which not all have free seats near, with"
            f" {min(movable)} to {max(movable)} pods that might move",
            f"pods without seats beyond the fewest: {dict(sorted(more.items()))}",
            f"of {len(same)} with the fewest {len(same) - dearer} cost the least; mean"
            f" {sum(ratios) / max(1, len(ratios)):.4f} times the least, worst {max(ratios, default=1.0):.3f}",
            f"impossible plans: {[result.seed for result in cases if result.planned < result.least] or 'none'}",
        ]
    )


def figures(cases: list[Case], failed: int) -> dict[str, Any]:
    """Return what is kept of all cases, in which so many gangs lost a member."""
    more = Counter(result.planned[0] - result.least[0] for result in cases)
    same = [result for result in cases if result.planned[0] == result.least[0]]
    ratios = [result.planned[1] / result.least[1] for result in same if result.least[1]]
    return {
        "clusters": len(cases),
        "nodes": [min(result.nodes for result in cases), max(result.nodes for result in cases)],
        "gangs": failed,
        "movable_pods": [min(result.movable for result in cases), max(result.movable for result in cases)],
        "fewest_pods_without_node": more[0],
        "one_pod_more": more[1],
        "two_pods_more": more[2],
        "lowest_cost": sum(result.planned[1] <= result.least[1] for result in same),
        "mean_times_lowest": round(sum(ratios) / max(1, len(ratios)), 2),
        "worst_times_lowest": round(max(ratios, default=1.0), 1),
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.recovery.gap_together", description=__doc__)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--failed", type=int, default=6)
    parser.add_argument("--leaves", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    given = parser.parse_args()
    cases = measure(given.cases, given.failed, given.leaves, lambda text: print(text, file=sys.stderr, flush=True))
    print(summary(cases))
    if given.write:
        measured = figures(cases, given.failed)
        name = "gap_together_small" if given.failed == parser.get_default("failed") else "gap_together"
        keep(name, f"{measured['fewest_pods_without_node']} of {len(cases)} optimal in pods", measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
