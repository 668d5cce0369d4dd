"""Which MIG slots the workloads of a case would get, by several choosers, and which of them fragmentation blocks.

Choosers differ in slots only. All see the same workloads at the same times. A workload that finds no slots waits, and
is tried again in order of arrival whenever instances end. It is *blocked only by fragmentation* if it finds none when
it arrives, though a repack of all running instances would make room.
"""

import heapq
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from topo_scheduler.scheduling.devices.mig_slots import MigSlot, MigSlots, SplitGpu
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.devices.mig_choosers import ChooseSlot, RandomSlot, first_fit, packed, spread
from topo_scheduler.simulation.devices.mig_repacking import MigRepacking
from topo_scheduler.simulation.devices.mig_requests import MigGpus, gpus_of, instances_of
from topo_scheduler.simulation.devices.replay import read_policies
from topo_scheduler.state.devices.mig import MigProfile

OURS: Final = "ours"
MIG_POLICIES: Final = (OURS, "first-fit", "spread", "packed", "random")


@dataclass(frozen=True, slots=True)
class MigRequest:
    """A workload. ``pods``: the profiles that each asks for; ``seconds``: how long it runs, infinite for ever."""

    at: float
    seconds: float
    pods: tuple[tuple[MigProfile, ...], ...]


@dataclass(frozen=True, slots=True)
class MigFigures:
    """What became of workloads that ask for MIG instances, by one chooser.

    Attributes:
        policy: name of the chooser.
        workloads: how many there are.
        blocked: those that found no slots when they arrived, though a repack of all instances would make room.
        full: those for which there would be no room even then.
        undecided: those for which the search for a repack took too long.
        never: those that never ran.
        mean_wait_seconds: mean over those that ran; None if none did.
    """

    policy: str
    workloads: int
    blocked: int = 0
    full: int = 0
    undecided: int = 0
    never: int = 0
    mean_wait_seconds: float | None = None


def read_mig_policies(names: str) -> list[str]:
    """Return the policies of a comma-separated list; raises as `read_policies` does."""
    return read_policies("--mig-policy", names, MIG_POLICIES)


def replay_mig(
    cluster: ClusterCase, workload: WorkloadCase, policies: Sequence[str], seed: int
) -> tuple[list[MigFigures], int]:
    """Return the figures of each policy, and how many workloads ask for profiles that no GPU has.

    Args:
        cluster: where the GPUs are; instances that run there already are not known, so its GPUs begin empty.
        workload: what arrives. Workloads that ask for no MIG instances are left out.
        policies: names, of `MIG_POLICIES`.
        seed: of the policy ``random``.

    Raises:
        CaseError: no GPU can be split, no pod asks for an instance, or one asks for too many.
    """
    gpus = gpus_of(cluster)
    requests: list[list[MigRequest]] = [[] for _ in gpus]
    foreign = 0
    for arrival in workload.arrivals:
        pods = instances_of(arrival)
        if not pods:
            continue
        number = next((index for index, item in enumerate(gpus) if _has_all(item, pods)), None)
        if number is None:
            foreign += 1
            continue
        profiles = tuple(tuple(_profile(gpus[number], name) for name in names) for names in pods)
        seconds = inf if arrival.seconds is None else arrival.seconds
        requests[number].append(MigRequest(arrival.at, seconds, profiles))
    if not foreign and not any(requests):
        raise CaseError(
            f"--mig-policy: no pod of {workload.name} asks for a MIG instance; set limits on a resource such as"
            " nvidia.com/mig-1g.10gb, or a claim with the selector device.attributes[...].profile == '1g.10gb'"
        )
    rows = []
    for policy in policies:
        runs = [_replay(item, asked, policy, seed) for item, asked in zip(gpus, requests, strict=True) if asked]
        rows.append(_sum(policy, runs))
    return rows, foreign


def _has_all(gpus: MigGpus, pods: Iterable[Iterable[str]]) -> bool:
    return all(gpus.geometry.profile(name) is not None for names in pods for name in names)


def _profile(gpus: MigGpus, name: str) -> MigProfile:
    profile = gpus.geometry.profile(name)
    assert profile is not None
    return profile


def _sum(policy: str, runs: Sequence[MigFigures]) -> MigFigures:
    ran = sum(run.workloads - run.never for run in runs)
    waited = sum((run.mean_wait_seconds or 0.0) * (run.workloads - run.never) for run in runs)
    return MigFigures(
        policy,
        workloads=sum(run.workloads for run in runs),
        blocked=sum(run.blocked for run in runs),
        full=sum(run.full for run in runs),
        undecided=sum(run.undecided for run in runs),
        never=sum(run.never for run in runs),
        mean_wait_seconds=waited / ran if ran else None,
    )


