"""Seats that are held for pods which do not exist yet: for those that a controller makes in place of moved ones.

A seat counts for others as a nominated pod does: for all of equal or lower priority, on its node. It is for the gang or
the controller of the pod that leaves, and for its index where it has one. Who holds seats, and how long, is decided
elsewhere; here nothing expires.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topo_scheduler.scheduling.preemption.nominations import Nomination, Nominations
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.resources import GPU, PODS, Amounts, amount_in
from topo_scheduler.state.workloads import Member, Workload


@dataclass(frozen=True, slots=True)
class ReservedSeat:
    """A place on a node. ``pod`` uid of the one that leaves; ``requests`` amounts by name of the resource.

    ``workload`` is what a replacement belongs to where it is a ``gang``; otherwise it is known by its ``controller``.
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

    @property
    def id(self) -> str:
        """Tells it from all others, and from pods."""
        return f"seat:{self.migration}:{self.pod}"

    def is_for(self, workload: Workload) -> bool:
        """Whether a pod of a workload may take it."""
        if self.gang or workload.gang:
            return self.workload == workload.id
        return (self.namespace, self.controller) == (workload.namespace, workload.controller)


class Replacements:
    """All seats that are held for replacements."""

    def __init__(self, world: World, nominations: Nominations) -> None:
        self._world = world
        self._nominations = nominations
        self._seats: dict[str, ReservedSeat] = {}
        self.taken: dict[str, str] = {}
        """Seats that were given away, by id, with the uid of the pod that took each."""

    def __bool__(self) -> bool:
        return bool(self._seats)

    def __len__(self) -> int:
        return len(self._seats)

    def holds(self, id_: str) -> bool:
        """Return whether a seat is held."""
        return id_ in self._seats

    def knows(self, migration: str) -> bool:
        """Return whether anything is held or remembered for a Migration."""
        prefix = f"seat:{migration}:"
        return any(id_.startswith(prefix) for id_ in (*self._seats, *self.taken))

    def keep(self, migration: str, seats: Sequence[ReservedSeat]) -> None:
        """Hold these seats for a Migration and no other; none where it is over."""
        wanted = {seat.id: seat for seat in seats}
        for id_ in [id_ for id_, one in self._seats.items() if one.migration == migration]:
            if wanted.get(id_) != self._seats[id_]:
                self._drop(id_)
        if not seats:
            prefix = f"seat:{migration}:"
            self.taken = {id_: uid for id_, uid in self.taken.items() if not id_.startswith(prefix)}
        for id_, seat in wanted.items():
            self.taken.pop(id_, None)
            if id_ not in self._seats:
                self._seats[id_] = seat
                self._nominations.put(Nomination(id_, seat.node, seat.priority, self._amounts(seat), None))

    def gpus(self) -> dict[str, int]:
        """Return how many GPUs are held on each node that has seats with any."""
        found: Counter[str] = Counter()
        for seat in self._seats.values():
            found[seat.node] += amount_in(self._amounts(seat), GPU)
        return {node: count for node, count in found.items() if count}

    def own(self, workload: Workload) -> Mapping[str, object]:
        """Return the seats a workload may take, which do not stand in its own way."""
        return {id_: seat for id_, seat in self._seats.items() if seat.is_for(workload)}

    def rows_for(self, workload: Workload, members: Sequence[Member]) -> dict[str, int]:
        """Return the rows of seats for members, by uid; empty where not each of them has one."""
        free = sorted((seat for seat in self._seats.values() if seat.is_for(workload)), key=lambda seat: seat.id)
        if not free:
            return {}
        row_of = self._world.nodes.row_of
        found: dict[str, int] = {}
        # Who has a number takes the seat of that number; the others take what is left.
        for exact in (True, False):
            for member in members:
                if member.uid in found:
                    continue
                seat = next((one for one in free if (one.index == member.index if exact else one.index is None)), None)
                if seat is not None and seat.node in row_of:
                    found[member.uid] = row_of[seat.node]
                    free.remove(seat)
        return found if len(found) == len(members) else {}

    def placed(self, workload: Workload, decision: Decision) -> None:
        """Give seats to the members that were placed: the ledger holds their room from now on."""
        mine = {id_: seat for id_, seat in self._seats.items() if seat.is_for(workload)}
        for seated in decision.seats:
            index = workload.members[seated.uid].index
            fits = [id_ for id_, seat in mine.items() if seat.index in (None, index)]
            # Its own seat first; placed elsewhere, it needs none of the others' either.
            fits.sort(key=lambda id_: (mine[id_].node != seated.node, mine[id_].index != index, id_))
            if fits:
                self._drop(fits[0])
                del mine[fits[0]]
                self.taken[fits[0]] = seated.uid

    def _drop(self, id_: str) -> None:
        del self._seats[id_]
        self._nominations.drop(id_)

    def _amounts(self, seat: ReservedSeat) -> Amounts:
        names = self._world.resources.names
        amounts = {names.index(name): amount for name, amount in seat.requests if name in names and amount > 0}
        amounts.setdefault(PODS, 1)
        return tuple(sorted(amounts.items()))


def requests_of(names: Sequence[str], amounts: Amounts) -> dict[str, int]:
    """Return amounts by name of the resource, as a Migration keeps them; the account of all GPUs comes along."""
    return {names[column]: amount for column, amount in amounts}
