"""The cheapest victims for members of one class, by the resources that candidates hold alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.regions import Bool, Region, regions_for
from topo_scheduler.scheduling.preemption.shares import ReservationShares
from topo_scheduler.scheduling.preemption.spreading import IMPOSSIBLE_COST, spread_cheapest
from topo_scheduler.scheduling.preemption.victims import NO_GANG, OPEN, SHUT, Candidates, Key
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.operation_budget import charge_rows
from topo_scheduler.state.topology.fabric import Layout

EXHAUSTIVE_CANDIDATES: Final = 10
"""Maximum number of candidates on a node for which every set of them is tried."""
EXHAUSTIVE_DOMAIN_CANDIDATES: Final = 10
"""Maximum number of candidates in a domain for which every set of them is tried."""
EXHAUSTIVE_GANGS: Final = 6
"""Maximum number of gangs in a domain for which every choice of gangs to break is tried, smaller choices first."""
MAX_COMBINATIONS: Final = 600
"""Maximum number of combinations of domain and broken gangs that are solved. Those with the least GPU-time come first.
"""
MAX_NODES: Final = 64
_POD_UNIT: Final = 1 << 20
"""Factor that encodes GPU-seconds and the number of pods as one integer: seconds times this, plus pods."""
_UNBREAKABLE: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class VictimSet:
    """A set of victims, as indices of candidates."""

    key: Key
    victims: tuple[int, ...]


class Clearing:
    """One class on the nodes of one view, with candidates up to a priority."""

    def __init__(
        self,
        planner: Planner,
        view: ClassView,
        ask: PlacementQuery,
        layout: Layout,
        candidates: Candidates,
        level: int,
        shares: ReservationShares | None = None,
    ) -> None:
        nodes = planner.nodes
        self._ask = ask
        self._pods = candidates
        self._limits = planner.limits_for(ask)
        self._gpus = view.cls.gpus
        views = planner.views_for(ask)
        rule = planner.rule_beside_running(views, ask, layout) if ask.running else planner.rule(views, ask, layout)[0]
        self._regions = [] if rule is None else regions_for(ask, layout, rule)
        self._wanted = view.amounts
        self._one = ask.members == 1
        capped = self._limits.members_per_leaf(self._gpus)
        if self._limits.max_gpus_per_leaf and self._gpus and not capped:
            self._regions = []
        self._max_members = 1 if view.cls.constraints is not None and view.cls.constraints.alone else ask.members
        self._usable = view.eligible
        self._free: Int64 = nodes.allocatable[:, view.columns] - nodes.requested[:, view.columns]
        self._amounts = candidates.amounts(view.columns)
        if shares:
            self._free, self._amounts = shares.bounds(self._free, self._amounts, view.columns, candidates.pods)
            self._wanted = np.tile(self._wanted, self._free.shape[1] // len(self._wanted))
        self._first: Int64 = np.searchsorted(candidates.row, np.arange(nodes.rows)).astype(np.int64)
        self._last: Int64 = np.searchsorted(candidates.row, np.arange(nodes.rows), side="right").astype(np.int64)
        self._allowed: Bool = (candidates.priority <= level) & self._usable[candidates.row]
        # If a gang must not be evicted whole, or that would include a pod above the level, it loses at most its slack.
        self._rule = [SHUT if gang.rule != OPEN and gang.top > level else gang.rule for gang in candidates.gangs]
        self._whole = candidates.whole.copy()
        self._whole[:, 0] = self._rule
        self._fit_now = self._fits(np.zeros(len(candidates.pods), np.bool_))
        self._fit_most = self._fits_at_most(self._allowed)
        self._forced: Bool = np.zeros(len(candidates.pods), np.bool_)
        """bool[pods], those that are evicted in any case while costs are computed."""
        self._solved = 0
        self._kept: dict[int, Int64] = {}
        """Members of each gang that must stay, as `_beyond` returns them."""

    @property
    def regions(self) -> Sequence[Region]:
        """The regions where the members may go: one of them must hold all members."""
        return self._regions

    def options(self, regions: Sequence[Region] | None = None) -> Iterator[VictimSet]:
        """Yield sets of victims in no particular order, limited to some regions if given. Yield none if no set
        suffices.
        """
        choices = self._on_single_nodes() if self._one else self._in_regions(regions or self._regions)
        for victims in choices:
            closed = self._pods.closed(victims)
            if closed:
                yield VictimSet(self._pods.key(closed), tuple(closed))

    # ------------------------------------------------------------ one pod

    def _on_single_nodes(self) -> Iterator[Sequence[int]]:
        rows = self._rows_to_clear()
        taken, at, cost = self._cheapest(rows, np.ones(len(rows), np.int64), self._allowed, self._pods.slack)
        usable = np.flatnonzero(cost[:, 0] >= 0)
        order = usable[np.lexsort(cost[usable].T[::-1])]
        if len(order) > MAX_NODES:
            # Nodes of equal cost are distinguished by name.
            alike = int((cost[order] == cost[order[0]]).all(axis=1).sum())
            order = order[: max(MAX_NODES, alike)]
        for number in order.tolist():
            yield self._chosen(int(rows[number]), taken, int(at[number]))

    def _rows_to_clear(self) -> Int64:
        """Return the rows that have no room for one member, and may have room without candidates."""
        inside = [region.open_rows(self._limits, self._gpus) for region in self._regions]
        rows: Int64 = np.unique(np.concatenate(inside or [np.empty(0, np.int64)])).astype(np.int64)
        to_clear: Int64 = rows[(self._fit_most[rows] > 0) & (self._fit_now[rows] == 0)]
        return to_clear

    def _cheapest(self, rows: Int64, members: Int64, allowed: Bool, slack: Int64) -> tuple[Bool, Int64, Int64]:
        """Return the cheapest victims for a number of members on each row, as the kernel writes them."""
        # Imported here because it takes seconds to compile, and most processes never preempt (`Preempting.ready`).
        from topo_scheduler.kernels.victims import cheapest_victims

        pods = self._pods
        first, last = self._first[rows], self._last[rows]
        at = np.concatenate((np.zeros(1, np.int64), np.cumsum(last - first, dtype=np.int64)))
        taken = np.zeros(int(at[-1]), np.bool_)
        cost = np.zeros((len(rows), 4), np.int64)
        lack = np.ascontiguousarray(members[:, None] * self._wanted - self._free[rows])
        cheapest_victims(
            first,
            last,
            lack,
            self._amounts,
            allowed,
            pods.gang,
            slack,
            self._whole,
            pods.seconds,
            pods.started,
            pods.guard,
            pods.left,
            pods.worst,
            EXHAUSTIVE_CANDIDATES,
            at[:-1].copy(),
            taken,
            cost,
        )
        return taken, at, cost

    def _chosen(self, row: int, taken: Bool, at: int) -> list[int]:
        first, last = int(self._first[row]), int(self._last[row])
        return [first + int(number) for number in np.flatnonzero(taken[at : at + last - first])]

    def _fits(self, evicted: Bool) -> Int64:
        """Return how many members fit on each row without some candidates (int64[rows])."""
        charge_rows(self._free.size)
        free = self._free
        if evicted.any():
            free = free.copy()
            np.add.at(free, self._pods.row[evicted], self._amounts[evicted])
        fit = np.minimum(self._max_members, (np.maximum(free, 0) // self._wanted).min(axis=1))
        return np.where(self._usable, fit, 0).astype(np.int64)

    def _fits_at_most(self, evicted: Bool) -> Int64:
        """Return the same, or more where the exact number would take long to compute."""
        return self._fits(evicted)

    # ------------------------------------------------------------ a gang

    def _in_regions(self, regions: Sequence[Region]) -> Iterator[Sequence[int]]:
        open_: list[tuple[int, Region, list[int]]] = []
        least: int | None = None
        best = IMPOSSIBLE_COST
        for region in regions:
            if not self._holds(region, self._fit_most):
                continue
            inside = self._inside(region)
            if len(inside) <= EXHAUSTIVE_DOMAIN_CANDIDATES:
                for option in self._every_set(region, inside):
                    broken = self._broken(option)
                    if least is None or broken < least:
                        least, best = broken, IMPOSSIBLE_COST
                    yield option
                continue
            base = self._solve(region, self._open_to(inside, None), inside, None)
            if base is None:
                continue
            if self._gangs(inside):
                open_.append((base[0], region, inside))
            elif least != 0 or base[0] <= best:
                least, best = 0, base[0]
                yield base[1]
        open_.sort(key=lambda item: item[0])
        sizes = max((len(self._gangs(inside)) for _, _, inside in open_), default=0)
        for size in range(sizes + 1):
            if least is not None and least < size:
                return
            for bound, region, inside in open_:
                if self._solved > MAX_COMBINATIONS or (least is not None and least <= size and bound > best):
                    break
                for choice in self._choices(region, inside, size):
                    solution = self._solve(region, self._open_to(inside, choice), inside, choice)
                    if solution is not None:
                        cost, victims = solution
                        really = self._broken(victims)
                        if least is None or really < least:
                            least, best = really, cost
                        elif really == least:
                            best = min(best, cost)
                        yield victims

    def _inside(self, region: Region) -> list[int]:
        """Return the candidates of a region.

        If there are more than `EXHAUSTIVE_DOMAIN_CANDIDATES`, each budget contributes at most as many pods
        as it can lose.
        """
        options = [
            number
            for row in region.rows.tolist()
            for number in range(self._first[row], self._last[row])
            if self._allowed[number]
        ]
        if len(options) <= EXHAUSTIVE_DOMAIN_CANDIDATES:
            return options
        spent: dict[int, int] = {}
        kept = []
        pods = self._pods
        for number in sorted(options, key=lambda n: (pods.seconds[n], -pods.started[n], n)):
            guard = int(pods.guard[number])
            spent[guard] = spent.get(guard, 0) + 1
            if guard < 0 or spent[guard] <= pods.left[guard]:
                kept.append(number)
        return sorted(kept)

    def _gangs(self, inside: Sequence[int]) -> list[int]:
        return sorted({int(self._pods.gang[number]) for number in inside} - {NO_GANG})

    def _broken(self, victims: Sequence[int]) -> int:
        closed = self._pods.closed(victims)
        return self._pods.key(closed)[1] if closed else 1 << 30

    def _holds(self, region: Region, fit: Int64) -> bool:
        return bool(region.holds(fit[region.rows][None, :], self._ask.members, self._limits, self._gpus)[0])

    def _beyond(self, gang: int) -> Int64:
        """Return the members of a gang that must stay so that it loses no more than its slack: the most costly ones.

        They are the same for all regions, and a gang may have members in each.
        """
        if (kept := self._kept.get(gang)) is None:
            pods, members = self._pods, np.array(self._pods.gangs[gang].members, np.int64)
            order = np.lexsort((members, -pods.started[members], pods.seconds[members]))
            kept = self._kept[gang] = members[order[self._pods.gangs[gang].slack :]]
        return kept

    def _open_to(self, inside: Sequence[int], broken: frozenset[int] | None) -> Bool:
        """Return which candidates may be evicted if only the given gangs may be broken (bool[pods]); None allows any
        gang.
        """
        allowed = np.zeros(len(self._pods.pods), np.bool_)
        allowed[list(inside)] = True
        if broken is not None:
            for number in self._gangs(inside):
                if number not in broken:
                    allowed[self._beyond(number)] = False
        return allowed

    def _choices(self, region: Region, inside: Sequence[int], size: int) -> Iterator[frozenset[int]]:
        gangs = [gang for gang in self._gangs(inside) if self._rule[gang] != SHUT]
        if len(gangs) <= EXHAUSTIVE_GANGS or size == 0:
            for chosen in combinations(gangs, size):
                broken = frozenset(chosen)
                if self._holds(region, self._fits_at_most(self._open_to(inside, broken))):
                    yield broken
            return
        if size > 1:
            return
        # Too many choices to try: start with all gangs broken, then spare them one by one, most GPU-time first.
        left = frozenset(gangs)
        for gang in sorted(gangs, key=lambda n: (-int(self._pods.whole[n, 1]), n)):
            if self._holds(region, self._fits_at_most(self._open_to(inside, left - {gang}))):
                left -= {gang}
        yield left

    def _solve(
        self, region: Region, allowed: Bool, inside: Sequence[int], broken: frozenset[int] | None
    ) -> tuple[int, list[int]] | None:
        """Return the least cost and its victims if only the allowed pods may be evicted; None if the members do not
        fit.
        """
        self._solved += 1
        pods = self._pods
        # The cost of gangs that are evicted whole is paid first, and the room that they hold is free.
        forced = [
            number for gang in sorted(broken or ()) if self._rule[gang] != OPEN for number in pods.gangs[gang].members
        ]
        evicted = np.zeros(len(pods.pods), np.bool_)
        evicted[forced] = True
        fit_now, fit_most = self._fits(evicted), self._fits_at_most(evicted | allowed)
        table: list[list[int]] = []
        where: list[tuple[int, int]] = []
        rows: list[int] = []
        for row in region.rows.tolist():
            rows += [row] * int(fit_most[row] - fit_now[row])
        wanted = np.array(rows, np.int64)
        members = np.concatenate(
            [np.arange(fit_now[row] + 1, fit_most[row] + 1) for row in region.rows.tolist()] or [np.empty(0)]
        ).astype(np.int64)
        free, none_forced = self._free, self._forced
        if forced:
            self._free, self._forced = free.copy(), evicted
            np.add.at(self._free, pods.row[evicted], self._amounts[evicted])
        try:
            slack = np.full(len(pods.gangs), _UNBREAKABLE, np.int64)
            taken, at, cost = self._cheapest(wanted, members, allowed & ~evicted, slack)
        finally:
            self._free, self._forced = free, none_forced
        number = 0
        for row in region.rows.tolist():
            costs = [0] * (int(fit_now[row]) + 1)
            where.append((int(fit_now[row]), number))
            for _ in range(int(fit_most[row] - fit_now[row])):
                costs.append(
                    int(cost[number, 1]) * _POD_UNIT + int(cost[number, 2]) if cost[number, 0] >= 0 else IMPOSSIBLE_COST
                )
                number += 1
            table.append(costs)
        spread = spread_cheapest(region, table, self._ask.members, self._limits, self._gpus)
        if spread is None:
            return None
        total, seated = spread
        victims = list(forced)
        for row, count, (none, begin) in zip(region.rows.tolist(), seated, where, strict=True):
            if count > none:
                victims += self._chosen(row, taken, int(at[begin + count - none - 1]))
        return total + sum(int(pods.seconds[n]) * _POD_UNIT + 1 for n in forced), victims

    def _every_set(self, region: Region, inside: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield the cheapest of all sets, then others of equal cost: broken gangs, GPU-seconds and pods."""
        pods, count = self._pods, len(inside)
        # The earlier pod is the higher bit, so that equal sets come in the order of their pods.
        sets = np.arange((1 << count) - 1, -1, -1, dtype=np.int64)
        taken: Bool = (sets[:, None] >> np.arange(count - 1, -1, -1)) & 1 == 1
        index = np.array(inside, np.int64)
        fits = np.repeat(self._fit_now[region.rows][None, :], len(sets), axis=0)
        for at, row in enumerate(region.rows.tolist()):
            on_row = pods.row[index] == row
            if on_row.any():
                fits[:, at] = self._fits_of_sets(row, index[on_row], taken[:, on_row])
        good = np.flatnonzero(region.holds(fits, self._ask.members, self._limits, self._gpus))
        seconds, size = taken @ pods.seconds[index], taken.sum(axis=1)
        broken = np.zeros(len(sets), np.int64)
        for gang in self._gangs(inside):
            in_gang = pods.gang[index] == gang
            lost = taken[:, in_gang].sum(axis=1) > pods.slack[gang]
            broken += lost
            if self._rule[gang] == SHUT:
                good = good[~lost[good]]
            elif self._rule[gang] != OPEN:
                seconds = seconds + lost * (pods.whole[gang, 1] - taken[:, in_gang] @ pods.seconds[index[in_gang]])
                size = size + lost * (pods.whole[gang, 2] - taken[:, in_gang].sum(axis=1))
        order = good[np.lexsort((size[good], seconds[good], broken[good]))]
        solutions = 0
        last: tuple[int, int, int] | None = None
        for line in order.tolist():
            cost = (int(broken[line]), int(seconds[line]), int(size[line]))
            if solutions >= MAX_NODES or (solutions and cost != last):
                return
            victims = [number for number, is_victim in zip(inside, taken[line].tolist(), strict=True) if is_victim]
            if self._pods.closed(victims) is not None:
                solutions, last = solutions + 1, cost
                yield victims

    def _fits_of_sets(self, row: int, pods: Int64, taken: Bool) -> Int64:
        """Return how many members fit on a row without each set of its pods (bool[sets, pods])."""
        free = self._free[row] + taken @ self._amounts[pods]
        fits: Int64 = np.minimum(self._max_members, (np.maximum(free, 0) // self._wanted).min(axis=1))
        return fits
