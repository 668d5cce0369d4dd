"""Drives an engine on machines whose kubelet aligns pods to NUMA nodes, and plays their kubelets by enumeration.

`Kubelet` is a small model of its own: it builds the hints of each resource as the managers of the kubelet do, tries
every combination of them, and gives devices one by one.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.helpers import NVIDIA, make_pod
from tests.scheduling.driver import Driver
from topo_scheduler.api.numa import NodeResourceTopology
from topo_scheduler.api.objects import Container, Node, Pod, PodSpec, ResourceRequirements
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.recording.observed_engine import sinks_of_storage

Json = dict[str, Any]
Units = dict[str, list[int]]
"""Amounts by resource and NUMA node: CPUs, GiB or devices."""
MEMORY = ("memory",)
GIB = 2**30


def container(name: str = "main", *, guaranteed: bool = False, init: bool = False, **resources: int) -> Container:
    """Return a container; ``gpu``, ``cpu`` and ``memory`` (in GiB) are its limits."""
    limits: dict[str, Any] = {}
    if resources.get("gpu"):
        limits[NVIDIA] = resources["gpu"]
    requests = dict(limits)
    if guaranteed:
        limits |= {"cpu": resources.get("cpu", 1), "memory": f"{resources.get('memory', 1)}Gi"}
        requests |= {"cpu": resources.get("cpu", 1), "memory": f"{resources.get('memory', 1)}Gi"}
    return Container(name, ResourceRequirements(requests, limits))


def pod_of(name: str, *containers: Container, init: Sequence[Container] = (), **more: Any) -> Pod:
    """Return a pod of these containers."""
    spec = PodSpec(containers=list(containers), init_containers=list(init))
    return make_pod(name, spec=spec, **more)


def topology(
    name: str,
    free: Mapping[str, Sequence[int]],
    all_: Mapping[str, Sequence[int]] | None = None,
    *,
    policy: str = "single-numa-node",
    scope: str = "container",
) -> NodeResourceTopology:
    """Return the object of a node: what is free of each resource on each NUMA node, of what there is."""
    all_ = all_ or free
    number = len(next(iter(free.values())))
    zones = [
        {
            "name": f"node-{zone}",
            "type": "Node",
            "resources": [
                {
                    "name": resource,
                    "capacity": quantity(resource, all_[resource][zone]),
                    "allocatable": quantity(resource, all_[resource][zone]),
                    "available": quantity(resource, free[resource][zone]),
                }
                for resource in sorted(free)
            ],
        }
        for zone in range(number)
    ]
    attributes = [
        {"name": "topologyManagerPolicy", "value": policy},
        {"name": "topologyManagerScope", "value": scope},
    ]
    return msgspec.convert({"metadata": {"name": name}, "zones": zones, "attributes": attributes}, NodeResourceTopology)


def quantity(resource: str, amount: int) -> str:
    """Return an amount of the tests as a quantity."""
    return f"{amount}Gi" if resource in MEMORY else str(amount)


class NumaDriver(Driver):
    """An engine that gets NodeResourceTopology objects."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self._sinks = {sink.resource.plural: sink for sink in sinks_of_storage(self.engine, lambda: None)}

    def report(self, *objects: NodeResourceTopology) -> None:
        """Objects appear or change."""
        self._sinks["noderesourcetopologies"].applied(objects)

    def unreport(self, name: str) -> None:
        """An object is deleted."""
        self._sinks["noderesourcetopologies"].deleted([Deleted("", name, "")])


# ---------------------------------------------------------------- the kubelet


