"""How much of each list a pod may have: what lies beyond would make every decision slow for all others.

Every cap is several times what workloads need that are known to run. A pending pod beyond one of them is refused with a
reason that names field, count, cap and remedy. A pod that is bound already holds its requests, but keeps no other pod
away.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from topo_scheduler.api.groups import READ_OF_PODS
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Pod, Volume
from topo_scheduler.api.selectors import LabelSelector, NodeAffinity, PodAffinity, PodAffinityTerm, Requirement

MOST_TERMS: Final = 64
"""Terms of one kind: required or preferred, affinity or anti-affinity, of nodes or of pods."""
MOST_SPREAD_CONSTRAINTS: Final = 32
MOST_REQUIREMENTS: Final = 256
"""Requirements of all node affinity terms together, and of all label selectors of a pod together."""
MOST_VALUES: Final = 20_000
"""Values of all node affinity terms together: a NotIn may name every node of a large cluster."""
MOST_SELECTOR_VALUES: Final = 1_024
"""Values of all label selectors of a pod together: a bound pod holds on to them, 130 bytes each and more."""
MOST_NAMESPACES: Final = 1_000
"""Namespaces that the pod affinity terms name together."""
MOST_NODE_SELECTOR_LABELS: Final = 64
MOST_TOLERATIONS: Final = 256
MOST_VOLUMES: Final = 256
MOST_DISK_NAMES: Final = 1_024
"""Names of disks that volumes name themselves, without a claim, with pools, images and monitors of rbd."""
MOST_DISK_CHARACTERS: Final = 16_384
"""Characters of these names together."""
MOST_HOST_PORTS: Final = 256
MOST_CONTAINERS: Final = 2_048
MOST_RESOURCES: Final = 64
"""Resource names that the containers of a pod ask for together."""
MOST_LABELS: Final = 256
MOST_LABEL_CHARACTERS: Final = 16_384
"""Characters of all labels of a pod together, names included."""
MOST_ANNOTATION_CHARACTERS: Final = 4_096
"""Characters of one annotation that the scheduler reads."""
MOST_ANNOTATIONS: Final = 64
"""Annotations ``topology.scheduler/…`` of a pod."""

_REMEDIES: Final = {
    "terms": "match several values with one term (operator In)",
    "values": "select by a label that these nodes or pods share",
    "other": "remove some",
}


def excess(pod: Pod) -> str:
    """Return what a pod has more of than is read, with the cap and a remedy; empty where there is nothing."""
    spec = pod.spec
    for field, count, most, remedy in (
        ("spec.containers", len(spec.containers) + len(spec.init_containers), MOST_CONTAINERS, "other"),
        ("spec.nodeSelector", len(spec.node_selector), MOST_NODE_SELECTOR_LABELS, "other"),
        ("spec.tolerations", len(spec.tolerations), MOST_TOLERATIONS, "other"),
        ("spec.volumes", len(spec.volumes), MOST_VOLUMES, "other"),
        ("metadata.labels", len(pod.metadata.labels), MOST_LABELS, "other"),
        ("spec.overhead", len(spec.overhead), MOST_RESOURCES, "other"),
    ):
        if count > most:
            return too_many(field, count, most, remedy)
    meta = pod.metadata
    wrong = _labels(meta.labels) or _resources(pod) or _disks(spec.volumes) or _annotations(meta.annotations)
    if wrong or (spec.affinity is None and not spec.topology_spread_constraints):
        return wrong
    return term_excess(pod)


def term_excess(pod: Pod) -> str:
    """Return the same of affinity, anti-affinity and spread alone."""
    spec = pod.spec
    constraints = len(spec.topology_spread_constraints)
    if constraints > MOST_SPREAD_CONSTRAINTS:
        return too_many("spec.topologySpreadConstraints", constraints, MOST_SPREAD_CONSTRAINTS, "terms")
    affinity = spec.affinity
    selectors = [one.label_selector for one in spec.topology_spread_constraints]
    if affinity is not None:
        wrong = _node_affinity(affinity.node_affinity)
        for field, some in (("podAffinity", affinity.pod_affinity), ("podAntiAffinity", affinity.pod_anti_affinity)):
            wrong = wrong or _pod_affinity(field, some)
            terms = list(_terms(some))
            selectors += [one for term in terms for one in (term.label_selector, term.namespace_selector)]
        if wrong:
            return wrong
    return _selectors(selectors)


def too_many(field: str, count: int, most: int, remedy: str) -> str:
    """Return what is said of a field with more entries than are read."""
    return f"{field} has {count} entries, the scheduler reads at most {most}; {_REMEDIES[remedy]}"


def readable_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels by which others select a pod: none where there are more than are read."""
    return {} if len(labels) > MOST_LABELS or _labels(labels) else labels


