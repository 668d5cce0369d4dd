"""Reasons why a node, a domain or a pod was rejected: constants, so that they can be counted.

Node reasons have the wording of kube-scheduler, for which operators search.
"""

from enum import StrEnum
from typing import Final


class NodeReason(StrEnum):
    """Why a node can't take a pod. `insufficient` returns ``Insufficient <resource>``."""

    NOT_READY = "node(s) were not ready"
    UNSCHEDULABLE = "node(s) were unschedulable"
    REFUSED = "node(s) refused such a pod a moment ago"
    TAINT = "node(s) had untolerated taint(s)"
    AFFINITY = "node(s) didn't match Pod's node affinity/selector"
    FEATURES = "node(s) didn't match Pod's required features"
    PORTS = "node(s) didn't have free ports for the requested pod ports"
    DISK = "node(s) had no available disk"
    CLAIM_IN_USE = (
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use"
        " by another pod"
    )
    VOLUME_LIMIT = "node(s) exceed max volume count"
    VOLUME_NODE = "node(s) didn't match PersistentVolume's node affinity"
    VOLUME_NONE = "node(s) didn't find available persistent volumes to bind"
    VOLUME_SPACE = "node(s) did not have enough free storage"
    VOLUME_ZONE = "node(s) had no available volume zone"
    SPREAD_LABEL = "node(s) didn't match pod topology spread constraints (missing required label)"
    SPREAD = "node(s) didn't match pod topology spread constraints"
    POD_AFFINITY = "node(s) didn't match pod affinity rules"
    POD_ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
    REPELLED = "node(s) didn't satisfy existing pods anti-affinity rules"
    CLAIM_ELSEWHERE = "resourceclaim not available on the node"
    DEVICES = "cannot allocate all claims"
    NUMA = "node(s) had no NUMA node(s) with room for the pod"
    GPU_MODEL = "node(s) had another GPU model"
    GPU_COUNT = "node(s) had fewer GPUs"
    GPU_MEMORY_UNKNOWN = "node(s) had GPUs of unknown memory"
    GPU_MEMORY = "node(s) had GPUs with less memory"
    GPU_ARCHITECTURE_UNKNOWN = "node(s) had GPUs of unknown architecture"
    GPU_ARCHITECTURE = "node(s) had GPUs of another architecture"
    MIG_PROFILE = "node(s) had no such MIG devices"
    GPU_CLOSENESS = "node(s) had too few GPUs close to each other"
    BANDWIDTH = "node(s) had less network bandwidth"
    SHARING = "node(s) didn't share their GPUs"
    SPARE = "node(s) are kept as spares"
    ACCESS = "node(s) in a domain that is reserved for other namespaces"
    QUOTA = "node(s) where the namespace's quota leaves no room"
    DOMAIN = "node(s) in domains without room for the gang"


def insufficient(resource: str) -> str:
    """Return the reason for a lack of one resource, with kube-scheduler's wording for ``pods``."""
    return "Too many pods" if resource == "pods" else f"Insufficient {resource}"


class GroupReason(StrEnum):
    """``reason`` of the condition PodGroupScheduled, with the values of kube-scheduler."""

    SCHEDULED = "Scheduled"
    UNSCHEDULABLE = "Unschedulable"
    ERROR = "SchedulerError"


ALL_MEMBERS_BOUND: Final = "AllMembersBound"
"""``reason`` of the condition GangComplete."""


class Reason(StrEnum):
    """``reason`` of the events and conditions this scheduler writes."""

    SCHEDULED = "Scheduled"
    FAILED_SCHEDULING = "FailedScheduling"
    SCHEDULER_ERROR = "SchedulerError"
    OVER_BUDGET = "SearchTooExpensive"
    ANNOTATION = "AnnotationIgnored"
    MISMATCH = "GPUCountMismatch"
    UNENFORCED = "GPUsWithoutLimits"
    DOMAIN_UNKNOWN = "PreferredDomainUnknown"
    OWNER = "OwnerUnreadable"
    OWNER_DELETED = "OwnerDeleted"
    GROUP_CONFLICT = "GroupConflict"
    GROUP_IGNORED = "GroupIgnored"
    WAITING_FOR_DEVICES = "WaitingForDevices"
    WAITING_FOR_VOLUMES = "WaitingForVolumes"
    BIND_FAILED = "BindFailed"
    ROLLED_BACK = "GangRolledBack"
    DEVICE_TAINTED = "DeviceTainted"
    OVERSUBSCRIBED = "NodeOversubscribed"
    PREEMPTED = "Preempted"
    PREEMPTION_FAILED = "PreemptionFailed"
