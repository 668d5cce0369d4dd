"""Kubernetes objects, with the fields that this scheduler reads.

msgspec decodes list pages and watch lines into these structs. The parser skips fields without a name here, so they
never become Python objects, which keeps 20,000 pods affordable. Names are those of the Kubernetes API in snake_case;
absent fields have the defaults of the API.
"""

from typing import Any, Literal

from msgspec import field

from topo_scheduler.api.base import Base, Value
from topo_scheduler.api.selectors import Affinity, LabelSelector, TopologySpreadConstraint

Quantity = str | int | float


class OwnerReference(Value, frozen=True):
    """One entry of ``metadata.ownerReferences``."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(Base):
    """``metadata`` of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages this object, or None."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None

    def is_older_than(self, other: "ObjectMeta") -> bool:
        """Return whether this is an earlier state of the same object."""
        version, other_version = self.resource_version, other.resource_version
        return (
            self.uid == other.uid
            and version.isdecimal()
            and other_version.isdecimal()
            and int(version) < int(other_version)
        )


class ApiObject(Base):
    """Any object."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)


class PartialObject(Base):
    """``PartialObjectMetadata``: the parts of a workload other than a Job that are read."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(default_factory=ObjectMeta)


# ---------------------------------------------------------------- pods


class Toleration(Value, frozen=True):
    """``spec.tolerations[]``."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class ResourceRequirements(Base):
    """``resources`` of a container or of a pod."""

    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


class ContainerPort(Base):
    """``ports[]`` of a container."""

    host_port: int = 0
    host_ip: str = field(default="", name="hostIP")
    protocol: str = "TCP"


class ContainerRestartRule(Base):
    """``restartPolicyRules[]`` of a container."""

    action: str = ""


class Container(Base):
    """A container or init container. ``restart_policy`` Always makes an init container a sidecar."""

    name: str = ""
    resources: ResourceRequirements = field(default_factory=ResourceRequirements)
    image: str = ""
    restart_policy: str | None = None
    restart_policy_rules: list[ContainerRestartRule] = []
    ports: list[ContainerPort] = []


class ClaimSource(Base):
    """``persistentVolumeClaim`` of a volume."""

    claim_name: str = ""


class GCEDisk(Base):
    """``gcePersistentDisk``."""

    pd_name: str = ""
    read_only: bool = False


class AWSDisk(Base):
    """``awsElasticBlockStore``."""

    volume_id: str = field(default="", name="volumeID")


class ISCSIDisk(Base):
    """``iscsi`` of a volume."""

    iqn: str = ""
    read_only: bool = False


class RBDDisk(Base):
    """``rbd`` of a volume."""

    monitors: list[str] = []
    pool: str = ""
    image: str = ""
    read_only: bool = False


class Volume(Base):
    """``spec.volumes[]``: the kinds that can tie a pod to a node."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None
    gce_persistent_disk: GCEDisk | None = None
    aws_elastic_block_store: AWSDisk | None = None
    iscsi: ISCSIDisk | None = None
    rbd: RBDDisk | None = None


class Named(Value, frozen=True):
    """An object of which only the name is read."""

    name: str = ""


class PodResourceClaim(Base):
    """``spec.resourceClaims[]``: an existing claim, or a template from which Kubernetes makes one for the pod."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Base):
    """``spec`` of a pod."""

    scheduler_name: str = ""
    node_name: str = ""
    priority: int = 0
    priority_class_name: str = ""
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    restart_policy: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: dict[str, Quantity] = {}
    resources: ResourceRequirements | None = None
    scheduling_gates: list[Named] = []
    topology_spread_constraints: list[TopologySpreadConstraint] = []
    volumes: list[Volume] = []
    resource_claims: list[PodResourceClaim] = []
    host_network: bool = False
    host_users: bool | None = None
    scheduling_group: dict[str, Any] | None = None
    workload_ref: dict[str, Any] | None = None
    service_account_name: str = ""


class PodClaimStatus(Base):
    """``status.resourceClaimStatuses[]``: the claim that Kubernetes made, None if it made none as none is needed."""

    name: str = ""
    resource_claim_name: str | None = None


class PodCondition(Base):
    """``status.conditions[]`` of a pod."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Terminated(Base):
    """``state.terminated`` of a container."""

    finished_at: str | None = None


