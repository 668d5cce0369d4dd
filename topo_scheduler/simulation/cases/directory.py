"""Read a cluster from files of ``kubectl get … -o yaml``: nodes, running pods, and other objects that matter."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml
from msgspec import structs

from topo_scheduler.api.annotations import GANG_NAME
from topo_scheduler.api.config import CONFIG_KINDS, CONFIG_MAP, ConfigError, TopologySpec, load_configuration
from topo_scheduler.api.groups import PLUGINS_LABEL, SIGS_LABEL, VOLCANO_ANNOTATIONS, GroupApi, PodGroupObject
from topo_scheduler.api.labels import GPU_RESOURCES
from topo_scheduler.api.objects import Container, DisruptionBudget, Job, Node, OwnerReference, PartialObject, Pod
from topo_scheduler.api.process import API_VERSION
from topo_scheduler.api.quantity import QuantityError
from topo_scheduler.kube.connection.resources import (
    ATTACHMENTS,
    CLAIMS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from topo_scheduler.simulation.cases.claims import templates_of
from topo_scheduler.simulation.cases.documents import Document, convert
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase
from topo_scheduler.state.nodes.resources import ResourceTable
from topo_scheduler.state.pods.pod_groups import PodGroup, read_group

STORAGE_KINDS: Final[Mapping[str, Resource[Any]]] = {
    kind.kind: kind
    for kind in (
        *(CLAIMS, VOLUMES, STORAGE_CLASSES, CSI_NODES, CSI_DRIVERS, CSI_CAPACITIES, ATTACHMENTS),
        *(DEVICE_CLASSES, RESOURCE_SLICES, RESOURCE_CLAIMS),
    )
}
_API_GROUPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Node", "Pod", "Namespace", "ConfigMap"), ""),
    "PodDisruptionBudget": "policy",
    "PriorityClass": "scheduling.k8s.io",
    **{kind: resource.group for kind, resource in STORAGE_KINDS.items()},
}
"""API group of each kind that is read; other APIs have kinds of the same names."""
SNAPSHOT_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "pods": ("v1", "Pod"),
    "pending": ("v1", "Pod"),
    "nodes": ("v1", "Node"),
    "namespaces": ("v1", "Namespace"),
    "pvs": ("v1", "PersistentVolume"),
    "pvcs": ("v1", "PersistentVolumeClaim"),
    "storageClasses": ("storage.k8s.io/v1", "StorageClass"),
    "csiNodes": ("storage.k8s.io/v1", "CSINode"),
    "csiDrivers": ("storage.k8s.io/v1", "CSIDriver"),
    "csiStorageCapacities": ("storage.k8s.io/v1", "CSIStorageCapacity"),
    "volumeAttachments": ("storage.k8s.io/v1", "VolumeAttachment"),
    "deviceClasses": ("resource.k8s.io/v1", "DeviceClass"),
    "resourceSlices": ("resource.k8s.io/v1", "ResourceSlice"),
    "resourceClaims": ("resource.k8s.io/v1", "ResourceClaim"),
}
"""API version and kind of the items in each list of a snapshot of ``topo-scheduler filter``."""


def split_snapshots(documents: Iterable[Document]) -> list[Document]:
    """Return the objects; snapshots of ``topo-scheduler filter`` are split into their objects."""
    objects: list[Document] = []
    for document in documents:
        if document.kind or not any(isinstance(document.obj.get(key), list) for key in SNAPSHOT_KEYS):
            objects.append(document)
            continue
        for key, (version, kind) in SNAPSHOT_KEYS.items():
            for item in document.obj.get(key) or ():
                if not isinstance(item, dict):
                    raise document.error(f"{key} holds something that is no object")
                objects.append(Document({"apiVersion": version, "kind": kind, **item}, document.path, document.line))
    return objects


def read_objects(name: str, documents: Sequence[Document]) -> ClusterCase:
    """Return the cluster that objects describe. Pending pods belong to the workload instead.

    Raises:
        CaseError: an object can't be used, or two objects have the same name.
    """
    kinds: dict[str, list[Document]] = {}
    for document in deduplicated(split_snapshots(documents)):
        kind, group = document.kind, document.group
        foreign = document.api_version and group != _API_GROUPS.get(kind, group)  # Longhorn has Nodes too
        kinds.setdefault(f"{kind}.{group}" if foreign else kind, []).append(document)
    pods = [convert(document, Pod) for document in kinds.get("Pod", ())]
    running = tuple(_requesting(pod) for pod in pods if pod.spec.node_name and not pod.finished)
    stored = {
        resource.plural: tuple(
            convert(document, resource.type, namespaced=resource.namespaced) for document in kinds[kind]
        )
        for kind, resource in STORAGE_KINDS.items()
        if kind in kinds
    }
    resources = ResourceTable(GPU_RESOURCES)
    return ClusterCase(
        name,
        tuple(_node(document, resources) for document in kinds.get("Node", ())),
        running,
        owners_of(running, (document for of_kind in kinds.values() for document in of_kind)),
        groups_of(kinds.get("PodGroup", ())),
        tuple(convert(document, DisruptionBudget) for document in kinds.get("PodDisruptionBudget", ())),
        tuple(convert(document, PartialObject, namespaced=False) for document in kinds.get("Namespace", ())),
        _topology(document for kind in (*CONFIG_KINDS, "ConfigMap") for document in kinds.get(kind, ())),
        stored,
        tuple(document.obj for document in kinds.get("PriorityClass", ())),
        templates=templates_of(kinds.get("ResourceClaimTemplate", ())),
    )


def _node(document: Document, resources: ResourceTable) -> Node:
    node = convert(document, Node, namespaced=False)
    for part in ("allocatable", "capacity"):
        try:
            resources.exact(getattr(node.status, part))
        except QuantityError as error:
            raise document.error(f"status.{part}, {error}") from error
    return node


def _requesting(pod: Pod) -> Pod:
    """Return the pod with missing requests set to the limits, as an API server would do."""
    spec = pod.spec
    containers = {
        field_name: [_requested(container) for container in getattr(spec, field_name)]
        for field_name in ("containers", "init_containers")
    }
    return structs.replace(pod, spec=structs.replace(spec, **containers))


def _requested(container: Container) -> Container:
    resources = container.resources
    requests = {**resources.limits, **resources.requests}
    return structs.replace(container, resources=structs.replace(resources, requests=requests))


def deduplicated(documents: Iterable[Document]) -> list[Document]:
    """Return the documents without duplicates; the same object may be in several files.

    Raises:
        CaseError: two different objects have the same name.
    """
    seen: dict[tuple[str, ...], Document] = {}
    for document in documents:
        metadata = document.metadata
        namespace, name = str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")
        key = (document.kind, document.group, namespace, name)
        existing = seen.get(key)
        uid = metadata.get("uid")
        if (
            existing is not None
            and key[-1]
            and (existing.obj != document.obj if not uid else existing.metadata.get("uid") != uid)
        ):
            raise document.error(f"there is another of this name in {existing.location}", "rename one, or delete it")
        seen[key if key[-1] else (*key, document.location)] = document
    return list(seen.values())


def owners_of(pods: Iterable[Pod], documents: Iterable[Document]) -> dict[str, Job | PartialObject]:
    """Return the controllers of pods, and their controllers, found among the documents, by uid."""
    by_uid = {str(document.metadata["uid"]): document for document in documents if document.metadata.get("uid")}
    owners: dict[str, Job | PartialObject] = {}
    pending_references: list[OwnerReference] = [ref for pod in pods if (ref := pod.metadata.controller) is not None]
    while pending_references:
        uid = pending_references.pop().uid
        if uid in owners or uid not in by_uid:
            continue
        document = by_uid[uid]
        owner = owners[uid] = owner_of(document)
        if owner.metadata.controller is not None:
            pending_references.append(owner.metadata.controller)
    return owners


def owner_of(document: Document) -> Job | PartialObject:
    """Return a controller: a Job with its spec, all other kinds with their metadata only."""
    return convert(document, Job) if document.kind == "Job" else convert(document, PartialObject)


def groups_of(documents: Iterable[Document]) -> tuple[PodGroup, ...]:
    """Return the PodGroups among documents.

    Raises:
        CaseError: the API of a PodGroup is unknown.
    """
    groups = []
    for document in documents:
        group, _, version = document.api_version.rpartition("/")
        if group not in set(GroupApi):
            raise document.error(f"PodGroups of {group or 'v1'} are not understood", f"use {', '.join(GroupApi)}")
        groups.append(read_group(GroupApi(group), version, convert(document, PodGroupObject)))
    return tuple(groups)


def known_owners(pods: Iterable[Pod], known: Mapping[str, Job | PartialObject]) -> dict[str, Job | PartialObject]:
    """Return the controllers of pods, and their controllers, found in ``known``, by uid."""
    owners: dict[str, Job | PartialObject] = {}
    for pod in pods:
        reference = pod.metadata.controller
        while reference is not None and reference.uid in known and reference.uid not in owners:
            owners[reference.uid] = known[reference.uid]
            reference = known[reference.uid].metadata.controller
    return owners


def gang_of(pod: Pod, owners: Mapping[str, Job | PartialObject]) -> str:
    """Return the gang that a pod names, ``namespace/name``, empty for none. All pods of a gang arrive together."""
    namespace, labels, annotations = pod.metadata.namespace, pod.metadata.labels, pod.metadata.annotations
    native = (pod.spec.scheduling_group or {}).get("podGroupName")
    names = [native, labels.get(PLUGINS_LABEL), labels.get(SIGS_LABEL), *map(annotations.get, VOLCANO_ANNOTATIONS)]
    names += [annotations.get(GANG_NAME), *(owner.metadata.annotations.get(GANG_NAME) for owner in owners.values())]
    name = next((name for name in names if isinstance(name, str) and name), "")
    return f"{namespace}/{name}" if name else ""


def workload_of(pod: Pod, owners: Mapping[str, Job | PartialObject]) -> str:
    """Return the workload of a pod of a cluster as ``namespace/name``: its gang, else its controller, else the pod."""
    controller = pod.metadata.controller
    name = controller.name if controller is not None else pod.metadata.name
    return gang_of(pod, owners) or f"{pod.metadata.namespace}/{name}"


def _topology(documents: Iterable[Document]) -> TopologySpec | None:
    """Return the topology configuration among the objects: an object of its kind, or the text in the ConfigMap."""
    texts: dict[str, str] = {}
    for document in documents:
        if document.kind in CONFIG_KINDS and document.api_version == API_VERSION:
            texts[document.location] = yaml.safe_dump(document.obj)
        elif document.kind == "ConfigMap" and document.metadata.get("name") == CONFIG_MAP:
            data = document.obj.get("data")
            if not isinstance(data, Mapping):
                raise document.error("data is no mapping")
            texts |= {f"{document.location}: {key}": str(value) for key, value in data.items()}
    if not texts:
        return None
    try:
        return load_configuration(texts).topology.spec
    except ConfigError as error:
        raise CaseError(str(error)) from error
