"""The Kubernetes objects tests create, as JSON."""

from collections.abc import Mapping
from typing import Any, Final

from .api import Json

PREFIX: Final = "topology.scheduler/"
SCHEDULER: Final = "topology-aware-scheduler"
NVIDIA: Final = "nvidia.com/gpu"
MODEL: Final = "nvidia.com/gpu.product"
RUN_EMBEDDED: Final = "simulation.topology.scheduler/run-seconds"
RUN_KWOK: Final = "pod-complete.stage.kwok.x-k8s.io/delay"
FOREVER: Final = 86_400.0

POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


def ours(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """Put our prefix before every name that has none."""
    return {key if "/" in key else PREFIX + key: value for key, value in (annotations or {}).items()}


def runs(seconds: float | None) -> dict[str, str]:
    """Annotations of a pod that tell both kinds of simulated kubelets how long it runs; None is for ever."""
    lasts = FOREVER if seconds is None else seconds
    return {RUN_EMBEDDED: str(lasts), RUN_KWOK: f"{round(lasts * 1000)}ms"}


def node(
    name: str,
    *,
    spine: str = "",
    leaf: str = "",
    gpus: int = 8,
    model: str = "",
    bandwidth: str = "",
    labels: Mapping[str, str] | None = None,
    taints: list[Json] | None = None,
) -> Json:
    """A node that hangs at a leaf."""
    place = {PREFIX + "spine": spine, PREFIX + "leaf": leaf}
    place |= {MODEL: model, PREFIX + "network-bandwidth": bandwidth}
    all_labels = {
        "kubernetes.io/hostname": name,
        **(labels or {}),
        **{key: value for key, value in place.items() if value},
    }
    has = {"cpu": "96", "memory": "1Ti", "pods": "110", **({NVIDIA: str(gpus)} if gpus else {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": all_labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {"taints": taints} if taints else {},
        "status": {
            "capacity": has,
            "allocatable": has,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod_spec(gpus: int = 0, *, cpu: str = "1", scheduler: str = SCHEDULER, **spec: Any) -> Json:
    """A pod's spec: one container."""
    resources: Json = {"requests": {"cpu": cpu, "memory": "1Gi"}}
    if gpus:
        resources["limits"] = {NVIDIA: str(gpus)}
    container = {"name": "main", "image": "busybox:1.36", "resources": resources}
    return {"schedulerName": scheduler, "terminationGracePeriodSeconds": 0, "containers": [container], **spec}


def pod(
    name: str,
    gpus: int = 0,
    annotations: Mapping[str, str] | None = None,
    *,
    run: float | None = None,
    namespace: str = "default",
    **spec: Any,
) -> Json:
    """A bare pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": {**ours(annotations), **runs(run)}},
        "spec": {"restartPolicy": "Never", **pod_spec(gpus, **spec)},
    }


def template(gpus: int, run: float | None, annotations: Mapping[str, str] | None = None, **spec: Any) -> Json:
    """A pod template."""
    return {"metadata": {"annotations": {**ours(annotations), **runs(run)}}, "spec": pod_spec(gpus, **spec)}


def job(
    name: str,
    parallelism: int = 1,
    gpus: int = 8,
    annotations: Mapping[str, str] | None = None,
    *,
    run: float | None = None,
    completions: int | None = None,
    indexed: bool = True,
    namespace: str = "default",
    pod_annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """A Job of pods of so many GPUs. ``gpu-count`` is not added by itself."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "annotations": ours(annotations)},
        "spec": {
            "parallelism": parallelism,
            "completions": completions or parallelism,
            "completionMode": "Indexed" if indexed else "NonIndexed",
            "template": template(gpus, run, pod_annotations, restartPolicy="Never", **spec),
        },
    }


def gang(name: str, members: int, gpus: int = 8, annotations: Mapping[str, str] | None = None, **more: Any) -> Json:
    """A Job that is a gang: its own metadata tell the GPUs of the whole job."""
    return job(name, members, gpus, {"gpu-count": str(members * gpus), **(annotations or {})}, **more)


def replicated(
    kind: str, name: str, replicas: int, gpus: int, annotations: Mapping[str, str] | None = None, **spec: Any
) -> Json:
    """A Deployment, ReplicaSet or StatefulSet."""
    body = template(gpus, None, **spec)
    body["metadata"]["labels"] = {"app": name}
    more: Json = {"serviceName": name, "podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "annotations": ours(annotations)},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": body, **more},
    }


PLURALS: Final = {
    "Deployment": "deployments",
    "Job": "jobs",
    "Node": "nodes",
    "Pod": "pods",
    "ReplicaSet": "replicasets",
    "StatefulSet": "statefulsets",
    "ServiceAccount": "serviceaccounts",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PersistentVolume": "persistentvolumes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "StorageClass": "storageclasses",
    "DeviceClass": "deviceclasses",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "ResourceSlice": "resourceslices",
    "NodeResourceTopology": "noderesourcetopologies",
}
