"""Constraints of a pod that depend on other pods or on features of a node: ports, affinity, spread, claims."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from sys import intern
from typing import Final

from topo_scheduler.api.objects import Container, Pod, Volume
from topo_scheduler.api.selectors import PodAffinity, PodAffinityTerm
from topo_scheduler.state.pods.caps import MAX_HOST_PORTS, read_volumes, term_excess
from topo_scheduler.state.pods.pod_index import PodIndex
from topo_scheduler.state.pods.profile_labels import profile_labels
from topo_scheduler.state.pods.profiles import ANY_ADDRESS, CountedTerm, Disk, PodVolumeClaim, Port, Profile
from topo_scheduler.state.pods.selectors import Selector, SelectorError, compile_selector

HARD_WEIGHT: Final = 1
"""Weight with which required affinity of a running pod attracts other pods, as in kube-scheduler."""
HOSTNAME: Final = "kubernetes.io/hostname"
RESTART_ALL: Final = "RestartAllContainersOnContainerExits"
USER_NAMESPACES_HOST_NETWORK: Final = "UserNamespacesHostNetworkSupport"
"""Node features that a pod's spec can require, named as nodes declare them (Kubernetes 1.36)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One topologySpreadConstraint with DoNotSchedule. ``self_match``: the pod counts itself."""

    max_skew: int
    topology_key: str
    selector: Selector
    min_domains: int
    honor_affinity: bool
    honor_taints: bool
    self_match: bool

    @property
    def counts_siblings(self) -> bool:
        """Whether it counts bound pods of the same kind: kube-scheduler counts none for an empty selector."""
        return self.self_match and not self.selector.everything


