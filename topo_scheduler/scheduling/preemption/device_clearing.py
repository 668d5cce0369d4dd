"""The cheapest victims for pods with claims: their resources as in `Clearing`, and the devices that victims leave.

Devices do not add up as resources do: a claim may need two on one PCIe root, or a slot for a partition. So for each
node, sets of victims are tried in order of their cost. Numbers of devices exclude most sets without a search.

Only victims on a node itself make room there. Pods of several nodes may use a device, such as one in the network. It
comes free only if victims of one node are all its users.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.preemption.clearing import EXHAUSTIVE_CANDIDATES, MAX_NODES, Clearing
from topo_scheduler.scheduling.preemption.device_room import DeviceRoom
from topo_scheduler.scheduling.preemption.regions import Bool, Region
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, OPEN, Candidates
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.topology.fabric import Layout

MAX_CHECKS: Final = 8192
"""Sets of victims whose devices are computed; beyond, victims are only reprieved one by one."""
MAX_REPRIEVED_NODES: Final = 48
"""Nodes whose candidates are reprieved one by one if no set was found before."""
MIN_GANG_NODES: Final = 64
"""Nodes with candidates in one search for a gang, or twice as many as it has members if that is more."""
MIN_OPTIONS: Final = 16

Cost = tuple[int, int, int, int]


@dataclass(slots=True)
class _VictimSets:
    """Sets of victims of a row that may make room for some members, cheapest first.

    ``pods`` are int64[pods], ``taken`` is bool[sets, pods] and ``cost`` is int64[sets, 4].
    """

    pods: Int64
    taken: Bool
    cost: Int64

    def __len__(self) -> int:
        return len(self.taken)

    def at(self, number: int) -> tuple[Cost, list[int]]:
        """Return the cost of a set and its pods."""
        broken, seconds, size, age = self.cost[number].tolist()
        return (broken, seconds, size, age), self.pods[self.taken[number]].tolist()


class DeviceClearing(Clearing):
    """One class with claims on the nodes of one view of a trial, with candidates up to a priority."""

    def __init__(
        self, trial: Trial, view: ClassView, ask: PlacementQuery, layout: Layout, candidates: Candidates, level: int
    ) -> None:
        self._room = DeviceRoom(trial, view.cls, candidates)
        self._max_gang_nodes = max(MIN_GANG_NODES, 2 * ask.members)
        super().__init__(trial.planner, view, ask, layout, candidates, level, trial.shares)

    # ------------------------------------------------------------ what fits

    def _fits(self, evicted: Bool) -> Int64:
        fits = super()._fits(evicted)
        for row in np.flatnonzero(fits).tolist():
            inside = np.flatnonzero(evicted[self._first[row] : self._last[row]]) + self._first[row]
            fits[row] = min(int(fits[row]), self._room.fit(row, tuple(inside.tolist())))
        return fits

    def _fits_at_most(self, evicted: Bool) -> Int64:
        fits = super()._fits(evicted)
        freed = np.zeros(len(fits), np.int64)
        np.add.at(freed, self._pods.row[evicted], self._room.held[evicted])
        for row in np.flatnonzero(fits).tolist():
            fits[row] = min(int(fits[row]), int(self._room.at_most(row, freed[row : row + 1])[0]))
        return fits

    def _fits_of_sets(self, row: int, pods: Int64, taken: Bool) -> Int64:
        fits = super()._fits_of_sets(row, pods, taken)
        known: dict[tuple[int, ...], int] = {}
        for number in np.flatnonzero(fits).tolist():
            evicted = tuple(pods[taken[number]].tolist())
            if evicted not in known:
                known[evicted] = self._room.fit(row, evicted)
            fits[number] = min(int(fits[number]), known[evicted])
        return fits

    # ------------------------------------------------------------ one pod

    def _on_single_nodes(self) -> Iterator[Sequence[int]]:
        rows: list[int] = self._rows_to_clear().tolist()
        options = 0
        for victims in self._best_first(rows):
            options += 1
            yield victims
        if not options and self._room.checks >= MAX_CHECKS:
            for _, row in sorted((self._least_cost(row), row) for row in rows)[:MAX_REPRIEVED_NODES]:
                taken = self._reprieved(row, 1, self._allowed, self._pods.slack)
                if taken is not None:
                    yield taken

    def _best_first(self, rows: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield sets of victims of single nodes that make room, cheapest first."""
        sets: dict[int, _VictimSets] = {}
        first: Cost | None = None
        options = 0
        heap: list[tuple[Cost, int, int]] = [(self._least_cost(row), row, -1) for row in rows]
        heapify(heap)
        while heap and self._room.checks < MAX_CHECKS:
            cost, row, number = heappop(heap)
            if options >= MAX_NODES or (options >= MIN_OPTIONS and cost != first):
                return
            charge(1)
            if number < 0:
                sets[row] = self._sets(row, 1, self._allowed, self._pods.slack)
            else:
                victims = sets[row].at(number)[1]
                if self._room.fit(row, self._with_forced(row, victims)):
                    options, first = options + 1, first or cost
                    yield victims
                    if cost != first:
                        continue  # of one node, only sets of the least cost differ by nothing but their names
            if number + 1 < len(sets[row]):
                heappush(heap, (sets[row].at(number + 1)[0], row, number + 1))

    def _least_cost(self, row: int) -> Cost:
        """Return a lower bound of the cost of victims on a row."""
        pods = slice(int(self._first[row]), int(self._last[row]))
        allowed = self._allowed[pods]
        seconds = np.sort(self._pods.seconds[pods][allowed])
        max_held = int(self._room.held[pods][allowed].max(initial=1))
        count = max(1, -(-self._room.lack(row) // max_held))
        return 0, int(seconds[:count].sum()), count, -(1 << 62)

    # ------------------------------------------------------------ several members

    def _inside(self, region: Region) -> list[int]:
        inside = super()._inside(region)
        by_row: dict[int, list[int]] = {}
        for number in inside:
            by_row.setdefault(int(self._pods.row[number]), []).append(number)
        if len(by_row) <= self._max_gang_nodes:
            return inside
        cost = {row: int(self._pods.seconds[numbers].sum()) for row, numbers in by_row.items()}
        gain = self._fit_most - self._fit_now
        rows = sorted(by_row, key=lambda row: (cost[row] // max(1, int(gain[row])), row))
        return sorted(number for row in rows[: self._max_gang_nodes] for number in by_row[row])

    def _cheapest(self, rows: Int64, members: Int64, allowed: Bool, slack: Int64) -> tuple[Bool, Int64, Int64]:
        first, last = self._first[rows], self._last[rows]
        at = np.concatenate((np.zeros(1, np.int64), np.cumsum(last - first, dtype=np.int64)))
        taken = np.zeros(int(at[-1]), np.bool_)
        cost = np.zeros((len(rows), 4), np.int64)
        cost[:, 0] = -1
        for problem, (row, count) in enumerate(zip(rows.tolist(), members.tolist(), strict=True)):
            solved = self._cheapest_on(row, count, allowed, slack)
            if solved is not None:
                cost[problem], victims = solved
                taken[at[problem] + np.array(victims, np.int64) - first[problem]] = True
        return taken, at, cost

    def _cheapest_on(self, row: int, members: int, allowed: Bool, slack: Int64) -> tuple[Cost, list[int]] | None:
        sets = self._sets(row, members, allowed, slack)
        for number in range(len(sets)):
            if self._room.checks >= MAX_CHECKS:
                break
            cost, victims = sets.at(number)
            if self._room.fit(row, self._with_forced(row, victims)) >= members:
                return cost, victims
        else:
            return None
        reprieved = self._reprieved(row, members, allowed, slack)
        if not reprieved:
            return None
        alone = self._priced(np.array(reprieved, np.int64), np.ones((1, len(reprieved)), np.bool_), slack)
        return alone.at(0) if len(alone) else None

    def _with_forced(self, row: int, victims: Sequence[int]) -> tuple[int, ...]:
        """Return the victims of a row, with those that are evicted in any case."""
        first, last = int(self._first[row]), int(self._last[row])
        forced = (np.flatnonzero(self._forced[first:last]) + first).tolist()
        return tuple(sorted({*victims, *forced}))

    # ------------------------------------------------------------ sets of victims

    def _sets(self, row: int, members: int, allowed: Bool, slack: Int64) -> _VictimSets:
        """Return the sets of victims of a row that free enough resources, and perhaps devices, for some members."""
        first, last = int(self._first[row]), int(self._last[row])
        pods = np.flatnonzero(allowed[first:last]).astype(np.int64) + first
        count = len(pods)
        if count > EXHAUSTIVE_CANDIDATES:
            victims = self._reprieved(row, members, allowed, slack)
            pods = np.array(victims or (), np.int64)
            return self._priced(pods, np.ones((int(bool(victims)), len(pods)), np.bool_), slack)
        charge(60 + (1 << count) // 16)
        # The earlier pod is the higher bit, so that equal sets come in the order of their pods.
        numbers = np.arange((1 << count) - 1, -1, -1, dtype=np.int64)
        taken: Bool = (numbers[:, None] >> np.arange(count - 1, -1, -1)) & 1 == 1
        frees = (taken @ self._amounts[pods] >= members * self._wanted - self._free[row]).all(axis=1)
        forced = np.flatnonzero(self._forced[first:last]) + first
        freed = taken @ self._room.held[pods] + int(self._room.held[forced].sum())
        frees &= self._room.at_most(row, freed) >= members
        return self._priced(pods, taken[frees], slack, closed_over=pods)

    def _priced(self, pods: Int64, taken: Bool, slack: Int64, closed_over: Int64 | None = None) -> _VictimSets:
        """Return sets with their costs as the kernel ``cheapest_victims`` computes them, without those not allowed.

        ``closed_over``: pods that a gang must lose together if it is evicted whole; those of the sets if not given.
        """
        candidates = self._pods
        everyone = pods if closed_over is None else closed_over
        seconds, size = taken @ candidates.seconds[pods], taken.sum(axis=1, dtype=np.int64)
        oldest = np.where(taken, -candidates.started[pods], -(1 << 62)).max(axis=1, initial=-(1 << 62))
        broken, good = np.zeros(len(taken), np.int64), np.ones(len(taken), np.bool_)
        for guard in np.unique(candidates.guard[pods]).tolist():
            if guard >= 0:
                good &= taken[:, candidates.guard[pods] == guard].sum(axis=1) <= candidates.left[guard]
        for gang in np.unique(candidates.gang[pods]).tolist():
            if gang == NO_GANG:
                continue
            inside = candidates.gang[pods] == gang
            lost = taken[:, inside].sum(axis=1)
            breaks = lost > slack[gang]
            broken += breaks
            rule, whole_seconds, whole_size, whole_start = self._whole[gang].tolist()
            if rule == OPEN:
                continue
            complete = lost == int((candidates.gang[everyone] == gang).sum())
            good &= ~breaks | (complete & (rule == 1))
            seconds = seconds + breaks * (whole_seconds - taken[:, inside] @ candidates.seconds[pods[inside]])
            size = size + breaks * (whole_size - lost)
            oldest = np.where(breaks, np.maximum(oldest, -whole_start), oldest)
        cost = np.stack((broken, seconds, size, oldest), axis=1)
        order = np.lexsort((oldest, size, seconds, broken))
        order = order[good[order]]
        return _VictimSets(pods, taken[order], cost[order])

    def _reprieved(self, row: int, members: int, allowed: Bool, slack: Int64) -> list[int] | None:
        """Return the victims that remain if all of a row are taken and then reprieved one by one, most costly first.

        The order is that of the kernel ``cheapest_victims``. None if all together do not make room.
        """
        first, last = int(self._first[row]), int(self._last[row])
        pods = [first + int(number) for number in np.flatnonzero(allowed[first:last])]
        taken = dict.fromkeys(pods)
        lack = members * self._wanted - self._free[row]

        def frees(victims: Sequence[int]) -> bool:
            charge(2)
            index = np.array(victims, np.int64)
            if not (self._amounts[index].sum(axis=0) >= lack).all():
                return False
            return self._room.fit(row, self._with_forced(row, victims)) >= members

        if not pods or not frees(pods):
            return None
        for step in range(3):
            for number in sorted(pods, key=lambda n: int(self._pods.worst[n])):
                if number not in taken:
                    continue
                unit = self._unit(number, list(taken), slack, step)
                if unit and frees(left := [n for n in taken if n not in unit]):
                    taken = dict.fromkeys(left)
        return list(taken)

    def _unit(self, number: int, taken: Sequence[int], slack: Int64, step: int) -> set[int]:
        """Return which pods are reprieved together with one in a step: beyond budgets, whole gangs, single pods."""
        pods = self._pods
        gang, guard = int(pods.gang[number]), int(pods.guard[number])
        of_gang = {n for n in taken if gang != NO_GANG and pods.gang[n] == gang}
        as_gang = len(of_gang) > int(slack[gang]) if of_gang else False
        as_gang = as_gang and (step == 1 or int(self._whole[gang, 0]) > 0)
        if step == 0:
            of_guard = sum(pods.guard[n] == guard for n in taken) if guard >= 0 else 0
            if guard < 0 or of_guard <= pods.left[guard]:
                return set()
        if step == 1 and not as_gang:
            return set()
        return of_gang if as_gang else {number}
