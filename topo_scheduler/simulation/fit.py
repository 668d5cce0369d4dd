"""The admission check of the simulated kubelet: whether a node has the resources that a bound pod requests.

It implements independently of the scheduler what a real kubelet checks, so it detects wrong placements.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from topo_scheduler.api.quantity import parse_quantity

from .apiserver.objects import Json, meta, spec, status

Amounts = dict[str, int]
Refusal = tuple[str, str]
"""Reason and message of a rejection."""

_CHECKED_FIRST: Final = ("pods", "cpu", "memory", "ephemeral-storage")
"""Resources that are checked first; the first one that is short is named in the message."""


def amounts(stated: Mapping[str, str | int] | None) -> Amounts:
    """Return quantities as integers: CPU in thousandths, all others in whole units."""
    return {name: parse_quantity(value, 1000 if name == "cpu" else 1) for name, value in (stated or {}).items()}


def add(total: Amounts, more: Amounts, sign: int = 1) -> None:
    """Add ``more`` to ``total`` in place; ``sign`` -1 subtracts it."""
    for name, amount in more.items():
        total[name] = total.get(name, 0) + sign * amount


def requests_of(pod: Json) -> Amounts:
    """Return the total requests of a pod, including ``pods: 1``.

    Init containers run one after the other before the others start; sidecars keep running. Pod-level requests
    replace the sums over containers. What a claim for extended resources gives is not taken from the node's
    ``allocatable``.
    """
    pod_spec = spec(pod)
    mapped = _mapped(pod)
    running: Amounts = {}
    peak: Amounts = {}
    for container in pod_spec.get("initContainers") or ():
        requests = _requests(container, mapped)
        if container.get("restartPolicy") == "Always":
            add(running, requests)
            requests = {}
        for name in {*requests, *running}:
            peak[name] = max(peak.get(name, 0), requests.get(name, 0) + running.get(name, 0))
    for container in pod_spec.get("containers") or ():
        add(running, _requests(container, mapped))
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in {*running, *peak}}
    total |= _requests(pod_spec)
    add(total, amounts(pod_spec.get("overhead")))
    return {**total, "pods": 1}


def _mapped(pod: Json) -> set[tuple[str, str]]:
    """Return the containers and resources that the claim for a pod's extended resources serves."""
    claim = status(pod).get("extendedResourceClaimStatus") or {}
    return {(entry["containerName"], entry["resourceName"]) for entry in claim.get("requestMappings") or ()}


def _requests(container: Json, mapped: Set[tuple[str, str]] = frozenset()) -> Amounts:
    requests = (container.get("resources") or {}).get("requests") or {}
    return amounts({name: value for name, value in requests.items() if (container.get("name"), name) not in mapped})


def refusal(pod: Json, node: Json, used: Amounts) -> Refusal | None:
    """Return why a node rejects a pod that was bound to it, given the amounts in use; None if it admits the pod."""
    if not _belongs(spec(pod), node):
        return "NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed"
    allocatable = amounts(status(node).get("allocatable"))
    requests = requests_of(pod)
    for name in (*_CHECKED_FIRST, *sorted(requests.keys() - set(_CHECKED_FIRST))):
        requested, in_use, capacity = requests.get(name, 0), used.get(name, 0), allocatable.get(name, 0)
        if requested and in_use + requested > capacity:
            shortage = f"{name}, requested: {requested}, used: {in_use}, capacity: {capacity}"
            return f"OutOf{name}", f"Pod was rejected: Node didn't have enough resource: {shortage}"
    return None


def _belongs(pod_spec: Json, node: Json) -> bool:
    """Whether a pod's node selector and required node affinity match a node."""
    labels = meta(node).get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod_spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    fields = {"metadata.name": meta(node)["name"]}
    return any(_matches(term, labels, fields) for term in required["nodeSelectorTerms"])


def _matches(term: Json, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    expressions, field_expressions = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not field_expressions:
        return False
    return all(_holds(expression, labels) for expression in expressions) and all(
        _holds(expression, fields) for expression in field_expressions
    )


def _holds(expression: Json, values: Mapping[str, str]) -> bool:
    value, operands = values.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in operands
        case "NotIn":
            return value not in operands
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    try:  # Gt or Lt compare integers
        number, bound = int(value or ""), int(operands[0])
    except ValueError:
        return False
    return number > bound if expression["operator"] == "Gt" else number < bound
