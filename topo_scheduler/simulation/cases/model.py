"""Data model of a cluster and its workloads. Readers create them, the simulator runs them.

Both consist of the objects that the daemon decodes from an API server, so the scheduling core receives the same input.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from topo_scheduler.api.config import TopologySpec
from topo_scheduler.api.devices import ResourceClaim, ResourceClaimSpec
from topo_scheduler.api.objects import DisruptionBudget, Job, Node, PartialObject, Pod
from topo_scheduler.state.pods.pod_groups import PodGroup

LIVE: Final = "live"
"""The name on the command line of a live cluster, and of its pending pods as a workload."""


ClaimTemplates = Mapping[tuple[str, str], ResourceClaimSpec]
"""What ResourceClaimTemplates ask for, by namespace and name."""


class CaseError(ValueError):
    """Unusable input. The message names the file, the line or object, the field, and the remedy."""


@dataclass(frozen=True, slots=True)
class ClusterCase:
    """A cluster as it is before the first arrival.

    ``pods`` are the pods that run there already. ``owners`` are the controllers of any pods of the case, by uid.
    ``topology`` describes the levels and links; None means the configuration of the policy applies.
    ``storage`` maps the plural of each kind that `kube.reading.storage` watches to its objects. ``templates`` are its
    ResourceClaimTemplates.
    ``priority_classes`` are JSON objects, for manifests that name one.
    """

    name: str
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...] = ()
    owners: dict[str, Job | PartialObject] = field(default_factory=dict)
    groups: tuple[PodGroup, ...] = ()
    budgets: tuple[DisruptionBudget, ...] = ()
    namespaces: tuple[PartialObject, ...] = ()
    topology: TopologySpec | None = None
    storage: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    priority_classes: tuple[Mapping[str, Any], ...] = ()
    waiting: tuple["Arrival", ...] = ()
    """Pending pods that the source returns with the cluster. They are the workload `live`, not part of the cluster."""
    templates: ClaimTemplates = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One workload: pods that arrive together, and end together.

    ``at``: seconds after the start. ``seconds``: how long it runs once all of its pods run; None is for ever.
    ``name`` is unique in its workload case. ``owners`` as in `ClusterCase`. ``source`` is the file and line that
    describe it, for messages. ``templates`` and ``claims`` are those that its pods name and that its source has.
    """

    name: str
    at: float
    seconds: float | None
    pods: tuple[Pod, ...]
    owners: dict[str, Job | PartialObject] = field(default_factory=dict)
    groups: tuple[PodGroup, ...] = ()
    source: str = ""
    templates: ClaimTemplates = field(default_factory=dict)
    claims: tuple[ResourceClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadCase:
    """Arrivals in order of ``at``; those of equal times in the order of the source."""

    name: str
    arrivals: tuple[Arrival, ...]
