"""Owners of pods on the embedded API server, and references to them."""

from typing import Any

from topo_scheduler.api.objects import ObjectMeta, OwnerReference

from .world import World

Json = dict[str, Any]
POD_TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "train"}], "restartPolicy": "Never"}}
RAY_CLUSTER_DEFINITION: Json = {
    "metadata": {"name": "rayclusters.ray.io"},
    "spec": {
        "group": "ray.io",
        "scope": "Namespaced",
        "names": {
            "plural": "rayclusters",
            "singular": "raycluster",
            "kind": "RayCluster",
            "listKind": "RayClusterList",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def controller_reference(obj: Json) -> Json:
    """Return the owner reference of an object that is the controller."""
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "controller": True,
    }


def create_object(w: World, kind: str, name: str, *, owner: Json | None = None, spec: Json | None = None) -> Json:
    """Create an object in the API server, with an annotation that names it."""
    metadata: Json = {"name": name, "annotations": {"topology.scheduler/from": name}}
    if owner is not None:
        metadata["ownerReferences"] = [controller_reference(owner)]
    obj: Json = w.server.store.create(kind, {"metadata": metadata, "spec": spec or {}}, "default").obj
    return obj


def create_ray_cluster(w: World, name: str = "ray") -> Json:
    """Create a RayCluster, and its definition unless it is served."""
    if w.server.store.find("customresourcedefinitions.apiextensions.k8s.io", "rayclusters.ray.io") is None:
        w.server.store.create("customresourcedefinitions.apiextensions.k8s.io", RAY_CLUSTER_DEFINITION)
    return create_object(w, "rayclusters.ray.io", name)


def metadata_owned_by(*references: Json, namespace: str = "default") -> ObjectMeta:
    """Return the metadata of a pod with these owner references."""
    owners = [
        OwnerReference(each["apiVersion"], each["kind"], each["name"], each["uid"], each["controller"])
        for each in references
    ]
    return ObjectMeta(name="pod", namespace=namespace, owner_references=owners)
