"""Reserved nodes: what a pending workload will take of them is charged there for other workloads.

During an attempt, the reservations that apply to its workload are charged to their nodes, as with nominated pods.
Between attempts nothing is charged. The charge on a node is what the workload with the reservation will take, less what
the pods that it waits for still hold. So room that becomes free stays free, and room that this workload will not need
stays available to others.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from topo_scheduler.api.devices import Allocation
from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.scheduling.preemption.shares import ReservationShare
from topo_scheduler.scheduling.queueing.queue_keys import needed_now
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.ledger.claimed_gpus import gpus_in
from topo_scheduler.state.nodes.resources import Amounts
from topo_scheduler.state.pods.workloads import Stage, Workload


@dataclass(slots=True)
class Reservation:
    """Nodes that are reserved for a workload.

    Attributes:
        nodes: what the workload takes of each node, by name.
        waits: pods that must end first, by uid, with their node and name.
        start: when they are expected to have ended, in seconds; infinite if that is not known.
        latest: when a pod that backfills the nodes must have ended, in seconds. It never becomes later.
        since: when a pod in ``waits`` ended last, or when other pods were chosen to wait for, in seconds.
        moved_on: the same. In a shared cluster it ignores the choice of other pods, and the end of pods of the same
            namespace or of ``guests``.
        number: identifies the reservation.
        moves: how often it moved to other nodes although its own were still possible.
        relaxed_levels: by how many levels the workload was relaxed when the nodes were chosen last.
        namespace: the namespace of the workload.
        devices: what the claims of its pods get, whether or not pods in ``waits`` still have it.
        device_gpus: how many GPUs these devices are, rounded up.
        guests: pods in ``waits`` that backfilled the nodes, by uid.
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
    relaxed_levels: int = 0
    namespace: str = ""
    devices: tuple[Allocation, ...] = ()
    device_gpus: int = 0
    guests: set[str] = field(default_factory=set)

    @property
    def thousandths(self) -> int:
        """Thousandths of GPUs that the workload takes: whole GPUs, shares, and those of its claims."""
        return sum(map(gpus_in, self.nodes.values())) + WHOLE_GPU * self.device_gpus

    @property
    def gpus(self) -> int:
        """GPUs that the workload takes, rounded up."""
        return -(-self.thousandths // WHOLE_GPU)

    @property
    def id(self) -> str:
        """Identifies the reservation among all that count devices as used."""
        return f"reservation {self.number}"


class Holds:
    """All reservations, at most one for each workload."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_workload: dict[str, Reservation] = {}
        self._made = 0
        self._changes = 0
        self._charged: list[tuple[int, Amounts]] = []
        self._counted: list[Reservation] = []
        """Those whose devices count as used now."""
        self._stamp: Hashable = None

    def __len__(self) -> int:
        return len(self._by_workload)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._by_workload.values()))

    def get(self, id_: str) -> Reservation | None:
        """Return the reservation of a workload."""
        return self._by_workload.get(id_)

    def against(self, workload: Workload) -> list[Reservation]:
        """Return the reservations that apply to a workload unless it ends in time."""
        if any(member.stage is not Stage.PENDING for member in workload.members.values()) and needed_now(workload):
            return []  # replacing what a running gang has lost: the whole gang is blocked until then
        return self.of_others(workload.id, workload.priority)

    def of_others(self, id_: str, priority: int) -> list[Reservation]:
        """Return the reservations of other workloads than one, from its priority on."""
        return [held for held in self if held.workload != id_ and held.priority >= priority]

    def put(self, reservation: Reservation) -> None:
        """Reserve nodes for a workload, in place of any earlier ones; the number of its reservation stays the same."""
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
        """Drop the reservation of a workload: other workloads may use the nodes."""
        known = self._by_workload.pop(id_, None)
        if known is not None:
            self.remove_charges()
            self._changes += 1
            for node in known.nodes:
                self._world.improve(node)
        return known

    def let_in(self, reservation: Reservation, uid: str, node: str, name: str) -> None:
        """Record a pod that backfills a reserved node: the reservation waits for it as well."""
        reservation.waits[uid] = (node, name)
        reservation.guests.add(uid)
        self._changes += 1

    def tells(self, applying: Sequence[Reservation]) -> Hashable:
        """Return an identifier of this set of reservations; None if it is empty."""
        return (self._changes, *(reservation.number for reservation in applying)) if applying else None

    def count_for(self, applying: Sequence[Reservation]) -> Hashable:
        """Charge these reservations and no others; return an identifier of this set."""
        identifier = self.tells(applying)
        if identifier is None:
            self.remove_charges()
            return None
        stamp = (identifier, self._world.improvements)
        if stamp != self._stamp:
            self.remove_charges()
            row_of = self._world.nodes.row_of
            for reservation in applying:
                for node, amounts in self.lacking(reservation).items():
                    if amounts and (row := row_of.get(node)) is not None:
                        self._world.count(row, amounts, None, 1)
                        self._charged.append((row, amounts))
                if reservation.devices:
                    self._world.count_devices(reservation.id, reservation.devices, counts=True)
                    self._counted.append(reservation)
            self._stamp = stamp
        return identifier

    def remove_charges(self) -> None:
        """Remove all charges."""
        for row, amounts in self._charged:
            self._world.count(row, amounts, None, -1)
        self._charged.clear()
        for reservation in self._counted:
            self._world.count_devices(reservation.id, reservation.devices, counts=False)
        self._counted.clear()
        self._stamp = None

    def charged(self) -> dict[int, dict[int, int]]:
        """Return what is charged now, by row and resource."""
        charged: dict[int, dict[int, int]] = {}
        for row, amounts in self._charged:
            on_row = charged.setdefault(row, {})
            for column, amount in amounts:
                on_row[column] = on_row.get(column, 0) + amount
        return charged

    def used(self, node: str) -> Counter[int]:
        """Return what pods hold of a node."""
        used: Counter[int] = Counter()
        for uid in self._world.ledger.on_node(node):
            entry = self._world.ledger.get(uid)
            if entry is not None:
                used.update(dict(entry.amounts))
        return used

    def shares(self, reservation: Reservation) -> list[ReservationShare]:
        """Return what a reservation takes of each node where it waits for pods, which `lacking` does not show yet."""
        pods: dict[str, dict[str, Amounts]] = {}
        for uid, (node, _) in reservation.waits.items():
            entry = self._world.ledger.get(uid)
            if node in reservation.nodes and entry is not None and entry.node == node:
                pods.setdefault(node, {})[uid] = entry.amounts
        row_of = self._world.nodes.row_of
        rows = [(row_of.get(node), node) for node in pods]
        return [
            ReservationShare(row, dict(reservation.nodes[node]), pods[node]) for row, node in rows if row is not None
        ]

    def keeps_devices(self, reservation: Reservation) -> bool:
        """Return whether no pod has the devices of a reservation but those that it waits for."""
        inventory = self._world.inventory
        for allocation in reservation.devices:
            for id_, part in inventory.devices_of_allocation(allocation).items():
                for key in inventory.users_of(id_) if part is None else ():
                    if not all(uid in reservation.waits for uid in inventory.pods_of(key)):
                        return False
        return True

    def lacking(self, reservation: Reservation, *others: Reservation) -> dict[str, Amounts]:
        """Return what a reservation takes of each node beyond what the pods that it waits for hold.

        What ``others`` take of the same nodes is added, and the pods that they wait for count as well.
        """
        held: dict[str, dict[int, int]] = {}
        waits = {
            uid: node
            for counted in (reservation, *others)
            for uid, (node, _) in counted.waits.items()
            if node in reservation.nodes
        }
        for uid, node in waits.items():
            entry = self._world.ledger.get(uid)
            if entry is not None and entry.node == node:
                on_node = held.setdefault(node, {})
                for column, amount in entry.amounts:
                    on_node[column] = on_node.get(column, 0) + amount
        left: dict[str, Amounts] = {}
        for node, amounts in reservation.nodes.items():
            on_node = held.get(node, {})
            taken = Counter(dict(amounts))
            for other in others:
                taken.update(dict(other.nodes.get(node, ())))
            left[node] = tuple(
                (column, missing)
                for column, amount in taken.items()
                if (missing := amount - on_node.get(column, 0)) > 0
            )
        return left
