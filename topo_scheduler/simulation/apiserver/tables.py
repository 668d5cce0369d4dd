"""The columns of ``kubectl get`` by kind, as functions of the object.

The server, not kubectl, decides the columns (``Accept: application/json;as=Table``). Kinds without an entry have name
and age; custom resources have the columns of their definition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .kinds import ApiKind
from .objects import Json, condition, dig, is_deleting, meta, parse_timestamp, spec, status

Cell = Callable[[Json, datetime], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column; columns of priority 1 are shown with ``-o wide``."""

    name: str
    cell: Cell
    priority: int = 0
    type: str = "string"

    def definition(self) -> Json:
        """Return the column definition for a ``Table``."""
        name_format = "name" if self.name == "Name" else ""
        return {
            "name": self.name, "type": self.type, "format": name_format, "description": self.name,
            "priority": self.priority,
        }  # fmt: skip


def columns(kind: ApiKind) -> Sequence[Column]:
    """Return the columns of a kind."""
    if kind.printed:
        return (NAME, *(_printed(column) for column in kind.printed))
    return _COLUMNS.get(kind.id, _DEFAULT)


def human_duration(seconds: float) -> str:
    """Return a duration in the format of kubectl, which is coarser for longer durations."""
    whole_seconds = int(seconds)
    if whole_seconds < 120:
        return f"{max(whole_seconds, 0)}s"
    minutes = whole_seconds // 60
    if minutes < 10:
        return f"{minutes}m{whole_seconds % 60}s" if whole_seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    return f"{days // 365}y"


def _cell(path: str, show: Callable[[Any, datetime], Any]) -> Cell:
    """Return a cell that shows the value at a path, which may be None."""
    steps = path.split(".")
    return lambda obj, now: show(dig(obj, steps), now)


def _age(moment: str | None, now: datetime) -> str:
    return human_duration((now - parse_timestamp(moment)).total_seconds()) if moment else "<unknown>"


def _at(path: str, default: Any = "") -> Cell:
    return _cell(path, lambda value, now: default if value is None else value)


def _text(path: str, default: str = "<none>") -> Cell:
    return _cell(path, lambda value, now: default if value in (None, "") else str(value))


def _count(path: str) -> Cell:
    return _cell(path, lambda value, now: len(value or ()))


def _ratio(done: str, total: str) -> Cell:
    done_cell, total_cell = _at(done, 0), _at(total, 0)
    return lambda obj, now: f"{done_cell(obj, now)}/{total_cell(obj, now)}"


NAME = Column("Name", lambda obj, now: meta(obj).get("name", ""))
AGE = Column("Age", _cell("metadata.creationTimestamp", _age))
_DEFAULT = (NAME, AGE)


def _pod_status(pod: Json, now: datetime) -> str:
    pod_status = status(pod)
    if is_deleting(pod):
        return "Terminating"
    if pod_status.get("reason"):
        return str(pod_status["reason"])
    if spec(pod).get("schedulingGates") and pod_status.get("phase") == "Pending":
        return "SchedulingGated"
    waiting_reasons = (
        dig(container, ("state", "waiting", "reason")) for container in pod_status.get("containerStatuses") or ()
    )
    reason = next(filter(None, waiting_reasons), None)
    finished = {"Succeeded": "Completed", "Failed": "Error"}
    phase = pod_status.get("phase", "")
    return str(reason or finished.get(phase, phase))


def _ready_containers(pod: Json, now: datetime) -> str:
    ready = sum(bool(container.get("ready")) for container in status(pod).get("containerStatuses") or ())
    return f"{ready}/{len(spec(pod).get('containers') or ())}"


def _restarts(pod: Json, now: datetime) -> str:
    return str(sum(container.get("restartCount", 0) for container in status(pod).get("containerStatuses") or ()))


def _node_status(node: Json, now: datetime) -> str:
    ready = condition(node, "Ready")
    state = "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    return state + ",SchedulingDisabled" if spec(node).get("unschedulable") else state


def _node_roles(node: Json, now: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = sorted(label.removeprefix(prefix) for label in meta(node).get("labels") or {} if label.startswith(prefix))
    return ",".join(roles) or "<none>"


def _job_status(job: Json, now: datetime) -> str:
    for condition_type in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if (condition(job, condition_type) or {}).get("status") == "True":
            return condition_type
    return "Terminating" if is_deleting(job) else "Running"


def _job_completions(job: Json, now: datetime) -> str:
    completions = spec(job).get("completions")
    total = f"1 of {spec(job)['parallelism']}" if completions is None else completions
    return f"{status(job).get('succeeded', 0)}/{total}"


def _job_duration(job: Json, now: datetime) -> str:
    start, end = status(job).get("startTime"), status(job).get("completionTime")
    if not start:
        return ""
    return human_duration(((parse_timestamp(end) if end else now) - parse_timestamp(start)).total_seconds())


def _event_object(event: Json, now: datetime) -> str:
    involved = event.get("involvedObject") or {}
    return f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"


def _event_age(event: Json, now: datetime) -> str:
    last = dig(event, ("series", "lastObservedTime"))
    last = last or event.get("lastTimestamp") or event.get("eventTime") or meta(event).get("creationTimestamp")
    return _age(last, now)


def _subjects(binding: Json, now: datetime) -> str:
    return f"{dig(binding, ('roleRef', 'kind'))}/{dig(binding, ('roleRef', 'name'))}"


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(obj: Json, now: datetime) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in spec(obj).get("accessModes") or ())


def _claim_of_volume(volume: Json, now: datetime) -> str:
    reference = spec(volume).get("claimRef")
    return f"{reference.get('namespace')}/{reference.get('name')}" if reference else ""


