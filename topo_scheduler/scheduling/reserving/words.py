"""What is told of nodes that are held: to the workload they are held for, and to those they are held from."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf

import numpy as np

from topo_scheduler.api.words import few_of
from topo_scheduler.scheduling.reserving.holds import Holds, Reservation
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.nodes import NodeTable


def holds_what(held: Reservation, epoch: float) -> str:
    """Return what is held for a workload, until about when, and which pods it waits for.

    ``epoch`` what makes seconds since the epoch of the times of the reservation.
    """
    names = sorted(name for _, name in held.waits.values())
    waits = f": waits for pod{'s' if len(names) > 1 else ''} {few_of(names, 2)}" if names else ""
    count = len(held.nodes)
    where = "" if held.domain.startswith("node ") else f" ({count} node{'s' if count > 1 else ''})"
    return f"Holds {held.domain}{where}, {expected(held, epoch)}{waits}."


def expected(held: Reservation, epoch: float) -> str:
    """Return when held nodes are expected to be free, in words."""
    if held.start == inf:
        return "it is not known when it will be free"
    return f"expected free at about {moment(held.start + epoch)}"


def moment(wall: float) -> str:
    """Return a moment in words; ``wall`` seconds since the epoch."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M UTC")


def kept_off(nodes: NodeTable, holds: Holds, applying: Sequence[Reservation], cls: PodClass, epoch: float) -> str:
    """Return how many nodes would have room for a pod of a class if they were not held for others.

    ``applying`` what is held from it, as it is charged now.
    """
    charged = holds.charged()
    told = []
    for held in applying:
        rows = [row for node in held.nodes if (row := nodes.row_of.get(node)) is not None and row in charged]
        count = sum(_only_held(nodes, row, charged[row], cls) for row in rows)
        if count:
            told.append(f"{count} node(s) with room held for {held.name}, {expected(held, epoch)}.")
    return " ".join(told)


def _only_held(nodes: NodeTable, row: int, charged: dict[int, int], cls: PodClass) -> bool:
    columns = np.array([column for column, _ in cls.amounts], np.int64)
    amounts = np.array([amount for _, amount in cls.amounts], np.int64)
    free = nodes.allocatable[row, columns] - nodes.requested[row, columns]
    back = np.array([charged.get(int(column), 0) for column in columns], np.int64)
    return bool((free + back >= amounts).all() and (free < amounts).any())
