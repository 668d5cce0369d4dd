"""Owners that the scheduler can't read at once, in many namespaces, delay no other namespace's owners."""

import time

import pytest

from topo_scheduler.simulation.apiserver import Delay

from . import objects
from .api import Json
from .cluster import Cluster
from .conftest import StartReplica, Trouble
from .job_sets import JOB_SETS

pytestmark = pytest.mark.timeout(240)

NAMESPACES = ("e2e-evil-a", "e2e-evil-b")
DELAY_SECONDS = 5.0
"""Far more than it takes to read an owner, less than a read that is refused (8 s) or hangs (40 s) holds its slot."""
UNREADABLE = [
    ("v1", "ConfigMap"), ("v1", "Secret"), ("v1", "Service"), ("v1", "Endpoints"), ("v1", "ServiceAccount"),
    ("v1", "LimitRange"), ("v1", "ResourceQuota"), ("v1", "PodTemplate"),
    ("rbac.authorization.k8s.io/v1", "Role"), ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"), ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("networking.k8s.io/v1", "Ingress"), ("networking.k8s.io/v1", "NetworkPolicy"),
    ("networking.k8s.io/v1", "IngressClass"), ("discovery.k8s.io/v1", "EndpointSlice"),
    ("coordination.k8s.io/v1", "Lease"), ("autoscaling/v2", "HorizontalPodAutoscaler"),
    ("apps/v1", "ControllerRevision"),
    ("scheduling.k8s.io/v1", "PriorityClass"), ("node.k8s.io/v1", "RuntimeClass"),
    ("certificates.k8s.io/v1", "CertificateSigningRequest"), ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ("apiregistration.k8s.io/v1", "APIService"), ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
]  # fmt: skip
"""Kinds of every cluster that the manifests' ClusterRoles do not let the scheduler get."""


def below(api_version: str, kind: str, name: str, uid: str, pod: Json) -> Json:
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}
    ]
    return pod


async def delays(cluster: Cluster, name: str, rounds: int) -> list[float]:
    """Create pods of JobSets, one after the other; return how long each took until it was bound, in seconds."""
    took = []
    for number in range(rounds):
        full = f"{name}{number}"
        owner = await cluster.api.create(
            JOB_SETS, {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": full}}
        )
        began = time.monotonic()
        pod = objects.pod(full)
        await cluster.apply(below("jobset.x-k8s.io/v1alpha2", "JobSet", full, owner["metadata"]["uid"], pod))
        await cluster.wait_bound(full, 1, 60)
        took.append(time.monotonic() - began)
    return took


async def prepared(cluster: Cluster, start_replica: StartReplica) -> None:
    """Start a scheduler that has read a JobSet, and add the namespaces of the tenant."""
    await cluster.add_fabric({"s1": [4]})
    for name in NAMESPACES:
        await cluster.add_namespace(name)
    replica = await start_replica()
    replica.may_be_refused = True
    await delays(cluster, "first", 1)


@pytest.mark.only("real")
async def test_kinds_that_may_not_be_read(job_sets: None, cluster: Cluster, start_replica: StartReplica) -> None:
    """Nothing is broken here: a tenant of two namespaces names kinds that the scheduler has no right to get."""
    await prepared(cluster, start_replica)
    for number, (api_version, kind) in enumerate(UNREADABLE):
        pod = objects.pod(f"evil-{number}", namespace=NAMESPACES[number % 2])
        await cluster.apply(below(api_version, kind, "x", f"00000000-0000-0000-0000-{number:012}", pod))
    took = await delays(cluster, "victim", 3)
    assert max(took) < DELAY_SECONDS, took


async def test_reads_that_hang(job_sets: None, trouble: Trouble, cluster: Cluster, start_replica: StartReplica) -> None:
    """A kind whose conversion webhook or API server hangs: pods of it in two namespaces."""
    await prepared(cluster, start_replica)
    trouble.faults.add(Delay(60.0), verb="get", where=lambda info: info.resource == "configmaps")
    for number in range(8):
        pod = objects.pod(f"evil-{number}", namespace=NAMESPACES[number % 2])
        await cluster.apply(below("v1", "ConfigMap", f"x{number}", f"00000000-0000-0000-0000-{number:012}", pod))
    took = await delays(cluster, "victim", 2)
    trouble.faults.clear()
    assert max(took) < DELAY_SECONDS, took
