"""Random constraints of a pod on where it runs: node affinity, pod affinity, spread, tolerations, ports, features."""

import random
from collections.abc import Sequence

from .choices import (
    HOSTNAME,
    NAMESPACES,
    NODE_LABELS,
    POD_LABELS,
    REGION,
    TOPOLOGY_KEYS,
    UNSCHEDULABLE,
    ZONE,
    ZONES,
    Json,
    chance,
    label_requirement,
    label_selector,
    node_selector_term,
    some,
)

NAMESPACE_LABELS: dict[str, tuple[str, ...]] = {"team": ("a", "b"), "stage": ("production", "test", "")}


def node_selector(rng: random.Random, pod: Json, node_names: Sequence[str]) -> None:
    known = {**NODE_LABELS, ZONE: ZONES, HOSTNAME: tuple(node_names)}
    keys = rng.sample([*known, ZONE], rng.choice((0, 1, 1, 1, 2)))
    pod["spec"]["nodeSelector"] = {key: rng.choice(known[key]) for key in keys}


def node_affinity(rng: random.Random, pod: Json, node_names: Sequence[str]) -> None:
    affinity: Json = {}
    if chance(rng, 0.9):
        terms = [node_selector_term(rng, node_names) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
        if chance(rng, 0.02):
            terms = []
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if chance(rng, 0.2):
        preference = {"weight": rng.randint(1, 100), "preference": node_selector_term(rng, node_names)}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [preference]
    pod["spec"].setdefault("affinity", {})["nodeAffinity"] = affinity


def pod_affinity(rng: random.Random, pod: Json, field: str) -> None:
    """``field`` is podAffinity or podAntiAffinity."""
    affinity: Json = {}
    if chance(rng, 0.95):
        count = rng.choice((1, 1, 1, 2))
        terms = [_pod_affinity_term(rng, pod) for _ in range(count)]
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = terms
    if chance(rng, 0.1):
        preferred = {"weight": 1, "podAffinityTerm": _pod_affinity_term(rng, pod)}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [preferred]
    pod["spec"].setdefault("affinity", {})[field] = affinity


def _pod_affinity_term(rng: random.Random, pod: Json) -> Json:
    term: Json = {"topologyKey": rng.choice(TOPOLOGY_KEYS)}
    selector = label_selector(rng)
    own = pod["metadata"].get("labels", {})
    if own and chance(rng, 0.25):  # a pod that wants to be with its own kind
        key = rng.choice(list(own))
        selector = {"matchLabels": {key: own[key]}}
    if selector is not None:
        term["labelSelector"] = selector
    if chance(rng, 0.2):
        term["namespaces"] = some(rng, sorted(set(NAMESPACES)), 2)
    if chance(rng, 0.25):
        term["namespaceSelector"] = _namespace_selector(rng)
    for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        if chance(rng, 0.08):
            key = rng.choice(list(POD_LABELS))
            term[field] = [key]
            if selector is not None and key in own and chance(rng, 0.6):  # as the API server leaves it
                requirement = {"key": key, "operator": operator, "values": [own[key]]}
                selector.setdefault("matchExpressions", []).append(requirement)
    return term


def _namespace_selector(rng: random.Random) -> Json:
    kind = rng.random()
    if kind < 0.25:
        return {}
    if kind < 0.6:
        key = rng.choice(list(NAMESPACE_LABELS))
        return {"matchLabels": {key: rng.choice(NAMESPACE_LABELS[key])}}
    return {"matchExpressions": [label_requirement(rng, NAMESPACE_LABELS) for _ in range(rng.randint(1, 2))]}


def spread(rng: random.Random, pod: Json) -> None:
    constraints = [_constraint(rng, pod) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    pod["spec"]["topologySpreadConstraints"] = constraints


def _constraint(rng: random.Random, pod: Json) -> Json:
    own = pod["metadata"].get("labels", {})
    constraint: Json = {
        "maxSkew": rng.choice((1, 1, 1, 2, 3)),
        "topologyKey": rng.choice((ZONE, ZONE, ZONE, HOSTNAME, HOSTNAME, HOSTNAME, REGION, "rack", "nowhere")),
        "whenUnsatisfiable": "DoNotSchedule" if chance(rng, 0.85) else "ScheduleAnyway",
    }
    if constraint["topologyKey"] == "nowhere" and chance(rng, 0.6):
        constraint["topologyKey"] = ZONE
    selector = label_selector(rng)
    if "app" in own and chance(rng, 0.5):
        selector = {"matchLabels": {"app": own["app"]}}
    if selector is not None:
        constraint["labelSelector"] = selector
    if chance(rng, 0.25):
        constraint["minDomains"] = rng.randint(1, 4)
    if chance(rng, 0.35):
        constraint["nodeAffinityPolicy"] = rng.choice(("Honor", "Ignore"))
    if chance(rng, 0.35):
        constraint["nodeTaintsPolicy"] = rng.choice(("Honor", "Ignore"))
    if chance(rng, 0.2):
        constraint["matchLabelKeys"] = rng.sample(["tier", "hash", "absent"], rng.randint(1, 2))
        for key in constraint["matchLabelKeys"]:
            if selector and key in own and chance(rng, 0.4):  # as newer API servers leave it
                requirement = {"key": key, "operator": "In", "values": [own[key]]}
                selector.setdefault("matchExpressions", []).append(requirement)
    return constraint


def tolerations(rng: random.Random, pod: Json) -> None:
    pod["spec"]["tolerations"] = [_toleration(rng) for _ in range(rng.randint(1, 4))]


def _toleration(rng: random.Random) -> Json:
    kind = rng.random()
    if kind < 0.12:
        return {"operator": "Exists"}
    toleration: Json = {"key": rng.choice(("nvidia.com/gpu", "dedicated", "maintenance", "age", UNSCHEDULABLE))}
    if chance(rng, 0.03):
        toleration["key"] = ""
    operator = rng.choice(("Exists", "Exists", "Equal", "", None, "Gt", "Lt", "Near"))
    if operator is not None:
        toleration["operator"] = operator
    if operator in ("Gt", "Lt"):
        toleration.update({"key": "age", "value": rng.choice(("3", "7", "x"))})
    elif operator != "Exists" or chance(rng, 0.1):
        toleration["value"] = rng.choice(("present", "team-a", "team-b", "5", ""))
    if chance(rng, 0.5):
        toleration["effect"] = rng.choice(("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule"))
    if chance(rng, 0.1):
        toleration["tolerationSeconds"] = 300
    return toleration


def ports(rng: random.Random, pod: Json) -> None:
    init = pod["spec"].get("initContainers", [])
    container = rng.choice(init) if init and chance(rng, 0.4) else rng.choice(pod["spec"]["containers"])
    container["ports"] = [_port(rng) for _ in range(rng.choice((1, 2, 3)))]


def _port(rng: random.Random) -> Json:
    port: Json = {"containerPort": 80, "hostPort": rng.choice((80, 80, 80, 443, 0))}
    if chance(rng, 0.4):
        port["hostIP"] = rng.choice(("0.0.0.0", "10.0.0.1", "10.0.0.2", "::", "127.0.0.1", ""))
    if chance(rng, 0.5):
        port["protocol"] = rng.choice(("TCP", "UDP", "SCTP"))
    return port


def features(rng: random.Random, pod: Json) -> None:
    """What only nodes that declare it can run."""
    spec = pod["spec"]
    if chance(rng, 0.6):
        action = rng.choice(("RestartAllContainers", "RestartAllContainers", "Restart"))
        rule = {"action": action, "exitCodes": {"operator": "In", "values": [42]}}
        rng.choice([*spec["containers"], *spec.get("initContainers", [])])["restartPolicyRules"] = [rule]
    else:
        spec["hostNetwork"] = chance(rng, 0.9)
        if chance(rng, 0.9):
            spec["hostUsers"] = chance(rng, 0.2)
