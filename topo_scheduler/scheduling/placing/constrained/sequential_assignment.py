"""Placement of the members of one gang in turn; each check counts the members before as if they ran."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import PlacementStrategy
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.heterogeneous.packer import FEW_NODES
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.rules.feasible import allowed_rows
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext, Skew, closed_for_good, skew_of
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64, NodeTable
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.constraints import HOSTNAME, Spread
from topo_scheduler.state.pods.profiles import Profile

MAX_NODES_PER_MEMBER: Final = 6
"""The most nodes to try for one member."""

NODES_SORTED_FIRST: Final = 128
"""Number of nodes to sort first: the nearest ones, and all others at the same distance as the last."""

Step = tuple[int, int, int]
"""Group, row, and position in the group of one member."""
State = tuple[tuple[int, int, int, int, int], ...]
"""For each seated member: its group, required leaf and zone, index of its row, and number of its look."""
Left = dict[tuple[int, int, int], list[int]]
"""Positions of members that are not seated yet, by group, required leaf and required zone; the last one first."""


@dataclass(frozen=True, slots=True)
class SearchState:
    """The cluster as a search sees it.

    ``used`` int64[rows, resources]: amounts in use. ``classes``: the class of each group. ``fit`` int64[rows] for each
    group: how many members a row takes, whatever pods are there. ``members``: number in all groups together.
    """

    filter_context: FilterContext
    used: Int64
    classes: list[PodClass]
    views: list[ClassView]
    fit: list[Int64]
    members: int
    closed: list[Bool] = field(default_factory=list, repr=False, compare=False)
    """`closed_for_good` of each class, computed on first use; `replace` of ``fit`` keeps it."""
    reach: Bool = field(init=False)
    """bool[rows], whether a row takes any member of the gang."""

    _emptiest: dict[int, int] = field(init=False, repr=False, compare=False)
    """Results of `most_of_emptiest` by id of the constraint; ``classes`` keep the constraints alive."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reach", np.max(self.fit, axis=0) > 0)
        object.__setattr__(self, "_emptiest", {})

    @property
    def open_to_groups(self) -> Sequence[Bool]:
        """Return for each group the rows that take a member and that no pod there closes to it (bool[rows] each).

        A row that is closed only until other members are seated counts as open.
        """
        if not self.closed:
            everything = np.arange(self.filter_context.nodes.rows, dtype=np.int64)
            self.closed.extend([closed_for_good(self.filter_context, cls, everything) for cls in self.classes])
        charge_rows(len(self.reach), 2 * len(self.fit))
        return [(fit > 0) & ~closed for fit, closed in zip(self.fit, self.closed, strict=True)]

    def emptiest(self, skew: Skew, constraint: Spread) -> int:
        """Return the most pods that the emptiest domain of a spread can have once all members are seated."""
        cached = self._emptiest.get(id(constraint))
        if cached is None:
            cached = self._emptiest[id(constraint)] = most_of_emptiest(skew, constraint, self.members)
        return cached

    def ceiling(self, group: int, rows: Int64, *, all_here: bool) -> int:
        """Return the most members of a group that these rows hold; ``all_here``: the whole gang goes to these rows."""
        charge_rows(len(rows), 2)
        fit = self.fit[group][rows]
        limit = int(fit.sum())
        cls = self.classes[group]
        if cls.constraints is None or not limit:
            return limit
        nodes = self.filter_context.nodes
        usable, fit = rows[fit > 0], fit[fit > 0]
        for key in cls.constraints.apart:
            column = nodes.label_column(key)[usable]
            unlabelled_room = int(fit[column == UNKNOWN].sum())  # nodes without the label are in no domain
            limit = min(limit, len(set(column.tolist()) - {UNKNOWN}) + unlabelled_room)
        for constraint in cls.constraints.spread if all_here else ():
            if constraint.counts_siblings:
                limit = min(limit, self._by_skew(cls, constraint, usable, fit, rows[self.reach[rows]]))
        return limit

    def _by_skew(self, cls: PodClass, constraint: Spread, rows: Int64, fit: Int64, reached: Int64) -> int:
        """Return the bound by skew: domains may exceed the emptiest by ``max_skew``; unreached ones don't fill."""
        skew = skew_of(self.filter_context, cls, constraint)
        emptiest_count = self.emptiest(skew, constraint)
        column = self.filter_context.nodes.label_column(constraint.topology_key)[rows]
        labelled = column != UNKNOWN
        room = np.bincount(column[labelled], weights=fit[labelled], minlength=len(skew.sums)).astype(np.int64)
        reached_values = np.zeros(len(skew.sums), np.bool_)
        reached_values[self.filter_context.nodes.label_column(constraint.topology_key)[reached]] = True
        unreached_domains = skew.domains[~reached_values[skew.domains]]
        if len(unreached_domains):
            emptiest_count = min(emptiest_count, int(skew.sums[unreached_domains].min()))
        return int(np.minimum(room, np.maximum(0, constraint.max_skew + emptiest_count - skew.sums)).sum())


