"""How many members of a tied gang each domain of a topology key gets, for gangs of one class: counted, not tried.

Anti-affinity of members over a key gives each of its domains one member at most, affinity gives all to one domain, a
spread gives each at least what the emptiest is to have and at most so many more. With the room of each leaf in each
domain that says which sets of leaves can hold the gang; where it is settled how many go to each leaf, as for segments,
it is a flow from leaves to domains. What is left out (limits per leaf, further keys) can only make it less: where
nothing is found here, there is no place.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.seating import SearchState, Spots
from topo_scheduler.scheduling.placing.tied_segments import Steps, narrowest_sets
from topo_scheduler.scheduling.rules.neighbours import NEIGHBOUR_FILTERS, condition_of, pods_matching, skew_of
from topo_scheduler.state.constraints import HOSTNAME, Constraints, Spread
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge, charge_rows

MOST_CELLS: Final = 200_000
"""Pairs of a leaf and a domain of the key that are looked at at most."""
MOST_SHARES: Final = 64
"""Ways to share members between the domains of the key that are looked at at most."""


@dataclass(frozen=True, slots=True)
class ZoneShare:
    """How many members each domain of the key must have and may have (int64[zones] each)."""

    least: Int64
    most: Int64


@dataclass(frozen=True, slots=True)
class Zones:
    """The domains of a key, called zones here, within one domain of the fabric.

    ``first`` leaf of that; ``room`` int64[leaves, zones] members that their nodes take; ``of_row`` int64[rows] the zone
    of each, -1 for none; ``there`` int64[zones] pods that count as members do. ``shares`` of which one must hold;
    ``whole`` whether these are all there are.
    """

    first: int
    room: Int64
    of_row: Int64
    there: Int64
    shares: Sequence[ZoneShare]
    whole: bool

    def sets(self, members: int, most: int, steps: Steps) -> Iterator[Spots]:
        """Yield sets of so many leaves at most that hold the gang: the smallest first, then the narrowest."""
        if not self.shares:
            return
        held = np.max([np.minimum(self.room, share.most).sum(axis=1) for share in self.shares], axis=0)
        leaves = np.flatnonzero(held)
        largest = np.cumsum(np.sort(held[leaves])[::-1])
        fewest = int(np.searchsorted(largest, members)) + 1
        for size in range(fewest, min(most, len(leaves), members) + 1):
            for chosen in narrowest_sets(leaves.tolist(), size):
                if not steps.take():
                    return
                if int(held[list(chosen)].sum()) < members:
                    continue
                room = self.room[list(chosen)].sum(axis=0)
                for share in self.shares:
                    counts = _dealt(room, share, members)
                    if counts is not None:
                        zones = np.repeat(np.arange(len(counts)), counts).tolist()
                        used = [self.first + leaf for leaf in chosen]
                        yield Spots([[-1] * members], used, [zones], self.of_row, self.there)

    def shared(self, places: Sequence[int], steps: Steps) -> Iterator[Spots]:
        """Yield which zone each member may be in, where the leaf of each is settled; none where one is not here."""
        leaves = sorted(set(places))
        if leaves[0] < self.first or leaves[-1] >= self.first + len(self.room):
            return  # the rest of some segment runs outside
        demand = np.array([places.count(leaf) for leaf in leaves], np.int64)
        room = self.room[[leaf - self.first for leaf in leaves]]
        for share in self.shares:
            if not steps.take():
                return
            if (np.minimum(room, share.most).sum(axis=1) < demand).any():
                continue
            if _dealt(room.sum(axis=0), share, len(places)) is None:
                continue
            steps.left -= room.size // 8
            flow = flow_of(room, demand, share)
            if flow is not None:
                queues = {
                    leaf: iter(np.repeat(np.arange(len(row)), row).tolist())
                    for leaf, row in zip(leaves, flow, strict=True)
                }
                zones = [next(queues[leaf]) for leaf in places]
                yield Spots([list(places)], leaves, [zones], self.of_row, self.there)


def zones_of(ground: SearchState, ask: PlacementQuery, layout: Layout, domain: tuple[int, int]) -> Zones | None:
    """Return the domains of the key that ties a gang of one class, within leaves ``[first, last)``.

    None where the gang is of several classes, nothing ties its members over a key, or there is too much to count.
    """
    (cls, members), *others = zip(ground.classes, (count for _, count in ask.groups), strict=True)
    constraints = cls.constraints
    if others or constraints is None:
        return None
    key = _key(ground, constraints)
    rows = layout.order[layout.offsets[domain[0]] : layout.offsets[domain[1]]]
    if key is None or (key == HOSTNAME and len(rows) * (domain[1] - domain[0]) > MOST_CELLS):
        return None
    around = ground.around
    fit = np.minimum(ground.fit[0][rows], 1 if constraints.alone else members)
    for rule in NEIGHBOUR_FILTERS:
        # What the first member can't meet no later one can. A spread may be met later.
        if rule.reason is not NodeReason.SPREAD:
            fit = np.where(rule.accepts(around, cls, rows, ()), fit, 0)
    column = around.nodes.label_column(key)[rows]
    usable = fit > 0
    values, numbers = np.unique(column[usable], return_inverse=True)
    if not len(values) or len(values) * (domain[1] - domain[0]) > MOST_CELLS:
        return None
    room = np.zeros((domain[1] - domain[0], len(values)), np.int64)
    np.add.at(room, (layout.leaf_of_row[rows[usable]] - domain[0], numbers), fit[usable])
    of_row = np.full(around.nodes.rows, -1, np.int64)
    of_row[rows[usable]] = numbers
    counts = np.zeros(len(values), np.int64)
    shares: Iterable[ZoneShare] = [ZoneShare(counts, np.full(len(values), members, np.int64))]
    whole = True
    for constraint in constraints.spread:
        if constraint.topology_key == key and constraint.counts_siblings:
            skew = skew_of(around, cls, constraint)
            counts = skew.sums[values]
            outside = np.setdiff1d(skew.domains, values)
            ceiling = int(skew.sums[outside].min()) if len(outside) else members + int(counts.max())
            levels = _levels(counts, room.sum(axis=0), members, ceiling)
            if len(skew.domains) < constraint.min_domains:
                levels = []
            shares, whole = _by_spread(counts, levels, constraint)
            break
    if key in constraints.apart:
        # Nodes without the label keep away from nobody.
        limit = np.where(values == UNKNOWN, members, 1)
        shares = [ZoneShare(share.least, np.minimum(share.most, limit)) for share in shares]
    if _first_of_its_kind(ground, constraints) and key in {term.topology_key for term in constraints.affinity}:
        shares = _each_alone(shares, len(values))
    # One more than are looked at tells that these are not all there are.
    dealt = (share for share in shares if _dealt(room.sum(axis=0), share, members) is not None)
    shares = list(islice(dealt, MOST_SHARES + 1))
    return Zones(domain[0], room, of_row, counts, shares[:MOST_SHARES], whole and len(shares) <= MOST_SHARES)


def _each_alone(shares: Iterable[ZoneShare], zones: int) -> Iterator[ZoneShare]:
    """Yield shares that leave one zone alone to the members, one at a time: there may be as many as nodes."""
    for share in shares:
        for zone in range(zones):
            most = np.zeros(zones, np.int64)
            most[zone] = share.most[zone]
            yield ZoneShare(share.least, most)


def _key(ground: SearchState, constraints: Constraints) -> str | None:
    """Return the key that ties members to each other; that of several which says most of the fabric."""
    keys = {one.topology_key for one in constraints.spread if one.counts_siblings} | (constraints.apart - {HOSTNAME})
    if _first_of_its_kind(ground, constraints):
        keys |= {term.topology_key for term in constraints.affinity}
    return min(keys, key=lambda key: (key == HOSTNAME, key), default=None)


def _first_of_its_kind(ground: SearchState, constraints: Constraints) -> bool:
    """Return whether members want to be with each other, and nobody is there to say where."""
    if not constraints.self_affine:
        return False
    around = ground.around
    conditions = tuple(condition_of(around, term) for term in constraints.affinity)
    counts = pods_matching(around, conditions)
    keys = {term.topology_key for term in constraints.affinity}
    return not any(counts[around.nodes.label_column(key) != UNKNOWN].any() for key in keys)


def _levels(there: Int64, room: Int64, members: int, ceiling: int) -> list[int]:
    """Return what the emptiest zone may have in the end, most first."""
    level = min(int(there.min()), ceiling)
    found = [level]
    while level < ceiling:
        level += 1
        charge_rows(len(there))
        wanted = np.maximum(0, level - there)
        if (wanted > room).any() or int(wanted.sum()) > members:
            break
        found.append(level)
    return found[::-1]


def _by_spread(there: Int64, levels: Sequence[int], constraint: Spread) -> tuple[list[ZoneShare], bool]:
    """Return the shares for each of what the emptiest zone may have; without such, it counts as empty."""
    none = np.zeros(len(there), np.int64)
    shares = [
        ZoneShare(np.maximum(0, level - there), np.maximum(0, level + constraint.max_skew - there))
        for level in levels[:MOST_SHARES]
    ]
    return shares or [ZoneShare(none, np.maximum(0, constraint.max_skew - there))], len(levels) <= MOST_SHARES


def _dealt(room: Int64, share: ZoneShare, members: int) -> Int64 | None:
    """Return how many members each zone gets (int64[zones]), None where they don't fit: those with most room first."""
    charge_rows(len(room), 3)
    most = np.minimum(room, share.most)
    left = members - int(share.least.sum())
    if left < 0 or (most < share.least).any() or int(most.sum()) < members:
        return None
    counts = share.least.copy()
    for zone in np.argsort(share.least - most, kind="stable").tolist():
        more = min(left, int(most[zone] - counts[zone]))
        counts[zone] += more
        left -= more
    return counts


