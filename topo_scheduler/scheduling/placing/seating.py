"""Seating the members of one gang in turn, each with those before it counted as if they ran."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import PlacementStrategy
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.packer import FEW_NODES
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.scheduling.rules.feasible import allowed_rows
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.neighbours import FilterContext, Skew, closed_for_good, skew_of
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.constraints import HOSTNAME, Spread
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import UNKNOWN, Int64, NodeTable
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.residents import Profile

CHOICES: Final = 6
"""Nodes tried at most for one member."""

SORTED_FIRST: Final = 128
"""Nodes that are put in order first: the nearest, with all others that are as near."""

Step = tuple[int, int, int]
"""Group, row, and position in the group of one member."""
State = tuple[tuple[int, int, int, int, int], ...]
"""Group, leaf and zone it must be in, place and looks of each member that is seated."""
Left = dict[tuple[int, int, int], list[int]]
"""Positions that are not seated yet, for each group, leaf and zone they must be in, the last one first."""


@dataclass(frozen=True, slots=True)
class SearchState:
    """The cluster as a search takes it. ``used`` int64[rows, resources] is taken; a class of each group as it is seen.

    ``fit`` int64[rows] of each group: how many a row takes whoever is there. ``members`` of all groups together.
    """

    around: FilterContext
    used: Int64
    classes: list[PodClass]
    views: list[ClassView]
    fit: list[Int64]
    members: int
    closed: list[Bool] = field(default_factory=list, repr=False, compare=False)
    """`closed_for_good` of each class, once that was asked for; the same after `replace` of what a row takes."""
    reach: Bool = field(init=False)
    """bool[rows], whether a row takes anybody of the gang."""

    _emptiest: dict[int, int] = field(init=False, repr=False, compare=False)
    """What `most_of_emptiest` returned, by id of the constraint: those of ``classes`` live as long as this."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reach", np.max(self.fit, axis=0) > 0)
        object.__setattr__(self, "_emptiest", {})

    @property
    def open_to_groups(self) -> Sequence[Bool]:
        """Return for each group the rows that take one of it, and that pods which are there don't keep it from.

        bool[rows] each. What only keeps a member away until others are seated counts as open.
        """
        if not self.closed:
            everything = np.arange(self.around.nodes.rows, dtype=np.int64)
            self.closed.extend([closed_for_good(self.around, cls, everything) for cls in self.classes])
        charge_rows(len(self.reach), 2 * len(self.fit))
        return [(fit > 0) & ~closed for fit, closed in zip(self.fit, self.closed, strict=True)]

    def emptiest(self, skew: Skew, constraint: Spread) -> int:
        """Return how many pods the emptiest domain of a spread has at most once all members are seated."""
        known = self._emptiest.get(id(constraint))
        if known is None:
            known = self._emptiest[id(constraint)] = most_of_emptiest(skew, constraint, self.members)
        return known

    def ceiling(self, group: int, rows: Int64, *, all_here: bool) -> int:
        """Return how many of a group these rows hold at most; ``all_here``: nobody of the gang goes elsewhere."""
        charge_rows(len(rows), 2)
        fit = self.fit[group][rows]
        most = int(fit.sum())
        cls = self.classes[group]
        if cls.constraints is None or not most:
            return most
        nodes = self.around.nodes
        usable, fit = rows[fit > 0], fit[fit > 0]
        for key in cls.constraints.apart:
            column = nodes.label_column(key)[usable]
            free = int(fit[column == UNKNOWN].sum())  # nodes without the label keep nobody apart
            most = min(most, len(set(column.tolist()) - {UNKNOWN}) + free)
        for constraint in cls.constraints.spread if all_here else ():
            if constraint.counts_siblings:
                most = min(most, self._by_skew(cls, constraint, usable, fit, rows[self.reach[rows]]))
        return most

    def _by_skew(self, cls: PodClass, constraint: Spread, rows: Int64, fit: Int64, reached: Int64) -> int:
        """Each domain may have so many more than the emptiest will have; one that no member reaches stays as it is."""
        skew = skew_of(self.around, cls, constraint)
        least = self.emptiest(skew, constraint)
        column = self.around.nodes.label_column(constraint.topology_key)[rows]
        labelled = column != UNKNOWN
        room = np.bincount(column[labelled], weights=fit[labelled], minlength=len(skew.sums)).astype(np.int64)
        inside = np.zeros(len(skew.sums), np.bool_)
        inside[self.around.nodes.label_column(constraint.topology_key)[reached]] = True
        outside = skew.domains[~inside[skew.domains]]
        if len(outside):
            least = min(least, int(skew.sums[outside].min()))
        return int(np.minimum(room, np.maximum(0, constraint.max_skew + least - skew.sums)).sum())


