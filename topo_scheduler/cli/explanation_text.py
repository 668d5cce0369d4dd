"""Explanations as text."""

from collections.abc import Iterator
from typing import Any, Final

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.text import counted
from topo_scheduler.cli import device_report

Json = dict[str, Any]

MAX_DOMAINS: Final = 12
"""Maximum domains of a level that are shown, those with the most room first."""
_BEYOND_REMEDIES: Final = {
    NodeReason.QUOTA: "It fits its quota once pods of its namespace end, or the quota is raised:"
    " field quotas of the configuration.",
    NodeReason.ACCESS: "Some nodes are reserved for other namespaces: field domainAccess of the configuration.",
}
"""What helps against reasons that the search for remedies leaves out."""


def lines(report: Json) -> Iterator[str]:
    """Yield the lines of an explanation."""
    pod = f"{report['namespace']}/{report['pod']}"
    match report["state"]:
        case "bound" | "finished":
            yield from _bound(pod, report)
        case "gated":
            yield f"Pod {pod} has scheduling gates: no scheduler places it before they are removed."
        case "deleted":
            yield f"Pod {pod} is being deleted and was never bound."
        case _:
            yield from _pending(pod, report)
    if report["events"]:
        yield ""
        yield "Events:"
        for event in report["events"]:
            yield f"  {event['type']:<8} {event['reason']:<20} {event['message']}"


def _bound(pod: str, report: Json) -> Iterator[str]:
    yield f"Pod {pod} {'ran' if report['state'] == 'finished' else 'is'} on node {report.get('node') or '(none)'}."
    if not report.get("boundByThisScheduler"):
        if report.get("node"):
            yield "It was not bound by this scheduler: it has none of its annotations."
        return
    yield f"  address    {report['address']}"
    if report["score"] is not None:
        yield f"  score      {report['score']} of 1"
    for warning in report["warnings"]:
        yield f"  warning    {warning}"
    if report["spannedLevel"] is not None and not report["warnings"]:
        yield f"  its gang   within one {report['spannedLevel']}, {report['hops']} hops between two members on average"
    yield f"  rank       {report['rank']}"
    if report["bandwidthMbit"]:
        yield f"  bandwidth  {report['bandwidthMbit'] / 1000:g}Gb reserved on each node of its gang"
    if report["chargedGpus"]:
        yield f"  GPUs       {report['chargedGpus']}, reserved by annotation alone: its node gives it no device"
    if report["gpuIndex"]:
        share = f", of which it holds {report['gpuFraction']}" if report["gpuFraction"] else ""
        yield f"  GPU index  {', '.join(map(str, report['gpuIndex']))}{share}"
    if report["devices"] is None:
        yield "  devices    unknown, as resourceclaims.resource.k8s.io may not be listed in its namespace"
    yield from device_report.device_lines(report["devices"] or [])
    if report["predictedGpus"]:
        indexes = ", ".join(map(str, report["predictedGpus"]))
        yield f"  GPU index  {indexes} (predicted: the device plugin of the node chooses)"
    yield from device_report.score_lines(report["deviceScore"])
    if gang := report.get("gang"):
        yield ""
        known_as = f" ({gang['id']})" if not gang["id"].endswith(f"/{gang['name']}") else ""
        yield f"Gang {gang['name']} of {counted(len(gang['members']), 'pod')}{known_as}:"
        for member in gang["members"]:
            devices = f"  {device_report.names_of(member['devices'])}" if member["devices"] else ""
            place = member["address"] or member["node"] or "no node"
            yield f"  rank {member['rank']}  {member['pod']}  {place}{devices}"


