"""Controllers that are told to run nothing: scaled to 0, or suspended. The pods below them are deleted next.

Of kinds that are watched only metadata is followed: their field is read right before pods are evicted for others, when
a controller may be behind its own object. Of others it is read whenever they are asked for.
"""

from typing import Any, Final

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.api.objects import PartialObject
from topo_scheduler.kube.resources import Object, Resource

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
"""By group and kind. A suspended CronJob is not among them: the Jobs that it made go on."""


class WithSpec(PartialObject):
    """A whole object; ``spec`` may be anything."""

    spec: msgspec.Raw = msgspec.Raw(b"null")


class _HaltedSpec(Base):
    replicas: Any = None
    suspend: Any = None
    run_policy: Any = None


_decoder: Final = msgspec.json.Decoder(_HaltedSpec)


def with_spec(resource: Resource[Any]) -> Resource[WithSpec] | None:
    """Return how an object of a kind is read with the field that halts it; None where there is no such field."""
    if (resource.group, resource.kind) not in _FIELDS:
        return None
    return Resource(resource.group, resource.version, resource.plural, resource.kind, WithSpec, resource.namespaced)


def halted(resource: Resource[Any], item: Object) -> str:
    """Return why an object runs no pods, or an empty string."""
    if not isinstance(item, WithSpec):
        return ""
    try:
        spec = _decoder.decode(item.spec)
    except msgspec.DecodeError:
        return ""
    name = f"{resource.kind} {item.metadata.name}"
    field = _FIELDS[resource.group, resource.kind]
    if field != "replicas":
        policy = spec.run_policy if isinstance(spec.run_policy, dict) else {}
        suspended = spec.suspend if field == "suspend" else policy.get("suspend")
        return f"{name} is suspended (spec.{field})" if suspended is True else ""
    return f"{name} is scaled to 0 (spec.replicas)" if type(spec.replicas) is int and spec.replicas == 0 else ""
