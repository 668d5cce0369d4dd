"""Number of members in each domain of a topology key, for tied gangs of one class: counted instead of tried.

Anti-affinity between members over a key allows one member per domain. Affinity puts all members into one domain. A
spread sets a minimum and a maximum per domain, from the count of the emptiest domain and ``maxSkew``.

Together with the room of each leaf in each domain, these limits determine the sets of leaves that can hold the gang.
For segments, the number of members per leaf is fixed as well, so the problem is a flow from leaves to domains. This
module ignores limits per leaf and other keys, which can only reduce the room. So if it finds nothing, no placement
exists.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.placing.constrained.segment_assignments import Steps, narrowest_sets
from topo_scheduler.scheduling.placing.constrained.sequential_assignment import SearchState, Spots
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.rules.interpod_filters import NEIGHBOUR_FILTERS, condition_of, pods_matching, skew_of
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.pods.constraints import HOSTNAME, Constraints, Spread
from topo_scheduler.state.topology.fabric import Layout

MAX_CELLS: Final = 200_000
"""The most pairs of a leaf and a domain of the key to examine."""
MAX_SHARES: Final = 64
"""The most ways to divide members between the domains of the key to examine."""


@dataclass(frozen=True, slots=True)
class ZoneShare:
    """How many members each domain of the key must have and may have (int64[zones] each)."""

    minimum: Int64
    maximum: Int64


@dataclass(frozen=True, slots=True)
class Zones:
    """The domains of a topology key, called zones here, within one domain of the fabric.

    ``first``: first leaf of the domain of the fabric. ``room`` int64[leaves, zones]: members that the nodes take.
    ``of_row`` int64[rows]: zone of each row, -1 for none. ``pods_by_zone`` int64[zones]: pods there that count like
    members. ``shares``: limits per zone, one of which must hold. ``whole``: whether ``shares`` is complete.
    """

    first: int
    room: Int64
    of_row: Int64
    pods_by_zone: Int64
    shares: Sequence[ZoneShare]
    whole: bool

    def sets(self, members: int, max_leaves: int, steps: Steps) -> Iterator[Spots]:
        """Yield sets of at most ``max_leaves`` leaves that hold the gang: the smallest first, then the narrowest."""
        if not self.shares:
            return
        members_by_leaf = np.max([np.minimum(self.room, share.maximum).sum(axis=1) for share in self.shares], axis=0)
        leaves = np.flatnonzero(members_by_leaf)
        largest = np.cumsum(np.sort(members_by_leaf[leaves])[::-1])
        fewest = int(np.searchsorted(largest, members)) + 1
        for size in range(fewest, min(max_leaves, len(leaves), members) + 1):
            for chosen in narrowest_sets(leaves.tolist(), size):
                if not steps.take():
                    return
                if int(members_by_leaf[list(chosen)].sum()) < members:
                    continue
                room = self.room[list(chosen)].sum(axis=0)
                for share in self.shares:
                    counts = _divide(room, share, members)
                    if counts is not None:
                        zones = np.repeat(np.arange(len(counts)), counts).tolist()
                        leaves_of_fabric = [self.first + leaf for leaf in chosen]
                        yield Spots([[-1] * members], leaves_of_fabric, [zones], self.of_row, self.pods_by_zone)

    def shared(self, places: Sequence[int], steps: Steps) -> Iterator[Spots]:
        """Yield the zone of each member, given its leaf in ``places``; nothing if a leaf is outside the domain."""
        leaves = sorted(set(places))
        if leaves[0] < self.first or leaves[-1] >= self.first + len(self.room):
            return  # the rest of a segment runs outside
        demand = np.array([places.count(leaf) for leaf in leaves], np.int64)
        room = self.room[[leaf - self.first for leaf in leaves]]
        for share in self.shares:
            if not steps.take():
                return
            if (np.minimum(room, share.maximum).sum(axis=1) < demand).any():
                continue
            if _divide(room.sum(axis=0), share, len(places)) is None:
                continue
            steps.left -= room.size // 8
            flow = flow_of(room, demand, share)
            if flow is not None:
                queues = {
                    leaf: iter(np.repeat(np.arange(len(zone_counts)), zone_counts).tolist())
                    for leaf, zone_counts in zip(leaves, flow, strict=True)
                }
                zones = [next(queues[leaf]) for leaf in places]
                yield Spots([list(places)], leaves, [zones], self.of_row, self.pods_by_zone)


def zones_of(state: SearchState, query: PlacementQuery, layout: Layout, domain: tuple[int, int]) -> Zones | None:
    """Return the zones of the topology key of a gang's constraints, within the leaves ``[first, last)``.

    None if the gang has several classes, its members have no constraint over a key, or there are too many zones.
    """
    (cls, members), *other_classes = zip(state.classes, (count for _, count in query.groups), strict=True)
    constraints = cls.constraints
    if other_classes or constraints is None:
        return None
    key = _key(state, constraints)
    rows = layout.order[layout.offsets[domain[0]] : layout.offsets[domain[1]]]
    if key is None or (key == HOSTNAME and len(rows) * (domain[1] - domain[0]) > MAX_CELLS):
        return None
    filter_context = state.filter_context
    fit = np.minimum(state.fit[0][rows], 1 if constraints.alone else members)
    for rule in NEIGHBOUR_FILTERS:
        # A rule that the first member can't meet, no later member meets. A spread is the exception.
        if rule.reason is not NodeReason.SPREAD:
            fit = np.where(rule.accepts(filter_context, cls, rows, ()), fit, 0)
    column = filter_context.nodes.label_column(key)[rows]
    usable = fit > 0
    values, numbers = _in_order_of_rows(column[usable])
    if not len(values) or len(values) * (domain[1] - domain[0]) > MAX_CELLS:
        return None
    room = np.zeros((domain[1] - domain[0], len(values)), np.int64)
    np.add.at(room, (layout.leaf_of_row[rows[usable]] - domain[0], numbers), fit[usable])
    of_row = np.full(filter_context.nodes.rows, -1, np.int64)
    of_row[rows[usable]] = numbers
    counts = np.zeros(len(values), np.int64)
    shares: Iterable[ZoneShare] = [ZoneShare(counts, np.full(len(values), members, np.int64))]
    whole = True
    for constraint in constraints.spread:
        if constraint.topology_key == key and constraint.counts_siblings:
            skew = skew_of(filter_context, cls, constraint)
            counts = skew.sums[values]
            other_domains = np.setdiff1d(skew.domains, values)
            ceiling = int(skew.sums[other_domains].min()) if len(other_domains) else members + int(counts.max())
            levels = _levels(counts, room.sum(axis=0), members, ceiling)
            if len(skew.domains) < constraint.min_domains:
                levels = []
            shares, whole = _by_spread(counts, levels, constraint)
            break
    if key in constraints.apart:
        # Nodes without the label have no limit.
        limit = np.where(values == UNKNOWN, members, 1)
        shares = [ZoneShare(share.minimum, np.minimum(share.maximum, limit)) for share in shares]
    if _first_of_its_kind(state, constraints) and key in {term.topology_key for term in constraints.affinity}:
        shares = _each_alone(shares, len(values))
    # Take one more than the limit, to know whether the list is complete.
    feasible = (share for share in shares if _divide(room.sum(axis=0), share, members) is not None)
    shares = list(islice(feasible, MAX_SHARES + 1))
    return Zones(domain[0], room, of_row, counts, shares[:MAX_SHARES], whole and len(shares) <= MAX_SHARES)


def _in_order_of_rows(column: Int64) -> tuple[Int64, Int64]:
    """Return the distinct values of a column in the order of their first row, and for each row the index of its value.

    Values are numbered as nodes appear, so an order by value would depend on the order in which nodes were listed.
    """
    values, first_rows, numbers = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first_rows)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order), dtype=np.int64)
    return values[order], ranks[numbers]


def _each_alone(shares: Iterable[ZoneShare], zones: int) -> Iterator[ZoneShare]:
    """Yield shares that allow one zone only, for each zone; lazily, as there may be as many zones as nodes."""
    for share in shares:
        for zone in range(zones):
            maximum = np.zeros(zones, np.int64)
            maximum[zone] = share.maximum[zone]
            yield ZoneShare(share.minimum, maximum)


def _key(state: SearchState, constraints: Constraints) -> str | None:
    """Return the topology key of constraints between members; of several keys, the first other than the hostname."""
    keys = {constraint.topology_key for constraint in constraints.spread if constraint.counts_siblings} | (
        constraints.apart - {HOSTNAME}
    )
    if _first_of_its_kind(state, constraints):
        keys |= {term.topology_key for term in constraints.affinity}
    return min(keys, key=lambda key: (key == HOSTNAME, key), default=None)


def _first_of_its_kind(state: SearchState, constraints: Constraints) -> bool:
    """Return whether members have affinity to each other and no matching pod determines the domain."""
    if not constraints.self_affine:
        return False
    filter_context = state.filter_context
    conditions = tuple(condition_of(filter_context, term) for term in constraints.affinity)
    counts = pods_matching(filter_context, conditions)
    keys = {term.topology_key for term in constraints.affinity}
    return not any(counts[filter_context.nodes.label_column(key) != UNKNOWN].any() for key in keys)


def _levels(pods_by_zone: Int64, room: Int64, members: int, ceiling: int) -> list[int]:
    """Return the possible final counts of the emptiest zone, the highest first."""
    level = min(int(pods_by_zone.min()), ceiling)
    levels = [level]
    while level < ceiling:
        level += 1
        charge_rows(len(pods_by_zone))
        missing = np.maximum(0, level - pods_by_zone)
        if (missing > room).any() or int(missing.sum()) > members:
            break
        levels.append(level)
    return levels[::-1]


def _by_spread(pods_by_zone: Int64, levels: Sequence[int], constraint: Spread) -> tuple[list[ZoneShare], bool]:
    """Return the shares for each count of the emptiest zone; without any count, it counts as empty."""
    zeros = np.zeros(len(pods_by_zone), np.int64)
    shares = [
        ZoneShare(np.maximum(0, level - pods_by_zone), np.maximum(0, level + constraint.max_skew - pods_by_zone))
        for level in levels[:MAX_SHARES]
    ]
    return shares or [ZoneShare(zeros, np.maximum(0, constraint.max_skew - pods_by_zone))], len(levels) <= MAX_SHARES


def _divide(room: Int64, share: ZoneShare, members: int) -> Int64 | None:
    """Return the members of each zone (int64[zones]), None if they don't fit; zones with most room are filled first."""
    charge_rows(len(room), 3)
    maximum = np.minimum(room, share.maximum)
    left = members - int(share.minimum.sum())
    if left < 0 or (maximum < share.minimum).any() or int(maximum.sum()) < members:
        return None
    counts = share.minimum.copy()
    for zone in np.argsort(share.minimum - maximum, kind="stable").tolist():
        added = min(left, int(maximum[zone] - counts[zone]))
        counts[zone] += added
        left -= added
    return counts


