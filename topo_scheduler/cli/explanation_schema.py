"""The output of ``topo-scheduler explain -o json``, field by field. The published schema is generated from this.

Removing or renaming a field, or changing its meaning, needs a new version of the schema; new fields don't.
"""

from typing import Final, Literal

import msgspec

SCHEMA: Final = "topology.scheduler/explain/v1"


class ReportPart(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Common rules of all parts."""


class Event(ReportPart):
    """An event of the pod."""

    type: str
    reason: str
    message: str


class AllocatedDeviceReport(ReportPart):
    """A device that a pod has by one of its claims, as in ``status.allocation`` of the claim."""

    claim: str
    request: str
    driver: str
    pool: str
    device: str


class GangMember(ReportPart):
    """A bound pod of a gang. ``devices``: of its claims; null if claims may not be listed."""

    pod: str
    node: str
    rank: int | None
    address: str | None
    devices: list[AllocatedDeviceReport] | None


class GangReport(ReportPart):
    """The gang of a bound pod. ``name``: as events name it."""

    id: str
    name: str
    members: list[GangMember]


class WorkloadReport(ReportPart):
    """The workload of a pending pod. ``size``: number of pods that must be placed at once."""

    name: str
    made_by: str
    gang: bool
    size: int
    pods: int
    problem: str
    gpus_per_pod: int


class SizeRuleReport(ReportPart):
    """The size rule: at least ``nodes`` nodes, in ``leaves`` leaves of one domain of the level ``within``."""

    nodes: int
    leaves: int
    within: str


class Domain(ReportPart):
    """A rejected domain, one of those with the most room."""

    path: str
    reason: str


class SeatReport(ReportPart):
    """The node that a pod of the workload would get."""

    pod: str
    node: str
    rank: int


class DecisionReport(ReportPart):
    """The decision that a scheduler would make now. ``reasons``: number of nodes by reason. Scores are from 0 to 1."""

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
    """One domain of one level. ``room``: pods that fit there, of ``needed``; ``reasons`` as for the cluster."""

    path: str
    level: str
    nodes: int
    free_gpus: int
    room: int
    needed: int
    reasons: dict[str, int]


class Cost(ReportPart):
    """Cost of a remedy. Remedies are sorted by cost: the first field that differs decides."""

    pods_ended: int
    gpus_ended: int
    members_given_up: int
    demands_dropped: int
    levels_more: int
    nodes_returned: int
    seconds_waited: int


class Ended(ReportPart):
    """Pods that end together: a gang, or one pod. ``expected_end`` is in RFC 3339, null if unknown."""

    name: str
    gang: bool
    pods: list[str]
    gpus: int
    expected_end: str | None


class RemedyReport(ReportPart):
    """One remedy, tried on a copy of the state. Fields that do not belong to its kind are empty or null.

    ``ending_workloads``: workloads that must end (``free``), or whose end is awaited (``wait``). ``nodes``: nodes that
    become free, that return (``returnNodes``), or that the gang would use. ``size``: pods that fit (``reduce``).
    ``level``: innermost level at which one domain would contain the gang (``relax``). ``demand`` and ``value``: the
    change to the pods (``relax``, ``dropDemand``), or how nodes return. ``until``: RFC 3339 (``wait``). ``parts``:
    remedies that must be combined (``combine``), else empty. ``minimal``: whether no cheaper set of pods is enough
    (``free``); false if the search for one reached its limit.
    """

    kind: Literal["wait", "returnNodes", "relax", "dropDemand", "reduce", "free", "combine"]
    text: str
    cost: Cost
    ending_workloads: list[Ended]
    nodes: list[str]
    size: int | None
    level: str | None
    demand: str | None
    value: str | None
    until: str | None
    parts: list["RemedyReport"]
    minimal: bool | None


class NodeDevicesReport(ReportPart):
    """Devices of a node that match a request, by what becomes of them; together they are ``matching``.

    ``tainted``: with a taint that the request does not tolerate. ``blocked``: partitions in use overlap them.
    ``too_small``: their capacity is below what is requested. ``free_together``: free devices that agree in the
    attributes that must match and differ in distinct ones; null without such a constraint. ``problem``: why a pool
    gives no devices.
    """

    node: str
    matching: int
    free: int
    in_use: int
    tainted: int
    blocked: int
    too_small: int
    free_together: int | None
    problem: str


class RejectionReport(ReportPart):
    """A selector that rejects devices. ``failure``: why it fails on the first device on which it does."""

    from_: Literal["class", "request"] = msgspec.field(name="from")
    expression: str
    devices: int
    failure: str


class DeviceRequestReport(ReportPart):
    """A request of a claim that is not allocated. ``count``: null for all devices that match.

    ``nodes``: those with the most free devices first; ``nodes_omitted``: number of further ones.
    """

    claim: str
    request: str
    device_class: str
    count: int | None
    match_attributes: list[str]
    distinct_attributes: list[str]
    nodes: list[NodeDevicesReport]
    nodes_omitted: int
    rejections: list[RejectionReport]


class FailedCreation(ReportPart):
    """A controller of the gang that failed to create pods: the newest message of its events ``FailedCreate``."""

    controller: str
    message: str


class PendingReport(ReportPart):
    """Why a workload is pending, and what would help, cheapest first.

    ``reason``: the dominant reason. ``members``: pods that must be placed at once. ``as_of``: RFC 3339. ``seconds``:
    duration of the search.
    """

    reason: str
    members: int
    gpus_per_pod: int
    size_rule: SizeRuleReport | None
    nodes: int
    reasons: dict[str, int]
    domains: list[DomainReason]
    remedies: list[RemedyReport]
    as_of: str
    seconds: float


class DeviceScoreReport(ReportPart):
    """The score of a pod's GPUs when it was bound, each part from 0 to 100.

    ``total`` weights ``topology`` by 40, ``resources`` by 35 and ``balance`` by 25. ``topology`` is the sum of the
    parts from ``base`` to ``same_pcie_switch``.
    """

    total: int
    topology: int
    base: int
    nvlink: int
    same_socket: int
    same_pcie_switch: int
    resources: int
    balance: int


class Explained(ReportPart):
    """The explanation of one pod.

    Bound or finished pods have the fields ``node`` to ``warnings``, pending pods ``workload`` to ``unread_objects``.
    ``devices``: null if claims may not be listed. ``device_problems``: of ResourceSlices, if the pod has claims.
    ``device_score``: null if the pod did not ask how close its GPUs are. ``failed_creations``: if the gang lacks pods.
    """

    schema: Literal["topology.scheduler/explain/v1"]
    pod: str
    namespace: str
    state: Literal["bound", "finished", "pending", "gated", "deleted"]
    events: list[Event]

    node: str | msgspec.UnsetType = msgspec.UNSET
    bound_by_this_scheduler: bool | msgspec.UnsetType = msgspec.UNSET
    rank: int | msgspec.UnsetType | None = msgspec.UNSET
    address: str | msgspec.UnsetType | None = msgspec.UNSET
    score: str | msgspec.UnsetType | None = msgspec.UNSET
    spanned_level: str | msgspec.UnsetType | None = msgspec.UNSET
    levels_spanned: int | msgspec.UnsetType | None = msgspec.UNSET
    hops: str | msgspec.UnsetType | None = msgspec.UNSET
    charged_gpus: int | msgspec.UnsetType | None = msgspec.field(name="chargedGpus", default=msgspec.UNSET)
    gpu_fraction: str | msgspec.UnsetType | None = msgspec.UNSET
    gpu_index: list[int] | msgspec.UnsetType = msgspec.UNSET
    predicted_gpus: list[int] | msgspec.UnsetType = msgspec.UNSET
    device_score: DeviceScoreReport | msgspec.UnsetType | None = msgspec.UNSET
    bandwidth_mbit: int | msgspec.UnsetType | None = msgspec.UNSET
    devices: list[AllocatedDeviceReport] | msgspec.UnsetType | None = msgspec.UNSET
    gang: GangReport | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET

    workload: WorkloadReport | msgspec.UnsetType | None = msgspec.UNSET
    decision: DecisionReport | msgspec.UnsetType | None = msgspec.UNSET
    predicted_events: list[str] | msgspec.UnsetType = msgspec.UNSET
    failed_creations: list[FailedCreation] | msgspec.UnsetType = msgspec.UNSET
    pending: PendingReport | msgspec.UnsetType | None = msgspec.UNSET
    device_requests: list[DeviceRequestReport] | msgspec.UnsetType = msgspec.UNSET
    device_problems: list[str] | msgspec.UnsetType = msgspec.UNSET
    unread_objects: list[str] | msgspec.UnsetType = msgspec.UNSET
