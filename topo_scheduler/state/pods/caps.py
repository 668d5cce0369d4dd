"""Caps on the lists of a pod: longer lists would slow every decision for all other workloads.

Every cap is several times what known workloads need. The scheduler refuses a pending pod beyond a cap with a reason
that names field, count, cap and remedy. A pod that is already bound holds its requests, but repels no other pod.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from topo_scheduler.api.groups import READ_OF_PODS
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Pod, Volume
from topo_scheduler.api.selectors import LabelSelector, NodeAffinity, PodAffinity, PodAffinityTerm, Requirement

MAX_TERMS: Final = 64
"""Terms of one kind: required or preferred, affinity or anti-affinity, of nodes or of pods."""
MAX_SPREAD_CONSTRAINTS: Final = 32
MAX_REQUIREMENTS: Final = 256
"""Requirements of all node affinity terms together, and of all label selectors of a pod together."""
MAX_VALUES: Final = 20_000
"""Values of all node affinity terms together: a NotIn may name every node of a large cluster."""
MAX_SELECTOR_VALUES: Final = 1_024
"""Values of all label selectors of a pod together: the scheduler keeps those of bound pods, 130 bytes each or more."""
MAX_NAMESPACES: Final = 1_000
"""Namespaces that the pod affinity terms name together."""
MAX_NODE_SELECTOR_LABELS: Final = 64
MAX_TOLERATIONS: Final = 256
MAX_VOLUMES: Final = 256
MAX_RESOURCE_CLAIMS: Final = 32
MAX_DISK_NAMES: Final = 1_024
"""Names of disks in volumes without a claim, including pools, images and monitors of rbd."""
MAX_DISK_CHARACTERS: Final = 16_384
"""Characters of these names together."""
MAX_HOST_PORTS: Final = 256
MAX_CONTAINERS: Final = 256
"""Containers and init containers together."""
MAX_RESOURCES: Final = 64
"""Distinct resource names that the containers of a pod request together."""
MAX_LABELS: Final = 256
MAX_LABEL_CHARACTERS: Final = 16_384
"""Characters of all labels of a pod together, names included."""
MAX_ANNOTATION_CHARACTERS: Final = 4_096
"""Characters of one annotation that the scheduler reads."""
MAX_ANNOTATIONS: Final = 64
"""Annotations ``topology.scheduler/…`` of a pod."""

_REMEDIES: Final = {
    "terms": "match several values with one term (operator In)",
    "values": "select by a label that these nodes or pods share",
    "other": "remove some",
}


def excess(pod: Pod) -> str:
    """Return a message on a field of a pod beyond its cap, with the cap and a remedy; empty without one."""
    spec = pod.spec
    for field, count, limit, remedy in (
        ("spec.containers", len(spec.containers) + len(spec.init_containers), MAX_CONTAINERS, "other"),
        ("spec.nodeSelector", len(spec.node_selector), MAX_NODE_SELECTOR_LABELS, "other"),
        ("spec.tolerations", len(spec.tolerations), MAX_TOLERATIONS, "other"),
        ("spec.volumes", len(spec.volumes), MAX_VOLUMES, "other"),
        ("spec.resourceClaims", len(spec.resource_claims), MAX_RESOURCE_CLAIMS, "other"),
        ("metadata.labels", len(pod.metadata.labels), MAX_LABELS, "other"),
        ("spec.overhead", len(spec.overhead), MAX_RESOURCES, "other"),
    ):
        if count > limit:
            return too_many(field, count, limit, remedy)
    meta = pod.metadata
    problem = _labels(meta.labels) or _resources(pod) or _disks(spec.volumes) or _annotations(meta.annotations)
    if problem or (spec.affinity is None and not spec.topology_spread_constraints):
        return problem
    return term_excess(pod)


def term_excess(pod: Pod) -> str:
    """Return the same as `excess`, for affinity, anti-affinity and spread alone."""
    spec = pod.spec
    constraints = len(spec.topology_spread_constraints)
    if constraints > MAX_SPREAD_CONSTRAINTS:
        return too_many("spec.topologySpreadConstraints", constraints, MAX_SPREAD_CONSTRAINTS, "terms")
    affinity = spec.affinity
    selectors = [spread.label_selector for spread in spec.topology_spread_constraints]
    if affinity is not None:
        problem = _node_affinity(affinity.node_affinity)
        for field, pod_affinity in (
            ("podAffinity", affinity.pod_affinity),
            ("podAntiAffinity", affinity.pod_anti_affinity),
        ):
            problem = problem or _pod_affinity(field, pod_affinity)
            terms = list(_terms(pod_affinity))
            selectors += [selector for term in terms for selector in (term.label_selector, term.namespace_selector)]
        if problem:
            return problem
    return _selectors(selectors)


def too_many(field: str, count: int, limit: int, remedy: str) -> str:
    """Return the message on a field with more entries than the scheduler reads."""
    return f"{field} has {count} entries, the scheduler reads at most {limit}; {_REMEDIES[remedy]}"


def readable_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels by which selectors match a pod: none if the pod has more than the scheduler reads."""
    return {} if len(labels) > MAX_LABELS or _labels(labels) else labels


def read_volumes(volumes: list[Volume]) -> list[Volume]:
    """Return the volumes of a bound pod that the scheduler reads: the first ones, without disks of too long names."""
    first = volumes[:MAX_VOLUMES]
    return [volume for volume in first if not _disk_names(volume)] if _disks(first) else first


