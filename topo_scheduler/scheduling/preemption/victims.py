"""Which pods may be evicted for a workload of higher priority, and the cost of evicting some of them."""

from collections import Counter
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.time_slicing import whole
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.charges import charges_of
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU, Amounts, amount_in
from topo_scheduler.state.pods.disruption_budgets import Budgets, DisruptionLimit
from topo_scheduler.state.pods.numa_request import NumaRequest
from topo_scheduler.state.pods.pod_groups import Disruption
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.victim_info import LONGEST_WAIT_SECONDS, VictimInfo
from topo_scheduler.state.pods.workloads import Stage, Workload, Workloads

MAX_SECONDS: Final = 2**30
"""Maximum GPU-seconds that count for one pod, so that their sums fit in 64 bits."""
NO_GANG: Final = -1
PODS_PER_PART: Final = 512
"""Pods that are processed in one part."""
OPEN, WHOLE, SHUT = 0, 1, 2
"""What happens if a gang would lose more members than its slack.

`OPEN`: its pods are evicted one by one, and the gang is broken. `WHOLE`: the whole gang is evicted. `SHUT`: the whole
gang would have to be evicted, but must not be.
"""

Key = tuple[int, int, int, int, float, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that may be evicted. ``gpu_seconds`` is its GPUs, those of its claims too, times the seconds it ran.

    ``numa`` is what a kubelet aligns for it, for pods that a trial puts on another node.
    """

    occupant: VictimInfo
    row: int
    amounts: Amounts
    profile: Profile | None
    gpu_seconds: int
    gang: int
    guard: int
    numa: NumaRequest | None = None


@dataclass(frozen=True, slots=True)
class VictimGang:
    """A gang with candidates. ``slack`` is how many members it can lose without falling below its minimum."""

    id: str
    members: tuple[int, ...]
    slack: int
    rule: int
    top: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """All pods that may be evicted for a priority, in order of row and name, and as arrays over them.

    ``leaving`` are pods of lower priority that are being deleted already, and end within `LONGEST_WAIT_SECONDS`. Their
    room counts as free. ``shielded`` maps each budget that protects pods of lower priority to their number.
    ``shielded_pods`` is how many pods these budgets protect. ``left`` is how many pods each budget can lose.
    """

    pods: Sequence[Candidate]
    gangs: Sequence[VictimGang]
    leaving: Sequence[Candidate]
    shielded: Mapping[str, int]
    shielded_pods: int
    left: Int64
    row: Int64
    priority: Int64
    seconds: Int64
    started: Int64
    gang: Int64
    guard: Int64
    slack: Int64
    whole: Int64
    worst: Int64

    @property
    def levels(self) -> list[int]:
        """Distinct priorities, lowest first."""
        return [int(level) for level in np.unique(self.priority)]

    def amounts(self, columns: Int64) -> Int64:
        """Return what each pod holds of some resources (int64[pods, columns])."""
        pods, held, amounts = charges_of((number, pod.amounts) for number, pod in enumerate(self.pods))
        out = np.zeros((len(self.pods), len(columns)), np.int64)
        for at, column in enumerate(columns.tolist()):
            in_column = held == column
            out[pods[in_column], at] = amounts[in_column]
        return out

    def closed(self, chosen: Iterable[int]) -> list[int] | None:
        """Return the chosen pods and those that must be evicted with them, in order; None if that is not allowed."""
        taken = set(chosen)
        lost = Counter(self.pods[number].gang for number in taken)
        lost.pop(NO_GANG, None)
        for number, count in lost.items():
            gang = self.gangs[number]
            if count > gang.slack and gang.rule != OPEN:
                if gang.rule == SHUT:
                    return None
                taken.update(gang.members)
        spent = Counter(self.pods[number].guard for number in taken)
        if any(guard >= 0 and count > self.left[guard] for guard, count in spent.items()):
            return None
        return sorted(taken)

    def key(self, chosen: Sequence[int]) -> Key:
        """Return the cost of a set of victims, closed as by `closed`: lower is better, part by part.

        The parts are:

        - the highest priority of a victim,
        - the number of gangs that fall below their minimum,
        - the GPU-time lost in seconds,
        - the number of pods,
        - how long the oldest has run (less is better),
        - the names.
        """
        pods = [self.pods[number] for number in chosen]
        lost = Counter(pod.gang for pod in pods)
        broken = sum(number >= 0 and count > self.gangs[number].slack for number, count in lost.items())
        return (
            max(pod.occupant.priority for pod in pods),
            broken,
            sum(pod.gpu_seconds for pod in pods),
            len(pods),
            -min(pod.occupant.started for pod in pods),
            tuple(sorted(pod.occupant.key for pod in pods)),
        )


def candidates_below(
    priority: int,
    world: World,
    workloads: Workloads,
    budgets: Budgets,
    spent: Mapping[str, int],
    spared: Callable[[str], bool],
    going: Container[str],
    wall: float,
    usable: Bool | None = None,
    closed: Container[str] = (),
    *,
    waiting: bool = False,
) -> Candidates:
    """Collect the pods that may be evicted for a priority.

    Args:
        priority: of the workload that needs room.
        world: the current state.
        workloads: workloads of this scheduler, which determine the gang of a victim.
        budgets: disruption budgets.
        spent: evictions in progress by budget, which the budgets may not show yet.
        spared: whether a pod may not be chosen for now, by uid.
        going: pods with an eviction in progress, by uid.
        wall: seconds since the epoch.
        usable: bool[rows], nodes that could be used if they were empty. Pods on other nodes do not count as shielded.
        closed: namespaces of which no pod may be chosen for now.
        waiting: whether assumed pods whose binds wait for volumes or devices are candidates. They give up their room
            without an eviction, so that no budget protects them.
    """
    evictable: list[tuple[VictimInfo, int, Amounts, Profile | None, DisruptionLimit | None]] = []
    leaving: list[Candidate] = []
    shielded: Counter[str] = Counter()
    shielded_pods = 0
    for uid, entry in world.ledger.items():
        occupant = entry.occupant or (entry.waiting if waiting else None)
        if occupant is None or occupant.priority >= priority or occupant.fixed or entry.row < 0:
            continue
        if (of_pod := workloads.of_pod(uid)) is not None and of_pod[0].group is not None:
            protecting = of_pod[0].priority_as_victim(occupant.priority)
            if protecting >= priority:
                continue
            occupant = replace(occupant, priority=protecting)
        if entry.occupant is None:
            if not spared(uid):
                evictable.append((occupant, entry.row, entry.amounts, entry.profile, None))
            continue
        if occupant.terminating and occupant.seconds_to_end(wall) > LONGEST_WAIT_SECONDS:
            continue  # its end is too far off to wait for, and another eviction would not shorten that
        if occupant.terminating or uid in going:
            if not spared(uid):
                leaving.append(Candidate(occupant, entry.row, entry.amounts, entry.profile, 0, NO_GANG, -1))
            continue
        guards = budgets.guarding(entry.profile)
        # The Eviction API refuses a pod with several budgets.
        if len(guards) > 1 or any(guard.allowed - spent.get(guard.key, 0) <= 0 for guard in guards):
            if usable is None or usable[entry.row]:
                shielded.update(guard.key for guard in guards)
                shielded_pods += 1
        elif not spared(uid) and occupant.namespace not in closed:
            evictable.append((occupant, entry.row, entry.amounts, entry.profile, guards[0] if guards else None))
    evictable.sort(key=lambda pod: (pod[1], pod[0].key, pod[0].uid))
    leaving.sort(key=lambda pod: (pod.row, pod.occupant.key, pod.occupant.uid))
    return collect(evictable, leaving, shielded, spent, workloads, world, wall, shielded_pods)


def collect(
    evictable: Sequence[tuple[VictimInfo, int, Amounts, Profile | None, DisruptionLimit | None]],
    leaving: Sequence[Candidate],
    shielded: Mapping[str, int],
    spent: Mapping[str, int],
    workloads: Workloads,
    world: World,
    wall: float,
    shielded_pods: int = 0,
) -> Candidates:
    """Return candidates as arrays. Arguments are as for `candidates_below`, pods in order of row and name."""
    return whole(collecting(evictable, leaving, shielded, spent, workloads, world, wall, shielded_pods))


def collecting(
    evictable: Sequence[tuple[VictimInfo, int, Amounts, Profile | None, DisruptionLimit | None]],
    leaving: Sequence[Candidate],
    shielded: Mapping[str, int],
    spent: Mapping[str, int],
    workloads: Workloads,
    world: World,
    wall: float,
    shielded_pods: int = 0,
) -> Generator[None, None, Candidates]:
    """Do the same in parts; yields after each."""
    gang_of: dict[str, int] = {}
    known: list[Workload] = []
    guard_of: dict[str, int] = {}
    left: list[int] = []
    members: list[list[int]] = []
    pods: list[Candidate] = []
    for number, (occupant, row, amounts, profile, guard) in enumerate(evictable):
        if number % PODS_PER_PART == PODS_PER_PART - 1:
            yield
        gang, guarded = NO_GANG, -1
        of_pod = workloads.of_pod(occupant.uid)
        if of_pod is not None and of_pod[0].gang:
            gang = gang_of.setdefault(of_pod[0].id, len(gang_of))
            if gang == len(members):
                members.append([])
                known.append(of_pod[0])
            members[gang].append(number)
        if guard is not None:
            guarded = guard_of.setdefault(guard.key, len(guard_of))
            if guarded == len(left):
                left.append(guard.allowed - spent.get(guard.key, 0))
        ran = max(0, int(wall - occupant.started))
        gpus = WHOLE_GPU * amount_in(amounts, GPU) + world.claimed_gpus.of_pod(occupant.uid)
        lost = min(MAX_SECONDS, ran * gpus // WHOLE_GPU)
        entry = world.ledger.get(occupant.uid)
        numa = entry.numa if entry is not None else None
        pods.append(Candidate(occupant, row, amounts, profile, lost, gang, guarded, numa))
    yield
    gangs = []
    for number, (candidate, inside) in enumerate(zip(known, members, strict=True)):
        if number % PODS_PER_PART == PODS_PER_PART - 1:
            yield
        gangs.append(_gang(candidate, tuple(inside), pods, left, world))
    yield
    started = np.array([int(pod.occupant.started) for pod in pods], np.int64)
    seconds = np.array([pod.gpu_seconds for pod in pods], np.int64)
    priority = np.array([pod.occupant.priority for pod in pods], np.int64)
    yield
    gang_column = np.array([pod.gang for pod in pods], np.int64)
    whole = [
        (
            gang.rule,
            sum(pods[number].gpu_seconds for number in gang.members),
            len(gang.members),
            min(int(pods[number].occupant.started) for number in gang.members),
        )
        for gang in gangs
    ]
    worst = _worst_first(pods)
    yield
    return Candidates(
        pods=pods,
        gangs=gangs,
        leaving=leaving,
        shielded=shielded,
        shielded_pods=shielded_pods,
        left=np.array(left, np.int64),
        row=np.array([pod.row for pod in pods], np.int64),
        priority=priority,
        seconds=seconds,
        started=started,
        gang=gang_column,
        guard=np.array([pod.guard for pod in pods], np.int64),
        slack=np.array([gang.slack for gang in gangs], np.int64),
        whole=np.array(whole, np.int64).reshape(len(gangs), 4),
        worst=worst,
    )


def _gang(
    workload: Workload, members: tuple[int, ...], pods: Sequence[Candidate], left: Sequence[int], world: World
) -> VictimGang:
    seated = [member for member in workload.members.values() if member.stage is not Stage.PENDING]
    entries = [world.ledger.get(member.uid) for member in seated]
    running = sum(not (entry and entry.occupant and entry.occupant.terminating) for entry in entries)
    # A gang that a new leader found running does not show its size: all its running pods count as needed.
    least = running if workload.bound_earlier and workload.size <= 1 else workload.size
    # A gang that is already below its minimum is not broken again.
    slack = running - least if running >= least else 1 << 40
    rule = OPEN
    if workload.disruption_mode is Disruption.GANG:
        spent = Counter(pods[number].guard for number in members)
        open_ = len(members) == running and all(guard < 0 or count <= left[guard] for guard, count in spent.items())
        rule = WHOLE if open_ else SHUT
    return VictimGang(workload.id, members, slack, rule, max(pods[number].occupant.priority for number in members))


def _worst_first(pods: Sequence[Candidate]) -> Int64:
    """Return for each pod its rank in the order in which pods are reprieved."""
    priority = np.array([pod.occupant.priority for pod in pods], np.int64)
    seconds = np.array([pod.gpu_seconds for pod in pods], np.int64)
    started = np.array([pod.occupant.started for pod in pods], np.float64)
    order = np.lexsort((-np.arange(len(pods)), started, -seconds, -priority))
    out = np.empty(len(pods), np.int64)
    out[order] = np.arange(len(pods), dtype=np.int64)
    return out
