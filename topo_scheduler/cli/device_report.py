"""What `explain` reports about devices: those that a bound pod has, and why a pending pod gets none."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from topo_scheduler.api.device_score import BALANCE_WEIGHT, RESOURCES_WEIGHT, TOPOLOGY_WEIGHT, written_device_score
from topo_scheduler.api.devices import ResourceClaim
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.text import counted
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import Forbidden, NotFound
from topo_scheduler.kube.connection.resources import RESOURCE_CLAIMS
from topo_scheduler.kube.reading.listing import list_all

if TYPE_CHECKING:
    from topo_scheduler.scheduling.devices.request_survey import SurveyedRequest
    from topo_scheduler.scheduling.engine import Engine

Json = dict[str, Any]
MAX_NODES: Final = 12
"""Nodes of a request that are reported, those with the most free devices first."""
MAX_PROBLEMS: Final = 10
"""Problems of devices that are reported."""
_WORDS: Final = {
    "free": "free",
    "inUse": "in use",
    "tainted": "with a taint",
    "blocked": "blocked by partitions",
    "tooSmall": "too small",
}


# ---------------------------------------------------------------- bound


async def claims_of_namespace(client: Client, namespace: str) -> list[ResourceClaim] | None:
    """Return the claims of a namespace, None if they may not be listed or are not served."""
    try:
        return (await list_all(client, RESOURCE_CLAIMS, namespace))[0]
    except (Forbidden, NotFound):
        return None


def devices_json(pod: Pod, claims: Sequence[ResourceClaim]) -> list[Json]:
    """Return the devices of the claims that are reserved for a pod, also those made for its extended resources."""
    uid = pod.metadata.uid
    return [
        {
            "claim": claim.metadata.name,
            "request": result.request,
            "driver": result.driver,
            "pool": result.pool,
            "device": result.device,
        }
        for claim in sorted(claims, key=lambda claim: claim.metadata.name)
        if claim.status.allocation is not None and any(entry.uid == uid for entry in claim.status.reserved_for)
        for result in claim.status.allocation.devices.results
    ]


def device_lines(devices: Sequence[Json]) -> Iterator[str]:
    """Yield one line for each claim and request of a bound pod."""
    requests: dict[tuple[str, str], list[Json]] = {}
    for device in devices:
        requests.setdefault((device["claim"], device["request"]), []).append(device)
    for (claim, request), results in requests.items():
        yield f"  devices    {names_of(results)} of driver {results[0]['driver']} (request {request} of claim {claim})"


def score_json(annotations: Mapping[str, str]) -> Json | None:
    """Return the score of a bound pod's GPUs by its parts, as it was when the pod was bound; None without one."""
    parts = written_device_score(annotations)
    if parts is None:
        return None
    renamed = {"same-socket": "sameSocket", "same-pcie-switch": "samePcieSwitch"}
    return {renamed.get(name, name): part for name, part in parts.items()}


def score_lines(score: Json | None) -> Iterator[str]:
    """Yield the score of a bound pod's GPUs with the weights of its parts, and the bonuses that it got."""
    if score is None:
        return
    bonuses = {"NVLink": score["nvlink"], "same socket": score["sameSocket"], "same switch": score["samePcieSwitch"]}
    parts = ", ".join([f"base {score['base']}", *(f"{name} {bonus}" for name, bonus in bonuses.items() if bonus)])
    yield f"  GPU score  {score['total']} of 100 when it was bound, from:"
    yield f"             topology {score['topology']} ({parts}), weight {TOPOLOGY_WEIGHT}"
    yield f"             resources {score['resources']}, weight {RESOURCES_WEIGHT}"
    yield f"             balance {score['balance']}, weight {BALANCE_WEIGHT}"


def names_of(devices: Sequence[Json]) -> str:
    """Return the names of devices, with ranges for consecutive numbers."""
    from topo_scheduler.cli.device_rows import ranges

    return ranges([device["device"] for device in devices])


# ---------------------------------------------------------------- pending


def requests_json(engine: "Engine", uid: str) -> tuple[list[Json], list[str]]:
    """Return the requests of a pending pod's claims with the devices that match, and problems of devices.

    Both are empty for a pod without claims.
    """
    from topo_scheduler.scheduling.devices.claim_query import ClaimQueryError
    from topo_scheduler.scheduling.devices.request_survey import survey_requests
    from topo_scheduler.state.devices.device_survey import all_problems

    workload_and_member = engine.workloads.of_pod(uid)
    if workload_and_member is None:
        return [], []
    member, world = workload_and_member[1], engine.world
    devices = world.around.devices
    if not member.cls.claims or devices is None:
        return [], []
    problems = [str(problem) for problem in all_problems(world.inventory)]
    omitted = [f"and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
    try:
        rows = sorted(world.nodes.row_of.items())
        surveyed = survey_requests(devices, member.cls.claims, member.claims, rows)
    except ClaimQueryError:
        surveyed = []  # the decision has its text
    return [_request_json(request) for request in surveyed], [*problems[:MAX_PROBLEMS], *omitted]


def _request_json(request: "SurveyedRequest") -> Json:
    return {
        "claim": request.claim[1],
        "request": request.request,
        "deviceClass": request.class_name,
        "count": request.count or None,
        "matchAttributes": list(request.match_attributes),
        "distinctAttributes": list(request.distinct_attributes),
        "nodes": [
            {
                "node": node.node,
                "matching": node.matching,
                **node.counts,
                "freeTogether": node.together,
                "problem": node.problem,
            }
            for node in request.nodes[:MAX_NODES]
        ],
        "nodesOmitted": max(0, len(request.nodes) - MAX_NODES),
        "rejections": [
            {
                "from": "class" if rejection.of_class else "request",
                "expression": rejection.expression,
                "devices": rejection.devices,
                "failure": rejection.failure,
            }
            for rejection in request.rejections
        ],
    }


def request_lines(requests: Sequence[Json]) -> Iterator[str]:
    """Yield why each request has its devices or not, node by node."""
    from topo_scheduler.scheduling.devices.attribute_agreement import agreement_text

    for request in requests:
        wanted = f"asks for {counted(request['count'], 'device')}" if request["count"] else "asks for all devices"
        yield ""
        yield f"Request {request['request']} of claim {request['claim']} {wanted} of class {request['deviceClass']}:"
        if not request["nodes"]:
            yield "  no device of any node matches"
        agreement = agreement_text(request["matchAttributes"], request["distinctAttributes"])
        for node in request["nodes"]:
            yield f"  {node['node']:<16} {_node_text(node, agreement)}"
        if request["nodesOmitted"]:
            yield f"  and {counted(request['nodesOmitted'], 'more node')} with at most as many free"
        for rejection in request["rejections"]:
            expression = " ".join(rejection["expression"].split())
            failed = f" ({rejection['failure']})" if rejection["failure"] else ""
            devices = counted(rejection["devices"], "device")
            yield f"  a selector of the {rejection['from']} rejects {devices}{failed}: {expression}"


def _node_text(node: Json, agreement: str) -> str:
    counts = ", ".join(f"{node[cause]} {word}" for cause, word in _WORDS.items() if node[cause] or cause == "free")
    text = f"{node['matching']} match: {counts}" if node["matching"] or not node["problem"] else ""
    if node["freeTogether"] is not None and node["freeTogether"] < node["free"]:
        text += f"; at most {node['freeTogether']} of the free ones {agreement}"
    return "; ".join(filter(None, (text, node["problem"])))
