"""Small random choices the generators share, and the few names everything collides on."""

import random
from collections.abc import Sequence
from typing import Any, TypeVar

Json = dict[str, Any]
T = TypeVar("T")

ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
BETA_REGION = "failure-domain.beta.kubernetes.io/region"
HOSTNAME = "kubernetes.io/hostname"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

ZONES = ("here-west-a", "here-west-b", "here-west-c")
REGIONS = ("region-1", "region-2")
TOPOLOGY_KEYS = (*(ZONE,) * 6, *(HOSTNAME,) * 4, REGION, REGION, "rack", "nowhere")
NAMESPACES = ("default", "default", "team-a", "team-b", "ghost")
"""``ghost`` is never an object: pods can be read before their namespace."""

POD_LABELS: dict[str, tuple[str, ...]] = {
    "app": ("web", "database", "cache"),
    "tier": ("front", "back", ""),
    "hash": ("1", "2"),
}
NODE_LABELS: dict[str, tuple[str, ...]] = {
    "disk": ("ssd", "hdd", ""),
    "accelerator": ("a100", "h100"),
    "generation": ("1", "2", "3", "007", "-4", "new"),
    "rack": ("r1", "r2", "r3", ""),
}


def chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


def some(rng: random.Random, values: Sequence[T], limit: int) -> list[T]:
    """Between none and ``limit`` different values."""
    return rng.sample(values, min(rng.randint(0, limit), len(values)))


def labels(rng: random.Random, known: dict[str, tuple[str, ...]], probability: float) -> dict[str, str]:
    return {key: rng.choice(values) for key, values in known.items() if chance(rng, probability)}


def label_selector(rng: random.Random, known: dict[str, tuple[str, ...]] = POD_LABELS) -> Json | None:
    """A label selector: mostly one that matches some, seldom empty, absent or broken."""
    kind = rng.random()
    if kind < 0.04:
        return None
    if kind < 0.09:
        return {}
    selector: Json = {}
    key = rng.choice(list(known))
    if kind < 0.6:
        selector["matchLabels"] = {key: rng.choice(known[key])}
    if kind > 0.5:
        selector["matchExpressions"] = [label_requirement(rng, known) for _ in range(rng.randint(1, 2))]
    return selector


def label_requirement(rng: random.Random, known: dict[str, tuple[str, ...]]) -> Json:
    key = rng.choice([*known, "absent"]) if chance(rng, 0.9) else rng.choice(list(known))
    operator = rng.choice(("In", "In", "NotIn", "Exists", "DoesNotExist"))
    if chance(rng, 0.01):
        return {"key": key, "operator": rng.choice(("Within", "In"))}  # an unknown operator, or no values
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    values = known.get(key, ("x",))
    return {"key": key, "operator": operator, "values": rng.sample(values, rng.randint(1, min(2, len(values))))}


def node_selector_term(rng: random.Random, node_names: Sequence[str]) -> Json:
    """A term of a node affinity, of a pod's or of a volume's."""
    known = {**NODE_LABELS, ZONE: ZONES, REGION: REGIONS, HOSTNAME: tuple(node_names)}
    kind = rng.random()
    if kind < 0.03:
        return {}
    term: Json = {}
    if kind < 0.82:
        term["matchExpressions"] = [_node_requirement(rng, known) for _ in range(rng.choice((1, 1, 2)))]
    if kind > 0.75:
        operator = rng.choice(("In", "In", "NotIn"))
        count = 1 if chance(rng, 0.9) else rng.choice((0, 2))
        field = "metadata.name" if chance(rng, 0.95) else "metadata.namespace"
        requirement = {"key": field, "operator": operator, "values": rng.sample(list(node_names), count)}
        term["matchFields"] = [requirement]
        if chance(rng, 0.15):
            term["matchFields"].append({**requirement, "values": [rng.choice(node_names)]})
    return term


def _node_requirement(rng: random.Random, known: dict[str, tuple[str, ...]]) -> Json:
    operator = rng.choice(("In", "In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    if operator in ("Gt", "Lt"):
        value = rng.choice(("1", "2", "0", "-5", "x", "+2")) if chance(rng, 0.9) else ""
        values = [value] if chance(rng, 0.97) else ["1", "2"]
        return {"key": "generation", "operator": operator, "values": values}
    key = rng.choice([*known, "absent"])
    if operator in ("Exists", "DoesNotExist"):
        values = [] if chance(rng, 0.98) else ["x"]
        return {"key": key, "operator": operator, **({"values": values} if values else {})}
    choices = known.get(key, ("x", "y"))
    count = rng.randint(1, min(3, len(choices))) if chance(rng, 0.98) else 0
    return {"key": key, "operator": operator, "values": rng.sample(choices, count)}
