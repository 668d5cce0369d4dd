"""Which pods would have to end so that members of one class fit: the fewest, then those with the fewest GPUs.

Worked out on arrays, by what pods hold of resources alone; whoever uses it asks the planner whether it is so.

In a domain with at most `EXACT` units (gangs, and pods by themselves) every set of them is tried. In a larger one, for
each node the cheapest sets that make room for one more member, two more, and so on are found (every set of those that
differ), and the set with the least cost for each member is taken until the gang fits; then whatever is not needed after
all is let stay, the costliest first. So what is told is never more than needed, but may not be the very least.
"""

import heapq
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

import numpy as np

from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.scheduling.preemption.regions import Bool, Region, regions_for
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.resources import GPU

EXACT: Final = 8
"""Units of a domain up to which every set of them is tried."""
COMBINATIONS: Final = 96
"""Sets of the units of one node that are tried."""
AT_ONCE: Final = 24
"""Nodes that are looked at between two pauses."""


@dataclass(frozen=True, slots=True)
class Clearance:
    """Units that would have to end, and what that costs: pods, then GPUs."""

    cost: tuple[int, int]
    region: int
    units: tuple[int, ...]


class Board:
    """One class on the nodes of one view, with everything that runs there."""

    def __init__(
        self, planner: Planner, view: ClassView, ask: PlacementQuery, layout: Layout, rule: SizeRule, running: Running
    ) -> None:
        nodes = planner.nodes
        self.running = running
        self.members = ask.members
        self._limits = planner.limits_for(ask)
        self.limited = bool(self._limits.max_nodes_per_leaf or self._limits.max_gpus_per_leaf)
        """Whether a leaf may not be filled."""
        self._gpus = view.cls.gpus
        self.exact = True
        """Whether every set was tried of each domain that was cleared."""
        self.gpus = np.where(view.columns == GPU, view.amounts, 0).astype(np.int64)
        """GPUs that a member asks for, in the column of those."""
        self.by_share = bool(view.cls.share)
        """Whether members ask for a share of a GPU: more may fit than what is free of each resource says."""
        capped = self._limits.members_per_leaf(self._gpus)
        shut = bool(self._limits.max_gpus_per_leaf and self._gpus and not capped)
        self.regions: list[Region] = [] if shut else regions_for(ask, layout, rule)
        self.wanted = view.amounts
        self._wants: list[int] = view.amounts.tolist()
        self.usable: Bool = view.eligible
        self._most = 1 if view.cls.constraints is not None and view.cls.constraints.alone else ask.members
        self.free: Int64 = nodes.allocatable[:, view.columns] - nodes.requested[:, view.columns]
        self.amounts = running.amounts(view.columns)
        sizes = [len(region.rows) for region in self.regions]
        self._all_rows: Int64 = np.concatenate([region.rows for region in self.regions] or [np.empty(0, np.int64)])
        self._starts: Int64 = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
        rows = np.arange(nodes.rows)
        self._first: list[int] = np.searchsorted(running.row, rows).tolist()
        self._last: list[int] = np.searchsorted(running.row, rows, side="right").tolist()

    # ------------------------------------------------------------ what fits

    def fits(self, gone: Bool | None = None) -> Int64:
        """Return how many members each row holds when some pods are gone (int64[rows])."""
        free = self.free
        if gone is not None and gone.any():
            free = free.copy()
            np.add.at(free, self.running.row[gone], self.amounts[gone])
        return self.fit(free, self.usable)

    def holds(self, region: Region, fit: Int64) -> bool:
        """Return whether a region holds the members with so many on each row."""
        return bool(region.holds(fit[region.rows][None, :], self.members, self._limits, self._gpus)[0])

    def any_holds(self, fit: Int64) -> Region | None:
        """Return the first region that holds the members with so many on each row."""
        return next(
            (self.regions[number] for number in self._roomy(fit) if self.holds(self.regions[number], fit)), None
        )

    def _roomy(self, fit: Int64) -> list[int]:
        """Return the regions of which all rows together hold the members: others can't."""
        if not self.regions:
            return []
        found: list[int] = np.flatnonzero(np.add.reduceat(fit[self._all_rows], self._starts) >= self.members).tolist()
        return found

    def fit(self, free: Int64, usable: Bool) -> Int64:
        """Return how many members rows hold with so much free (int64[rows, columns]) where they are usable."""
        fit = np.minimum(self._most, (np.maximum(free, 0) // self.wanted).min(axis=1))
        return np.where(usable, fit, 0).astype(np.int64)

    def room(self, free: Sequence[int]) -> int:
        """Return how many members fit where so much of each resource is free, on a node that they may use."""
        room = self._most
        for have, want in zip(free, self._wants, strict=True):
            if have < want:
                return 0
            room = min(room, have // want)
        return room

    # ------------------------------------------------------------ whom to end

    def clearances(self) -> Generator[Clearance | None, None, None]:
        """Yield for each domain that can be cleared what that takes, and None between two parts of the work."""
        everybody = np.ones(len(self.running.pods), np.bool_)
        now, most = self.fits(), self.fits(everybody)
        yield None
        cheapest: tuple[int, int] | None = None
        for number in self._roomy(most):
            region = self.regions[number]
            if not self.holds(region, most):
                continue
            inside = [n for row in region.rows.tolist() if self.usable[row] for n in self.on(row)]
            units = sorted({int(self.running.unit[n]) for n in inside})
            if len(units) <= EXACT:
                found = set(self._every_set(region, units))
                yield None
            else:
                self.exact = False
                found = yield from self._step_by_step(region, now, cheapest)
            if found:
                cost = self.cost(found)
                cheapest = cost if cheapest is None else min(cheapest, cost)
                yield Clearance(cost, number, tuple(sorted(found)))

    def cost(self, units: Sequence[int] | set[int]) -> tuple[int, int]:
        """Return what it costs when units end: pods, then GPUs."""
        costs = [self.running.units[unit].cost for unit in units]
        return sum(pods for pods, _ in costs), sum(gpus for _, gpus in costs)

    def on(self, row: int) -> range:
        """Return the pods on a row, by their place in `Running`."""
        return range(self._first[row], self._last[row])

    def _every_set(self, region: Region, units: Sequence[int]) -> list[int]:
        sets = np.arange(1, 1 << len(units), dtype=np.int64)
        taken: Bool = (sets[:, None] >> np.arange(len(units))) & 1 == 1
        freed = np.zeros((len(units), len(region.rows), len(self.wanted)), np.int64)
        place = {row: at for at, row in enumerate(region.rows.tolist())}
        for at, unit in enumerate(units):
            for number in self.running.units[unit].numbers:
                if (row := int(self.running.row[number])) in place:
                    freed[at, place[row]] += self.amounts[number]
        free = self.free[region.rows][None] + np.tensordot(taken.astype(np.int64), freed, axes=1)
        fits = np.minimum(self._most, (np.maximum(free, 0) // self.wanted).min(axis=2))
        good = np.flatnonzero(region.holds(fits * self.usable[region.rows], self.members, self._limits, self._gpus))
        if not len(good):
            return []
        pods = taken @ np.array([self.running.units[unit].cost[0] for unit in units], np.int64)
        gpus = taken @ np.array([self.running.units[unit].cost[1] for unit in units], np.int64)
        best = good[np.lexsort((good, gpus[good], pods[good]))][0]
        return [unit for unit, gone in zip(units, taken[best].tolist(), strict=True) if gone]

    def _step_by_step(
        self, region: Region, now: Int64, cheapest: tuple[int, int] | None
    ) -> Generator[None, None, set[int]]:
        best: set[int] = set()
        for rows in self._leaves_to_use(region, now):
            found = yield from self._cheapest_first(region, rows, now, cheapest)
            if found and (not best or self.cost(found) < self.cost(best)):
                best = found
        return best

    def _leaves_to_use(self, region: Region, now: Int64) -> Iterator[list[int]]:
        """Yield the rows of a region; where not all its leaves may be used, of those with most room or least to end."""
        count = len(region.offsets) - 1
        leaves = [region.rows[region.offsets[leaf] : region.offsets[leaf + 1]] for leaf in range(count)]
        if region.most >= count:
            yield region.rows.tolist()
            return
        room = [int(now[rows].sum()) for rows in leaves]
        held = [sum(len(self.on(row)) for row in rows.tolist()) for rows in leaves]
        roomy = sorted(range(count), key=lambda leaf: (-room[leaf], held[leaf], leaf))[: region.most]
        quiet = sorted(range(count), key=lambda leaf: (held[leaf] - room[leaf], leaf))[: region.most]
        for chosen in dict.fromkeys((tuple(sorted(roomy)), tuple(sorted(quiet)))):
            yield [row for leaf in chosen for row in leaves[leaf].tolist()]

    def _cheapest_first(
        self, region: Region, rows: Sequence[int], now: Int64, cheapest: tuple[int, int] | None
    ) -> Generator[None, None, set[int]]:
        """Return units whose end makes room on some rows; none where they cost far more than the cheapest so far."""
        ground = _FreedRows(self, region, rows, now)
        chosen: set[int] = set()
        heap: list[tuple[float, float, int, int, int, tuple[int, ...]]] = []
        version: dict[int, int] = {}
        offered = 0

        def offer(row: int) -> None:
            version[row] = version.get(row, 0) + 1
            free = ground.free.get(row) or self.free[row].tolist()
            for gain, units in self._sets(row, free, int(ground.fit[row]), chosen):
                pods, gpus = self.cost(units)
                heapq.heappush(heap, (pods / gain, gpus / gain, pods, row, version[row], units))

        for row in rows:
            if self.usable[row]:
                offer(row)
                offered += 1
                if offered % AT_ONCE == 0:
                    yield
        ended = 0
        while not ground.holds():
            while heap and heap[0][4] != version[heap[0][3]]:
                heapq.heappop(heap)
            if not heap:
                return set()
            units = heapq.heappop(heap)[5]
            chosen.update(units)
            ended += self.cost(units)[0]
            if cheapest is not None and ended > 2 * cheapest[0]:
                return set()
            for row in ground.end(units) & version.keys():
                offer(row)
                yield
        # Let stay who can, the costliest first.
        for at, unit in enumerate(sorted(chosen, key=lambda one: (self.running.units[one].cost, one), reverse=True)):
            ground.end((unit,), -1)
            if ground.holds():
                chosen.discard(unit)
            else:
                ground.end((unit,))
            if at % AT_ONCE == 0:
                yield
        return chosen

    def _sets(self, row: int, free: list[int], fit: int, chosen: set[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Return the cheapest sets of units whose end makes room on a row for 1, 2, ... more members."""
        held: dict[int, tuple[int, ...]] = {}
        for number in self.on(row):
            unit = int(self.running.unit[number])
            if unit not in chosen:
                amounts = tuple(self.amounts[number].tolist())
                before = held.get(unit)
                held[unit] = amounts if before is None else tuple(a + b for a, b in zip(before, amounts, strict=True))
        alike: dict[object, list[int]] = {}
        for unit, amounts in held.items():
            whole = self.running.units[unit]
            apart = unit if any(int(self.running.row[n]) != row for n in whole.numbers) else -1
            alike.setdefault((amounts, whole.cost, apart), []).append(unit)
        shapes = list(alike.values())
        if prod(len(units) + 1 for units in shapes) > COMBINATIONS:
            # Too many to try: the largest go first.
            order = sorted(held, key=lambda one: (self.running.units[one].cost[0], [-a for a in held[one]], one))
            choices: Iterator[tuple[int, ...]] = (tuple(order[:n]) for n in range(1, len(order) + 1))
        else:
            counts = product(*(range(len(units) + 1) for units in shapes))
            choices = (
                tuple(unit for units, count in zip(shapes, some, strict=True) for unit in units[:count])
                for some in counts
            )
        best: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {}
        for units in choices:
            freed = free.copy()
            for unit in units:
                for at, amount in enumerate(held[unit]):
                    freed[at] += amount
            room = self.room(freed)
            if room > fit:
                offer = (self.cost(units), units)
                if room - fit not in best or offer < best[room - fit]:
                    best[room - fit] = offer
        return [(gain, units) for gain, (_, units) in best.items()]


class _FreedRows:
    """What is free on the rows of a region while some units end there. ``rows`` those that count."""

    def __init__(self, board: Board, region: Region, rows: Sequence[int], now: Int64) -> None:
        self._board = board
        self._region = region
        self._counted = frozenset(rows)
        self.free: dict[int, list[int]] = {}
        """Of the rows where that changed."""
        self.fit: Int64 = now.copy()
        self._total = int(now[np.asarray(rows, np.int64)].sum())

    def holds(self) -> bool:
        """Return whether the members fit."""
        if self._total < self._board.members:
            return False
        return not self._board.limited or self._board.holds(self._region, self.fit)

    def end(self, units: Iterable[int], sign: int = 1) -> set[int]:
        """Let units end, or with sign -1 run again; return the rows where that changes anything."""
        board, running = self._board, self._board.running
        touched: set[int] = set()
        for unit in units:
            for number in running.units[unit].numbers:
                row = running.pods[number].row
                free = self.free.get(row)
                if free is None:
                    free = self.free[row] = board.free[row].tolist()
                for at, amount in enumerate(board.amounts[number].tolist()):
                    free[at] += sign * amount
                touched.add(row)
        for row in touched:
            if board.usable[row]:
                room = board.room(self.free[row])
                if row in self._counted:
                    self._total += room - int(self.fit[row])
                self.fit[row] = room
        return touched
