"""The audit log: requests, decisions, binds, refusals and rollbacks, one JSON line each.

It records what this scheduler saw and did. Schedulers do not learn which user created a pod: the API server has that in
its own audit log. This log has the pod's ServiceAccount and the chain of its owners.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from topo_scheduler.api.annotations import ADDRESS, SCORE
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.printable import printable_json
from topo_scheduler.api.reasons import Reason
from topo_scheduler.observability.audit_file import AuditFile
from topo_scheduler.recording.calls import plain
from topo_scheduler.recording.observed_engine import ObservedCall
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import (
    Bind,
    BindOutcome,
    EmitEvent,
    Evict,
    EvictionOutcome,
    EvictTainted,
    Instruction,
    Nominate,
    PodRef,
    Preempt,
    RecordDecision,
)
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.state.decision import Decision, Verdict

SCHEMA: Final = 1
MAX_SHARED_ORIGINS: Final = 10_000
"""Maximum number of chains of owners that pods share in memory."""
MAX_LOGGED_REASONS: Final = 100_000
"""Maximum number of workloads whose last logged reason is remembered."""

AuditKind = Literal[
    "began",
    "ended",
    "configured",
    "asked",
    "decided",
    "refused",
    "bound",
    "not-bound",
    "nominated",
    "preempting",
    "preempted",
    "not-preempted",
    "rolled-back",
    "evicted",
    "moved",
    "broke",
]
"""``kind`` of a line: what it is about."""


class AuditObject(msgspec.Struct, omit_defaults=True):
    """Reference to an object."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Seated(msgspec.Struct, omit_defaults=True):
    """A pod with its target node. ``domain``: path of the node in the fabric."""

    name: str
    uid: str
    node: str = ""
    domain: str = ""
    rank: int | None = None