def flow_of(room: Int64, demand: Int64, share: ZoneShare) -> Int64 | None:
    """Return how many members of each leaf go to each zone (int64[leaves, zones]), None where there is no way.

    Found with augmenting paths (Ford and Fulkerson, 1956): first what zones must have, then all; what a zone has once
    no later path takes away.

    Args:
        room: int64[leaves, zones], what each pair takes.
        demand: int64[leaves], how many members each leaf has.
        share: what zones must have and may have.
    """
    flow = np.zeros_like(room)
    for cap, wanted in ((share.least, int(share.least.sum())), (share.most, int(demand.sum()))):
        for leaf in range(len(demand)):
            while flow[leaf].sum() < demand[leaf] and _augment(flow, room, cap, leaf):
                pass
        if int(flow.sum()) < wanted:
            return None
    return flow


def _augment(flow: Int64, room: Int64, cap: Int64, leaf: int) -> bool:
    """Put one more member of a leaf somewhere, others of other leaves make way for; return whether that went."""
    spare = flow.sum(axis=0) < cap
    came_to_zone: dict[int, int] = {}
    came_to_leaf: dict[int, int] = {leaf: -1}
    turn = [leaf]
    charge_rows(flow.size)
    for at in turn:
        charge(1 + len(cap) // 8)
        for zone in np.flatnonzero(flow[at] < room[at]).tolist():
            if zone in came_to_zone:
                continue
            came_to_zone[zone] = at
            if spare[zone]:
                _follow(flow, came_to_zone, came_to_leaf, zone)
                return True
            for other in np.flatnonzero(flow[:, zone]).tolist():
                if other not in came_to_leaf:
                    came_to_leaf[other] = zone
                    turn.append(other)
    return False


def _follow(flow: Int64, came_to_zone: Mapping[int, int], came_to_leaf: Mapping[int, int], zone: int) -> None:
    while zone >= 0:
        leaf = came_to_zone[zone]
        flow[leaf, zone] += 1
        zone = came_to_leaf[leaf]
        if zone >= 0:
            flow[leaf, zone] -= 1
