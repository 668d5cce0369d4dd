"""The Decision: what was decided on a workload, on which state, and why. Events, logs and metrics are views of it.

What is made for each decision is a Struct, as one is made in a tenth of the time that a frozen dataclass takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from topo_scheduler.state.fabric import Path
from topo_scheduler.state.storage import VolumeChoice


class Verdict(StrEnum):
    """Outcome of one attempt."""

    PLACED = "placed"
    UNSCHEDULABLE = "unschedulable"


class ScoreParts(msgspec.Struct, frozen=True):
    """Score in thousandths, in parts before weighting. ``added`` those of plugins, by name.

    ``by_node``: a pod was placed alone by one score of nodes, which is all there is.
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
    """What the size rule asks of a gang.

    ``nodes`` distinct nodes it uses at least; ``leaves`` fewest leaves that could hold it if all its nodes were empty;
    ``depth`` of the domain those leaves must share (0: the whole fabric); ``domain`` that depth's name.
    """

    nodes: int
    leaves: int
    depth: int
    domain: str


class Quality(msgspec.Struct, frozen=True):
    """How a gang lies in the fabric.

    ``levels`` how many levels up the first domain lies that all members share: 0 the node, 1 the leaf, and so on;
    ``level`` its name. ``most_hops`` between two members, ``mean_hops`` over all pairs in thousandths.
    """

    levels: int
    level: str
    most_hops: int
    mean_hops: int


class Seat(msgspec.Struct, frozen=True):
    """One member's place.

    ``volumes`` how its claims that waited for a node get theirs; ``devices`` indexes of its GPUs where they are
    shared.
    """

    uid: str
    namespace: str
    name: str
    row: int
    node: str
    rank: int
    address: str
    volumes: tuple[VolumeChoice, ...] = ()
    devices: tuple[int, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """One attempt to place a workload.

    ``generation`` of the state it was made on; ``members`` how many were to be placed; ``reasons`` nodes by reason;
    ``domain_reasons`` first reason by domain that lost; ``sentence`` the reason in the words of the domain.
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
    """Of a gang that was placed, its members that ran before included."""
    leaves: tuple[Path, ...] = ()
    candidates: int = 0
    nodes: int = 0
    reasons: Mapping[str, int] | None = None
    domain_reasons: tuple[tuple[Path, str], ...] = ()
    sentence: str = ""
    room_helps: bool = True
    """False when not even empty nodes would do: only other nodes or another configuration can help."""

    @property
    def message(self) -> str:
        """The line every user greps for, then the domain's sentence."""
        if self.verdict is not Verdict.UNSCHEDULABLE:
            return self.sentence
        histogram = ", ".join(sorted(f"{count} {reason}" for reason, count in (self.reasons or {}).items()))
        line = f"0/{self.nodes} nodes are available" + (f": {histogram}." if histogram else ".")
        return f"{line} {self.sentence}" if self.sentence else line
