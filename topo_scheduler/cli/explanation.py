"""What is known of one pod's placement, as JSON: read from the pod, or decided by an engine made for the question."""

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topo_scheduler.api.annotations import (
    ADDRESS,
    CHARGED_FRACTION,
    CHARGED_GPUS,
    GANG_ID,
    GPU_INDEX,
    HOPS,
    LEVELS_SPANNED,
    RANK,
    RESERVED_BANDWIDTH,
    SCORE,
    SPANNED_LEVEL,
    written_number,
)
from topo_scheduler.api.base import Base
from topo_scheduler.api.fractions import written_indexes
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.words import few_of
from topo_scheduler.cli.common import CommandFailure
from topo_scheduler.cli.explained import SCHEMA
from topo_scheduler.cli.finding import NamedObject, find_pod, state_of
from topo_scheduler.cli.snapshot import list_cluster
from topo_scheduler.cli.why_json import rule_json, why_json
from topo_scheduler.kube.client import Client, decode
from topo_scheduler.kube.errors import Forbidden
from topo_scheduler.kube.listing import TIMEOUT_SECONDS, list_all
from topo_scheduler.kube.resources import PODS, segment

if TYPE_CHECKING:
    from topo_scheduler.api.config import Configuration

Json = dict[str, Any]

_WITHOUT_LIMIT: Final = float("inf")


class _PodEvent(Base):
    type: str = ""
    reason: str = ""
    message: str = ""


class _Events(Base):
    items: list[_PodEvent] = msgspec.field(default_factory=list)


_events: Final = msgspec.json.Decoder(_Events)


async def explain(client: Client, configuration: "Configuration", asked: NamedObject) -> Json:
    """Return all there is to say about a pod; ``state`` is bound, finished, pending, gated, or deleted.

    Raises:
        Failure: there is no such pod, or it is not this scheduler's.
        KubeError: no answer from the API server.
    """
    ours = configuration.scheduler.scheduler_name
    pod = await find_pod(client, ours, asked)
    if pod.spec.scheduler_name != ours:
        where = f"; it is on node {pod.spec.node_name}" if pod.spec.node_name else ""
        raise CommandFailure(
            f"pod {pod.key} is not ours: its schedulerName is {pod.spec.scheduler_name or '(none)'},"
            f" this scheduler is called {ours}{where}"
        )
    told: Json = {
        "schema": SCHEMA,
        "pod": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "state": state_of(pod),
        "events": await _told(client, pod),
    }
    if pod.spec.node_name:
        return {**told, **await _bound(client, pod)}
    if told["state"] == "pending":
        return {**told, **await _decided(client, configuration, pod)}
    return told


async def _told(client: Client, pod: Pod) -> list[Json]:
    """The events of a pod, as ``kubectl describe`` shows them; none where they may not be read."""
    path = f"/api/v1/namespaces/{segment(pod.metadata.namespace)}/events"
    query = {"fieldSelector": f"involvedObject.uid={pod.metadata.uid}"}
    try:
        found = decode(_events, await client.request("GET", path, query=query, timeout=TIMEOUT_SECONDS))
    except Forbidden:
        return []
    return [{"type": event.type, "reason": event.reason, "message": event.message} for event in found.items]


# ---------------------------------------------------------------- bound


async def _bound(client: Client, pod: Pod) -> Json:
    written = pod.metadata.annotations
    found: Json = {
        "node": pod.spec.node_name,
        # Bound by hand or by another under our name: then nothing of ours is on it.
        "byUs": ADDRESS in written,
        "rank": written_number(written, RANK),
        "address": written.get(ADDRESS),
        "score": written.get(SCORE),
        "spannedLevel": written.get(SPANNED_LEVEL),
        "levelsSpanned": written_number(written, LEVELS_SPANNED),
        "hops": written.get(HOPS),
        "chargedGpus": written_number(written, CHARGED_GPUS),
        "gpuFraction": written.get(CHARGED_FRACTION),
        "gpuIndex": list(written_indexes(written, GPU_INDEX)),
        "bandwidthMbit": written_number(written, RESERVED_BANDWIDTH),
    }
    gang = written.get(GANG_ID)
    if gang:
        pods, _ = await list_all(client, PODS, pod.metadata.namespace)
        members = [other for other in pods if other.metadata.annotations.get(GANG_ID) == gang]
        members.sort(key=lambda other: (written_number(other.metadata.annotations, RANK) or 0, other.metadata.name))
        found["gang"] = {"id": gang, "members": [_member(other) for other in members]}
    found["warnings"] = _without_place(found)
    return found


