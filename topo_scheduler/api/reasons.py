"""Why a node, a domain or a pod was passed over: one constant each, so that reasons can be counted.

Node reasons are worded as kube-scheduler words them; every operator greps for these.
"""

from enum import StrEnum


class NodeReason(StrEnum):
    """Why a node can't take a pod. ``Insufficient <resource>`` is made by `insufficient`."""

    NOT_READY = "node(s) were not ready"
    UNSCHEDULABLE = "node(s) were unschedulable"
    TAINT = "node(s) had untolerated taint(s)"
    AFFINITY = "node(s) didn't match Pod's node affinity/selector"
    GPU_MODEL = "node(s) had another GPU model"
    BANDWIDTH = "node(s) had less network bandwidth"
    DOMAIN = "node(s) in domains without room for the gang"


def insufficient(resource: str) -> str:
    """Return the reason for a lack of one resource; ``pods`` as kube-scheduler words it."""
    return "Too many pods" if resource == "pods" else f"Insufficient {resource}"


class Reason(StrEnum):
    """``reason`` of the events and conditions this scheduler writes."""

    SCHEDULED = "Scheduled"
    FAILED_SCHEDULING = "FailedScheduling"
    ANNOTATION = "AnnotationIgnored"
    MISMATCH = "GPUCountMismatch"
    UNENFORCED = "GPUsWithoutLimits"
    DOMAIN_UNKNOWN = "PreferredDomainUnknown"
    OWNER = "OwnerUnreadable"
    BIND_FAILED = "BindFailed"
    ROLLED_BACK = "GangRolledBack"
    OVERSUBSCRIBED = "NodeOversubscribed"
