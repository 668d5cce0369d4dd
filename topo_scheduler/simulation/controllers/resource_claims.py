"""The controller of ResourceClaims: makes claims of pods from templates, and deallocates those that no pod uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from topo_scheduler.simulation.apiserver import Key, ObjectVersion, Store, StoreEvent
from topo_scheduler.simulation.apiserver.objects import Json, changed, is_deleting, is_finished, meta, spec, status

from .runtime import Controller, drop_finalizer, owner_reference

CLAIMS: Final = "resourceclaims.resource.k8s.io"
TEMPLATES: Final = "resourceclaimtemplates.resource.k8s.io"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
_POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"


def _pods_with_templates(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Yield pods that name templates, also when a template appears."""
    if table == "pods" and event.after is not None and _templates(event.after):
        yield event.key
    elif table == TEMPLATES and event.before is None:
        for pod in store.list("pods"):
            if pod.key.namespace == event.key.namespace and event.key.name in _templates(pod).values():
                yield pod.key


def _templates(pod: ObjectVersion) -> dict[str, str]:
    """Return the templates of a pod by the name of its claim."""
    entries = spec(pod.obj).get("resourceClaims") or ()
    return {entry["name"]: name for entry in entries if (name := entry.get("resourceClaimTemplateName"))}


def _make_claims(store: Store, key: Key) -> float | None:
    pod = store.find("pods", *key.address)
    if pod is None or is_deleting(pod.obj) or is_finished(pod.obj):
        return None
    made = {entry["name"]: entry for entry in status(pod.obj).get("resourceClaimStatuses") or ()}
    before = len(made)
    for name, template_name in _templates(pod).items():
        template = store.find(TEMPLATES, template_name, key.namespace)
        if name in made or template is None:
            continue
        metadata = {
            "generateName": f"{key.name}-{name}-",
            "namespace": key.namespace,
            "annotations": {**(meta(spec(template.obj)).get("annotations") or {}), _POD_CLAIM: name},
            "ownerReferences": [owner_reference(pod)],
        }
        claim = store.create(CLAIMS, {"metadata": metadata, "spec": template["spec"]["spec"]}, key.namespace)
        made[name] = {"name": name, "resourceClaimName": claim.key.name}
    if len(made) > before:
        store.patch_status("pods", key, resourceClaimStatuses=list(made.values()))
    return None


def _claims(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Yield a changed claim, and the claims of a pod that changed or is gone."""
    if table == CLAIMS:
        yield event.key
    elif table == "pods" and (event.after is None or is_finished(event.after.obj)):
        pod = event.record
        made = (entry.get("resourceClaimName") for entry in status(pod.obj).get("resourceClaimStatuses") or ())
        named = (entry.get("resourceClaimName") for entry in spec(pod.obj).get("resourceClaims") or ())
        extended = (status(pod.obj).get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
        yield from (Key(event.key.namespace, name) for name in (*made, *named, extended) if name)


def _reconcile_claim(store: Store, key: Key) -> float | None:
    claim = store.find(CLAIMS, *key.address)
    if claim is None:
        return None
    now = status(claim.obj)
    reserved = now.get("reservedFor") or []
    kept = [entry for entry in reserved if _uses(store, claim, entry)]
    protected = FINALIZER in (meta(claim.obj).get("finalizers") or ())
    if now.get("allocation") and not kept and protected and (reserved or is_deleting(claim.obj)):
        without = {name: value for name, value in now.items() if name not in ("allocation", "reservedFor")}
        store.modify(CLAIMS, *key.address, lambda obj: {**obj, "status": without}, subresource="status")
    elif len(kept) < len(reserved):
        store.modify(CLAIMS, *key.address, lambda obj: changed(obj, "status", reservedFor=kept), subresource="status")
    claim = store.find(CLAIMS, *key.address)
    if claim is None:
        return None
    if protected and not status(claim.obj).get("allocation") and (is_deleting(claim.obj) or reserved):
        drop_finalizer(store, CLAIMS, claim, FINALIZER)
    owner = next((entry for entry in meta(claim.obj).get("ownerReferences") or () if entry["kind"] == "Pod"), None)
    pod = store.find("pods", owner["name"], key.namespace) if owner is not None else None
    if pod is not None and is_finished(pod.obj) and not is_deleting(claim.obj):
        store.delete(CLAIMS, *key.address)
    return None


def _uses(store: Store, claim: ObjectVersion, entry: Json) -> bool:
    """Whether a pod for which a claim is reserved still needs it."""
    pod = store.find("pods", entry["name"], claim.key.namespace)
    return pod is not None and pod["metadata"]["uid"] == entry["uid"] and not is_finished(pod.obj)


FROM_TEMPLATES: Final = Controller("resourceclaims-of-pods", _pods_with_templates, _make_claims)
CONTROLLER: Final = Controller("resourceclaims", _claims, _reconcile_claim)