def _without_place(found: Json) -> list[str]:
    """What to say of a pod or gang on nodes that do not tell their place: what spans it is said as if they did."""
    members = found["gang"]["members"] if "gang" in found else [found]
    seated = [member for member in members if member["address"]]
    lost = [
        member["node"]
        for member in seated
        if UNLABELLED in member["address"].removesuffix(f".{member['node']}").split(".")
    ]
    if not lost:
        return []
    nodes = list(dict.fromkeys(lost))
    if len(seated) == 1:
        return [f"node {nodes[0]} has no labels that tell its place in the fabric"]
    return [
        f"{len(lost)} of {len(seated)} pods are on nodes without labels that tell their place in the fabric"
        f" ({few_of(nodes)}): which leaves they share, and how many hops they are apart, is not known"
    ]


def _member(pod: Pod) -> Json:
    written = pod.metadata.annotations
    return {
        "pod": pod.metadata.name,
        "node": pod.spec.node_name,
        "rank": written_number(written, RANK),
        "address": written.get(ADDRESS),
    }


# ---------------------------------------------------------------- pending


async def _decided(client: Client, configuration: "Configuration", pod: Pod) -> Json:
    """Ask an engine that knows what a scheduler would know that started now; what it wants written is not."""
    listed = await list_cluster(client)
    from topo_scheduler.cli.engine_snapshot import build_engine

    engine = await build_engine(client, listed, configuration)
    from topo_scheduler.scheduling.instructions import EmitEvent, RecordDecision
    from topo_scheduler.scheduling.queueing.setting_aside import REPORT_DELAY_SECONDS
    from topo_scheduler.scheduling.queueing.turns import FairnessLimits
    from topo_scheduler.state.decision import Verdict

    uid = pod.metadata.uid
    found = engine.workloads.of_pod(uid)
    if found is None:
        changed = ["the pod changed while it was looked at; ask again"]
        return {"workload": None, "decision": None, "wouldTell": changed, "why": None, "leftOut": listed.problems}
    workload, member = found
    engine.queue.configure(FairnessLimits())  # a limit on decisions only says when; here the answer is wanted now
    now = time.monotonic()
    said = []
    # The second step is that in which a gang is told that it still lacks pods.
    for moment in (now, now + REPORT_DELAY_SECONDS + 1):
        said += engine.step(moment, time.perf_counter, _WITHOUT_LIMIT)
        while engine.pending_work:
            said += engine.step(moment, time.perf_counter, _WITHOUT_LIMIT)
    decisions = [
        one.decision for one in said if isinstance(one, RecordDecision) and one.decision.workload == workload.id
    ]
    # More pods than the gang's size are tried in two parts: the decision that places this pod is the one to tell.
    decision = next((d for d in decisions if any(seat.uid == uid for seat in d.seats)), None)
    decision = decision or next((d for d in decisions if d.verdict is not Verdict.PLACED), None)
    why = None
    if decision is not None and decision.verdict is not Verdict.PLACED:
        why = engine.why.explain(workload, now, time.time(), time.perf_counter)
    return {
        "workload": {
            "name": f"{workload.namespace}/{workload.name}",
            "madeBy": workload.controller,
            "gang": workload.gang,
            "size": workload.size,
            "pods": len(workload.members),
            "problem": member.problem or workload.problem,
            "gpusPerPod": member.cls.gpus,
        },
        "decision": _decision(decision, uid) if decision is not None else None,
        "wouldTell": [one.message for one in said if isinstance(one, EmitEvent) and one.pod.uid == uid],
        "why": why_json(why) if why is not None else None,
        "leftOut": listed.problems,
    }


def _decision(decision: Any, uid: str) -> Json:
    rule, score, quality = decision.rule, decision.score, decision.quality
    seat = next((seat for seat in decision.seats if seat.uid == uid), None)
    return {
        "verdict": decision.verdict.value,
        "message": decision.message,
        "nodes": decision.nodes,
        "reasons": dict(decision.reasons or {}),
        "domains": [{"path": "/".join(path), "reason": reason} for path, reason in decision.domain_reasons],
        "sizeRule": rule_json(rule),
        "candidates": decision.candidates,
        "leaves": ["/".join(path) for path in decision.leaves],
        "score": None
        if score is None
        else {
            "total": score.total / 1000,
            **({} if score.by_node else _weighed(score)),
            **{name: part / 1000 for name, part in score.added},
        },
        "spannedLevel": quality.level if quality is not None else None,
        "levelsSpanned": quality.levels if quality is not None else None,
        "hops": quality.mean_hops / 1000 if quality is not None else None,
        "node": seat.node if seat is not None else None,
        "rank": seat.rank if seat is not None else None,
        "address": seat.address if seat is not None else None,
        "seats": [{"pod": seat.name, "node": seat.node, "rank": seat.rank} for seat in decision.seats],
    }


def _weighed(score: Any) -> Json:
    return {
        "resourceAvailability": score.availability / 1000,
        "topologyAlignment": score.alignment / 1000,
        "domainUtilization": score.utilization / 1000,
        "historicalPerformance": score.history / 1000,
    }
