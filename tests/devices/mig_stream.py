"""A stream of pods that each ask for a MIG instance, and how many find no room though all would fit.

A request is *blocked only by fragmentation* if no GPU has room for it, but a repack of all running instances would make
room.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from topo_scheduler.scheduling.devices.mig_slots import MigSlot, SplitGpu
from topo_scheduler.simulation.devices.mig_choosers import ChooseSlot
from topo_scheduler.state.devices.mig import MigGeometry, MigProfile

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
        fragmented: those blocked only by fragmentation.
        full: those that would not fit whatever the placement of the instances.
    """

    counted: int = 0
    fragmented: int = 0
    full: int = 0

    @property
    def share(self) -> float:
        """Share of requests that were blocked only by fragmentation."""
        return self.fragmented / self.counted


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A pod: when it arrives, what it asks for and how long it runs, in units of the mean duration."""

    number: int
    at: float
    profile: MigProfile
    duration: float


def requests_of(geometry: MigGeometry, asked: MigLoad, seed: int) -> Iterator[StreamRequest]:
    """Yield the requests of a stream in order. Arrivals are Poisson, durations exponential with mean 1.

    Args:
        geometry: of the GPUs.
        asked: what is asked for.
        seed: of arrivals, profiles and durations.
    """
    rng = random.Random(seed)
    profiles = [profile for profile in geometry.profiles if asked.mix.get(profile.name)]
    weights = [asked.mix[profile.name] for profile in profiles]
    slices = sum(profile.memory_slices * weight for profile, weight in zip(profiles, weights, strict=True))
    rate = asked.load * asked.gpus * geometry.memory_slices * sum(weights) / slices
    now = 0.0
    for number in range(asked.requests):
        now += rng.expovariate(rate)
        (profile,), duration = rng.choices(profiles, weights), rng.expovariate(1.0)
        yield StreamRequest(number, now, profile, duration)


def run_stream(
    geometry: MigGeometry,
    choose: ChooseSlot,
    asked: MigLoad,
    seed: int,
    fits_anew: Callable[[Counter[str]], bool],
) -> MigOutcome:
    """Run a stream of `requests_of`; a blocked request is not repeated.

    Args:
        geometry: of the GPUs.
        choose: chooses the slot of an instance.
        asked: what is asked for.
        seed: equal for all choosers.
        fits_anew: whether instances, counted by profile, fit on the GPUs after a repack of all.
    """
    states, running, outcome = [SplitGpu()] * asked.gpus, Counter[str](), MigOutcome()
    ends: list[tuple[float, int, MigProfile, MigSlot]] = []
    for request in requests_of(geometry, asked, seed):
        while ends and ends[0][0] <= request.at:
            _, _, profile, slot = heapq.heappop(ends)
            states[slot.gpu] = states[slot.gpu].without_instance(profile, slot.start)
            running[profile.name] -= 1
        profile, counts = request.profile, request.number >= WARM_UP
        outcome.counted += counts
        chosen = choose(states, profile)
        if chosen is None:
            fragmented = counts and fits_anew(running + Counter([profile.name]))
            outcome.fragmented += fragmented
            outcome.full += counts and not fragmented
            continue
        states[chosen.gpu] = states[chosen.gpu].with_instance(profile, chosen.start)
        running[profile.name] += 1
        heapq.heappush(ends, (request.at + request.duration, request.number, profile, chosen))
    return outcome
