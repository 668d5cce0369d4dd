"""The node controller: taints of nodes, and eviction of pods from unready or removed nodes.

A node that is not ready gets the taints for that, and its pods become unready. Pods that do not tolerate the taints are
deleted after their toleration seconds. Pods of a removed node are removed too.
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
    is_ready,
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
_MANAGED_TAINTS: Final = frozenset({NOT_READY, UNREACHABLE, _UNSCHEDULABLE})
_NODE_LIFECYCLE: Final = {"True": None, "False": NOT_READY, "Unknown": UNREACHABLE}


def tainted(node: Json, moment: str) -> Json:
    """Return the node with exactly the managed taints that its Ready condition and its cordon require."""
    ready = (condition(node, "Ready") or {}).get("status", "Unknown")
    other_taints = [taint for taint in spec(node).get("taints") or () if taint["key"] not in _MANAGED_TAINTS]
    current = {(taint["key"], taint["effect"]): taint for taint in spec(node).get("taints") or ()}
    required: list[Json] = []
    if spec(node).get("unschedulable"):
        required.append({"key": _UNSCHEDULABLE, "effect": "NoSchedule"})
    # A node without a Ready condition has not registered yet, so it is not ready rather than unreachable.
    key = _NODE_LIFECYCLE[ready] if condition(node, "Ready") else NOT_READY
    if key is not None:
        required += [{"key": key, "effect": effect, "timeAdded": moment} for effect in ("NoSchedule", "NoExecute")]
    taints = [*other_taints, *(current.get((taint["key"], taint["effect"]), taint) for taint in required)]
    return changed(node, "spec", taints=taints or None)


def seconds_left(pod: Json, node: Json, now: Any) -> float | None:
    """Return how long a pod may stay on a node with its NoExecute taints, in seconds; None is for ever."""
    remaining: float | None = None
    for taint in spec(node).get("taints") or ():
        if taint["effect"] != "NoExecute":
            continue
        tolerations = [toleration for toleration in spec(pod).get("tolerations") or () if _tolerates(toleration, taint)]
        if not tolerations:
            return 0.0
        limits = [
            toleration["tolerationSeconds"]
            for toleration in tolerations
            if toleration.get("tolerationSeconds") is not None
        ]
        if limits:
            since = parse_timestamp(taint["timeAdded"]) if "timeAdded" in taint else now
            until = (since + timedelta(seconds=min(limits)) - now).total_seconds()
            remaining = until if remaining is None else min(remaining, until)
    return None if remaining is None else max(remaining, 0.0)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def on_node(name: str) -> Selection:
    """Return a selection of the pods of a node."""
    return Selection(fields=(FieldRequirement(("spec", "nodeName"), name),))


def _nodes(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Yield a node whose readiness, cordon or taints changed."""
    if table == "nodes" and _relevant_state(event.before) != _relevant_state(event.after):
        yield event.key


def _relevant_state(node: ObjectVersion | None) -> Any:
    if node is None:
        return None
    return (
        (condition(node.obj, "Ready") or {}).get("status"),
        spec(node.obj).get("unschedulable"),
        spec(node.obj).get("taints"),
    )


def _reconcile(store: Store, key: Key) -> float | None:
    node = store.find("nodes", key.name)
    if node is None:
        for pod in store.list("pods", on_node(key.name)):
            _remove(store, pod)
        return None
    moment = timestamp(store.clock())
    node = store.modify("nodes", key.name, "", lambda obj: tainted(obj, moment))
    if is_ready(node.obj) and not _evicts(node):
        return None
    delays: list[float] = []
    for pod in store.list("pods", on_node(key.name)):
        if is_finished(pod.obj) or is_deleting(pod.obj):
            continue
        remaining = seconds_left(pod.obj, node.obj, store.clock())
        if remaining == 0:
            _mark_disrupted(store, pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
            store.delete("pods", *pod.key.address)
            continue
        if remaining is not None:
            delays.append(remaining)
        if is_ready(pod.obj):
            _set(store, pod, {"type": "Ready", "status": "False", "reason": "NodeNotReady"})
    return min(delays, default=None)


def _evicts(node: ObjectVersion) -> bool:
    return any(taint["effect"] == "NoExecute" for taint in spec(node.obj).get("taints") or ())


def _remove(store: Store, pod: ObjectVersion) -> None:
    """Fail and delete a pod whose node does not exist."""
    if not is_finished(pod.obj):
        _mark_disrupted(store, pod, "DeletionByPodGC", "PodGC: node no longer exists", phase="Failed")
    store.delete("pods", *pod.key.address, DeleteOptions(grace=0))


def _mark_disrupted(store: Store, pod: ObjectVersion, reason: str, message: str, **fields: str) -> None:
    _set(store, pod, {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}, **fields)


def _set(store: Store, pod: ObjectVersion, new_condition: Json, **fields: str) -> None:
    conditions = with_condition(status(pod.obj).get("conditions"), new_condition, store.clock())
    store.patch_status("pods", pod.key, conditions=conditions, **fields)


CONTROLLER: Final = Controller("nodes", _nodes, _reconcile)
