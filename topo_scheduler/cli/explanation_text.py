"""An explanation in words."""

from collections.abc import Iterator
from typing import Any, Final

Json = dict[str, Any]

MOST_DOMAINS: Final = 12
"""Domains of a level that are shown, those with most room first."""


def lines(told: Json) -> Iterator[str]:
    """Yield the lines of an explanation."""
    pod = f"{told['namespace']}/{told['pod']}"
    match told["state"]:
        case "bound" | "finished":
            yield from _bound(pod, told)
        case "gated":
            yield f"Pod {pod} has scheduling gates: no scheduler looks at it before they are removed."
        case "deleted":
            yield f"Pod {pod} is being deleted and was never bound."
        case _:
            yield from _pending(pod, told)
    if told["events"]:
        yield ""
        yield "Events:"
        for event in told["events"]:
            yield f"  {event['type']:<8} {event['reason']:<20} {event['message']}"


def _bound(pod: str, told: Json) -> Iterator[str]:
    yield f"Pod {pod} {'ran' if told['state'] == 'finished' else 'is'} on node {told.get('node') or '(none)'}."
    if not told.get("byUs"):
        if told.get("node"):
            yield "It was bound by somebody else: it carries nothing that this scheduler writes."
        return
    yield f"  address    {told['address']}"
    if told["score"] is not None:
        yield f"  score      {told['score']} of 1"
    for warning in told["warnings"]:
        yield f"  warning    {warning}"
    if told["spannedLevel"] is not None and not told["warnings"]:
        yield f"  its gang   within one {told['spannedLevel']}, {told['hops']} hops between two members on average"
    yield f"  rank       {told['rank']}"
    if told["bandwidthMbit"]:
        yield f"  bandwidth  {told['bandwidthMbit'] / 1000:g}Gb reserved on each node of its gang"
    if told["chargedGpus"]:
        yield f"  GPUs       {told['chargedGpus']}, reserved by annotation alone: its node gives it no device"
    if told["gpuIndex"]:
        share = f", of which it holds {told['gpuFraction']}" if told["gpuFraction"] else ""
        yield f"  GPU index  {', '.join(map(str, told['gpuIndex']))}{share}"
    if gang := told.get("gang"):
        yield ""
        yield f"Gang of {_count(len(gang['members']), 'pod')} ({gang['id']}):"
        for member in gang["members"]:
            yield f"  rank {member['rank']}  {member['pod']}  {member['address'] or member['node'] or 'no node'}"


def _pending(pod: str, told: Json) -> Iterator[str]:
    workload, decision = told["workload"], told["decision"]
    yield f"Pod {pod} has no node."
    if workload is not None:
        what = f"gang of {workload['size']}" if workload["gang"] else "placed for itself"
        yield (
            f"  workload   {workload['name']} ({workload['madeBy']}), {what},"
            f" {_count(workload['pods'], 'pod')} known, {_count(workload['gpusPerPod'], 'GPU')} each"
        )
    if decision is None:
        yield ""
        yield from told["wouldTell"] or ["Nothing would be decided about it now."]
        return
    yield ""
    if decision["verdict"] == "placed":
        yield from _placeable(decision)
    else:
        yield decision["message"]
        yield from _lost(decision, told.get("why"))
    for line in told["wouldTell"]:
        if more := line.removeprefix(decision["message"]).strip():
            yield f"Also: {more}"
    for problem in told.get("leftOut", ()):
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
    yield "If it stays pending, look whether a scheduler of that name runs, and at its log."


def _lost(decision: Json, why: Json | None) -> Iterator[str]:
    rule = decision["sizeRule"] or (why["sizeRule"] if why is not None else None)
    where = ""
    if rule is not None:
        domain = "the cluster" if rule["within"] == "cluster" else f"one {rule['within']}"
        where = "one leaf" if rule["leaves"] == 1 else f"{rule['leaves']} leaves of {domain}"
        yield f"  size rule  at least {_count(rule['nodes'], 'node')}, within {where}"
    if why is None:
        for domain in decision["domains"]:
            yield f"  {domain['path'] or 'cluster':<24} {domain['reason']}"
        return
    yield from _domains(why, where)
    yield ""
    # A gang of which less than half is left is another job: how many fit is told, and not as a remedy.
    fit = [way for way in why["waysOut"] if way["kind"] == "reduce" and way["size"] < way["cost"]["membersGivenUp"]]
    remedies = [way for way in why["waysOut"] if way not in fit]
    if remedies:
        yield "What would help, cheapest first (each was tried on a copy of the cluster):"
    else:
        yield "Nothing was found that would help: no pods to end, nodes to bring back or demands to drop."
    for number, way in enumerate(remedies, 1):
        yield f"  {number}. {way['say']}"
    for way in fit:
        yield f"{way['say']}."


def _domains(why: Json, where: str) -> Iterator[str]:
    """The domains of each level that come closest, and what keeps the pods from them; ``where`` they must be."""
    for level in dict.fromkeys(domain["level"] for domain in why["domains"]):
        here = [domain for domain in why["domains"] if domain["level"] == level]
        here.sort(key=lambda domain: (-domain["room"], -domain["freeGpus"]))
        for domain in here[:MOST_DOMAINS]:
            taken = ", ".join(f"{count} {reason}" for reason, count in sorted(domain["reasons"].items()))
            # Of more leaves than the size rule allows, or of pods that may not be together.
            but = f" but not within {where}" if where and domain["room"] >= domain["needed"] else ""
            yield (
                f"  {domain['path']:<24} room for {domain['room']} of {_count(domain['needed'], 'pod')}{but},"
                f" {_count(domain['freeGpus'], 'GPU')} free on {_count(domain['nodes'], 'node')}: {taken}"
            )
        if len(here) > MOST_DOMAINS:
            yield f"  and {len(here) - MOST_DOMAINS} more of level {level}, with less room"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
