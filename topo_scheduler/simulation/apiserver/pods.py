"""The binding and eviction subresources of pods.

Both follow ``pkg/registry/core/pod/storage`` of the real server, including messages, since schedulers read them.
"""

from __future__ import annotations

from .deletion import DeleteOptions, check_preconditions, delete_options
from .errors import StatusError, bad_request, conflict, forbidden, internal, not_found, success, too_many_requests
from .kinds import ApiKind
from .log import ObjectVersion
from .objects import Json, changed, is_deleting, is_finished, is_ready, spec, status, timestamp, with_condition
from .selectors import Selection, from_label_selector, matches_labels
from .store import Store

PDB = "poddisruptionbudgets.policy"
_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."


def bind(store: Store, namespace: str, name: str, binding: Json, *, dry_run: bool = False) -> Json:
    """Bind a pod to a node, with the labels and annotations of the binding in the same write."""
    metadata, target = binding.get("metadata") or {}, binding.get("target") or {}
    if metadata.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    if target.get("kind") not in (None, "", "Node"):
        raise internal(f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"')
    if not target.get("name"):
        raise internal("target.name: Required value")
    kind = store.kind("pods")
    pod = store.find(kind, name, namespace)
    if pod is None:
        raise not_found(kind, name)
    _check_preconditions(kind, pod, metadata)
    if (refusal := _bind_refusal(pod.obj)) is not None:
        raise conflict(kind, name, refusal, subresource="binding")
    store.write(kind, pod, _bound(pod.obj, target["name"], metadata, store), dry_run=dry_run)
    return {**success(), "code": 201}


def _check_preconditions(kind: ApiKind, pod: ObjectVersion, metadata: Json) -> None:
    for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        expected, actual = metadata.get(field), pod["metadata"][field]
        if expected and expected != actual:
            reason = f"Precondition failed: {label} in precondition: {expected}, {label} in object meta: {actual}"
            raise conflict(kind, pod.key.name, reason)


def _bind_refusal(pod: Json) -> str | None:
    name = pod["metadata"]["name"]
    if is_deleting(pod):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if node := spec(pod).get("nodeName"):
        return f'pod {name} is already assigned to node "{node}"'
    if spec(pod).get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return None


def _bound(pod: Json, node: str, binding_metadata: Json, store: Store) -> Json:
    merged = {
        field: {**(pod["metadata"].get(field) or {}), **binding_metadata[field]}
        for field in ("labels", "annotations")
        if binding_metadata.get(field)
    }
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
    conditions = with_condition(status(pod).get("conditions"), scheduled, store.clock())
    bound = changed(pod, "spec", nodeName=node)
    return changed({**bound, "metadata": {**pod["metadata"], **merged}}, "status", conditions=conditions,
                   nominatedNodeName=None)  # fmt: skip


def evict(store: Store, namespace: str, name: str, eviction: Json, *, dry_run: bool = False) -> Json:
    """Delete a pod if its disruption budget allows that; raises 429 if not."""
    if (eviction.get("metadata") or {}).get("name") != name:
        raise bad_request("name in URL does not match name in Eviction object")
    delete_body = eviction.get("deleteOptions") or {}
    options = delete_options({**delete_body, "dryRun": delete_body.get("dryRun") or dry_run}, {})
    pod = store.get("pods", name, namespace)
    check_preconditions(store.kind("pods"), pod.obj, options)
    if not (is_deleting(pod.obj) or is_finished(pod.obj) or status(pod.obj).get("phase") == "Pending"):
        _spend_budget(store, pod, options)
    if not options.dry_run:
        _mark_disrupted(store, pod)
    pod_options = DeleteOptions(grace=options.grace, propagation=options.propagation, dry_run=options.dry_run)
    store.delete("pods", name, namespace, pod_options)
    return {**success(), "code": 201}


def _spend_budget(store: Store, pod: ObjectVersion, options: DeleteOptions) -> None:
    budgets = [
        budget
        for budget in store.list(PDB, Selection(pod.key.namespace))
        if matches_labels(from_label_selector(budget["spec"].get("selector")), pod["metadata"].get("labels"))
    ]
    if not budgets:
        return
    if len(budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise StatusError(500, "", message)
    budget = budgets[0]
    if not is_ready(pod.obj) and _spares_unready(budget):
        return
    _check_budget(budget)
    if not options.dry_run:
        new_budget = _spent(budget.obj, pod.key.name, timestamp(store.clock()))
        store.write(store.kind(PDB), budget, new_budget)


def _spares_unready(budget: ObjectVersion) -> bool:
    """Whether a pod that is not ready may be evicted regardless of the budget."""
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    budget_status = status(budget.obj)
    return bool(budget_status.get("currentHealthy", 0) >= budget_status.get("desiredHealthy", 0) > 0)


def _check_budget(budget: ObjectVersion) -> None:
    name, budget_status = budget.key.name, status(budget.obj)
    if budget_status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        message = f"The disruption budget {name} is still being processed by the server."
        raise too_many_requests(_VIOLATES, retry_after=10, causes=_cause(message))
    allowed = budget_status.get("disruptionsAllowed", 0)
    if allowed < 0:
        raise forbidden("poddisruptionbudget.policy", name, "pdb disruptions allowed is negative")
    if allowed == 0:
        needed, healthy = budget_status.get("desiredHealthy", 0), budget_status.get("currentHealthy", 0)
        message = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
        raise too_many_requests(_VIOLATES, causes=_cause(message))


def _cause(message: str) -> list[Json]:
    return [{"reason": "DisruptionBudget", "message": message}]


def _spent(budget: Json, pod: str, moment: str) -> Json:
    budget_status = status(budget)
    disrupted = {**(budget_status.get("disruptedPods") or {}), pod: moment}
    return changed(
        budget, "status", disruptionsAllowed=budget_status["disruptionsAllowed"] - 1, disruptedPods=disrupted
    )


def _mark_disrupted(store: Store, pod: ObjectVersion) -> None:
    target = {
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": None,
    }  # fmt: skip
    conditions = with_condition(status(pod.obj).get("conditions"), target, store.clock())
    store.write(store.kind("pods"), pod, changed(pod.obj, "status", conditions=conditions))
