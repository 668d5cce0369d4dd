"""Finds seats for the replacements of pods that must move, on a copy of the state.

The ordinary planner places them, with the pods gone and the avoided nodes full. Members of a gang go to the leaves
of the other members, or to the nearest leaves that the size rule allows. All other rules apply, too. The state itself
does not change.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from topo_scheduler.api.migrations import Migration, Move, SeatDevice
from topo_scheduler.api.text import few_for
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.preemption.freed_devices import NominatedDevices, choose_freed, nominated
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, Candidate
from topo_scheduler.scheduling.reserving.replacements import ReservedSeat, requests_of
from topo_scheduler.scheduling.reserving.seat_devices import devices_to_hold
from topo_scheduler.scheduling.rules.interpod_filters import looks_around
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.ledger.ledger import LedgerEntry
from topo_scheduler.state.nodes.resources import Amounts
from topo_scheduler.state.pods.victim_info import VictimInfo
from topo_scheduler.state.pods.workloads import Member, MembersByClass, Stage, Workload
from topo_scheduler.state.topology.fabric import Path

_UNKNOWN_OCCUPANT: Final = VictimInfo("", "", "", 0, 0.0, 0.0, terminating=False, fixed=True)


@dataclass(frozen=True, slots=True)
class MovingPod:
    """A pod that is to move, with its workload and what it holds."""

    workload: Workload
    member: Member
    entry: LedgerEntry


def find_moving_pod(view: SchedulerView, uid: str) -> MovingPod | None:
    """Return a bound pod of this scheduler as a moving pod; None for any other pod.

    A pod that was created with its node is none, whatever it names as its scheduler: its user chose the node.
    """
    known_pod, entry = view.member(uid), view.entry(uid)
    if known_pod is None or entry is None or entry.created_there or known_pod[1].stage is not Stage.BOUND:
        return None
    return MovingPod(known_pod[0], known_pod[1], entry)


def find_moving_pods(view: SchedulerView, uids: Iterable[str]) -> list[MovingPod]:
    """Return those of some pods that are bound pods of this scheduler."""
    return [pod for uid in uids if (pod := find_moving_pod(view, uid)) is not None]


def by_workload(pods: Iterable[MovingPod]) -> dict[str, list[MovingPod]]:
    """Return pods by the id of their workload."""
    groups: dict[str, list[MovingPod]] = {}
    for pod in pods:
        groups.setdefault(pod.workload.id, []).append(pod)
    return groups


def unread_pod(view: SchedulerView, uid: str) -> PodRef | None:
    """Return a bound pod of this scheduler of which this process knows too little to move it; None for any other pod.

    An earlier process placed such a pod.
    """
    entry, pod = view.entry(uid), find_moving_pod(view, uid)
    occupant = entry.occupant if entry is not None else None
    placed = entry is not None and not entry.created_there
    if occupant is None or not placed or occupant.fixed or occupant.scheduler != view.scheduler_name:
        return None
    known = pod is not None and bool(pod.member.cls.amounts)
    return None if known else PodRef(occupant.namespace, occupant.name, uid)


def unread_pods(view: SchedulerView, uids: Iterable[str]) -> list[PodRef]:
    """Return those of some pods of which this process knows too little to move them; see `unread_pod`."""
    return [pod for uid in uids if (pod := unread_pod(view, uid)) is not None]


def home_leaves(view: SchedulerView, moving_pods: Sequence[MovingPod]) -> set[Path]:
    """Return the leaves of the members of a gang that stay on their nodes."""
    gang, going = moving_pods[0].workload, {pod.member.uid for pod in moving_pods}
    stay = (member for member in gang.members.values() if member.stage is not Stage.PENDING and member.uid not in going)
    return {leaf for member in stay if (leaf := view.leaf_of(member.node)) is not None}


def pod_names(view: SchedulerView, moving_pods: Sequence[MovingPod], namespace: str) -> str:
    """Return the names of pods, shortened for messages to the users of a namespace."""
    return few_for([pod.member.key for pod in moving_pods], view.reader(namespace), "pod")


def moves_of(view: SchedulerView, moving_pods: Sequence[MovingPod]) -> list[Move]:
    """Return the moves of pods as a Migration stores them, without targets; in order of rank and name."""
    ordered = sorted(moving_pods, key=lambda pod: (pod.member.index is None, pod.member.index or 0, pod.member.name))
    return [move_of(view, pod.workload, pod.member, pod.entry.amounts, from_=pod.entry.node) for pod in ordered]


def move_of(
    view: SchedulerView, workload: Workload, member: Member, amounts: Amounts, *, from_: str = "", to: str = ""
) -> Move:
    """Return the move of a pod as a Migration stores it. ``amounts`` are what its seat holds."""
    return Move(
        pod=member.name,
        uid=member.uid,
        workload=workload.id,
        controller=workload.controller,
        gang=workload.gang,
        index=member.index,
        series=member.known_series,
        priority=workload.priority,
        requests=requests_of(view.resource_names, amounts),
        from_=from_,
        to=to,
    )


def seat_of(migration: Migration, move: Move) -> ReservedSeat:
    """Return the seat that a move of a Migration holds."""
    return ReservedSeat(
        migration.key,
        move.uid,
        move.to,
        migration.metadata.namespace,
        move.workload,
        move.controller,
        move.gang,
        move.index,
        move.priority,
        tuple(sorted(move.requests.items())),
        tuple(move.devices),
        move.series,
    )


def same_place(move: Move, member: Member) -> bool:
    """Return whether a member of the same workload or controller has the index and series of the pod that moves."""
    return move.index == member.index and move.series in (None, member.known_series)


def find_seats(
    view: SchedulerView,
    moving_pods: Sequence[MovingPod],
    avoided: Collection[str],
    migration: str,
    now: float,
    prepare: Callable[[Trial], None] = lambda _: None,
) -> Mapping[str, str]:
    """Return a node for each moving pod, by uid; empty if not all of them fit.

    Args:
        view: provides the state.
        moving_pods: pods of one workload, or single pods of one controller.
        avoided: nodes that are no target.
        migration: key of the Migration, whose own seats do not count.
        now: seconds.
        prepare: changes the copy of the state on which the planner runs.
    """
    seats: dict[str, str] = {}
    neighbours = any(looks_around(pod.member.cls) for pod in moving_pods) or view.planning.pods_repel
    trial = trial_without(view, moving_pods, avoided, migration, now, neighbours=neighbours)
    prepare(trial)
    whole_gang = moving_pods[0].workload.gang
    for group in [moving_pods] if whole_gang else [[pod] for pod in moving_pods]:
        rows = place_group(view, trial, group)
        if rows is None:
            return {}
        seats |= {pod.member.uid: view.nodes.names[row] for pod, row in zip(group, rows, strict=True)}
    return seats


def trial_without(
    view: SchedulerView,
    moving_pods: Sequence[MovingPod],
    avoided: Collection[str],
    migration: str,
    now: float,
    *,
    neighbours: bool,
) -> Trial:
    """Return a copy of the state without the pods, with avoided nodes full, and with nominations and seats counted."""
    workload, own = moving_pods[0].workload, f"seat:{migration}:"
    return view.planning.trial(
        (as_candidate(pod) for pod in moving_pods if pod.entry.row >= 0),
        avoided,
        now,
        priority=workload.priority,
        mine=lambda uid: uid.startswith(own) or uid in workload.members,
        neighbours=neighbours,
        devices=any(pod.member.cls.claims for pod in moving_pods),
    )


def place_group(view: SchedulerView, trial: Trial, group: Sequence[MovingPod]) -> list[int] | None:
    """Place a group of pods together on the trial; return the row of each pod, or None without room."""
    try:
        groups, query = groups_and_query(view, group)
        placement = trial.place(query)
    except PluginError:
        return None
    if placement is None or _take_devices(trial, groups, placement.rows) is None:
        return None
    seats = place_members(groups, placement)
    rows = [seats[pod.member.uid] for pod in group]
    trial.restore(replace(as_candidate(pod), row=row) for pod, row in zip(group, rows, strict=True))
    return rows


def _take_devices(trial: Trial, groups: MembersByClass, group_rows: Sequence[Sequence[int]]) -> NominatedDevices | None:
    """Choose devices for the claims of placed pods, and count them as used; None if not all pods get theirs."""
    if trial.inventory is None or not any(cls.claims for cls, _ in groups):
        return {}
    chosen = choose_freed(trial.planner, groups, group_rows)
    if chosen is None:
        return None
    taken = nominated(chosen)
    for uid, allocations in taken.items():
        trial.count_devices(uid, allocations, counts=True)
    return taken


def devices_of_seats(
    view: SchedulerView,
    moving_pods: Sequence[MovingPod],
    targets: Mapping[str, str],
    migration: str,
    now: float,
) -> Mapping[str, list[SeatDevice]] | None:
    """Return devices for the claims of the replacements of pods on their targets, by uid; none for pods without claims.

    None if they can't all have their devices there now. Arguments are as for `find_seats`.
    """
    if not any(pod.member.cls.claims for pod in moving_pods):
        return {}
    trial = trial_without(view, moving_pods, (), migration, now, neighbours=False)
    by_pod: dict[str, list[SeatDevice]] = {}
    for group in by_workload(moving_pods).values():
        try:
            groups, _ = groups_and_query(view, group)
        except PluginError:
            return None
        rows = [[view.nodes.row_of[targets[member.uid]] for member in members] for _, members in groups]
        taken = _take_devices(trial, groups, rows)
        if taken is None:
            return None
        for uid, allocations in taken.items():
            by_pod[uid] = devices_to_hold(allocations)
    return by_pod


def groups_and_query(view: SchedulerView, group: Sequence[MovingPod]) -> tuple[MembersByClass, PlacementQuery]:
    """Return the groups and the query for pods of one workload, as they are once these pods are gone."""
    members, rows = [pod.member for pod in group], [pod.entry.row for pod in group]
    return view.planning.replacement_query(group[0].workload, members, rows)


def place_members(groups: MembersByClass, placement: Placement) -> dict[str, int]:
    """Return the row of each member, by uid."""
    return {
        member.uid: row
        for (_, members), rows in zip(groups, placement.rows, strict=True)
        for member, row in zip(members, rows, strict=True)
    }


def as_candidate(pod: MovingPod) -> Candidate:
    """Return a moving pod as a candidate of a trial."""
    occupant = pod.entry.occupant or replace(_UNKNOWN_OCCUPANT, uid=pod.member.uid)
    return Candidate(occupant, pod.entry.row, pod.entry.amounts, pod.entry.profile, 0, NO_GANG, -1, pod.entry.numa)


def vacant(view: SchedulerView, moves: Sequence[Move]) -> bool:
    """Return whether there is room for seats now, if what the moving pods hold on these nodes counts as free."""
    nodes, names = view.nodes, view.resource_names
    wanted: dict[int, Counter[int]] = {}
    """In integers of any size, by row and column: users may write any amounts."""
    for move in moves:
        of_row = wanted.setdefault(nodes.row_of[move.to], Counter())
        for name, amount in move.requests.items():
            if name in names and names.index(name) < nodes.allocatable.shape[1]:
                of_row[names.index(name)] += amount
    columns = {column for of_row in wanted.values() for column in of_row}
    for move in moves:
        entry = view.entry(move.uid)
        if entry is not None and entry.row in wanted:
            wanted[entry.row].subtract(dict(entry.amounts))
    return all(
        of_row[column] <= int(nodes.allocatable[row, column] - nodes.requested[row, column])
        for row, of_row in wanted.items()
        for column in columns
    )
