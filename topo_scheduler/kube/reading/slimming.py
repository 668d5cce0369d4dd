"""Caps on objects that tenants write: an annotation may have 256 KiB, and labels, a selector or a name a megabyte.

A pod beyond the caps is refused instead: see `state.pods.trimming`. This module cuts only the names in a pod, and its
reference to its owner.
"""

from typing import Any, Final

import msgspec

from topo_scheduler.api.annotations import GANG_ID
from topo_scheduler.api.devices import Allocation, ResourceClaim, ResourceClaimSpec
from topo_scheduler.api.groups import MAX_SPEC_BYTES, TOO_DEEP, TOO_LONG, PodGroupObject
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import (
    ClaimSource,
    DisruptionBudget,
    JobSpec,
    JobStatus,
    ObjectMeta,
    Pod,
    PodClaimStatus,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodSpec,
    PodStatus,
)
from topo_scheduler.api.selectors import LabelSelector, NodeSelector
from topo_scheduler.api.storage import (
    CSIStorageCapacity,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    StorageStatus,
)
from topo_scheduler.kube.connection.odd_json import is_deeper
from topo_scheduler.kube.connection.resources import Object
from topo_scheduler.state.storage.storage_capacities import slim_capacity

MAX_CHARACTERS: Final = 16_384
"""Characters of all annotations of an object together, names included."""
MAX_OWNER_CHARACTERS: Final = 8_192
"""The same of an owner of pods, as for the annotations of a pod that are read."""
MAX_VALUE_CHARACTERS: Final = 4_096
"""Characters of one annotation; of a longer one this many are kept, and one more."""
MAX_LABELS: Final = 256
MAX_LABEL_CHARACTERS: Final = 8_192
"""Characters of all labels of an object together, names included."""
MAX_NAME_CHARACTERS: Final = 253
"""Longest possible name in characters. Of a longer one this many are kept, and one more: it names nothing."""
MAX_GANG_ID_CHARACTERS: Final = 4_352
"""Longest id of a gang that the scheduler writes: a namespace, a key, and a name of 4,096 characters."""
MAX_ACCESS_MODES: Final = 16
"""Access modes of a claim that are kept; Kubernetes has four."""
MAX_NODE_SELECTOR_BYTES: Final = 16_384
"""Bytes of the node selector of an allocation, as JSON; a longer one selects no node."""
MAX_NODE_SELECTOR_TERMS: Final = 64
"""Terms of the same."""
MAX_MESSAGE_CHARACTERS: Final = 256
"""Characters that are kept of the message of a condition of a claim's device: there may be 256, of 32 KiB each."""
MAX_NESTED_LEVELS: Final = 64
"""Levels of arrays and objects in what tenants write freely. With more, a later encoding might not succeed."""
_TEXTS: Final = ("message", "excess", "failed_indexes")
"""Fields that may be longer than a name."""
_NAMES: Final = {
    type_: tuple(
        entry.name
        for entry in msgspec.structs.fields(type_)
        if entry.type in (str, str | None) and entry.name not in _TEXTS
    )
    for type_ in (
        *(PodSpec, PodStatus, PodResourceClaim, PodClaimStatus, PodExtendedResourceClaimStatus),
        *(ClaimSource, JobSpec, JobStatus, Allocation),
        *(PersistentVolumeClaimSpec, StorageStatus, CSIStorageCapacity),
    )
}
"""Fields of each type with names, or with one of a few words."""
NO_VOLUME: Final = LabelSelector({f"{PREFIX}selector-is-too-long": "true"})
"""Selects no volume."""


def slim_item(item: Object) -> None:
    """Cut an object of the API server to what may be read of it."""
    if isinstance(item, Pod):
        _slim_pod(item)
    else:
        slim(item.metadata)
        slim_object(item)


