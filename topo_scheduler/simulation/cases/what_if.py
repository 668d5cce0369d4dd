"""Apply what-if changes: add a leaf to a cluster, drain a domain, or add jobs to a workload.

``add-leaf:4x8`` adds a leaf of 4 nodes with 8 GPUs each, below the spine with the fewest leaves;
``add-leaf:4x8@spine-2`` adds it below spine-2. ``drain:spine-1/leaf-3`` cordons the nodes of a domain and removes their
pods. A path adds the workloads of its manifests.
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
from topo_scheduler.api.text import few_of
from topo_scheduler.simulation.cases.documents import SUFFIXES, read_documents, read_folder
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.object_factory import HOSTNAME, LEVELS
from topo_scheduler.simulation.cases.tables import quoted
from topo_scheduler.simulation.cases.transforms import merge_workloads

_ADD: Final = re.compile(r"add-leaf:(\d{1,5})x(\d{1,2})(?:@(.+))?")


def changes_of(text: str) -> tuple[str, ...]:
    """Return the changes of a comma-separated list.

    Raises:
        CaseError: a change is empty.
    """
    if Path(text).suffix in SUFFIXES and Path(text).is_file():
        return (text,)  # the file name may contain a comma
    changes = tuple(part.strip() for part in text.split(","))
    if not all(changes):
        raise CaseError(f"--what-if: {quoted(text)} has an empty change; write such as add-leaf:4x8,drain:leaf-3")
    return changes


def what_if(change: str, cluster: ClusterCase, workload: WorkloadCase) -> tuple[ClusterCase, WorkloadCase]:
    """Return cluster and workload as they would be after a change.

    Raises:
        CaseError: the change is invalid, or the domain or file that it names does not exist.
    """
    if match := _ADD.fullmatch(change):
        return add_leaf(cluster, int(match[1]), int(match[2]), match[3] or ""), workload
    if change.startswith("drain:") and len(change) > len("drain:"):
        return drain(cluster, change.removeprefix("drain:")), workload
    path = Path(change)
    if path.suffix in SUFFIXES or path.exists():
        from topo_scheduler.simulation.cases.manifests import read_manifests  # slow to import, and rarely needed

        documents = read_folder(path) if path.is_dir() else read_documents(path)
        added = read_manifests(path.stem, documents, cluster.priority_classes)
        if not added.arrivals:
            raise CaseError(f"{path}: it holds no pods and nothing that makes some; name a file with a Job or a Pod")
        return cluster, merge_workloads(workload.name, [workload, added])
    raise CaseError(
        f"{quoted(change)} is no change; write add-leaf:4x8 (nodes x GPUs), drain:spine-1/leaf-3, or a file with a job"
    )


# ---------------------------------------------------------------- places


def place_of(node: Node) -> tuple[tuple[str, str], ...]:
    """Return the label key and value of each network level of a node, the outermost first."""
    labels = node.metadata.labels
    for family in network_families(FabricSettings().families):
        if family.applies(labels):
            keys = (family.keys[level] for level in LEVELS if level in family.keys)
            return tuple((key, labels[key]) for key in keys if key in labels)
    return ()


def _path(node: Node) -> tuple[str, ...]:
    return tuple(value for _, value in place_of(node))


def add_leaf(cluster: ClusterCase, nodes: int, gpus: int, parent: str = "") -> ClusterCase:
    """Return the cluster with an additional leaf. Its nodes copy an existing node except for the GPU count.

    Args:
        cluster: the cluster to extend.
        nodes: number of nodes of the leaf.
        gpus: GPUs per node.
        parent: path of the parent domain, or the end of the path; by default the domain with the fewest leaves.

    Raises:
        CaseError: no node has topology labels, or ``parent`` matches no domain or several.
    """
    placed = [node for node in cluster.nodes if place_of(node)]
    if not nodes or not gpus or not placed:
        problem = (
            "a leaf needs nodes with GPUs; write such as add-leaf:4x8"
            if placed
            else "no node has labels for its position in the network; see how nodes are labelled"
        )
        raise CaseError(f"add-leaf:{nodes}x{gpus}: {problem}")
    parent_path = _parent(f"add-leaf:{nodes}x{gpus}", placed, parent)
    model = next(node for node in placed if _path(node)[:-1] == parent_path)
    leaf = _unused("leaf-added", {value for node in placed for value in _path(node)})
    key = place_of(model)[-1][0]
    taken = {node.metadata.name for node in cluster.nodes}
    added = []
    for number in range(1, nodes + 1):
        name = _unused(f"{leaf}-node-{number}", taken)
        added.append(_like(model, name, {key: leaf, HOSTNAME: name}, gpus))
    return replace(cluster, nodes=(*cluster.nodes, *added))


def _parent(change: str, nodes: Sequence[Node], domain: str) -> tuple[str, ...]:
    leaves: dict[tuple[str, ...], set[str]] = {}
    for node in nodes:
        path = _path(node)
        leaves.setdefault(path[:-1], set()).add(path[-1])
    if not domain:
        return min(leaves, key=lambda path: (len(leaves[path]), path))
    wanted_path = tuple(domain.strip("/").split("/"))
    matching = [path for path in leaves if path[len(path) - len(wanted_path) :] == wanted_path]
    if len(matching) != 1:
        candidates = few_of(["/".join(path) for path in sorted(matching or leaves)], 5)
        raise CaseError(f"{change}@{domain}: {len(matching)} domains are called so; there are {candidates}")
    return matching[0]


def _unused(name: str, taken: set[str]) -> str:
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def _like(model: Node, name: str, labels: dict[str, str], gpus: int) -> Node:
    resource = next(
        (resource for resource in GPU_RESOURCES if model.status.allocatable.get(resource)), GPU_RESOURCES[0]
    )
    allocatable = {**model.status.allocatable, resource: str(gpus)}
    node_labels = {**model.metadata.labels, **labels}
    metadata = ObjectMeta(name=name, uid=f"node/{name}", resource_version="1", labels=node_labels)
    return structs.replace(
        model,
        metadata=metadata,
        spec=structs.replace(model.spec, unschedulable=False),
        status=structs.replace(model.status, allocatable=allocatable, capacity=dict(allocatable)),
    )


def drain(cluster: ClusterCase, domain: str) -> ClusterCase:
    """Return the cluster with the nodes of a domain cordoned and their pods removed.

    Args:
        cluster: the cluster to change.
        domain: the path of a domain or the end of it, ``spine-1/leaf-3``, or the name of a node.

    Raises:
        CaseError: ``domain`` matches no domain and no node, or several.
    """
    wanted_path = tuple(domain.strip("/").split("/"))
    paths = {node.metadata.name: (*_path(node), node.metadata.name) for node in cluster.nodes}
    nodes_by_domain: dict[tuple[str, ...], list[str]] = {}
    for name, path in paths.items():
        for depth in range(1, len(path) + 1):
            if path[max(0, depth - len(wanted_path)) : depth] == wanted_path:
                nodes_by_domain.setdefault(path[:depth], []).append(name)
    if len(nodes_by_domain) != 1:
        known = sorted({"/".join(path[:-1]) for path in paths.values() if path[:-1]})
        candidates = few_of(["/".join(path) for path in sorted(nodes_by_domain)] or known or sorted(paths), 5)
        count = "no domain is" if not nodes_by_domain else f"{len(nodes_by_domain)} domains are"
        raise CaseError(f"drain:{domain}: {count} called so; write the whole path of one of {candidates}")
    ((_, drained),) = nodes_by_domain.items()
    drained_nodes = set(drained)
    nodes = tuple(
        structs.replace(node, spec=structs.replace(node.spec, unschedulable=True))
        if node.metadata.name in drained_nodes
        else node
        for node in cluster.nodes
    )
    return replace(
        cluster, nodes=nodes, pods=tuple(pod for pod in cluster.pods if pod.spec.node_name not in drained_nodes)
    )