def _disk_names(volume: Volume) -> tuple[str, ...]:
    if (gce := volume.gce_persistent_disk) is not None:
        return (gce.pd_name,)
    if (aws := volume.aws_elastic_block_store) is not None:
        return (aws.volume_id,)
    if (iscsi := volume.iscsi) is not None:
        return (iscsi.iqn,)
    if (rbd := volume.rbd) is not None:
        return (rbd.pool, rbd.image, *rbd.monitors)
    return ()


def _disks(volumes: Iterable[Volume]) -> str:
    names = [name for volume in volumes for name in _disk_names(volume)]
    if len(names) > MAX_DISK_NAMES:
        return too_many("disks and monitors of spec.volumes", len(names), MAX_DISK_NAMES, "other")
    characters = sum(map(len, names))
    if characters <= MAX_DISK_CHARACTERS:
        return ""
    return (
        f"the disks of spec.volumes have names of {characters} characters together, the scheduler reads at most"
        f" {MAX_DISK_CHARACTERS}; use PersistentVolumeClaims"
    )


def _labels(labels: Mapping[str, str]) -> str:
    characters = sum(map(len, labels)) + sum(map(len, labels.values()))
    if characters <= MAX_LABEL_CHARACTERS:
        return ""
    return (
        f"metadata.labels has {characters} characters, the scheduler reads at most {MAX_LABEL_CHARACTERS};"
        " remove or shorten some"
    )


def _resources(pod: Pod) -> str:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    if sum(len(container.resources.requests) for container in containers) > MAX_RESOURCES:
        names = {name for container in containers for name in container.resources.requests}
        if len(names) > MAX_RESOURCES:
            return too_many("resources.requests of its containers", len(names), MAX_RESOURCES, "other")
    if sum(len(container.ports) for container in containers) > MAX_HOST_PORTS:
        ports = sum(port.host_port > 0 for container in containers for port in container.ports)
        if ports > MAX_HOST_PORTS:
            return too_many("hostPorts of its containers", ports, MAX_HOST_PORTS, "other")
    return ""


def _annotations(annotations: Mapping[str, str]) -> str:
    count = characters = 0
    limit = MAX_ANNOTATION_CHARACTERS
    for name, value in annotations.items():
        own = name.startswith(PREFIX)
        if len(value) > limit and (own or name in READ_OF_PODS):
            return (
                f"annotation {name[:80]} has {len(value)} characters, the scheduler reads at most {limit}; shorten it"
            )
        count += own
        characters += len(value) if own else 0
    if count > MAX_ANNOTATIONS:
        return too_many(f"metadata.annotations, {PREFIX}…,", count, MAX_ANNOTATIONS, "other")
    if characters > 2 * limit:
        return (
            f"the annotations {PREFIX}… have {characters} characters together, the scheduler reads at most {2 * limit};"
            " shorten them"
        )
    return ""


def _node_affinity(affinity: NodeAffinity | None) -> str:
    if affinity is None:
        return ""
    field = "spec.affinity.nodeAffinity"
    required = affinity.required.node_selector_terms if affinity.required is not None else ()
    for kind, count in (("required", len(required)), ("preferred", len(affinity.preferred))):
        if count > MAX_TERMS:
            return too_many(f"{field}, {kind} terms,", count, MAX_TERMS, "terms")
    terms = (*required, *(weighted.preference for weighted in affinity.preferred))
    requirements = [item for term in terms for item in (*term.match_expressions, *term.match_fields)]
    return _requirements(field, requirements)


def _terms(affinity: PodAffinity | None) -> Iterator[PodAffinityTerm]:
    if affinity is not None:
        yield from affinity.required
        yield from (weighted.pod_affinity_term for weighted in affinity.preferred)


def _pod_affinity(name: str, affinity: PodAffinity | None) -> str:
    if affinity is None:
        return ""
    for kind, count in (("required", len(affinity.required)), ("preferred", len(affinity.preferred))):
        if count > MAX_TERMS:
            return too_many(f"spec.affinity.{name}, {kind} terms,", count, MAX_TERMS, "terms")
    namespaces = sum(len(term.namespaces) for term in _terms(affinity))
    if namespaces > MAX_NAMESPACES:
        return too_many(f"spec.affinity.{name}, namespaces,", namespaces, MAX_NAMESPACES, "values")
    return ""


def _selectors(selectors: Iterable[LabelSelector | None]) -> str:
    present = [selector for selector in selectors if selector is not None]
    field = "label selectors of its affinity and spread"
    labels = sum(len(selector.match_labels) for selector in present)
    if labels > MAX_REQUIREMENTS:
        return too_many(f"{field}, matchLabels,", labels, MAX_REQUIREMENTS, "other")
    requirements = [requirement for selector in present for requirement in selector.match_expressions]
    return _requirements(field, requirements, MAX_SELECTOR_VALUES)


def _requirements(field: str, requirements: list[Requirement], limit: int = MAX_VALUES) -> str:
    if len(requirements) > MAX_REQUIREMENTS:
        return too_many(f"{field}, matchExpressions,", len(requirements), MAX_REQUIREMENTS, "other")
    values = sum(len(requirement.values) for requirement in requirements)
    if values > limit:
        return too_many(f"{field}, values,", values, limit, "values")
    return ""
