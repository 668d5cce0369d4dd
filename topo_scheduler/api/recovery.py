"""What is done when nodes fail: whether, how soon, and how much of it at once."""

from typing import Annotated, Final

from pydantic import BeforeValidator, Field, PlainSerializer

from topo_scheduler.api.durations import parse_duration, written_duration
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.models import Model, Seconds, Share


class RecoveryLimits(Model):
    """How many Migrations may hold seats and evict. What is beyond waits in phase Planned."""

    at_once: Annotated[int, Field(ge=1, le=1000)] = 128
    """At the same time."""
    per_namespace: Annotated[int, Field(ge=1, le=1000)] = 64
    """At the same time in one namespace."""
    per_hour: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Begun within an hour."""
    moves_per_hour: Annotated[int, Field(ge=1, le=100_000)] = 30
    """Pods that are moved within an hour though nothing failed: by ``defragmentation`` and ``improvement``."""
    rest: Seconds = 3600.0
    """How long a workload of which pods were moved, for whatever reason, is left alone by these two."""


_MOST: Final = 366 * 86_400


def _age(value: object) -> object:
    return parse_duration(value, _MOST) if isinstance(value, str) else value


class FinishedSpec(Model):
    """How long Migrations are kept that are over; each for an hour and `limits.rest` at least."""

    time: Annotated[float, BeforeValidator(_age), PlainSerializer(written_duration), Field(gt=0, le=_MOST)] = 604_800.0
    """Deleted after so long, at most 8784 h."""
    most: Annotated[int, Field(ge=0, le=100_000)] = 1000
    """Beyond so many the oldest are deleted earlier."""


class LinkLabels(Model):
    """Two labels of a node that are equal while its links are whole."""

    current: str
    """Key of the label that tells what is."""
    expected: str
    """Key of the label that tells what should be."""


class PodFailuresSpec(Model):
    """When a node is taken for failed by what happens to pods there, though not to others of their workloads elsewhere.

    Pods count that its kubelet refused, and those that crash there time after time while others of the same gang or
    controller run on other nodes.
    """

    enabled: bool = True
    """Whether nodes are judged so."""
    workloads: Annotated[int, Field(ge=2, le=1000)] = 3
    """A node has failed when that is so for pods of so many workloads."""
    refusals: Annotated[int, Field(ge=2, le=1000)] = 5
    """A node has failed as well when it refused so many pods, of however many workloads."""
    namespaces: Annotated[int, Field(ge=1, le=1000)] = 2
    """In either case pods of so many namespaces must be concerned: one tenant alone condemns no node. Set it to 1 where
    all workloads share a namespace."""
    restarts: Annotated[int, Field(ge=1, le=1000)] = 3
    """A container in ``CrashLoopBackOff`` counts from so many restarts on."""
    window: Seconds = 600.0
    """How long what happened to a pod counts after it was seen last."""


class DefragmentationSpec(Model):
    """Whether pods are moved to make large blocks of free GPUs out of small ones."""

    enabled: bool = False
    """Move the fewest pods whose move makes room for a gang that has waited ``repair.after``. Off by default, as it
    evicts running pods though nothing failed."""
    largest_block: bool = False
    """Where no gang waits, move pods off nodes also where that makes the largest block of free nodes in one leaf
    larger."""


class ImprovementSpec(Model):
    """Whether gangs that had to spread return to fewer leaves when these are free."""

    enabled: bool = False
    """Move members of a gang where that leaves it in fewer leaves and is worth its cost. Off by default, as it evicts
    running pods though nothing failed."""
    slowdown: Share = 0.1
    """How much slower a gang is taken to run while it lies in more leaves than it could, as a share."""


class RecoverySpec(Model):
    """Whether pods are moved off nodes that failed, by Migrations."""

    enabled: bool = False
    """Watch nodes and Migrations, and move pods that a controller makes again off nodes that failed. Off by default, as
    it evicts running pods; the definition of Migrations must be installed."""
    dry_run: bool = False
    """Plan and report Migrations, but hold no seats and evict nobody."""
    force_delete: bool = False
    """Delete pods at once where a dead kubelet would let them terminate for ever. Two pods may run then if the node is
    only cut off. Otherwise this is done on nodes with the taint ``node.kubernetes.io/out-of-service`` only."""
    debounce: Seconds = 10.0
    """How long a node must have failed before anything is planned."""
    seats_expire: Seconds = 900.0
    """How long seats are held for pods that do not come. Jobs wait up to ten minutes until they make them."""
    quarantine: Seconds = 900.0
    """How long no replacement goes to a node that failed once; each further failure within that time doubles it."""
    domain_share: Share = 0.5
    """A domain has failed as one when more than this share of its nodes, and two at least, failed together."""
    hold_above: Share = 0.55
    """Nothing is begun while more than this share of all nodes is not ready: then rather we are cut off, not they."""
    maintenance_taints: tuple[str, ...] = (f"{PREFIX}maintenance",)
    """Keys of taints which say, on a cordoned node, that its pods should leave."""
    conditions: tuple[str, ...] = ()
    """Types of node conditions that say, when True, that a node's hardware failed, as problem detectors write them."""
    unhealthy_gpus: bool = Field(default=False, alias="unhealthyGPUs")
    """Take a node that offers fewer GPUs than it has, or than its pods hold, for failed. All its pods move, as nobody
    tells whose GPU it is."""
    link_labels: tuple[LinkLabels, ...] = ()
    """Labels that tell degraded links where they differ."""
    pod_failures: PodFailuresSpec = PodFailuresSpec.defaults()
    scale_down_taints: tuple[str, ...] = ()
    """Keys of taints which say that a node is to be removed, so that its pods should leave, cordoned or not:
    ``DeletionCandidateOfClusterAutoscaler``, for example."""
    defragmentation: DefragmentationSpec = DefragmentationSpec.defaults()
    improvement: ImprovementSpec = ImprovementSpec.defaults()
    limits: RecoveryLimits = RecoveryLimits.defaults()
    keep_finished: FinishedSpec = FinishedSpec.defaults()
