"""The volume controller of Kubernetes, and a provisioner that can create any volume.

A claim gets the volume reserved for it, or the smallest matching volume, or a new volume. A claim of a class with
WaitForFirstConsumer gets no volume before a scheduler has reserved one or chosen a node. The provisioner below creates
volumes for its classes. They are usable in the zone of the chosen node, or everywhere if the node has no zone.
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
"""The provisioner that creates any requested volume."""
_SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
_PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
_ZONE: Final = "topology.kubernetes.io/zone"


# ---------------------------------------------------------------- claims


def _claims(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Yield a changed claim; on changes of volumes or classes, all unbound claims and the claim of that volume."""
    if table == CLAIMS:
        yield event.key
    elif table in (VOLUMES, CLASSES):
        for record in store.list(CLAIMS):
            volume_name = spec(record.obj).get("volumeName")
            if status(record.obj).get("phase") != "Bound" or (table == VOLUMES and volume_name == event.key.name):
                yield record.key


def _reconcile_claim(store: Store, key: Key) -> float | None:
    claim = store.find(CLAIMS, *key.address)
    if claim is None or is_deleting(claim.obj):
        return None
    name = spec(claim.obj).get("volumeName")
    volume = store.find(VOLUMES, name) if name else _volume_for(store, claim)
    if volume is not None and _available_to(volume, claim):
        _bind(store, volume, claim)
    elif name and _COMPLETED in _annotations(claim):
        store.patch_status(CLAIMS, claim.key, phase="Lost")
    else:
        store.patch_status(CLAIMS, claim.key, phase="Pending")
    return None


def _volume_for(store: Store, claim: ObjectVersion) -> ObjectVersion | None:
    """Return the reserved, the smallest matching or a new volume for a claim; None while the claim is pending."""
    volumes = store.list(VOLUMES)
    reserved = next(
        (volume for volume in volumes if spec(volume.obj).get("claimRef") and _available_to(volume, claim)), None
    )
    if reserved is not None:
        return reserved
    name = spec(claim.obj).get("storageClassName") or ""
    storage_class = store.find(CLASSES, name) if name else None
    waits_for_consumer = storage_class is not None and storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
    node = _annotations(claim).get(_SELECTED_NODE)
    if waits_for_consumer and node is None:
        return None
    matching = [] if waits_for_consumer else [volume for volume in volumes if _matches(volume, claim)]
    if matching:
        return min(matching, key=lambda volume: (_size(spec(volume.obj).get("capacity")), volume.key.name))
    if storage_class is None or storage_class.get("provisioner") != PROVISIONER:
        return None
    return store.create(VOLUMES, _new_volume(store, claim, name, node))


def _available_to(volume: ObjectVersion, claim: ObjectVersion) -> bool:
    """Whether a volume is free or reserved for this claim."""
    reference = spec(volume.obj).get("claimRef")
    if reference is None:
        return True
    same = (reference.get("namespace"), reference.get("name")) == (claim.key.namespace, claim.key.name)
    return same and reference.get("uid") in (None, "", claim["metadata"]["uid"])


def _matches(volume: ObjectVersion, claim: ObjectVersion) -> bool:
    volume_spec, claim_spec = spec(volume.obj), spec(claim.obj)
    clauses = from_label_selector(claim_spec["selector"]) if claim_spec.get("selector") else ()
    return (
        volume_spec.get("claimRef") is None
        and not is_deleting(volume.obj)
        and (volume_spec.get("storageClassName") or "") == (claim_spec.get("storageClassName") or "")
        and volume_spec.get("volumeMode", "Filesystem") == claim_spec.get("volumeMode", "Filesystem")
        and set(claim_spec.get("accessModes") or ()) <= set(volume_spec.get("accessModes") or ())
        and _size(volume_spec.get("capacity")) >= _size((claim_spec.get("resources") or {}).get("requests"))
        and clauses is not None
        and matches_labels(clauses, meta(volume.obj).get("labels"))
    )


def _size(amounts: Json | None) -> int:
    try:
        return parse_quantity((amounts or {}).get("storage", 0), 1)
    except QuantityError:
        return 0


def _new_volume(store: Store, claim: ObjectVersion, class_name: str, node: str | None) -> Json:
    """Return a new volume for a claim."""
    claim_spec = spec(claim.obj)
    name = f"pvc-{claim['metadata']['uid']}"
    volume_spec: Json = {
        "capacity": {"storage": (claim_spec.get("resources") or {}).get("requests", {}).get("storage", "1Gi")},
        "accessModes": claim_spec.get("accessModes") or ["ReadWriteOnce"],
        "storageClassName": class_name,
        "volumeMode": claim_spec.get("volumeMode", "Filesystem"),
        "persistentVolumeReclaimPolicy": "Delete",
        "csi": {"driver": PROVISIONER, "volumeHandle": name},
        "claimRef": _reference(claim),
    }
    node_record = store.find("nodes", node) if node else None
    zone = (meta(node_record.obj).get("labels") or {}).get(_ZONE) if node_record else None
    if zone:
        terms = [{"matchExpressions": [{"key": _ZONE, "operator": "In", "values": [zone]}]}]
        volume_spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {"metadata": {"name": name, "annotations": {_PROVISIONED_BY: PROVISIONER}}, "spec": volume_spec}


