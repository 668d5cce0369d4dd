"""How far the search for gangs of different pods is from the optimum, on instances of a middling size.

The optimum is that of HiGHS (scipy.optimize.milp): the fewest leaves of one spine, or of the whole fabric where no
spine holds the gang.
"""

import random
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from tests.helpers import make_node
from tests.scheduling.planning import Small, pods
from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.ask import Ask, Placement
from topo_scheduler.state.classes import PodClass

from .objects import Json

SPINES: Final = 4
LEAVES: Final = 6
NODES: Final = 4
GPUS: Final = 8
CPU: Final = 64_000


class Instance:
    """Nodes that are partly taken, and a gang of two or three classes."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.small = Small(
            make_node(f"s{s}l{leaf}n{n}", f"s{s}/l{leaf}", gpus=GPUS, cpu="64")
            for s in range(SPINES)
            for leaf in range(LEAVES)
            for n in range(NODES)
        )
        self.free: list[tuple[int, int, int]] = []
        """Leaf, GPUs and milli-CPU of each node."""
        for s in range(SPINES):
            for leaf in range(LEAVES):
                for n in range(NODES):
                    gpus, cpu = draw.choice((0, 2, 4, 6, 7, 8, 8)), draw.choice((0, 16_000, 32_000, 48_000))
                    self.small.hold(f"s{s}l{leaf}n{n}", gpus=gpus, cpu=cpu)
                    self.free.append((s * LEAVES + leaf, GPUS - gpus, CPU - cpu))
        classes = [pods(8, cpu=4000), pods(4, cpu=8000), pods(2, cpu=12_000), pods(1, cpu=20_000), pods(0, cpu=30_000)]
        self.groups: list[tuple[PodClass, int]] = [
            (cls, draw.randint(2, 16)) for cls in sorted(draw.sample(classes, draw.choice((2, 3))), key=classes.index)
        ]

    def planned(self) -> tuple[int, int] | None:
        """Return (1 beyond a spine, leaves) as the planner places it, None where it does not."""
        found = self.small.plan(Ask(self.groups, gang=True, enforcement=Enforcement.PREFERRED))
        if not isinstance(found, Placement):
            return None
        return int(len({leaf // LEAVES for leaf in found.leaves}) > 1), len(found.leaves)

    def optimum(self) -> tuple[int, int] | None:
        """Return the same of the best placement there is."""
        spines = [self._fewest(range(s * LEAVES, (s + 1) * LEAVES)) for s in range(SPINES)]
        inside = [leaves for leaves in spines if leaves is not None]
        if inside:
            return 0, min(inside)
        beyond = self._fewest(range(SPINES * LEAVES))
        return None if beyond is None else (1, beyond)

    def _fewest(self, leaves: Sequence[int]) -> int | None:
        from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped,import-not-found,unused-ignore]

        nodes = [(leaf, gpus, cpu) for leaf, gpus, cpu in self.free if leaf in leaves]
        kinds, places = len(self.groups), len(leaves)
        size = len(nodes) * kinds + places  # members of a class on a node; whether a leaf is used
        rows, low, high = [], [], []
        for at, (leaf, gpus, cpu) in enumerate(nodes):
            for asked, free in (([c.gpus for c, _ in self.groups], gpus), ([c.amount(0) for c, _ in self.groups], cpu)):
                row = np.zeros(size)
                row[at * kinds : (at + 1) * kinds] = asked
                row[len(nodes) * kinds + leaf - leaves[0]] = -free
                rows.append(row)
                low.append(-np.inf)
                high.append(0.0)
        for kind, (_, count) in enumerate(self.groups):
            row = np.zeros(size)
            row[kind : len(nodes) * kinds : kinds] = 1
            rows.append(row)
            low.append(count)
            high.append(count)
        goal = np.concatenate((np.zeros(len(nodes) * kinds), np.ones(places)))
        most = np.concatenate((np.full(len(nodes) * kinds, np.inf), np.ones(places)))
        found = milp(
            goal,
            constraints=LinearConstraint(np.array(rows), low, high),
            integrality=np.ones(size),
            bounds=Bounds(0, most),
        )
        return round(found.fun) if found.status == 0 else None


def gap(instances: int = 100) -> Json:
    """Compare both on so many instances."""
    best = missed = wider = more = impossible = 0
    seconds = []
    for seed in range(instances):
        one = Instance(seed)
        optimum = one.optimum()
        began = time.thread_time()
        planned = one.planned()
        seconds.append(time.thread_time() - began)
        if optimum is None:
            impossible += 1
            assert planned is None
        elif planned is None:
            missed += 1
        elif planned == optimum:
            best += 1
        elif planned[0] > optimum[0]:
            wider += 1
        else:
            more += 1
    seconds.sort()
    return {
        "nodes": SPINES * LEAVES * NODES,
        "leaves": SPINES * LEAVES,
        "instances": instances,
        "impossible": impossible,
        "optimal": best,
        "missed": missed,
        "level_too_wide": wider,
        "leaves_too_many": more,
        "p50_ms": round(1e3 * seconds[len(seconds) // 2], 1),
        "max_ms": round(1e3 * seconds[-1], 1),
    }