def flow_of(room: Int64, demand: Int64, share: ZoneShare) -> Int64 | None:
    """Return the members of each leaf in each zone (int64[leaves, zones]), None if there is no solution.

    The function uses augmenting paths (Ford and Fulkerson, 1956). It first fills the minimum of each zone, then places
    the rest. Later paths never reduce the count of a zone.

    Args:
        room: int64[leaves, zones], members that each pair takes.
        demand: int64[leaves], members of each leaf.
        share: minimum and maximum of each zone.
    """
    flow = np.zeros_like(room)
    for cap, required in ((share.minimum, int(share.minimum.sum())), (share.maximum, int(demand.sum()))):
        for leaf in range(len(demand)):
            while flow[leaf].sum() < demand[leaf] and _augment(flow, room, cap, leaf):
                pass
        if int(flow.sum()) < required:
            return None
    return flow


def _augment(flow: Int64, room: Int64, cap: Int64, leaf: int) -> bool:
    """Place one more member of a leaf; members of other leaves may change zones. Return whether it worked."""
    spare = flow.sum(axis=0) < cap
    leaf_before_zone: dict[int, int] = {}
    zone_before_leaf: dict[int, int] = {leaf: -1}
    queue = [leaf]
    charge_rows(flow.size)
    for current in queue:
        charge(1 + len(cap) // 8)
        for zone in np.flatnonzero(flow[current] < room[current]).tolist():
            if zone in leaf_before_zone:
                continue
            leaf_before_zone[zone] = current
            if spare[zone]:
                _follow(flow, leaf_before_zone, zone_before_leaf, zone)
                return True
            for other in np.flatnonzero(flow[:, zone]).tolist():
                if other not in zone_before_leaf:
                    zone_before_leaf[other] = zone
                    queue.append(other)
    return False


def _follow(flow: Int64, leaf_before_zone: Mapping[int, int], zone_before_leaf: Mapping[int, int], zone: int) -> None:
    while zone >= 0:
        leaf = leaf_before_zone[zone]
        flow[leaf, zone] += 1
        zone = zone_before_leaf[leaf]
        if zone >= 0:
            flow[leaf, zone] -= 1
