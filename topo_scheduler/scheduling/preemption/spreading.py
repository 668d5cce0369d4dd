"""Assigns members to the nodes of a region at the least cost, by dynamic programming over nodes, then over leaves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.model.placement_query import SizeRuleLimits
from topo_scheduler.scheduling.preemption.regions import Region
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.operation_budget import charge_bytes, charge_rows

IMPOSSIBLE_COST: Final = 1 << 62
"""The cost of what is impossible."""


@dataclass(frozen=True, slots=True)
class _LeafCosts:
    """The least cost of each number of members in a leaf, and how many members each node then gets.

    ``cost`` is int64[members + 1]. ``choices`` has an array for each node: int64[nodes used + 1, members + 1]. ``used``
    is the line of that array at the least cost (int64[members + 1]). ``counted`` has for each node whether it counts as
    used.
    """

    cost: Int64
    choices: Sequence[Int64]
    used: Int64
    counted: Sequence[bool]


def spread_cheapest(
    region: Region, table: Sequence[Sequence[int]], members: int, limits: SizeRuleLimits, gpus: int
) -> tuple[int, list[int]] | None:
    """Return the least cost of all members in a region, and how many each row gets; None if they do not fit.

    Args:
        region: leaves, and how many of them may be used.
        table: for each row the cost of 0, 1, 2, ... members on it, at least 0.
        members: how many there are.
        limits: limits in one leaf.
        gpus: GPUs of one member.
    """
    members_left, nodes = region.members_left(limits, gpus, members), region.nodes_per_leaf(limits)
    leaves = []
    for leaf in range(region.leaves):
        rows = slice(int(region.offsets[leaf]), int(region.offsets[leaf + 1]))
        inside, counted, max_nodes = table[rows], [False] * (rows.stop - rows.start), 0
        if nodes is not None:
            inside = [
                costs if is_open else costs[:1] for costs, is_open in zip(inside, nodes.is_open[rows], strict=True)
            ]
            if nodes.counts[rows].sum() > nodes.left[leaf]:
                counted, max_nodes = nodes.counts[rows].tolist(), int(nodes.left[leaf])
        leaves.append(_leaf(inside, members, int(members_left[leaf]), counted, max_nodes))
    return _over_leaves(region, leaves, members)


def _leaf(
    rows: Sequence[Sequence[int]], members: int, limit: int, counted: Sequence[bool], max_nodes: int
) -> _LeafCosts:
    """Compute the costs of one leaf. ``max_nodes`` is the maximum number of ``counted`` nodes that may be used."""
    cost = np.full((max_nodes + 1, members + 1), IMPOSSIBLE_COST, np.int64)
    cost[0, 0] = 0
    choices = []
    charge_bytes(len(rows) * cost.nbytes)
    for row, counts in zip(rows, counted, strict=True):
        charge_rows(cost.size, len(row))
        better, choice = cost.copy(), np.zeros(cost.shape, np.int64)
        for count in range(1, min(len(row) - 1, limit) + 1):
            if row[count] >= IMPOSSIBLE_COST:
                continue
            before = cost[:-1, : members + 1 - count] if counts else cost[:, : members + 1 - count]
            sums = np.where(before >= IMPOSSIBLE_COST, IMPOSSIBLE_COST, before + row[count])
            target = better[1:, count:] if counts else better[:, count:]
            chosen = choice[1:, count:] if counts else choice[:, count:]
            less = sums < target
            target[less] = sums[less]
            chosen[less] = count
        cost = better
        choices.append(choice)
    cost[:, limit + 1 :] = IMPOSSIBLE_COST
    used = cost.argmin(axis=0)
    return _LeafCosts(cost[used, np.arange(members + 1)], choices, used, counted)


def _over_leaves(region: Region, leaves: Sequence[_LeafCosts], members: int) -> tuple[int, list[int]] | None:
    home: list[bool] = region.home.tolist()
    lines = min(region.further_leaves, len(leaves)) + 1
    cost = np.full((lines, members + 1), IMPOSSIBLE_COST, np.int64)
    cost[0, 0] = 0
    choices = []
    charge_bytes(len(leaves) * cost.nbytes)
    for leaf, is_home in zip(leaves, home, strict=True):
        charge_rows(cost.size, int((leaf.cost < IMPOSSIBLE_COST).sum()))
        better, choice = cost.copy(), np.zeros((lines, members + 1), np.int64)
        for count in np.flatnonzero(leaf.cost < IMPOSSIBLE_COST).tolist():
            if count:
                before = cost[:, : members + 1 - count] if is_home else cost[:-1, : members + 1 - count]
                sums = np.where(before >= IMPOSSIBLE_COST, IMPOSSIBLE_COST, before + leaf.cost[count])
                first = 0 if is_home else 1
                target, chosen = better[first:, count:], choice[first:, count:]
                less = sums < target
                target[less] = sums[less]
                chosen[less] = count
        cost = better
        choices.append(choice)
    line = int(cost[:, members].argmin())
    total = int(cost[line, members])
    if total >= IMPOSSIBLE_COST:
        return None
    seated = [0] * int(region.offsets[-1])
    left = members
    for at in range(len(leaves) - 1, -1, -1):
        count = int(choices[at][line, left])
        if count:
            _seat(leaves[at], count, seated, int(region.offsets[at]))
            line, left = line if home[at] else line - 1, left - count
    return total, seated


def _seat(leaf: _LeafCosts, members: int, seated: list[int], offset: int) -> None:
    line, left = int(leaf.used[members]), members
    for row in range(len(leaf.choices) - 1, -1, -1):
        choice = leaf.choices[row]
        count = int(choice[line, left])
        if count:
            seated[offset + row] = count
            line, left = line - 1 if leaf.counted[row] else line, left - count
