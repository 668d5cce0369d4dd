"""Ways out of waiting, as values, and what they are tried on."""

from dataclasses import astuple, dataclass, field
from enum import StrEnum

from topo_scheduler.scheduling.explaining.what_if import WhatIf
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.workloads import Member, Workload


class RemedyKind(StrEnum):
    """What is to be done."""

    WAIT = "wait"
    RETURN = "returnNodes"
    RELAX = "relax"
    DROP = "dropDemand"
    REDUCE = "reduce"
    FREE = "free"
    COMBINE = "combine"


@dataclass(frozen=True, slots=True, order=True)
class RemedyCost:
    """What a way out takes; the first part that differs decides."""

    pods: int = 0
    gpus: int = 0
    members: int = 0
    demands: int = 0
    levels: int = 0
    nodes: int = 0
    seconds: int = 0

    def __add__(self, other: "RemedyCost") -> "RemedyCost":
        """Return what both take together."""
        return RemedyCost(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class EndingPods:
    """Pods that end together: a gang whole, or one pod. ``name`` with its namespace, ``ends`` as far as is known."""

    name: str
    gang: bool
    pods: tuple[str, ...]
    gpus: int
    ends: float


@dataclass(frozen=True, slots=True)
class Way:
    """One way out.

    ``ended`` what must end, or is waited for; ``nodes`` that get free, or are put back; ``size`` members that fit;
    ``level`` innermost level of which one domain would hold the gang; ``demand`` and ``value`` what is to be changed in
    the pods; ``until`` seconds since the epoch; ``parts`` of several that help only together; ``least`` whether it is
    certain that no cheaper set of pods to end would do.
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
    parts: tuple["Way", ...] = ()
    least: bool = True


@dataclass(slots=True)
class Scene:
    """What is tried on. ``members`` those who must be placed at once, in order; ``wall`` seconds since the epoch."""

    what_if: WhatIf
    workload: Workload
    members: list[Member]
    ask: PlacementQuery
    rule: SizeRule | None
    wall: float
    found: list[Way] = field(default_factory=list)

    @property
    def layout(self) -> Layout:
        """The fabric on which what is asked is meant."""
        return self.what_if.seen_by(self.ask)
