"""What a pod asks of a node, and whether the node can give it: the kubelet's own check, not the scheduler's.

It repeats in plain Python what a real kubelet does on admission, so that it can catch a scheduler that errs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topo_scheduler.api.quantity import parse_quantity

from .apiserver.objects import Json, meta, spec, status

Amounts = dict[str, int]
Refusal = tuple[str, str]
"""The reason and the message of a pod that was turned away."""

_FIRST: Final = ("pods", "cpu", "memory", "ephemeral-storage")
"""What is compared first, and so named first when several are lacking."""


def amounts(stated: Mapping[str, str | int] | None) -> Amounts:
    """Quantities as integers: cpu in thousandths, everything else in whole units."""
    return {name: parse_quantity(value, 1000 if name == "cpu" else 1) for name, value in (stated or {}).items()}


def add(total: Amounts, more: Amounts, sign: int = 1) -> None:
    """Add ``more`` to ``total`` in place, or take it away."""
    for name, amount in more.items():
        total[name] = total.get(name, 0) + sign * amount


def requests_of(pod: Json) -> Amounts:
    """What a pod asks for in all, itself as one pod included.

    Init containers run one after the other before the others start, except for sidecars, which stay. Requests of the
    pod as a whole replace the sums of its containers.
    """
    body = spec(pod)
    running: Amounts = {}
    peak: Amounts = {}
    for container in body.get("initContainers") or ():
        asked = _requests(container)
        if container.get("restartPolicy") == "Always":
            add(running, asked)
            asked = {}
        for name in {*asked, *running}:
            peak[name] = max(peak.get(name, 0), asked.get(name, 0) + running.get(name, 0))
    for container in body.get("containers") or ():
        add(running, _requests(container))
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in {*running, *peak}}
    total |= _requests(body)
    add(total, amounts(body.get("overhead")))
    return {**total, "pods": 1}


def _requests(part: Json) -> Amounts:
    return amounts((part.get("resources") or {}).get("requests"))


def refusal(pod: Json, node: Json, used: Amounts) -> Refusal | None:
    """Why a node turns away a pod that was bound to it, given what is in use there; None if it takes it."""
    if not _belongs(spec(pod), node):
        return "NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed"
    there = amounts(status(node).get("allocatable"))
    asked = requests_of(pod)
    for name in (*_FIRST, *sorted(asked.keys() - set(_FIRST))):
        wanted, taken, capacity = asked.get(name, 0), used.get(name, 0), there.get(name, 0)
        if wanted and taken + wanted > capacity:
            lacking = f"{name}, requested: {wanted}, used: {taken}, capacity: {capacity}"
            return f"OutOf{name}", f"Pod was rejected: Node didn't have enough resource: {lacking}"
    return None


def _belongs(body: Json, node: Json) -> bool:
    """Whether the pod's node selector and required node affinity allow the node."""
    labels = meta(node).get("labels") or {}
    if any(labels.get(key) != value for key, value in (body.get("nodeSelector") or {}).items()):
        return False
    affinity = (body.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    fields = {"metadata.name": meta(node)["name"]}
    return any(_matches(term, labels, fields) for term in required["nodeSelectorTerms"])


def _matches(term: Json, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    expressions, of_fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not of_fields:
        return False
    return all(_holds(e, labels) for e in expressions) and all(_holds(e, fields) for e in of_fields)


def _holds(expression: Json, values: Mapping[str, str]) -> bool:
    value, given = values.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in given
        case "NotIn":
            return value not in given
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    try:  # Gt or Lt, of integers
        number, bound = int(value or ""), int(given[0])
    except ValueError:
        return False
    return number > bound if expression["operator"] == "Gt" else number < bound
