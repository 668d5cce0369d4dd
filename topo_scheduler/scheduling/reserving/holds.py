"""Held nodes: what a workload that waits will take of them counts there for others, as far as it is not in use still.

While an attempt is made, what is held from the workload is charged to its nodes, as with nominated pods; between steps
nothing is. Of what the holder will take of a node, that part is charged which the pods it waits for there don't hold:
so what becomes free stays free, and what the holder will not need is nobody's loss.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from topo_scheduler.scheduling.preemption.shares import ReservationShare
from topo_scheduler.scheduling.queueing.standing import needed_now
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.resources import GPU, Amounts
from topo_scheduler.state.workloads import Stage, Workload


@dataclass(slots=True)
class Reservation:
    """Nodes that are held for a workload.

    ``nodes`` what it takes of each, by name; ``waits`` pods that must end first, by uid, with their node and name;
    ``start`` when that is expected, in seconds, infinite where it is not known; ``latest`` when a pod must have ended
    that uses them meanwhile: it never becomes later. ``since`` when a pod that is waited for ended last, or others
    were chosen to wait for; ``moved_on`` the same, but in a shared cluster without the latter. ``number``
    tells it from all others. ``moves`` how often it went to other nodes although its own could still be had;
    ``loosened`` by how many levels the workload had been when nodes were looked for last. ``namespace`` whose it is.
    """

    workload: str
    name: str
    priority: int
    domain: str
    nodes: Mapping[str, Amounts]
    waits: dict[str, tuple[str, str]]
    start: float
    latest: float
    since: float
    moved_on: float = 0.0
    number: int = 0
    moves: int = 0
    loosened: int = 0
    namespace: str = ""

    @property
    def gpus(self) -> int:
        """GPUs that the workload takes."""
        return sum(amount for amounts in self.nodes.values() for column, amount in amounts if column == GPU)


class Holds:
    """All reservations, each workload's at most one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_workload: dict[str, Reservation] = {}
        self._made = 0
        self._changes = 0
        self._charged: list[tuple[int, Amounts]] = []
        self._stamp: Hashable = None

    def __len__(self) -> int:
        return len(self._by_workload)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._by_workload.values()))

    def get(self, id_: str) -> Reservation | None:
        """Return what is held for a workload."""
        return self._by_workload.get(id_)

    def against(self, workload: Workload) -> list[Reservation]:
        """Return what is held from a workload unless it ends in time."""
        if any(member.stage is not Stage.PENDING for member in workload.members.values()) and needed_now(workload):
            return []  # what a gang that runs has lost: all of it waits for that
        return [one for one in self if one.workload != workload.id and one.priority >= workload.priority]

    def put(self, reservation: Reservation) -> None:
        """Hold nodes for a workload, in place of any that are; it keeps its standing among others."""
        known = self._by_workload.get(reservation.workload)
        if known is not None:
            reservation.number = known.number
            self.drop(known.workload)
        else:
            self._made += 1
            reservation.number = self._made
        self._by_workload[reservation.workload] = reservation
        self._changes += 1

    def drop(self, id_: str) -> Reservation | None:
        """Hold nothing for a workload any longer: others may use it."""
        known = self._by_workload.pop(id_, None)
        if known is not None:
            self.count_nobody()
            self._changes += 1
            for node in known.nodes:
                self._world.improve(node)
        return known

    def let_in(self, reservation: Reservation, uid: str, node: str, name: str) -> None:
        """Note a pod that uses a held node meanwhile: it is waited for as well."""
        reservation.waits[uid] = (node, name)
        self._changes += 1

    def tells(self, applying: Sequence[Reservation]) -> Hashable:
        """Return what tells these reservations from any other set of them; None for no reservation."""
        return (self._changes, *(one.number for one in applying)) if applying else None

    def count_for(self, applying: Sequence[Reservation]) -> Hashable:
        """Charge these reservations and no other; return what tells them from any other set of them."""
        told = self.tells(applying)
        if told is None:
            self.count_nobody()
            return None
        stamp = (told, self._world.improvements)
        if stamp != self._stamp:
            self.count_nobody()
            row_of = self._world.nodes.row_of
            for one in applying:
                for node, amounts in self.lacking(one).items():
                    if amounts and (row := row_of.get(node)) is not None:
                        self._world.count(row, amounts, None, 1)
                        self._charged.append((row, amounts))
            self._stamp = stamp
        return told

    def count_nobody(self) -> None:
        """Take back all charges."""
        for row, amounts in self._charged:
            self._world.count(row, amounts, None, -1)
        self._charged.clear()
        self._stamp = None

    def charged(self) -> dict[int, dict[int, int]]:
        """Return what is charged now, by row and resource."""
        found: dict[int, dict[int, int]] = {}
        for row, amounts in self._charged:
            here = found.setdefault(row, {})
            for column, amount in amounts:
                here[column] = here.get(column, 0) + amount
        return found

    def used(self, node: str) -> Counter[int]:
        """Return what pods hold of a node."""
        found: Counter[int] = Counter()
        for uid in self._world.ledger.on_node(node):
            entry = self._world.ledger.get(uid)
            if entry is not None:
                found.update(dict(entry.amounts))
        return found

    def shares(self, one: Reservation) -> list[ReservationShare]:
        """Return what a reservation takes of each node where it waits for pods, which `lacking` does not show yet."""
        pods: dict[str, dict[str, Amounts]] = {}
        for uid, (node, _) in one.waits.items():
            entry = self._world.ledger.get(uid)
            if node in one.nodes and entry is not None and entry.node == node:
                pods.setdefault(node, {})[uid] = entry.amounts
        row_of = self._world.nodes.row_of
        rows = [(row_of.get(node), node) for node in pods]
        return [ReservationShare(row, dict(one.nodes[node]), pods[node]) for row, node in rows if row is not None]

    def lacking(self, one: Reservation, *others: Reservation) -> dict[str, Amounts]:
        """Return what of each held node the pods that are waited for don't hold; ``others`` take of them as well."""
        held: dict[str, dict[int, int]] = {}
        waits = {uid: node for some in (one, *others) for uid, (node, _) in some.waits.items() if node in one.nodes}
        for uid, node in waits.items():
            entry = self._world.ledger.get(uid)
            if entry is not None and entry.node == node:
                here = held.setdefault(node, {})
                for column, amount in entry.amounts:
                    here[column] = here.get(column, 0) + amount
        left: dict[str, Amounts] = {}
        for node, amounts in one.nodes.items():
            here = held.get(node, {})
            taken = Counter(dict(amounts))
            for other in others:
                taken.update(dict(other.nodes.get(node, ())))
            left[node] = tuple(
                (column, rest) for column, amount in taken.items() if (rest := amount - here.get(column, 0)) > 0
            )
        return left
