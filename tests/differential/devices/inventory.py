"""The devices of a case, read as the documentation of the API describes them (k8s.io/api/resource/v1/types.go).

Nothing here is taken from an allocator, neither from Kubernetes' nor from ours: it is what both are judged by.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Final

from tests.differential.choices import Json

_QUANTITY: Final = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:[eE]([+-]?\d+)|(n|u|m|k|Ki|[MGTPE]i?))?")
_SUFFIXES: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    **{suffix: Fraction(1000 ** (power + 2)) for power, suffix in enumerate("MGTPE")},
    **{f"{suffix}i": Fraction(1024 ** (power + 1)) for power, suffix in enumerate("KMGTPE")},
}

DeviceID = tuple[str, str, str]
"""Driver, pool and name."""


@lru_cache(maxsize=4096)
def quantity(text: str | int) -> Fraction:
    """A quantity as the exact number it is."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, exponent, suffix = match.groups()
    return Fraction(number) * (_SUFFIXES[suffix] if suffix else Fraction(10) ** int(exponent or 0))


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version; strings with the same text are another type."""

    text: str


AttributeValue = str | int | bool | Version
ATTRIBUTE_TYPES: Final = frozenset(("string", "int", "bool", "version"))


def full_name(driver: str, name: str) -> str:
    """The name of an attribute or a capacity with its domain; names without one have the driver's."""
    return name if "/" in name else f"{driver}/{name}"


@dataclass(frozen=True)
class Device:
    """A device in the newest generation of a complete, valid pool that the node has access to."""

    driver: str
    pool: str
    raw: Json
    slice: Json
    """The spec of the ResourceSlice."""

    @property
    def id(self) -> DeviceID:
        return self.driver, self.pool, self.raw["name"]

    @cached_property
    def attributes(self) -> dict[str, AttributeValue]:
        """By name with its domain; names without one have the driver's."""
        attributes: dict[str, AttributeValue] = {}
        for name, value in self.raw.get("attributes", {}).items():
            for kind in ATTRIBUTE_TYPES & set(value):
                attributes[full_name(self.driver, name)] = Version(value[kind]) if kind == "version" else value[kind]
        return attributes

    @property
    def attributes_known(self) -> bool:
        """Whether all attributes have a type that selectors know; lists do not, unless a feature gate is on."""
        return all(ATTRIBUTE_TYPES & set(value) for value in self.raw.get("attributes", {}).values())

    @cached_property
    def capacity(self) -> dict[str, Fraction]:
        return {
            full_name(self.driver, name): quantity(each["value"]) for name, each in self.raw.get("capacity", {}).items()
        }

    @property
    def shareable(self) -> bool:
        return bool(self.raw.get("allowMultipleAllocations"))

    @property
    def counters(self) -> Iterator[tuple[str, str, Fraction]]:
        """What the device consumes: counter set, counter and amount."""
        for consumption in self.raw.get("consumesCounters", ()):
            for name, counter in consumption.get("counters", {}).items():
                yield consumption["counterSet"], name, quantity(counter["value"])

    @property
    def node_selection(self) -> Json:
        """The object that says which nodes have access: the device itself or its slice."""
        return self.raw if self.slice.get("perDeviceNodeSelection") else self.slice


@dataclass(slots=True)
class Pool:
    """The slices of the newest generation of a pool."""

    driver: str
    name: str
    slices: list[Json]
    """The specs."""

    problem: str | None = None
    """Why no device may be allocated, if any may not."""

    concerns_node: bool = False
    """Whether the node has access to a slice, or to a device of one."""

    devices: list[Device] = field(default_factory=list)
    """Those that the node has access to."""

    every_device: list[Device] = field(default_factory=list)
    counters: dict[tuple[str, str], Fraction] = field(default_factory=dict)
    """How much there is, by counter set and counter."""


def pools(case: Mapping[str, Any]) -> list[Pool]:
    """The pools of a case that concern its node, or have counters, whichever generation is the newest."""
    by_name: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for each in case.get("slices", ()):
        spec = each["spec"]
        by_name[spec["driver"], spec["pool"]["name"]].append(spec)
    read: list[Pool] = []
    for (driver, name), specs in by_name.items():
        newest = max(spec["pool"].get("generation", 0) for spec in specs)
        pool = Pool(driver, name, [spec for spec in specs if spec["pool"].get("generation", 0) == newest])
        _read(pool, case["node"])
        read.append(pool)
    return read


def _read(pool: Pool, node: Json) -> None:
    names: set[str] = set()
    counter_sets: set[str] = set()
    for spec in pool.slices:
        for raw in spec.get("devices", ()):
            device = Device(pool.driver, pool.name, raw, spec)
            pool.every_device.append(device)
            if accessible(device.node_selection, node):
                pool.devices.append(device)
        if any(accessible(selection, node) for selection in _selections(spec)):
            pool.concerns_node = True
            for raw in spec.get("devices", ()):
                if raw["name"] in names:
                    pool.problem = f"two devices are named {raw['name']}"
                names.add(raw["name"])
        for counter_set in spec.get("sharedCounters", ()):
            if counter_set["name"] in counter_sets:
                pool.problem = f"two counter sets are named {counter_set['name']}"
            counter_sets.add(counter_set["name"])
            for name, counter in counter_set.get("counters", {}).items():
                pool.counters[counter_set["name"], name] = quantity(counter["value"])
    for device in pool.every_device:
        for consumption in device.raw.get("consumesCounters", ()):
            if consumption["counterSet"] not in counter_sets:
                pool.problem = f"counter set {consumption['counterSet']} does not exist"
        for counter_set_name, name, _ in device.counters:
            if (counter_set_name, name) not in pool.counters:
                pool.problem = f"counter {counter_set_name}/{name} does not exist"
    count = pool.slices[0]["pool"]["resourceSliceCount"]
    if len(pool.slices) != count:
        pool.problem = f"has {len(pool.slices)} of {count} slices"


def _selections(spec: Json) -> Iterable[Json]:
    return spec.get("devices", ()) if spec.get("perDeviceNodeSelection") else (spec,)


def accessible(selection: Mapping[str, Any], node: Json) -> bool:
    """Whether a node name, a node selector or "all nodes" of a slice or a device holds for a node."""
    if selection.get("nodeName"):
        return bool(selection["nodeName"] == node["metadata"]["name"])
    if selection.get("allNodes"):
        return True
    return "nodeSelector" in selection and selected(selection["nodeSelector"], node)


def selected(selector: Json, node: Json) -> bool:
    """Whether a node selector holds for a node; its terms are alternatives."""
    return any(_term_holds(term, node) for term in selector["nodeSelectorTerms"])


def _term_holds(term: Json, node: Json) -> bool:
    labels, fields = node["metadata"].get("labels", {}), {"metadata.name": node["metadata"]["name"]}
    requirements = [(each, labels) for each in term.get("matchExpressions", ())]
    requirements += [(each, fields) for each in term.get("matchFields", ())]
    return bool(requirements) and all(_requirement_holds(each, values) for each, values in requirements)


def _requirement_holds(requirement: Json, values: Mapping[str, str]) -> bool:
    value = values.get(requirement["key"])
    match requirement["operator"]:
        case "In":
            return value in requirement["values"]
        case "NotIn":
            return value not in requirement["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise NotImplementedError(f"operator {requirement['operator']} of node selectors")
