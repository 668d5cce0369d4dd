"""Requests of several Migrations that wait for seats at once, their grants, and the joint cost of these grants.

The cost compares, in this order: the pods without a seat, those of the highest priority first; the moves that make
room, and restarts of whole gangs elsewhere; the distance of seats from the rest of their gang.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from topo_scheduler.recovery.model.seating import MovingPod, as_candidate, find_seats, home_leaves
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidate
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.topology.fabric import Path

Worth = tuple[tuple[int, ...], float, int]
"""Pods without a seat, by priority, highest first; cost in GPU-seconds; levels between seats and the other members."""


@dataclass(frozen=True, slots=True)
class RelocationRequest:
    """What a Migration requests.

    ``avoided`` are nodes that are no target. ``prepare`` changes a copy of the state to the room that it may use.
    ``other_members`` are those of the gang, if the whole gang may restart elsewhere. ``may_relocate`` is whether other
    pods may be relocated for it.
    """

    key: str
    moving_pods: tuple[MovingPod, ...]
    avoided: frozenset[str]
    prepare: Callable[[Trial], None]
    other_members: tuple[MovingPod, ...] = ()
    may_relocate: bool = False

    @property
    def priority(self) -> int:
        """Return the priority of the pods."""
        return self.moving_pods[0].workload.priority

    @property
    def whole(self) -> "RelocationRequest":
        """Return the same request for the whole gang."""
        return replace(self, moving_pods=(*self.moving_pods, *self.other_members), other_members=())


@dataclass(frozen=True, slots=True)
class SeatGrant:
    """What a Migration gets: a node for each pod by uid; empty if there are no seats.

    ``relocated`` pods move first, to the nodes ``targets`` by uid. ``whole`` is whether the whole gang moves. ``cost``
    is the cost of either, in GPU-seconds.
    """

    seats: Mapping[str, str] = field(default_factory=dict)
    relocated: tuple[MovingPod, ...] = ()
    targets: Mapping[str, str] = field(default_factory=dict)
    cost: float = 0.0
    whole: bool = False


Shares = Mapping[str, SeatGrant]
"""Grants by the key of the Migration."""
NOTHING = SeatGrant()


def joint_cost(view: SchedulerView, claims: Sequence[RelocationRequest], shares: Shares) -> Worth:
    """Return the joint cost of all grants: the smaller, the better."""
    lack = pods_without_seats(claims, [claim.key for claim in claims if shares[claim.key].seats])
    cost = sum(shares[claim.key].cost for claim in claims)
    far = sum(distance(view, claim, shares[claim.key].seats) for claim in claims if not shares[claim.key].whole)
    return lack, cost, far


def pods_without_seats(claims: Sequence[RelocationRequest], seated: Iterable[str]) -> tuple[int, ...]:
    """Return the number of pods without seats, by priority, the highest first."""
    levels, served = sorted({claim.priority for claim in claims}, reverse=True), set(seated)
    without = [claim for claim in claims if claim.key not in served]
    return tuple(sum(len(claim.moving_pods) for claim in without if claim.priority == level) for level in levels)


def distance(view: SchedulerView, claim: RelocationRequest, seats: Mapping[str, str]) -> int:
    """Return the levels between each seat and the nearest leaf of the gang, summed; 0 if the gang runs nowhere else."""
    homes = home_leaves(view, claim.moving_pods)
    if not homes:
        return 0
    return sum(min(_levels(home, view.leaf_of(node) or ()) for home in homes) for node in seats.values())


def _levels(path: Path, other_path: Path) -> int:
    common = takewhile(lambda pair: pair[0] == pair[1], zip(path, other_path, strict=False))
    return len(path) - sum(1 for _ in common)


class Copies:
    """Queries the planner on copies of the state that contain the seats of other Migrations; counts the queries."""

    def __init__(self, view: SchedulerView, now: float) -> None:
        self.view = view
        self.now = now
        self.queries = 0
        self._results: dict[Hashable, Mapping[str, str]] = {}

    def seats(
        self,
        claim: RelocationRequest,
        shares: Iterable[tuple[RelocationRequest, SeatGrant]],
        departed: Sequence[Candidate] = (),
        closed: frozenset[str] = frozenset(),
    ) -> Mapping[str, str]:
        """Return seats beside those of other Migrations, once ``departed`` pods are gone, outside ``closed`` nodes."""
        seated = [(other, share) for other, share in shares if share.seats]
        taken = frozenset(
            (other.key, *sorted(share.seats.items()), *sorted(share.targets.items())) for other, share in seated
        )
        key = (claim.key, len(claim.moving_pods), taken, tuple(pod.occupant.uid for pod in departed), closed)
        if key not in self._results:
            self.queries += 1
            prepare = self.beside(claim, seated, departed)
            avoided = claim.avoided | closed
            self._results[key] = find_seats(self.view, claim.moving_pods, avoided, claim.key, self.now, prepare)
        return self._results[key]

    def beside(
        self,
        claim: RelocationRequest,
        shares: Iterable[tuple[RelocationRequest, SeatGrant]],
        departed: Sequence[Candidate] = (),
    ) -> Callable[[Trial], None]:
        """Return a function that changes a copy of the state to the room that is left beside other grants."""
        arriving, leaving = arrivals_and_departures(self.view, shares)

        def prepare(trial: Trial) -> None:
            claim.prepare(trial)
            trial.remove([*leaving, *departed])
            trial.restore(arriving)

        return prepare

    def still_valid(self, claim: RelocationRequest, share: SeatGrant, leaving: Sequence[MovingPod]) -> bool:
        """Return whether seats still fit on their nodes, once the relocated pods are gone.

        ``leaving`` are all relocated pods, those for other Migrations included.
        """
        view, row_of = self.view, self.view.nodes.row_of
        if not all(node in row_of and node not in claim.avoided for node in share.seats.values()):
            return False
        present = {pod.member.uid: pod for pod in leaving if _is_there(view, pod)}
        if any(pod.member.uid not in present for pod in share.relocated):
            return False
        rows = {row_of[node] for node in share.seats.values()}

        def prepare(trial: Trial) -> None:
            claim.prepare(trial)
            trial.remove(as_candidate(pod) for pod in present.values())
            nodes = trial.planner.nodes
            free = np.maximum(nodes.allocatable - nodes.requested, 0)
            elsewhere = np.array([row for row in range(len(free)) if row not in rows], np.int64)
            nodes.charge_all(elsewhere, free[elsewhere])

        return bool(find_seats(view, claim.moving_pods, claim.avoided, claim.key, self.now, prepare))


def _is_there(view: SchedulerView, pod: MovingPod) -> bool:
    entry = view.entry(pod.member.uid)
    return entry is not None and entry.row == pod.entry.row


def fits_capacity(view: SchedulerView, shares: Sequence[tuple[RelocationRequest, SeatGrant]]) -> bool:
    """Return whether no node is overcommitted: a Migration may have a seat that a pod leaves for another Migration."""
    arriving, leaving = arrivals_and_departures(view, shares)
    leaving += [as_candidate(pod) for claim, share in shares if share.whole for pod in claim.other_members]
    nodes, held = view.nodes, dict[int, dict[int, int]]()
    for pods, change in ((arriving, 1), (leaving, -1)):
        for pod in pods:
            row = held.setdefault(pod.row, {})
            for column, amount in pod.amounts:
                row[column] = row.get(column, 0) + change * amount
    return all(
        more <= 0 or more <= nodes.allocatable[row, column] - nodes.requested[row, column]
        for row, columns in held.items()
        for column, more in columns.items()
    )


def arrivals_and_departures(
    view: SchedulerView, shares: Iterable[tuple[RelocationRequest, SeatGrant]]
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the pods that arrive on their targets, and the relocated pods on their current nodes, for some grants."""
    row_of = view.nodes.row_of
    arriving: list[Candidate] = []
    leaving: list[Candidate] = []
    for claim, share in shares:
        moving = claim.whole.moving_pods if share.whole else claim.moving_pods
        arriving += [
            replace(as_candidate(pod), row=row_of[share.seats[pod.member.uid]])
            for pod in moving
            if pod.member.uid in share.seats
        ]
        arriving += [replace(as_candidate(pod), row=row_of[share.targets[pod.member.uid]]) for pod in share.relocated]
        leaving += [as_candidate(pod) for pod in share.relocated]
    return arriving, leaving
