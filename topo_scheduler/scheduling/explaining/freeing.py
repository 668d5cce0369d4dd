"""Which pods would have to end so that members of one class fit: the fewest, then those with the fewest GPUs.

The search works on arrays and considers only the resources that pods hold. The caller verifies each result with the
planner.

In a domain with at most `EXHAUSTIVE_UNITS` units (gangs, and single pods) the search tries every set of units. In a
larger domain it has two phases. First it finds, for each node, the cheapest sets that make room for one more member,
two more, and so on. It takes the set with the least cost per member until the gang fits. Then it drops the units that
turn out to be unnecessary, the costliest first. So every unit of a result is needed, but a cheaper set may exist.
"""

import heapq
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

import numpy as np

from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.regions import Bool, Region, regions_for
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.topology.fabric import Layout

EXHAUSTIVE_UNITS: Final = 8
"""Units of a domain up to which the search tries every set of them."""
MAX_NODE_SETS: Final = 96
"""Sets of the units of one node that the search tries at most."""
NODES_PER_PART: Final = 24
"""Nodes that one part of the work covers, between two pauses."""


@dataclass(frozen=True, slots=True)
class Clearance:
    """Units that would have to end, and the cost: pods, then GPUs."""

    cost: tuple[int, int]
    region: int
    units: tuple[int, ...]


