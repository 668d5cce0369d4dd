"""Remedies for a pending workload as values, and the state on which the search tries them."""

from dataclasses import astuple, dataclass, field
from enum import StrEnum

from topo_scheduler.scheduling.explaining.what_if import WhatIf
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.pods.workloads import Member, Workload
from topo_scheduler.state.topology.fabric import Layout


class RemedyKind(StrEnum):
    """Kind of change."""

    WAIT = "wait"
    RETURN = "returnNodes"
    RELAX = "relax"
    DROP = "dropDemand"
    REDUCE = "reduce"
    FREE = "free"
    COMBINE = "combine"


@dataclass(frozen=True, slots=True, order=True)
class RemedyCost:
    """Cost of a remedy. The first field that differs decides a comparison."""

    pods: int = 0
    gpus: int = 0
    members: int = 0
    demands: int = 0
    levels: int = 0
    nodes: int = 0
    seconds: int = 0

    def __add__(self, other: "RemedyCost") -> "RemedyCost":
        """Return the cost of both remedies together."""
        return RemedyCost(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class EndingPods:
    """Pods that end together: a whole gang, or one pod.

    Attributes:
        name: name with the namespace.
        gang: whether it is a gang.
        pods: names of the pods, with the namespace.
        gpus: GPUs that they hold.
        ends: expected end in seconds since the epoch; infinite where unknown.
    """

    name: str
    gang: bool
    pods: tuple[str, ...]
    gpus: int
    ends: float


@dataclass(frozen=True, slots=True)
class Remedy:
    """One remedy.

    Attributes:
        kind: kind of change.
        cost: cost of the change.
        ended: pods to end, or to wait for.
        nodes: nodes that get free, that are put back into use, or that the workload would take.
        size: members that fit.
        level: innermost level of which one domain would hold the gang.
        demand: name of the demand to change in the pods.
        value: its new value, or the value to remove.
        until: time at which the awaited pods have ended, in seconds since the epoch.
        parts: changes that help only together.
        least: whether certainly no cheaper set of pods to end is enough.
    """

    kind: RemedyKind
    cost: RemedyCost
    ended: tuple[EndingPods, ...] = ()
    nodes: tuple[str, ...] = ()
    size: int = 0
    level: str = ""
    demand: str = ""
    value: str = ""
    until: float = 0.0
    parts: tuple["Remedy", ...] = ()
    least: bool = True


@dataclass(slots=True)
class Scene:
    """The workload and the copy of the state on which the search tries remedies.

    Attributes:
        what_if: copy of the state.
        workload: the pending workload.
        members: members that must be placed at once, in order.
        ask: their query to the planner.
        rule: size rule of that query.
        wall: time in seconds since the epoch.
        remedies: verified remedies so far.
    """

    what_if: WhatIf
    workload: Workload
    members: list[Member]
    ask: PlacementQuery
    rule: SizeRule | None
    wall: float
    remedies: list[Remedy] = field(default_factory=list)

    @property
    def layout(self) -> Layout:
        """The fabric to which the levels of the query refer."""
        return self.what_if.seen_by(self.ask)
