"""Places with devices: for a pending pod that asks for a MIG slot, and for the pods that leave to free it.

They are planned together: a pod that leaves may go to another slot of its node, or to one that a second pod leaves.
The status of the Migration of the pending pod has the places of all of them. Migrations of the other pods take theirs
from there.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from topo_scheduler.api.migrations import Cause, Migration, Move, OtherPod, Phase, SeatDevice
from topo_scheduler.recovery.model.migration_context import MigrationContext
from topo_scheduler.recovery.model.seating import MovingPod, as_candidate, find_moving_pods, groups_and_query, move_of
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.moving.slot_assignment import PodToSeat, SlotSeat, assign_slots, has_devices
from topo_scheduler.scheduling.moving.slot_search import pending_request
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.devices.pools import DeviceId
from topo_scheduler.state.pods.workloads import Member, Workload


def slot_seats(
    view: SchedulerView,
    workload: Workload,
    member: Member,
    leaving_pods: Sequence[MovingPod],
    avoided: Collection[str],
    migration: str,
    now: float,
) -> Mapping[str, SlotSeat]:
    """Return a place for a pending pod and for each pod that leaves for it, by uid.

    Empty without room for all, and if the pending pod has room without any move.

    Args:
        view: provides the state.
        workload: the pending pod, as a workload of its own.
        member: the same, as a member.
        leaving_pods: pods of no higher priority that would leave their slots.
        avoided: nodes that are no target.
        migration: key of the Migration, whose own seats do not count.
        now: seconds.
    """
    own = f"seat:{migration}:"

    def trial_without(pods: Sequence[MovingPod], priority: int) -> Trial:
        return view.planning.trial(
            map(as_candidate, pods),
            avoided,
            now,
            priority=priority,
            mine=lambda uid: uid.startswith(own) or uid in workload.members,
            devices=True,
        )

    freed = sorted({pod.entry.row for pod in leaving_pods})
    try:
        asked = view.planning.gang_query(workload, [member], now)
        if asked is None:
            return {}
        wanted = pending_request(*asked)
        cls = wanted.groups[0][0]
        if trial_without((), workload.priority).planner.views.get(cls).fit.any():
            return {}
        lowest = min([workload.priority, *(pod.workload.priority for pod in leaving_pods)])
        trial = trial_without(leaving_pods, lowest)
        requests = [wanted, *(_again(view, pod) for pod in leaving_pods)]
        assigned = assign_slots(trial, requests, freed, view.layout, now)
    except PluginError:
        return {}
    if assigned is None:
        return {}
    return {request.uid: pod.seat for request, pod in zip(requests, assigned, strict=True)}


def _again(view: SchedulerView, pod: MovingPod) -> PodToSeat:
    groups, query = groups_and_query(view, [pod])
    return PodToSeat(pod.member.uid, groups, query, pod.entry.amounts, pod.entry.profile)


# ---------------------------------------------------------------- in the status


def move_to_slot(view: SchedulerView, workload: Workload, member: Member, seat: SlotSeat) -> Move:
    """Return the move of the pending pod as its Migration stores it. Only this pod may take the place, as in a gang."""
    move = move_of(view, workload, member, member.cls.amounts, to=view.nodes.names[seat.row])
    return msgspec.structs.replace(move, gang=True, index=None, devices=_written(seat.devices))


def with_places(view: SchedulerView, others: Sequence[OtherPod], seats: Mapping[str, SlotSeat]) -> list[OtherPod]:
    """Return the pods that leave, with their places; those without a place are gone."""
    return [
        msgspec.structs.replace(
            other, to=view.nodes.names[seats[other.uid].row], devices=_written(seats[other.uid].devices)
        )
        for other in others
        if other.uid in seats
    ]


def _written(devices: Sequence[DeviceId]) -> list[SeatDevice]:
    return [SeatDevice(*device) for device in devices]


# ---------------------------------------------------------------- Migrations of pods that leave


def leaves_slot(context: MigrationContext, migration: Migration) -> bool:
    """Return whether pods of a Migration leave a slot for a pending pod, so that their places are planned with it."""
    beneficiary = context.tracked.get(migration.spec.makes_room_for)
    return beneficiary is not None and beneficiary.migration.cause is Cause.PENDING_POD


def planned_places(
    context: MigrationContext, migration: Migration, moving_pods: Sequence[MovingPod], now: float
) -> dict[str, str]:
    """Return the nodes that the pending pod's Migration plans for pods that leave, by uid; empty if one is not free.

    Only the scheduler writes the status in which they are. They count only while that Migration holds its slot.
    """
    places = _planned(context, migration)
    view = context.view
    if not all(pod.member.uid in places for pod in moving_pods):
        return {}
    own = f"seat:{migration.key}:"
    leaving = find_moving_pods(view, places)
    if not leaving:
        return {}
    trial = view.planning.trial(
        map(as_candidate, leaving),
        context.detection.avoided(now),
        now,
        priority=min(pod.workload.priority for pod in leaving),
        mine=lambda uid: uid.startswith(own),
        devices=True,
    )
    row_of = view.nodes.row_of
    for pod in moving_pods:
        place = places[pod.member.uid]
        if place.to not in row_of or not has_devices(trial, row_of[place.to], _ids(place.devices)):
            return {}
    return {pod.member.uid: places[pod.member.uid].to for pod in moving_pods}


def with_planned_devices(context: MigrationContext, migration: Migration, moves: Sequence[Move]) -> list[Move]:
    """Return moves with the devices that the pending pod's Migration plans for them.

    Their places count like that of the pending pod, so that none of the pods that move takes the slot of another one.
    """
    places, beneficiary = _planned(context, migration), context.tracked.get(migration.spec.makes_room_for)
    if beneficiary is None:
        return list(moves)
    priority = max((move.priority for move in beneficiary.migration.status.moves), default=0)
    return [
        msgspec.structs.replace(move, devices=places[move.uid].devices, priority=max(priority, move.priority))
        if move.uid in places
        else move
        for move in moves
    ]


def _planned(context: MigrationContext, migration: Migration) -> dict[str, OtherPod]:
    beneficiary = context.tracked.get(migration.spec.makes_room_for)
    if beneficiary is None or beneficiary.migration.phase is not Phase.RESERVING:
        return {}
    return {other.uid: other for other in beneficiary.migration.status.others if other.to}


def _ids(devices: Sequence[SeatDevice]) -> list[DeviceId]:
    return [device.id for device in devices]
