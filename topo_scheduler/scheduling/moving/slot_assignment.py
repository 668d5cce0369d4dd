"""Places single pods with claims on a trial together, each with the very devices that it gets.

The search tries every device that a pod may have on the nodes where devices come free. Elsewhere it tries those of the
first few nodes with room: pods that are placed together hardly compete there. A pod whose claims ask for more than one
device gets the devices that the allocator finds first on each node.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.api.devices import Allocation
from topo_scheduler.scheduling.devices.allocation import allocation_of
from topo_scheduler.scheduling.devices.allocator import (
    DeviceAllocationError,
    DeviceCandidate,
    DeviceCandidates,
    allocate,
)
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery, ClaimQueryError
from topo_scheduler.scheduling.devices.device_order import in_order
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.scheduling.devices.pod_count import used_of
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.reserved_placement import place_in_seats
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, Candidate
from topo_scheduler.state.devices.device_survey import counters_left
from topo_scheduler.state.devices.inventory import DevicesInUse
from topo_scheduler.state.devices.pools import DeviceId
from topo_scheduler.state.nodes.resources import Amounts
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.victim_info import VictimInfo
from topo_scheduler.state.pods.workloads import MembersByClass
from topo_scheduler.state.topology.fabric import Layout

MAX_OTHER_NODES: Final = 4
"""Nodes that a pod is tried on, beside those where devices come free."""
MAX_TRIED_PODS: Final = 256
"""Pods with devices that one assignment tries on nodes at most."""
TRY_OPERATIONS: Final = 200
"""Operations of one try, apart from the search for devices."""

_NOBODY: Final = VictimInfo("", "", "", 0, 0.0, 0.0, terminating=False, fixed=True)


@dataclass(frozen=True, slots=True)
class PodToSeat:
    """A single pod that needs a place. ``groups`` and ``query`` are of it alone; ``amounts`` are what it holds then."""

    uid: str
    groups: MembersByClass
    query: PlacementQuery
    amounts: Amounts
    profile: Profile | None


@dataclass(frozen=True, slots=True)
class SlotSeat:
    """The row of a pod, and the devices that it gets there."""

    row: int
    devices: tuple[DeviceId, ...] = ()


@dataclass(frozen=True, slots=True)
class AssignedPod:
    """What a pod holds on the trial."""

    seat: SlotSeat
    allocations: tuple[Allocation, ...]
    placement: Placement


def assign_slots(
    trial: Trial, requests: Sequence[PodToSeat], freed: Sequence[int], layout: Layout, now: float
) -> list[AssignedPod] | None:
    """Return the row and the devices of each pod, in the order of the requests; None if the search finds none.

    Args:
        trial: with devices, without the pods that leave. Afterwards it is as before.
        requests: the pods. The first is placed on one of the rows ``freed``.
        freed: rows on which devices come free, in order.
        layout: the fabric.
        now: seconds.

    Raises:
        OverBudgetError: the search takes more operations than the active budget has left.
        PluginError: a plugin failed, so there is no result.
    """
    return _JointAssignment(trial, requests, freed, layout, now).run()


def has_devices(trial: Trial, row: int, devices: Sequence[DeviceId]) -> bool:
    """Return whether all of some devices are free on a row of a trial, also if they are used together."""
    if trial.devices is None:
        return not devices
    published = {device.id: (device, pool) for pool in trial.devices.pools_of(row) for device in pool.devices}
    charge(TRY_OPERATIONS + len(published) // 2)
    if any(id_ not in published or not published[id_][1].usable for id_ in devices):
        return False
    pools = {published[id_][1].id: published[id_][1] for id_ in devices}
    used = used_of(trial.devices.inventory, pools.values())
    left = {pool: counters_left(pools[pool], used) for pool in pools}
    for id_ in devices:
        if id_ in used.whole or id_ in used.shares:
            return False
        for counter, amount in published[id_][0].counters.items():
            left[id_[:2]][counter] -= amount
    return all(amount >= 0 for of_pool in left.values() for amount in of_pool.values())


class _JointAssignment:
    """One search with backtracking; see `assign_slots`."""

    def __init__(
        self, trial: Trial, requests: Sequence[PodToSeat], freed: Sequence[int], layout: Layout, now: float
    ) -> None:
        self._trial, self._requests, self._freed, self._layout, self._now = trial, requests, freed, layout, now
        self._tries = 0

    def run(self) -> list[AssignedPod] | None:
        """Search."""
        return self._from(0)

    def _from(self, position: int) -> list[AssignedPod] | None:
        if position == len(self._requests):
            return []
        request = self._requests[position]
        for row in self._rows(request, first=position == 0):
            for allocations, devices in self._options(request, row):
                if self._tries >= MAX_TRIED_PODS:
                    return None
                self._tries += 1
                charge(TRY_OPERATIONS)
                placement = self._placed(request, row)
                if placement is None:
                    break  # the node refuses the pod, whatever its devices
                self._hold(request, row, allocations, 1)
                try:
                    rest = self._from(position + 1)
                finally:
                    self._hold(request, row, allocations, -1)
                if rest is not None:
                    return [AssignedPod(SlotSeat(row, devices), allocations, placement), *rest]
        return None

    def _rows(self, request: PodToSeat, *, first: bool) -> list[int]:
        """Return the rows to try for a pod: those where devices come free, and the first others."""
        view = self._trial.planner.views.get(request.groups[0][0])
        fits = np.flatnonzero(view.fit > 0).tolist()
        freed = [row for row in self._freed if view.fit[row] > 0]
        if first:
            return freed
        others = (row for row in fits if row not in self._freed)
        return [*freed, *(row for row, _ in zip(others, range(MAX_OTHER_NODES), strict=False))]

    def _placed(self, request: PodToSeat, row: int) -> Placement | None:
        """Return the placement of a pod on a row, validated by all rules."""
        members = [members for _, members in request.groups]
        return place_in_seats(
            self._trial.planner, request.query, members, {members[0][0].uid: row}, self._layout, self._now
        )

    def _hold(self, request: PodToSeat, row: int, allocations: Sequence[Allocation], change: int) -> None:
        pod = Candidate(_NOBODY, row, request.amounts, request.profile, 0, NO_GANG, -1, request.groups[0][0].numa)
        (self._trial.restore if change > 0 else self._trial.remove)([pod])
        self._trial.count_devices(request.uid, allocations, counts=change > 0)

    # ------------------------------------------------------------ devices

    def _options(self, request: PodToSeat, row: int) -> Iterator[tuple[tuple[Allocation, ...], tuple[DeviceId, ...]]]:
        """Yield the devices that a pod may get on a row, best first."""
        devices = self._trial.devices
        cls = request.groups[0][0]
        claims = devices.claims_at(cls.claims, row) if devices is not None else ()
        if devices is None or not claims:
            yield (), ()
            return
        try:
            asked, candidates = devices.candidates(claims, row)
        except ClaimQueryError:
            return
        wanted = [
            query
            for claim, query in zip(claims, asked, strict=True)
            if claim.key is None or devices.inventory.allocation_of(claim.key) is None
        ]
        used = used_of(devices.inventory, candidates.pools)
        ordered = in_order(candidates, used)
        for choice in _choices(ordered, wanted, used):
            option = _allocated(devices, choice, wanted, used, row)
            if option is not None:
                yield option


def _choices(
    candidates: DeviceCandidates, claims: Sequence[ClaimQuery], used: DevicesInUse
) -> Iterator[DeviceCandidates]:
    """Yield candidates with one device each that may be free, if the claims ask for one; otherwise all of them once."""
    requests = [request for claim in claims for request in claim.requests]
    if len(requests) != 1 or len(requests[0]) != 1 or requests[0][0].count != 1:
        yield candidates
        return
    query = requests[0][0]
    left = {pool.id: counters_left(pool, used) for pool in candidates.pools}

    def may_be_free(candidate: DeviceCandidate) -> bool:
        device, left_of_pool = candidate.device, left[candidate.pool.id]
        return device.id not in used.whole and all(left_of_pool[key] >= part for key, part in device.counters.items())

    for candidate in candidates.of(query):
        if candidate.device.shared or query.admin_access or may_be_free(candidate):
            yield candidates.reordered({query: [candidate]})


def _allocated(
    devices: NodeDevices, candidates: DeviceCandidates, claims: Sequence[ClaimQuery], used: DevicesInUse, row: int
) -> tuple[tuple[Allocation, ...], tuple[DeviceId, ...]] | None:
    """Return allocations with their devices; None if the devices are not free, or are shared with other pods."""
    try:
        grants = allocate(candidates, claims, used)
    except DeviceAllocationError:
        return None
    if grants is None:
        return None
    given = [grant for of_claim in grants for grant in of_claim if not grant.query.admin_access]
    if any(grant.part is not None for grant in given):
        return None
    node = devices.node_names[row]
    allocations = tuple(
        allocation_of(query, of_claim, "", node) for query, of_claim in zip(claims, grants, strict=True)
    )
    return allocations, tuple(grant.device.id for grant in given)
