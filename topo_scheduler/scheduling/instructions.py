"""Instructions of the engine. The daemon carries them out and reports the results back."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from topo_scheduler.api.reasons import GroupReason, Reason
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.devices.claim_writes import ClaimWrite
from topo_scheduler.state.pods.workloads import Member
from topo_scheduler.state.storage.storage_objects import VolumeWrite


@dataclass(frozen=True, slots=True)
class PodRef:
    """Identifies a pod."""

    namespace: str
    name: str
    uid: str


def reference(member: Member) -> PodRef:
    """Return the reference to the pod of a member."""
    return PodRef(member.namespace, member.name, member.uid)


@dataclass(frozen=True, slots=True)
class Bind:
    """Write a Binding.

    ``queued``: time in seconds when the pod was first seen pending. ``decided``: time in seconds of the decision.
    """

    pod: PodRef
    node: str
    annotations: Mapping[str, str]
    queued: float
    decided: float


@dataclass(frozen=True, slots=True)
class DryRunBind:
    """Check with a Binding with `dryRun=All` if a bind would be accepted. `Engine.rehearsed` receives the result."""

    bind: Bind


@dataclass(frozen=True, slots=True)
class PrepareVolumes:
    """Write to the API server which volumes the pod's claims get. The Bind of the pod follows when they are bound."""

    pod: PodRef
    writes: tuple[VolumeWrite, ...]


@dataclass(frozen=True, slots=True)
class WriteClaims:
    """Allocate the claims of a pod, after which its Bind follows, or release them."""

    pod: PodRef
    writes: tuple[ClaimWrite, ...]


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Write an event on a pod."""

    pod: PodRef
    warning: bool
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ReadPod:
    """Read a pending pod from the API server, and pass it to `Engine.pods_applied`, unless it came or left before."""

    pod: PodRef


@dataclass(frozen=True, slots=True)
class MarkUnschedulable:
    """Set PodScheduled=False, reason Unschedulable. ``since``: time in seconds when the pod was first seen pending."""

    pod: PodRef
    message: str
    since: float


@dataclass(frozen=True, slots=True)
class MarkGroup:
    """Set the condition PodGroupScheduled of a PodGroup of Kubernetes. ``version``: version of its API."""

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
class EvictTainted:
    """Evict a bound pod from a device with a taint; ``message`` names both."""

    pod: PodRef
    message: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Stop retries of a bind, and find out whether an attempt took effect."""

    bind: Bind


@dataclass(frozen=True, slots=True)
class Recall:
    """Drop the queued bind of a pod. `Engine.bind_recalled` receives whether one was queued.

    ``gang``: id of the gang of the pod.
    """

    pod: PodRef
    gang: str


@dataclass(frozen=True, slots=True)
class MarkComplete:
    """Set the condition of a pod which records that its gang ran complete."""

    pod: PodRef


@dataclass(frozen=True, slots=True)
class Nominate:
    """Set ``status.nominatedNodeName``; an empty node clears it."""

    pod: PodRef
    node: str


@dataclass(frozen=True, slots=True)
class Preempt:
    """Evict a pod so that pods of higher priority fit.

    ``note``: text of the event on the evicted pod. ``preemptor``: the first of the pods that fit after the eviction.
    """

    pod: PodRef
    node: str
    note: str
    preemptor: PodRef


@dataclass(frozen=True, slots=True)
class RecordDecision:
    """Log and count a decision, which took ``seconds``."""

    decision: Decision
    seconds: float


@dataclass(frozen=True, slots=True)
class LogWarning:
    """Log a warning, for example that an object in the cluster can't be used. The message names the object.

    ``namespace``: that of a tenant's object which is the cause. Lines of one namespace have a budget.
    """

    message: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class CountFailure:
    """Count a failure of one workload or object that failed, by ``phase`` and ``kind``."""

    phase: str
    kind: str


Instruction = (
    Bind
    | DryRunBind
    | PrepareVolumes
    | WriteClaims
    | EmitEvent
    | ReadPod
    | MarkUnschedulable
    | MarkGroup
    | Evict
    | EvictTainted
    | Withdraw
    | Recall
    | MarkComplete
    | Nominate
    | Preempt
    | RecordDecision
    | LogWarning
    | CountFailure
)


LEASE_ENDS: Final = "nothing is written, as the lease ends"
"""End of the problem of a write that this process may not send any more: no fault of the pod, which gets no event."""


class BindOutcome(StrEnum):
    """How a bind ended."""

    BOUND = "bound"
    TAKEN = "taken"
    GONE = "gone"
    """The API server says that the pod does not exist, or is being deleted. Only its watch removes it."""
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    WITHDRAWN = "withdrawn"
    """Not written, because the facts behind the decision changed meanwhile. This is not an error."""


class EvictionOutcome(StrEnum):
    """How an eviction for a workload of higher priority ended."""

    GOING = "going"
    """The victim is being deleted, or is already gone."""
    WITHDRAWN = "withdrawn"
    """Not requested, because the preempting workload no longer needs the room."""
    UNCONFIRMED = "unconfirmed"
    """Not requested: an owner of the preempting workload is gone, or the API server did not confirm it."""
    BLOCKED = "blocked"
    """A disruption budget does not allow it now."""
    REFUSED = "refused"
