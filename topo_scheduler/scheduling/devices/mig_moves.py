"""The fewest moves of MIG instances after which a profile fits that doesn't fit now: one, two, or none found.

A move ends an instance and creates it again in another slot. All moves of a plan happen together: every instance that
moves ends before any of them is created again, so only the result must fit.

The search is complete. With one move, the instance leaves the GPU where the new one goes. With two, either both leave
that GPU, or the second makes room for the first on another GPU. Of plans with as few moves, the fewest memory slices
decide, then the least capacity lost, then the lowest GPUs and starts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from topo_scheduler.scheduling.devices.mig_slots import MigSlot, MigSlots, SplitGpu
from topo_scheduler.state.devices.mig import MigProfile
from topo_scheduler.state.operation_budget import charge

MAX_MOVES: Final = 2


@dataclass(frozen=True, slots=True)
class MigInstance:
    """An instance on a GPU. ``movable``: whether whatever uses it may be ended and started elsewhere."""

    profile: MigProfile
    start: int
    movable: bool = True


@dataclass(frozen=True, slots=True)
class MigMove:
    """An instance by its GPU and its number on it, and the slot where it is created again."""

    gpu: int
    number: int
    to: MigSlot


@dataclass(frozen=True, slots=True)
class MigPlan:
    """Moves in any order, and the slot that they free. Without moves the profile fits as it is."""

    slot: MigSlot
    moves: tuple[MigMove, ...] = ()


Instances = Sequence[Sequence[MigInstance]]
_Rank = tuple[int, int, tuple[tuple[int, int], ...]]
_Best = tuple[_Rank, MigPlan] | None


def plan_moves(slots: MigSlots, gpus: Instances, profile: MigProfile, max_moves: int = MAX_MOVES) -> MigPlan | None:
    """Return the plan with the fewest moves, or None if there is none with ``max_moves``.

    Args:
        slots: of the geometry of all GPUs.
        gpus: the instances on each GPU.
        profile: what shall fit.
        max_moves: 0, 1 or 2.

    Raises:
        OverBudgetError: the search takes more operations than the active budget has left.
    """
    search = _MoveSearch(slots, gpus, profile)
    slot = slots.choose(search.states, profile)
    if slot is not None:
        return MigPlan(slot)
    for moves, found in ((1, search.one), (2, search.two)):
        if max_moves >= moves and (plan := found()) is not None:
            return plan
    return None


class _MoveSearch:
    """One search; see `plan_moves`."""

    def __init__(self, slots: MigSlots, gpus: Instances, profile: MigProfile) -> None:
        self.slots: Final = slots
        self.gpus: Final = gpus
        self.profile: Final = profile
        self.states: Final = [split(instances) for instances in gpus]
        self._best: _Best = None

    def one(self) -> MigPlan | None:
        """Return the best plan of one move."""
        for gpu, number in self._movable():
            instance = self.gpus[gpu][number]
            for start, state in self._freed(gpu, (number,)):
                for to, change in self._places({gpu: state}, instance.profile):
                    self._offer(MigPlan(MigSlot(gpu, start), (MigMove(gpu, number, to),)), {gpu: state} | change)
        return self._found()

    def two(self) -> MigPlan | None:
        """Return the best plan of two moves, if there is none of one."""
        self._both_from_one_gpu()
        self._one_for_the_other()
        return self._found()

    def _both_from_one_gpu(self) -> None:
        for gpu in range(len(self.gpus)):
            numbers = [number for number, instance in enumerate(self.gpus[gpu]) if instance.movable]
            for first, second in combinations(numbers, 2):
                for start, state in self._freed(gpu, (first, second)):
                    self._place_both(MigSlot(gpu, start), state, ((gpu, first), (gpu, second)))

    def _one_for_the_other(self) -> None:
        """Move an instance to another GPU, where a second one leaves the slot for it."""
        for gpu, number in self._movable():
            instance = self.gpus[gpu][number]
            for start, state in self._freed(gpu, (number,)):
                for other, blocking in self._movable():
                    if other == gpu:
                        continue
                    left = self._without(other, (blocking,))
                    for at in self.slots.starts(left, instance.profile):
                        placed = {gpu: state, other: left.with_instance(instance.profile, at)}
                        for to, change in self._places(placed, self.gpus[other][blocking].profile):
                            moves = MigMove(gpu, number, MigSlot(other, at)), MigMove(other, blocking, to)
                            self._offer(MigPlan(MigSlot(gpu, start), moves), placed | change)

    def _place_both(self, slot: MigSlot, state: SplitGpu, which: tuple[tuple[int, int], tuple[int, int]]) -> None:
        (gpu, first), (_, second) = which
        for first_to, change in self._places({gpu: state}, self.gpus[gpu][first].profile):
            placed = {gpu: state} | change
            for second_to, last in self._places(placed, self.gpus[gpu][second].profile):
                moves = MigMove(gpu, first, first_to), MigMove(gpu, second, second_to)
                self._offer(MigPlan(slot, moves), placed | last)

    def _movable(self) -> Iterator[tuple[int, int]]:
        for gpu, instances in enumerate(self.gpus):
            charge(1)
            for number, instance in enumerate(instances):
                if instance.movable:
                    yield gpu, number

    def _without(self, gpu: int, numbers: tuple[int, ...]) -> SplitGpu:
        state = self.states[gpu]
        for number in numbers:
            instance = self.gpus[gpu][number]
            state = state.without_instance(instance.profile, instance.start)
        return state

    def _freed(self, gpu: int, numbers: tuple[int, ...]) -> Iterator[tuple[int, SplitGpu]]:
        """Yield where the profile can start on a GPU without some instances, and the GPU with it."""
        charge(5)
        left = self._without(gpu, numbers)
        for start in self.slots.starts(left, self.profile):
            yield start, left.with_instance(self.profile, start)

    def _places(
        self, changed: dict[int, SplitGpu], profile: MigProfile
    ) -> Iterator[tuple[MigSlot, dict[int, SplitGpu]]]:
        """Yield each slot for an instance, with the GPU that has it then. Of equal GPUs only the first is tried."""
        seen: set[SplitGpu] = set()
        for gpu, before in enumerate(self.states):
            state = changed.get(gpu, before)
            if state in seen:
                continue
            seen.add(state)
            charge(3)
            for start in self.slots.starts(state, profile):
                yield MigSlot(gpu, start), {gpu: state.with_instance(profile, start)}

    def _offer(self, plan: MigPlan, changed: dict[int, SplitGpu]) -> None:
        charge(8)
        moved = sum(self.gpus[move.gpu][move.number].profile.memory_slices for move in plan.moves)
        lost = sum(self.slots.capacity(self.states[gpu]) - self.slots.capacity(state) for gpu, state in changed.items())
        places = (plan.slot, *(move.to for move in plan.moves))
        rank = moved, lost, tuple((place.gpu, place.start) for place in places)
        if self._best is None or rank < self._best[0]:
            self._best = rank, plan

    def _found(self) -> MigPlan | None:
        return None if self._best is None else self._best[1]


def split(instances: Sequence[MigInstance]) -> SplitGpu:
    """Return what instances take of a GPU."""
    state = SplitGpu()
    for instance in instances:
        state = state.with_instance(instance.profile, instance.start)
    return state
