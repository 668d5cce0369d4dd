"""What the controller of a pod shows by its reference alone."""

import pytest

from topo_scheduler.api.objects import ObjectMeta, OwnerReference
from topo_scheduler.state.pods.node_pods import has_pod_maker


@pytest.mark.parametrize(
    ("api_version", "kind", "makes_pods"),
    [
        ("apps/v1", "ReplicaSet", True),
        ("batch/v1", "Job", True),
        ("v1", "ReplicationController", True),
        ("ray.io/v1", "RayCluster", True),
        ("sparkoperator.k8s.io/v1beta2", "SparkApplication", True),
        ("v1", "Pod", False),
        ("v1", "Node", False),
        ("v1", "ConfigMap", False),
        ("apps/v1", "Deployment", False),
        ("coordination.k8s.io/v1", "Lease", False),
        ("scheduling.volcano.sh/v1beta1", "PodGroup", False),
        ("topology.scheduler/v1", "Migration", False),
    ],
)
def test_only_kinds_that_make_pods_count(api_version: str, kind: str, makes_pods: bool) -> None:
    reference = OwnerReference(api_version, kind, "boss", "uid-boss", controller=True)
    assert has_pod_maker(ObjectMeta("p", "default", owner_references=[reference])) is makes_pods
    assert not has_pod_maker(ObjectMeta("p", "default"))
