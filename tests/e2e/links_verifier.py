"""Checks from pods, Jobs and nodes alone that no link is promised more than it carries; no line is the scheduler's.

A gang that asks for B on each node takes B × min(its nodes below a link, its nodes elsewhere) of that link; links are
the networks of nodes and the uplinks of domains.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from .verifier import LEVELS, PREFIX, Json, megabits, path_of

Link = tuple[str, ...]
"""The path of a domain, or of a domain and a node in it."""
ASKED = PREFIX + "network-bandwidth"


def verify_links(
    nodes: Sequence[Json], pods: Iterable[Json], owners: Mapping[str, Json], links: Sequence[Json] = ()
) -> list[str]:
    """Return which links carry less than gangs were promised of them.

    Args:
        nodes: all nodes.
        pods: all pods; those that ended send nothing.
        owners: Jobs and other owners of pods, by uid.
        links: ``spec.links`` of the configuration; where an entry has no capacity, networks below are added up.
    """
    by_name = {node["metadata"]["name"]: node for node in nodes}
    capacity = _capacities(nodes, links)
    promised: Counter[Link] = Counter()
    for members in _gangs(pods).values():
        largest = max((asked(pod, owners) for pod in members), default=0)
        used = [by_name[name] for name in sorted({pod["spec"]["nodeName"] for pod in members}) if name in by_name]
        promised.update({link: largest * amount for link, amount in _loads(used).items()})
    return [
        f"link of {'/'.join(link)} carries {capacity[link]} Mbit/s, {amount} were promised"
        for link, amount in sorted(promised.items())
        if link in capacity and amount > capacity[link]
    ]


def _gangs(pods: Iterable[Json]) -> dict[tuple[str, str], list[Json]]:
    gangs: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for pod in pods:
        gang = (pod["metadata"].get("annotations") or {}).get(PREFIX + "gang-id")
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if gang and pod["spec"].get("nodeName") and not ended:
            gangs[pod["metadata"]["namespace"], gang].append(pod)
    return gangs


def asked(pod: Json, owners: Mapping[str, Json]) -> int:
    """Return the Mbit/s that a pod asks for, by its own annotation or that of its owner."""
    owner = next((o for o in pod["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
    above = owners.get(owner["uid"], {}) if owner else {}
    annotations = {**(above.get("metadata", {}).get("annotations") or {}), **(pod["metadata"].get("annotations") or {})}
    return megabits(annotations[ASKED]) if ASKED in annotations else 0


def _link_of(node: Json) -> Link:
    return (*path_of(node), node["metadata"]["name"])


def _loads(used: Sequence[Json]) -> dict[Link, int]:
    """Return how often a gang's bandwidth goes over each link, of nodes and of domains below the fabric."""
    below: Counter[Link] = Counter()
    for node in used:
        link = _link_of(node)
        below.update(link[:depth] for depth in range(1, len(link) + 1))
    return {link: min(count, len(used) - count) for link, count in below.items()}


def _capacities(nodes: Sequence[Json], links: Sequence[Json]) -> dict[Link, int]:
    """Return what is known of links, in Mbit/s."""
    capacities: dict[Link, int] = {}
    by_level = {entry["level"]: entry for entry in links if entry.get("level")}
    by_domain = {entry["domain"]: entry for entry in links if entry.get("domain")}
    below: dict[Link, list[Json]] = defaultdict(list)
    level_of: dict[Link, str] = {}
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        link, present = _link_of(node), [level for level in LEVELS if level in labels]
        if ASKED in labels and _readable(labels[ASKED]):
            capacities[link] = megabits(labels[ASKED])
        elif "node" in by_level:
            capacities[link] = _divided(by_level["node"], 0)
        for depth in range(1, len(link)):
            below[link[:depth]].append(node)
            level_of[link[:depth]] = present[depth - 1].removeprefix(PREFIX)
    for domain, inside in below.items():
        networks = [capacities.get(_link_of(node)) for node in inside]
        total = sum(filter(None, networks)) if all(networks) else None
        label = f"{PREFIX}{level_of[domain]}-uplink-bandwidth"
        uplinks = [
            node["metadata"]["labels"][label] for node in inside if label in (node["metadata"].get("labels") or {})
        ]
        readable = [megabits(text) for text in uplinks if _readable(text)]
        entry = by_domain.get("/".join(domain)) or (None if readable else by_level.get(level_of[domain]))
        if entry is not None and (entry.get("capacity") or total is not None):
            capacities[domain] = _divided(entry, total or 0)
        elif readable:
            capacities[domain] = min(readable)
    return capacities


def _readable(text: str) -> bool:
    try:
        return megabits(text) > 0
    except (ArithmeticError, KeyError, IndexError):
        return False


def _divided(entry: Json, networks: int) -> int:
    whole = megabits(entry["capacity"]) if entry.get("capacity") else networks
    return int(Fraction(whole) / Fraction(str(entry.get("oversubscription") or 1)))
