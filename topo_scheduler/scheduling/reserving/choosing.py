"""Chooses the nodes to reserve for a workload: makes a plan on a copy of the state, and checks that it is still
possible.

The scheduler works on the copy in parts, and makes other decisions between them. If no pod was added or removed since
the plan began, the plan is used as it is. Otherwise the scheduler checks whether the plan is still possible, and if not
plans again.
"""

from collections.abc import Callable, Container, Generator, Hashable, Sequence
from itertools import chain
from typing import Final

import numpy as np

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.waiting import ReservationSpec
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.preemption.freed_devices import choose_freed, nominated
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.queueing.queue_keys import lacking, least_of
from topo_scheduler.scheduling.reserving.ends import Ends
from topo_scheduler.scheduling.reserving.holds import Holds, Reservation
from topo_scheduler.scheduling.reserving.outlook import endings_on, reservation_of
from topo_scheduler.scheduling.reserving.plan import CountingPlanner, Prospect, plan_reservation
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.ledger.claimed_gpus import gpus_in
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE
from topo_scheduler.state.pods.workloads import Member, MembersByClass, Stage, Workload
from topo_scheduler.state.topology.topology_merge import crossed

MAX_STALE_PLANS: Final = 3
"""Maximum number of plans for one answer, if the results are no longer possible."""


def waits(workload: Workload | None) -> bool:
    """Return whether a workload is complete and pending: it has all its pods, and not all of them have a place."""
    if workload is None:
        return False
    pending = workload.at(Stage.PENDING)
    return bool(pending) and not workload.problem and not lacking(workload, pending)


