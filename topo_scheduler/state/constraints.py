"""What a pod demands of nodes because of other pods: ports, affinity, anti-affinity, spread, claims, features."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from topo_scheduler.api.objects import Container, Pod, Volume
from topo_scheduler.api.selectors import PodAffinity, PodAffinityTerm
from topo_scheduler.state.pod_caps import MOST_HOST_PORTS, read_volumes, readable_labels, term_excess
from topo_scheduler.state.residents import ANY_ADDRESS, CountedTerm, Disk, PodVolumeClaim, Port, Profile, Residents
from topo_scheduler.state.selectors import Selector, SelectorError, compile_selector

HARD_WEIGHT: Final = 1
"""How much required affinity of a pod that runs draws others to it, as in kube-scheduler."""
HOSTNAME: Final = "kubernetes.io/hostname"
RESTART_ALL: Final = "RestartAllContainersOnContainerExits"
USER_NAMESPACES_HOST_NETWORK: Final = "UserNamespacesHostNetworkSupport"
"""Node features that a pod's spec can call for, named as nodes declare them (Kubernetes 1.36)."""


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
        """Whether it counts bound pods like its own: kube-scheduler counts none for an empty selector."""
        return self.self_match and not self.selector.everything


@dataclass(frozen=True, slots=True)
class Constraints:
    """Everything of a pod that looks at other pods, at volumes or at features of a node.

    ``self_affine``: it is among the pods that all its affinity terms mean, and may be the first of its kind. Where only
    the labels of its namespace tell whether a term means pods like this one, it is taken to mean them: `in_namespace`.
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
    """Topology keys over which pods like this one keep away from each other."""
    apart_by_namespace: frozenset[tuple[str, Selector]] = frozenset()
    """Those of ``apart`` that hold only if a selector selects the labels of the namespace."""
    affine_by_namespace: frozenset[Selector] = frozenset()
    """Selectors that must all select the labels of the namespace for ``self_affine`` to hold."""

    @property
    def by_namespace(self) -> bool:
        """Whether labels of the namespace tell what ties pods like this one to each other."""
        return bool(self.apart_by_namespace or self.affine_by_namespace)

    def in_namespace(self, labels: Mapping[str, str]) -> "Constraints":
        """Return the same for the labels that the pod's namespace has."""
        unsure = {key for key, _ in self.apart_by_namespace}
        true = {key for key, selector in self.apart_by_namespace if selector.matches(labels)}
        return replace(
            self,
            apart=self.apart - unsure | true,
            self_affine=self.self_affine and all(one.matches(labels) for one in self.affine_by_namespace),
            apart_by_namespace=frozenset(),
            affine_by_namespace=frozenset(),
        )

    @property
    def alone(self) -> bool:
        """Whether a node takes one pod like this at most."""
        itself = any(disk.conflicts(disk) for disk in self.disks)
        return bool(self.ports) or itself or HOSTNAME in self.apart

    @property
    def mutual(self) -> bool:
        """Whether pods like this are tied to each other beyond one node."""
        return bool(self.apart - {HOSTNAME}) or self.self_affine or any(one.counts_siblings for one in self.spread)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a pod would like of its neighbours and its node.

    ``near`` weight and term of preferred affinity, the weight below 0 for anti-affinity; ``spread`` the
    topologySpreadConstraints with ScheduleAnyway; ``images`` of its containers.
    """

    namespace: str
    near: tuple[tuple[int, CountedTerm], ...] = ()
    spread: tuple[Spread, ...] = ()
    images: tuple[str, ...] = ()


def wishes_of(pod: Pod) -> Wishes | None:
    """Return what a pod would like, None where that is nothing.

    Raises:
        SelectorError: names the field and what is wrong with its selector.
    """
    namespace, spec = pod.metadata.namespace, pod.spec
    if spec.affinity is None and not spec.topology_spread_constraints and not any(one.image for one in spec.containers):
        return None
    found = Wishes(
        namespace,
        tuple(_preferred(pod)),
        tuple(_spread(pod, "ScheduleAnyway")),
        tuple(_image_name(container.image) for container in pod.spec.containers if container.image),
    )
    return None if found == Wishes(namespace) else found


def constraints_of(pod: Pod) -> Constraints | None:
    """Return a pod's constraints, None where it has none. What it prefers of other pods must be readable too.

    Raises:
        SelectorError: names the field and what is wrong with its selector.
    """
    spec, namespace, labels = pod.spec, pod.metadata.namespace, pod.metadata.labels
    if _looks_at_nobody(pod):
        return None
    affinity = _terms(spec.affinity.pod_affinity if spec.affinity else None, namespace, "podAffinity")
    apart = _terms(spec.affinity.pod_anti_affinity if spec.affinity else None, namespace, "podAntiAffinity")
    among = [term for term in apart if _may_mean(term, namespace) and term.selector.matches(labels)]
    surely = {term.topology_key for term in among if _means(term, namespace)}
    together = bool(affinity) and all(_may_mean(term, namespace) and term.selector.matches(labels) for term in affinity)
    found = Constraints(
        namespace=namespace,
        ports=ports_of(pod),
        affinity=affinity,
        self_affine=together,
        anti_affinity=apart,
        spread=tuple(_spread(pod, "DoNotSchedule")),
        claims=tuple(claims_of(pod)),
        disks=disks_of(pod),
        features=frozenset(_features(pod)),
        apart=frozenset(term.topology_key for term in among),
        apart_by_namespace=frozenset(
            (term.topology_key, term.namespace_selector)
            for term in among
            if term.topology_key not in surely and not _means(term, namespace)
        ),
        affine_by_namespace=frozenset(
            term.namespace_selector for term in affinity if together and not _means(term, namespace)
        ),
    )
    # kube-scheduler's filters refuse a pod whose preferred affinity they can't parse; a preferred spread only its
    # scores look at, and here `wishes_of`.
    for _ in _preferred(pod):
        pass
    return None if found == Constraints(namespace) else found


def _means(term: CountedTerm, namespace: str) -> bool:
    """Whether a term means pods of a namespace whatever labels that has.

    As in kube-scheduler, a selector that is content with no labels at all means every namespace.
    """
    return namespace in term.namespaces or term.namespace_selector.matches({})


def _may_mean(term: CountedTerm, namespace: str) -> bool:
    """Whether a term may mean pods of a namespace; what labels the namespace has is not known here."""
    return namespace in term.namespaces or not term.namespace_selector.nothing


def _looks_at_nobody(pod: Pod) -> bool:
    """Return whether nothing in a pod's spec can be a constraint or a feature, as in most."""
    spec = pod.spec
    if spec.affinity is not None or spec.topology_spread_constraints or spec.volumes or spec.init_containers:
        return False
    return not spec.host_network and not any(one.ports or one.restart_policy_rules for one in spec.containers)


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
    """Return an image's name as nodes tell it: with a tag."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"


def profile_of(residents: Residents, pod: Pod) -> Profile:
    """Return what others see of a pod. Anti-affinity that can't be read, or is beyond the caps, keeps no pod away."""
    affinity = pod.spec.affinity
    if _looks_at_nobody(pod):
        meta = pod.metadata
        labels = readable_labels(meta.labels)
        return residents.profile(meta.namespace, labels, terminating=meta.deletion_timestamp is not None)
    repels: tuple[CountedTerm, ...] = ()
    attracts: tuple[tuple[int, CountedTerm], ...] = ()
    if affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity) and not term_excess(pod):
        try:
            repels = _terms(affinity.pod_anti_affinity, pod.metadata.namespace, "podAntiAffinity")
            wanted = _terms(affinity.pod_affinity, pod.metadata.namespace, "podAffinity")
            attracts = (*_preferred(pod), *((HARD_WEIGHT, term) for term in wanted))
        except SelectorError:
            pass
    volumes = read_volumes(pod.spec.volumes)
    return residents.profile(
        pod.metadata.namespace,
        readable_labels(pod.metadata.labels),
        terminating=pod.metadata.deletion_timestamp is not None,
        ports=ports_of(pod)[:MOST_HOST_PORTS],
        repels=repels,
        claims=tuple(claims_of(pod, volumes)),
        disks=_disks(volumes),
        attracts=attracts,
    )


