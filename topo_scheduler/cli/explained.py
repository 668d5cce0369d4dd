"""What ``topo-scheduler explain -o json`` prints, field by field. The published schema is made from this.

A change that takes away or renames a field, or changes what one means, makes a new version; new fields don't.
"""

from typing import Any, Final, Literal

import msgspec

SCHEMA: Final = "topology.scheduler/explain/v1"


class ReportPart(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What all parts have in common."""


class Event(ReportPart):
    """An event of the pod."""

    type: str
    reason: str
    message: str


class GangMember(ReportPart):
    """A bound pod of a gang."""

    pod: str
    node: str
    rank: int | None
    address: str | None


class GangReport(ReportPart):
    """The gang of a bound pod."""

    id: str
    members: list[GangMember]


class WorkloadReport(ReportPart):
    """What a pending pod is placed with. ``size``: pods that must be placed at once."""

    name: str
    made_by: str
    gang: bool
    size: int
    pods: int
    problem: str
    gpus_per_pod: int


class SizeRuleReport(ReportPart):
    """At least so many nodes, in so many leaves of one domain of the level ``within``."""

    nodes: int
    leaves: int
    within: str


class Domain(ReportPart):
    """A domain that lost, of those that come closest."""

    path: str
    reason: str


class SeatReport(ReportPart):
    """Where a pod of the workload would go."""

    pod: str
    node: str
    rank: int


class DecisionReport(ReportPart):
    """What would be decided now. ``reasons``: nodes by what keeps the pods away. Scores are from 0 to 1."""

    verdict: Literal["placed", "unschedulable"]
    message: str
    nodes: int
    reasons: dict[str, int]
    domains: list[Domain]
    size_rule: SizeRuleReport | None
    candidates: int
    leaves: list[str]
    score: dict[str, float] | None
    spanned_level: str | None
    levels_spanned: int | None
    hops: float | None
    node: str | None
    rank: int | None
    address: str | None
    seats: list[SeatReport]


class DomainReason(ReportPart):
    """One domain of one level. ``room``: pods that it takes, of ``needed``; ``reasons`` as for the cluster."""

    path: str
    level: str
    nodes: int
    free_gpus: int
    room: int
    needed: int
    reasons: dict[str, int]


class Cost(ReportPart):
    """What a way out takes. Ways are in order of this: the first part that differs decides."""

    pods_ended: int
    gpus_ended: int
    members_given_up: int
    demands_dropped: int
    levels_more: int
    nodes_returned: int
    seconds_waited: int


class Ended(ReportPart):
    """Pods that end together: a gang, or one pod. ``expected_end`` RFC 3339, null where nothing tells."""

    name: str
    gang: bool
    pods: list[str]
    gpus: int
    expected_end: str | None


class WayOut(ReportPart):
    """One way out, tried on a copy of the state. What does not belong to its kind is empty or null.

    ``ends`` what has to end (``free``), or is waited for (``wait``); ``nodes`` that get free, that come back
    (``returnNodes``), or that the gang would use; ``size`` pods that fit (``reduce``); ``level`` innermost level of
    which one domain would hold the gang (``relax``); ``demand`` and ``value`` what is to be changed in the pods
    (``relax``, ``dropDemand``), or how nodes come back; ``until`` RFC 3339 (``wait``); ``parts`` what must
    be done together (``combine``), else empty. ``least`` whether no cheaper set of pods would do (``free``); false
    where the search for one ended at its bound.
    """

    kind: Literal["wait", "returnNodes", "relax", "dropDemand", "reduce", "free", "combine"]
    say: str
    cost: Cost
    ends: list[Ended]
    nodes: list[str]
    size: int | None
    level: str | None
    demand: str | None
    value: str | None
    until: str | None
    parts: list["WayOut"]
    least: bool | None


class PendingReport(ReportPart):
    """Why a workload waits, and what would help, cheapest first.

    ``reason`` the dominant one; ``members`` that must be placed at once; ``as_of`` RFC 3339; ``seconds`` it took.
    """

    reason: str
    members: int
    gpus_per_pod: int
    size_rule: SizeRuleReport | None
    nodes: int
    reasons: dict[str, int]
    domains: list[DomainReason]
    ways_out: list[WayOut]
    as_of: str
    seconds: float


class Explained(ReportPart):
    """All there is to say about one pod.

    Bound or finished pods have ``node`` to ``warnings``, pending ones ``workload`` to ``left_out``.
    """

    schema: Literal["topology.scheduler/explain/v1"]
    pod: str
    namespace: str
    state: Literal["bound", "finished", "pending", "gated", "deleted"]
    events: list[Event]

    node: str | msgspec.UnsetType = msgspec.UNSET
    by_us: bool | msgspec.UnsetType = msgspec.UNSET
    rank: int | msgspec.UnsetType | None = msgspec.UNSET
    address: str | msgspec.UnsetType | None = msgspec.UNSET
    score: str | msgspec.UnsetType | None = msgspec.UNSET
    spanned_level: str | msgspec.UnsetType | None = msgspec.UNSET
    levels_spanned: int | msgspec.UnsetType | None = msgspec.UNSET
    hops: str | msgspec.UnsetType | None = msgspec.UNSET
    charged_gpus: int | msgspec.UnsetType | None = msgspec.field(name="chargedGpus", default=msgspec.UNSET)
    gpu_fraction: str | msgspec.UnsetType | None = msgspec.UNSET
    gpu_index: list[int] | msgspec.UnsetType = msgspec.UNSET
    bandwidth_mbit: int | msgspec.UnsetType | None = msgspec.UNSET
    gang: GangReport | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET

    workload: WorkloadReport | msgspec.UnsetType | None = msgspec.UNSET
    decision: DecisionReport | msgspec.UnsetType | None = msgspec.UNSET
    would_tell: list[str] | msgspec.UnsetType = msgspec.UNSET
    why: PendingReport | msgspec.UnsetType | None = msgspec.UNSET
    left_out: list[str] | msgspec.UnsetType = msgspec.UNSET


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the output."""
    schema = msgspec.json.schema(Explained)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Output of topo-scheduler explain -o json",
        **schema,
    }
