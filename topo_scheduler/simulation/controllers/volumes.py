"""Claims and volumes: what Kubernetes' volume controller does, and a provisioner that can make any volume.

A claim gets the volume that is reserved for it, or the smallest that will do, or one that is made. A claim of a class
with WaitForFirstConsumer gets no volume before a scheduler has reserved one or chosen a node. Classes with the
provisioner named below have their volumes made: usable in the zone of the chosen node, or everywhere where the node
has no zone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from topo_scheduler.api.quantity import QuantityError, parse_quantity
from topo_scheduler.simulation.apiserver import Key, ObjectVersion, Store, StoreEvent
from topo_scheduler.simulation.apiserver.objects import Json, changed, is_deleting, meta, spec, status
from topo_scheduler.simulation.apiserver.selectors import from_label_selector, matches_labels

from .runtime import Controller, owner_reference

CLAIMS: Final = "persistentvolumeclaims"
VOLUMES: Final = "persistentvolumes"
CLASSES: Final = "storageclasses.storage.k8s.io"
PROVISIONER: Final = "simulation.topology.scheduler/disk"
"""The provisioner that makes whatever is asked for."""
_SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
_PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
_ZONE: Final = "topology.kubernetes.io/zone"


# ---------------------------------------------------------------- claims


def _claims(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """The claim itself; when volumes or classes change, all claims that have none yet and that one which lost it."""
    if table == CLAIMS:
        yield event.key
    elif table in (VOLUMES, CLASSES):
        for record in store.list(CLAIMS):
            named = spec(record.obj).get("volumeName")
            if status(record.obj).get("phase") != "Bound" or (table == VOLUMES and named == event.key.name):
                yield record.key


def _tend_claim(store: Store, key: Key) -> float | None:
    claim = store.find(CLAIMS, *key.address)
    if claim is None or is_deleting(claim.obj):
        return None
    name = spec(claim.obj).get("volumeName")
    volume = store.find(VOLUMES, name) if name else _volume_for(store, claim)
    if volume is not None and _may_have(volume, claim):
        _bind(store, volume, claim)
    elif name and _COMPLETED in _annotations(claim):
        _set_phase(store, CLAIMS, claim, "Lost")
    else:
        _set_phase(store, CLAIMS, claim, "Pending")
    return None


def _volume_for(store: Store, claim: ObjectVersion) -> ObjectVersion | None:
    """The volume reserved for a claim, the smallest that will do, or one that is made; None while it has to wait."""
    volumes = store.list(VOLUMES)
    reserved = next((v for v in volumes if spec(v.obj).get("claimRef") and _may_have(v, claim)), None)
    if reserved is not None:
        return reserved
    name = spec(claim.obj).get("storageClassName") or ""
    kind = store.find(CLASSES, name) if name else None
    waits = kind is not None and kind.get("volumeBindingMode") == "WaitForFirstConsumer"
    node = _annotations(claim).get(_SELECTED_NODE)
    if waits and node is None:
        return None
    fitting = [] if waits else [volume for volume in volumes if _will_do(volume, claim)]
    if fitting:
        return min(fitting, key=lambda volume: (_size(spec(volume.obj).get("capacity")), volume.key.name))
    if kind is None or kind.get("provisioner") != PROVISIONER:
        return None
    return store.create(VOLUMES, _made(store, claim, name, node))


def _may_have(volume: ObjectVersion, claim: ObjectVersion) -> bool:
    """Whether a volume is free or reserved for just this claim."""
    reference = spec(volume.obj).get("claimRef")
    if reference is None:
        return True
    same = (reference.get("namespace"), reference.get("name")) == (claim.key.namespace, claim.key.name)
    return same and reference.get("uid") in (None, "", claim["metadata"]["uid"])


def _will_do(volume: ObjectVersion, claim: ObjectVersion) -> bool:
    has, wants = spec(volume.obj), spec(claim.obj)
    clauses = from_label_selector(wants["selector"]) if wants.get("selector") else ()
    return (
        has.get("claimRef") is None
        and not is_deleting(volume.obj)
        and (has.get("storageClassName") or "") == (wants.get("storageClassName") or "")
        and has.get("volumeMode", "Filesystem") == wants.get("volumeMode", "Filesystem")
        and set(wants.get("accessModes") or ()) <= set(has.get("accessModes") or ())
        and _size(has.get("capacity")) >= _size((wants.get("resources") or {}).get("requests"))
        and clauses is not None
        and matches_labels(clauses, meta(volume.obj).get("labels"))
    )


def _size(amounts: Json | None) -> int:
    try:
        return parse_quantity((amounts or {}).get("storage", 0), 1)
    except QuantityError:
        return 0


def _made(store: Store, claim: ObjectVersion, class_name: str, node: str | None) -> Json:
    """A new volume for a claim."""
    wants = spec(claim.obj)
    name = f"pvc-{claim['metadata']['uid']}"
    body: Json = {
        "capacity": {"storage": (wants.get("resources") or {}).get("requests", {}).get("storage", "1Gi")},
        "accessModes": wants.get("accessModes") or ["ReadWriteOnce"],
        "storageClassName": class_name,
        "volumeMode": wants.get("volumeMode", "Filesystem"),
        "persistentVolumeReclaimPolicy": "Delete",
        "csi": {"driver": PROVISIONER, "volumeHandle": name},
        "claimRef": _reference(claim),
    }
    found = store.find("nodes", node) if node else None
    zone = (meta(found.obj).get("labels") or {}).get(_ZONE) if found else None
    if zone:
        terms = [{"matchExpressions": [{"key": _ZONE, "operator": "In", "values": [zone]}]}]
        body["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {"metadata": {"name": name, "annotations": {_PROVISIONED_BY: PROVISIONER}}, "spec": body}


def _reference(claim: ObjectVersion) -> Json:
    where = {"namespace": claim.key.namespace, "name": claim.key.name, "uid": claim["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **where}


def _bind(store: Store, volume: ObjectVersion, claim: ObjectVersion) -> None:
    """Have a volume and a claim name each other, for good."""
    if (spec(volume.obj).get("claimRef") or {}).get("uid") != claim["metadata"]["uid"]:
        store.modify(VOLUMES, *volume.key.address, lambda obj: changed(obj, "spec", claimRef=_reference(claim)))
    _set_phase(store, VOLUMES, volume, "Bound")
    if _COMPLETED not in _annotations(claim):
        marks = {**_annotations(claim), _COMPLETED: "yes"}
        if not spec(claim.obj).get("volumeName"):
            marks[_BY_CONTROLLER] = "yes"

        def bound(obj: Json) -> Json:
            return changed(changed(obj, "spec", volumeName=volume.key.name), "metadata", annotations=marks)

        store.modify(CLAIMS, *claim.key.address, bound)
    body = spec(volume.obj)
    state = {"phase": "Bound", "accessModes": body.get("accessModes"), "capacity": body.get("capacity")}
    store.modify(CLAIMS, *claim.key.address, lambda obj: {**obj, "status": state}, subresource="status")


def _set_phase(store: Store, table: str, record: ObjectVersion, phase: str) -> None:
    store.modify(table, *record.key.address, lambda obj: changed(obj, "status", phase=phase), subresource="status")


def _annotations(record: ObjectVersion) -> Json:
    return meta(record.obj).get("annotations") or {}


# ---------------------------------------------------------------- volumes


def _volumes(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """The volume itself, and that of a claim that is gone."""
    if table == VOLUMES:
        yield event.key
    elif table == CLAIMS and event.after is None and (name := spec(event.record.obj).get("volumeName")):
        yield Key("", name)


def _tend_volume(store: Store, key: Key) -> float | None:
    volume = store.find(VOLUMES, *key.address)
    if volume is None or is_deleting(volume.obj):
        return None
    uid = (spec(volume.obj).get("claimRef") or {}).get("uid")
    if not uid:
        _set_phase(store, VOLUMES, volume, "Available")
    elif not store.exists(uid):
        if spec(volume.obj).get("persistentVolumeReclaimPolicy") == "Delete":
            store.delete(VOLUMES, *key.address)
        else:
            _set_phase(store, VOLUMES, volume, "Released")
    return None


# ---------------------------------------------------------------- claims made for pods


def _ephemeral(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Pods with generic ephemeral volumes."""
    volumes = spec(event.after.obj).get("volumes") if table == "pods" and event.after is not None else ()
    if any("ephemeral" in one for one in volumes or ()):
        yield event.key


