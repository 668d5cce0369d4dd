"""The ReplicaSet controller. As in Kubernetes, it neither counts nor deletes finished pods."""

from __future__ import annotations

from typing import Final

from topo_scheduler.simulation.apiserver import Key, ObjectVersion, Store
from topo_scheduler.simulation.apiserver.objects import is_deleting, is_finished, is_ready

from .runtime import Controller, ControllerPlan, carry_out, owned, owner_and_owned, pod_of

KIND: Final = "replicasets.apps"


def plan(replica_set: ObjectVersion, pods: list[ObjectVersion]) -> ControllerPlan:
    """Return the plan for a ReplicaSet, given its pods."""
    live = [pod for pod in pods if not is_finished(pod.obj) and not is_deleting(pod.obj)]
    desired, generation = replica_set["spec"]["replicas"], replica_set["metadata"]["generation"]
    ready = sum(is_ready(pod.obj) for pod in live)
    missing = max(desired - len(live), 0)
    status = {
        "replicas": len(live) + missing,
        "fullyLabeledReplicas": len(live) + missing,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "observedGeneration": generation,
    }
    return ControllerPlan(
        create=[pod_of(replica_set, f"{replica_set.key.name}-") for _ in range(missing)],
        delete=sorted(live, key=_deletion_order)[: max(len(live) - desired, 0)],
        status={name: value for name, value in status.items() if value or name == "replicas"},
    )


def _deletion_order(pod: ObjectVersion) -> tuple[bool, bool, int]:
    """Return a sort key; the smallest is deleted first: without a node, then not ready, then the youngest."""
    return bool(pod["spec"].get("nodeName")), is_ready(pod.obj), -pod.revision


def _reconcile(store: Store, key: Key) -> float | None:
    replica_set = store.find(KIND, *key.address)
    if replica_set is not None and not is_deleting(replica_set.obj):
        carry_out(store, replica_set, plan(replica_set, owned(store, replica_set)))
    return None


CONTROLLER: Final = Controller("replicaset", owner_and_owned(KIND), _reconcile)
