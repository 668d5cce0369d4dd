"""What the engine wants done: the daemon carries these out and feeds the results back."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from topo_scheduler.api.reasons import GroupReason, Reason
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.storage import VolumeWrite
from topo_scheduler.state.workloads import Member


@dataclass(frozen=True, slots=True)
class PodRef:
    """Which pod."""

    namespace: str
    name: str
    uid: str


def reference(member: Member) -> PodRef:
    """Return which pod a member is."""
    return PodRef(member.namespace, member.name, member.uid)


@dataclass(frozen=True, slots=True)
class Bind:
    """Write a Binding. ``queued`` seconds when the pod was first seen pending."""

    pod: PodRef
    node: str
    annotations: Mapping[str, str]
    queued: float
    decided: float


@dataclass(frozen=True, slots=True)
class DryRunBind:
    """Write a Binding with `dryRun=All`: whether it would be taken. Its end is told to `Engine.rehearsed`."""

    bind: Bind


@dataclass(frozen=True, slots=True)
class PrepareVolumes:
    """Tell the API server which volumes the pod's claims get; its Bind follows when they are bound."""

    pod: PodRef
    writes: tuple[VolumeWrite, ...]


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Write an event on a pod."""

    pod: PodRef
    warning: bool
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class MarkUnschedulable:
    """Set PodScheduled=False, reason Unschedulable. ``since`` seconds when the pod was first seen pending."""

    pod: PodRef
    message: str
    since: float


@dataclass(frozen=True, slots=True)
class MarkGroup:
    """Set the condition PodGroupScheduled of a PodGroup of Kubernetes. ``version`` of its API."""

    namespace: str
    name: str
    uid: str
    version: str
    scheduled: bool
    reason: GroupReason
    message: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict a bound member of a gang that can't be completed."""

    pod: PodRef
    message: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Let no more attempts at a bind be made, and find out whether one took effect."""

    bind: Bind


@dataclass(frozen=True, slots=True)
class Recall:
    """Write no Binding of a pod whose turn has not come; `Engine.bind_recalled` is told whether one waited.

    ``gang`` the id of its gang.
    """

    pod: PodRef
    gang: str


@dataclass(frozen=True, slots=True)
class MarkComplete:
    """Set the condition of a pod that says that its gang ran complete."""

    pod: PodRef


@dataclass(frozen=True, slots=True)
class Nominate:
    """Set ``status.nominatedNodeName``; an empty node clears it."""

    pod: PodRef
    node: str


@dataclass(frozen=True, slots=True)
class Preempt:
    """Evict a pod so that one of higher priority fits. ``note`` the text of its event once it goes.

    ``preemptor`` the first pod of those that fit then.
    """

    pod: PodRef
    node: str
    note: str
    preemptor: PodRef


@dataclass(frozen=True, slots=True)
class RecordDecision:
    """A decision was made: log it, count it."""

    decision: Decision
    seconds: float


@dataclass(frozen=True, slots=True)
class LogWarning:
    """Something in the cluster can't be used as it is: log it, name the object."""

    message: str


@dataclass(frozen=True, slots=True)
class CountFailure:
    """Something failed for one workload or object and was set aside: count it by ``phase`` and ``kind``."""

    phase: str
    kind: str


Instruction = (
    Bind
    | DryRunBind
    | PrepareVolumes
    | EmitEvent
    | MarkUnschedulable
    | MarkGroup
    | Evict
    | Withdraw
    | Recall
    | MarkComplete
    | Nominate
    | Preempt
    | RecordDecision
    | LogWarning
    | CountFailure
)


class BindOutcome(StrEnum):
    """How a bind ended."""

    BOUND = "bound"
    TAKEN = "taken"
    GONE = "gone"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    WITHDRAWN = "withdrawn"
    """Not written: what it was decided on had changed meanwhile, which is nobody's fault."""


class EvictionOutcome(StrEnum):
    """How an eviction for somebody of higher priority ended."""

    GOING = "going"
    """It is being deleted, or gone already."""
    WITHDRAWN = "withdrawn"
    """Not asked for: what it should have made room for needs none any more."""
    UNCONFIRMED = "unconfirmed"
    """Not asked for: an owner of what it should have made room for is gone, or the API server did not confirm it."""
    REFUSED = "refused"