def ports_of(pod: Pod) -> tuple[Port, ...]:
    """Return the ports of the host a pod takes: those of containers and of sidecars."""
    sidecars = (one for one in pod.spec.init_containers if one.restart_policy == "Always")
    containers: Iterable[Container] = (*pod.spec.containers, *sidecars)
    return tuple(
        Port(port.host_ip or ANY_ADDRESS, port.protocol or "TCP", port.host_port)
        for container in containers
        for port in container.ports
        if port.host_port > 0
    )


def claims_of(pod: Pod, volumes: Iterable[Volume] | None = None) -> Iterator[PodVolumeClaim]:
    """Yield the claims a pod, or some of its volumes, use, those made for generic ephemeral volumes included."""
    for volume in pod.spec.volumes if volumes is None else volumes:
        if volume.persistent_volume_claim is not None:
            yield PodVolumeClaim(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            yield PodVolumeClaim(f"{pod.metadata.name}-{volume.name}", pod.metadata.uid)


def disks_of(pod: Pod) -> tuple[Disk, ...]:
    """Return the inline volumes of a pod on which Kubernetes allows no second writer."""
    return _disks(pod.spec.volumes)


def _disks(volumes: Iterable[Volume]) -> tuple[Disk, ...]:
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
    # Without namespaces and selector the pod's own is meant.
    named = term.namespaces or ([namespace] if term.namespace_selector is None else [])
    return CountedTerm(
        compile_selector(term.label_selector),
        frozenset(named),
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
    if any(rule.action == "RestartAllContainers" for one in containers for rule in one.restart_policy_rules):
        yield RESTART_ALL
    if pod.spec.host_network and pod.spec.host_users is False:
        yield USER_NAMESPACES_HOST_NETWORK