@dataclass(frozen=True, slots=True)
class Constraints:
    """All constraints of a pod that depend on other pods, on volumes or on features of a node.

    ``self_affine``: all its affinity terms select the pod itself, so it may be the first of its kind. Where that
    depends on the labels of its namespace, the term counts as selecting the pod until `in_namespace` decides.
    """

    namespace: str
    ports: tuple[Port, ...] = ()
    affinity: tuple[CountedTerm, ...] = ()
    self_affine: bool = False
    anti_affinity: tuple[CountedTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    claims: tuple[PodVolumeClaim, ...] = ()
    disks: tuple[Disk, ...] = ()
    features: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()
    """Topology keys over which equal pods repel each other."""
    apart_by_namespace: frozenset[tuple[str, Selector]] = frozenset()
    """Those of ``apart`` that apply only if a selector matches the labels of the namespace."""
    affine_by_namespace: frozenset[Selector] = frozenset()
    """Selectors that must all match the labels of the namespace for ``self_affine`` to be true."""

    @property
    def by_namespace(self) -> bool:
        """Whether the constraints between equal pods depend on the labels of the namespace."""
        return bool(self.apart_by_namespace or self.affine_by_namespace)

    def in_namespace(self, labels: Mapping[str, str]) -> "Constraints":
        """Return the constraints for the given labels of the pod's namespace."""
        conditional_keys = {key for key, _ in self.apart_by_namespace}
        matching_keys = {key for key, selector in self.apart_by_namespace if selector.matches(labels)}
        return replace(
            self,
            apart=self.apart - conditional_keys | matching_keys,
            self_affine=self.self_affine and all(selector.matches(labels) for selector in self.affine_by_namespace),
            apart_by_namespace=frozenset(),
            affine_by_namespace=frozenset(),
        )

    @property
    def alone(self) -> bool:
        """Whether a node can hold at most one such pod."""
        conflicts_with_itself = any(disk.conflicts(disk) for disk in self.disks)
        return bool(self.ports) or conflicts_with_itself or HOSTNAME in self.apart

    @property
    def mutual(self) -> bool:
        """Whether equal pods constrain each other beyond one node."""
        return (
            bool(self.apart - {HOSTNAME}) or self.self_affine or any(spread.counts_siblings for spread in self.spread)
        )


@dataclass(frozen=True, slots=True)
class PodPreferences:
    """Preferences of a pod for other pods and its node.

    ``near`` has weight and term of preferred affinity, with a weight below 0 for anti-affinity. ``spread`` has the
    topologySpreadConstraints with ScheduleAnyway, ``images`` those of its containers.
    """

    namespace: str
    near: tuple[tuple[int, CountedTerm], ...] = ()
    spread: tuple[Spread, ...] = ()
    images: tuple[str, ...] = ()


def preferences_of(pod: Pod) -> PodPreferences | None:
    """Return the preferences of a pod, None without any.

    Raises:
        SelectorError: names the field and what is wrong with its selector.
    """
    namespace = pod.metadata.namespace
    preferences = PodPreferences(
        namespace,
        tuple(_preferred(pod)),
        tuple(_spread(pod, "ScheduleAnyway")),
        tuple(_image_name(container.image) for container in pod.spec.containers if container.image),
    )
    return None if preferences == PodPreferences(namespace) else preferences


def constraints_of(pod: Pod) -> Constraints | None:
    """Return a pod's constraints, None where it has none. Its preferred affinity must be readable too.

    Raises:
        SelectorError: names the field and what is wrong with its selector.
    """
    spec, namespace, labels = pod.spec, pod.metadata.namespace, pod.metadata.labels
    if _has_no_constraints(pod):
        return None
    affinity = _terms(spec.affinity.pod_affinity if spec.affinity else None, namespace, "podAffinity")
    anti_affinity = _terms(spec.affinity.pod_anti_affinity if spec.affinity else None, namespace, "podAntiAffinity")
    self_repelling = [term for term in anti_affinity if _may_mean(term, namespace) and term.selector.matches(labels)]
    unconditional_keys = {term.topology_key for term in self_repelling if _means(term, namespace)}
    self_affine = bool(affinity) and all(
        _may_mean(term, namespace) and term.selector.matches(labels) for term in affinity
    )
    constraints = Constraints(
        namespace=namespace,
        ports=ports_of(pod),
        affinity=affinity,
        self_affine=self_affine,
        anti_affinity=anti_affinity,
        spread=tuple(_spread(pod, "DoNotSchedule")),
        claims=tuple(claims_of(pod)),
        disks=_disks(spec.volumes),
        features=frozenset(_features(pod)),
        apart=frozenset(term.topology_key for term in self_repelling),
        apart_by_namespace=frozenset(
            (term.topology_key, term.namespace_selector)
            for term in self_repelling
            if term.topology_key not in unconditional_keys and not _means(term, namespace)
        ),
        affine_by_namespace=frozenset(
            term.namespace_selector for term in affinity if self_affine and not _means(term, namespace)
        ),
    )
    # kube-scheduler's filters reject a pod whose preferred affinity they can't parse. Only its scores, and here
    # `preferences_of`, read a preferred spread.
    for _ in _preferred(pod):
        pass
    return None if constraints == Constraints(namespace) else constraints


def _means(term: CountedTerm, namespace: str) -> bool:
    """Whether a term applies to pods of a namespace with any labels.

    As in kube-scheduler, a selector that matches the empty set of labels applies to every namespace.
    """
    return namespace in term.namespaces or term.namespace_selector.matches({})


def _may_mean(term: CountedTerm, namespace: str) -> bool:
    """Whether a term may apply to pods of a namespace whose labels are unknown."""
    return namespace in term.namespaces or not term.namespace_selector.nothing


def _has_no_constraints(pod: Pod) -> bool:
    """Return whether nothing in a pod's spec can be a constraint or a feature, as for most pods."""
    spec = pod.spec
    if spec.affinity is not None or spec.topology_spread_constraints or spec.volumes or spec.init_containers:
        return False
    return not spec.host_network and not any(
        container.ports or container.restart_policy_rules for container in spec.containers
    )


def _preferred(pod: Pod) -> Iterator[tuple[int, CountedTerm]]:
    affinity = pod.spec.affinity
    for field, terms, sign in (
        ("podAffinity", affinity.pod_affinity if affinity else None, 1),
        ("podAntiAffinity", affinity.pod_anti_affinity if affinity else None, -1),
    ):
        for number, weighted in enumerate(terms.preferred if terms else ()):
            try:
                yield sign * weighted.weight, _term(weighted.pod_affinity_term, pod.metadata.namespace)
            except SelectorError as error:
                raise SelectorError(f"affinity.{field} preference {number + 1}: {error}") from None


def _image_name(name: str) -> str:
    """Return an image's name as nodes report it: with a tag."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"


def profile_of(pod_index: PodIndex, pod: Pod) -> Profile:
    """Return the profile of a pod. Affinity that can't be read, or exceeds the caps, affects no other pod."""
    affinity = pod.spec.affinity
    if _has_no_constraints(pod):
        meta = pod.metadata
        labels = profile_labels(pod)
        return pod_index.profile(meta.namespace, labels, terminating=meta.deletion_timestamp is not None)
    repels: tuple[CountedTerm, ...] = ()
    attracts: tuple[tuple[int, CountedTerm], ...] = ()
    if affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity) and not term_excess(pod):
        try:
            repels = _terms(affinity.pod_anti_affinity, pod.metadata.namespace, "podAntiAffinity")
            affinity_terms = _terms(affinity.pod_affinity, pod.metadata.namespace, "podAffinity")
            attracts = (*_preferred(pod), *((HARD_WEIGHT, term) for term in affinity_terms))
        except SelectorError:
            pass
    volumes = read_volumes(pod.spec.volumes)
    return pod_index.profile(
        pod.metadata.namespace,
        profile_labels(pod),
        terminating=pod.metadata.deletion_timestamp is not None,
        ports=ports_of(pod)[:MAX_HOST_PORTS],
        repels=repels,
        claims=tuple(claims_of(pod, volumes)),
        disks=_disks(volumes),
        attracts=attracts,
    )


