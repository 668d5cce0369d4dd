"""Checks placements against the rules from pods and nodes alone; no line of it is shared with the scheduler.

Everything is plain Python over JSON objects of the API, so that any list of nodes and pods can be checked: those of a
test, of a benchmark, or a dump of a cluster.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

Json = Mapping[str, Any]
Amounts = dict[str, int]

PREFIX = "topology.scheduler/"
LEVELS = tuple(PREFIX + level for level in ("fabric", "core", "spine", "leaf"))
MODELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_UNITS = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip


# ---------------------------------------------------------------- what objects say


def milli(quantity: str | int) -> int:
    """Return a quantity in thousandths, rounded up as Kubernetes rounds."""
    text = str(quantity)
    number = text.rstrip("numkMGTPiK")
    value = Decimal(number) * _UNITS[text[len(number) :]] * 1000
    return int(value.to_integral_value(rounding="ROUND_CEILING"))


def allocatable_of(node: Json) -> Amounts:
    """Return what a node has, in thousandths."""
    return {name: milli(value) for name, value in (node["status"].get("allocatable") or {}).items()}


def charged(pod: Json) -> Amounts:
    """Return what a pod holds of its node's allocatable, in thousandths: not what a claim gives it."""
    claim = pod.get("status", {}).get("extendedResourceClaimStatus") or {}
    given = {(entry["containerName"], entry["resourceName"]) for entry in claim.get("requestMappings") or ()}

    def asked(container: Json) -> Amounts:
        resources = container.get("resources") or {}
        both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        return {name: milli(value) for name, value in both.items() if (container.get("name"), name) not in given}

    spec = pod["spec"]
    total: Amounts = defaultdict(int)
    for container in spec["containers"]:
        _add(total, asked(container))
    peak: Amounts = {}
    sidecars: Amounts = defaultdict(int)
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            _add(sidecars, asked(container))
            now: Amounts = dict(sidecars)
        else:
            now = {**sidecars}
            _add(now, asked(container))
        peak = {name: max(peak.get(name, 0), now.get(name, 0)) for name in peak.keys() | now.keys()}
    _add(total, sidecars)
    held = {name: max(total.get(name, 0), peak.get(name, 0)) for name in total.keys() | peak.keys()}
    _add(held, {name: milli(value) for name, value in (spec.get("overhead") or {}).items()})
    held["pods"] = 1000
    extra = (pod["metadata"].get("annotations") or {}).get(PREFIX + "charged-gpus")
    if extra and not any(held.get(name) for name in GPUS):
        held[GPUS[0]] = int(extra) * 1000
    return held


def fits(has: Amounts, holders: Iterable[Amounts]) -> bool:
    """Return whether all holders together hold no more than there is."""
    return not _excess(has, holders)


def gpus_of(pod: Json) -> int:
    """Return a pod's GPUs."""
    held = charged(pod)
    return sum(held.get(name, 0) for name in GPUS) // 1000


def path_of(node: Json) -> tuple[str, ...]:
    """Return a node's place, outermost first: names repeat, paths do not."""
    labels = node["metadata"].get("labels") or {}
    return tuple(labels[level] for level in LEVELS if level in labels)


def model_of(node: Json) -> str:
    """Return a node's GPU model."""
    labels = node["metadata"].get("labels") or {}
    return next((labels[name] for name in MODELS if name in labels), "")


def megabits(text: str) -> int:
    """Return a bandwidth such as 200Gb or 400Gbps in Mbit/s."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzTGM/")
    scale = {"T": 1_000_000, "G": 1000, "M": 1}[text[len(number)]]
    return int(Decimal(number) * scale)


def usable(node: Json, pod: Json) -> bool:
    """Return whether a node is ready, schedulable, untainted and matches a pod's node selector."""
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or [])
    tainted = any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in spec.get("taints") or [])
    wanted = pod["spec"].get("nodeSelector") or {}
    return (
        ready and not tainted and not spec.get("unschedulable") and all(labels.get(k) == v for k, v in wanted.items())
    )


