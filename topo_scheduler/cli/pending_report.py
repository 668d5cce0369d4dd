"""JSON of the explanation of a pending workload: `explanation.PendingReport`."""

from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topo_scheduler.scheduling.explaining.explainer import Explanation
    from topo_scheduler.scheduling.explaining.remedies import Remedy
    from topo_scheduler.state.decision import SizeRule

Json = dict[str, Any]


def why_json(explanation: "Explanation") -> Json:
    """Return an explanation for JSON output."""
    return {
        "reason": explanation.reason,
        "members": explanation.members,
        "gpusPerPod": explanation.gpus,
        "sizeRule": rule_json(explanation.rule),
        "nodes": explanation.nodes,
        "reasons": dict(explanation.reasons),
        "domains": [
            {
                "path": "/".join(domain.path),
                "level": domain.level,
                "nodes": domain.nodes,
                "freeGpus": domain.free_gpus,
                "room": domain.room,
                "needed": explanation.members,
                "reasons": dict(domain.reasons),
            }
            for domain in explanation.domains
        ],
        "remedies": [_way(remedy, explanation.at) for remedy in explanation.ways],
        "asOf": _time(explanation.at),
        "seconds": round(explanation.seconds, 4),
    }


def rule_json(rule: "SizeRule | None") -> Json | None:
    """Return a size rule for JSON output."""
    return {"nodes": rule.nodes, "leaves": rule.leaves, "within": rule.domain} if rule is not None else None


def _way(remedy: "Remedy", at: float) -> Json:
    from topo_scheduler.scheduling.explaining.remedies import RemedyKind
    from topo_scheduler.scheduling.explaining.remedy_text import say

    cost = remedy.cost
    return {
        "kind": remedy.kind.value,
        "text": say(remedy, at),
        "cost": {
            "podsEnded": cost.pods,
            "gpusEnded": cost.gpus,
            "membersGivenUp": cost.members,
            "demandsDropped": cost.demands,
            "levelsMore": cost.levels,
            "nodesReturned": cost.nodes,
            "secondsWaited": cost.seconds,
        },
        "endingWorkloads": [
            {
                "name": ended.name,
                "gang": ended.gang,
                "pods": list(ended.pods),
                "gpus": ended.gpus,
                "expectedEnd": _time(ended.ends) if isfinite(ended.ends) else None,
            }
            for ended in remedy.ended
        ],
        "nodes": list(remedy.nodes),
        "size": remedy.size or None,
        "level": remedy.level or None,
        "demand": remedy.demand or None,
        "value": remedy.value or None,
        "until": _time(remedy.until) if remedy.until else None,
        "parts": [_way(part, at) for part in remedy.parts],
        "minimal": remedy.least if remedy.kind is RemedyKind.FREE else None,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
