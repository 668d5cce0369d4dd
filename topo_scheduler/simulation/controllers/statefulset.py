"""The StatefulSet controller: pods with ordinals, in order unless pod management is parallel."""

from __future__ import annotations

from typing import Final

from topo_scheduler.simulation.apiserver import Key, ObjectVersion, Store
from topo_scheduler.simulation.apiserver.objects import Json, is_deleting, is_finished, is_ready

from .deployment import template_hash
from .runtime import Controller, ControllerPlan, carry_out, owned, owner_and_owned, pod_of
from .volumes import CLAIMS, claims_of_replica

KIND: Final = "statefulsets.apps"
_REVISION: Final = "controller-revision-hash"
_INDEX: Final = "apps.kubernetes.io/pod-index"


def plan(stateful_set: ObjectVersion, pods: list[ObjectVersion]) -> ControllerPlan:
    """Return the plan for a StatefulSet, given its pods: one step, or all steps with parallel pod management."""
    spec, name = stateful_set["spec"], stateful_set.key.name
    revision = f"{name}-{template_hash(spec['template'])}"
    pod_by_index = {int(pod["metadata"]["labels"][_INDEX]): pod for pod in pods}
    replicas, parallel = spec["replicas"], spec["podManagementPolicy"] == "Parallel"
    create: list[Json] = []
    delete: list[ObjectVersion] = []
    for index in range(replicas):
        pod = pod_by_index.get(index)
        if pod is None:
            create.append(_pod(stateful_set, index, revision))
        elif is_finished(pod.obj) and not is_deleting(pod.obj):
            delete.append(pod)
        elif is_ready(pod.obj) and not is_deleting(pod.obj):
            continue
        if not parallel:
            break
    settled = parallel or not (create or delete)
    if settled and (
        surplus := [pod_by_index[index] for index in sorted(pod_by_index, reverse=True) if index >= replicas]
    ):
        delete += surplus if parallel else surplus[:1]
    elif settled and all(is_ready(pod.obj) for pod in pod_by_index.values()):
        outdated = (
            pod_by_index[index]
            for index in sorted(pod_by_index, reverse=True)
            if pod_by_index[index]["metadata"]["labels"][_REVISION] != revision
        )
        delete += [pod for pod in [next(outdated, None)] if pod is not None]
    delete = [pod for pod in delete if not is_deleting(pod.obj)]
    return ControllerPlan(create, delete, status=_status(stateful_set, pods, len(create), revision))


def _pod(stateful_set: ObjectVersion, index: int, revision: str) -> Json:
    name = f"{stateful_set.key.name}-{index}"
    labels = {"statefulset.kubernetes.io/pod-name": name, _INDEX: str(index), _REVISION: revision}
    pod = pod_of(stateful_set, name, labels=labels)
    subdomain = {"subdomain": stateful_set["spec"]["serviceName"]} if stateful_set["spec"].get("serviceName") else {}
    pod_with_claims, _ = claims_of_replica(
        stateful_set, {**pod, "spec": {**pod["spec"], "hostname": name, **subdomain}}
    )
    return pod_with_claims


def _status(stateful_set: ObjectVersion, pods: list[ObjectVersion], created: int, revision: str) -> Json:
    ready = sum(is_ready(pod.obj) for pod in pods)
    updated = created + sum(pod["metadata"]["labels"][_REVISION] == revision for pod in pods)
    counts = {
        "replicas": len(pods) + created,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": updated,
        "updatedReplicas": updated,
        "observedGeneration": stateful_set["metadata"]["generation"],
    }
    shown = {name: value for name, value in counts.items() if value or name in ("replicas", "availableReplicas")}
    return {**shown, "currentRevision": revision, "updateRevision": revision, "collisionCount": 0}


def _reconcile(store: Store, key: Key) -> float | None:
    stateful_set = store.find(KIND, *key.address)
    if stateful_set is not None and not is_deleting(stateful_set.obj):
        next_step = plan(stateful_set, owned(store, stateful_set))
        for pod in next_step.create:
            for claim in claims_of_replica(stateful_set, pod)[1]:
                if store.find(CLAIMS, claim["metadata"]["name"], key.namespace) is None:
                    store.create(CLAIMS, claim, key.namespace)
        carry_out(store, stateful_set, next_step)
    return None


CONTROLLER: Final = Controller("statefulset", owner_and_owned(KIND), _reconcile)
