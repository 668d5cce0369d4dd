"""Configuration of recovery from failed nodes: whether it runs, how soon, and its limits."""

from functools import partial
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, PlainSerializer

from topo_scheduler.api.durations import written_duration
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.models import Model, Seconds, Share, parsed_duration
from topo_scheduler.api.names import QualifiedName


class RecoveryLimits(Model):
    """Limits on active Migrations, which reserve nodes and evict pods. Migrations beyond them stay in phase Planned."""

    at_once: Annotated[int, Field(ge=1, le=1000)] = 128
    """Maximum active Migrations at the same time. Beyond it, each namespace still has an equal share, at least one."""
    per_namespace: Annotated[int, Field(ge=1, le=1000)] = 64
    """Maximum active Migrations at the same time in one namespace."""
    per_hour: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Maximum Migrations started within an hour."""
    moves_per_hour: Annotated[int, Field(ge=1, le=100_000)] = 30
    """Maximum pods moved within an hour without a failure, by ``defragmentation`` and ``improvement``."""
    cooldown: Seconds = 3600.0
    """Cooldown of a workload after any move of its pods: ``defragmentation`` and ``improvement`` leave it alone."""


_MAX_SECONDS: Final = 366 * 86_400


class FinishedSpec(Model):
    """Retention of finished Migrations. Each is kept at least for an hour and for `limits.cooldown`."""

    time: Annotated[
        float,
        BeforeValidator(partial(parsed_duration, max_seconds=_MAX_SECONDS)),
        PlainSerializer(written_duration),
        Field(gt=0, le=_MAX_SECONDS),
    ] = 604_800.0
    """How long a finished Migration is kept, at most 8784 h."""
    max_count: Annotated[int, Field(ge=0, le=100_000)] = 1000
    """Maximum number of finished Migrations. Beyond it the oldest are deleted earlier."""


class LinkLabels(Model):
    """Two labels of a node that are equal while its links are healthy."""

    current: QualifiedName
    """Key of the label with the current state of the links."""
    expected: QualifiedName
    """Key of the label with the expected state of the links."""


class PodFailuresSpec(Model):
    """Detection of failed nodes by pods that fail there, while other pods of their workloads run on other nodes.

    A pod counts if the kubelet refused it. It also counts if it crashes there repeatedly while other pods of the same
    gang or controller run on other nodes.
    """

    enabled: bool = True
    """Whether failures of pods can make their node count as failed."""
    workloads: Annotated[int, Field(ge=2, le=1000)] = 3
    """A node counts as failed if pods of this many workloads fail there."""
    refusals: Annotated[int, Field(ge=2, le=1000)] = 5
    """A node also counts as failed if its kubelet refused this many pods, of any number of workloads."""
    namespaces: Annotated[int, Field(ge=1, le=1000)] = 2
    """In both cases the pods must be of this many namespaces, so that those of one namespace alone can't fail a
    node. Set it higher if a tenant has several namespaces, and to 1 if all workloads share a namespace."""
    restarts: Annotated[int, Field(ge=1, le=1000)] = 3
    """A container in ``CrashLoopBackOff`` counts from this number of restarts on."""
    window: Seconds = 600.0
    """How long a failure of a pod counts after it was last seen."""


class DefragmentationSpec(Model):
    """Defragmentation: moves of pods that join small blocks of free GPUs into large ones."""

    enabled: bool = False
    """Whether to move pods to make room for a gang that has been pending for ``repair.after``, as few as possible. Off
    by default, as it evicts running pods although nothing failed."""
    largest_block: bool = False
    """Whether to move pods also while no gang is pending, if that enlarges the largest block of free nodes in one
    leaf."""
    mig_slots: bool = False
    """Whether to move at most two pods if that frees a MIG slot for a pod that has been pending for ``repair.after``.
    Only where drivers publish MIG slots with shared counters (dynamic MIG). It does not depend on ``enabled``. Off by
    default, as it evicts running pods although nothing failed."""


class ImprovementSpec(Model):
    """Moves of gangs that had to spread back to fewer leaves, once these have room."""

    enabled: bool = False
    """Whether to move members of a gang if it then uses fewer leaves and the gain exceeds the cost. Off by default, as
    it evicts running pods although nothing failed."""
    slowdown: Share = 0.1
    """Assumed slowdown of a gang that uses more leaves than necessary, as a share: 0.1 is 10 %."""


class RecoverySpec(Model):
    """Recovery from failed nodes: Migrations move pods off these nodes."""

    enabled: bool = False
    """Whether to watch nodes and Migrations, and to move pods that have a controller off failed nodes. Off by default,
    as it evicts running pods. The CustomResourceDefinition of Migrations must be installed."""
    dry_run: bool = False
    """Whether to only plan and report Migrations, without reserving nodes or evicting pods."""
    force_delete: bool = False
    """Whether to force-delete pods that never finish terminating because their kubelet is dead. If the node is only
    partitioned, two copies of a pod may run. If off, only nodes with the taint ``node.kubernetes.io/out-of-service``
    get this."""
    debounce: Seconds = 10.0
    """How long a node must have failed before a Migration is planned."""
    reservation_timeout: Seconds = 900.0
    """How long target nodes stay reserved for replacement pods that do not appear. A Job may take ten minutes to create
    them."""
    quarantine: Seconds = 900.0
    """How long a node that failed gets no replacement pods. Each further failure within that time doubles it."""
    domain_failure_share: Share = 0.5
    """A domain counts as failed if more than this share of its nodes, and at least two, failed together."""
    pause_above_not_ready_share: Share = 0.55
    """No Migration starts while more than this share of all nodes is not ready. In that case the scheduler is more
    likely partitioned than the nodes down."""
    maintenance_taints: tuple[QualifiedName, ...] = (f"{PREFIX}maintenance",)
    """Keys of taints that request to drain the node they are on, if it is cordoned."""
    conditions: tuple[QualifiedName, ...] = ()
    """Types of node conditions that report failed hardware by status True, as problem detectors set them."""
    unhealthy_gpus: bool = Field(default=False, alias="unhealthyGPUs")
    """Whether a node counts as failed if it offers fewer GPUs than it has, or than its pods hold. All its pods move, as
    nothing reports which pod holds the failed GPU."""
    link_labels: tuple[LinkLabels, ...] = ()
    """Pairs of labels that differ on nodes with degraded links."""
    pod_failures: PodFailuresSpec = PodFailuresSpec.defaults()
    scale_down_taints: tuple[QualifiedName, ...] = ()
    """Keys of taints that announce the removal of a node (scale-down), so that its pods should move, whether it is
    cordoned or not. Example: ``DeletionCandidateOfClusterAutoscaler``."""
    defragmentation: DefragmentationSpec = DefragmentationSpec.defaults()
    improvement: ImprovementSpec = ImprovementSpec.defaults()
    limits: RecoveryLimits = RecoveryLimits.defaults()
    keep_finished: FinishedSpec = FinishedSpec.defaults()

    @property
    def link_label_keys(self) -> list[str]:
        """Keys of all ``link_labels``."""
        return [key for pair in self.link_labels for key in (pair.current, pair.expected)]