def _chooser(policy: str, slots: MigSlots, seed: int) -> ChooseSlot:
    match policy:
        case "first-fit":
            return first_fit(slots)
        case "spread":
            return spread(slots)
        case "packed":
            return packed(slots)
        case "random":
            return RandomSlot(slots, random.Random(seed))
        case _:
            return slots.choose


# ---------------------------------------------------------------- one chooser


_Placed = tuple[tuple[MigProfile, MigSlot], ...]


class _SplitGpus:
    """GPUs of one geometry, and the instances on them."""

    def __init__(self, gpus: MigGpus, choose: ChooseSlot) -> None:
        self._choose = choose
        self._states = [SplitGpu()] * len(gpus.nodes)
        self._of_node: dict[int, range] = {}
        for index, node in enumerate(gpus.nodes):
            first = self._of_node[node].start if node in self._of_node else index
            self._of_node[node] = range(first, index + 1)
        self._nodes = gpus.nodes
        self.profiles: Counter[str] = Counter()

    def place(self, request: MigRequest) -> _Placed | None:
        """Place all pods of a workload, each on one node; return None and change nothing if that is not possible."""
        placed: list[tuple[MigProfile, MigSlot]] = []
        for pod in request.pods:
            slots = self._place_pod(pod)
            if slots is None:
                self.remove(placed)
                return None
            placed += slots
        return tuple(placed)

    def _place_pod(self, pod: Sequence[MigProfile]) -> list[tuple[MigProfile, MigSlot]] | None:
        """Place a pod on the node that the chooser takes for its first instance, or else on the next that has room."""
        open_gpus = list(range(len(self._states)))
        while open_gpus:
            first = self._choose([self._states[index] for index in open_gpus], pod[0])
            if first is None:
                return None
            node = self._nodes[open_gpus[first.gpu]]
            placed: list[tuple[MigProfile, MigSlot]] = []
            self._add(placed, pod[0], MigSlot(open_gpus[first.gpu], first.start))
            here = self._of_node[node]
            for profile in pod[1:]:
                slot = self._choose([self._states[index] for index in here], profile)
                if slot is None:
                    break
                self._add(placed, profile, MigSlot(here[slot.gpu], slot.start))
            else:
                return placed
            self.remove(placed)
            open_gpus = [index for index in open_gpus if index not in here]
        return None

    def _add(self, placed: list[tuple[MigProfile, MigSlot]], profile: MigProfile, slot: MigSlot) -> None:
        self._states[slot.gpu] = self._states[slot.gpu].with_instance(profile, slot.start)
        self.profiles[profile.name] += 1
        placed.append((profile, slot))

    def remove(self, placed: Iterable[tuple[MigProfile, MigSlot]]) -> None:
        """End instances."""
        for profile, slot in placed:
            self._states[slot.gpu] = self._states[slot.gpu].without_instance(profile, slot.start)
            self.profiles[profile.name] -= 1


def _replay(gpus: MigGpus, requests: Sequence[MigRequest], policy: str, seed: int) -> MigFigures:
    slots = MigSlots(gpus.geometry)
    split, repacking = _SplitGpus(gpus, _chooser(policy, slots, seed)), MigRepacking(gpus.geometry, len(gpus.nodes))
    figures = MigFigures(policy, len(requests))
    ends: list[tuple[float, int, _Placed]] = []
    waiting: dict[int, MigRequest] = {}
    waits: list[float] = []

    def start(number: int, request: MigRequest, now: float) -> bool:
        placed = split.place(request)
        if placed is None:
            return False
        waits.append(now - request.at)
        heapq.heappush(ends, (now + request.seconds, number, placed))
        return True

    def end_until(time: float) -> None:
        while ends and ends[0][0] <= time and ends[0][0] < inf:
            now = ends[0][0]
            while ends and ends[0][0] == now:
                split.remove(heapq.heappop(ends)[2])
            for number, request in list(waiting.items()):
                if start(number, request, now):
                    del waiting[number]

    for number, request in enumerate(requests):
        end_until(request.at)
        if start(number, request, request.at):
            continue
        waiting[number] = request
        asked = Counter(profile.name for pod in request.pods for profile in pod)
        fits = repacking.fits(split.profiles + asked)
        key = "undecided" if fits is None else "blocked" if fits else "full"
        figures = replace(figures, **{key: getattr(figures, key) + 1})
    end_until(inf)
    wait = sum(waits) / len(waits) if waits else None
    return replace(figures, never=len(waiting), mean_wait_seconds=wait)