@dataclass
class Kubelet:
    """A machine: which pod has each unit of each resource, by NUMA node. Memory counts in GiB."""

    capacity: Units
    policy: str
    scope: str
    units: dict[str, list[list[str]]] = field(default_factory=dict)
    memory: dict[str, list[tuple[tuple[int, ...], int]]] = field(default_factory=dict)
    """By pod: sets of NUMA nodes and GiB taken of them together."""

    def __post_init__(self) -> None:
        self.zones = len(next(iter(self.capacity.values())))
        for resource, amounts in self.capacity.items():
            if resource not in MEMORY:
                self.units[resource] = [[""] * amount for amount in amounts]

    def free(self) -> Units:
        """What no pod has."""
        free = {name: [zone.count("") for zone in zones] for name, zones in self.units.items()}
        for resource in set(MEMORY) & set(self.capacity):
            free[resource] = list(self.capacity[resource])
            for zones, amount in itertools.chain(*self.memory.values()):
                left = amount
                for zone in zones:
                    taken = min(left, free[resource][zone])
                    free[resource][zone] -= taken
                    left -= taken
        return free

    def remove(self, pod: str) -> None:
        """A pod ends."""
        self.memory.pop(pod, None)
        for zones in self.units.values():
            for zone in zones:
                zone[:] = ["" if user.partition("/")[0] == pod else user for user in zone]

    def admit(self, pod: Pod) -> bool:
        """Admit a pod, or reject it with TopologyAffinityError."""
        name = pod.metadata.name
        containers = [(container, True) for container in pod.spec.init_containers] + [
            (container, False) for container in pod.spec.containers
        ]
        aligned = [(self._amounts(pod, container), init) for container, init in containers]
        if self.scope == "pod":
            peak: dict[str, int] = {}
            total: dict[str, int] = {}
            for amounts, init in aligned:
                for resource, amount in amounts.items():
                    if init:
                        peak[resource] = max(peak.get(resource, 0), amount)
                    else:
                        total[resource] = total.get(resource, 0) + amount
            whole = {resource: max(peak.get(resource, 0), total.get(resource, 0)) for resource in {*peak, *total}}
            aligned = [(whole, False)]
        for amounts, init in aligned:
            mask = self._align(name, amounts)
            if mask is None:
                self.remove(name)
                return False
            self._give(name, amounts, mask, init=init)
        return True

    def _amounts(self, pod: Pod, container: Container) -> dict[str, int]:
        every = [*pod.spec.init_containers, *pod.spec.containers]
        guaranteed = all({"cpu", "memory"} <= set(each.resources.limits) for each in every)
        amounts = {}
        for resource, value in container.resources.limits.items():
            if resource in self.capacity and (guaranteed or resource == NVIDIA):
                amounts[resource] = int(str(value).removesuffix("Gi"))
        return amounts

    def _masks(self) -> list[tuple[int, ...]]:
        return [mask for size in range(1, self.zones + 1) for mask in itertools.combinations(range(self.zones), size)]

    def _align(self, pod: str, amounts: Mapping[str, int]) -> tuple[int, ...] | None:
        """Merge the hints of all resources; None if the policy rejects the best of them."""
        every = [self._hints(pod, resource, amount) for resource, amount in amounts.items()]
        if self.policy == "single-numa-node":
            every = [[hint for hint in hints if len(hint[0]) == 1 and hint[1]] for hints in every]
        best: tuple[int, ...] | None = tuple(range(self.zones)) if not every else None
        for chosen in itertools.product(*every) if every else ():
            masks, preferred = {mask for mask, _ in chosen}, all(wanted for _, wanted in chosen)
            if len(masks) > 1 or not preferred:
                continue
            (mask,) = masks
            value = sum(1 << zone for zone in mask)
            if best is None or (len(mask), value) < (len(best), sum(1 << zone for zone in best)):
                best = mask
        return best

    def _hints(self, pod: str, resource: str, amount: int) -> list[tuple[tuple[int, ...], bool]]:
        """The sets of NUMA nodes that have enough, and whether each is as small as could be."""
        least, fitting = self.zones, []
        for mask in self._masks():
            if resource in MEMORY:
                groups = [zones for zones, _ in itertools.chain(*self.memory.values())]
                if len(mask) > 1 and any(set(zones) & set(mask) and zones != mask for zones in groups):
                    continue
                if len(mask) == 1 and any(len(zones) > 1 and mask[0] in zones for zones in groups):
                    continue
                if sum(self.capacity[resource][zone] for zone in mask) < amount:
                    continue
                least = min(least, len(mask))
                if sum(self.free()[resource][zone] for zone in mask) >= amount:
                    fitting.append(mask)
                continue
            units = self.units[resource]
            if sum(len(units[zone]) for zone in mask) >= amount:
                least = min(least, len(mask))
            reusable = f"{pod}/reuse"
            if any(reusable in units[zone] for zone in range(self.zones) if zone not in mask):
                continue
            if sum(units[zone].count("") + units[zone].count(reusable) for zone in mask) >= amount:
                fitting.append(mask)
        return [(mask, len(mask) == least) for mask in fitting]

    def _give(self, pod: str, amounts: Mapping[str, int], mask: tuple[int, ...], *, init: bool) -> None:
        for resource, amount in amounts.items():
            if resource in MEMORY:
                self.memory.setdefault(pod, []).append((mask, amount))
                continue
            left = amount
            for wanted in (f"{pod}/reuse", ""):
                for zone in mask:
                    units = self.units[resource][zone]
                    for index, user in enumerate(units):
                        if left and user == wanted:
                            units[index] = f"{pod}/reuse" if init else f"{pod}/used"
                            left -= 1
            assert not left
