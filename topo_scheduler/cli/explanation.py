"""Explanation of one pod's placement, as JSON: read from the pod, or decided by an engine built for the question."""

import time
from typing import TYPE_CHECKING, Any, Final

from topo_scheduler.api.annotations import (
    ADDRESS,
    CHARGED_FRACTION,
    CHARGED_GPUS,
    GANG_ID,
    GPU_INDEX,
    HOPS,
    LEVELS_SPANNED,
    PREDICTED_GPUS,
    RANK,
    RESERVED_BANDWIDTH,
    SCORE,
    SPANNED_LEVEL,
    written_number,
)
from topo_scheduler.api.devices import ResourceClaim
from topo_scheduler.api.fractions import written_indexes
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.text import few_of
from topo_scheduler.cli import device_report
from topo_scheduler.cli.common import CommandFailure
from topo_scheduler.cli.explanation_schema import SCHEMA
from topo_scheduler.cli.missing_pods import events_of, failed_creations
from topo_scheduler.cli.name_resolution import NamedObject, find_pod, state_of
from topo_scheduler.cli.pending_report import rule_json, why_json
from topo_scheduler.cli.snapshot import list_cluster
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.resources import PODS
from topo_scheduler.kube.reading.listing import list_all

if TYPE_CHECKING:
    from topo_scheduler.api.config import Configuration

Json = dict[str, Any]

_WITHOUT_LIMIT: Final = float("inf")


async def explain(client: Client, configuration: "Configuration", target: NamedObject) -> Json:
    """Return the explanation of a pod; its ``state`` is bound, finished, pending, gated, or deleted.

    Raises:
        CommandFailure: there is no such pod, or it belongs to another scheduler.
        KubeError: no answer from the API server.
    """
    scheduler_name = configuration.scheduler.scheduler_name
    pod = await find_pod(client, scheduler_name, target)
    if pod.spec.scheduler_name != scheduler_name:
        where = f"; it is on node {pod.spec.node_name}" if pod.spec.node_name else ""
        raise CommandFailure(
            f"pod {pod.key} belongs to another scheduler: its schedulerName is {pod.spec.scheduler_name or '(none)'},"
            f" this scheduler is called {scheduler_name}{where}; if that is another instance of this scheduler, name it"
            " by --scheduler-name"
        )
    report: Json = {
        "schema": SCHEMA,
        "pod": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "state": state_of(pod),
        "events": [
            {field: event.get(field, "") for field in ("type", "reason", "message")}
            for event in await events_of(client, pod.metadata.namespace, pod.metadata.uid)
        ],
    }
    if pod.spec.node_name:
        return {**report, **await _bound(client, pod)}
    if report["state"] == "pending":
        return {**report, **await _planned_decision(client, configuration, pod)}
    return report


# ---------------------------------------------------------------- bound


async def _bound(client: Client, pod: Pod) -> Json:
    annotations = pod.metadata.annotations
    report: Json = {
        "node": pod.spec.node_name,
        # A pod bound by hand or by another scheduler under our name has no annotations of ours.
        "boundByThisScheduler": ADDRESS in annotations,
        "rank": written_number(annotations, RANK),
        "address": annotations.get(ADDRESS),
        "score": annotations.get(SCORE),
        "spannedLevel": annotations.get(SPANNED_LEVEL),
        "levelsSpanned": written_number(annotations, LEVELS_SPANNED),
        "hops": annotations.get(HOPS),
        "chargedGpus": written_number(annotations, CHARGED_GPUS),
        "gpuFraction": annotations.get(CHARGED_FRACTION),
        "gpuIndex": list(written_indexes(annotations, GPU_INDEX)),
        "predictedGpus": list(written_indexes(annotations, PREDICTED_GPUS)),
        "deviceScore": device_report.score_json(annotations),
        "bandwidthMbit": written_number(annotations, RESERVED_BANDWIDTH),
    }
    claims: list[ResourceClaim] | None = []
    if pod.spec.resource_claims or getattr(pod.status, "extended_resource_claim_status", None) is not None:
        claims = await device_report.claims_of_namespace(client, pod.metadata.namespace)
    report["devices"] = device_report.devices_json(pod, claims) if claims is not None else None
    gang = annotations.get(GANG_ID)
    if gang:
        pods, _ = await list_all(client, PODS, pod.metadata.namespace)
        members = [other for other in pods if other.metadata.annotations.get(GANG_ID) == gang]
        members.sort(key=lambda other: (written_number(other.metadata.annotations, RANK) or 0, other.metadata.name))
        report["gang"] = {
            "id": gang,
            "name": _gang_name(pod, gang),
            "members": [_member(other, claims) for other in members],
        }
    report["warnings"] = _unlabelled_warnings(report)
    return report