def _reference(claim: ObjectVersion) -> Json:
    identity = {"namespace": claim.key.namespace, "name": claim.key.name, "uid": claim["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **identity}


def _bind(store: Store, volume: ObjectVersion, claim: ObjectVersion) -> None:
    """Bind a volume and a claim to each other."""
    if (spec(volume.obj).get("claimRef") or {}).get("uid") != claim["metadata"]["uid"]:
        store.modify(VOLUMES, *volume.key.address, lambda obj: changed(obj, "spec", claimRef=_reference(claim)))
    store.patch_status(VOLUMES, volume.key, phase="Bound")
    if _COMPLETED not in _annotations(claim):
        annotations = {**_annotations(claim), _COMPLETED: "yes"}
        if not spec(claim.obj).get("volumeName"):
            annotations[_BY_CONTROLLER] = "yes"

        def bound(obj: Json) -> Json:
            return changed(changed(obj, "spec", volumeName=volume.key.name), "metadata", annotations=annotations)

        store.modify(CLAIMS, *claim.key.address, bound)
    volume_spec = spec(volume.obj)
    claim_status = {
        "phase": "Bound",
        "accessModes": volume_spec.get("accessModes"),
        "capacity": volume_spec.get("capacity"),
    }
    store.modify(CLAIMS, *claim.key.address, lambda obj: {**obj, "status": claim_status}, subresource="status")


def _annotations(record: ObjectVersion) -> Json:
    return meta(record.obj).get("annotations") or {}


# ---------------------------------------------------------------- volumes


def _volumes(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Yield a changed volume, and the volume of a removed claim."""
    if table == VOLUMES:
        yield event.key
    elif table == CLAIMS and event.after is None and (name := spec(event.record.obj).get("volumeName")):
        yield Key("", name)


def _reconcile_volume(store: Store, key: Key) -> float | None:
    volume = store.find(VOLUMES, *key.address)
    if volume is None or is_deleting(volume.obj):
        return None
    uid = (spec(volume.obj).get("claimRef") or {}).get("uid")
    if not uid:
        store.patch_status(VOLUMES, volume.key, phase="Available")
    elif not store.exists(uid):
        if spec(volume.obj).get("persistentVolumeReclaimPolicy") == "Delete":
            store.delete(VOLUMES, *key.address)
        else:
            store.patch_status(VOLUMES, volume.key, phase="Released")
    return None


# ---------------------------------------------------------------- claims of pods


def _ephemeral(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Yield pods with generic ephemeral volumes."""
    volumes = spec(event.after.obj).get("volumes") if table == "pods" and event.after is not None else ()
    if any("ephemeral" in volume for volume in volumes or ()):
        yield event.key


def _make_claims(store: Store, key: Key) -> float | None:
    pod = store.find("pods", *key.address)
    if pod is None or is_deleting(pod.obj):
        return None
    for volume in spec(pod.obj).get("volumes") or ():
        template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
        name = f"{key.name}-{volume['name']}"
        if template is not None and store.find(CLAIMS, name, key.namespace) is None:
            template_metadata = {
                field: meta(template)[field] for field in ("labels", "annotations") if meta(template).get(field)
            }
            metadata = {
                "name": name,
                "namespace": key.namespace,
                "ownerReferences": [owner_reference(pod)],
                **template_metadata,
            }
            store.create(CLAIMS, {"metadata": metadata, "spec": template["spec"]}, key.namespace)
    return None


def claims_of_replica(owner: ObjectVersion, pod: Json) -> tuple[Json, list[Json]]:
    """Return a pod of a StatefulSet with volumes for its claims, and these claims, which outlive the pod."""
    templates = owner["spec"].get("volumeClaimTemplates") or []
    if not templates:
        return pod, []
    name = pod["metadata"]["name"]
    claim_names = {meta(template)["name"]: f"{meta(template)['name']}-{name}" for template in templates}
    volumes = [volume for volume in pod["spec"].get("volumes") or () if volume["name"] not in claim_names]
    volumes += [
        {"name": volume_name, "persistentVolumeClaim": {"claimName": claim_name}}
        for volume_name, claim_name in claim_names.items()
    ]
    claims = []
    for template in templates:
        metadata = {**meta(template), "name": claim_names[meta(template)["name"]], "namespace": owner.key.namespace}
        claims.append({"metadata": metadata, "spec": template["spec"]})
    return changed(pod, "spec", volumes=volumes), claims


CLAIM_CONTROLLER: Final = Controller("persistentvolume-claims", _claims, _reconcile_claim)
VOLUME_CONTROLLER: Final = Controller("persistentvolumes", _volumes, _reconcile_volume)
EPHEMERAL: Final = Controller("ephemeral-volume", _ephemeral, _make_claims)
