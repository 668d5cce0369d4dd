"""Chooses pods to relocate so that a gang keeps its domain when no nodes are free near it.

The cost of a set is the sum over its pods of GPUs (at least 1) times the seconds of work that the pod loses.
A pod loses `RESTART_SECONDS`, and what it ran since its last checkpoint. A grace period above the default counts, too,
as the gang waits for its end. Sets are ordered by highest priority (the lowest first), then by cost, then by size. The
pods of a gang move all together, unless the gang can spare some of them.

- With at most `EXACT_WORKLOADS` movable workloads, the search tries every set of them in that order. For each set it
  places the gang, and then the relocated pods, as in `moving.plan`. The first set that fits is the best one, for the
  placement that the planner finds.
- With more, the search tries the smallest sets of each domain (`moving.plan.by_domain`) in that order. It may miss a
  plan, or the cheapest one.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from topo_scheduler.api.migrations import Migration, MigrationPod, MigrationSpec
from topo_scheduler.api.text import one_for
from topo_scheduler.recovery.model.instructions import CreateMigration
from topo_scheduler.recovery.model.migration_context import MigrationContext
from topo_scheduler.recovery.model.naming import name_for
from topo_scheduler.recovery.model.seating import (
    MovingPod,
    by_workload,
    find_moving_pods,
    groups_and_query,
    place_members,
    trial_without,
    unread_pods,
)
from topo_scheduler.recovery.planning.seat_claims import SeatGrant
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.moving.plan import as_candidates, by_domain, makes_room, seat_again
from topo_scheduler.scheduling.moving.replacement_query import GoneError
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, WHOLE, Candidates
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.scheduling.time_slicing import whole
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.victim_info import DEFAULT_GRACE_SECONDS
from topo_scheduler.state.pods.workloads import MembersByClass

EXACT_WORKLOADS: Final = 10
"""Movable workloads up to which the search tries every set."""
MAX_SETS: Final = 200
"""Sets that are tried at most, of those that make room, if there are more than `EXACT_WORKLOADS` workloads."""
MAX_PODS: Final = 64
"""Pods of a set at most."""
MAX_READ_PODS: Final = 256
"""Pods that are read at most, to learn whether they can move."""
RESTART_SECONDS: Final = 60.0
"""Seconds that a pod needs to get back to its last checkpoint, on any node."""

Key = tuple[int, float, int, tuple[str, ...]]


def cost_of(pod: MovingPod, wall: float) -> float:
    """Return the cost of moving a pod, in GPU-seconds. ``wall`` is in seconds since the epoch."""
    occupant, interval = pod.entry.occupant, pod.workload.request.checkpoint_interval
    ran = max(0.0, wall - occupant.started) if occupant is not None else 0.0
    ending = max(0.0, occupant.grace - DEFAULT_GRACE_SECONDS) if occupant is not None else 0.0
    return max(1, pod.entry.amount(GPU)) * (RESTART_SECONDS + ending + (min(ran, interval) if interval else ran))


def restart_cost(survivors: Sequence[MovingPod]) -> float:
    """Return the cost of moving survivors of a broken gang, in GPU-seconds; what they ran is lost in any case."""
    return sum(max(1, pod.entry.amount(GPU)) * RESTART_SECONDS for pod in survivors)


def look_for_room(
    view: SchedulerView,
    moving_pods: Sequence[MovingPod],
    avoided: Collection[str],
    taken: Collection[str],
    migration: str,
    now: float,
    wall: float,
    prepare: Callable[[Trial], None] = lambda _: None,
) -> Iterator[SeatGrant | None]:
    """Search for the cheapest moves that make room for members of a gang.

    Yields None after each slice of the work, and at last the result if there is one.

    Args:
        view: provides the state.
        moving_pods: members of one gang, or one single pod.
        avoided: nodes that are no target.
        taken: uids of pods that move for other reasons.
        migration: key of the Migration, whose own seats do not count.
        now: seconds.
        wall: seconds since the epoch.
        prepare: changes the copy of the state on which the search runs.
    """
    workload = moving_pods[0].workload
    if (len(moving_pods) > 1 and not workload.gang) or not view.planning.budgets_known:
        return
    try:
        candidates = view.planning.movable(workload)
        if not candidates.pods:
            return
        attempts = _attempts(view, candidates, moving_pods, avoided, migration, now, wall)
        prepare(attempts.trial)
        for chosen in _sets(attempts, avoided, taken):
            room = None if chosen is None else attempts.without(chosen)
            yield room
            if room is not None:
                return
    except (PluginError, GoneError):
        return


def check_again(
    view: SchedulerView,
    moving_pods: Sequence[MovingPod],
    avoided: Collection[str],
    migration: str,
    now: float,
    wall: float,
    room: SeatGrant,
) -> SeatGrant | None:
    """Return the same moves for the current state, None if they make no room now; otherwise as `look_for_room`."""
    candidates = view.planning.movable(moving_pods[0].workload)
    number_of = {pod.occupant.uid: number for number, pod in enumerate(candidates.pods)}
    uids = [pod.member.uid for pod in room.relocated]
    if not number_of.keys() >= set(uids):
        return None
    try:
        attempts = _attempts(view, candidates, moving_pods, avoided, migration, now, wall)
        return attempts.without(sorted(number_of[uid] for uid in uids))
    except (PluginError, GoneError):
        return None


@dataclass(frozen=True, slots=True)
class _RelocationAttempts:
    """Attempts to place a gang on a copy of the state, each without some candidates. ``wall``: epoch seconds."""

    view: SchedulerView
    candidates: Candidates
    groups: MembersByClass
    query: PlacementQuery
    trial: Trial
    wall: float

    def without(self, chosen: Sequence[int]) -> SeatGrant | None:
        """Return the seats of the gang and the targets of the pods if these candidates leave; None without room."""
        trial, pods = self.trial, [self.candidates.pods[number] for number in chosen]
        trial.remove(pods)
        try:
            placement = trial.place(self.query)
            if placement is None:
                return None
            gang_pods = as_candidates(self.query, placement, ())
            trial.restore(gang_pods)
            try:
                rows = whole(seat_again(trial, self.candidates, chosen, self.view.planning.query_again))
            finally:
                trial.remove(gang_pods)
        finally:
            trial.restore(pods)
        # If a pod could stay on its node, a smaller set makes room, too.
        if rows is None or any(row == pod.row for pod, row in zip(pods, rows, strict=True)):
            return None
        names = self.view.nodes.names
        relocated = moving_pods_of(self.view, self.candidates, chosen)
        seats = {uid: names[row] for uid, row in place_members(self.groups, placement).items()}
        targets = {pod.occupant.uid: names[row] for pod, row in zip(pods, rows, strict=True)}
        return SeatGrant(seats, relocated, targets, key_of(relocated, self.wall)[1])


def _attempts(
    view: SchedulerView,
    candidates: Candidates,
    moving_pods: Sequence[MovingPod],
    avoided: Collection[str],
    migration: str,
    now: float,
    wall: float,
) -> _RelocationAttempts:
    groups, query = groups_and_query(view, moving_pods)
    trial = trial_without(view, moving_pods, avoided, migration, now, neighbours=True)
    return _RelocationAttempts(view, candidates, groups, query, trial, wall)


def unread_neighbours(view: SchedulerView, moving_pods: Sequence[MovingPod]) -> list[PodRef]:
    """Return pods in the leaves of a gang of which this process does not know yet whether they can move."""
    gang = moving_pods[0].workload
    homes = {*(moving_pod.entry.node for moving_pod in moving_pods), *(member.node for member in gang.members.values())}
    leaves = {view.leaf_of(node) for node in homes} - {None}
    layout = view.layout
    pods: list[PodRef] = []
    for leaf, path in enumerate(layout.paths):
        if path not in leaves:
            continue
        for row in layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]].tolist():
            pods += unread_pods(view, view.pods_on(view.nodes.names[row]))
    return pods[:MAX_READ_PODS]


def _sets(
    attempts: _RelocationAttempts, avoided: Collection[str], taken: Collection[str]
) -> Iterator[tuple[int, ...] | None]:
    """Yield None after each slice of the work, then sets of candidates, the best first."""
    view, candidates, trial, query = attempts.view, attempts.candidates, attempts.trial, attempts.query
    layout, names = view.layout, view.nodes.names
    barred = {
        number for number, pod in enumerate(candidates.pods) if names[pod.row] in avoided or pod.occupant.uid in taken
    }
    units = [unit for unit in units_of(candidates) if barred.isdisjoint(unit)]
    if len(units) <= EXACT_WORKLOADS:
        may_make_room = makes_room(trial, query, layout, candidates)
        sets = []
        for chosen in every_set(candidates, units):
            if may_make_room(chosen):
                sets.append(chosen)
            yield None
    else:
        sets = []
        for numbers in by_domain(trial, query, layout, candidates, MAX_PODS):
            if numbers is None:
                yield None
            elif barred.isdisjoint(numbers):
                sets.append(tuple(numbers))
        sets = sets[:MAX_SETS]
    yield from sorted(sets, key=lambda chosen: key_of(moving_pods_of(view, candidates, chosen), attempts.wall))


def every_set(candidates: Candidates, units: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield each non-empty set of candidates that can leave, out of these units."""
    sets = {
        tuple(sorted({number for unit in chosen_units for number in unit}))
        for size in range(1, len(units) + 1)
        for chosen_units in combinations(units, size)
    }
    yield from (chosen for chosen in sets if candidates.closed(chosen) == list(chosen))


