"""A cluster as ``kubectl get … -o yaml`` wrote it into files: nodes, what runs on them, and what else decides."""

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
from topo_scheduler.kube.resources import (
    ATTACHMENTS,
    CLAIMS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from topo_scheduler.simulation.cases.documents import Document, convert
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase
from topo_scheduler.state.groups import PodGroup, read_group
from topo_scheduler.state.resources import ResourceTable

STORED: Final[Mapping[str, Resource[Any]]] = {
    kind.kind: kind for kind in (CLAIMS, VOLUMES, STORAGE_CLASSES, CSI_NODES, CSI_DRIVERS, CSI_CAPACITIES, ATTACHMENTS)
}
_GROUPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Node", "Pod", "Namespace", "ConfigMap"), ""),
    "PodDisruptionBudget": "policy",
    "PriorityClass": "scheduling.k8s.io",
    **{kind: resource.group for kind, resource in STORED.items()},
}
"""Of the kinds that are read: other APIs have kinds of the same names."""
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
}
"""What a snapshot of ``topo-scheduler filter`` calls its lists."""


def unpacked(documents: Iterable[Document]) -> list[Document]:
    """Return the objects, those of snapshots of ``topo-scheduler filter`` one by one."""
    found: list[Document] = []
    for document in documents:
        if document.kind or not any(isinstance(document.obj.get(key), list) for key in SNAPSHOT_KEYS):
            found.append(document)
            continue
        for key, (version, kind) in SNAPSHOT_KEYS.items():
            for item in document.obj.get(key) or ():
                if not isinstance(item, dict):
                    raise document.error(f"{key} holds something that is no object")
                found.append(Document({"apiVersion": version, "kind": kind, **item}, document.path, document.line))
    return found


