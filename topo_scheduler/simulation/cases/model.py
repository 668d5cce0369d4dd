"""A cluster and its workloads as values. Readers make them, the simulator runs them.

Both consist of the objects that the daemon decodes from an API server, so that the scheduling core is fed the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from topo_scheduler.api.config import TopologySpec
from topo_scheduler.api.objects import DisruptionBudget, Job, Node, PartialObject, Pod
from topo_scheduler.state.groups import PodGroup

LIVE: Final = "live"
"""What a live cluster, and what waits in it, is called on the command line."""


class CaseError(ValueError):
    """Input that can't be used. The message names the file, the line or object, the field, and what to do."""


@dataclass(frozen=True, slots=True)
class ClusterCase:
    """A cluster as it is before the first arrival.

    ``pods`` are those that run there already; ``owners`` the workloads above any pods of the case, by uid.
    ``topology`` is what the source says of its levels and links; None takes the configuration of the policy.
    ``storage`` objects by the plural of their kind, as `kube.storage` follows them. ``priority_classes`` as JSON has
    them, for manifests that name one.
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
    """What waits for a node where the source tells it with the cluster: no part of it, the workload `live`."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One workload: pods that arrive together, and end together.

    ``at``: seconds after the start. ``seconds``: how long it runs once all of its pods run; None is for ever.
    ``name`` is unique in its workload case. ``owners`` as in `ClusterCase`. ``source`` where it was told, file and
    line, for messages.
    """

    name: str
    at: float
    seconds: float | None
    pods: tuple[Pod, ...]
    owners: dict[str, Job | PartialObject] = field(default_factory=dict)
    groups: tuple[PodGroup, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadCase:
    """What arrives, in order of ``at``; of equal times in the order of the source."""

    name: str
    arrivals: tuple[Arrival, ...]
