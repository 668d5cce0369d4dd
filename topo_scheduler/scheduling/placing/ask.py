"""What the planner is asked, and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import Enforcement, PlacementStrategy
from topo_scheduler.scheduling.extensions.extension import Demand
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.links import GangKey
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.residents import Profile


@dataclass(frozen=True, slots=True)
class SizeRuleLimits:
    """The configured size rule. 0 means no limit."""

    enforcement: Enforcement = Enforcement.REQUIRED
    max_nodes_per_leaf: int = 0
    max_gpus_per_leaf: int = 0

    def members_per_leaf(self, gpus: int) -> int:
        """Return the most members with so many GPUs each that one leaf may hold; 0 means no limit."""
        if not self.max_gpus_per_leaf or not gpus:
            return 0
        # A leaf that may not even take one member takes none; 0 would mean no limit, so the caller checks first.
        return self.max_gpus_per_leaf // gpus

    @property
    def within(self) -> str:
        """The limits that are set, to be said behind a reason: `` within maxNodesPerLeaf 4``; empty where none is."""
        named = (("maxNodesPerLeaf", self.max_nodes_per_leaf), ("maxGPUsPerLeaf", self.max_gpus_per_leaf))
        told = " and ".join(f"{name} {limit}" for name, limit in named if limit)
        return f" within {told}" if told else ""


NO_LIMITS: Final = SizeRuleLimits()


@dataclass(frozen=True, slots=True)
class SpreadLimits:
    """How far a gang may spread beside the size rule.

    ``leaves`` at most, 0 for any number; ``depth`` of the domain that they must share at least, 0 for the whole fabric.
    """

    leaves: int = 0
    depth: int = 0


ANYWHERE: Final = SpreadLimits()


@dataclass(frozen=True, slots=True)
class Segments:
    """Runs of so many consecutive ranks, each of which must share a domain of one level; 1 for none.

    ``depth`` and name of that ``level``: 0 for the leaf, -1 for one that no node tells. ``places`` where some of the
    gang run: for each member in order the number of its segment, and the domain where most of that run, -1 where none
    does.

    Where members are not alike, or segments are not: ``parts`` for each group of the ask the segment of each member, -1
    for members of none; ``homes`` segments of which some run, and the domain where most of that do. ``ahead`` members
    beside the multiple of the size: a leader.
    """

    size: int = 1
    depth: int = 0
    level: str = "leaf"
    places: tuple[tuple[int, int], ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    homes: tuple[tuple[int, int], ...] = ()
    ahead: int = 0


NO_SEGMENTS: Final = Segments()


@dataclass(frozen=True, slots=True)
class GangTraffic:
    """What a gang sends over the links of the fabric.

    ``bandwidth`` Mbit/s asked on each of its nodes. ``open`` bool[rows]: where its members may go for the sake of
    links, None for anywhere.
    """

    gang: GangKey
    bandwidth: int
    open: Bool | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PlacementQuery:
    """Members of one workload to be placed together.

    ``groups`` pod class and number of members, most demanding first. ``running`` rows of members that run already,
    one entry a member. ``siblings`` rows of pods to keep away from when spreading. ``preferred`` leaves of the
    preferred domain as (first, last + 1), None when there is none. ``profiles`` what others see of each member of each
    group, where members look at each other. ``within`` depth of the domain that all members, those that run included,
    must share whatever the enforcement: 0 for none, -1 for one that no node is in; ``level`` its name. ``demands`` of
    placement rules for this gang, of which the planner makes ``bounds``. ``segments`` that must each share a leaf.
    ``because`` who asks for ``within``. ``traffic`` of a gang that asks for bandwidth. ``woven`` what is woven into the
    fabric that depths are meant in, as `Layout.woven` has it.
    """

    groups: Sequence[tuple[PodClass, int]]
    gang: bool
    strategy: str = PlacementStrategy.BALANCED
    enforcement: Enforcement = Enforcement.REQUIRED
    latency: bool = False
    mixed_models: bool = False
    preferred: tuple[int, int] | None = None
    running: Sequence[int] = ()
    siblings: Sequence[int] = ()
    profiles: tuple[tuple[Profile | None, ...], ...] = ()
    within: int = 0
    level: str = ""
    demands: tuple[Demand, ...] = ()
    bounds: SpreadLimits = ANYWHERE
    segments: Segments = NO_SEGMENTS
    because: str = "its PodGroup"
    traffic: GangTraffic | None = None
    woven: tuple[str, ...] = ()
    members: int = field(init=False, compare=False)
    """How many are to be placed now."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", sum(count for _, count in self.groups))

    @property
    def in_segments(self) -> bool:
        """Whether some of the members must share a domain with each other, and others needn't."""
        return self.segments.size > 1 or bool(self.segments.parts)

    @property
    def segment(self) -> int:
        """Members of a segment, where all members and all segments are alike; else 1."""
        return 1 if self.segments.parts else self.segments.size

    @property
    def units(self) -> int:
        """How many segments are to be placed now; members, where there are no segments."""
        return self.members // self.segment

    @property
    def total_units(self) -> int:
        """The same of the whole gang."""
        return self.total // self.segment

    @property
    def total(self) -> int:
        """Members of the whole gang, those that run included."""
        return self.members + len(self.running)

    def within_links(self, fit: Int64) -> Int64:
        """Return how many members each row may take (int64[rows]): none where links keep the gang from going."""
        if self.traffic is None or self.traffic.open is None:
            return fit
        return np.where(self.traffic.open, fit, 0)


@dataclass(frozen=True, slots=True)
class Placement:
    """A place for every member.

    ``rows`` for each group of the ask, one row a member, in order of the fabric. ``leaves`` leaf indices used by the
    whole gang. ``seated`` group and position of each member in turn, where members look at each other: each may be
    where it is with those before it. ``shared`` levels of accelerator domains of which all share one, and of
    the network where it cuts these. ``domains`` how
    many domains the whole gang uses of the level of its segments, and its name, where the rule counts these for leaves.
    """

    rows: Sequence[Sequence[int]]
    leaves: Sequence[int]
    rule: SizeRule
    score: ScoreParts
    candidates: int
    seated: Sequence[tuple[int, int]] = ()
    bounds: SpreadLimits = ANYWHERE
    shared: tuple[str, ...] = ()
    domains: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class PlacementFailure:
    """Why there is none. ``best`` what comes closest: members that fit in the best domain now, and its name.

    ``elsewhere`` the rule as it is on the fabric with these levels woven in, where it was looked for on that.
    """

    sentence: str
    rule: SizeRule | None = None
    domains: Sequence[tuple[tuple[str, ...], str]] = field(default=())
    elsewhere: tuple[SizeRule, tuple[str, ...]] | None = None