class PodOrigin(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Origin of a pod: its chain of owners, the nearest first, and its ServiceAccount."""

    owners: list[AuditObject] = []
    service_account: str = ""


class AuditEntry(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A line of the audit log.

    ``workload``: its name. ``id``: its ID, that is the UID of its owner, or namespace and name. ``by``: origin of the
    pod; in a line about a victim, origin of the ``preemptor``.
    """

    schema: int
    time: str
    kind: AuditKind
    namespace: str = ""
    workload: str = ""
    id: str = ""
    pods: list[Seated] = []
    by: PodOrigin | None = None
    preemptor: AuditObject | None = None
    decision: int | None = None
    verdict: str = ""
    score: float | None = None
    leaves: list[str] = []
    node: str = ""
    outcome: str = ""
    reason: str = ""
    spec: Any = None


class Audit:
    """A listener that writes the audit log."""

    def __init__(self, file: AuditFile, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._engine: Engine | None = None
        self._origins: dict[str, PodOrigin] = {}
        """Origin of each existing pod. Pods of one owner share the object."""
        self._shared: dict[object, PodOrigin] = {}
        self._binds: dict[str, Bind] = {}
        self._victims: dict[str, Preempt] = {}
        self._logged_reasons: dict[str, str] = {}
        """Last logged reason by workload: a decision with the same reason is not logged again."""

    # ------------------------------------------------------------ as a listener

    def engine_made(self, engine: Engine) -> None:
        """Start a term: the new engine gets all pods again."""
        self._engine = engine
        self._origins.clear()
        self._shared.clear()
        self._binds.clear()
        self._victims.clear()
        self._logged_reasons.clear()
        self._write("began", spec=engine.config.topology.spec)

    def call_starts(self, name: str, arguments: Sequence[Any]) -> None:
        """Do nothing: the result of the call is not known yet."""

    def call_ended(self, call: ObservedCall) -> None:
        """Write the lines for a call."""
        for pod, lineage in call.owners:
            if pod.metadata.uid not in self._origins:
                self._add_pod(pod, lineage)
        match call.name:
            case "pods_applied":
                self._pods(call.arguments[0])
            case "pod_deleted":
                self._forget(call.arguments[0])
            case "bind_finished":
                uid, outcome, message, _ = call.arguments
                self._bind_ended(uid, outcome, message)
            case "eviction_finished":
                self._eviction_ended(*call.arguments[:3])
            case "seat_taken":
                self._moved(*call.arguments)
            case "configure":
                self._write("configured", spec=call.arguments[0].topology.spec)
        for instruction in call.out:
            self._instruction(instruction)

    def listener_failed(self, error: Exception) -> None:
        """Write that this listener failed and gets no further calls."""
        self._write("broke", reason=f"{type(error).__name__}: {error}; nothing more is written in this term")

    def ends(self) -> None:
        """Write that the term is over."""
        self._write("ended")
        self._engine = None

    # ------------------------------------------------------------ facts

    def _add_pod(self, pod: Pod, lineage: Lineage | None) -> None:
        namespace, controller = pod.metadata.namespace, pod.metadata.controller
        owners: list[AuditObject] = []
        if lineage is not None:
            owners = [AuditObject(owner.kind, owner.namespace, owner.name, owner.uid) for owner in lineage.owners]
        elif controller is not None:  # its owners are not known yet
            owners = [AuditObject(controller.kind, namespace, controller.name, controller.uid)]
        key = (*(owner.uid or owner.name for owner in owners), pod.spec.service_account_name)
        if len(self._shared) > MAX_SHARED_ORIGINS:
            self._shared.clear()
        by = self._shared.setdefault(key, PodOrigin(owners, pod.spec.service_account_name))
        self._origins[pod.metadata.uid] = by
        self._of_pod("asked", PodRef(namespace, pod.metadata.name, pod.metadata.uid))

    def _pods(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            uid = pod.metadata.uid
            bind = self._binds.get(uid)
            if bind is not None and pod.spec.node_name:
                # The watch may arrive before the answer, or the answer may be lost.
                self._bind_ended(uid, BindOutcome.BOUND if pod.spec.node_name == bind.node else BindOutcome.TAKEN, "")
            if pod.finished:
                self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._origins.pop(uid, None)
        self._binds.pop(uid, None)

    def _bind_ended(self, uid: str, outcome: BindOutcome, message: str) -> None:
        bind = self._binds.get(uid)
        if bind is None:
            return
        if outcome is not BindOutcome.UNKNOWN:  # such a pod may still be bound
            del self._binds[uid]
        annotations = bind.annotations
        score = annotations.get(SCORE)
        self._of_pod(
            "bound" if outcome is BindOutcome.BOUND else "not-bound",
            bind.pod,
            node=bind.node,
            domain=annotations.get(ADDRESS, ""),
            score=float(score) if score else None,
            outcome=outcome.value,
            reason=message if outcome is not BindOutcome.BOUND else "",
        )

    def _eviction_ended(self, uid: str, outcome: EvictionOutcome, message: str) -> None:
        kind: AuditKind = "preempted" if outcome is EvictionOutcome.GOING else "not-preempted"
        if (preempt := self._victims.pop(uid, None)) is not None:
            preemptor_fields = self._preemptor_fields(preempt)
            self._of_pod(
                kind, preempt.pod, node=preempt.node, outcome=outcome.value, reason=message, **preemptor_fields
            )

    def _moved(self, migration: str, pod: str, by: PodRef, origin: str, node: str) -> None:
        reason = f"Migration {migration}: in place of the pod {pod} on node {origin}"
        self._of_pod("moved", by, node=node, reason=reason)

    # ------------------------------------------------------------ instructions

    def _instruction(self, instruction: Instruction) -> None:
        match instruction:
            case RecordDecision(decision, _):
                self._decided(decision)
            case Bind(pod):
                self._binds[pod.uid] = instruction
            case Evict(pod, message) | EvictTainted(pod, message):
                self._of_pod("evicted", pod, reason=message)
            case Preempt(pod, node, note):
                self._victims[pod.uid] = instruction
                self._of_pod("preempting", pod, node=node, reason=note, **self._preemptor_fields(instruction))
            case Nominate(pod, node):
                self._of_pod("nominated", pod, node=node)
            case EmitEvent(pod, _, reason, message) if reason is Reason.ROLLED_BACK:
                self._of_pod("rolled-back", pod, reason=message)
            case EmitEvent(pod, _, reason, message) if reason is Reason.FAILED_SCHEDULING and self._is_refused(pod):
                self._of_pod("refused", pod, reason=message)

    def _preemptor_fields(self, preempt: Preempt) -> dict[str, Any]:
        """Return the preemptor of a victim, and the origin of the preemptor."""
        pod = preempt.preemptor
        return {"preemptor": AuditObject("Pod", pod.namespace, pod.name, pod.uid), "by": self._origins.get(pod.uid)}

    def _is_refused(self, pod: PodRef) -> bool:
        owner = self._engine.workloads.of_pod(pod.uid) if self._engine is not None else None
        return owner is not None and bool(owner[0].problem)

    def _decided(self, decision: Decision) -> None:
        namespace, _, name = decision.name.partition("/")
        placed = decision.verdict is Verdict.PLACED
        if placed:
            self._logged_reasons.pop(decision.workload, None)
        elif self._logged_reasons.get(decision.workload) == decision.message:
            return
        else:
            if len(self._logged_reasons) > MAX_LOGGED_REASONS:
                self._logged_reasons.clear()
            self._logged_reasons[decision.workload] = decision.message
        self._write(
            "decided",
            namespace=namespace,
            workload=name,
            id=decision.workload,
            pods=[Seated(seat.name, seat.uid, seat.node, seat.address, seat.rank) for seat in decision.seats],
            decision=decision.id,
            verdict=decision.verdict.value,
            score=decision.score.total / 1000 if decision.score is not None else None,
            leaves=["/".join(path) for path in decision.leaves],
            reason=decision.message,
            by=self._origins.get(self._pod_of(decision)),
        )

    def _pod_of(self, decision: Decision) -> str:
        """Return the UID of a pod of the decision: the first placed one, else the pod with the workload's events."""
        if decision.seats:
            return decision.seats[0].uid
        workload = self._engine.workloads.get(decision.workload) if self._engine is not None else None
        return workload.speaker if workload is not None else ""

    # ------------------------------------------------------------ lines

    def _of_pod(self, kind: AuditKind, pod: PodRef, *, domain: str = "", **fields: Any) -> None:
        owner = self._engine.workloads.of_pod(pod.uid) if self._engine is not None else None
        if owner is not None:
            fields |= {"workload": owner[0].name, "id": owner[0].id}
        fields.setdefault("by", self._origins.get(pod.uid))
        seated = Seated(pod.name, pod.uid, fields.get("node", ""), domain)
        self._write(kind, namespace=pod.namespace, pods=[seated], **fields)

    def _write(self, kind: AuditKind, **fields: Any) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._file.put(printable_json(_ENCODER.encode(AuditEntry(schema=SCHEMA, time=now, kind=kind, **fields))))


_ENCODER: Final = msgspec.json.Encoder(enc_hook=plain)
