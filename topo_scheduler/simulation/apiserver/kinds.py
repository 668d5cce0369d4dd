"""The table of served resources: one row per resource.

Only the defaults (``admission``) and columns (``tables``) of a resource are defined elsewhere. The ``id`` of a kind is
the resource name of kubectl (``pods``, ``jobs.batch``). Kinds may share their storage and show it differently: the two
event APIs, and the versions of a custom resource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .objects import Json

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """Conversion of an object between the API in which it is stored and another one."""

    name: str
    show: Callable[[Json], Json]
    store: Callable[[Json], Json]


def _paths(*labels: str) -> dict[str, Path]:
    return {label: tuple(label.split(".")) for label in labels}


NAME_AND_NAMESPACE = _paths("metadata.name", "metadata.namespace")


@dataclass(frozen=True, slots=True, eq=False)
class ApiKind:
    """One resource in one version, with the rules that differ between resources."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    """Subresources; with ``status``, writes of spec and of status are separate."""
    fields: Mapping[str, Path] = field(default_factory=dict)
    """Field selectors beyond name and namespace."""
    generation: bool = False
    """Whether ``metadata.generation`` counts the changes of the spec."""
    blind_put: bool = True
    """Whether an update without resourceVersion overwrites the object."""
    put_creates: bool = False
    graceful: bool = False
    """Whether deletion has a grace period and waits for the kubelet."""
    status_at_birth: bool = False
    """Whether a create keeps the status in the request."""
    status_writes_labels: bool = False
    """Whether writes of the status may change labels, annotations and finalizers too."""
    returns_deleted: bool = False
    """Whether a delete returns the object instead of a ``Status``."""
    orphans: bool = False
    """Whether deletion keeps dependents by default."""
    immutable: tuple[Path, ...] = ()
    custom: bool = False
    printed: tuple[Json, ...] = ()
    """Printer columns of a custom resource."""
    view: View | None = None
    storage: str = ""
    """The id of the kind under which objects are stored; empty for its own."""

    @property
    def id(self) -> str:
        """The resource's qualified name."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def table(self) -> str:
        """The id of the table with its objects."""
        return self.storage or self.id

    @property
    def api_version(self) -> str:
        """Group and version as in objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        """Whether there is a status subresource."""
        return "status" in self.subresources

    def field_path(self, label: str) -> Path | None:
        """Return the path in a stored object for a label of a field selector; None if it is not supported."""
        return self.fields.get(label) or NAME_AND_NAMESPACE.get(label)


_EVENT_NAMES = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
)


def _renamed(obj: Json, names: Mapping[str, str], api_version: str) -> Json:
    return {**{names.get(name, name): value for name, value in obj.items()}, "apiVersion": api_version}


NEW_EVENTS = View(
    "events.k8s.io/v1",
    show=lambda obj: _renamed(obj, dict(_EVENT_NAMES), "events.k8s.io/v1"),
    store=lambda obj: _renamed(obj, {new: old for old, new in _EVENT_NAMES}, "v1"),
)
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

_EVENT_FIELDS = _paths(*(f"involvedObject.{part}" for part in _INVOLVED), "reason", "reportingComponent", "type") | {
    "source": ("source", "component")
}
_NEW_EVENT_FIELDS = {
    **_paths("reason", "type"),
    "reportingController": ("reportingComponent",),
    **{f"regarding.{part}": ("involvedObject", part) for part in _INVOLVED},
}
_POD_FIELDS = _paths(
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_ALL = ("all",)
_STATUS = ("status",)
_SCALED = ("status", "scale")
_WORKLOAD_SELECTOR: tuple[Path, ...] = (("spec", "selector"),)

BUILT_IN: tuple[ApiKind, ...] = (
    ApiKind(
        "", "v1", "Pod", "pods", short=("po",), categories=_ALL, fields=_POD_FIELDS, generation=True, graceful=True,
        subresources=("status", "binding", "eviction", "log"), status_writes_labels=True, returns_deleted=True,
    ),
    ApiKind(
        "", "v1", "Node", "nodes", namespaced=False, short=("no",), subresources=_STATUS, status_at_birth=True,
        status_writes_labels=True, fields=_paths("spec.unschedulable"),
    ),
    ApiKind(
        "", "v1", "Namespace", "namespaces", namespaced=False, short=("ns",), subresources=("status", "finalize"),
        fields=_paths("status.phase"), returns_deleted=True,
    ),
    ApiKind("", "v1", "Event", "events", short=("ev",), put_creates=True, fields=_EVENT_FIELDS),
    ApiKind(
        "events.k8s.io", "v1", "Event", "events", short=("ev",), put_creates=True, fields=_NEW_EVENT_FIELDS,
        storage="events", view=NEW_EVENTS,
    ),
    ApiKind("", "v1", "ConfigMap", "configmaps", short=("cm",)),
    ApiKind("", "v1", "Secret", "secrets", fields=_paths("type")),
    ApiKind("", "v1", "ReplicationController", "replicationcontrollers", short=("rc",), categories=_ALL,
         subresources=_SCALED, generation=True, fields=_paths("status.replicas")),
    ApiKind("", "v1", "Service", "services", short=("svc",), categories=_ALL, subresources=_STATUS,
         returns_deleted=True),
    ApiKind("", "v1", "ServiceAccount", "serviceaccounts", short=("sa",), subresources=("token",),
         returns_deleted=True),
    ApiKind("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False, short=("pv",), subresources=_STATUS,
         returns_deleted=True),
    ApiKind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", short=("pvc",), subresources=_STATUS,
         returns_deleted=True),
    ApiKind("", "v1", "ResourceQuota", "resourcequotas", short=("quota",), subresources=_STATUS, returns_deleted=True),
    ApiKind("", "v1", "LimitRange", "limitranges", short=("limits",)),
    ApiKind("", "v1", "Endpoints", "endpoints", short=("ep",)),
    ApiKind(
        "batch", "v1", "Job", "jobs", categories=_ALL, subresources=_STATUS, generation=True, orphans=True,
        fields={"status.successful": ("status", "succeeded")},
        immutable=(("spec", "selector"), ("spec", "completionMode"), ("spec", "template")),
    ),
    ApiKind("batch", "v1", "CronJob", "cronjobs", short=("cj",), categories=_ALL, subresources=_STATUS,
         generation=True),
    ApiKind("apps", "v1", "Deployment", "deployments", short=("deploy",), categories=_ALL, subresources=_SCALED,
         generation=True, immutable=_WORKLOAD_SELECTOR),
    ApiKind("apps", "v1", "ReplicaSet", "replicasets", short=("rs",), categories=_ALL, subresources=_SCALED,
         generation=True, fields=_paths("status.replicas"), immutable=_WORKLOAD_SELECTOR),
    ApiKind(
        "apps", "v1", "StatefulSet", "statefulsets", short=("sts",), categories=_ALL, subresources=_SCALED,
        generation=True,
        immutable=(*_WORKLOAD_SELECTOR, ("spec", "serviceName"), ("spec", "podManagementPolicy")),
    ),
    ApiKind("apps", "v1", "DaemonSet", "daemonsets", short=("ds",), categories=_ALL, subresources=_STATUS,
         generation=True, immutable=_WORKLOAD_SELECTOR),
    ApiKind("apps", "v1", "ControllerRevision", "controllerrevisions"),
    ApiKind("coordination.k8s.io", "v1", "Lease", "leases", blind_put=False, put_creates=True),
    ApiKind("scheduling.k8s.io", "v1alpha2", "PodGroup", "podgroups", subresources=_STATUS, generation=True,
         immutable=(("spec", "schedulingPolicy"), ("spec", "schedulingConstraints"))),
    ApiKind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False, short=("pc",),
         immutable=(("value",), ("preemptionPolicy",))),
    ApiKind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", short=("pdb",), subresources=_STATUS,
         generation=True, blind_put=False),
    ApiKind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False, blind_put=False, put_creates=True),
    ApiKind("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False, short=("sc",)),
    ApiKind("storage.k8s.io", "v1", "CSINode", "csinodes", namespaced=False, blind_put=False),
    ApiKind("storage.k8s.io", "v1", "CSIDriver", "csidrivers", namespaced=False, blind_put=False),
    ApiKind("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", blind_put=False),
    ApiKind("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", namespaced=False, subresources=_STATUS,
         blind_put=False),
    ApiKind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", subresources=_STATUS),
    ApiKind("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
    ApiKind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", namespaced=False, generation=True),
    ApiKind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", namespaced=False, generation=True,
         fields=_paths("spec.nodeName", "spec.driver")),
    ApiKind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", short=("netpol",), generation=True),
    ApiKind(
        "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False,
        short=("crd", "crds"), subresources=_STATUS, generation=True, blind_put=False,
    ),
    ApiKind("rbac.authorization.k8s.io", "v1", "Role", "roles", put_creates=True),
    ApiKind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", put_creates=True,
         immutable=(("roleRef",),)),
    ApiKind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False, put_creates=True),
    ApiKind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False,
         put_creates=True, immutable=(("roleRef",),)),
)  # fmt: skip


class Registry:
    """The served kinds: the built-in ones and those of CustomResourceDefinitions."""

    def __init__(self, kinds: Iterable[ApiKind] = BUILT_IN) -> None:
        self._by_path: dict[tuple[str, str, str], ApiKind] = {}
        self._by_id: dict[str, ApiKind] = {}
        for kind in kinds:
            self.add(kind)

    def __iter__(self) -> Iterator[ApiKind]:
        return iter(self._by_path.values())

    def __getitem__(self, name: str) -> ApiKind:
        return self._by_id[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_id

    def at(self, group: str, version: str, plural: str) -> ApiKind | None:
        """Return the kind at a path, or None."""
        return self._by_path.get((group, version, plural))

    def kind_of(self, api_version: str, kind: str) -> ApiKind | None:
        """Return the kind that an object or a reference names, in any version of its group; None if unknown."""
        group = api_version.rpartition("/")[0]
        return next((candidate for candidate in self if candidate.kind == kind and candidate.group == group), None)

    def add(self, kind: ApiKind) -> None:
        """Serve a kind; its id refers to the stored version."""
        self._by_path[kind.group, kind.version, kind.plural] = kind
        if kind.view is None or kind.id not in self._by_id:
            self._by_id[kind.id] = kind

    def remove(self, name: str) -> None:
        """Stop serving all versions of a kind."""
        self._by_id.pop(name, None)
        self._by_path = {path: kind for path, kind in self._by_path.items() if kind.id != name}
