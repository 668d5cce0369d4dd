"""Which one or two pods would have to move for a pending pod that finds no MIG slot, though it would with them moved.

For pods whose claims ask for partitions of devices: devices that consume counters which drivers publish. So it is known
exactly which slots overlap. A pod that moves ends, and its replacement gets another slot, also on the same node. The
search tries sets of one pod first. Sets of as many pods come in the order of how much of the counters of their pools
they hold, then of rows and names.

A set is a plan if the pending pod and the replacements have places together (`slot_assignment`). In small clusters the
search is complete. Beyond the caps below it may miss a plan.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, islice, permutations
from typing import Final

from topo_scheduler.scheduling.devices.claim_query import ClaimQueryError
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.scheduling.moving.plan import MovePlan, PlannedMove
from topo_scheduler.scheduling.moving.slot_assignment import PodToSeat, assign_slots
from topo_scheduler.scheduling.placing.model.placement_query import Placement
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, Candidate, Candidates
from topo_scheduler.state.devices.pools import DeviceId, PublishedDevice
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.topology.fabric import Layout

MAX_MOVED_PODS: Final = 2
"""Pods that one plan moves at most."""
MAX_GRACE_SECONDS: Final = 60.0
"""Grace period of a pod that moves at most, in seconds: the slot is held for the pending pod until that pod is gone."""
MAX_NODES: Final = 256
"""Nodes whose pods may move in one search, those with the fewest such pods first."""
MAX_PODS: Final = 2048
"""Pods that one search considers, those that hold the least first."""
MAX_OPENING_PODS: Final = 64
"""Pods that make room alone, but have no other place, for which the search lets a second pod move."""
MAX_PAIRS: Final = 4096
"""Sets of two pods that one search checks."""
MAX_ASSIGNMENTS: Final = 300
"""Sets for which one search looks for places together."""
SETS_OF_SLICE: Final = 32
"""Sets that are checked in one slice of the work."""
CHECK_OPERATIONS: Final = 60
"""Operations of one check of a node's devices, apart from the search for them."""
_UNIT: Final = 1_000_000
"""What a pod holds is counted in millionths of a counter."""


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A pod that may move: its number among the candidates, its row, and how much of the counters it holds."""

    number: int
    row: int
    weight: int


@dataclass(frozen=True, slots=True)
class SlotTask:
    """What a search needs.

    Attributes:
        trial: returns a new copy of the state, on which what is promised to other workloads is counted.
        layout: the fabric.
        wanted: the pending pod.
        candidates: pods that may move.
        chosen_here: whether a scheduler chose the node of a candidate, not its user.
        again: returns the request of the replacement of a candidate, by its number.
        permits: whether quotas allow the devices that the pending pod gets.
        now: seconds.
        max_moves: pods that may move at most.
    """

    trial: Callable[[], Trial]
    layout: Layout
    wanted: PodToSeat
    candidates: Candidates
    chosen_here: Callable[[Candidate], bool]
    again: Callable[[int], PodToSeat]
    permits: Callable[[Trial, Placement], bool]
    now: float
    max_moves: int


def plan_slot_moves(task: SlotTask) -> Generator[None, None, MovePlan | None]:
    """Choose the pods to move; yields after each slice of the work. Each slice works on a new copy of the state.

    Returns:
        None if there is no such set, or the search found none.

    Raises:
        PluginError: a plugin failed, so there is no result.
    """
    search = _SlotMoves(task)
    holders = search.holders()
    yield
    return (yield from search.run(holders))


class _SlotMoves:
    """One search; see `plan_slot_moves`."""

    def __init__(self, task: SlotTask) -> None:
        self._task = task
        self._cls: PodClass = task.wanted.groups[0][0]
        self._openers: list[SlotHolder] = []
        self._assigned = 0

    def run(self, holders: Sequence[SlotHolder]) -> Generator[None, None, MovePlan | None]:
        """Try sets of one pod, then sets of two."""
        singles = ((holder,) for holder in holders)
        plan = yield from self._first(singles)
        if plan is not None or self._task.max_moves < MAX_MOVED_PODS:
            return plan
        beside = self._beside(holders)
        chained = (
            (opener, other)
            for opener in self._openers[:MAX_OPENING_PODS]
            for other in holders
            if other.number != opener.number and other.row != opener.row
        )
        by_weight = sorted(
            [*islice(beside, MAX_PAIRS), *islice(chained, MAX_PAIRS)],
            key=lambda pair: (sum(holder.weight for holder in pair), [holder.number for holder in pair]),
        )
        yield
        return (yield from self._first(iter(by_weight[:MAX_PAIRS])))

    # ------------------------------------------------------------ sets

    def holders(self) -> list[SlotHolder]:
        """Return the pods that hold partitions on nodes that the pending pod may use, those that hold least first."""
        trial = self._task.trial()
        view = trial.planner.views.get(self._cls)
        if view.fit.any():
            return []  # it is not for lack of a slot that the pod is pending
        by_row: dict[int, list[int]] = {}
        for number, pod in enumerate(self._task.candidates.pods):
            if (
                pod.gang == NO_GANG
                and pod.occupant.grace <= MAX_GRACE_SECONDS
                and self._task.chosen_here(pod)
                and view.open[pod.row]
                and view.empty_fit[pod.row] > 0
            ):
                by_row.setdefault(pod.row, []).append(number)
        holders: list[SlotHolder] = []
        for row in sorted(by_row, key=lambda row: (len(by_row[row]), row))[:MAX_NODES]:
            holders += self._holders_on(trial, row, by_row[row])
        holders.sort(key=lambda holder: (holder.weight, holder.number))
        return holders[:MAX_PODS]

    def _holders_on(self, trial: Trial, row: int, numbers: Sequence[int]) -> list[SlotHolder]:
        inventory, devices = trial.inventory, trial.devices
        if inventory is None or devices is None:
            return []
        pools = [pool for pool in devices.pools_of(row) if pool.counters]
        totals = {(pool.id, counter): value for pool in pools for counter, value in pool.counters.items()}
        published: dict[DeviceId, PublishedDevice] = {
            device.id: device for pool in pools for device in (*pool.devices, *pool.others)
        }
        charge(CHECK_OPERATIONS + len(published) // 2)
        holders = []
        for number in numbers:
            uid = self._task.candidates.pods[number].occupant.uid
            claims = list(inventory.consumers.claims_of(uid))
            inventory.leave([uid])
            frees_all = all(key in inventory.freed for key in claims)
            inventory.come_back([uid])
            held = [published[id_] for key in claims for id_ in inventory.devices_of_claim(key) if id_ in published]
            if not frees_all or not any(device.counters for device in held):
                continue
            weight = sum(
                (
                    Fraction(amount) / totals[device.id[:2], counter]
                    for device in held
                    for counter, amount in device.counters.items()
                    if totals.get((device.id[:2], counter))
                ),
                Fraction(0),
            )
            holders.append(SlotHolder(number, row, int(weight * _UNIT)))
        return holders

    @staticmethod
    def _beside(holders: Sequence[SlotHolder]) -> Iterator[tuple[SlotHolder, SlotHolder]]:
        """Yield the pairs of pods of one node."""
        by_row: dict[int, list[SlotHolder]] = {}
        for holder in holders:
            by_row.setdefault(holder.row, []).append(holder)
        for row in sorted(by_row):
            yield from combinations(by_row[row], 2)

    # ------------------------------------------------------------ checks

    def _first(self, sets: Iterator[tuple[SlotHolder, ...]]) -> Generator[None, None, MovePlan | None]:
        """Return the plan of the first set that is one; yields after each slice of the work."""
        while part := list(islice(sets, SETS_OF_SLICE)):
            trial = self._task.trial()
            for chosen in part:
                numbers = [holder.number for holder in chosen]
                if self._task.candidates.closed(numbers) != sorted(numbers) or not self._opens(trial, chosen):
                    continue
                if self._assigned >= MAX_ASSIGNMENTS:
                    return None
                self._assigned += 1
                if (plan := self._plan(trial, chosen)) is not None:
                    return plan
                if len(chosen) == 1:
                    self._openers.append(chosen[0])
            yield
        return None

    def _opens(self, trial: Trial, chosen: tuple[SlotHolder, ...]) -> bool:
        """Return whether a node that pods leave has devices for the pending pod then."""
        inventory, devices = trial.inventory, trial.devices
        if inventory is None or devices is None:
            return False
        charge(CHECK_OPERATIONS)
        uids = [self._task.candidates.pods[holder.number].occupant.uid for holder in chosen]
        inventory.leave(uids)
        rows = sorted({holder.row for holder in chosen})
        try:
            opens = any(devices.fit(self._cls.claims, row).now > 0 for row in rows)
            # A pod that leaves another node helps only if another of the pods then has a place there.
            return opens and (len(rows) == 1 or any(self._follows(devices, *pair) for pair in permutations(chosen, 2)))
        except ClaimQueryError:
            return False
        finally:
            inventory.come_back(uids)

    def _follows(self, devices: NodeDevices, pod: SlotHolder, other: SlotHolder) -> bool:
        """Return whether the node of another pod has devices for the replacement of a pod."""
        return devices.fit(self._task.again(pod.number).groups[0][0].claims, other.row).now > 0

    def _plan(self, trial: Trial, chosen: tuple[SlotHolder, ...]) -> MovePlan | None:
        """Return the plan in which these pods move; None if not all of them have another place."""
        pods = [self._task.candidates.pods[holder.number] for holder in chosen]
        requests = [self._task.wanted, *(self._task.again(holder.number) for holder in chosen)]
        freed = sorted({holder.row for holder in chosen})
        trial.remove(pods)
        try:
            assigned = assign_slots(trial, requests, freed, self._task.layout, self._task.now)
            if assigned is None or not self._task.permits(trial, assigned[0].placement):
                return None
        finally:
            trial.restore(pods)
        moves = tuple(
            PlannedMove(pod, place.seat.row, place.seat.devices) for pod, place in zip(pods, assigned[1:], strict=True)
        )
        return MovePlan(assigned[0].placement, moves, assigned[0].seat.devices)
