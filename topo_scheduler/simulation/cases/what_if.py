"""What if: a cluster with another leaf, or without one, and a workload with one more job.

``add-leaf:4x8`` adds a leaf of 4 nodes with 8 GPUs each, below the spine with the fewest leaves;
``add-leaf:4x8@spine-2`` below that one. ``drain:spine-1/leaf-3`` cordons the nodes of a domain, and what runs there
goes. Any path adds what its manifests hold to the workload.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec import structs

from topo_scheduler.api.labels import GPU_RESOURCES, network_families
from topo_scheduler.api.objects import Node, ObjectMeta
from topo_scheduler.api.process import FabricSettings
from topo_scheduler.simulation.cases.documents import SUFFIXES, read_documents, read_folder
from topo_scheduler.simulation.cases.making import HOSTNAME
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.options import names
from topo_scheduler.simulation.cases.tables import quoted
from topo_scheduler.simulation.cases.transforms import merged

_ADD: Final = re.compile(r"add-leaf:(\d{1,5})x(\d{1,2})(?:@(.+))?")
_LEVELS: Final = ("fabric", "core", "spine", "leaf")


def changes_of(text: str) -> tuple[str, ...]:
    """Return the changes of a list with commas.

    Raises:
        CaseError: it has an empty part.
    """
    if Path(text).suffix in SUFFIXES and Path(text).is_file():
        return (text,)  # a comma may be part of its name
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise CaseError(f"--what-if: {quoted(text)} has an empty change; write such as add-leaf:4x8,drain:leaf-3")
    return found


def what_if(change: str, cluster: ClusterCase, workload: WorkloadCase) -> tuple[ClusterCase, WorkloadCase]:
    """Return cluster and workload as they would be after a change.

    Raises:
        CaseError: it is none, or names what is not there.
    """
    if match := _ADD.fullmatch(change):
        return add_leaf(cluster, int(match[1]), int(match[2]), match[3] or ""), workload
    if change.startswith("drain:") and len(change) > len("drain:"):
        return drain(cluster, change.removeprefix("drain:")), workload
    path = Path(change)
    if path.suffix in SUFFIXES or path.exists():
        from topo_scheduler.simulation.cases.manifests import read_manifests  # takes long, and is rarely needed

        documents = read_folder(path) if path.is_dir() else read_documents(path)
        added = read_manifests(path.stem, documents, cluster.priority_classes)
        if not added.arrivals:
            raise CaseError(f"{path}: it holds no pods and nothing that makes some; name a file with a Job or a Pod")
        return cluster, merged(workload.name, [workload, added])
    raise CaseError(
        f"{quoted(change)} is no change; write add-leaf:4x8 (nodes x GPUs), drain:spine-1/leaf-3, or a file with a job"
    )


# ---------------------------------------------------------------- places


def place_of(node: Node) -> tuple[tuple[str, str], ...]:
    """Return the label and the value of each level of a node's place in the network, the outermost first."""
    labels = node.metadata.labels
    for family in network_families(FabricSettings().families):
        if family.applies(labels):
            keys = (family.keys[level] for level in _LEVELS if level in family.keys)
            return tuple((key, labels[key]) for key in keys if key in labels)
    return ()


def _path(node: Node) -> tuple[str, ...]:
    return tuple(value for _, value in place_of(node))


def add_leaf(cluster: ClusterCase, nodes: int, gpus: int, parent: str = "") -> ClusterCase:
    """Return the cluster with one more leaf, of nodes like those there are but for their GPUs.

    Args:
        cluster: which.
        nodes: how many the leaf has.
        gpus: of each.
        parent: the domain that it hangs below, by its path or its end; that with the fewest leaves by default.

    Raises:
        CaseError: no node tells its place, or there is no such domain, or more than one.
    """
    placed = [node for node in cluster.nodes if place_of(node)]
    if not nodes or not gpus or not placed:
        what = (
            "a leaf needs nodes with GPUs; write such as add-leaf:4x8"
            if placed
            else "no node tells its place in the network by labels; see how nodes are labelled"
        )
        raise CaseError(f"add-leaf:{nodes}x{gpus}: {what}")
    below = _parent(f"add-leaf:{nodes}x{gpus}", placed, parent)
    model = next(node for node in placed if _path(node)[:-1] == below)
    leaf = _unused("leaf-added", {value for node in placed for value in _path(node)})
    key = place_of(model)[-1][0]
    taken = {node.metadata.name for node in cluster.nodes}
    found = []
    for number in range(1, nodes + 1):
        name = _unused(f"{leaf}-node-{number}", taken)
        found.append(_like(model, name, {key: leaf, HOSTNAME: name}, gpus))
    return replace(cluster, nodes=(*cluster.nodes, *found))


def _parent(change: str, nodes: Sequence[Node], told: str) -> tuple[str, ...]:
    leaves: dict[tuple[str, ...], set[str]] = {}
    for node in nodes:
        path = _path(node)
        leaves.setdefault(path[:-1], set()).add(path[-1])
    if not told:
        return min(leaves, key=lambda path: (len(leaves[path]), path))
    wanted = tuple(told.strip("/").split("/"))
    matching = [path for path in leaves if path[len(path) - len(wanted) :] == wanted]
    if len(matching) != 1:
        there = names(["/".join(path) for path in sorted(matching or leaves)])
        raise CaseError(f"{change}@{told}: {len(matching)} domains are called so; there are {there}")
    return matching[0]


def _unused(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


def _like(model: Node, name: str, labels: dict[str, str], gpus: int) -> Node:
    resource = next((one for one in GPU_RESOURCES if model.status.allocatable.get(one)), GPU_RESOURCES[0])
    has = {**model.status.allocatable, resource: str(gpus)}
    told = {**model.metadata.labels, **labels}
    metadata = ObjectMeta(name=name, uid=f"node/{name}", resource_version="1", labels=told)
    return structs.replace(
        model,
        metadata=metadata,
        spec=structs.replace(model.spec, unschedulable=False),
        status=structs.replace(model.status, allocatable=has, capacity=dict(has)),
    )


def drain(cluster: ClusterCase, domain: str) -> ClusterCase:
    """Return the cluster with the nodes of a domain cordoned and empty.

    Args:
        cluster: which.
        domain: the path of a domain or the end of it, ``spine-1/leaf-3``, or the name of a node.

    Raises:
        CaseError: there is none, or more than one.
    """
    wanted = tuple(domain.strip("/").split("/"))
    paths = {node.metadata.name: (*_path(node), node.metadata.name) for node in cluster.nodes}
    inside: dict[tuple[str, ...], list[str]] = {}
    for name, path in paths.items():
        for depth in range(1, len(path) + 1):
            if path[max(0, depth - len(wanted)) : depth] == wanted:
                inside.setdefault(path[:depth], []).append(name)
    if len(inside) != 1:
        known = sorted({"/".join(path[:-1]) for path in paths.values() if path[:-1]})
        there = names(["/".join(path) for path in sorted(inside)] or known or sorted(paths))
        count = "no domain is" if not inside else f"{len(inside)} domains are"
        raise CaseError(f"drain:{domain}: {count} called so; write the whole path of one of {there}")
    ((_, drained),) = inside.items()
    gone = set(drained)
    nodes = tuple(
        structs.replace(node, spec=structs.replace(node.spec, unschedulable=True))
        if node.metadata.name in gone
        else node
        for node in cluster.nodes
    )
    return replace(cluster, nodes=nodes, pods=tuple(pod for pod in cluster.pods if pod.spec.node_name not in gone))
