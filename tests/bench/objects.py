"""The objects of the benchmarks: nodes in leaves of 16, pods, gangs as Jobs and as native PodGroups."""

from typing import Any, Final

Json = dict[str, Any]
LEAF: Final = 16
LEAVES_PER_SPINE: Final = 20
OURS: Final = "topology-aware-scheduler"
NETWORK: Final = "400Gb"
"""What the network of each node carries, where that is known."""


def node(number: int) -> Json:
    """A node of 8 GPUs; its place follows from its number."""
    leaf = number // LEAF
    resources = {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    labels = {
        "kubernetes.io/hostname": f"node-{number}",
        "topology.scheduler/spine": f"spine-{leaf // LEAVES_PER_SPINE}",
        "topology.scheduler/leaf": f"leaf-{leaf}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "labels": labels},
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}],
        },
    }


def networked(node: Json) -> Json:
    """A node whose network and whose leaf's uplink are known: the uplink carries an eighth of what its nodes could."""
    known = {"topology.scheduler/network-bandwidth": NETWORK, "topology.scheduler/leaf-uplink-bandwidth": "800Gb"}
    metadata = node["metadata"]
    return {**node, "metadata": {**metadata, "labels": {**metadata["labels"], **known}}}


def pod(name: str, gpus: int, scheduler: str, **metadata: Any) -> Json:
    """A pod of some GPUs."""
    container = {
        "name": "main",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {
            # As the API server writes it: what is limited is requested too.
            "requests": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": str(gpus)},
            "limits": {"nvidia.com/gpu": str(gpus)},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"schedulerName": scheduler, "restartPolicy": "Never", "containers": [container]},
    }


def bound_pod(number: int, nodes: int) -> Json:
    """A pod of another scheduler that holds a CPU of one of so many nodes."""
    body = pod(f"b-{number}", 0, "default-scheduler")
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", "memory": "1Gi"}}
    body["spec"]["nodeName"] = f"node-{number % nodes}"
    return body


def job(name: str, members: int, gpus: int = 8, annotations: dict[str, str] | None = None) -> Json:
    """An Indexed Job: what makes its pods a gang for this scheduler."""
    template = pod(name, gpus, OURS)["spec"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations or {}},
        "spec": {
            "parallelism": members,
            "completions": members,
            "completionMode": "Indexed",
            "template": {"spec": template},
        },
    }


def member_of_job(owner: Json, index: int, gpus: int = 8) -> Json:
    """A pod as the Job controller makes it."""
    name = owner["metadata"]["name"]
    reference = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name,
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    labels = {"batch.kubernetes.io/job-completion-index": str(index), "batch.kubernetes.io/job-name": name}
    return pod(f"{name}-{index}", gpus, OURS, labels=labels, ownerReferences=[reference])


def pod_group(name: str, members: int) -> Json:
    """A native PodGroup that must stand in one leaf (Kubernetes 1.36, alpha)."""
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulingPolicy": {"gang": {"minCount": members}},
            "schedulingConstraints": {"topology": [{"key": "topology.scheduler/leaf"}]},
        },
    }


def member_of_group(name: str, index: int) -> Json:
    """A pod of a native PodGroup."""
    member = pod(f"{name}-{index}", 8, "default-scheduler")
    member["spec"]["schedulingGroup"] = {"podGroupName": name}
    return member
