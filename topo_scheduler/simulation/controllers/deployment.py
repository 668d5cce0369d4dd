"""The deployment controller: one ReplicaSet per template version. A new version replaces the old one at once."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Final

from topo_scheduler.simulation.apiserver import Key, ObjectVersion, Store
from topo_scheduler.simulation.apiserver.encoding import encode
from topo_scheduler.simulation.apiserver.objects import Json, changed, is_deleting, meta, status, with_condition

from .replicaset import KIND as REPLICA_SETS
from .runtime import Controller, owned, owner_and_owned, owner_reference

KIND: Final = "deployments.apps"
_REVISION: Final = "deployment.kubernetes.io/revision"
_HASH: Final = "pod-template-hash"
_SAFE: Final = "bcdfghjklmnpqrstvwxz2456789"


def template_hash(template: Json) -> str:
    """Return a hash of a template, of ten letters."""
    digest = hashlib.sha256(encode(template)).digest()
    return "".join(_SAFE[byte % len(_SAFE)] for byte in digest[:10])


def replica_set_of(deployment: ObjectVersion, revision: int) -> Json:
    """Return the ReplicaSet for the current template of a deployment."""
    spec = deployment["spec"]
    hash_label = {_HASH: template_hash(spec["template"])}
    labels = {**(meta(spec["template"]).get("labels") or {}), **hash_label}
    selector = {**spec["selector"], "matchLabels": {**(spec["selector"].get("matchLabels") or {}), **hash_label}}
    return {
        "metadata": {
            "name": f"{deployment.key.name}-{hash_label[_HASH]}",
            "namespace": deployment.key.namespace,
            "labels": labels,
            "annotations": {_REVISION: str(revision)},
            "ownerReferences": [owner_reference(deployment)],
        },
        "spec": {
            "replicas": spec["replicas"],
            "selector": selector,
            "template": changed(spec["template"], "metadata", labels=labels),
        },
    }


def status_of(
    deployment: ObjectVersion, current: ObjectVersion | None, replica_sets: list[ObjectVersion], moment: datetime
) -> Json:
    """Return the status of a deployment, given its ReplicaSets."""

    def total(field: str) -> int:
        return sum(status(rs.obj).get(field, 0) for rs in replica_sets)

    desired, available = deployment["spec"]["replicas"], total("availableReplicas")
    sufficient = available >= desired
    conditions = status(deployment.obj).get("conditions")
    for condition_type, condition_status, reason in (
        ("Available", sufficient, "MinimumReplicasAvailable" if sufficient else "MinimumReplicasUnavailable"),
        ("Progressing", True, "NewReplicaSetAvailable" if sufficient else "ReplicaSetUpdated"),
    ):
        new_condition = {"type": condition_type, "status": str(condition_status), "reason": reason, "message": reason}
        conditions = with_condition(conditions, new_condition, moment)
    counts = {
        "replicas": total("replicas"),
        "updatedReplicas": status(current.obj).get("replicas", 0) if current else 0,
        "readyReplicas": total("readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(desired - available, 0),
        "observedGeneration": deployment["metadata"]["generation"],
    }
    return {**{name: value for name, value in counts.items() if value}, "conditions": conditions}


def _reconcile(store: Store, key: Key) -> float | None:
    deployment = store.find(KIND, *key.address)
    if deployment is None or is_deleting(deployment.obj):
        return None
    replica_sets = owned(store, deployment, REPLICA_SETS)
    revision = 1 + max((int(meta(rs.obj)["annotations"][_REVISION]) for rs in replica_sets), default=0)
    desired = replica_set_of(deployment, revision)
    current = next((rs for rs in replica_sets if rs.key.name == desired["metadata"]["name"]), None)
    if current is None:
        store.create(REPLICA_SETS, desired)
    for replica_set in replica_sets:
        replicas = deployment["spec"]["replicas"] if replica_set is current else 0
        _scale(store, replica_set, replicas)
    new_status = status_of(deployment, current, replica_sets, store.clock())
    store.modify(KIND, *key.address, lambda obj: {**obj, "status": new_status}, subresource="status")
    return None


def _scale(store: Store, replica_set: ObjectVersion, replicas: int) -> None:
    if replica_set["spec"]["replicas"] != replicas:
        store.modify(REPLICA_SETS, *replica_set.key.address, lambda obj: changed(obj, "spec", replicas=replicas))


CONTROLLER: Final = Controller("deployment", owner_and_owned(KIND, REPLICA_SETS), _reconcile)