_COLUMNS: dict[str, tuple[Column, ...]] = {
    "pods": (
        NAME, Column("Ready", _ready_containers), Column("Status", _pod_status), Column("Restarts", _restarts), AGE,
        Column("IP", _text("status.podIP"), 1), Column("Node", _text("spec.nodeName"), 1),
        Column("Nominated Node", _text("status.nominatedNodeName"), 1),
        Column("Readiness Gates", lambda obj, now: "<none>", 1),
    ),
    "nodes": (
        NAME, Column("Status", _node_status), Column("Roles", _node_roles), AGE,
        Column("Version", _at("status.nodeInfo.kubeletVersion")),
        Column("GPUs", lambda obj, now: (status(obj).get("allocatable") or {}).get("nvidia.com/gpu", "0"), 1),
    ),
    "namespaces": (NAME, Column("Status", _at("status.phase")), AGE),
    "events": (
        Column("Last Seen", _event_age), Column("Type", _at("type")), Column("Reason", _at("reason")),
        Column("Object", _event_object), Column("Message", _at("message")), Column("Name", NAME.cell, 1),
    ),
    "configmaps": (NAME, Column("Data", _count("data"), type="integer"), AGE),
    "secrets": (NAME, Column("Type", _at("type", "Opaque")), Column("Data", _count("data"), type="integer"), AGE),
    "services": (
        NAME, Column("Type", _at("spec.type", "ClusterIP")), Column("Cluster-IP", _text("spec.clusterIP")), AGE,
    ),
    "persistentvolumeclaims": (
        NAME, Column("Status", _at("status.phase")), Column("Volume", _at("spec.volumeName")),
        Column("Capacity", _at("status.capacity.storage")), Column("Access Modes", _modes),
        Column("StorageClass", _at("spec.storageClassName")), AGE,
    ),
    "persistentvolumes": (
        NAME, Column("Capacity", _at("spec.capacity.storage")), Column("Access Modes", _modes),
        Column("Reclaim Policy", _at("spec.persistentVolumeReclaimPolicy", "Retain")),
        Column("Status", _at("status.phase")), Column("Claim", _claim_of_volume),
        Column("StorageClass", _at("spec.storageClassName")), AGE,
    ),
    "storageclasses.storage.k8s.io": (
        NAME, Column("Provisioner", _at("provisioner")), Column("ReclaimPolicy", _at("reclaimPolicy", "Delete")),
        Column("VolumeBindingMode", _at("volumeBindingMode", "Immediate")), AGE,
    ),
    "jobs.batch": (
        NAME, Column("Status", _job_status), Column("Completions", _job_completions),
        Column("Duration", _job_duration), AGE,
    ),
    "deployments.apps": (
        NAME, Column("Ready", _ratio("status.readyReplicas", "spec.replicas")),
        Column("Up-to-date", _at("status.updatedReplicas", 0), type="integer"),
        Column("Available", _at("status.availableReplicas", 0), type="integer"), AGE,
    ),
    "replicasets.apps": (
        NAME, Column("Desired", _at("spec.replicas", 0), type="integer"),
        Column("Current", _at("status.replicas", 0), type="integer"),
        Column("Ready", _at("status.readyReplicas", 0), type="integer"), AGE,
    ),
    "statefulsets.apps": (NAME, Column("Ready", _ratio("status.readyReplicas", "spec.replicas")), AGE),
    "daemonsets.apps": (
        NAME, Column("Desired", _at("status.desiredNumberScheduled", 0), type="integer"),
        Column("Ready", _at("status.numberReady", 0), type="integer"), AGE,
    ),
    "leases.coordination.k8s.io": (NAME, Column("Holder", _at("spec.holderIdentity")), AGE),
    "priorityclasses.scheduling.k8s.io": (
        NAME, Column("Value", _at("value", 0), type="integer"), Column("Global-Default", _at("globalDefault", False)),
        AGE, Column("PreemptionPolicy", _at("preemptionPolicy")),
    ),
    "poddisruptionbudgets.policy": (
        NAME, Column("Min Available", _text("spec.minAvailable", "N/A")),
        Column("Max Unavailable", _text("spec.maxUnavailable", "N/A")),
        Column("Allowed Disruptions", _at("status.disruptionsAllowed", 0), type="integer"), AGE,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (NAME, Column("Created At", _at("metadata.creationTimestamp"))),
    "rolebindings.rbac.authorization.k8s.io": (NAME, Column("Role", _subjects), AGE),
    "clusterrolebindings.rbac.authorization.k8s.io": (NAME, Column("Role", _subjects), AGE),
}  # fmt: skip
_COLUMNS["events.events.k8s.io"] = _COLUMNS["events"]

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\?\(@\.(\w+)==[\"'](\w+)[\"']\)\]|\[[\"']([^\"']+)[\"']\]")


def _printed(column: Json) -> Column:
    kind = column["type"]
    return Column(column["name"], _json_path(column["jsonPath"], kind), column.get("priority", 0), kind)


def _json_path(path: str, kind: str) -> Cell:
    """Return a cell for a JSONPath; supports fields, indices and filters by equality."""
    steps = [match.groups() for match in _STEP.finditer(path.replace("\\.", "\0"))]

    def cell(obj: Any, now: datetime) -> Any:
        for field, index, key, value, quoted in steps:
            if index is not None:
                obj = obj[int(index)] if isinstance(obj, list) and int(index) < len(obj) else None
            elif key is not None:
                obj = next((item for item in obj or () if item.get(key) == value), None)
            else:
                obj = obj.get((field or quoted).replace("\0", ".")) if isinstance(obj, dict) else None
        return _age(obj, now) if kind == "date" and obj else obj

    return cell