class Waiting(Base):
    """``state.waiting`` of a container."""

    reason: str = ""


class ContainerState(Base):
    """``state`` of a container."""

    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(Base):
    """``status.containerStatuses[]``: resources of a container while it is resized, and its state."""

    name: str = ""
    state: ContainerState | None = None
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, Quantity] = {}
    restart_count: int = 0


class PodExtendedResourceClaimStatus(Base):
    """``status.extendedResourceClaimStatus`` of a pod."""

    resource_claim_name: str = ""


class PodStatus(Base):
    """``status`` of a pod."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    start_time: str | None = None
    conditions: list[PodCondition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, Quantity] = {}
    resource_claim_statuses: list[PodClaimStatus] = []
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None


class Pod(ApiObject):
    """A pod."""

    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)
    excess: str = field(default="", name="topology.scheduler/excess")
    """Why the pod is refused for its size, if `state.pods.trimming` dropped its large parts. No API server sends it."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def finished(self) -> bool:
        """Whether the pod has ended and so holds nothing of its node."""
        return self.status.phase in ("Succeeded", "Failed")


# ---------------------------------------------------------------- nodes


class Taint(Value, frozen=True):
    """``spec.taints[]``."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Base):
    """``spec`` of a node."""

    unschedulable: bool = False
    taints: list[Taint] = []


class ConditionStatus(Base):
    """``status.conditions[]`` of a node or a Job."""

    type: str = ""
    status: str = ""


class ContainerImage(Base):
    """``status.images[]`` of a node."""

    names: list[str] = []
    size_bytes: int = 0


class NodeStatus(Base):
    """``status`` of a node."""

    allocatable: dict[str, Quantity] = {}
    capacity: dict[str, Quantity] = {}
    conditions: list[ConditionStatus] = []
    declared_features: list[str] = []
    images: list[ContainerImage] = []


class Node(ApiObject):
    """A node."""

    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


# ---------------------------------------------------------------- workloads


class JobSpec(Base):
    """``spec`` of a Job: the fields that decide the size of its gang."""

    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    active_deadline_seconds: int | None = None


class JobStatus(Base):
    """``status`` of a Job."""

    succeeded: int = 0
    failed: int = 0
    active: int = 0
    start_time: str | None = None
    conditions: list[ConditionStatus] = []
    failed_indexes: str = ""
    """Indexes that failed for good, such as ``1,3-5``, of a Job with ``backoffLimitPerIndex``."""

    @property
    def failed_index_count(self) -> int:
        """Number of indexes that failed for good."""
        ranges = [part.partition("-") for part in self.failed_indexes.split(",")]
        bounds = [(first, last or first) for first, _, last in ranges if _is_index(first) and _is_index(last or first)]
        return sum(max(0, int(last) - int(first) + 1) for first, last in bounds)


def _is_index(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 10


class Job(ApiObject):
    """A ``batch/v1`` Job."""

    spec: JobSpec = field(default_factory=JobSpec)
    status: JobStatus = field(default_factory=JobStatus)


# ---------------------------------------------------------------- disruption budgets


class BudgetSpec(Base):
    """``spec`` of a PodDisruptionBudget."""

    selector: LabelSelector | None = None


class BudgetStatus(Base):
    """``status`` of a PodDisruptionBudget."""

    disruptions_allowed: int = 0
    observed_generation: int = 0


class DisruptionBudget(ApiObject):
    """A ``policy/v1`` PodDisruptionBudget."""

    spec: BudgetSpec = field(default_factory=BudgetSpec)
    status: BudgetStatus = field(default_factory=BudgetStatus)


# ---------------------------------------------------------------- list and watch


class ListMeta(Base):
    """``metadata`` of a list."""

    resource_version: str = ""
    continue_: str = field(default="", name="continue")


EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]


class Status(Base):
    """``Status``: the body of an error answer, and the object of an ERROR watch event."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: dict[str, Any] | None = None
