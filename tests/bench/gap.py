"""How far the search for gangs of different pods is from the optimum, on instances of a middling size.

The optimum is that of HiGHS (scipy.optimize.milp): the fewest leaves of one spine, or of the whole fabric where no
spine holds the gang. Measured for gangs as such, and for gangs in segments that must each share a leaf.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tests.helpers import make_node
from tests.scheduling.planning import Small, pods
from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery, Segments
from topo_scheduler.state.pods.classes import PodClass

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

    def ask(self) -> PlacementQuery:
        """Return what the planner is asked."""
        return PlacementQuery(self.groups, gang=True, enforcement=Enforcement.PREFERRED)

    def planned(self) -> tuple[int, int] | None:
        """Return (1 beyond a spine, leaves) as the planner places it, None where it does not."""
        placement = self.small.plan(self.ask())
        if not isinstance(placement, Placement):
            return None
        return int(len({leaf // LEAVES for leaf in placement.leaves}) > 1), len(placement.leaves)

    def optimum(self) -> tuple[int, int] | None:
        """Return the same of the best placement there is."""
        spines = [self._fewest(range(s * LEAVES, (s + 1) * LEAVES)) for s in range(SPINES)]
        inside = [leaves for leaves in spines if leaves is not None]
        if inside:
            return 0, min(inside)
        beyond = self._fewest(range(SPINES * LEAVES))
        return None if beyond is None else (1, beyond)

    def kinds(self) -> list[tuple[tuple[int, ...], int]]:
        """Return what must be in one leaf each: members of each class, and how many there are of it."""
        vectors = [tuple(int(at == kind) for at in range(len(self.groups))) for kind in range(len(self.groups))]
        return [(vector, count) for vector, (_, count) in zip(vectors, self.groups, strict=True)]

    def _fewest(self, leaves: Sequence[int]) -> int | None:
        from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped,import-not-found,unused-ignore]

        nodes = [(leaf, gpus, cpu) for leaf, gpus, cpu in self.free if leaf in leaves]
        classes, places, kinds = len(self.groups), len(leaves), self.kinds()
        # Members of a class on a node; whether a leaf is used; what of each kind is in a leaf.
        used, dealt = len(nodes) * classes, len(nodes) * classes + places
        size = dealt + places * len(kinds)
        rows, low, high = [], [], []

        def limit(row: np.ndarray[tuple[int], np.dtype[np.float64]], least: float, highest: float) -> None:
            rows.append(row)
            low.append(least)
            high.append(highest)

        for at, (leaf, gpus, cpu) in enumerate(nodes):
            for asked, free in (([c.gpus for c, _ in self.groups], gpus), ([c.amount(0) for c, _ in self.groups], cpu)):
                row = np.zeros(size)
                row[at * classes : (at + 1) * classes] = asked
                row[used + leaf - leaves[0]] = -free
                limit(row, -np.inf, 0.0)
        for place in range(places):
            for kind in range(classes):
                row = np.zeros(size)
                for at, (leaf, _, _) in enumerate(nodes):
                    row[at * classes + kind] = leaf - leaves[0] == place
                row[dealt + place * len(kinds) : dealt + (place + 1) * len(kinds)] = [-v[kind] for v, _ in kinds]
                limit(row, 0.0, 0.0)
        for number, (_, count) in enumerate(kinds):
            row = np.zeros(size)
            row[dealt + number :: len(kinds)] = 1
            limit(row, count, count)
        goal = np.zeros(size)
        goal[used:dealt] = 1
        upper = np.full(size, np.inf)
        upper[used:dealt] = 1
        solution = milp(
            goal,
            constraints=LinearConstraint(np.array(rows), low, high),
            integrality=np.ones(size),
            bounds=Bounds(0, upper),
        )
        return round(solution.fun) if solution.status == 0 else None


class InSegments(Instance):
    """The same for a gang of two or three kinds of segments, three to sixteen of them, of two to five members each."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = random.Random(seed + 1_000_000)
        classes = [cls for cls, _ in self.groups]
        vectors: set[tuple[int, ...]] = set()
        for _ in range(draw.choice((2, 3))):
            members = [draw.randrange(len(classes)) for _ in range(draw.randint(2, 5))]
            vectors.add(tuple(members.count(kind) for kind in range(len(classes))))
        self._kinds = [(vector, draw.randint(1, 6)) for vector in sorted(vectors, reverse=True)]
        counts = [sum(vector[at] * count for vector, count in self._kinds) for at in range(len(classes))]
        used = [at for at, count in enumerate(counts) if count]
        self.groups = [(classes[at], counts[at]) for at in used]
        self._kinds = [(tuple(vector[at] for at in used), count) for vector, count in self._kinds]

    def kinds(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the segments."""
        return self._kinds

    def ask(self) -> PlacementQuery:
        """Return what the planner is asked."""
        each = [vector for vector, count in self._kinds for _ in range(count)]
        parts = tuple(
            tuple(number for number, vector in enumerate(each) for _ in range(vector[group]))
            for group in range(len(self.groups))
        )
        return replace(super().ask(), segments=Segments(1, parts=parts))


def gap(instances: int = 100) -> Json:
    """Compare both on so many instances of either kind."""
    return {"mixed": _gap(Instance, instances), "mixed_in_segments": _gap(InSegments, instances)}


def _gap(kind: type[Instance], instances: int) -> Json:
    best = missed = wider = more = impossible = 0
    seconds = []
    for seed in range(instances):
        instance = kind(seed)
        optimum = instance.optimum()
        began = time.thread_time()
        planned = instance.planned()
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
