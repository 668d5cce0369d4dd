"""A stream of pods that each ask for a MIG instance, and how many find no room though all would fit.

A request is *blocked only by fragmentation* if no GPU has room for it, but a repack of all running instances would make
room.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.scheduling.devices.mig_moves import MigInstance, MigPlan, plan_moves
from topo_scheduler.scheduling.devices.mig_slots import MigSlot, MigSlots, SplitGpu
from topo_scheduler.simulation.devices.mig_choosers import ChooseSlot
from topo_scheduler.state.devices.mig import MigProfile

WARM_UP: Final = 200
"""Requests at the start that are not counted: the GPUs begin empty."""


@dataclass(frozen=True, slots=True)
class MigLoad:
    """What pods ask for.

    Attributes:
        mix: how often each profile is asked for, by name.
        load: memory slices that pods ask for at once on average, over all memory slices.
        gpus: number of GPUs, all of one geometry.
        requests: number of requests, those of the warm-up included.
    """

    mix: Mapping[str, int]
    load: float
    gpus: int
    requests: int


@dataclass(slots=True)
class MigOutcome:
    """What became of the counted requests.

    Attributes:
        counted: requests after the warm-up.
        fragmented: those blocked only by fragmentation, after all moves that were allowed.
        full: those that would not fit whatever the placement of the instances.
        plans: those that moves made room for, by number of moves.
    """

    counted: int = 0
    fragmented: int = 0
    full: int = 0
    plans: Counter[int] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Share of requests that were blocked only by fragmentation."""
        return self.fragmented / self.counted


class _Gpus:
    """The running instances, by number of their pod."""

    def __init__(self, count: int) -> None:
        self.instances: list[dict[int, MigInstance]] = [{} for _ in range(count)]
        self.states = [SplitGpu()] * count
        self._where: dict[int, int] = {}

    def add(self, pod: int, profile: MigProfile, slot: MigSlot) -> None:
        self.instances[slot.gpu][pod] = MigInstance(profile, slot.start)
        self.states[slot.gpu] = self.states[slot.gpu].with_instance(profile, slot.start)
        self._where[pod] = slot.gpu

    def remove(self, pod: int) -> MigProfile:
        gpu = self._where.pop(pod)
        instance = self.instances[gpu].pop(pod)
        self.states[gpu] = self.states[gpu].without_instance(instance.profile, instance.start)
        return instance.profile

    def move(self, plan: MigPlan) -> None:
        """Carry out a plan: all instances leave before any is created again."""
        pods = [list(self.instances[move.gpu])[move.number] for move in plan.moves]
        profiles = [self.remove(pod) for pod in pods]
        for pod, profile, move in zip(pods, profiles, plan.moves, strict=True):
            self.add(pod, profile, move.to)

    def profiles(self) -> Counter[str]:
        return Counter(instance.profile.name for held in self.instances for instance in held.values())


def run_stream(
    slots: MigSlots,
    choose: ChooseSlot,
    asked: MigLoad,
    seed: int,
    fits_anew: Callable[[Counter[str]], bool],
    *,
    max_moves: int = 0,
) -> MigOutcome:
    """Run a stream. Arrivals are Poisson, durations exponential with mean 1; a blocked request is not repeated.

    Args:
        slots: of the geometry of the GPUs.
        choose: chooses the slot of an instance.
        asked: what is asked for.
        seed: of arrivals, profiles and durations; equal for all choosers.
        fits_anew: whether instances, counted by profile, fit on the GPUs after a repack of all.
        max_moves: moves that may be made for a request that is blocked.
    """
    rng = random.Random(seed)
    profiles = [profile for profile in slots.geometry.profiles if asked.mix.get(profile.name)]
    weights = [asked.mix[profile.name] for profile in profiles]
    mean_slices = sum(profile.memory_slices * weight for profile, weight in zip(profiles, weights, strict=True)) / sum(
        weights
    )
    per_second = asked.load * asked.gpus * slots.geometry.memory_slices / mean_slices
    gpus, outcome, now = _Gpus(asked.gpus), MigOutcome(), 0.0
    ends: list[tuple[float, int]] = []
    for pod in range(asked.requests):
        now += rng.expovariate(per_second)
        (profile,), seconds = rng.choices(profiles, weights), rng.expovariate(1.0)
        while ends and ends[0][0] <= now:
            gpus.remove(heapq.heappop(ends)[1])
        counts = pod >= WARM_UP
        outcome.counted += counts
        slot = choose(gpus.states, profile)
        if slot is None and max_moves:
            plan = plan_moves(slots, [list(held.values()) for held in gpus.instances], profile, max_moves)
            if plan is not None:
                gpus.move(plan)
                slot = plan.slot
                outcome.plans[len(plan.moves)] += counts
        if slot is None:
            fragmented = counts and fits_anew(gpus.profiles() + Counter([profile.name]))
            outcome.fragmented += fragmented
            outcome.full += counts and not fragmented
            continue
        gpus.add(pod, profile, slot)
        heapq.heappush(ends, (now + seconds, pod))
    return outcome
