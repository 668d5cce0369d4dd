"""An explanation of a workload that waits, as JSON has it: `explained.Why`."""

from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topo_scheduler.scheduling.explaining.ways import Way
    from topo_scheduler.scheduling.explaining.why import Explanation
    from topo_scheduler.state.decision import SizeRule

Json = dict[str, Any]


def why_json(found: "Explanation") -> Json:
    """Return an explanation as JSON has it."""
    return {
        "reason": found.reason,
        "members": found.members,
        "gpusPerPod": found.gpus,
        "sizeRule": rule_json(found.rule),
        "nodes": found.nodes,
        "reasons": dict(found.reasons),
        "domains": [
            {
                "path": "/".join(one.path),
                "level": one.level,
                "nodes": one.nodes,
                "freeGpus": one.free_gpus,
                "room": one.room,
                "needed": found.members,
                "reasons": dict(one.reasons),
            }
            for one in found.domains
        ],
        "waysOut": [_way(way, found.at) for way in found.ways],
        "asOf": _time(found.at),
        "seconds": round(found.seconds, 4),
    }


def rule_json(rule: "SizeRule | None") -> Json | None:
    """Return a size rule as JSON has it."""
    return {"nodes": rule.nodes, "leaves": rule.leaves, "within": rule.domain} if rule is not None else None


def _way(way: "Way", at: float) -> Json:
    from topo_scheduler.scheduling.explaining.ways import RemedyKind
    from topo_scheduler.scheduling.explaining.ways_text import say

    cost = way.cost
    return {
        "kind": way.kind.value,
        "say": say(way, at),
        "cost": {
            "podsEnded": cost.pods,
            "gpusEnded": cost.gpus,
            "membersGivenUp": cost.members,
            "demandsDropped": cost.demands,
            "levelsMore": cost.levels,
            "nodesReturned": cost.nodes,
            "secondsWaited": cost.seconds,
        },
        "ends": [
            {
                "name": one.name,
                "gang": one.gang,
                "pods": list(one.pods),
                "gpus": one.gpus,
                "expectedEnd": _time(one.ends) if isfinite(one.ends) else None,
            }
            for one in way.ended
        ],
        "nodes": list(way.nodes),
        "size": way.size or None,
        "level": way.level or None,
        "demand": way.demand or None,
        "value": way.value or None,
        "until": _time(way.until) if way.until else None,
        "parts": [_way(part, at) for part in way.parts],
        "least": way.least if way.kind is RemedyKind.FREE else None,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