def _make_claims(store: Store, key: Key) -> float | None:
    pod = store.find("pods", *key.address)
    if pod is None or is_deleting(pod.obj):
        return None
    for one in spec(pod.obj).get("volumes") or ():
        template = (one.get("ephemeral") or {}).get("volumeClaimTemplate")
        name = f"{key.name}-{one['name']}"
        if template is not None and store.find(CLAIMS, name, key.namespace) is None:
            given = {part: meta(template)[part] for part in ("labels", "annotations") if meta(template).get(part)}
            metadata = {"name": name, "namespace": key.namespace, "ownerReferences": [owner_reference(pod)], **given}
            store.create(CLAIMS, {"metadata": metadata, "spec": template["spec"]}, key.namespace)
    return None


def claims_of_replica(owner: ObjectVersion, pod: Json) -> tuple[Json, list[Json]]:
    """A StatefulSet's pod with its claims among its volumes, and those claims; they outlive the pod."""
    templates = owner["spec"].get("volumeClaimTemplates") or []
    if not templates:
        return pod, []
    name = pod["metadata"]["name"]
    claims = {meta(template)["name"]: f"{meta(template)['name']}-{name}" for template in templates}
    volumes = [one for one in pod["spec"].get("volumes") or () if one["name"] not in claims]
    volumes += [{"name": v, "persistentVolumeClaim": {"claimName": claim}} for v, claim in claims.items()]
    made = []
    for template in templates:
        metadata = {**meta(template), "name": claims[meta(template)["name"]], "namespace": owner.key.namespace}
        made.append({"metadata": metadata, "spec": template["spec"]})
    return changed(pod, "spec", volumes=volumes), made


CLAIM_CONTROLLER: Final = Controller("persistentvolume-claims", _claims, _tend_claim)
VOLUME_CONTROLLER: Final = Controller("persistentvolumes", _volumes, _tend_volume)
EPHEMERAL: Final = Controller("ephemeral-volume", _ephemeral, _make_claims)
