"""What a NodeResourceTopology reports about the NUMA nodes of a machine."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from topo_scheduler.api.numa import NodeResourceTopology, NumaResource, TopologyZone
from topo_scheduler.api.quantity import QuantityError, parse_quantity

NumaAmounts = tuple[tuple[str, int], ...]
"""Pairs of resource name and positive amount, in order of name: CPU in milli-CPU, others in whole units."""
MAX_ZONES: Final = 64
"""NUMA nodes of a machine; an object with more is not used."""
MAX_RESTRICTED_ZONES: Final = 8
"""The same under the policy ``restricted``, for which each set of NUMA nodes is judged."""
MAX_ZONE_RESOURCES: Final = 32
_NUMBER: Final = re.compile(r"\D*(\d{1,4})", re.ASCII)


class NumaPolicy(StrEnum):
    """Policies of the kubelet's Topology Manager."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


ENFORCED: Final = (NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE)
"""Policies under which the kubelet rejects pods."""


class NumaScope(StrEnum):
    """Scopes of the kubelet's Topology Manager: it aligns each container, or all of a pod together."""

    CONTAINER = "container"
    POD = "pod"


_OLD_POLICIES: Final = {
    "SingleNUMANodePodLevel": (NumaPolicy.SINGLE_NUMA_NODE, NumaScope.POD),
    "SingleNUMANodeContainerLevel": (NumaPolicy.SINGLE_NUMA_NODE, NumaScope.CONTAINER),
    "SingleNUMANode": (NumaPolicy.SINGLE_NUMA_NODE, NumaScope.CONTAINER),
    "RestrictedPodLevel": (NumaPolicy.RESTRICTED, NumaScope.POD),
    "RestrictedContainerLevel": (NumaPolicy.RESTRICTED, NumaScope.CONTAINER),
    "Restricted": (NumaPolicy.RESTRICTED, NumaScope.CONTAINER),
    "BestEffortPodLevel": (NumaPolicy.BEST_EFFORT, NumaScope.POD),
    "BestEffortContainerLevel": (NumaPolicy.BEST_EFFORT, NumaScope.CONTAINER),
    "BestEffort": (NumaPolicy.BEST_EFFORT, NumaScope.CONTAINER),
    "None": (NumaPolicy.NONE, NumaScope.CONTAINER),
}
_POLICY, _SCOPE = "topologyManagerPolicy", "topologyManagerScope"


class NumaReportError(Exception):
    """A NodeResourceTopology that can't be used; the text names the field."""


@dataclass(frozen=True, slots=True)
class NumaReport:
    """What a NodeResourceTopology says about a node.

    Attributes:
        policy: policy of the Topology Manager.
        scope: what it aligns.
        zones: names of the NUMA nodes in order of their numbers.
        resources: names of the resources that any of them has, in order.
        capacity: for each resource, its amount by NUMA node.
        allocatable: the same, as far as pods may have it.
        available: the same, as far as no pod has it.
    """

    policy: NumaPolicy
    scope: NumaScope
    zones: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    capacity: tuple[tuple[int, ...], ...] = ()
    allocatable: tuple[tuple[int, ...], ...] = ()
    available: tuple[tuple[int, ...], ...] = ()

    @property
    def enforced(self) -> bool:
        """Whether the kubelet rejects pods that it can't align."""
        return self.policy in ENFORCED

    @property
    def machine(self) -> object:
        """Everything but what is free."""
        return self.policy, self.scope, self.zones, self.resources, self.capacity, self.allocatable


