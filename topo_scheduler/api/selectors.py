"""Affinity, anti-affinity and spread of a pod, with the fields of the Kubernetes API."""

from msgspec import field

from topo_scheduler.api.base import Base, Value


class Requirement(Value, frozen=True):
    """A node selector requirement (``In``, ``NotIn``, ``Exists``, ``DoesNotExist``, ``Gt``, ``Lt``)."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Value, frozen=True):
    """Requirements that must all be met; an empty term matches nothing."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(Value, frozen=True):
    """Terms of which at least one must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredTerm(Value, frozen=True):
    """A node selector term with a weight from 1 to 100."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Value, frozen=True):
    """``spec.affinity.nodeAffinity``."""

    required: NodeSelector | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[PreferredTerm, ...] = field(default=(), name="preferredDuringSchedulingIgnoredDuringExecution")


class LabelSelector(Base):
    """A label selector: all conditions must be met; an empty one selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()


class PodAffinityTerm(Base):
    """Pods of some namespaces, and the domains (values of ``topology_key``) in which they count."""

    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""


class WeightedPodAffinityTerm(Base):
    """A term with a weight from 1 to 100."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = field(default_factory=PodAffinityTerm)


class PodAffinity(Base):
    """``podAffinity`` or ``podAntiAffinity``."""

    required: list[PodAffinityTerm] = field(default_factory=list, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[WeightedPodAffinityTerm] = field(
        default_factory=list, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Base):
    """``spec.affinity``."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Base):
    """``spec.topologySpreadConstraints[]``."""

    topology_key: str = ""
    when_unsatisfiable: str = ""
    max_skew: int = 0
    min_domains: int | None = None
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] = []
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
