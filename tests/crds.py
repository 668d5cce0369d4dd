"""Definitions of kinds: those of other projects cut down to what is read of them, and our own served."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.e2e.api import Api
from tests.ship.manifests import BASE, read
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer

Json = dict[str, Any]

PLUGINS: Final = "scheduling.x-k8s.io"
VOLCANO: Final = "scheduling.volcano.sh"
_FREE: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def pod_group_definition(group: str = PLUGINS) -> Json:
    """Return the CustomResourceDefinition of a PodGroup."""
    spec = {"type": "object", "properties": {"minMember": {"type": "integer", "format": "int32"}}}
    schema = {"type": "object", "properties": {"spec": {**spec, **_FREE}, "status": _FREE}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"podgroups.{group}",
            # Groups below k8s.io are the project's own; the API server requires this of every definition there.
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
            },
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"},
            "versions": [
                {
                    "name": "v1beta1" if group == VOLCANO else "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def node_topology_definition() -> Json:
    """Return the CustomResourceDefinition of NodeResourceTopology."""
    group = "topology.node.k8s.io"
    names = {"plural": "noderesourcetopologies", "singular": "noderesourcetopology", "kind": "NodeResourceTopology"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names['plural']}.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
        },
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": names | {"listKind": "NodeResourceTopologyList"},
            "versions": [{"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": _FREE}}],
        },
    }


def pod_group(name: str, minimum: int, group: str = PLUGINS, namespace: str = "default", **spec: Any) -> Json:
    """Return a PodGroup of scheduler-plugins or of Volcano."""
    version = "v1beta1" if group == VOLCANO else "v1alpha1"
    return {
        "apiVersion": f"{group}/{version}",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minMember": minimum, **spec},
    }


def native_pod_group(name: str, minimum: int, namespace: str = "default", **spec: Any) -> Json:
    """Return a PodGroup of Kubernetes 1.36."""
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}, **spec},
    }


def job_set_definition() -> Json:
    """Return the CustomResourceDefinition of a JobSet, whose fields are not checked."""
    schema = {"type": "object", "properties": {"spec": _FREE, "status": _FREE}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "jobsets.jobset.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/jobset"},
        },
        "spec": {
            "group": "jobset.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "jobsets", "singular": "jobset", "kind": "JobSet", "listKind": "JobSetList"},
            "versions": [{"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def migration_definition() -> Json:
    """Return the CustomResourceDefinition of a Migration, as the manifests have it."""
    (definition,) = read(BASE / "migrations.yaml")
    return definition


@asynccontextmanager
async def serving_migrations(kubeconfig: Path, server: EmbeddedAPIServer | None = None) -> AsyncIterator[Api]:
    """An embedded server with the definition of the manifests, and its administrator. It does not look at schemas."""
    async with server or EmbeddedAPIServer() as serving, Api(serving.write_kubeconfig(kubeconfig)) as api:
        await api.create("customresourcedefinitions", migration_definition())
        yield api
