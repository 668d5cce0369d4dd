"""Sets of units that may make room when they end, the cheapest first, for gangs whose pods differ or come in segments.

What pods hold of resources rules out most sets. It rules out none that would do: whether members of different classes
fit beside each other, and what other pods keep away, is left to the planner.
"""

import heapq
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Final

import numpy as np

from topo_scheduler.scheduling.explaining.freeing import Board
from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.explaining.ways import Scene
from topo_scheduler.scheduling.placing.segments import in_one_piece
from topo_scheduler.scheduling.preemption.regions import Region, regions_for
from topo_scheduler.scheduling.rules.neighbours import looks_around
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.resources import GPU

Cost = tuple[int, ...]
"""Compared part by part."""
ROWS_AT_ONCE: Final = 50
"""Nodes that are looked at between two pauses."""
OFFER_OPERATIONS: Final = 30
"""What it takes to see what room on one node costs."""


def sets_by_cost(costs: Sequence[Cost]) -> Iterator[tuple[Cost, tuple[int, ...]]]:
    """Yield each set of some items that is not empty, as their indices, and what it costs: the cheapest first.

    Args:
        costs: of each item, ascending, and none below zero.
    """
    heap: list[tuple[Cost, tuple[int, ...]]] = [(costs[0], (0,))] if costs else []
    while heap:
        cost, chosen = heapq.heappop(heap)
        yield cost, chosen
        last = chosen[-1]
        if last + 1 < len(costs):
            following = costs[last + 1]
            more = tuple(a + b for a, b in zip(cost, following, strict=True))
            other = tuple(a - b for a, b in zip(more, costs[last], strict=True))
            heapq.heappush(heap, (more, (*chosen, last + 1)))
            heapq.heappush(heap, (other, (*chosen[:-1], last + 1)))


class GangRegion:
    """A region of which the whole gang would need room, and the units that hold some of it, the cheapest first."""

    def __init__(
        self, boards: Sequence[Board], segment: int, region: Region, running: Running, *, elsewhere: bool, lack: int
    ) -> None:
        """``elsewhere``: whether pods matter too on nodes that the gang may not use. ``lack`` GPUs it lacks there."""
        leaf = np.repeat(np.arange(len(region.offsets) - 1), np.diff(region.offsets))
        self._leaf_of = dict(zip(region.rows.tolist(), leaf.tolist(), strict=True))
        self._running = running
        self._classes = [_Class(board, segment, region, leaf) for board in boards]
        inside = np.full(len(boards[0].usable), elsewhere)
        for board in boards:
            inside[region.rows] |= board.usable[region.rows]
        units = running.units_on(inside, np.ones(len(running.units), np.bool_))
        self.units = sorted(units, key=lambda unit: (running.units[unit].cost, unit))
        self._lack = lack
        self.bound: Cost = (1, max(0, lack))
        """What no set that makes room can cost less than, each part for itself."""

    @property
    def possible(self) -> bool:
        """Whether there may be room once all units have ended."""
        return self.may_hold(self.units)

    def work_out_bound(self) -> Iterator[None]:
        """Set the bound, in parts."""
        for one in self._classes:
            found = yield from one.bound(self._leaf_of)
            self.bound = tuple(max(a, b) for a, b in zip(self.bound, found, strict=True))
        numbers = [number for unit in self.units for number in self._running.units[unit].numbers]
        gpus = np.sort(self._running.held[numbers, GPU])
        pods = int((gpus[::-1].cumsum() < self._lack).sum()) + 1
        pods = max(pods, self.bound[0])
        self.bound = pods, max(self.bound[1], int(gpus[:pods].sum()))

    def cost(self, units: Sequence[int]) -> Cost:
        """Return what it costs when units end: pods, then GPUs."""
        costs = [self._running.units[unit].cost for unit in units]
        return sum(pods for pods, _ in costs), sum(gpus for _, gpus in costs)

    def sets(self) -> Iterator[tuple[Cost, tuple[int, ...]]]:
        """Yield each set of units and its cost, the cheapest first."""
        for cost, chosen in sets_by_cost([self._running.units[unit].cost for unit in self.units]):
            yield cost, tuple(self.units[at] for at in chosen)

    def may_hold(self, units: Sequence[int]) -> bool:
        """Return whether there may be room for the gang once some units have ended; False is certain."""
        if self._lack > sum(self._running.units[unit].gpus for unit in units):
            return False
        pods: dict[int, list[int]] = {}
        for unit in units:
            for number in self._running.units[unit].numbers:
                row = self._running.pods[number].row
                if row in self._leaf_of:
                    pods.setdefault(row, []).append(number)
        return all(one.may_hold(self._leaf_of, pods) for one in self._classes)