def _gang_name(pod: Pod, gang: str) -> str:
    """Return the name of a gang as events have it: that of the pods' controller, where its uid identifies the gang."""
    name = gang.rpartition("/")[2]
    return next((owner.name for owner in pod.metadata.owner_references if owner.uid == name), name)


def _unlabelled_warnings(report: Json) -> list[str]:
    """Return warnings on nodes of the pod or gang without labels of their position, where spanned levels are wrong."""
    members = report["gang"]["members"] if "gang" in report else [report]
    placed_members = [member for member in members if member["address"]]
    unlabelled_nodes = [
        member["node"]
        for member in placed_members
        if UNLABELLED in member["address"].removesuffix(f".{member['node']}").split(".")
    ]
    if not unlabelled_nodes:
        return []
    nodes = list(dict.fromkeys(unlabelled_nodes))
    if len(placed_members) == 1:
        return [f"node {nodes[0]} has no labels that give its position in the fabric"]
    return [
        f"{len(unlabelled_nodes)} of {len(placed_members)} pods are on nodes without labels that give their position in"
        f" the fabric ({few_of(nodes)}): which leaves they share, and how many hops they are apart, is not known"
    ]


def _member(pod: Pod, claims: "list[ResourceClaim] | None") -> Json:
    annotations = pod.metadata.annotations
    return {
        "pod": pod.metadata.name,
        "node": pod.spec.node_name,
        "rank": written_number(annotations, RANK),
        "address": annotations.get(ADDRESS),
        "devices": device_report.devices_json(pod, claims) if claims is not None else None,
    }


# ---------------------------------------------------------------- pending


async def _planned_decision(client: Client, configuration: "Configuration", pod: Pod) -> Json:
    """Return the decision of an engine in the state of a scheduler that starts now; nothing of it is written."""
    listed = await list_cluster(client)
    from topo_scheduler.cli.engine_snapshot import build_engine

    engine = await build_engine(client, listed, configuration)
    from topo_scheduler.scheduling.instructions import EmitEvent, RecordDecision
    from topo_scheduler.scheduling.intake.understand import CLAIMS_MADE_SECONDS
    from topo_scheduler.scheduling.queueing.fair_queue import FairnessLimits
    from topo_scheduler.scheduling.queueing.unschedulable import REPORT_DELAY_SECONDS
    from topo_scheduler.state.decision import Verdict

    uid = pod.metadata.uid
    workload_and_member = engine.workloads.of_pod(uid)
    if workload_and_member is None:
        leaving = engine.arrivals.leaving.text(uid)
        reason = leaving or "the pod changed while it was read; run the command again"
        return {
            "workload": None,
            "decision": None,
            "predictedEvents": [reason],
            "failedCreations": [],
            "pending": None,
            "deviceRequests": [],
            "deviceProblems": [],
            "unreadObjects": listed.problems,
        }
    workload, member = workload_and_member
    engine.queue.configure(FairnessLimits())  # a limit on decisions only delays them; here the answer is needed now
    now = time.monotonic()
    instructions = []
    # The second step is the one that emits the events on missing pods of a gang, and on claims that are not made.
    for moment in (now, now + max(REPORT_DELAY_SECONDS, CLAIMS_MADE_SECONDS) + 1):
        instructions += engine.step(moment, time.perf_counter, _WITHOUT_LIMIT)
        while engine.pending_work:
            instructions += engine.step(moment, time.perf_counter, _WITHOUT_LIMIT)
    decisions = [
        instruction.decision
        for instruction in instructions
        if isinstance(instruction, RecordDecision) and instruction.decision.workload == workload.id
    ]
    # A gang with more pods than its size is placed in two parts: report the decision that places this pod.
    decision = next((candidate for candidate in decisions if any(seat.uid == uid for seat in candidate.seats)), None)
    decision = decision or next((candidate for candidate in decisions if candidate.verdict is not Verdict.PLACED), None)
    why = None
    if decision is not None and decision.verdict is not Verdict.PLACED:
        why = engine.why.explain(workload, now, time.time(), time.perf_counter)
    failures: list[Json] = []
    if decision is None and len(workload.members) < workload.size:
        members = [other.metadata for other in listed.pods if other.metadata.uid in workload.members]
        controllers = {owner.uid: owner for metadata in members if (owner := metadata.controller) is not None}
        failures = await failed_creations(client, workload.namespace, controllers)
    device_requests: list[Json] = []
    device_problems: list[str] = []
    if decision is None or decision.verdict is not Verdict.PLACED:
        device_requests, device_problems = device_report.requests_json(engine, uid)
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
        "predictedEvents": [
            instruction.message
            for instruction in instructions
            if isinstance(instruction, EmitEvent) and instruction.pod.uid == uid
        ],
        "failedCreations": failures,
        "pending": why_json(why) if why is not None else None,
        "deviceRequests": device_requests,
        "deviceProblems": device_problems,
        "unreadObjects": listed.problems,
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
