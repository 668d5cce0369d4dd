"""The fields of a node from which recovery detects failures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from topo_scheduler.api.migrations import Cause
from topo_scheduler.api.recovery import RecoverySpec

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
DEVICE_PLUGIN_SECONDS: Final = 300.0
"""Seconds for which a node may offer none of its GPUs: kubelets wait as long for a device plugin that restarts.

Containers that run keep their GPUs meanwhile.
"""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The relevant fields of a node. ``ready`` is the status of its condition Ready, empty if it has none.

    ``missing`` are GPUs of its capacity that are not allocatable, by resource. ``offers_none``: these are all that it
    has of these resources. ``links`` describes degraded links, from its labels.
    """

    name: str
    uid: str
    ready: str = "True"
    reason: str = ""
    cordoned: bool = False
    taints: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    missing: tuple[tuple[str, int], ...] = ()
    offers_none: bool = False
    links: str = ""

    @property
    def out_of_service(self) -> bool:
        """Whether an administrator marked the machine as switched off."""
        return OUT_OF_SERVICE in self.taints


@dataclass(frozen=True, slots=True)
class NodeProblem:
    """A problem of a node. ``text`` continues "node x"; ``pods`` indicate it, as ``namespace/name (reason)``.

    It counts after ``least_seconds``, or after the debounce if that is longer.
    """

    cause: Cause
    text: str
    pods: tuple[str, ...] = ()
    least_seconds: float = 0.0


def read_health(node: Mapping[str, Any], spec: RecoverySpec, gpu_resources: tuple[str, ...]) -> NodeHealth:
    """Return the health of a node's object. Fields that are not as in the API are ignored."""
    meta, status = _mapping(node.get("metadata")), _mapping(node.get("status"))
    own = _mapping(node.get("spec"))
    conditions = [_mapping(condition) for condition in status.get("conditions") or ()]
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), {})
    labels = _mapping(meta.get("labels"))
    links = [
        f"{pair.current} is {labels[pair.current]} and {pair.expected} {labels[pair.expected]}"
        for pair in spec.link_labels
        if pair.current in labels and pair.expected in labels and labels[pair.current] != labels[pair.expected]
    ]
    taints = sorted(str(_mapping(taint).get("key", "")) for taint in own.get("taints") or ())
    missing = _missing(status, gpu_resources) if spec.unhealthy_gpus else []
    return NodeHealth(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        ready=str(ready.get("status", "")),
        reason=str(ready.get("reason", "")),
        cordoned=bool(own.get("unschedulable")),
        taints=tuple(taints),
        conditions=tuple(
            sorted(
                str(condition["type"])
                for condition in conditions
                if condition.get("status") == "True" and condition.get("type") in spec.conditions
            )
        ),
        missing=tuple((resource, has - offers) for resource, has, offers in missing),
        offers_none=not any(offers for _, _, offers in missing),
        links="; ".join(links),
    )


def problem_of(health: NodeHealth, spec: RecoverySpec) -> NodeProblem | None:
    """Return the most severe problem of a node, or None."""
    because = f" ({health.reason})" if health.reason else ""
    if health.ready == "Unknown":
        return NodeProblem(Cause.UNREACHABLE, f"is unreachable{because}")
    if health.ready == "False":
        return NodeProblem(Cause.NOT_READY, f"is not ready{because}")
    if health.out_of_service:
        return NodeProblem(Cause.NOT_READY, f"has the taint {OUT_OF_SERVICE}")
    if health.conditions:
        return NodeProblem(Cause.CONDITION, f"has the condition {', '.join(health.conditions)}")
    if health.missing:
        lost = ", ".join(f"{count} of {resource}" for resource, count in health.missing)
        text = f"offers less than it has: {lost} missing"
        return NodeProblem(Cause.GPUS, text, least_seconds=DEVICE_PLUGIN_SECONDS if health.offers_none else 0.0)
    if health.links:
        return NodeProblem(Cause.LINKS, f"has degraded links: {health.links}")
    named = [taint for taint in health.taints if taint in spec.maintenance_taints]
    if health.cordoned and named:
        return NodeProblem(Cause.MAINTENANCE, f"is cordoned with the taint {named[0]}")
    if leaving := [taint for taint in health.taints if taint in spec.scale_down_taints]:
        return NodeProblem(Cause.SCALE_DOWN, f"is to be removed: it has the taint {leaving[0]}")
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _missing(status: Mapping[str, Any], gpu_resources: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Return the resources of which a node offers less than it has, with both numbers."""
    capacity, allocatable = _mapping(status.get("capacity")), _mapping(status.get("allocatable"))
    missing = []
    for resource in gpu_resources:
        has, offers = str(capacity.get(resource, "")), str(allocatable.get(resource, ""))
        if has.isdecimal() and offers.isdecimal() and int(offers) < int(has):
            missing.append((resource, int(has), int(offers)))
    return missing
