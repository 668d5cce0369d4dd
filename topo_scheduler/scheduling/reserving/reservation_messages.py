"""Messages about reserved nodes, for the workload with the reservation and for the workloads that it excludes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf

import numpy as np

from topo_scheduler.api.text import few_for
from topo_scheduler.scheduling.reserving.holds import Holds, Reservation
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.pods.classes import PodClass


def holds_what(held: Reservation, epoch: float, reader: str = "") -> str:
    """Return what is reserved for a workload, until about when, and which pods it waits for.

    ``epoch`` converts the times of the reservation to seconds since the epoch when added; for ``reader`` see `few_for`.
    """
    names = sorted(name for _, name in held.waits.values())
    own = sum(name.startswith(f"{reader}/") for name in names) if reader else len(names)
    pods = f"pod{'s' if own > 1 else ''} " if own else ""
    waits = f": waits for {pods}{few_for(names, reader, 'pod', 2)}" if names else ""
    count = len(held.nodes)
    where = "" if held.domain.startswith("node ") else f" ({count} node{'s' if count > 1 else ''})"
    return f"Reserved: {held.domain}{where}, {expected(held, epoch)}{waits}."


def expected(held: Reservation, epoch: float) -> str:
    """Return a text for when reserved nodes are expected to be free."""
    if held.start == inf:
        return "it is not known when it will be free"
    return f"expected free at about {moment(held.start + epoch)}"


def moment(wall: float) -> str:
    """Return a time as text; ``wall`` is in seconds since the epoch."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M UTC")


def kept_off(
    nodes: NodeTable,
    holds: Holds,
    applying: Sequence[Reservation],
    cls: PodClass,
    epoch: float,
    reader: str = "",
) -> str:
    """Return how many nodes would have room for a pod of a class if they were not reserved for others.

    ``applying`` are the reservations that apply to the pod, as charged now. For ``reader`` see `few_for`.
    """
    charged = holds.charged()
    reasons = []
    for held in applying:
        rows = [row for node in held.nodes if (row := nodes.row_of.get(node)) is not None and row in charged]
        count = sum(_only_held(nodes, row, charged[row], cls) for row in rows)
        if count:
            kind, _, name = held.name.partition(" ")
            described = held.name if not reader or name.startswith(f"{reader}/") else f"a {kind} of another namespace"
            reasons.append(f"{count} node(s) with room reserved for {described}, {expected(held, epoch)}.")
    return " ".join(reasons)


def _only_held(nodes: NodeTable, row: int, charged: dict[int, int], cls: PodClass) -> bool:
    columns = np.array([column for column, _ in cls.amounts], np.int64)
    amounts = np.array([amount for _, amount in cls.amounts], np.int64)
    free = nodes.allocatable[row, columns] - nodes.requested[row, columns]
    back = np.array([charged.get(int(column), 0) for column in columns], np.int64)
    return bool((free + back >= amounts).all() and (free < amounts).any())
