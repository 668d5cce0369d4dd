"""StorageClasses, volumes and volume claims for end-to-end tests."""

from typing import Any

from .api import Json

HOST = "kubernetes.io/hostname"


def storage_class(name: str, provisioner: str, mode: str = "WaitForFirstConsumer") -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
    }


LOCAL = storage_class("local", "kubernetes.io/no-provisioner")
DISK = storage_class("disk", "e2e.example.com/disk")


def claim(name: str, of: str, mode: str = "ReadWriteOnce", **spec: Any) -> Json:
    wants = {"accessModes": [mode], "storageClassName": of, "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**wants, **spec},
    }


def volume(name: str, of: str, mode: str = "ReadWriteOnce", *, on: tuple[str, str] | None = None, **spec: Any) -> Json:
    """A volume; ``on`` label and value of the nodes that can use it."""
    has: Json = {
        "accessModes": [mode],
        "capacity": {"storage": "1Gi"},
        "storageClassName": of,
        "persistentVolumeReclaimPolicy": "Retain",
        "csi": {"driver": "e2e.example.com/disk".replace("/", "."), "volumeHandle": name},
    }
    if on is not None:
        terms = [{"matchExpressions": [{"key": on[0], "operator": "In", "values": [on[1]]}]}]
        has["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {**has, **spec}}


def using(*claims: str) -> list[Json]:
    return [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": name}} for n, name in enumerate(claims)]