def slim_object(item: object) -> None:
    """Cut an oversized ``spec`` or ``status`` of an object to a safe value.

    A budget then protects all pods of its namespace. A claim fits no existing volume. The pods of a PodGroup can't
    be placed. The devices of an allocation are on no node. A capacity is not known.
    """
    for part in (item, getattr(item, "spec", None), getattr(item, "status", None)):
        _cut_names(part)
    if isinstance(item, PersistentVolumeClaim) and item.spec.access_modes:
        item.spec.access_modes = [mode[: MAX_NAME_CHARACTERS + 1] for mode in item.spec.access_modes[:MAX_ACCESS_MODES]]
    if isinstance(item, DisruptionBudget) and _bytes(item.spec) > MAX_SPEC_BYTES:
        item.spec.selector = LabelSelector()
        item.status.disruptions_allowed = 0
    elif isinstance(item, PersistentVolumeClaim) and _bytes(item.spec) > MAX_SPEC_BYTES:
        item.spec.selector = NO_VOLUME
    elif isinstance(item, CSIStorageCapacity):
        slim_capacity(item)
    elif isinstance(item, PodGroupObject):
        if is_deeper(item.spec, MAX_NESTED_LEVELS):
            item.spec = {TOO_DEEP: MAX_NESTED_LEVELS}
        elif (size := _bytes(item.spec)) > MAX_SPEC_BYTES:
            item.spec = {TOO_LONG: size}
        if is_deeper(item.status, MAX_NESTED_LEVELS) or _bytes(item.status) > MAX_SPEC_BYTES:
            item.status = {}
    elif isinstance(item, ResourceClaim):
        opaque = (entry.opaque for entry in item.spec.devices.config)
        if any(part is not None and is_deeper(part.parameters, MAX_NESTED_LEVELS) for part in opaque):
            item.spec = ResourceClaimSpec(excess=f"its config is nested more than {MAX_NESTED_LEVELS} levels deep")
        elif (size := _bytes(item.spec)) > MAX_SPEC_BYTES:
            item.spec = ResourceClaimSpec(excess=f"its spec has {size:,} bytes, of {MAX_SPEC_BYTES:,} at most")
        if (allocation := item.status.allocation) is not None:
            _cut_names(allocation)
            allocation.devices.config = []  # only drivers read it
            terms = () if allocation.node_selector is None else allocation.node_selector.node_selector_terms
            if len(terms) > MAX_NODE_SELECTOR_TERMS or _bytes(terms) > MAX_NODE_SELECTOR_BYTES:
                allocation.node_selector = NodeSelector()
        for device in item.status.devices:
            for condition in device.conditions:
                condition.message = condition.message[:MAX_MESSAGE_CHARACTERS]


def _slim_pod(pod: Pod) -> None:
    """Cut the names in a pod. A gang id that the scheduler can't have written is dropped of a pod with a node."""
    slim_reference(pod.metadata)
    _cut_names(pod.spec)
    _cut_names(pod.status)
    for claim in pod.spec.resource_claims:
        _cut_names(claim)
    for volume in pod.spec.volumes:
        _cut_names(volume.persistent_volume_claim)
    for status in pod.status.resource_claim_statuses:
        _cut_names(status)
    if (made := pod.status.extended_resource_claim_status) is not None:
        _cut_names(made)
    annotations = pod.metadata.annotations
    if pod.spec.node_name and len(annotations.get(GANG_ID, "")) > MAX_GANG_ID_CHARACTERS:
        del annotations[GANG_ID]


def _cut_names(part: Any) -> None:
    for name in _NAMES.get(type(part), ()):
        value = getattr(part, name)
        if value is not None and len(value) > MAX_NAME_CHARACTERS:
            setattr(part, name, value[: MAX_NAME_CHARACTERS + 1])


def _bytes(value: object) -> int:
    return len(msgspec.json.encode(value))


def slim_reference(metadata: ObjectMeta) -> None:
    """Cut the names in the reference to the controller: the API server accepts any length."""
    owner = metadata.controller
    limit = MAX_NAME_CHARACTERS
    if owner is not None and max(len(owner.name), len(owner.uid), len(owner.kind), len(owner.api_version)) > limit:
        cut = {field: getattr(owner, field)[: limit + 1] for field in ("name", "uid", "kind", "api_version")}
        metadata.owner_references = [msgspec.structs.replace(owner, **cut)]


def slim(metadata: ObjectMeta, max_characters: int = MAX_CHARACTERS) -> None:
    """Cut annotations, labels and owners of an object to their caps.

    If there are too many annotations, this project's are kept before others, and short ones before long ones. Labels
    of cluster-scoped objects, such as nodes and namespaces, stay: administrators write them.
    """
    annotations = metadata.annotations
    if annotations and sum(map(len, annotations)) + sum(map(len, annotations.values())) > max_characters:
        left = max_characters
        kept: dict[str, str] = {}
        for name in sorted(annotations, key=lambda name: (not name.startswith(PREFIX), len(annotations[name]))):
            value = annotations[name][: MAX_VALUE_CHARACTERS + 1]
            if len(name) + len(value) > left:
                break
            left -= len(name) + len(value)
            kept[name] = value
        metadata.annotations = kept
    if metadata.namespace and metadata.labels:
        metadata.labels = short_labels(metadata.labels)
    if len(metadata.owner_references) > 1:
        metadata.owner_references = [metadata.controller] if metadata.controller is not None else []
    slim_reference(metadata)


def short_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return the first labels of an object, up to the caps of their number and characters."""
    characters = sum(map(len, labels)) + sum(map(len, labels.values()))
    if len(labels) <= MAX_LABELS and characters <= MAX_LABEL_CHARACTERS:
        return labels
    kept: dict[str, str] = {}
    left = MAX_LABEL_CHARACTERS
    for key, value in labels.items():
        left -= len(key) + len(value)
        if left < 0 or len(kept) == MAX_LABELS:
            break
        kept[key] = value
    return kept