def most_of_emptiest(skew: Skew, constraint: Spread, members: int) -> int:
    """Return how many pods the emptiest domain of a spread has at most once so many members are seated.

    That is the highest level to which they can fill all domains.
    """
    if not len(skew.domains) or len(skew.domains) < constraint.min_domains:
        return 0
    charge_rows(len(skew.domains), 5)
    below = np.cumsum(np.sort(skew.sums[skew.domains]))
    return int(((members + below) // np.arange(1, len(below) + 1)).min())


def spread_over_nodes(ground: SearchState) -> SearchState:
    """Return the same where a node takes no more than a spread over nodes ever lets it have."""
    fits = list(ground.fit)
    column = ground.around.nodes.label_column(HOSTNAME)
    for group, cls in enumerate(ground.classes):
        for constraint in cls.constraints.spread if cls.constraints is not None else ():
            if constraint.topology_key == HOSTNAME and constraint.counts_siblings:
                skew = skew_of(ground.around, cls, constraint)
                counted = np.zeros(len(skew.sums), np.bool_)
                counted[skew.domains] = True
                most = constraint.max_skew + ground.emptiest(skew, constraint) - skew.sums[column]
                fits[group] = np.where(counted[column], np.clip(fits[group], 0, np.maximum(0, most)), fits[group])
    return replace(ground, fit=fits)


@dataclass(frozen=True, slots=True)
class Spots:
    """Where members must be, as far as that is settled.

    ``places`` for each member of each group the leaf, -1 for any of ``leaves``, all of which may be used. ``zones`` for
    each member the domain of a topology key, none where that is left open; ``zone_of`` int64[rows] that of each row, -1
    for none; ``there`` int64[zones] pods there that count as members do.
    """

    places: Sequence[Sequence[int]]
    leaves: Sequence[int]
    zones: Sequence[Sequence[int]] = ()
    zone_of: Int64 | None = None
    there: Int64 | None = None


NO_SPOTS: Final = Spots((), ())


@dataclass(slots=True)
class SeatedMember:
    """A member that was seated: its group, leaf and zone it must be in, where, and where else it could have been.

    ``rank`` of what it was chosen by, among the groups that are not seated yet.
    """

    rank: int
    group: int
    place: int
    zone: int
    position: int
    at: int
    others: list[int]
    profile: Profile | None


class Seating:
    """One try: members are seated within a domain, beginning in one leaf. ``looks`` how often one looked around."""

    def __init__(
        self,
        site: PlanningContext,
        ground: SearchState,
        ask: PlacementQuery,
        layout: Layout,
        domain: tuple[int, int],
        most: int,
        start: int,
        home: set[int],
        spots: Spots = NO_SPOTS,
    ) -> None:
        """Prepare to seat members in a domain, in so many leaves at most, from the leaf ``start`` or ``home`` on."""
        low, high = domain
        nodes = site.nodes
        self.looks = 0
        self._ground = ground
        self._ask = ask
        self._limits = site.limits_for(ask)
        self._rows = layout.order[layout.offsets[low] : layout.offsets[high]]
        self._leaf = layout.leaf_of_row[self._rows]
        self._free = nodes.allocatable[self._rows] - ground.used[self._rows]
        self._members = np.zeros(len(self._rows), np.int64)
        limited = layout.inner or layout
        self._limited_leaf = limited.leaf_of_row[self._rows]
        self._gpus = np.zeros(len(limited.paths), np.int64)
        self._spots = spots
        self._zone = spots.zone_of[self._rows] if spots.zone_of is not None else None
        self._filled = spots.there.copy() if spots.there is not None else None
        self._choices = len(self._rows) if spots.places and len(self._rows) <= FEW_NODES else CHOICES
        self._most = max(most, len(home))
        self._start, self._home = start, home
        self._runs_here: Bool = np.isin(self._rows, np.asarray(ask.running, np.int64))
        self._extra: list[tuple[int, Profile]] = []
        self._turns: list[SeatedMember] = []
        # Nodes are not alike if another group of the gang may have the one and not the other.
        fits = [open_[self._rows].astype(np.int64) for open_ in ground.open_to_groups] if len(ground.fit) > 1 else []
        self._alike = np.stack([self._leaf, *self._domains_of_ties(nodes), *fits], axis=1)
        constraints = [cls.constraints for cls in ground.classes if cls.constraints is not None]
        self._in_any_order = (
            len(ground.classes) > 1 and spots.zone_of is None and any(one.spread or one.affinity for one in constraints)
        )
        self._dead: set[State] = set()
        """Members who were seated, as what no way led on from."""
        terms = [term.selector for one in constraints for term in (*one.affinity, *one.anti_affinity)]
        self._selectors = [*terms, *(spread.selector for one in constraints for spread in one.spread)]
        self._look_of: dict[Profile, int] = {}
        self._looks_seen: dict[object, int] = {}

    def _domains_of_ties(self, nodes: NodeTable) -> list[Int64]:
        """The values of the labels over which members look at each other; each node is a domain of its own anyway."""
        constraints = [cls.constraints for cls in self._ground.classes if cls.constraints is not None]
        keys = {term.topology_key for one in constraints for term in (*one.affinity, *one.anti_affinity)}
        keys |= {spread.topology_key for one in constraints for spread in one.spread}
        return [nodes.label_column(key)[self._rows] for key in sorted(keys - {HOSTNAME})]

    def run(self, looks: int) -> list[Step] | None:
        """Return who went where, in turn; None when that was not found in so many looks."""
        left = self._all()
        while any(left.values()):
            if self.looks >= looks:
                return None
            turn = None if self._dead and self._state() in self._dead else self._next(left)
            while turn is None:
                if not self._turns:
                    return None
                self._dead.add(self._state())
                back = self._turns[-1]
                self._undo(left)
                if back.others:
                    turn = replace(back, at=back.others[0], others=back.others[1:])
                elif self._in_any_order:
                    turn = self._next(left, back.rank + 1)
            self._do(turn, left)
        return [(turn.group, int(self._rows[turn.at]), turn.position) for turn in self._turns]

    def _state(self) -> State:
        """Return what was seated, in whatever order: from there the same members are left, with the same choices."""
        charge(len(self._turns))
        return tuple(
            sorted((turn.group, turn.place, turn.zone, turn.at, self._look(turn.profile)) for turn in self._turns)
        )

    def _look(self, profile: Profile | None) -> int:
        """Return a number that members share which look the same to the others of the gang."""
        if profile is None:
            return -1
        number = self._look_of.get(profile)
        if number is None:
            charge(len(self._selectors))
            seen = tuple(selector.matches(profile.labels) for selector in self._selectors)
            kept = (profile.ports, profile.repels, profile.claims, profile.disks)
            number = self._looks_seen.setdefault((profile.namespace, seen, kept), len(self._looks_seen))
            self._look_of[profile] = number
        return number

    def _all(self) -> Left:
        left: Left = {}
        for group, (_, count) in enumerate(self._ask.groups):
            for position in range(count - 1, -1, -1):
                place = self._spots.places[group][position] if self._spots.places else -1
                zone = self._spots.zones[group][position] if self._spots.zones else -1
                left.setdefault((group, place, zone), []).append(position)
        return left

    def _next(self, left: Left, first: int = 0) -> SeatedMember | None:
        """Return where the next member may go; of the first group, and leaf it must be in, where one may go now.

        Where zones are settled, one of the emptiest is next: that breaks no spread. Otherwise a spread may need a
        member of a later group first: where nothing came of the others those of ranks from ``first`` on are tried.
        """
        order = list(left.items())
        if (filled := self._filled) is not None:
            order.sort(key=lambda item: int(filled[item[0][2]]))
        charge(len(order) // 4)
        for rank, ((group, place, zone), positions) in enumerate(order):
            if positions and rank >= first:
                profile = self._ask.profiles[group][positions[-1]] if self._ask.profiles else None
                options = self._options(group, profile, place, zone)
                if options:
                    return SeatedMember(rank, group, place, zone, positions[-1], options[0], options[1:], profile)
        return None

    def _do(self, turn: SeatedMember, left: Left) -> None:
        self._turns.append(turn)
        self._charge(turn, 1)
        left[turn.group, turn.place, turn.zone].pop()
        if turn.profile is not None:
            self._extra.append((int(self._rows[turn.at]), turn.profile))

    def _undo(self, left: Left) -> None:
        turn = self._turns.pop()
        self._charge(turn, -1)
        left[turn.group, turn.place, turn.zone].append(turn.position)
        if turn.profile is not None:
            self._extra.pop()

    def _charge(self, turn: SeatedMember, sign: int) -> None:
        cls = self._ground.classes[turn.group]
        for column, amount in cls.amounts:
            self._free[turn.at, column] -= sign * amount
        self._members[turn.at] += sign
        self._gpus[self._limited_leaf[turn.at]] += sign * cls.gpus
        if self._filled is not None:
            self._filled[turn.zone] += sign

    def _options(self, group: int, profile: Profile | None, place: int, zone: int) -> list[int]:
        self.looks += 1
        charge_rows(len(self._rows), 10)
        charge(len(self._extra))
        used = sorted(self._home | {int(leaf) for leaf in self._leaf[self._members > 0]}) or [self._start]
        room = self._has_room(group, np.array(used, np.int64))
        if place >= 0:
            room &= self._leaf == place
        if self._zone is not None:
            room &= self._zone == zone
        candidates = np.flatnonzero(room)
        if not len(candidates):
            return []
        around, cls = self._ground.around, self._ground.classes[group]
        seen = around.seen_beside(cls, profile, self._extra)
        candidates = candidates[allowed_rows(around, seen, self._rows[candidates], self._extra)]
        return self._best_first(group, candidates, np.array(used, np.int64))

    def _has_room(self, group: int, used: Int64) -> Bool:
        view = self._ground.views[group]
        usable = self._ground.fit[group][self._rows] > 0
        room: Bool = usable & (self._free[:, view.columns] >= view.amounts).all(axis=1)
        if not (self._turns or self._home) or len(used) >= self._most:
            room &= np.isin(self._leaf, used)
        limits, gpus = self._limits, self._ground.classes[group].gpus
        if limits.max_nodes_per_leaf:
            mine = self._runs_here | (self._members > 0)
            opened = np.bincount(self._limited_leaf[mine], minlength=len(self._gpus))
            room &= mine | (opened[self._limited_leaf] < limits.max_nodes_per_leaf)
        if limits.max_gpus_per_leaf and gpus:
            room &= self._gpus[self._limited_leaf] + gpus <= limits.max_gpus_per_leaf
        return room

    def _best_first(self, group: int, candidates: Int64, used: Int64) -> list[int]:
        """Return the candidates in order of preference; of those that are alike only the first."""
        distance = _nearest(self._leaf[candidates], used)
        # The nearest come first in any case, and sorting all of them takes long.
        upto = np.cumsum(np.bincount(distance))
        near = distance <= np.searchsorted(upto, min(len(candidates), SORTED_FIRST))
        found = self._in_order(group, candidates[near], distance[near])
        if len(found) < self._choices and not near.all():
            found = self._in_order(group, candidates, distance)
        return found

    def _in_order(self, group: int, candidates: Int64, distance: Int64) -> list[int]:
        view = self._ground.views[group]
        rows, members = self._rows[candidates], self._members[candidates]
        free = self._free[candidates, view.cls.scarce]
        order = np.arange(len(rows), dtype=np.int64)
        if self._ask.strategy is PlacementStrategy.DISTRIBUTED:
            keys = (order, -free, -view.preference[rows], members, distance)
        else:
            shut = (~(self._runs_here[candidates] | (members > 0))).astype(np.int64)
            keys = (order, free, -view.preference[rows], shut, distance)
        found: dict[tuple[int, ...], int] = {}
        for at in candidates[np.lexsort(keys)].tolist():
            alike = (*self._alike[at].tolist(), int(self._members[at]), *self._free[at, view.columns].tolist())
            found.setdefault(alike, at)
            if len(found) >= self._choices:
                break
        return list(found.values())


def _nearest(leaves: Int64, used: Int64) -> Int64:
    """Return how far each leaf is from the nearest one that is used (ascending)."""
    after = np.searchsorted(used, leaves)
    above, below = used[np.minimum(after, len(used) - 1)], used[np.maximum(after - 1, 0)]
    nearest: Int64 = np.minimum(np.abs(above - leaves), np.abs(leaves - below))
    return nearest
