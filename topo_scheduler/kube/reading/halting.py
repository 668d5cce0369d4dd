"""Controllers that are scaled to 0 or suspended, so that their pods are deleted next.

Reflectors follow only the metadata of watched kinds. The scheduler therefore reads their field right before it
evicts pods for others, since a controller may lag behind its own object. For other kinds, every request for the
object also reads the field.
"""

from typing import Any, Final

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.api.objects import PartialObject
from topo_scheduler.kube.connection.odd_json import REFUSED
from topo_scheduler.kube.connection.resources import Object, Resource

_KUBEFLOW: Final = ("JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob")
_FIELDS: Final = {
    ("apps", "Deployment"): "replicas",
    ("apps", "ReplicaSet"): "replicas",
    ("apps", "StatefulSet"): "replicas",
    ("", "ReplicationController"): "replicas",
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): "replicas",
    ("jobset.x-k8s.io", "JobSet"): "suspend",
    ("ray.io", "RayCluster"): "suspend",
    ("ray.io", "RayJob"): "suspend",
    ("trainer.kubeflow.org", "TrainJob"): "suspend",
    **{("kubeflow.org", kind): "runPolicy.suspend" for kind in _KUBEFLOW},
}
"""By group and kind. A suspended CronJob is not among them: its existing Jobs continue."""


class WithSpec(PartialObject):
    """A whole object; ``spec`` may be anything."""

    spec: msgspec.Raw = msgspec.Raw(b"null")


class _HaltedSpec(Base):
    replicas: Any = None
    suspend: Any = None
    run_policy: Any = None


_decoder: Final = msgspec.json.Decoder(_HaltedSpec)


def with_spec(resource: Resource[Any]) -> Resource[WithSpec] | None:
    """Return the resource that reads an object with the field that halts it; None where the kind has no such field."""
    if (resource.group, resource.kind) not in _FIELDS:
        return None
    return Resource(resource.group, resource.version, resource.plural, resource.kind, WithSpec, resource.namespaced)


def halted(resource: Resource[Any], item: Object) -> str:
    """Return why an object runs no pods, or an empty string."""
    if not isinstance(item, WithSpec):
        return ""
    try:
        spec = _decoder.decode(item.spec)
    except REFUSED:  # nested as deeply as could just be read before
        return ""
    name = f"{resource.kind} {item.metadata.name}"
    field = _FIELDS[resource.group, resource.kind]
    if field != "replicas":
        policy = spec.run_policy if isinstance(spec.run_policy, dict) else {}
        suspended = spec.suspend if field == "suspend" else policy.get("suspend")
        return f"{name} is suspended (spec.{field})" if suspended is True else ""
    return f"{name} is scaled to 0 (spec.replicas)" if type(spec.replicas) is int and spec.replicas == 0 else ""
