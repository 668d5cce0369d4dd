"""The disruption controller: computes how many pods each PodDisruptionBudget allows to evict."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from topo_scheduler.simulation.apiserver import Key, ObjectVersion, Store, StoreEvent
from topo_scheduler.simulation.apiserver.objects import (
    Json,
    controller_of,
    is_deleting,
    is_finished,
    is_ready,
    parse_timestamp,
    spec,
    status,
    with_condition,
)
from topo_scheduler.simulation.apiserver.pods import PDB
from topo_scheduler.simulation.apiserver.selectors import Selection, from_label_selector, matches_labels

from .runtime import Controller

_GRANT_LIFETIME: Final = timedelta(minutes=2)
"""How long a granted eviction counts while the pod still exists."""


def status_of(budget: ObjectVersion, pods: list[ObjectVersion], scale: int, moment: datetime) -> Json:
    """Return the status of a budget, given the selected pods and their expected number."""
    granted = _still_granted(budget, pods, moment)
    healthy = sum(is_ready(pod.obj) and not is_deleting(pod.obj) and pod.key.name not in granted for pod in pods)
    expected = scale if _needs_scale(budget) else len(pods)
    desired = _desired(budget, expected)
    allowed = max(healthy - desired, 0) if expected > 0 else 0
    allowed_condition = {
        "type": "DisruptionAllowed",
        "status": str(allowed > 0),
        "reason": "SufficientPods" if allowed > 0 else "InsufficientPods",
        "message": "",
        "observedGeneration": budget["metadata"]["generation"],
    }
    return {
        "observedGeneration": budget["metadata"]["generation"],
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "conditions": with_condition(status(budget.obj).get("conditions"), allowed_condition, moment),
        **({"disruptedPods": granted} if granted else {}),
    }


def _still_granted(budget: ObjectVersion, pods: list[ObjectVersion], moment: datetime) -> dict[str, str]:
    existing = {pod.key.name for pod in pods if not is_deleting(pod.obj)}
    granted: dict[str, str] = status(budget.obj).get("disruptedPods") or {}
    return {
        name: granted_at
        for name, granted_at in granted.items()
        if name in existing and moment - parse_timestamp(granted_at) < _GRANT_LIFETIME
    }


def _needs_scale(budget: ObjectVersion) -> bool:
    return "maxUnavailable" in spec(budget.obj) or isinstance(spec(budget.obj).get("minAvailable"), str)


def _desired(budget: ObjectVersion, expected: int) -> int:
    budget_spec = spec(budget.obj)
    if "maxUnavailable" in budget_spec:
        return max(expected - _share(budget_spec["maxUnavailable"], expected), 0)
    return _share(budget_spec.get("minAvailable", 1), expected)


def _share(value: int | str, total: int) -> int:
    """Return a number, or a percentage of ``total`` rounded up."""
    return -(-int(value.rstrip("%")) * total // 100) if isinstance(value, str) else int(value)


def _scale(store: Store, pods: list[ObjectVersion]) -> int:
    """Return the number of pods that the controllers of these pods demand."""
    owners = {owner["uid"]: owner for pod in pods if (owner := controller_of(pod.obj))}
    total = sum(controller_of(pod.obj) is None for pod in pods)
    for uid in owners:
        entry = store.by_uid(uid)
        owner_spec = spec(entry[1].obj) if entry else {}
        total += int(owner_spec.get("replicas") or owner_spec.get("parallelism") or 0)
    return total


def _concerns(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    if table == PDB:
        yield event.key
    elif table == "pods":
        for budget in store.list(PDB, Selection(event.key.namespace)):
            yield budget.key


def _reconcile(store: Store, key: Key) -> float | None:
    budget = store.find(PDB, *key.address)
    if budget is None:
        return None
    clauses = from_label_selector(spec(budget.obj).get("selector"))
    pods = [
        pod
        for pod in store.list("pods", Selection(key.namespace, clauses or ()))
        if clauses is not None and not is_finished(pod.obj) and matches_labels(clauses, pod["metadata"].get("labels"))
    ]
    new_status = status_of(budget, pods, _scale(store, pods), store.clock())
    store.modify(PDB, *key.address, lambda obj: {**obj, "status": new_status}, subresource="status")
    return _GRANT_LIFETIME.total_seconds() if new_status.get("disruptedPods") else None


CONTROLLER: Final = Controller("disruption", _concerns, _reconcile)