def read_volumes(volumes: list[Volume]) -> list[Volume]:
    """Return the volumes of a bound pod that are read: the first ones, and no disks whose names are too long."""
    first = volumes[:MOST_VOLUMES]
    return [one for one in first if not _disk_names(one)] if _disks(first) else first


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
    names = [name for one in volumes for name in _disk_names(one)]
    if len(names) > MOST_DISK_NAMES:
        return too_many("disks and monitors of spec.volumes", len(names), MOST_DISK_NAMES, "other")
    characters = sum(map(len, names))
    if characters <= MOST_DISK_CHARACTERS:
        return ""
    return (
        f"the disks of spec.volumes have names of {characters} characters together, the scheduler reads at most"
        f" {MOST_DISK_CHARACTERS}; use PersistentVolumeClaims"
    )


def _labels(labels: Mapping[str, str]) -> str:
    characters = sum(map(len, labels)) + sum(map(len, labels.values()))
    if characters <= MOST_LABEL_CHARACTERS:
        return ""
    return (
        f"metadata.labels has {characters} characters, the scheduler reads at most {MOST_LABEL_CHARACTERS};"
        " remove or shorten some"
    )


def _resources(pod: Pod) -> str:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    if sum(len(one.resources.requests) for one in containers) > MOST_RESOURCES:
        names = {name for one in containers for name in one.resources.requests}
        if len(names) > MOST_RESOURCES:
            return too_many("resources.requests of its containers", len(names), MOST_RESOURCES, "other")
    if sum(len(one.ports) for one in containers) > MOST_HOST_PORTS:
        ports = sum(port.host_port > 0 for one in containers for port in one.ports)
        if ports > MOST_HOST_PORTS:
            return too_many("hostPorts of its containers", ports, MOST_HOST_PORTS, "other")
    return ""


def _annotations(annotations: Mapping[str, str]) -> str:
    count = characters = 0
    most = MOST_ANNOTATION_CHARACTERS
    for name, value in annotations.items():
        ours = name.startswith(PREFIX)
        if len(value) > most and (ours or name in READ_OF_PODS):
            return f"annotation {name[:80]} has {len(value)} characters, the scheduler reads at most {most}; shorten it"
        count += ours
        characters += len(value) if ours else 0
    if count > MOST_ANNOTATIONS:
        return too_many(f"metadata.annotations, {PREFIX}…,", count, MOST_ANNOTATIONS, "other")
    if characters > 2 * most:
        return (
            f"the annotations {PREFIX}… have {characters} characters together, the scheduler reads at most {2 * most};"
            " shorten them"
        )
    return ""


def _node_affinity(affinity: NodeAffinity | None) -> str:
    if affinity is None:
        return ""
    field = "spec.affinity.nodeAffinity"
    required = affinity.required.node_selector_terms if affinity.required is not None else ()
    for kind, count in (("required", len(required)), ("preferred", len(affinity.preferred))):
        if count > MOST_TERMS:
            return too_many(f"{field}, {kind} terms,", count, MOST_TERMS, "terms")
    terms = (*required, *(one.preference for one in affinity.preferred))
    return _requirements(field, [one for term in terms for one in (*term.match_expressions, *term.match_fields)])


def _terms(affinity: PodAffinity | None) -> Iterator[PodAffinityTerm]:
    if affinity is not None:
        yield from affinity.required
        yield from (one.pod_affinity_term for one in affinity.preferred)


def _pod_affinity(name: str, affinity: PodAffinity | None) -> str:
    if affinity is None:
        return ""
    for kind, count in (("required", len(affinity.required)), ("preferred", len(affinity.preferred))):
        if count > MOST_TERMS:
            return too_many(f"spec.affinity.{name}, {kind} terms,", count, MOST_TERMS, "terms")
    namespaces = sum(len(term.namespaces) for term in _terms(affinity))
    if namespaces > MOST_NAMESPACES:
        return too_many(f"spec.affinity.{name}, namespaces,", namespaces, MOST_NAMESPACES, "values")
    return ""


def _selectors(selectors: Iterable[LabelSelector | None]) -> str:
    found = [one for one in selectors if one is not None]
    field = "label selectors of its affinity and spread"
    labels = sum(len(one.match_labels) for one in found)
    if labels > MOST_REQUIREMENTS:
        return too_many(f"{field}, matchLabels,", labels, MOST_REQUIREMENTS, "other")
    requirements = [one for selector in found for one in selector.match_expressions]
    return _requirements(field, requirements, MOST_SELECTOR_VALUES)


def _requirements(field: str, requirements: list[Requirement], most: int = MOST_VALUES) -> str:
    if len(requirements) > MOST_REQUIREMENTS:
        return too_many(f"{field}, matchExpressions,", len(requirements), MOST_REQUIREMENTS, "other")
    values = sum(len(one.values) for one in requirements)
    if values > most:
        return too_many(f"{field}, values,", values, most, "values")
    return ""
