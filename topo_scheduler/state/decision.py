"""The Decision on a workload: its outcome, the state it was based on, and the reasons.

Events, logs and metrics are views of it. Types created for each decision are Structs: creating one takes a tenth of
the time of a frozen dataclass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from topo_scheduler.state.devices.claim_writes import ClaimChoice
from topo_scheduler.state.storage.storage_objects import VolumeChoice
from topo_scheduler.state.topology.fabric import Path


class Verdict(StrEnum):
    """Outcome of one attempt."""

    PLACED = "placed"
    UNSCHEDULABLE = "unschedulable"


class ScoreParts(msgspec.Struct, frozen=True):
    """Score in thousandths, by part before weighting. ``added`` has the scores of plugins, by name.

    ``by_node``: a single pod was placed by one node score, which is the only part.
    """

    availability: int
    alignment: int
    utilization: int
    history: int
    total: int
    added: tuple[tuple[str, int], ...] = ()
    by_node: bool = False


@dataclass(frozen=True, slots=True)
class SizeRule:
    """Requirements of the size rule for a gang.

    ``nodes`` is the minimum number of distinct nodes. ``leaves`` is the minimum number of leaves that could hold the
    gang on empty nodes. ``depth`` is that of the domain that these leaves must share (0: the whole fabric), ``domain``
    its name.
    """

    nodes: int
    leaves: int
    depth: int
    domain: str


class Quality(msgspec.Struct, frozen=True):
    """How closely a gang is placed in the fabric.

    ``levels`` is the height of the innermost domain that all members share: 0 the node, 1 the leaf, and so on;
    ``level`` is its name. ``most_hops`` is the maximum between two members, ``mean_hops`` the mean over all pairs in
    thousandths.
    """

    levels: int
    level: str
    most_hops: int
    mean_hops: int


class Seat(msgspec.Struct, frozen=True):
    """The node assigned to one member.

    ``volumes`` has the volume choices for its WaitForFirstConsumer claims. ``claims`` has the devices of its
    ResourceClaims. ``devices`` has the indexes of its GPUs on a node that shares GPUs. If ``predicted``, they are those
    that the device plugin of another node is expected to give to it. ``device_score`` has the parts of their score by
    name, if the pod asks how close its GPUs are.
    """

    uid: str
    namespace: str
    name: str
    row: int
    node: str
    rank: int
    address: str
    volumes: tuple[VolumeChoice, ...] = ()
    claims: tuple[ClaimChoice, ...] = ()
    devices: tuple[int, ...] = ()
    predicted: bool = False
    device_score: Mapping[str, int] | None = None


class Decision(msgspec.Struct, frozen=True):
    """One attempt to place a workload.

    ``generation`` is that of the state of the decision. ``members`` counts the members to be placed. ``reasons`` has
    the number of nodes by reason, ``domain_reasons`` the first reason by rejected domain. ``sentence`` is the reason
    in plain words.
    """

    id: int
    workload: str
    name: str
    generation: int
    verdict: Verdict
    members: int
    seats: tuple[Seat, ...] = ()
    rule: SizeRule | None = None
    score: ScoreParts | None = None
    quality: Quality | None = None
    """For a placed gang, including members that already ran."""
    leaves: tuple[Path, ...] = ()
    candidates: int = 0
    nodes: int = 0
    reasons: Mapping[str, int] | None = None
    domain_reasons: tuple[tuple[Path, str], ...] = ()
    sentence: str = ""
    room_helps: bool = True
    """False if not even empty nodes would be enough: only different nodes or a different configuration can help."""

    @property
    def message(self) -> str:
        """The line of kube-scheduler that users search for, then the sentence."""
        if self.verdict is not Verdict.UNSCHEDULABLE:
            return self.sentence
        histogram = ", ".join(sorted(f"{count} {reason}" for reason, count in (self.reasons or {}).items()))
        line = f"0/{self.nodes} nodes are available" + (f": {histogram}." if histogram else ".")
        return f"{line} {self.sentence}" if self.sentence else line