class _Class:
    """Members of one class in a region."""

    def __init__(self, board: Board, segment: int, region: Region, leaf: Int64) -> None:
        self._board = board
        self._segment = segment
        self._fit = board.fits()
        self._leaves = np.bincount(leaf, self._fit[region.rows], len(region.offsets) - 1).astype(np.int64)
        self._most = region.most

    def may_hold(self, leaf_of: Mapping[int, int], pods: Mapping[int, list[int]]) -> bool:
        """Return whether the members may fit once some pods, by row, have ended."""
        board, leaves = self._board, self._leaves.copy()
        if board.by_share:
            return True
        for row, numbers in pods.items():
            if board.usable[row]:
                free = board.free[row] + board.amounts[numbers].sum(axis=0)
                leaves[leaf_of[row]] += board.room(free.tolist()) - self._fit[row]
        held = leaves // self._segment * self._segment
        if self._most < len(held):
            held = np.partition(held, len(held) - self._most)[-self._most :]
        return int(held.sum()) >= board.members

    def bound(self, rows: Iterable[int]) -> Generator[None, None, Cost]:
        """Return what making room costs at least: pods, and GPUs. As if parts of pods could end where that is least."""
        board = self._board
        lacking = board.members - int(self._leaves.sum())
        if lacking <= 0 or board.by_share:
            return 0, 0
        offers: list[tuple[int, Fraction, Fraction]] = []
        for at, row in enumerate(rows):
            if board.usable[row] and (offer := self._offer(row, lacking)) is not None:
                offers.append(offer)
            if at % ROWS_AT_ONCE == 0:
                yield
        return _least_of([(one[0], one[1]) for one in offers], lacking), _least_of(
            [(one[0], one[2]) for one in offers], lacking
        )

    def _offer(self, row: int, lacking: int) -> tuple[int, Fraction, Fraction] | None:
        """Return for how many members more a row can have room, and what one costs at least there: pods, GPUs."""
        board, free, now = self._board, self._board.free[row], int(self._fit[row])
        amounts = board.amounts[board.on(row)]
        gain = min(lacking, board.room((free + amounts.sum(axis=0)).tolist()) - now)
        if gain <= 0:
            return None
        charge(OFFER_OPERATIONS)
        held = np.sort(amounts, axis=0)[::-1].cumsum(axis=0)
        lack = np.arange(now + 1, now + gain + 1)[:, None] * board.wanted - free
        pods = ((held[None] < lack[:, None]).sum(axis=1) + 1) * (lack > 0)
        gpus = np.maximum(lack, 0) * (board.gpus > 0)
        each = range(1, gain + 1)
        return (
            gain,
            min(map(Fraction, pods.max(axis=1).tolist(), each)),
            min(map(Fraction, gpus.max(axis=1).tolist(), each)),
        )


def _least_of(offers: Sequence[tuple[int, Fraction]], lacking: int) -> int:
    """Return what so many members cost at least, of offers of so many at a price each."""
    cost = Fraction(0)
    for many, price in sorted(offers, key=lambda one: one[1]):
        taken = min(many, lacking)
        cost, lacking = cost + taken * price, lacking - taken
    return ceil(cost)


def places_for(scene: Scene, rule: SizeRule, running: Running) -> Generator[None, None, list[GangRegion]]:
    """Return the regions of which one must get room, each with the units that may end there: the cheapest first."""
    planner, ask = scene.what_if.planner, scene.ask
    boards = [
        Board(planner, planner.views.get(cls), replace(ask, groups=((cls, count),)), scene.layout, rule, running)
        for cls, count in ask.groups
    ]
    around = any(looks_around(cls) for cls, _ in ask.groups)
    whole = ask.segment > 1 and not ask.running and not in_one_piece(ask, scene.layout)
    regions = regions_for(ask, scene.layout, rule)
    if around or _beyond_the_rule(scene):
        regions = regions_for(replace(ask, gang=False), scene.layout, rule)[-1:]
    places = []
    for region in regions:
        lack = _gpus_lacking(scene, boards, region)
        place = GangRegion(boards, ask.segment if whole else 1, region, running, elsewhere=around, lack=lack)
        yield
        if place.units and place.possible:
            yield from place.work_out_bound()
            places.append(place)
    return sorted(places, key=lambda place: place.bound)


def _gpus_lacking(scene: Scene, boards: Sequence[Board], region: Region) -> int:
    """Return how many GPUs the gang asks for beyond those that are free in a region on nodes it may use."""
    if any(board.by_share for board in boards):
        return 0
    nodes = scene.what_if.planner.nodes
    usable = np.logical_or.reduce([board.usable[region.rows] for board in boards])
    free = nodes.allocatable[region.rows, GPU] - nodes.requested[region.rows, GPU]
    asked = sum(cls.gpus * count for cls, count in scene.ask.groups)
    return asked - int(np.maximum(free, 0)[usable].sum())


def _beyond_the_rule(scene: Scene) -> bool:
    """Whether a gang may go where the regions of its size rule don't tell."""
    ask = scene.ask
    if ask.running or ask.traffic is not None or ask.woven or ask.demands:
        return True
    return scene.what_if.planner.extensions.has_size_rules
