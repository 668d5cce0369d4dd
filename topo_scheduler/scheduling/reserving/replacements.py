"""Seats that are reserved for pods which do not exist yet: replacements that a controller makes for moved pods.

A seat counts like a nominated pod: on its node, for all workloads of equal or lower priority. It belongs to the gang or
the controller of the pod that leaves, and to its index if it has one. Other modules decide which seats are reserved,
and for how long. Here no seat expires.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topo_scheduler.api.migrations import SeatDevice
from topo_scheduler.scheduling.preemption.nominations import Nomination, Nominations
from topo_scheduler.scheduling.reserving.seat_devices import seat_allocation
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.ledger.claimed_devices import other_devices
from topo_scheduler.state.nodes.resources import GPU, PODS, Amounts, amount_in
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.workloads import Member, Workload


@dataclass(frozen=True, slots=True)
class ReservedSeat:
    """A place on a node. ``pod`` is the uid of the pod that leaves; ``requests`` are amounts by name of the resource.

    ``workload`` is the workload of a replacement if it is a ``gang``. Otherwise ``controller`` identifies the
    replacement.
    """

    migration: str
    pod: str
    node: str
    namespace: str
    workload: str
    controller: str
    gang: bool
    index: int | None
    priority: int
    requests: tuple[tuple[str, int], ...]
    devices: tuple[SeatDevice, ...] = ()
    """Devices, and shares of devices, that are held with the place."""
    series: str | None = None
    """Series of the index, or of the pods without an index; None if unknown."""

    @property
    def id(self) -> str:
        """Identifies the seat among all seats and pods."""
        return f"seat:{self.migration}:{self.pod}"

    def is_for(self, workload: Workload) -> bool:
        """Whether a pod of a workload may take the seat."""
        if self.gang or workload.gang:
            return self.workload == workload.id
        return (self.namespace, self.controller) == (workload.namespace, workload.controller)

    def is_in_series_of(self, member: Member) -> bool:
        """Whether a member is of the same series: a gang of several Jobs has each index several times."""
        return self.series in (None, member.known_series)


@dataclass(frozen=True, slots=True)
class ClaimedBySeat:
    """What the devices of a seat are, in thousandths: GPUs beyond those that it requests, and devices by driver."""

    gpus: int
    devices: Mapping[str, int]


class Replacements:
    """All seats that are reserved for replacements."""

    def __init__(self, world: World, nominations: Nominations) -> None:
        self._world = world
        self._nominations = nominations
        self._seats: dict[str, ReservedSeat] = {}
        self._claimed: dict[str, ClaimedBySeat] = {}
        """What the devices of seats are, by id."""
        self.taken: dict[str, str] = {}
        """Seats that were taken, by id, with the uid of the pod that took each."""

    def __bool__(self) -> bool:
        return bool(self._seats)

    def __len__(self) -> int:
        return len(self._seats)

    def holds(self, id_: str) -> bool:
        """Return whether a seat is reserved."""
        return id_ in self._seats

    def knows(self, migration: str) -> bool:
        """Return whether any seat is reserved or remembered for a Migration."""
        prefix = f"seat:{migration}:"
        return any(id_.startswith(prefix) for id_ in (*self._seats, *self.taken))

    def keep(self, migration: str, seats: Sequence[ReservedSeat]) -> None:
        """Reserve these seats for a Migration and no others; none if it is over."""
        wanted = {seat.id: seat for seat in seats}
        for id_ in [id_ for id_, reserved in self._seats.items() if reserved.migration == migration]:
            if wanted.get(id_) != self._seats[id_]:
                self._drop(id_)
        if not seats:
            prefix = f"seat:{migration}:"
            self.taken = {id_: uid for id_, uid in self.taken.items() if not id_.startswith(prefix)}
        for id_, seat in wanted.items():
            self.taken.pop(id_, None)
            if id_ not in self._seats:
                self._seats[id_] = seat
                devices = (seat_allocation(seat.devices),) if seat.devices else ()
                amounts = self._amounts(seat)
                self._claimed[id_] = ClaimedBySeat(
                    self._world.claimed_gpus.beyond(amounts, devices), other_devices(self._world.inventory, devices)
                )
                self._nominations.put(
                    Nomination(id_, seat.node, seat.priority, amounts, None, seat.namespace, devices, seat.pod)
                )

    def gpus(self) -> dict[str, int]:
        """Return how many GPUs are reserved on each node that has seats with any."""
        gpus: Counter[str] = Counter()
        for seat in self._seats.values():
            gpus[seat.node] += amount_in(self._amounts(seat), GPU)
        return {node: count for node, count in gpus.items() if count}

    def of_namespace(self, namespace: str) -> list[tuple[ReservedSeat, Amounts, ClaimedBySeat]]:
        """Return the seats of a namespace, with what each requests, and what its devices are beyond that."""
        seats = ((id_, seat) for id_, seat in self._seats.items() if seat.namespace == namespace)
        return [(seat, self._amounts(seat), self._claimed[id_]) for id_, seat in seats]

    def own(self, workload: Workload) -> Mapping[str, object]:
        """Return the seats that a workload may take, which do not block it."""
        return {id_: seat for id_, seat in self._seats.items() if seat.is_for(workload)}

    def nodes_for(self, workload: Workload) -> dict[str, str]:
        """Return the nodes of the seats that a workload may take, by the uids of the pods that leave for them."""
        return {seat.pod: seat.node for seat in self._seats.values() if seat.is_for(workload)}

    def rows_for(self, workload: Workload, members: Sequence[Member]) -> dict[str, int]:
        """Return the rows of seats for members, by uid; empty if any of them has none."""
        free = sorted((seat for seat in self._seats.values() if seat.is_for(workload)), key=lambda seat: seat.id)
        if not free:
            return {}
        row_of = self._world.nodes.row_of
        rows: dict[str, int] = {}
        # A member with an index takes the seat of that index; the others take seats without an index.
        for exact in (True, False):
            for member in members:
                if member.uid in rows:
                    continue
                seat = next(
                    (
                        candidate
                        for candidate in free
                        if (candidate.index == member.index if exact else candidate.index is None)
                        and candidate.is_in_series_of(member)
                    ),
                    None,
                )
                if seat is not None and seat.node in row_of:
                    rows[member.uid] = row_of[seat.node]
                    free.remove(seat)
        return rows if len(rows) == len(members) else {}

    def keep_off(self, workload: Workload, cls: PodClass) -> str:
        """Return how many nodes the seats of others keep from a pod of a workload; empty for none.

        These nodes would have room without the seats. For a pod with claims, nodes where seats hold devices count too.
        """
        rooms, devices = self._nodes_with_room(workload, cls), self._nodes_with_devices(workload) if cls.claims else 0
        counts = (
            (rooms, "node(s) with room reserved for replacements of moved pods."),
            (devices, "node(s) with devices reserved for replacements of moved pods."),
        )
        return " ".join(f"{count} {text}" for count, text in counts if count)

    def _nodes_with_devices(self, workload: Workload) -> int:
        seats = (seat for seat in self._seats.values() if seat.devices and not seat.is_for(workload))
        return len({seat.node for seat in seats if seat.priority >= workload.priority})

    def _nodes_with_room(self, workload: Workload, cls: PodClass) -> int:
        kept: dict[int, Counter[int]] = defaultdict(Counter)
        charged: dict[int, Counter[int]] = defaultdict(Counter)
        for id_, seat in self._seats.items():
            row = self._world.nodes.row_of.get(seat.node)
            if row is not None and seat.priority >= workload.priority and not seat.is_for(workload):
                kept[row].update(dict(self._amounts(seat)))
                if self._nominations.is_charged(id_):
                    charged[row].update(dict(self._amounts(seat)))
        if not kept:
            return 0
        nodes, held, count = self._world.nodes, self._world.held(), 0
        for row, seats in kept.items():
            free = {column: int(nodes.allocatable[row, column] - held[row, column]) for column, _ in cls.amounts}
            has_room = all(free[column] + charged[row][column] >= amount for column, amount in cls.amounts)
            left = {column: free[column] + charged[row][column] - seats[column] for column, _ in cls.amounts}
            count += has_room and any(left[column] < amount for column, amount in cls.amounts)
        return count

    def placed(self, workload: Workload, decision: Decision) -> None:
        """Give seats to the members that were placed: the ledger holds their room from now on."""
        own = {id_: seat for id_, seat in self._seats.items() if seat.is_for(workload)}
        for seated in decision.seats:
            member = workload.members[seated.uid]
            index = member.index
            fits = [id_ for id_, seat in own.items() if seat.index in (None, index) and seat.is_in_series_of(member)]
            # Its own seat comes first. A member that was placed elsewhere needs none of the seats of the others either.
            fits.sort(key=lambda id_: (own[id_].node != seated.node, own[id_].index != index, id_))
            if fits:
                self._drop(fits[0])
                del own[fits[0]]
                self.taken[fits[0]] = seated.uid

    def _drop(self, id_: str) -> None:
        del self._seats[id_], self._claimed[id_]
        self._nominations.drop(id_)

    def _amounts(self, seat: ReservedSeat) -> Amounts:
        names = self._world.resources.names
        amounts = {names.index(name): amount for name, amount in seat.requests if name in names and amount > 0}
        amounts.setdefault(PODS, 1)
        return tuple(sorted(amounts.items()))


def requests_of(names: Sequence[str], amounts: Amounts) -> dict[str, int]:
    """Return amounts by name of the resource, as a Migration stores them, including the total of all GPUs."""
    return {names[column]: amount for column, amount in amounts}
