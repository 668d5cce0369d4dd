"""Sets of units whose end may make room for a gang, the cheapest first. For gangs in segments or of several classes.

The resources that pods hold rule out most sets, and never a sufficient one. The planner decides the rest: whether
members of different classes fit together, and which nodes other pods exclude.
"""

import heapq
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Final

import numpy as np

from topo_scheduler.scheduling.explaining.freeing import Board
from topo_scheduler.scheduling.explaining.remedies import Scene
from topo_scheduler.scheduling.explaining.running import Running
from topo_scheduler.scheduling.placing.model.segments import in_one_piece
from topo_scheduler.scheduling.preemption.regions import Region, regions_for
from topo_scheduler.scheduling.rules.interpod_filters import looks_around
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.operation_budget import charge

Cost = tuple[int, ...]
"""Compared part by part."""
NODES_PER_PART: Final = 50
"""Nodes that one part of the work covers, between two pauses."""
OFFER_OPERATIONS: Final = 30
"""Operations charged to work out what room on one node costs."""


def sets_by_cost(costs: Sequence[Cost]) -> Iterator[tuple[Cost, tuple[int, ...]]]:
    """Yield the cost and the item indices of each non-empty set of items, the cheapest first.

    Args:
        costs: cost of each item, in ascending order, none below zero.
    """
    heap: list[tuple[Cost, tuple[int, ...]]] = [(costs[0], (0,))] if costs else []
    while heap:
        cost, chosen = heapq.heappop(heap)
        yield cost, chosen
        last = chosen[-1]
        if last + 1 < len(costs):
            following = costs[last + 1]
            extended = tuple(a + b for a, b in zip(cost, following, strict=True))
            replaced = tuple(a - b for a, b in zip(extended, costs[last], strict=True))
            heapq.heappush(heap, (extended, (*chosen, last + 1)))
            heapq.heappush(heap, (replaced, (*chosen[:-1], last + 1)))


class GangRegion:
    """A region in which the whole gang would need room, and the units that hold resources there, the cheapest first."""

    def __init__(
        self, boards: Sequence[Board], segment: int, region: Region, running: Running, *, elsewhere: bool, lack: int
    ) -> None:
        """Collect the units of a region.

        Args:
            boards: one of each class of the gang.
            segment: members of a segment, or 1.
            region: where the whole gang would go.
            running: all pods that could end.
            elsewhere: whether pods on nodes that the gang may not use matter too.
            lack: GPUs that the gang lacks in the region.
        """
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
        """Lower bound of the cost of every set that makes room, each part by itself."""

    @property
    def possible(self) -> bool:
        """Whether there may be room once all units have ended."""
        return self.may_hold(self.units)

    def work_out_bound(self) -> Iterator[None]:
        """Set the bound, in parts."""
        for members in self._classes:
            bound = yield from members.bound(self._leaf_of)
            self.bound = tuple(max(a, b) for a, b in zip(self.bound, bound, strict=True))
        numbers = [number for unit in self.units for number in self._running.units[unit].numbers]
        gpus = np.sort(self._running.held[numbers, GPU])
        pods = int((gpus[::-1].cumsum() < self._lack).sum()) + 1
        pods = max(pods, self.bound[0])
        self.bound = pods, max(self.bound[1], int(gpus[:pods].sum()))

    def sets(self) -> Iterator[tuple[Cost, tuple[int, ...]]]:
        """Yield each set of units and its cost, the cheapest first."""
        for cost, chosen in sets_by_cost([self._running.units[unit].cost for unit in self.units]):
            yield cost, tuple(self.units[index] for index in chosen)

    def may_hold(self, units: Sequence[int]) -> bool:
        """Return whether the gang may have room once the units have ended. False is certain, True is not."""
        if self._lack > sum(self._running.units[unit].gpus for unit in units):
            return False
        numbers_by_row: dict[int, list[int]] = {}
        for unit in units:
            for number in self._running.units[unit].numbers:
                row = self._running.pods[number].row
                if row in self._leaf_of:
                    numbers_by_row.setdefault(row, []).append(number)
        return all(members.may_hold(self._leaf_of, numbers_by_row) for members in self._classes)