def most_of_emptiest(skew: Skew, constraint: Spread, members: int) -> int:
    """Return the most pods that the emptiest domain of a spread can have once ``members`` are seated.

    That is the highest level to which the members can fill all domains.
    """
    if not len(skew.domains) or len(skew.domains) < constraint.min_domains:
        return 0
    charge_rows(len(skew.domains), 5)
    below = np.cumsum(np.sort(skew.sums[skew.domains]))
    return int(((members + below) // np.arange(1, len(below) + 1)).min())


def spread_over_nodes(state: SearchState) -> SearchState:
    """Return the state with the fit of each node limited to what spreads over nodes ever allow."""
    fits = list(state.fit)
    column = state.filter_context.nodes.label_column(HOSTNAME)
    for group, cls in enumerate(state.classes):
        for constraint in cls.constraints.spread if cls.constraints is not None else ():
            if constraint.topology_key == HOSTNAME and constraint.counts_siblings:
                skew = skew_of(state.filter_context, cls, constraint)
                counted = np.zeros(len(skew.sums), np.bool_)
                counted[skew.domains] = True
                limit = constraint.max_skew + state.emptiest(skew, constraint) - skew.sums[column]
                fits[group] = np.where(counted[column], np.clip(fits[group], 0, np.maximum(0, limit)), fits[group])
    return replace(state, fit=fits)


@dataclass(frozen=True, slots=True)
class Spots:
    """Leaves and zones that members must use, as far as they are fixed.

    ``places``: for each member of each group its leaf, -1 for any of ``leaves``. All of ``leaves`` may be used.
    ``zones``: for each member its domain of a topology key; empty where zones are open. ``zone_of`` int64[rows]: zone
    of each row, -1 for none. ``pods_by_zone`` int64[zones]: pods in each zone that count like members.
    """

    places: Sequence[Sequence[int]]
    leaves: Sequence[int]
    zones: Sequence[Sequence[int]] = ()
    zone_of: Int64 | None = None
    pods_by_zone: Int64 | None = None


NO_SPOTS: Final = Spots((), ())


@dataclass(slots=True)
class SeatedMember:
    """A seated member: its group, required leaf and zone, its row, and the other rows it could have used.

    ``rank``: position of its entry among those with members left, when it was chosen. ``place``: required leaf, or -1.
    ``index``: of its row. ``alternatives``: indexes of rows to try next.
    """

    rank: int
    group: int
    place: int
    zone: int
    position: int
    index: int
    alternatives: list[int]
    profile: Profile | None


class Seating:
    """One attempt: it seats members within a domain from one leaf on. ``looks``: how many searches for rows it made."""

    def __init__(
        self,
        task: PlanningTask,
        state: SearchState,
        domain: tuple[int, int],
        max_leaves: int,
        start: int,
        home: set[int],
        spots: Spots = NO_SPOTS,
    ) -> None:
        """Prepare to seat members in at most ``max_leaves`` leaves of a domain, from ``start`` or ``home`` on."""
        first, end = domain
        nodes, query, layout = task.context.nodes, task.query, task.layout
        self.looks = 0
        self._search_state = state
        self._query = query
        self._limits = task.limits
        self._rows = layout.order[layout.offsets[first] : layout.offsets[end]]
        self._leaf = layout.leaf_of_row[self._rows]
        self._free = nodes.allocatable[self._rows] - state.used[self._rows]
        self._members = np.zeros(len(self._rows), np.int64)
        self._members_of_group = np.zeros((len(state.classes), len(self._rows)), np.int64)
        limited_layout = layout.inner or layout
        self._limited_leaf = limited_layout.leaf_of_row[self._rows]
        self._gpus = np.zeros(len(limited_layout.paths), np.int64)
        self._spots = spots
        self._zone = spots.zone_of[self._rows] if spots.zone_of is not None else None
        self._filled = spots.pods_by_zone.copy() if spots.pods_by_zone is not None else None
        self._choices = len(self._rows) if spots.places and len(self._rows) <= FEW_NODES else MAX_NODES_PER_MEMBER
        self._max_leaves = max(max_leaves, len(home))
        self._start, self._home = start, home
        self._runs_here: Bool = np.isin(self._rows, np.asarray(query.running, np.int64))
        self._seated_pods: list[tuple[int, Profile]] = []
        self._seated: list[SeatedMember] = []
        # Two nodes differ also if another group of the gang may use only one of them.
        open_by_group = (
            [open_rows[self._rows].astype(np.int64) for open_rows in state.open_to_groups] if len(state.fit) > 1 else []
        )
        self._node_keys = np.stack([self._leaf, *self._domains_of_ties(nodes), *open_by_group], axis=1)
        constraints = [cls.constraints for cls in state.classes if cls.constraints is not None]
        self._try_later_groups = (
            len(state.classes) > 1
            and spots.zone_of is None
            and any(constraint.spread or constraint.affinity for constraint in constraints)
        )
        self._dead_ends: set[State] = set()
        """States from which the search found no way to seat all members."""
        terms = [
            term.selector for constraint in constraints for term in (*constraint.affinity, *constraint.anti_affinity)
        ]
        self._selectors = [*terms, *(spread.selector for constraint in constraints for spread in constraint.spread)]
        self._look_of: dict[Profile, int] = {}
        self._looks_seen: dict[object, int] = {}

    def _domains_of_ties(self, nodes: NodeTable) -> list[Int64]:
        """Return the label columns of the topology keys in constraints of members, without the hostname."""
        constraints = [cls.constraints for cls in self._search_state.classes if cls.constraints is not None]
        keys = {
            term.topology_key
            for constraint in constraints
            for term in (*constraint.affinity, *constraint.anti_affinity)
        }
        keys |= {spread.topology_key for constraint in constraints for spread in constraint.spread}
        return [nodes.label_column(key)[self._rows] for key in sorted(keys - {HOSTNAME})]

    def run(self, looks: int) -> list[Step] | None:
        """Return group, row and position of each member in turn; None if the search fails within ``looks`` looks."""
        left = self._unseated()
        while any(left.values()):
            if self.looks >= looks:
                return None
            member = None if self._dead_ends and self._state() in self._dead_ends else self._next(left)
            while member is None:
                if not self._seated:
                    return None
                self._dead_ends.add(self._state())
                undone = self._seated[-1]
                self._unseat(left)
                if undone.alternatives:
                    member = replace(undone, index=undone.alternatives[0], alternatives=undone.alternatives[1:])
                elif self._try_later_groups:
                    member = self._next(left, undone.rank + 1)
            self._seat(member, left)
        return [(member.group, int(self._rows[member.index]), member.position) for member in self._seated]

    def _state(self) -> State:
        """Return the seated members in sorted order: equal states leave the same members and the same choices."""
        charge(len(self._seated))
        return tuple(
            sorted(
                (member.group, member.place, member.zone, member.index, self._look(member.profile))
                for member in self._seated
            )
        )

    def _look(self, profile: Profile | None) -> int:
        """Return a number that is equal for members which the constraints of the gang can't tell apart."""
        if profile is None:
            return -1
        number = self._look_of.get(profile)
        if number is None:
            charge(len(self._selectors))
            seen = tuple(selector.matches(profile.labels) for selector in self._selectors)
            held_items = (profile.ports, profile.repels, profile.claims, profile.disks)
            number = self._looks_seen.setdefault((profile.namespace, seen, held_items), len(self._looks_seen))
            self._look_of[profile] = number
        return number

    def _unseated(self) -> Left:
        left: Left = {}
        for group, (_, count) in enumerate(self._query.groups):
            for position in range(count - 1, -1, -1):
                place = self._spots.places[group][position] if self._spots.places else -1
                zone = self._spots.zones[group][position] if self._spots.zones else -1
                left.setdefault((group, place, zone), []).append(position)
        return left

    def _next(self, left: Left, first: int = 0) -> SeatedMember | None:
        """Return the next member to seat: of the first group and required leaf with a usable row.

        With fixed zones, a member of one of the emptiest zones is next, as that breaks no spread. Otherwise a spread
        may need a member of a later group first, so after a failure the ranks from ``first`` on are tried.
        """
        order = list(left.items())
        if (filled := self._filled) is not None:
            order.sort(key=lambda item: int(filled[item[0][2]]))
        charge(len(order) // 4)
        for rank, ((group, place, zone), positions) in enumerate(order):
            if positions and rank >= first:
                profile = self._query.profiles[group][positions[-1]] if self._query.profiles else None
                options = self._options(group, profile, place, zone)
                if options:
                    return SeatedMember(rank, group, place, zone, positions[-1], options[0], options[1:], profile)
        return None

    def _seat(self, member: SeatedMember, left: Left) -> None:
        self._seated.append(member)
        self._charge(member, 1)
        left[member.group, member.place, member.zone].pop()
        if member.profile is not None:
            self._seated_pods.append((int(self._rows[member.index]), member.profile))

    def _unseat(self, left: Left) -> None:
        member = self._seated.pop()
        self._charge(member, -1)
        left[member.group, member.place, member.zone].append(member.position)
        if member.profile is not None:
            self._seated_pods.pop()

    def _charge(self, member: SeatedMember, sign: int) -> None:
        cls = self._search_state.classes[member.group]
        for column, amount in cls.amounts:
            self._free[member.index, column] -= sign * amount
        self._members[member.index] += sign
        self._members_of_group[member.group, member.index] += sign
        self._gpus[self._limited_leaf[member.index]] += sign * cls.gpus
        if self._filled is not None:
            self._filled[member.zone] += sign

    def _options(self, group: int, profile: Profile | None, place: int, zone: int) -> list[int]:
        self.looks += 1
        charge_rows(len(self._rows), 10)
        charge(len(self._seated_pods))
        used_leaves = sorted(self._home | {int(leaf) for leaf in self._leaf[self._members > 0]}) or [self._start]
        room = self._has_room(group, np.array(used_leaves, np.int64))
        if place >= 0:
            room &= self._leaf == place
        if self._zone is not None:
            room &= self._zone == zone
        candidates = np.flatnonzero(room)
        if not len(candidates):
            return []
        filter_context, cls = self._search_state.filter_context, self._search_state.classes[group]
        effective_class = filter_context.seen_beside(cls, profile, self._seated_pods)
        candidates = candidates[
            allowed_rows(filter_context, effective_class, self._rows[candidates], self._seated_pods)
        ]
        return self._best_first(group, candidates, np.array(used_leaves, np.int64))

    def _has_room(self, group: int, used_leaves: Int64) -> Bool:
        view = self._search_state.views[group]
        # Devices are in no column: only the fit counts them.
        usable = self._search_state.fit[group][self._rows] > self._members_of_group[group]
        room: Bool = usable & (self._free[:, view.columns] >= view.amounts).all(axis=1)
        if not (self._seated or self._home) or len(used_leaves) >= self._max_leaves:
            room &= np.isin(self._leaf, used_leaves)
        limits, gpus = self._limits, self._search_state.classes[group].gpus
        if limits.max_nodes_per_leaf:
            used_by_gang = self._runs_here | (self._members > 0)
            used_nodes = np.bincount(self._limited_leaf[used_by_gang], minlength=len(self._gpus))
            room &= used_by_gang | (used_nodes[self._limited_leaf] < limits.max_nodes_per_leaf)
        if limits.max_gpus_per_leaf and gpus:
            room &= self._gpus[self._limited_leaf] + gpus <= limits.max_gpus_per_leaf
        return room

    def _best_first(self, group: int, candidates: Int64, used_leaves: Int64) -> list[int]:
        """Return the candidates in order of preference, only the first of equivalent ones."""
        distance = _nearest(self._leaf[candidates], used_leaves)
        # The nearest come first in any case, and sorting all candidates takes long.
        within_distance = np.cumsum(np.bincount(distance))
        is_near = distance <= np.searchsorted(within_distance, min(len(candidates), NODES_SORTED_FIRST))
        ordered = self._in_order(group, candidates[is_near], distance[is_near])
        if len(ordered) < self._choices and not is_near.all():
            ordered = self._in_order(group, candidates, distance)
        return ordered

    def _in_order(self, group: int, candidates: Int64, distance: Int64) -> list[int]:
        view = self._search_state.views[group]
        rows, members = self._rows[candidates], self._members[candidates]
        free = self._free[candidates, view.cls.scarce]
        order = np.arange(len(rows), dtype=np.int64)
        if self._query.strategy is PlacementStrategy.DISTRIBUTED:
            sort_keys = (order, -free, -view.preference[rows], members, distance)
        else:
            unused = (~(self._runs_here[candidates] | (members > 0))).astype(np.int64)
            sort_keys = (order, free, -view.preference[rows], unused, distance)
        first_by_key: dict[tuple[int, ...], int] = {}
        for index in candidates[np.lexsort(sort_keys)].tolist():
            key = (
                *self._node_keys[index].tolist(),
                int(self._members[index]),
                *self._free[index, view.columns].tolist(),
            )
            first_by_key.setdefault(key, index)
            if len(first_by_key) >= self._choices:
                break
        return list(first_by_key.values())


def _nearest(leaves: Int64, used_leaves: Int64) -> Int64:
    """Return the distance of each leaf to the nearest of the used leaves, which are in ascending order."""
    after = np.searchsorted(used_leaves, leaves)
    above, below = used_leaves[np.minimum(after, len(used_leaves) - 1)], used_leaves[np.maximum(after - 1, 0)]
    nearest: Int64 = np.minimum(np.abs(above - leaves), np.abs(leaves - below))
    return nearest
