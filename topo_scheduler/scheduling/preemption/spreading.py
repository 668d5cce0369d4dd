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
    is the line of that array at the least cost (int64[members + 1]).
    """

    cost: Int64
    choices: Sequence[Int64]
    used: Int64


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
    capped = limits.members_per_leaf(gpus) or members
    leaves = []
    for leaf in range(len(region.offsets) - 1):
        inside = table[region.offsets[leaf] : region.offsets[leaf + 1]]
        nodes = limits.max_nodes_per_leaf if 0 < limits.max_nodes_per_leaf < len(inside) else 0
        leaves.append(_leaf(inside, members, min(capped, members), nodes))
    return _over_leaves(region, leaves, members)


def _leaf(rows: Sequence[Sequence[int]], members: int, limit: int, nodes: int) -> _LeafCosts:
    """Compute the costs of one leaf. ``nodes`` is the maximum number of nodes that may be used, 0 for any number."""
    lines = nodes + 1 if nodes else 1
    cost = np.full((lines, members + 1), IMPOSSIBLE_COST, np.int64)
    cost[0, 0] = 0
    choices = []
    charge_bytes(len(rows) * cost.nbytes)
    for row in rows:
        charge_rows(cost.size, len(row))
        better, choice = cost.copy(), np.zeros((lines, members + 1), np.int64)
        for count in range(1, min(len(row) - 1, limit) + 1):
            if row[count] >= IMPOSSIBLE_COST:
                continue
            before = cost[:-1, : members + 1 - count] if nodes else cost[:, : members + 1 - count]
            sums = np.where(before >= IMPOSSIBLE_COST, IMPOSSIBLE_COST, before + row[count])
            target = better[1:, count:] if nodes else better[:, count:]
            chosen = choice[1:, count:] if nodes else choice[:, count:]
            less = sums < target
            target[less] = sums[less]
            chosen[less] = count
        cost = better
        choices.append(choice)
    cost[:, limit + 1 :] = IMPOSSIBLE_COST
    used = cost.argmin(axis=0)
    return _LeafCosts(cost[used, np.arange(members + 1)], choices, used)


def _over_leaves(region: Region, leaves: Sequence[_LeafCosts], members: int) -> tuple[int, list[int]] | None:
    lines = min(region.max_leaves, len(leaves)) + 1
    cost = np.full((lines, members + 1), IMPOSSIBLE_COST, np.int64)
    cost[0, 0] = 0
    choices = []
    charge_bytes(len(leaves) * cost.nbytes)
    for leaf in leaves:
        charge_rows(cost.size, int((leaf.cost < IMPOSSIBLE_COST).sum()))
        better, choice = cost.copy(), np.zeros((lines, members + 1), np.int64)
        for count in np.flatnonzero(leaf.cost < IMPOSSIBLE_COST).tolist():
            if count:
                before = cost[:-1, : members + 1 - count]
                sums = np.where(before >= IMPOSSIBLE_COST, IMPOSSIBLE_COST, before + leaf.cost[count])
                target, chosen = better[1:, count:], choice[1:, count:]
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
            line, left = line - 1, left - count
    return total, seated


def _seat(leaf: _LeafCosts, members: int, seated: list[int], offset: int) -> None:
    line, left = int(leaf.used[members]), members
    for row in range(len(leaf.choices) - 1, -1, -1):
        choice = leaf.choices[row]
        count = int(choice[line if len(choice) > 1 else 0, left])
        if count:
            seated[offset + row] = count
            line, left = line - 1, left - count