class _Class:
    """Members of one class in a region."""

    def __init__(self, board: Board, segment: int, region: Region, leaf: Int64) -> None:
        self._board = board
        self._segment = segment
        self._fit = board.fits()
        self._leaves = np.bincount(leaf, self._fit[region.rows], len(region.offsets) - 1).astype(np.int64)
        self._max_leaves = region.max_leaves

    def may_hold(self, leaf_of: Mapping[int, int], numbers_by_row: Mapping[int, list[int]]) -> bool:
        """Return whether the members may fit once pods have ended.

        Args:
            leaf_of: leaf of each row of the region.
            numbers_by_row: pods that end, by their place in `Running`.
        """
        board, leaves = self._board, self._leaves.copy()
        if board.by_share:
            return True
        for row, numbers in numbers_by_row.items():
            if board.usable[row]:
                free = board.free[row] + board.amounts[numbers].sum(axis=0)
                leaves[leaf_of[row]] += board.room(free.tolist()) - self._fit[row]
        held = leaves // self._segment * self._segment
        if self._max_leaves < len(held):
            held = np.partition(held, len(held) - self._max_leaves)[-self._max_leaves :]
        return int(held.sum()) >= board.members

    def bound(self, rows: Iterable[int]) -> Generator[None, None, Cost]:
        """Return a lower bound of the cost of making room: pods, then GPUs. It assumes that parts of pods could end."""
        board = self._board
        lacking = board.members - int(self._leaves.sum())
        if lacking <= 0 or board.by_share:
            return 0, 0
        offers: list[tuple[int, Fraction, Fraction]] = []
        for count, row in enumerate(rows):
            if board.usable[row] and (offer := self._offer(row, lacking)) is not None:
                offers.append(offer)
            if count % NODES_PER_PART == 0:
                yield
        return _least_cost([(offer[0], offer[1]) for offer in offers], lacking), _least_cost(
            [(offer[0], offer[2]) for offer in offers], lacking
        )

    def _offer(self, row: int, lacking: int) -> tuple[int, Fraction, Fraction] | None:
        """Return how many more members a row can have room for, and the least cost per member there: pods, GPUs."""
        board, free, current_fit = self._board, self._board.free[row], int(self._fit[row])
        amounts = board.amounts[board.on(row)]
        gain = min(lacking, board.room((free + amounts.sum(axis=0)).tolist()) - current_fit)
        if gain <= 0:
            return None
        charge(OFFER_OPERATIONS)
        held = np.sort(amounts, axis=0)[::-1].cumsum(axis=0)
        lack = np.arange(current_fit + 1, current_fit + gain + 1)[:, None] * board.request - free
        pods = ((held[None] < lack[:, None]).sum(axis=1) + 1) * (lack > 0)
        gpus = np.maximum(lack, 0) * (board.gpus > 0)
        counts = range(1, gain + 1)
        return (
            gain,
            min(map(Fraction, pods.max(axis=1).tolist(), counts)),
            min(map(Fraction, gpus.max(axis=1).tolist(), counts)),
        )


def _least_cost(offers: Sequence[tuple[int, Fraction]], lacking: int) -> int:
    """Return the least cost of room for the lacking members, from offers of room and price per member."""
    cost = Fraction(0)
    for room, price in sorted(offers, key=lambda offer: offer[1]):
        taken = min(room, lacking)
        cost, lacking = cost + taken * price, lacking - taken
    return ceil(cost)


def places_for(scene: Scene, rule: SizeRule, running: Running) -> Generator[None, None, list[GangRegion]]:
    """Return the regions of which one must get room, each with the units that may end there, the cheapest first."""
    planner, ask = scene.what_if.planner, scene.ask
    boards = [
        Board(planner, planner.views.get(cls), replace(ask, groups=((cls, count),)), scene.layout, rule, running)
        for cls, count in ask.groups
    ]
    around = any(looks_around(cls) for cls, _ in ask.groups)
    by_segment = ask.segment > 1 and not ask.running and not in_one_piece(ask, scene.layout)
    regions = regions_for(ask, scene.layout, rule)
    if around or _beyond_the_rule(scene):
        regions = regions_for(replace(ask, gang=False), scene.layout, rule)[-1:]
    places = []
    for region in regions:
        lack = _gpus_lacking(scene, boards, region)
        place = GangRegion(boards, ask.segment if by_segment else 1, region, running, elsewhere=around, lack=lack)
        yield
        if place.units and place.possible:
            yield from place.work_out_bound()
            places.append(place)
    return sorted(places, key=lambda place: place.bound)


def _gpus_lacking(scene: Scene, boards: Sequence[Board], region: Region) -> int:
    """Return how many more GPUs the gang requests than are free in a region on the nodes that it may use."""
    if any(board.by_share for board in boards):
        return 0
    nodes = scene.what_if.planner.nodes
    usable = np.logical_or.reduce([board.usable[region.rows] for board in boards])
    free = nodes.allocatable[region.rows, GPU] - nodes.requested[region.rows, GPU]
    requested = sum(cls.gpus * count for cls, count in scene.ask.groups)
    return requested - int(np.maximum(free, 0)[usable].sum())


def _beyond_the_rule(scene: Scene) -> bool:
    """Whether the gang may go to nodes outside the regions of its size rule."""
    ask = scene.ask
    if ask.running or ask.traffic is not None or ask.woven or ask.demands:
        return True
    return scene.what_if.planner.extensions.has_size_rules