def _pending(pod: str, report: Json) -> Iterator[str]:
    workload, decision = report["workload"], report["decision"]
    yield f"Pod {pod} has no node."
    if workload is not None:
        placement = f"gang of {workload['size']}" if workload["gang"] else "placed for itself"
        yield (
            f"  workload   {workload['name']} ({workload['madeBy']}), {placement},"
            f" {counted(workload['pods'], 'pod')} known, {counted(workload['gpusPerPod'], 'GPU')} each"
        )
    if decision is None:
        yield ""
        yield from report["predictedEvents"] or ["The scheduler would not decide on it now."]
        for failure in report.get("failedCreations", ()):
            yield f"{failure['controller']} failed to create pods: {failure['message']}"
        yield from _warnings(report)
        return
    yield ""
    if decision["verdict"] == "placed":
        yield from _placeable(decision)
    else:
        yield decision["message"]
        requests = report.get("deviceRequests", ())
        yield from device_report.request_lines(requests)
        yield from _lost(decision, report.get("pending"))
        if requests:
            yield "Remedies never end pods for their devices; `topo-scheduler topology -o wide` names the holders."
    for line in report["predictedEvents"]:
        if remainder := line.removeprefix(decision["message"]).strip():
            yield f"Also: {remainder}"
    yield from _warnings(report)


def _warnings(report: Json) -> Iterator[str]:
    for problem in (*report.get("deviceProblems", ()), *report.get("unreadObjects", ())):
        yield f"Warning: {problem}"


def _placeable(decision: Json) -> Iterator[str]:
    yield f"It would be placed now: on {decision['node']} ({decision['message']})."
    score = decision["score"]
    if score:
        parts = ", ".join(f"{name} {value:.3f}" for name, value in score.items() if name != "total")
        yield f"  score      {score['total']:.3f}: {parts}"
    yield f"  address    {decision['address']}, rank {decision['rank']}"
    for seat in decision["seats"][:16]:
        yield f"    rank {seat['rank']}  {seat['pod']}  {seat['node']}"
    yield "If it stays pending, read its last event, check that a scheduler of that name runs, and read its log."


def _lost(decision: Json, why: Json | None) -> Iterator[str]:
    rule = decision["sizeRule"] or (why["sizeRule"] if why is not None else None)
    where = ""
    if rule is not None:
        domain = "the cluster" if rule["within"] == "cluster" else f"one {rule['within']}"
        where = "one leaf" if rule["leaves"] == 1 else f"{rule['leaves']} leaves of {domain}"
        yield f"  fewest-leaves rule  at least {counted(rule['nodes'], 'node')}, within {where}"
    if why is None:
        for domain in decision["domains"]:
            yield f"  {domain['path'] or 'cluster':<24} {domain['reason']}"
        return
    yield from _domains(why, where)
    yield ""
    # A gang of less than half its size is a different job: the size that fits is shown, but not as a remedy.
    fitting_sizes = [
        remedy
        for remedy in why["remedies"]
        if remedy["kind"] == "reduce" and remedy["size"] < remedy["cost"]["membersGivenUp"]
    ]
    remedies = [remedy for remedy in why["remedies"] if remedy not in fitting_sizes]
    if remedies:
        yield "What would help, cheapest first (each was tried on a copy of the cluster):"
    else:
        yield "No remedy was found: no pods to end, nodes to bring back or demands to drop."
        reasons = decision.get("reasons", {})
        yield from (remedy for reason, remedy in _BEYOND_REMEDIES.items() if reason in reasons)
    for number, remedy in enumerate(remedies, 1):
        yield f"  {number}. {remedy['text']}"
    for remedy in fitting_sizes:
        yield f"{remedy['text']}."


def _domains(why: Json, where: str) -> Iterator[str]:
    """Yield the domains of each level with the most room, and why they can't take the pods; ``where`` they must be."""
    for level in dict.fromkeys(domain["level"] for domain in why["domains"]):
        domains = [domain for domain in why["domains"] if domain["level"] == level]
        domains.sort(key=lambda domain: (-domain["room"], -domain["freeGpus"]))
        for domain in domains[:MAX_DOMAINS]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(domain["reasons"].items()))
            # The room is on more leaves than the size rule allows, or for pods that may not share a node.
            limitation = f" but not within {where}" if where and domain["room"] >= domain["needed"] else ""
            room = min(domain["room"], domain["needed"])
            yield (
                f"  {domain['path']:<24} room for {room} of {counted(domain['needed'], 'pod')}{limitation},"
                f" {counted(domain['freeGpus'], 'GPU')} free on {counted(domain['nodes'], 'node')}: {reasons}"
            )
        if len(domains) > MAX_DOMAINS:
            yield f"  and {len(domains) - MAX_DOMAINS} more of level {level}, with less room"
