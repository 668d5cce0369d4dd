"""The kinds this scheduler reads, and their paths on the API server.

A new built-in workload kind needs one constant here, a place in ``OWNER_KINDS``, and the verbs get, list and watch
in the role. Kinds of other groups need only the verb get: ``owners`` finds them by discovery.
"""

import re
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from topo_scheduler.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from topo_scheduler.api.numa import NodeResourceTopology
from topo_scheduler.api.objects import DisruptionBudget, Job, Node, ObjectMeta, PartialObject, Pod
from topo_scheduler.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)


class Object(Protocol):
    """Fields that every struct of ``api.objects`` for an API object has."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its metadata."""
        ...


T = TypeVar("T", bound=Object)

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ACCEPT = "application/json;as={kind};g=meta.k8s.io;v=v1,application/json"


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind, the type its objects are decoded to, and its paths.

    With ``metadata_only`` the request asks for PartialObjectMetadata. A server that does not support it sends whole
    objects, of which only the metadata is decoded.
    """

    group: str
    version: str
    plural: str
    kind: str
    type: type[T]
    namespaced: bool = True
    metadata_only: bool = False

    @property
    def api_version(self) -> str:
        """``group/version``, or ``v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def described(self) -> str:
        """The name in messages: ``pods``, ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def collection(self, namespace: str | None = None) -> str:
        """Return the path of all objects, or of those in a namespace."""
        root = group_version_path(self.api_version)
        return f"{root}/namespaces/{segment(namespace)}/{self.plural}" if namespace else f"{root}/{self.plural}"

    def path(self, namespace: str, name: str, subresource: str = "") -> str:
        """Return the path of one object."""
        path = f"{self.collection(namespace if self.namespaced else None)}/{segment(name)}"
        return f"{path}/{subresource}" if subresource else path

    def accept(self, listing: bool) -> str:
        """Return the ``Accept`` header for one object or a watch, or for a list."""
        if not self.metadata_only:
            return "application/json"
        return _ACCEPT.format(kind="PartialObjectMetadataList" if listing else "PartialObjectMetadata")


def group_version_path(api_version: str) -> str:
    """Return ``/api/v1`` or ``/apis/<group>/<version>``."""
    group, slash, version = api_version.partition("/")
    return f"/apis/{segment(group)}/{segment(version)}" if slash else f"/api/{segment(group)}"


def segment(name: str) -> str:
    """Return a name as one path segment; raises ``ValueError`` for a name that cannot be one.

    The creator of a pod chooses the names in its ownerReferences: they must not lead to another path.
    """
    if _PLAIN.fullmatch(name):
        return name
    if name in ("", ".", "..") or "/" in name or "%" in name:
        raise ValueError(f"{name!r} is not a name of the Kubernetes API")
    return quote(name, safe="")


def _metadata(group: str, plural: str, kind: str) -> Resource[PartialObject]:
    return Resource(group, "v1", plural, kind, PartialObject, metadata_only=True)


def _storage(plural: str, kind: str, type_: type[T], *, namespaced: bool = False) -> Resource[T]:
    return Resource("storage.k8s.io", "v1", plural, kind, type_, namespaced=namespaced)


PODS = Resource("", "v1", "pods", "Pod", Pod)
NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", PartialObject, namespaced=False, metadata_only=True)
MAX_POD_BYTES = 4 * 1024 * 1024
"""Maximum size of a pod, or of its metadata, that is read alone: etcd stores 1.5 MiB, and JSON may take more."""
POD_METADATA = Resource("", "v1", "pods", "Pod", PartialObject, metadata_only=True)
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", DisruptionBudget)
JOBS = Resource("batch", "v1", "jobs", "Job", Job)

CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", PersistentVolumeClaim)
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", PersistentVolume, namespaced=False)
STORAGE_CLASSES = _storage("storageclasses", "StorageClass", StorageClass)
CSI_NODES = _storage("csinodes", "CSINode", CSINode)
CSI_DRIVERS = _storage("csidrivers", "CSIDriver", CSIDriver)
CSI_CAPACITIES = _storage("csistoragecapacities", "CSIStorageCapacity", CSIStorageCapacity, namespaced=True)
ATTACHMENTS = _storage("volumeattachments", "VolumeAttachment", VolumeAttachment)

DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", DeviceClass, namespaced=False)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", ResourceSlice, namespaced=False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", ResourceClaim)

NODE_TOPOLOGIES = Resource(
    "topology.node.k8s.io",
    "v1alpha2",
    "noderesourcetopologies",
    "NodeResourceTopology",
    NodeResourceTopology,
    namespaced=False,
)

CRONJOBS = _metadata("batch", "cronjobs", "CronJob")
REPLICASETS = _metadata("apps", "replicasets", "ReplicaSet")
DEPLOYMENTS = _metadata("apps", "deployments", "Deployment")
STATEFULSETS = _metadata("apps", "statefulsets", "StatefulSet")
DAEMONSETS = _metadata("apps", "daemonsets", "DaemonSet")
REPLICATIONCONTROLLERS = _metadata("", "replicationcontrollers", "ReplicationController")

OWNER_KINDS: tuple[Resource[Any], ...] = (
    JOBS,
    CRONJOBS,
    REPLICASETS,
    DEPLOYMENTS,
    STATEFULSETS,
    DAEMONSETS,
    REPLICATIONCONTROLLERS,
)
"""The workload kinds that have a reflector each."""
