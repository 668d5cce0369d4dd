"""Objects as the API server sends them: what is named is read, what is not is skipped."""

import json
from typing import Any

import msgspec

from topo_scheduler.api.objects import Job, Node, Pod

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train-0",
        "namespace": "ml",
        "uid": "u-1",
        "resourceVersion": "42",
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u-2"},
            {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-3", "controller": True},
        ],
    },
    "spec": {
        "schedulerName": "topology-aware-scheduler",
        "nodeName": "n",
        "priority": 5,
        "nodeSelector": {"a": "b"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}],
                            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
                        }
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}}
                ],
            },
            "podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "t", "labelSelector": {"matchLabels": {"a": "b"}}}}
                ]
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "t", "labelSelector": {}}]
            },
        },
        "tolerations": [{"key": "k", "effect": "NoExecute", "tolerationSeconds": 300}, {"operator": "Exists"}],
        "containers": [
            {
                "name": "main",
                "image": "i",
                "resources": {
                    "requests": {"cpu": "1", "memory": 5},
                    "limits": {"cpu": 1.5},
                    "claims": [{"name": "gpu"}],
                },
                "ports": [{"containerPort": 80, "hostPort": 81}],
            }
        ],
        "initContainers": [{"name": "side", "restartPolicy": "Always", "resources": {}}],
        "overhead": {"cpu": "250m"},
        "resources": {"requests": {"cpu": "3"}},
        "schedulingGates": [{"name": "wait"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "t", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "b", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "c", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        ],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "r"}],
        "hostNetwork": True,
        "schedulingGroup": {"podGroupName": "g"},
        "workloadRef": {"name": "w", "podGroup": "g"},
        "serviceAccountName": "default",
    },
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastProbeTime": None}],
        "containerStatuses": [{"name": "main", "ready": False}],
        "nominatedNodeName": "n",
    },
}


def decode(kind: Any, value: object) -> Any:
    return msgspec.json.decode(json.dumps(value), type=kind)


def test_a_pod_with_everything() -> None:
    pod: Pod = decode(Pod, POD)
    assert (pod.key, pod.metadata.uid, pod.spec.priority) == ("ml/train-0", "u-1", 5)
    controller = pod.metadata.controller
    assert controller is not None
    assert (controller.kind, controller.uid) == ("Job", "u-3")
    spec = pod.spec
    assert spec.affinity is not None
    assert spec.affinity.node_affinity is not None
    assert spec.affinity.node_affinity.required is not None
    (selected,) = spec.affinity.node_affinity.required.node_selector_terms
    assert selected.match_expressions[0].values == ("v",)
    assert selected.match_fields[0].key == "metadata.name"
    assert spec.affinity.node_affinity.preferred[0].weight == 1
    assert spec.affinity.pod_anti_affinity is not None
    assert len(spec.affinity.pod_anti_affinity.required) == 1
    assert [(t.key, t.operator, t.effect) for t in spec.tolerations] == [
        ("k", "Equal", "NoExecute"),
        ("", "Exists", ""),
    ]
    (container,) = spec.containers
    assert container.resources.requests == {"cpu": "1", "memory": 5}
    assert container.ports[0].host_port == 81
    assert spec.init_containers[0].restart_policy == "Always"
    assert [v.persistent_volume_claim is not None for v in spec.volumes] == [True, False, False]
    assert [v.ephemeral is not None for v in spec.volumes] == [False, True, False]
    assert spec.scheduling_group == {"podGroupName": "g"}
    assert spec.workload_ref is not None
    assert [gate.name for gate in spec.scheduling_gates] == ["wait"]
    assert pod.status.conditions[0].reason == "Unschedulable"
    assert not pod.finished


def test_what_is_absent_has_the_defaults_of_kubernetes() -> None:
    pod: Pod = decode(Pod, {"metadata": {"name": "p"}})
    assert (pod.spec.node_name, pod.status.phase, pod.metadata.controller) == ("", "Pending", None)
    job: Job = decode(Job, {"metadata": {"name": "j"}, "spec": {"template": {"spec": {}}}})
    assert (job.spec.parallelism, job.spec.completions, job.spec.completion_mode) == (1, None, "NonIndexed")
    node: Node = decode(Node, {"metadata": {"name": "n"}, "status": {"nodeInfo": {}}})
    assert (node.spec.unschedulable, node.spec.taints, node.status.allocatable) == (False, [], {})


def test_pods_that_ended_hold_nothing() -> None:
    ended = {phase: decode(Pod, {"status": {"phase": phase}}).finished for phase in ("Running", "Succeeded", "Failed")}
    assert ended == {"Running": False, "Succeeded": True, "Failed": True}


def test_objects_of_their_own_do_not_share_their_parts() -> None:
    first, other = decode(Pod, {}), decode(Pod, {})
    first.metadata.labels["a"] = "b"
    first.spec.containers.append("c")
    assert other.metadata.labels == {}
    assert other.spec.containers == []