def read_objects(name: str, documents: Sequence[Document]) -> ClusterCase:
    """Return a cluster made of objects. Pods that wait for a node are left to the workload.

    Raises:
        CaseError: an object can't be used, or there are two of one name.
    """
    kinds: dict[str, list[Document]] = {}
    for document in once(unpacked(documents)):
        kind, group = document.kind, document.group
        foreign = document.api_version and group != _GROUPS.get(kind, group)  # Longhorn has Nodes too
        kinds.setdefault(f"{kind}.{group}" if foreign else kind, []).append(document)
    pods = [convert(one, Pod) for one in kinds.get("Pod", ())]
    running = tuple(_requesting(pod) for pod in pods if pod.spec.node_name and not pod.finished)
    stored = {
        resource.plural: tuple(convert(one, resource.type, namespaced=resource.namespaced) for one in kinds[kind])
        for kind, resource in STORED.items()
        if kind in kinds
    }
    resources = ResourceTable(GPU_RESOURCES)
    return ClusterCase(
        name,
        tuple(_node(one, resources) for one in kinds.get("Node", ())),
        running,
        owners_of(running, (one for listed in kinds.values() for one in listed)),
        groups_of(kinds.get("PodGroup", ())),
        tuple(convert(one, DisruptionBudget) for one in kinds.get("PodDisruptionBudget", ())),
        tuple(convert(one, PartialObject, namespaced=False) for one in kinds.get("Namespace", ())),
        _topology(one for kind in (*CONFIG_KINDS, "ConfigMap") for one in kinds.get(kind, ())),
        stored,
        tuple(one.obj for one in kinds.get("PriorityClass", ())),
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
    """Return a pod whose containers request what they are limited to, as an API server would have written."""
    spec = pod.spec
    told = {part: [_requested(one) for one in getattr(spec, part)] for part in ("containers", "init_containers")}
    return structs.replace(pod, spec=structs.replace(spec, **told))


def _requested(container: Container) -> Container:
    resources = container.resources
    requests = {**resources.limits, **resources.requests}
    return structs.replace(container, resources=structs.replace(resources, requests=requests))


def once(documents: Iterable[Document]) -> list[Document]:
    """Return the documents without those that are there twice: one object may be in several files.

    Raises:
        CaseError: two objects have one name.
    """
    seen: dict[tuple[str, ...], Document] = {}
    for document in documents:
        metadata = document.metadata
        namespace, name = str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")
        key = (document.kind, document.group, namespace, name)
        before = seen.get(key)
        uid = metadata.get("uid")
        if (
            before is not None
            and key[-1]
            and (before.obj != document.obj if not uid else before.metadata.get("uid") != uid)
        ):
            raise document.error(f"there is another of this name in {before.where}", "rename one, or delete it")
        seen[key if key[-1] else (*key, document.where)] = document
    return list(seen.values())


def owners_of(pods: Iterable[Pod], documents: Iterable[Document]) -> dict[str, Job | PartialObject]:
    """Return the workloads above pods, as far as they are among the documents, by uid."""
    by_uid = {str(one.metadata["uid"]): one for one in documents if one.metadata.get("uid")}
    found: dict[str, Job | PartialObject] = {}
    wanted: list[OwnerReference] = [ref for pod in pods if (ref := pod.metadata.controller) is not None]
    while wanted:
        uid = wanted.pop().uid
        if uid in found or uid not in by_uid:
            continue
        document = by_uid[uid]
        owner = found[uid] = owner_of(document)
        if owner.metadata.controller is not None:
            wanted.append(owner.metadata.controller)
    return found


def owner_of(document: Document) -> Job | PartialObject:
    """Return a workload: of a Job its spec too, of all others their metadata."""
    return convert(document, Job) if document.kind == "Job" else convert(document, PartialObject)


def groups_of(documents: Iterable[Document]) -> tuple[PodGroup, ...]:
    """Return PodGroups of the APIs that are understood.

    Raises:
        CaseError: it is of an API that is not.
    """
    found = []
    for document in documents:
        group, _, version = document.api_version.rpartition("/")
        if group not in set(GroupApi):
            raise document.error(f"PodGroups of {group or 'v1'} are not understood", f"use {', '.join(GroupApi)}")
        found.append(read_group(GroupApi(group), version, convert(document, PodGroupObject)))
    return tuple(found)


def above_of(pods: Iterable[Pod], known: Mapping[str, Job | PartialObject]) -> dict[str, Job | PartialObject]:
    """Return the workloads above pods, as far as they are known, by uid."""
    found: dict[str, Job | PartialObject] = {}
    for pod in pods:
        reference = pod.metadata.controller
        while reference is not None and reference.uid in known and reference.uid not in found:
            found[reference.uid] = known[reference.uid]
            reference = known[reference.uid].metadata.controller
    return found


def together(pod: Pod, owners: Mapping[str, Job | PartialObject]) -> str:
    """Return the group that a pod names, ``namespace/name``, empty for none: all of a group arrive together."""
    namespace, labels, annotations = pod.metadata.namespace, pod.metadata.labels, pod.metadata.annotations
    native = (pod.spec.scheduling_group or {}).get("podGroupName")
    names = [native, labels.get(PLUGINS_LABEL), labels.get(SIGS_LABEL), *map(annotations.get, VOLCANO_ANNOTATIONS)]
    names += [annotations.get(GANG_NAME), *(one.metadata.annotations.get(GANG_NAME) for one in owners.values())]
    name = next((one for one in names if isinstance(one, str) and one), "")
    return f"{namespace}/{name}" if name else ""


def _topology(documents: Iterable[Document]) -> TopologySpec | None:
    """Return the configuration of decisions that the objects hold: one of the kind, or that in the ConfigMap."""
    texts: dict[str, str] = {}
    for document in documents:
        if document.kind in CONFIG_KINDS and document.api_version == API_VERSION:
            texts[document.where] = yaml.safe_dump(document.obj)
        elif document.kind == "ConfigMap" and document.metadata.get("name") == CONFIG_MAP:
            data = document.obj.get("data")
            if not isinstance(data, Mapping):
                raise document.error("data is no mapping")
            texts |= {f"{document.where}: {key}": str(value) for key, value in data.items()}
    if not texts:
        return None
    try:
        return load_configuration(texts).topology.spec
    except ConfigError as error:
        raise CaseError(str(error)) from error
