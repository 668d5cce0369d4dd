"""What only pods have: the binding that gives a pod its node, and the eviction that asks before it deletes.

Both follow ``pkg/registry/core/pod/storage`` of the real server, messages included, since schedulers read them.
"""

from __future__ import annotations

from .deletion import DeleteOptions, check_preconditions, delete_options
from .errors import APIError, bad_request, conflict, forbidden, internal, not_found, success, too_many_requests
from .kinds import ApiKind
from .log import ObjectVersion
from .objects import Json, changed, condition, is_deleting, is_finished, spec, status, timestamp, with_condition
from .selectors import Selection, from_label_selector, matches_labels
from .store import Store

PDB = "poddisruptionbudgets.policy"
_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."


def bind(store: Store, namespace: str, name: str, binding: Json, *, dry_run: bool = False) -> Json:
    """Give a pod its node, with the binding's labels and annotations in the same write."""
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
    _check_premises(kind, pod, metadata)
    if (refusal := _why_not(pod.obj)) is not None:
        raise conflict(kind, name, refusal, subresource="binding")
    store.write(kind, pod, _bound(pod.obj, target["name"], metadata, store), dry_run=dry_run)
    return {**success(), "code": 201}


def _check_premises(kind: ApiKind, pod: ObjectVersion, metadata: Json) -> None:
    for part, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        wanted, found = metadata.get(part), pod["metadata"][part]
        if wanted and wanted != found:
            why = f"Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}"
            raise conflict(kind, pod.key.name, why)


def _why_not(pod: Json) -> str | None:
    name = pod["metadata"]["name"]
    if is_deleting(pod):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if node := spec(pod).get("nodeName"):
        return f'pod {name} is already assigned to node "{node}"'
    if spec(pod).get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return None


def _bound(pod: Json, node: str, extra: Json, store: Store) -> Json:
    merged = {
        part: {**(pod["metadata"].get(part) or {}), **extra[part]}
        for part in ("labels", "annotations")
        if extra.get(part)
    }
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
    conditions = with_condition(status(pod).get("conditions"), scheduled, store.clock())
    bound = changed(pod, "spec", nodeName=node)
    return changed({**bound, "metadata": {**pod["metadata"], **merged}}, "status", conditions=conditions,
                   nominatedNodeName=None)  # fmt: skip


def evict(store: Store, namespace: str, name: str, eviction: Json, *, dry_run: bool = False) -> Json:
    """Delete a pod if its disruption budget allows that."""
    if (eviction.get("metadata") or {}).get("name") != name:
        raise bad_request("name in URL does not match name in Eviction object")
    body = eviction.get("deleteOptions") or {}
    options = delete_options({**body, "dryRun": body.get("dryRun") or dry_run}, {})
    pod = store.get("pods", name, namespace)
    check_preconditions(store.kind("pods"), pod.obj, options)
    if not (is_deleting(pod.obj) or is_finished(pod.obj) or status(pod.obj).get("phase") == "Pending"):
        _spend_budget(store, pod, options)
    if not options.dry_run:
        _mark_disrupted(store, pod)
    grace = DeleteOptions(grace=options.grace, propagation=options.propagation, dry_run=options.dry_run)
    store.delete("pods", name, namespace, grace)
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
        raise APIError(500, "", message)
    budget = budgets[0]
    if not _is_ready(pod.obj) and _spares_unready(budget):
        return
    _check_budget(budget)
    if not options.dry_run:
        spent = _spent(budget.obj, pod.key.name, timestamp(store.clock()))
        store.write(store.kind(PDB), budget, spent)


def _is_ready(pod: Json) -> bool:
    return (condition(pod, "Ready") or {}).get("status") == "True"


def _spares_unready(budget: ObjectVersion) -> bool:
    """Whether a pod that isn't ready may go without asking the budget."""
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    state = status(budget.obj)
    return bool(state.get("currentHealthy", 0) >= state.get("desiredHealthy", 0) > 0)


def _check_budget(budget: ObjectVersion) -> None:
    name, state = budget.key.name, status(budget.obj)
    if state.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        message = f"The disruption budget {name} is still being processed by the server."
        raise too_many_requests(_VIOLATES, retry_after=10, causes=_cause(message))
    allowed = state.get("disruptionsAllowed", 0)
    if allowed < 0:
        raise forbidden("poddisruptionbudget.policy", name, "pdb disruptions allowed is negative")
    if allowed == 0:
        needed, healthy = state.get("desiredHealthy", 0), state.get("currentHealthy", 0)
        message = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
        raise too_many_requests(_VIOLATES, causes=_cause(message))


def _cause(message: str) -> list[Json]:
    return [{"reason": "DisruptionBudget", "message": message}]


def _spent(budget: Json, pod: str, moment: str) -> Json:
    state = status(budget)
    disrupted = {**(state.get("disruptedPods") or {}), pod: moment}
    return changed(budget, "status", disruptionsAllowed=state["disruptionsAllowed"] - 1, disruptedPods=disrupted)


def _mark_disrupted(store: Store, pod: ObjectVersion) -> None:
    target = {
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": None,
    }  # fmt: skip
    conditions = with_condition(status(pod.obj).get("conditions"), target, store.clock())
    store.write(store.kind("pods"), pod, changed(pod.obj, "status", conditions=conditions))