class Choosing:
    """Plans reservations. ``looked`` is the number of pods that were examined for the last plan."""

    def __init__(
        self,
        world: World,
        attempts: Attempts,
        preempting: Preempting,
        holds: Holds,
        ends: Ends,
        spec: ReservationSpec,
    ) -> None:
        self._spec = spec
        self.looked = 0
        self._world = world
        self._attempts = attempts
        self._preempting = preempting
        self._holds = holds
        self._ends = ends

    def configure(self, spec: ReservationSpec) -> None:
        """Plan by a new configuration from here on."""
        self._spec = spec

    def plan(
        self, workload: Workload, never: Container[str] | None, time: Callable[[], float]
    ) -> Generator[None, None, Reservation | None]:
        """Return a possible reservation for a workload in the state at the end of the search; None if there is none.

        Yields after each part of the work.

        Args:
            workload: the pending workload.
            never: pods that are assumed never to end; None to wait only for pods with a known end.
            time: returns the current time in seconds.
        """
        self.looked = 0
        for _ in range(MAX_STALE_PLANS):
            members = workload.at(Stage.PENDING)[: least_of(workload)]
            try:
                prospect = yield from self._on_copy(workload, members, never, time())
            except PluginError:
                return None  # the next attempt reports it
            if prospect is None or prospect[0] == self._world.nodes.capacity_changes.position:
                return prospect and prospect[1]
            alike = workload.at(Stage.PENDING)[: least_of(workload)] == members
            if alike and waits(workload) and self.possible(workload, prospect[1]):
                return prospect[1]
        return None

    def _on_copy(
        self, workload: Workload, members: Sequence[Member], without_end: Container[str] | None, now: float
    ) -> Generator[None, None, tuple[Hashable, Reservation] | None]:
        """Return a plan, and the state for which it was made."""
        layout, planner = self._world.layout, self._attempts.planner
        groups, _, never = self._attempts.groups(workload, members)
        if never or not members or not self._may_hold(workload, members):
            return None
        with self._world.nothing_kept():
            self._preempting.count_for(workload)
            self._holds.count_for(self._holds.against(workload))
            try:
                ask = self._attempts.ask_by_now(workload, groups, layout, now)
                usable = np.logical_or.reduce([planner.views.get(cls).eligible for cls, _ in ask.groups])
                counting = CountingPlanner(planner, ask, crossed(layout, ask.woven), now, groups)
            finally:
                self._holds.remove_charges()
        taken = self._world.nodes.capacity_changes.position
        # Room that the pods of other reservations free goes first to the workloads that take precedence over this one.
        # A tenant could block others by pods of its own, which end when it likes.
        own = workload.namespace if self.shared(workload.namespace) else ""
        left_out = {uid for held in self._holds.against(workload) for uid in held.waits} | workload.members.keys()
        dated, undated = yield from endings_on(usable.tolist(), self._ends, left_out, without_end, now, own)
        self.looked += len(dated) + len(undated)
        prospect = yield from plan_reservation(counting, dated, undated)
        if prospect is None:
            return None
        reservation = reservation_of(self._world, workload, groups, prospect, now)
        if counting.last is not None and not self._give_devices(reservation, counting.last, workload, groups, prospect):
            return None
        return taken, reservation

    def _give_devices(
        self, reservation: Reservation, trial: Trial, workload: Workload, groups: MembersByClass, prospect: Prospect
    ) -> bool:
        """Add the devices of its pods to a reservation; return whether they get them, within all limits."""
        trial.remove(ending.pod for ending in prospect.waits)
        assert trial.devices is not None
        devices = choose_freed(trial.planner, groups, prospect.placement.rows)
        if devices is None:
            return False
        if self._attempts.lack_of_devices(workload.namespace, groups, prospect.placement, devices) is not None:
            return False
        reservation.devices = tuple(chain.from_iterable(nominated(devices).values()))
        beyond = self._world.claimed_gpus.beyond_requests
        gpus = sum(beyond(cls.amounts, devices.get(member.uid, ())) for cls, members in groups for member in members)
        reservation.device_gpus = -(-gpus // WHOLE_GPU)
        return self._may_take(workload, reservation.thousandths)

    def _may_hold(self, workload: Workload, members: Sequence[Member]) -> bool:
        """Return whether all reservations together would stay within their limits."""
        return self._may_take(workload, sum(gpus_in(member.cls.amounts) for member in members))

    def _may_take(self, workload: Workload, wanted: int) -> bool:
        """Return whether a workload may reserve ``wanted`` thousandths of GPUs beside all other reservations."""
        others = [held for held in self._holds if held.workload != workload.id]
        reserved = sum(held.thousandths for held in others)
        total = self._world.accounts.gpus()
        if wanted + reserved > self._spec.max_gpu_share * total:
            return False
        own = sum(held.thousandths for held in others if held.namespace == workload.namespace)
        return wanted + own <= self._spec.max_gpu_share_per_namespace * total or not self.shared(workload.namespace)

    def shared(self, namespace: str) -> bool:
        """Return whether pods or claims of other namespaces hold GPUs, or shares of GPUs."""
        accounts = self._world.accounts
        held = (accounts.held(other) for other in accounts.namespaces() if other != namespace)
        return any(amounts.get(GPU, 0) or amounts.get(GPU_SHARE, 0) for amounts in held)

    def possible(self, workload: Workload, held: Reservation) -> bool:
        """Return whether a workload could still use its nodes once the pods that it waits for have ended."""
        nodes = self._world.nodes
        if not self._holds.keeps_devices(held):
            return False
        try:
            groups, _, _ = self._attempts.groups(workload, workload.at(Stage.PENDING)[: least_of(workload)])
            usable = np.logical_or.reduce([self._attempts.planner.views.get(cls).eligible for cls, _ in groups])
        except PluginError:
            return True
        for node, amounts in self._holds.lacking(held, *self._holds.against(workload)).items():
            row = nodes.row_of.get(node)
            if row is None or not usable[row]:
                return False
            used = self._holds.used(node)  # not what is reserved for others for a moment
            if any(nodes.allocatable[row, column] - used[column] < lack for column, lack in amounts):
                return False
        return True