def changed_profile(pod_index: PodIndex, profile: Profile, pod: Pod) -> Profile:
    """Return the profile of a bound pod that had another one: of what it shows, only labels and deletion change.

    Users may edit labels all the time. Reading hundreds of terms each time would take long.
    """
    labels, terminating = profile_labels(pod), pod.metadata.deletion_timestamp is not None
    if terminating == profile.terminating and labels == profile.labels:
        return profile
    return pod_index.profile(
        profile.namespace,
        labels,
        terminating=terminating,
        ports=profile.ports,
        repels=profile.repels,
        claims=profile.claims,
        disks=profile.disks,
        attracts=profile.attracts,
    )


def ports_of(pod: Pod) -> tuple[Port, ...]:
    """Return the host ports of a pod: those of its containers and sidecars."""
    sidecars = (container for container in pod.spec.init_containers if container.restart_policy == "Always")
    containers: Iterable[Container] = (*pod.spec.containers, *sidecars)
    return tuple(
        port_of(port.host_ip or ANY_ADDRESS, port.protocol or "TCP", port.host_port)
        for container in containers
        for port in container.ports
        if port.host_port > 0
    )


@lru_cache(maxsize=4096)
def port_of(address: str, protocol: str, number: int) -> Port:
    """Return a port of the host. Bound pods share equal ones: each may have hundreds."""
    return Port(address, intern(protocol), number)


def claims_of(pod: Pod, volumes: Iterable[Volume] | None = None) -> Iterator[PodVolumeClaim]:
    """Yield the claims of a pod, or of the given volumes, including those of generic ephemeral volumes."""
    for volume in pod.spec.volumes if volumes is None else volumes:
        if volume.persistent_volume_claim is not None:
            yield PodVolumeClaim(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            yield PodVolumeClaim(f"{pod.metadata.name}-{volume.name}", pod.metadata.uid)


def _disks(volumes: Iterable[Volume]) -> tuple[Disk, ...]:
    """Return the inline volumes for which Kubernetes allows no second writer."""
    return tuple(disk for volume in volumes if (disk := _disk(volume)) is not None)


def _disk(volume: Volume) -> Disk | None:
    if (gce := volume.gce_persistent_disk) is not None:
        return Disk("gce", frozenset((gce.pd_name,)), read_only=gce.read_only)
    if (aws := volume.aws_elastic_block_store) is not None:
        return Disk("aws", frozenset((aws.volume_id,)), shared_read=False)
    if (iscsi := volume.iscsi) is not None:
        return Disk("iscsi", frozenset((iscsi.iqn,)), read_only=iscsi.read_only)
    if (rbd := volume.rbd) is not None:
        return Disk("rbd", frozenset(rbd.monitors), (rbd.pool, rbd.image), read_only=rbd.read_only)
    return None


def _terms(affinity: PodAffinity | None, namespace: str, field: str) -> tuple[CountedTerm, ...]:
    if affinity is None:
        return ()
    terms = []
    for number, term in enumerate(affinity.required):
        try:
            terms.append(_term(term, namespace))
        except SelectorError as error:
            raise SelectorError(f"affinity.{field} term {number + 1}: {error}") from None
    return tuple(terms)


def _term(term: PodAffinityTerm, namespace: str) -> CountedTerm:
    # Without namespaces and selector, the term applies to the pod's own namespace.
    namespaces = term.namespaces or ([namespace] if term.namespace_selector is None else [])
    return CountedTerm(
        compile_selector(term.label_selector),
        frozenset(namespaces),
        term.topology_key,
        compile_selector(term.namespace_selector),
    )


def _spread(pod: Pod, kind: str) -> Iterator[Spread]:
    labels = pod.metadata.labels
    for number, constraint in enumerate(pod.spec.topology_spread_constraints):
        if (constraint.when_unsatisfiable == "DoNotSchedule") != (kind == "DoNotSchedule"):
            continue
        try:
            selector = compile_selector(constraint.label_selector)
        except SelectorError as error:
            raise SelectorError(f"topologySpreadConstraints {number + 1}: {error}") from None
        if present := [(key, labels[key]) for key in constraint.match_label_keys if key in labels]:
            selector = selector.narrowed(present)
        yield Spread(
            max_skew=constraint.max_skew,
            topology_key=constraint.topology_key,
            selector=selector,
            min_domains=1 if constraint.min_domains is None else constraint.min_domains,
            honor_affinity=constraint.node_affinity_policy != "Ignore",
            honor_taints=constraint.node_taints_policy == "Honor",
            self_match=selector.matches(labels),
        )


def _features(pod: Pod) -> Iterator[str]:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    if any(
        rule.action == "RestartAllContainers" for container in containers for rule in container.restart_policy_rules
    ):
        yield RESTART_ALL
    if pod.spec.host_network and pod.spec.host_users is False:
        yield USER_NAMESPACES_HOST_NETWORK
