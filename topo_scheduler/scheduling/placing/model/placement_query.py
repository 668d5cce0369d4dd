"""The query that the planner gets, and its answers: a placement, or a failure with its reason."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import Enforcement, PlacementStrategy
from topo_scheduler.scheduling.extensions.extension import Demand
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.topology.links import GangKey


@dataclass(frozen=True, slots=True)
class SizeRuleLimits:
    """The configured size rule. 0 means no limit."""

    enforcement: Enforcement = Enforcement.REQUIRED
    max_nodes_per_leaf: int = 0
    max_gpus_per_leaf: int = 0

    def members_per_leaf(self, gpus: int) -> int:
        """Return the most members that one leaf may hold, given the ``gpus`` of each; 0 means no limit."""
        if not self.max_gpus_per_leaf or not gpus:
            return 0
        # 0 also results where the limit is below one member. The caller checks that first.
        return self.max_gpus_per_leaf // gpus

    @property
    def within(self) -> str:
        """The limits that are set, as the end of a message: `` within maxNodesPerLeaf 4``; empty without limits."""
        limits = (("maxNodesPerLeaf", self.max_nodes_per_leaf), ("maxGPUsPerLeaf", self.max_gpus_per_leaf))
        text = " and ".join(f"{name} {limit}" for name, limit in limits if limit)
        return f" within {text}" if text else ""


NO_LIMITS: Final = SizeRuleLimits()


@dataclass(frozen=True, slots=True)
class SpreadLimits:
    """How far a gang may spread beside the size rule.

    ``leaves``: the most leaves, 0 for any number. ``depth``: the gang must share one domain of this depth or deeper, 0
    for the whole fabric.
    """

    leaves: int = 0
    depth: int = 0


ANYWHERE: Final = SpreadLimits()


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments of a gang: ``size`` consecutive ranks that must share a domain of one level; size 1 means no segments.

    ``level`` is the name of that level and ``depth`` its depth: 0 for the leaf, -1 for a level without node labels.
    ``places`` is set where some members run already. It has an entry for each member in order: the number of its
    segment, and the domain where most of that segment runs, or -1.

    The other fields are for gangs whose members or segments differ. ``parts`` has the segment of each member of each
    group of the query, -1 for members in no segment. ``homes`` lists each segment that runs in part, and the domain
    where most of it runs. ``ahead`` counts members on top of a multiple of the size, such as a leader.
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

    ``bandwidth``: Mbit/s that the gang asks for on each of its nodes. ``open`` bool[rows]: rows that its links allow,
    None for all rows.
    """

    gang: GangKey
    bandwidth: int
    open: Bool | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PlacementQuery:
    """Members of one workload that the planner has to place together.

    ``groups``: pod class and number of members, the most demanding class first. ``running``: rows of members that run
    already, one entry per member. ``siblings``: rows of pods to avoid when spreading. ``preferred``: leaves of the
    preferred domain as (first, last + 1), None without one. ``profiles``: for each member of each group, what other
    pods see of it; only set where members have constraints on each other.

    ``within``: depth of the domain that all members, running ones included, must share whatever the enforcement. It is
    0 for none and -1 for a level without node labels. ``level`` is the name of that level, ``because`` what asks for
    it.

    ``demands``: placement rules for this gang, from which the planner derives ``bounds``. ``segments`` must each share
    a leaf. ``traffic``: only for gangs that ask for bandwidth. ``woven``: levels woven into the fabric to which the
    depths refer, as in `Layout.woven`.
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
    """Number of members to place now."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", sum(count for _, count in self.groups))

    @property
    def in_segments(self) -> bool:
        """Whether the gang has segments."""
        return self.segments.size > 1 or bool(self.segments.parts)

    @property
    def segment(self) -> int:
        """Members per segment where all members and all segments are alike; otherwise 1."""
        return 1 if self.segments.parts else self.segments.size

    @property
    def units(self) -> int:
        """Number of segments to place now; without segments, number of members."""
        return self.members // self.segment

    @property
    def total_units(self) -> int:
        """Number of segments, or members, of the whole gang."""
        return self.total // self.segment

    @property
    def total(self) -> int:
        """Members of the whole gang, running ones included."""
        return self.members + len(self.running)

    def within_links(self, fit: Int64) -> Int64:
        """Return how many members each row may take (int64[rows]): 0 on rows that the links of the gang rule out."""
        if self.traffic is None or self.traffic.open is None:
            return fit
        return np.where(self.traffic.open, fit, 0)

    def restricted_to(self, rows: Bool | None) -> "PlacementQuery":
        """Return the query if the links of the gang allow only these rows (bool[rows]), None for all rows."""
        assert self.traffic is not None
        return replace(self, traffic=replace(self.traffic, open=rows))


@dataclass(frozen=True, slots=True)
class Placement:
    """A row for every member.

    ``rows``: for each group of the query one row per member, in order of the fabric. ``leaves``: leaf indices that the
    whole gang uses. ``candidates``: how many placements the planner compared.

    ``seated``: group and position of each member in turn, where members have constraints on each other. Each member is
    allowed on its row given the members before it. ``shared``: levels of accelerator domains of which all members share
    one, and levels of the network that cut these. ``domains``: number of domains that the whole gang uses at the level
    of its segments, and the name of that level. It is set where the size rule counts these domains instead of leaves.
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
    """Why there is no placement: ``sentence``.

    ``domains``: paths of domains that fail, each with its reason. ``elsewhere``: set where the planner used a fabric
    with other levels woven in. It has the size rule on that fabric, and these levels. ``too_large``: whether the
    sentence only says that not even an empty domain holds a gang of several classes.
    """

    sentence: str
    rule: SizeRule | None = None
    domains: Sequence[tuple[tuple[str, ...], str]] = field(default=())
    elsewhere: tuple[SizeRule, tuple[str, ...]] | None = None
    too_large: bool = False