def read_report(item: NodeResourceTopology) -> NumaReport:
    """Read an object.

    Raises:
        NumaReportError: it contradicts itself or can't be read.
    """
    policy, scope = _settings(item)
    if policy not in ENFORCED:
        return NumaReport(policy, scope)
    zones = [zone for zone in item.zones or () if zone.type == "Node"]
    limit = MAX_RESTRICTED_ZONES if policy is NumaPolicy.RESTRICTED else MAX_ZONES
    if not zones:
        raise NumaReportError(f"zones: none has the type Node, although the policy is {policy}")
    if len(zones) > limit:
        raise NumaReportError(f"zones: {len(zones):,} NUMA nodes, of {limit} at most under the policy {policy}")
    numbered = {_number(zone): zone for zone in zones}
    if len(numbered) < len(zones):
        raise NumaReportError("zones: two NUMA nodes have the same number")
    ordered = [numbered[number] for number in sorted(numbered)]
    read = [_resources(zone) for zone in ordered]
    names = tuple(sorted({name for resources in read for name in resources}))
    parts = [[tuple(of.get(name, (0, 0, 0))[part] for of in read) for name in names] for part in range(3)]
    return NumaReport(policy, scope, tuple(zone.name for zone in ordered), names, *(tuple(part) for part in parts))


def _settings(item: NodeResourceTopology) -> tuple[NumaPolicy, NumaScope]:
    policy, scope = NumaPolicy.NONE, NumaScope.CONTAINER
    for old in (item.topology_policies or ())[:1]:
        if old not in _OLD_POLICIES:
            raise NumaReportError(f"topologyPolicies: {old[:64]!r} is not a known policy")
        policy, scope = _OLD_POLICIES[old]
    seen: dict[str, str] = {}
    for attribute in item.attributes or ():
        name, value = attribute.name, attribute.value
        if name not in (_POLICY, _SCOPE):
            continue
        if seen.setdefault(name, value) != value:
            raise NumaReportError(f"attributes: {name} is both {seen[name][:64]!r} and {value[:64]!r}")
        try:
            if name == _POLICY:
                policy = NumaPolicy(value)
            else:
                scope = NumaScope(value)
        except ValueError:
            known = ", ".join(NumaPolicy if name == _POLICY else NumaScope)
            raise NumaReportError(f"attributes: {name}: {value[:64]!r} is none of {known}") from None
    return policy, scope


def _number(zone: TopologyZone) -> int:
    match = _NUMBER.fullmatch(zone.name[:64])
    if match is None:
        raise NumaReportError(f"zones: {zone.name[:64]!r} does not end with the number of a NUMA node")
    return int(match[1])


def _resources(zone: TopologyZone) -> dict[str, tuple[int, int, int]]:
    """Return capacity, allocatable and available amounts of a NUMA node by resource."""
    entries = zone.resources or []
    if len(entries) > MAX_ZONE_RESOURCES:
        raise NumaReportError(f"zone {zone.name}: {len(entries):,} resources, of {MAX_ZONE_RESOURCES} at most")
    resources: dict[str, tuple[int, int, int]] = {}
    for entry in entries:
        where = f"zone {zone.name}: {entry.name[:64]}"
        if entry.name in resources:
            raise NumaReportError(f"{where} is listed twice")
        try:
            resources[entry.name] = _amounts(entry)
        except QuantityError as error:
            raise NumaReportError(f"{where}: {error}") from error
        capacity, allocatable, available = resources[entry.name]
        if not available <= allocatable <= capacity:
            raise NumaReportError(
                f"{where}: available {entry.available}, allocatable {entry.allocatable} and capacity {entry.capacity}"
                " contradict each other"
            )
    return resources


def _amounts(entry: NumaResource) -> tuple[int, int, int]:
    scale = 1000 if entry.name == "cpu" else 1
    if entry.allocatable is None or entry.available is None:
        raise QuantityError("allocatable or available is missing")
    allocatable, available = (parse_quantity(value, scale) for value in (entry.allocatable, entry.available))
    return (allocatable if entry.capacity is None else parse_quantity(entry.capacity, scale)), allocatable, available


def is_memory(resource: str) -> bool:
    """Return whether the kubelet's Memory Manager gives a resource to containers."""
    return resource == "memory" or resource.startswith("hugepages-")