# ---------------------------------------------------------------- capacity


def verify_capacity(nodes: Sequence[Json], pods: Iterable[Json]) -> list[str]:
    """Return the nodes whose pods hold more than they have; finished pods hold nothing."""
    on_node: dict[str, list[Amounts]] = defaultdict(list)
    for pod in pods:
        where = pod["spec"].get("nodeName")
        if where and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            on_node[where].append(charged(pod))
    problems = []
    for node in nodes:
        name = node["metadata"]["name"]
        if over := _excess(allocatable_of(node), on_node[name]):
            problems.append(f"node {name} is over its {', '.join(over)}")
    return problems


# ---------------------------------------------------------------- gangs


def verify_gang(
    nodes: Sequence[Json],
    gang: Sequence[Json],
    others: Iterable[Json] = (),
    *,
    asked: Mapping[str, str] | None = None,
    max_nodes_per_leaf: int | None = None,
    max_gpus_per_leaf: int | None = None,
) -> list[str]:
    """Return which rules the placement of a gang breaks.

    Args:
        nodes: all nodes, as they were when the gang was placed.
        gang: all its pods, placed from nothing at one time and bound.
        others: the pods that held something at that time.
        asked: annotations of its workload, those on the pods aside.
        max_nodes_per_leaf: as configured.
        max_gpus_per_leaf: as configured.
    """
    if not gang:
        return ["the gang has no pods"]
    by_name = {node["metadata"]["name"]: node for node in nodes}
    wanted = {**(asked or {}), **(gang[0]["metadata"].get("annotations") or {})}
    unbound = [pod["metadata"]["name"] for pod in gang if not pod["spec"].get("nodeName")]
    if unbound:
        return [f"partially bound: {len(unbound)} of {len(gang)} have no node: {', '.join(sorted(unbound)[:4])}"]
    unknown = sorted({pod["spec"]["nodeName"] for pod in gang} - by_name.keys())
    if unknown:
        return [f"bound to nodes that do not exist: {', '.join(unknown)}"]
    used = [by_name[name] for name in sorted({pod["spec"]["nodeName"] for pod in gang})]
    problems = verify_capacity(used, [*others, *gang])
    problems += _verify_nodes(used, gang, wanted)
    problems += _verify_spread(nodes, used, gang, wanted, max_nodes_per_leaf, max_gpus_per_leaf)
    return problems


def _verify_nodes(used: Sequence[Json], gang: Sequence[Json], wanted: Mapping[str, str]) -> list[str]:
    problems = []
    least = wanted.get(PREFIX + "network-bandwidth")
    listed = [name.strip() for name in wanted.get(PREFIX + "gpu-model", "").split(",") if name.strip()]
    for node in used:
        name = node["metadata"]["name"]
        has = (node["metadata"].get("labels") or {}).get(PREFIX + "network-bandwidth")
        if least and has and megabits(has) < megabits(least):
            problems.append(f"node {name} has {has}, asked is {least}")
        if listed and model_of(node) not in listed:
            problems.append(f"node {name} has {model_of(node) or 'no'} GPUs, asked is {' or '.join(listed)}")
    models = {model_of(node) for node in used}
    if any(gpus_of(pod) for pod in gang) and len(models) > 1 and wanted.get(PREFIX + "gpu-model-mixed") != "true":
        problems.append(f"several GPU models: {', '.join(sorted(models))}")
    return problems


