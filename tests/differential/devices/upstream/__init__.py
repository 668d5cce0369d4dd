"""Kubernetes' own table of tests of its allocator, as cases with the answer that the table expects.

The cases are those of ``structured/internal/allocatortesting`` in k8s.io/dynamic-resource-allocation v0.36.3, which is
under the Apache License 2.0, as this project is. ``python -m tests.differential.devices.upstream`` makes them again.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.differential.choices import Json
from tests.differential.devices.comparison import Allocate, Comparison, add
from tests.differential.devices.generator import Case
from tests.differential.devices.oracle import Answer

PATH: Final = Path(__file__).with_name("cases.json.gz")


_LISTS: Final = "lists as attributes (DRAListTypeAttributes) are off by default"
_COMMON: Final = ("with-common-elements", "with-partially-common-elements", "without-common-elements")

LEFT_OUT: Final[dict[str, str]] = {
    **{f"list-attributes-match-constaint-list-of-string-values-{elements}": _LISTS for elements in _COMMON},
    **{
        f"list-attributes-match-constaint-mixed-scalar-and-list-of-string-values-{elements}": _LISTS
        for elements in _COMMON
    },
    **{
        f"list-attributes-match-constaint-list-of-{kind}-values-with-common-elements": _LISTS
        for kind in ("bool", "int", "version")
    },
    **{
        f"list-attributes-distinct-constraint-list-of-{kind}-values-all-distinct": _LISTS
        for kind in ("bool", "int", "string", "version")
    },
    "list-attributes-distinct-constraint-list-of-string-values-with-common-elements": _LISTS,
    "list-attributes-distinct-constraint-mixed-scalar-and-list-all-distinct": _LISTS,
    "list-attributes-distinct-constraint-mixed-scalar-and-list-with-common-elements": _LISTS,
    "admin-access-disabled": "expects an error, as DRAAdminAccess is off",
    "binding-conditions-without-feature-gate": "expects such devices to be left out, as the feature is off",
    "consumable-capacity-disabled-feature": "expects an error, as DRAConsumableCapacity is off",
    "consumable-capacity-disabled-feature-with-prioritized-list": "expects an error, as DRAConsumableCapacity is off",
    "partitionable-devices-disabled-other-device-do-not-consume-counters": "expects such devices to be left out",
    "partitionable-devices-disabled-per-device-node-selection": "expects such slices to be left out",
    "prioritized-list-disabled": "expects an error, as DRAPrioritizedList is off",
    "tainted-admin-access-disabled": "expects taints to be ignored, as DRADeviceTaints is off",
    "tainted-all-devices-single-disabled": "expects taints to be ignored, as DRADeviceTaints is off",
    "tainted-disabled": "expects taints to be ignored, as DRADeviceTaints is off",
    "tainted-prioritized-list-disabled": "expects taints to be ignored, as DRADeviceTaints is off",
}
"""Cases that expect something else than Kubernetes 1.36 does by default, because a feature gate is on or off for them.

The misspelt names are those of the table.
"""

AGAINST_THE_DOCUMENTATION: Final = frozenset(
    {
        "multi-host-resource-pool-complete-update-from-node-1-to-node-2",
        "multi-host-resource-pool-incomplete-update-from-node-1-to-node-2",
    }
)
"""Cases in which devices of an older generation are allocated, because the newer one is for other nodes only.

The API's documentation says that consumers must only use the newest generation, so an allocator may do either.
"""


@dataclass(frozen=True, slots=True)
class UpstreamCase:
    """A case of the table."""

    name: str
    features: tuple[str, ...]
    """The optional features that are on for it; in Kubernetes 1.36 all but lists as attributes are, by default."""

    case: Case
    answer: Answer


def upstream_cases() -> list[UpstreamCase]:
    """All cases, by name."""
    content = json.loads(gzip.decompress(PATH.read_bytes()))
    return [_read(record) for record in content["cases"]]


def compared_cases() -> list[UpstreamCase]:
    """The cases whose answer is that of Kubernetes 1.36 by default, and of the documentation."""
    return [each for each in upstream_cases() if each.name not in {*LEFT_OUT, *AGAINST_THE_DOCUMENTATION}]


def compare_upstream(allocate: Allocate) -> Comparison:
    """Compare an allocator with the answers that the table expects; no Go program is asked."""
    comparison = Comparison()
    for each in compared_cases():
        add(comparison, {**each.case, "features": [each.name]}, each.answer, allocate)
    return comparison


def _read(record: Json) -> UpstreamCase:
    case = {name: record[name] or [] for name in ("node", "slices", "classes", "claims")}
    case["allocated"] = list(_allocated(record))
    if record["completed"]:
        answer = Answer(record["results"] or [])
    elif record.get("error") and not record.get("onNode"):
        answer = Answer(error=record["error"])
    else:
        answer = Answer()
    return UpstreamCase(record["name"], tuple(record["features"]), case, answer)


def _allocated(record: Json) -> Iterator[Json]:
    """A claim for each device in use. What is consumed of a shared device is known only in sum: one share has it."""
    results = list(record["devices"] or [])
    consumed = {_key(each): each["capacity"] for each in record["consumed"] or []}
    unnamed = "ffffffff-ffff-ffff-ffff-ffffffffffff"
    shared = {_key(each) for each in record["shares"] or []}
    shares = [*(record["shares"] or []), *_without_share(record, shared, unnamed)]
    for share in shares:
        capacity = consumed.pop(_key(share), None)
        results.append({**share, **({"consumedCapacity": capacity} if capacity is not None else {})})
    for index, result in enumerate(results):
        yield {
            "metadata": {"name": f"allocated-{index}", "namespace": "default", "uid": f"uid-allocated-{index}"},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": {"devices": {"results": [{"request": "request", **result}]}}},
        }


def _without_share(record: Json, shared: set[tuple[str, str, str]], share_id: str) -> Iterator[Json]:
    for each in record["consumed"] or []:
        if _key(each) not in shared:
            yield {"driver": each["driver"], "pool": each["pool"], "device": each["device"], "shareID": share_id}


def _key(device: Json) -> tuple[str, str, str]:
    return device["driver"], device["pool"], device["device"]
