"""The decision of a kubelet's Topology Manager about pods, as Kubernetes 1.36 makes it.

Under the policy ``single-numa-node`` it admits a container if one NUMA node has all that it aligns, and takes the
lowest. Under ``restricted`` it admits a container if a set of NUMA nodes has all, and no smaller set could ever have
any of the resources; the sets have to be equal for all resources.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final

from topo_scheduler.state.nodes.numa_report import NumaAmounts, NumaPolicy, NumaReport, NumaScope, is_memory
from topo_scheduler.state.pods.classes import NO_LIMIT
from topo_scheduler.state.pods.numa_request import ContainerKind, NumaContainer, NumaRequest
from topo_scheduler.state.pods.numa_zones import NumaState

Zones = tuple[int, ...]
"""Indexes of NUMA nodes in a report, ascending."""
MAX_PODS: Final = 64
"""Pods of a class that are counted on one machine whose kubelet rejects pods."""
MAX_CONTAINERS: Final = 32
"""Containers of a pod with resources that are aligned; a pod with more gets no such machine."""


class _AdmittingMachine:
    """A machine while pods are admitted to it one after the other.

    ``certain``: it is known what is free on each NUMA node, so the choice of the kubelet is known too. Otherwise
    ``free`` is the least that can be free, and what a container takes counts on each NUMA node.
    """

    def __init__(self, report: NumaReport, free: tuple[tuple[int, ...], ...], *, certain: bool, spans: bool) -> None:
        self.report = report
        self.free = dict(zip(report.resources, map(list, free), strict=True))
        self.certain = certain
        self.spans = spans
        self._capacity = dict(zip(report.resources, report.capacity, strict=True))
        self._allocatable = dict(zip(report.resources, report.allocatable, strict=True))
        self._reusable: dict[str, tuple[Zones, int]] = {}
        self.checks = 0
        """Comparisons of an amount with what NUMA nodes have, so far."""

    def admits(self, request: NumaRequest) -> bool:
        """Return whether a pod is admitted, and take what it gets."""
        self._reusable = {}
        containers = request.containers
        if self.report.scope is NumaScope.POD:
            containers = (NumaContainer(ContainerKind.MAIN, request.total),)
        return all(self._admits(container) for container in containers)

    def _admits(self, container: NumaContainer) -> bool:
        amounts = tuple((name, amount) for name, amount in container.amounts if name in self.free)
        if not amounts:
            return True
        init = container.kind is ContainerKind.INIT
        if init and not self.certain and not all(is_memory(name) for name, _ in amounts):
            return False  # later containers have to reuse what it got, and it is not known where that is
        zones = self._zones(amounts)
        if zones is None:
            return False
        for name, amount in amounts:
            self._take(name, amount, zones, init=init)
        self.certain &= len(zones) == 1
        return True

    def _zones(self, amounts: NumaAmounts) -> Zones | None:
        """Return the NUMA nodes that the kubelet chooses for a container; None if it rejects the pod."""
        number = len(self.report.zones)
        size = 1
        if self.report.policy is NumaPolicy.RESTRICTED:
            memory = tuple((name, amount) for name, amount in amounts if is_memory(name))
            sizes = {self._smallest(name, amount) for name, amount in amounts if not is_memory(name)}
            if memory:
                sizes.add(self._smallest_of_memory(memory))
            if len(sizes) > 1:
                return None
            (size,) = sizes
        for zones in _sets(number, size):
            self.checks += len(amounts)
            if all(self._has(name, amount, zones) for name, amount in amounts):
                return zones
        return None

    def _has(self, name: str, amount: int, zones: Zones) -> bool:
        where, reusable = self._reusable.get(name, ((), 0))
        if is_memory(name):
            if not self._may_take_memory(zones):
                return False
            reusable = reusable if where == zones else 0
        elif reusable and not set(where) <= set(zones):
            return False
        return sum(self.free[name][zone] for zone in zones) + reusable >= amount

    def _may_take_memory(self, zones: Zones) -> bool:
        """Return whether the memory of these NUMA nodes is not tied to that of others by pods that span them."""
        if self.report.policy is not NumaPolicy.RESTRICTED or (len(zones) == 1 and not self.spans):
            return True
        return not any(
            self.free[name][zone] < self._allocatable[name][zone]
            for name in self.free
            if is_memory(name)
            for zone in zones
        )

    def _smallest(self, name: str, amount: int) -> int:
        """Return the fewest NUMA nodes whose capacity suffices, or all if that of all does not."""
        total = 0
        for size, capacity in enumerate(sorted(self._capacity[name], reverse=True), 1):
            total += capacity
            if total >= amount:
                return size
        return len(self.report.zones)

    def _smallest_of_memory(self, amounts: NumaAmounts) -> int:
        number = len(self.report.zones)
        for size in range(1, number):
            for zones in _sets(number, size):
                self.checks += len(amounts)
                if self._may_take_memory(zones) and all(
                    sum(self._allocatable[name][zone] for zone in zones) >= amount for name, amount in amounts
                ):
                    return size
        return number

    def _take(self, name: str, amount: int, zones: Zones, *, init: bool) -> None:
        where, reusable = self._reusable.get(name, ((), 0))
        if reusable and is_memory(name) and where != zones:
            reusable = 0
        taken = max(0, amount - reusable)
        if init and self.certain:
            self._reusable[name] = zones, reusable + taken
        elif reusable:
            self._reusable[name] = where, max(0, reusable - amount)
        free = self.free[name]
        if self.certain and len(zones) == 1:
            free[zones[0]] -= taken
            return
        # It is not known how much each of them gives.
        for zone in zones if self.certain else range(len(free)):
            free[zone] = max(0, free[zone] - taken)
        self.spans |= len(zones) > 1 and is_memory(name)


@lru_cache(maxsize=256)
def _sets(number: int, size: int) -> tuple[Zones, ...]:
    """Return the sets of NUMA nodes of one size, in the order in which the kubelet prefers them."""
    return tuple(sorted(combinations(range(number), size), key=lambda zones: sum(1 << zone for zone in zones)))


@dataclass(frozen=True, slots=True)
class Admission:
    """How many equal pods a kubelet admits one after the other, `MAX_PODS` at most; and the work to find that out.

    ``pods`` is `NO_LIMIT` if the machine has no NUMA node with any of the resources, so that nothing is aligned.
    """

    pods: int
    checks: int


def admission(state: NumaState, request: NumaRequest) -> Admission:
    """Return how many equal pods the kubelet of a machine admits now."""
    report = state.report
    if state.alike is not None and state.alike[0] == request:
        machine = _AdmittingMachine(report, report.available, certain=True, spans=state.spans)
        if all(machine.admits(request) for _ in range(state.alike[1])):
            return _count(machine, request)
    least = _count(_machine(state, state.unreported), request)
    if not state.possible or least.pods == NO_LIMIT:
        return least
    machines = [_AdmittingMachine(report, free, certain=True, spans=state.spans) for free in state.possible]
    counts = [_count(machine, request) for machine in machines]
    checks = least.checks + sum(count.checks for count in counts)
    return Admission(max(least.pods, min(count.pods for count in counts)), checks)


def admission_empty(report: NumaReport, request: NumaRequest) -> Admission:
    """Return how many equal pods the kubelet of a machine would admit without other pods."""
    return _count(_AdmittingMachine(report, report.allocatable, certain=True, spans=False), request)


def admits_together(state: NumaState, pods: tuple[tuple[NumaRequest, int], ...]) -> bool:
    """Return whether a kubelet admits different pods in any order; ``pods`` has requests and their numbers."""
    if len(pods) == 1:
        ((request, number),) = pods
        return admission(state, request).pods >= number
    totals: dict[str, int] = dict(state.unreported)
    for request, number in pods:
        for name, amount in request.total:
            totals[name] = totals.get(name, 0) + number * amount
    for request, _ in pods:
        own = dict(request.total)
        others = tuple((name, total - own.get(name, 0)) for name, total in totals.items())
        if _is_aligned(state.report, request) and not _machine(state, others).admits(request):
            return False
    return True


def _machine(state: NumaState, unreported: NumaAmounts) -> _AdmittingMachine:
    report, missing = state.report, dict(unreported)
    free = tuple(
        tuple(max(0, amount - missing.get(name, 0)) for amount in amounts)
        for name, amounts in zip(report.resources, report.available, strict=True)
    )
    certain = not any(missing.get(name) for name in report.resources)
    return _AdmittingMachine(report, free, certain=certain, spans=state.spans)


def _is_aligned(report: NumaReport, request: NumaRequest) -> bool:
    return any(name in report.resources for name, _ in request.total)


def _count(machine: _AdmittingMachine, request: NumaRequest) -> Admission:
    if not _is_aligned(machine.report, request):
        return Admission(NO_LIMIT, 0)
    if len(request.containers) > MAX_CONTAINERS:
        return Admission(0, 0)
    count = 0
    while count < MAX_PODS and machine.admits(request):
        count += 1
    return Admission(count, machine.checks)