def _verify_spread(
    nodes: Sequence[Json],
    used: Sequence[Json],
    gang: Sequence[Json],
    wanted: Mapping[str, str],
    max_nodes: int | None,
    max_gpus: int | None,
) -> list[str]:
    """The size rule: as few leaves as could hold the gang if they were empty, under the lowest common domain."""
    asks = {tuple(sorted(charged(pod).items())) for pod in gang}
    if len(asks) > 1:
        return []  # members of different sizes: there is no closed form to compare with
    need, each = dict(asks.pop()), gpus_of(gang[0])
    fewest = _fewest_leaves(nodes, gang, need, each, wanted, max_nodes, max_gpus)
    leaves = {path_of(node) for node in used}
    problems = []
    per_leaf: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for node in used:
        per_leaf[path_of(node)].add(node["metadata"]["name"])
    for leaf, names in per_leaf.items():
        held = sum(1 for pod in gang if pod["spec"]["nodeName"] in names) * each
        if max_nodes and len(names) > max_nodes:
            problems.append(f"{len(names)} nodes in {'/'.join(leaf)}, allowed are {max_nodes}")
        if max_gpus and held > max_gpus:
            problems.append(f"{held} GPUs in {'/'.join(leaf)}, allowed are {max_gpus}")
    if fewest is None or wanted.get(PREFIX + "placement") == "preferred":
        return problems
    depth, count = fewest
    if len(leaves) > count:
        problems.append(f"{len(leaves)} leaves where {count} could hold it: {sorted('/'.join(p) for p in leaves)}")
    if len({leaf[:depth] for leaf in leaves}) > 1:
        problems.append(f"leaves without a common domain at depth {depth}: {sorted('/'.join(p) for p in leaves)}")
    return problems


def _fewest_leaves(
    nodes: Sequence[Json],
    gang: Sequence[Json],
    need: Amounts,
    each: int,
    wanted: Mapping[str, str],
    max_nodes: int | None,
    max_gpus: int | None,
) -> tuple[int, int] | None:
    """Return the depth of the domain and the number of leaves that suffice if all were empty, None if none do.

    A gang of one GPU model is judged by the model that needs least, as any that is allowed will do.
    """
    by_model: dict[str, list[Json]] = defaultdict(list)
    mixed = wanted.get(PREFIX + "gpu-model-mixed") == "true" or not each
    for node in nodes:
        if path_of(node) and usable(node, gang[0]) and not _verify_nodes([node], gang, wanted):
            by_model["" if mixed else model_of(node)].append(node)
    best: tuple[int, int] | None = None
    for group in by_model.values():
        fewest = _fewest_of(group, len(gang), need, each, max_nodes, max_gpus)
        if fewest is not None and (best is None or (-fewest[0], fewest[1]) < (-best[0], best[1])):
            best = fewest
    return best


def _fewest_of(
    nodes: Sequence[Json], members: int, need: Amounts, each: int, max_nodes: int | None, max_gpus: int | None
) -> tuple[int, int] | None:
    holds: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for node in nodes:
        has = allocatable_of(node)
        holds[path_of(node)].append(min((has.get(name, 0) // amount for name, amount in need.items() if amount)))
    leaves = {}
    for path, counts in holds.items():
        total = sum(sorted(counts, reverse=True)[:max_nodes])
        leaves[path] = min(total, max_gpus // each) if max_gpus and each else total
    deepest = max((len(path) for path in leaves), default=0)
    for depth in range(deepest - 1, -1, -1):
        domains: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for path, total in leaves.items():
            domains[path[:depth]].append(total)
        leaf_counts = [count for totals in domains.values() if (count := _count(totals, members))]
        if leaf_counts:
            return depth, min(leaf_counts)
    return None


def _count(totals: Sequence[int], members: int) -> int:
    """Return how many of the largest add up to the members, 0 when all together do not."""
    left = members
    for count, total in enumerate(sorted(totals, reverse=True), 1):
        left -= total
        if left <= 0:
            return count
    return 0


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _excess(has: Amounts, holders: Iterable[Amounts]) -> list[str]:
    total: Amounts = {}
    for held in holders:
        _add(total, held)
    return sorted(name for name, amount in total.items() if amount > has.get(name, 0))