class Board:
    """One class on the nodes of one view, with all pods that run there."""

    def __init__(
        self, planner: Planner, view: ClassView, ask: PlacementQuery, layout: Layout, rule: SizeRule, running: Running
    ) -> None:
        nodes = planner.nodes
        self.running = running
        self.members = ask.members
        self._limits = planner.limits_for(ask)
        self.limited = bool(self._limits.max_nodes_per_leaf or self._limits.max_gpus_per_leaf)
        """Whether limits per leaf apply, so that the gang may not fill a leaf."""
        self._gpus = view.cls.gpus
        self.exact = True
        """Whether the search tried every set in each domain that it cleared."""
        self.gpus = np.where(view.columns == GPU, view.amounts, 0).astype(np.int64)
        """GPUs that a member requests, in the column of GPUs; 0 in the other columns (int64[columns])."""
        self.by_share = bool(view.cls.share)
        """Whether members request a share of a GPU. Then more may fit than the free resources suggest."""
        capped = self._limits.members_per_leaf(self._gpus)
        shut = bool(self._limits.max_gpus_per_leaf and self._gpus and not capped)
        self.regions: list[Region] = [] if shut else regions_for(ask, layout, rule)
        self.request = view.amounts
        self._request_list: list[int] = view.amounts.tolist()
        self.usable: Bool = view.eligible
        self._max_per_node = 1 if view.cls.constraints is not None and view.cls.constraints.alone else ask.members
        self.free: Int64 = nodes.allocatable[:, view.columns] - nodes.requested[:, view.columns]
        self.amounts = running.amounts(view.columns)
        sizes = [len(region.rows) for region in self.regions]
        self._all_rows: Int64 = np.concatenate([region.rows for region in self.regions] or [np.empty(0, np.int64)])
        self._starts: Int64 = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
        rows = np.arange(nodes.rows)
        self._first: list[int] = np.searchsorted(running.row, rows).tolist()
        self._last: list[int] = np.searchsorted(running.row, rows, side="right").tolist()

    # ------------------------------------------------------------ room

    def fits(self, ended: Bool | None = None) -> Int64:
        """Return how many members each row takes once the pods of a mask have ended (int64[rows])."""
        free = self.free
        if ended is not None and ended.any():
            free = free.copy()
            np.add.at(free, self.running.row[ended], self.amounts[ended])
        return self.fit(free, self.usable)

    def holds(self, region: Region, fit: Int64) -> bool:
        """Return whether a region takes all members, given how many fit on each row."""
        return bool(region.holds(fit[region.rows][None, :], self.members, self._limits, self._gpus)[0])

    def any_holds(self, fit: Int64) -> Region | None:
        """Return the first region that takes all members, given how many fit on each row."""
        return next(
            (self.regions[number] for number in self._regions_with_room(fit) if self.holds(self.regions[number], fit)),
            None,
        )

    def _regions_with_room(self, fit: Int64) -> list[int]:
        """Return the numbers of the regions whose rows together have room for all members. No other region can do."""
        if not self.regions:
            return []
        numbers: list[int] = np.flatnonzero(np.add.reduceat(fit[self._all_rows], self._starts) >= self.members).tolist()
        return numbers

    def fit(self, free: Int64, usable: Bool) -> Int64:
        """Return the members that each row takes, given its free resources (int64[..., rows, columns])."""
        fit = np.minimum(self._max_per_node, (np.maximum(free, 0) // self.request).min(axis=-1))
        return np.where(usable, fit, 0).astype(np.int64)

    def room(self, free: Sequence[int]) -> int:
        """Return how many members fit into the free amount of each resource, on a node that they may use."""
        room = self._max_per_node
        for free_amount, request in zip(free, self._request_list, strict=True):
            if free_amount < request:
                return 0
            room = min(room, free_amount // request)
        return room

    # ------------------------------------------------------------ pods to end

    def clearances(self) -> Generator[Clearance | None, None, None]:
        """Yield the units to end for each domain that can be cleared, and None between two parts of the work."""
        all_pods = np.ones(len(self.running.pods), np.bool_)
        current, upper_bound = self.fits(), self.fits(all_pods)
        yield None
        cheapest: tuple[int, int] | None = None
        for region_number in self._regions_with_room(upper_bound):
            region = self.regions[region_number]
            if not self.holds(region, upper_bound):
                continue
            pods_inside = [number for row in region.rows.tolist() if self.usable[row] for number in self.on(row)]
            units = sorted({int(self.running.unit[number]) for number in pods_inside})
            if len(units) <= EXHAUSTIVE_UNITS:
                to_end = set(self._every_set(region, units))
                yield None
            else:
                self.exact = False
                to_end = yield from self._greedy(region, current, cheapest)
            if to_end:
                cost = self.running.cost(to_end)
                cheapest = cost if cheapest is None else min(cheapest, cost)
                yield Clearance(cost, region_number, tuple(sorted(to_end)))

    def on(self, row: int) -> range:
        """Return the pods on a row, by their place in `Running`."""
        return range(self._first[row], self._last[row])

    def _every_set(self, region: Region, units: Sequence[int]) -> list[int]:
        sets = np.arange(1, 1 << len(units), dtype=np.int64)
        taken: Bool = (sets[:, None] >> np.arange(len(units))) & 1 == 1
        freed = np.zeros((len(units), len(region.rows), len(self.request)), np.int64)
        index_of = {row: index for index, row in enumerate(region.rows.tolist())}
        for index, unit in enumerate(units):
            for number in self.running.units[unit].numbers:
                if (row := int(self.running.row[number])) in index_of:
                    freed[index, index_of[row]] += self.amounts[number]
        free = self.free[region.rows][None] + np.tensordot(taken.astype(np.int64), freed, axes=1)
        fits = self.fit(free, self.usable[region.rows])
        sufficient = np.flatnonzero(region.holds(fits, self.members, self._limits, self._gpus))
        if not len(sufficient):
            return []
        pods = taken @ np.array([self.running.units[unit].cost[0] for unit in units], np.int64)
        gpus = taken @ np.array([self.running.units[unit].cost[1] for unit in units], np.int64)
        best = sufficient[np.lexsort((sufficient, gpus[sufficient], pods[sufficient]))][0]
        return [unit for unit, ends in zip(units, taken[best].tolist(), strict=True) if ends]

    def _greedy(
        self, region: Region, current: Int64, cheapest: tuple[int, int] | None
    ) -> Generator[None, None, set[int]]:
        best: set[int] = set()
        for rows in self._leaves_to_use(region, current):
            units = yield from self._greedy_on_rows(region, rows, current, cheapest)
            if units and (not best or self.running.cost(units) < self.running.cost(best)):
                best = units
        return best

    def _leaves_to_use(self, region: Region, current: Int64) -> Iterator[list[int]]:
        """Yield the rows to use in a region.

        If the rule allows fewer leaves than the region has, yield two choices: the leaves with most room, then those
        with the fewest pods to end. The leaves where the gang runs are in both.
        """
        count = region.leaves
        leaves = [region.rows[region.offsets[leaf] : region.offsets[leaf + 1]] for leaf in range(count)]
        if region.max_leaves >= count:
            yield region.rows.tolist()
            return
        room = [int(current[rows].sum()) for rows in leaves]
        held = [sum(len(self.on(row)) for row in rows.tolist()) for rows in leaves]
        home = np.flatnonzero(region.home).tolist()
        others = [leaf for leaf in range(count) if leaf not in home]
        roomy = sorted(others, key=lambda leaf: (-room[leaf], held[leaf], leaf))[: region.further_leaves]
        quiet = sorted(others, key=lambda leaf: (held[leaf] - room[leaf], leaf))[: region.further_leaves]
        for chosen in dict.fromkeys((tuple(sorted([*home, *roomy])), tuple(sorted([*home, *quiet])))):
            yield [row for leaf in chosen for row in leaves[leaf].tolist()]

    def _greedy_on_rows(
        self, region: Region, rows: Sequence[int], current: Int64, cheapest: tuple[int, int] | None
    ) -> Generator[None, None, set[int]]:
        """Return units whose end makes room on the rows; none where they cost far more than the cheapest so far."""
        freed_rows = _FreedRows(self, region, rows, current)
        chosen: set[int] = set()
        heap: list[tuple[float, float, int, int, int, tuple[int, ...]]] = []
        version: dict[int, int] = {}
        offered = 0

        def offer(row: int) -> None:
            version[row] = version.get(row, 0) + 1
            free = freed_rows.free.get(row) or self.free[row].tolist()
            for gain, units in self._cheapest_sets(row, free, int(freed_rows.fit[row]), chosen):
                pods, gpus = self.running.cost(units)
                heapq.heappush(heap, (pods / gain, gpus / gain, pods, row, version[row], units))

        for row in rows:
            if self.usable[row]:
                offer(row)
                offered += 1
                if offered % NODES_PER_PART == 0:
                    yield
        pods_ended = 0
        while not freed_rows.holds():
            while heap and heap[0][4] != version[heap[0][3]]:
                heapq.heappop(heap)
            if not heap:
                return set()
            units = heapq.heappop(heap)[5]
            chosen.update(units)
            pods_ended += self.running.cost(units)[0]
            if cheapest is not None and pods_ended > 2 * cheapest[0]:
                return set()
            for row in freed_rows.end(units) & version.keys():
                offer(row)
                yield
        # Drop the units that are not needed, the costliest first.
        for count, unit in enumerate(
            sorted(chosen, key=lambda number: (self.running.units[number].cost, number), reverse=True)
        ):
            freed_rows.end((unit,), -1)
            if freed_rows.holds():
                chosen.discard(unit)
            else:
                freed_rows.end((unit,))
            if count % NODES_PER_PART == 0:
                yield
        return chosen

    def _cheapest_sets(
        self, row: int, free: list[int], fit: int, chosen: set[int]
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Return the cheapest sets of units whose end makes room on a row, for 1, 2, ... more members."""
        held: dict[int, tuple[int, ...]] = {}
        for number in self.on(row):
            unit = int(self.running.unit[number])
            if unit not in chosen:
                amounts = tuple(self.amounts[number].tolist())
                earlier = held.get(unit)
                held[unit] = amounts if earlier is None else tuple(a + b for a, b in zip(earlier, amounts, strict=True))
        units_by_shape: dict[object, list[int]] = {}
        for unit, amounts in held.items():
            unit_info = self.running.units[unit]
            own_shape = (
                unit if any(int(self.running.row[pod_number]) != row for pod_number in unit_info.numbers) else -1
            )
            units_by_shape.setdefault((amounts, unit_info.cost, own_shape), []).append(unit)
        shapes = list(units_by_shape.values())
        if prod(len(units) + 1 for units in shapes) > MAX_NODE_SETS:
            # Too many to try: the largest go first.
            order = sorted(
                held,
                key=lambda unit_number: (
                    self.running.units[unit_number].cost[0],
                    [-a for a in held[unit_number]],
                    unit_number,
                ),
            )
            choices: Iterator[tuple[int, ...]] = (tuple(order[:size]) for size in range(1, len(order) + 1))
        else:
            count_choices = product(*(range(len(units) + 1) for units in shapes))
            choices = (
                tuple(unit for units, count in zip(shapes, counts_per_shape, strict=True) for unit in units[:count])
                for counts_per_shape in count_choices
            )
        best: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {}
        for units in choices:
            freed = free.copy()
            for unit in units:
                for column, amount in enumerate(held[unit]):
                    freed[column] += amount
            room = self.room(freed)
            if room > fit:
                offer = (self.running.cost(units), units)
                if room - fit not in best or offer < best[room - fit]:
                    best[room - fit] = offer
        return [(gain, units) for gain, (_, units) in best.items()]


class _FreedRows:
    """The free resources on the rows of a region while units end there. Only the members on ``rows`` count."""

    def __init__(self, board: Board, region: Region, rows: Sequence[int], current: Int64) -> None:
        self._board = board
        self._region = region
        self._counted = frozenset(rows)
        self.free: dict[int, list[int]] = {}
        """Free amounts of the rows where they changed."""
        self.fit: Int64 = current.copy()
        self._total = int(current[np.asarray(rows, np.int64)].sum())

    def holds(self) -> bool:
        """Return whether the members fit."""
        if self._total < self._board.members:
            return False
        return not self._board.limited or self._board.holds(self._region, self.fit)

    def end(self, units: Iterable[int], sign: int = 1) -> set[int]:
        """Let units end, or run again with sign -1. Return the rows on which they have pods."""
        board, running = self._board, self._board.running
        touched: set[int] = set()
        for unit in units:
            for number in running.units[unit].numbers:
                row = running.pods[number].row
                free = self.free.get(row)
                if free is None:
                    free = self.free[row] = board.free[row].tolist()
                for column, amount in enumerate(board.amounts[number].tolist()):
                    free[column] += sign * amount
                touched.add(row)
        for row in touched:
            if board.usable[row]:
                room = board.room(self.free[row])
                if row in self._counted:
                    self._total += room - int(self.fit[row])
                self.fit[row] = room
        return touched
