"""What several Migrations that wait at once ask for, what each of them gets, and how good that is for all together.

In this order: the fewest pods without a seat, those of the highest priority first; what the moves cost that make room,
and the gangs that start again elsewhere; how far seats are from where the rest of their gang runs.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from topo_scheduler.recovery.seating import MovingPod, as_candidate, find_seats
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidate
from topo_scheduler.state.workloads import Stage

Worth = tuple[tuple[int, ...], float, int]
"""Pods without a seat, by priority, the highest first; GPU-seconds; levels between seats and the rest of the gangs."""


@dataclass(frozen=True, slots=True)
class RelocationRequest:
    """What a Migration asks for.

    ``avoided`` nodes that are no target; ``prepare`` what makes a copy of the state show the room it may use;
    ``rest`` of the gang, where all of it may start again elsewhere; ``moves_others`` whether others may make room.
    """

    key: str
    leavers: tuple[MovingPod, ...]
    avoided: frozenset[str]
    prepare: Callable[[Trial], None]
    rest: tuple[MovingPod, ...] = ()
    moves_others: bool = False

    @property
    def priority(self) -> int:
        """Return the priority of the pods."""
        return self.leavers[0].workload.priority

    @property
    def whole(self) -> "RelocationRequest":
        """Return the same for all of the gang."""
        return replace(self, leavers=(*self.leavers, *self.rest), rest=())


@dataclass(frozen=True, slots=True)
class SeatGrant:
    """What a Migration gets: a node for each pod by uid, none where there are no seats.

    ``others`` leave first, for the nodes ``to`` by uid; ``whole``: all of the gang moves. ``cost`` of either, in
    GPU-seconds.
    """

    seats: Mapping[str, str] = field(default_factory=dict)
    others: tuple[MovingPod, ...] = ()
    to: Mapping[str, str] = field(default_factory=dict)
    cost: float = 0.0
    whole: bool = False


Shares = Mapping[str, SeatGrant]
"""By the key of the Migration."""
NOTHING = SeatGrant()


def worth_of(engine: Engine, claims: Sequence[RelocationRequest], shares: Shares) -> Worth:
    """Return how good it is what all get: the less the better."""
    lack = lacking(claims, [claim.key for claim in claims if shares[claim.key].seats])
    cost = sum(shares[claim.key].cost for claim in claims)
    far = sum(distance(engine, claim, shares[claim.key].seats) for claim in claims if not shares[claim.key].whole)
    return lack, cost, far


def lacking(claims: Sequence[RelocationRequest], seated: Iterable[str]) -> tuple[int, ...]:
    """Return how many pods have no seats, by priority, the highest first."""
    levels, there = sorted({claim.priority for claim in claims}, reverse=True), set(seated)
    without = [claim for claim in claims if claim.key not in there]
    return tuple(sum(len(one.leavers) for one in without if one.priority == level) for level in levels)


def distance(engine: Engine, claim: RelocationRequest, seats: Mapping[str, str]) -> int:
    """Return how many levels lie between seats and the nearest leaf of the gang, summed; 0 where it is nowhere else."""
    going = {one.member.uid for one in claim.leavers}
    gang, world = claim.leavers[0].workload, engine.world
    stay = (one for one in gang.members.values() if one.stage is not Stage.PENDING and one.uid not in going)
    homes = {leaf for member in stay if (leaf := world.leaf_of(member.node)) is not None}
    if not homes:
        return 0
    return sum(min(_levels(home, world.leaf_of(node) or ()) for home in homes) for node in seats.values())


def _levels(one: Sequence[str], other: Sequence[str]) -> int:
    same = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        same += 1
    return len(one) - same


class Copies:
    """Asks the planner on copies of the state, on which others have their seats already; counts how often."""

    def __init__(self, engine: Engine, now: float) -> None:
        self.engine = engine
        self.now = now
        self.asked = 0
        self._known: dict[Hashable, Mapping[str, str]] = {}

    def seats(
        self,
        claim: RelocationRequest,
        shares: Iterable[tuple[RelocationRequest, SeatGrant]],
        gone: Sequence[Candidate] = (),
        shut: frozenset[str] = frozenset(),
    ) -> Mapping[str, str]:
        """Return seats beside those of others, once some pods are gone, and not on the nodes that are shut."""
        there = [(other, share) for other, share in shares if share.seats]
        taken = frozenset(
            (other.key, *sorted(share.seats.items()), *sorted(share.to.items())) for other, share in there
        )
        key = (claim.key, len(claim.leavers), taken, tuple(pod.occupant.uid for pod in gone), shut)
        if key not in self._known:
            self.asked += 1
            prepare = self.beside(claim, there, gone)
            avoided = claim.avoided | shut
            self._known[key] = find_seats(self.engine, claim.leavers, avoided, claim.key, self.now, prepare)
        return self._known[key]

    def beside(
        self,
        claim: RelocationRequest,
        shares: Iterable[tuple[RelocationRequest, SeatGrant]],
        gone: Sequence[Candidate] = (),
    ) -> Callable[[Trial], None]:
        """Return what makes a copy show the room beside what others get."""
        came, left = placed(self.engine, shares)

        def prepare(trial: Trial) -> None:
            claim.prepare(trial)
            trial.remove([*left, *gone])
            trial.restore(came)

        return prepare

    def still(self, claim: RelocationRequest, share: SeatGrant, leaving: Sequence[MovingPod]) -> bool:
        """Return whether seats are still good, on the nodes that were found, once those are gone who leave first.

        ``leaving`` whoever leaves, for others as well.
        """
        engine, row_of = self.engine, self.engine.world.nodes.row_of
        if not all(node in row_of and node not in claim.avoided for node in share.seats.values()):
            return False
        there = {one.member.uid: one for one in leaving if _is_there(engine, one)}
        if any(one.member.uid not in there for one in share.others):
            return False
        rows = {row_of[node] for node in share.seats.values()}

        def prepare(trial: Trial) -> None:
            claim.prepare(trial)
            trial.remove(as_candidate(one) for one in there.values())
            nodes = trial.planner.nodes
            free = np.maximum(nodes.allocatable - nodes.requested, 0)
            elsewhere = np.array([row for row in range(len(free)) if row not in rows], np.int64)
            nodes.charge_all(elsewhere, free[elsewhere])

        return bool(find_seats(engine, claim.leavers, claim.avoided, claim.key, self.now, prepare))


def _is_there(engine: Engine, one: MovingPod) -> bool:
    entry = engine.world.ledger.get(one.member.uid)
    return entry is not None and entry.row == one.entry.row


def can_be(engine: Engine, shares: Sequence[tuple[RelocationRequest, SeatGrant]]) -> bool:
    """Return whether no node would hold more than it has: one may have a seat that others leave for another."""
    came, left = placed(engine, shares)
    left += [as_candidate(one) for claim, share in shares if share.whole for one in claim.rest]
    nodes, held = engine.world.nodes, dict[int, dict[int, int]]()
    for pods, change in ((came, 1), (left, -1)):
        for pod in pods:
            row = held.setdefault(pod.row, {})
            for column, amount in pod.amounts:
                row[column] = row.get(column, 0) + change * amount
    return all(
        more <= 0 or more <= nodes.allocatable[row, column] - nodes.requested[row, column]
        for row, columns in held.items()
        for column, more in columns.items()
    )


def placed(
    engine: Engine, shares: Iterable[tuple[RelocationRequest, SeatGrant]]
) -> tuple[list[Candidate], list[Candidate]]:
    """Return who comes, where it will be, and who leaves first, where it is: by what some Migrations get."""
    row_of = engine.world.nodes.row_of
    came: list[Candidate] = []
    left: list[Candidate] = []
    for claim, share in shares:
        moving = claim.whole.leavers if share.whole else claim.leavers
        came += [
            replace(as_candidate(one), row=row_of[share.seats[one.member.uid]])
            for one in moving
            if one.member.uid in share.seats
        ]
        came += [replace(as_candidate(one), row=row_of[share.to[one.member.uid]]) for one in share.others]
        left += [as_candidate(one) for one in share.others]
    return came, left