def units_of(candidates: Candidates) -> list[tuple[int, ...]]:
    """Return the units that move together: a single pod, a whole gang, or a member that its gang can spare."""
    units: list[tuple[int, ...]] = [(number,) for number, pod in enumerate(candidates.pods) if pod.gang == NO_GANG]
    for gang in candidates.gangs:
        if gang.rule == WHOLE:
            units.append(gang.members)
        if gang.slack > 0:
            units += [(number,) for number in gang.members]
    return list(dict.fromkeys(units))


def moving_pods_of(view: SchedulerView, candidates: Candidates, chosen: Sequence[int]) -> tuple[MovingPod, ...]:
    """Return candidates as moving pods."""
    return tuple(find_moving_pods(view, (candidates.pods[number].occupant.uid for number in chosen)))


def key_of(pods: Sequence[MovingPod], wall: float) -> Key:
    """Return the sort key of a set: highest priority, cost, size, names. ``wall`` is in seconds since the epoch."""
    priority = max((pod.entry.occupant.priority for pod in pods if pod.entry.occupant is not None), default=0)
    return priority, sum(cost_of(pod, wall) for pod in pods), len(pods), tuple(sorted(pod.member.key for pod in pods))


def helpers_of(
    context: MigrationContext, migration: Migration, leaving: Sequence[MovingPod], *, lent: bool = False
) -> list[CreateMigration]:
    """Return the Migrations of the pods that make room for another: one for each gang, and one for each single pod.

    ``lent`` is whether the pods give back spare nodes.
    """
    out = []
    for pods in by_workload(leaving).values():
        namespace = pods[0].workload.namespace
        beneficiary = one_for(migration.key, context.view.reader(namespace), "Migration")
        spec = MigrationSpec(
            cause=f"leaves a spare node to {beneficiary}" if lent else f"makes room for {beneficiary}",
            makes_room_for=migration.key,
            leave_spares=lent,
            pods=[MigrationPod(pod.member.name, pod.member.uid) for pod in pods],
        )
        create = CreateMigration(namespace, context.finished.fresh_name(namespace, name_for(pods)), spec)
        context.ask_for_room(create)
        out.append(create)
    return out
