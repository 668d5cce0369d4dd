"""Nodes: what their readiness means for others, and for the pods on them.

A node that isn't ready gets the taints for that, its pods are no longer ready, and those that do not tolerate it are
deleted when their time is over. Pods of a node that was removed from the cluster are removed after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from topo_scheduler.simulation.apiserver import Key, ObjectVersion, Store, StoreEvent
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions
from topo_scheduler.simulation.apiserver.objects import (
    Json,
    changed,
    condition,
    is_deleting,
    is_finished,
    parse_timestamp,
    spec,
    status,
    timestamp,
    with_condition,
)
from topo_scheduler.simulation.apiserver.selectors import FieldRequirement, Selection

from .runtime import Controller

NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_OURS: Final = frozenset({NOT_READY, UNREACHABLE, _UNSCHEDULABLE})
_NODE_LIFECYCLE: Final = {"True": None, "False": NOT_READY, "Unknown": UNREACHABLE}


def tainted(node: Json, moment: str) -> Json:
    """The node with the taints that its Ready condition and its cordon call for, and without those they don't."""
    ready = (condition(node, "Ready") or {}).get("status", "Unknown")
    given = [taint for taint in spec(node).get("taints") or () if taint["key"] not in _OURS]
    kept = {(t["key"], t["effect"]): t for t in spec(node).get("taints") or ()}
    wanted: list[Json] = []
    if spec(node).get("unschedulable"):
        wanted.append({"key": _UNSCHEDULABLE, "effect": "NoSchedule"})
    # A node that never said anything about itself isn't unreachable: it has not come yet.
    key = _NODE_LIFECYCLE[ready] if condition(node, "Ready") else NOT_READY
    if key is not None:
        wanted += [{"key": key, "effect": effect, "timeAdded": moment} for effect in ("NoSchedule", "NoExecute")]
    taints = [*given, *(kept.get((t["key"], t["effect"]), t) for t in wanted)]
    return changed(node, "spec", taints=taints or None)


def seconds_left(pod: Json, node: Json, now: Any) -> float | None:
    """How long a pod may stay on a node with its NoExecute taints; None is for ever."""
    left: float | None = None
    for taint in spec(node).get("taints") or ():
        if taint["effect"] != "NoExecute":
            continue
        tolerations = [t for t in spec(pod).get("tolerations") or () if _tolerates(t, taint)]
        if not tolerations:
            return 0.0
        limits = [t["tolerationSeconds"] for t in tolerations if t.get("tolerationSeconds") is not None]
        if limits:
            since = parse_timestamp(taint["timeAdded"]) if "timeAdded" in taint else now
            until = (since + timedelta(seconds=min(limits)) - now).total_seconds()
            left = until if left is None else min(left, until)
    return None if left is None else max(left, 0.0)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def on_node(name: str) -> Selection:
    """The pods of a node."""
    return Selection(fields=(FieldRequirement(("spec", "nodeName"), name),))


def _nodes(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """A node whose readiness, cordon or taints changed; any other change means nothing here."""
    if table == "nodes" and _essence(event.before) != _essence(event.after):
        yield event.key


def _essence(node: ObjectVersion | None) -> Any:
    if node is None:
        return None
    return (
        (condition(node.obj, "Ready") or {}).get("status"),
        spec(node.obj).get("unschedulable"),
        spec(node.obj).get("taints"),
    )


def _tend(store: Store, key: Key) -> float | None:
    node = store.find("nodes", key.name)
    if node is None:
        for pod in store.list("pods", on_node(key.name)):
            _remove(store, pod)
        return None
    moment = timestamp(store.clock())
    node = store.modify("nodes", key.name, "", lambda obj: tainted(obj, moment))
    if (condition(node.obj, "Ready") or {}).get("status") == "True" and not _evicts(node):
        return None
    waits: list[float] = []
    for pod in store.list("pods", on_node(key.name)):
        if is_finished(pod.obj) or is_deleting(pod.obj):
            continue
        left = seconds_left(pod.obj, node.obj, store.clock())
        if left == 0:
            _mark(store, pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
            store.delete("pods", *pod.key.address)
            continue
        if left is not None:
            waits.append(left)
        _unready(store, pod)
    return min(waits, default=None)


def _evicts(node: ObjectVersion) -> bool:
    return any(taint["effect"] == "NoExecute" for taint in spec(node.obj).get("taints") or ())


def _unready(store: Store, pod: ObjectVersion) -> None:
    ready = condition(pod.obj, "Ready")
    if ready is not None and ready["status"] == "True":
        _set(store, pod, {"type": "Ready", "status": "False", "reason": "NodeNotReady"})


def _remove(store: Store, pod: ObjectVersion) -> None:
    """A pod without a node ends as failed and goes."""
    if not is_finished(pod.obj):
        _mark(store, pod, "DeletionByPodGC", "PodGC: node no longer exists", phase="Failed")
    store.delete("pods", *pod.key.address, DeleteOptions(grace=0))


def _mark(store: Store, pod: ObjectVersion, reason: str, message: str, **fields: str) -> None:
    _set(store, pod, {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}, **fields)


def _set(store: Store, pod: ObjectVersion, new: Json, **fields: str) -> None:
    conditions = with_condition(status(pod.obj).get("conditions"), new, store.clock())
    store.modify(
        "pods",
        *pod.key.address,
        lambda obj: changed(obj, "status", conditions=conditions, **fields),
        subresource="status",
    )


CONTROLLER: Final = Controller("nodes", _nodes, _tend)
