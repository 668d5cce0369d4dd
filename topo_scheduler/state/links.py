"""What gangs have reserved of the links of the fabric.

A gang that asked for bandwidth B on each of its nodes may send that much from any node to any other, so of each link it
reserves B x min(its nodes below the link, its nodes elsewhere), in each direction. That is worked out for a gang as a
whole from where its pods are: whoever knows the pods knows the reservations, in whatever order he came to know them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import GANG_ID, RESERVED_BANDWIDTH, written_number
from topo_scheduler.api.links import NODE, Link, uplink_label
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.quantity import MAX_BANDWIDTH_MBITS
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import UNKNOWN, Int64, NodeTable
from topo_scheduler.state.wiring import Capacities, Wiring, capacities, wire

GangKey = tuple[str, str]
"""Namespace and identity of a gang."""
UNLIMITED: Final = 1 << 62
_NONE: Final[Int64] = np.empty(0, np.int64)


def reservation_of(pod: Pod) -> tuple[GangKey, int] | None:
    """Return for which gang a bound pod has bandwidth reserved, and how many Mbit/s a node; None for none."""
    annotations = pod.metadata.annotations
    if RESERVED_BANDWIDTH not in annotations:
        return None
    bandwidth = written_number(annotations, RESERVED_BANDWIDTH) or 0
    gang = annotations.get(GANG_ID, "")
    if not gang or not 0 < bandwidth <= MAX_BANDWIDTH_MBITS:
        return None
    return (pod.metadata.namespace, gang), bandwidth


@dataclass(slots=True)
class Flow:
    """What one gang sends. ``pods`` node and Mbit/s by uid; ``nodes`` and ``bandwidths`` how many pods have each.

    ``links`` int64[n] and ``amounts`` int64[n]: what is charged for it as of the last time that was settled.
    """

    pods: dict[str, tuple[str, int]] = field(default_factory=dict)
    nodes: Counter[str] = field(default_factory=Counter)
    bandwidths: Counter[int] = field(default_factory=Counter)
    links: Int64 = field(default_factory=lambda: _NONE)
    amounts: Int64 = field(default_factory=lambda: _NONE)

    @property
    def bandwidth(self) -> int:
        """Mbit/s a node: the most that any of its pods asked for."""
        return max(self.bandwidths, default=0)

    def add(self, uid: str, node: str, bandwidth: int) -> None:
        """Count a pod."""
        self.pods[uid] = (node, bandwidth)
        self.nodes[node] += 1
        self.bandwidths[bandwidth] += 1

    def take(self, uid: str) -> None:
        """Count a pod no longer."""
        node, bandwidth = self.pods.pop(uid)
        self.nodes[node] -= 1
        if not self.nodes[node]:
            del self.nodes[node]
        self.bandwidths[bandwidth] -= 1
        if not self.bandwidths[bandwidth]:
            del self.bandwidths[bandwidth]


@dataclass(frozen=True, slots=True)
class LinkShortage:
    """A link that would have to carry more than it can: Mbit/s it carries, has ``left`` and would need for a gang."""

    link: int
    capacity: int
    left: int
    needed: int


class Links:
    """Capacity and reservations of all links; the only writer of the node table's ``reserved_bandwidth``."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._flows: dict[GangKey, Flow] = {}
        self._gang_of: dict[str, GangKey] = {}
        self._dirty: dict[GangKey, None] = {}
        self._layout: Layout | None = None
        self._wiring: Wiring | None = None
        self._capacities = Capacities(_NONE)
        self._reserved: Int64 = _NONE
        self._told: Sequence[Link] = ()
        self._stale = self._changed = True
        self._freed = False
        self._complained: set[str] = set()
        self._to_say = False
        self.capacity_changes = 0
        """How often it changed what any link carries, for use in the keys of caches."""

    def __len__(self) -> int:
        """Return how many gangs have bandwidth reserved."""
        return len(self._flows)

    def copy(self, nodes: NodeTable) -> "Links":
        """Return a copy to try things on, whose reservations are told to another table."""
        other = copy(self)
        other._nodes = nodes
        other._flows = {
            key: replace(flow, pods=dict(flow.pods), nodes=flow.nodes.copy(), bandwidths=flow.bandwidths.copy())
            for key, flow in self._flows.items()
        }
        other._gang_of, other._dirty = dict(self._gang_of), dict(self._dirty)
        other._reserved = self._reserved.copy()
        if other._wiring is not None:
            other._tell()
        return other

    # ------------------------------------------------------------ what changes

    def configure(self, told: Sequence[Link]) -> None:
        """Take over ``links`` of the configuration."""
        self._told = told
        self._complained.clear()
        default = next((link.mbits for link in told if link.level == NODE), None)
        self._nodes.assume_bandwidth(UNKNOWN if default is None else default)
        self.nodes_changed()

    def nodes_changed(self) -> None:
        """Note that nodes came, went, or changed their labels."""
        self._stale = self._freed = self._changed = True

    def put(self, uid: str, gang: GangKey, node: str, bandwidth: int) -> None:
        """Reserve for a pod, in place of what was reserved for it before.

        Args:
            uid: of the pod.
            gang: that it belongs to.
            node: where it is or will be.
            bandwidth: Mbit/s that the gang asks on each of its nodes, above 0.
        """
        known = self._gang_of.get(uid)
        if known is not None:
            if known == gang and self._flows[gang].pods[uid] == (node, bandwidth):
                return
            self.drop(uid)
        self._to_say |= not self._flows
        self._gang_of[uid] = gang
        self._flows.setdefault(gang, Flow()).add(uid, node, bandwidth)
        self._dirty[gang] = None

    def drop(self, uid: str) -> bool:
        """Give back what was reserved for a pod; return whether there was anything."""
        gang = self._gang_of.pop(uid, None)
        if gang is None:
            return False
        self._flows[gang].take(uid)
        self._dirty[gang] = None
        self._freed = True
        return True

    def pod_bound(self, pod: Pod, *, believed: bool = True) -> bool:
        """Take over what annotations of a bound pod say is reserved; return whether it held something else before.

        What is known of a pod on its node stays: its annotations may have been edited. Of others no more counts than
        their node can send.

        Args:
            pod: the pod.
            believed: whether this scheduler may have placed it; annotations of other pods reserve nothing.
        """
        uid, node = pod.metadata.uid, pod.spec.node_name
        before = self.held(uid) if self._gang_of else None
        if before is not None and before[1] == node:
            return False
        reserved = reservation_of(pod) if believed else None
        if reserved is not None:
            row = self._nodes.row_of.get(node)
            known = UNKNOWN if row is None else int(self._nodes.bandwidth[row])
            self.put(uid, reserved[0], node, min(reserved[1], known) if known > 0 else reserved[1])
            return before is not None and before != self.held(uid)
        return before is not None and self.drop(uid)

    def take_freed(self) -> bool:
        """Return whether links may carry more for others than at the last call."""
        freed, self._freed = self._freed and bool(self._told or self._flows or self._capacities.limited), False
        return freed

    # ------------------------------------------------------------ settling

    def take_changed(self) -> bool:
        """Return whether nodes changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    @property
    def told(self) -> bool:
        """Whether the configuration tells of links, or anybody has bandwidth reserved."""
        return bool(self._told or self._flows)

    def settle(self, layout: Layout) -> None:
        """Bring capacities and reservations up to date with nodes and pods. Costs nothing while nothing changed."""
        if self._stale or layout is not self._layout:
            self._rewire(layout)
        if self._dirty:
            self._charge_again(self._dirty)
            self._dirty.clear()
            self._tell()  # anew: one that was read back from bytes is no view any more

    def _rewire(self, layout: Layout) -> None:
        before = self._capacities.mbits
        if layout is not self._layout:
            self._layout, self._wiring = layout, wire(layout)
            self._charge_all()
            self._tell()
        assert self._wiring is not None
        self._capacities = capacities(self._wiring, self._nodes, self._told)
        self._stale, self._to_say = False, True
        if not np.array_equal(before, self._capacities.mbits):
            self.capacity_changes += 1

    def _charge_all(self) -> None:
        """Work out what all gangs need at once, as `_charge_again` does one by one."""
        wiring, row_of = self.wiring, self._nodes.row_of
        self._reserved = np.zeros(wiring.links, np.int64)
        self._flows = {gang: flow for gang, flow in self._flows.items() if flow.pods}
        self._dirty.clear()
        flows = list(self._flows.values())
        found = [
            (number, row)
            for number, flow in enumerate(flows)
            for node in flow.nodes
            if (row := row_of.get(node)) is not None
        ]
        pairs = np.array(found, np.int64).reshape(len(found), 2)
        both = pairs[:, :1] * wiring.links + wiring.of_row[pairs[:, 1]]
        keys, below = np.unique(both, return_counts=True)
        gangs, links = np.divmod(keys, wiring.links)
        totals = np.array([len(flow.nodes) for flow in flows], np.int64)
        bandwidths = np.array([flow.bandwidth for flow in flows], np.int64)
        amounts = bandwidths[gangs] * np.minimum(below, totals[gangs] - below)
        np.add.at(self._reserved, links, amounts)
        ends = np.searchsorted(gangs, np.arange(len(flows) + 1)).tolist()
        for flow, first, last in zip(flows, ends, ends[1:], strict=False):
            flow.links, flow.amounts = links[first:last], amounts[first:last]

    def _charge_again(self, gangs: Collection[GangKey]) -> None:
        for gang in gangs:
            flow = self._flows[gang]
            self._reserved[flow.links] -= flow.amounts
            flow.links, flow.amounts = self._needs(flow, _NONE, 0)
            self._reserved[flow.links] += flow.amounts
        for gang in [gang for gang in gangs if not self._flows[gang].pods]:
            del self._flows[gang]

    def _tell(self) -> None:
        self._nodes.reserved_bandwidth = self._reserved[: self._nodes.rows]

    def _needs(self, flow: Flow | None, rows: Int64, bandwidth: int) -> tuple[Int64, Int64]:
        """Return the links a gang uses with further rows, and what it needs of each."""
        assert self._wiring is not None
        total = 0
        if flow is not None:
            row_of = self._nodes.row_of
            found = [row for node in flow.nodes if (row := row_of.get(node)) is not None]
            # Nodes that are gone hang nowhere, and are elsewhere for all others.
            total = len(flow.nodes) - len(found)
            rows = np.concatenate((rows, np.array(found, np.int64)))
            bandwidth = max(bandwidth, flow.bandwidth)
        rows = np.unique(rows)
        total += len(rows)
        links, below = np.unique(self._wiring.of_row[rows], return_counts=True)
        return links, bandwidth * np.minimum(below, total - below)

    # ------------------------------------------------------------ what is asked

    @property
    def wiring(self) -> Wiring:
        """The links, as of the last time they were settled."""
        assert self._wiring is not None
        return self._wiring

    @property
    def capacity(self) -> Int64:
        """What each link carries in Mbit/s (int64[links]), -1 where that is not known."""
        return self._capacities.mbits

    @property
    def reserved(self) -> Int64:
        """What is reserved of each link in Mbit/s (int64[links])."""
        return self._reserved

    @property
    def limited(self) -> bool:
        """Whether the capacity of any link is known."""
        return self._capacities.limited

    def node_name(self, row: int) -> str:
        """Return the name of the node in a row."""
        return self._nodes.names[row]

    def held(self, uid: str) -> tuple[GangKey, str, int] | None:
        """Return gang, node and Mbit/s that are reserved for a pod, None for none."""
        gang = self._gang_of.get(uid)
        return None if gang is None else (gang, *self._flows[gang].pods[uid])

    def rows_of(self, gang: GangKey) -> tuple[Int64, int]:
        """Return the rows for which a gang has bandwidth reserved, ascending, and how many of its nodes are gone."""
        flow = self._flows.get(gang)
        if flow is None:
            return _NONE, 0
        rows = [row for node in flow.nodes if (row := self._nodes.row_of.get(node)) is not None]
        return np.array(sorted(rows), np.int64), len(flow.nodes) - len(rows)

    def bandwidth_of(self, gang: GangKey) -> int:
        """Return the Mbit/s a node that are reserved for a gang, 0 for none."""
        flow = self._flows.get(gang)
        return flow.bandwidth if flow is not None else 0

    def left(self, gang: GangKey | None = None) -> Int64:
        """Return what each link has left for a gang, its own reservation given back (int64[links]).

        `UNLIMITED` where the capacity is not known; below 0 where more is reserved than there is.
        """
        left = self._capacities.mbits - self._reserved
        flow = self._flows.get(gang) if gang is not None else None
        if flow is not None:
            left[flow.links] += flow.amounts
        left[self._capacities.mbits == UNKNOWN] = UNLIMITED
        return left

    def shortages(self, gang: GangKey, rows: Iterable[int], bandwidth: int) -> list[LinkShortage]:
        """Return the links that can't carry a gang with further members on some rows, in order of their numbers.

        Links of which it would take no more than it has are not among them, however much others have taken.
        """
        flow = self._flows.get(gang)
        links, needed = self._needs(flow, np.fromiter(rows, np.int64), bandwidth)
        own = np.zeros(len(links), np.int64)
        if flow is not None and len(flow.links):
            own[np.searchsorted(links, flow.links)] = flow.amounts
        capacity = self._capacities.mbits[links]
        left = capacity - self._reserved[links] + own
        short = np.flatnonzero((capacity != UNKNOWN) & (needed > left) & (needed > own))
        return [LinkShortage(int(links[at]), int(capacity[at]), int(left[at]), int(needed[at])) for at in short]

    @property
    def problems(self) -> Sequence[str]:
        """What is wrong with what is told of links, as of the last time they were settled."""
        return self._capacities.problems

    def complaints(self) -> list[str]:
        """Return what is wrong with what is told of links; each is told once until it has been put right."""
        if not self._to_say:
            return []
        self._to_say = False
        problems = dict.fromkeys((*self._capacities.problems, *self._unknown()))
        fresh = [problem for problem in problems if problem not in self._complained]
        self._complained = set(problems)
        return fresh

    def unknown(self) -> dict[str, tuple[int, int]]:
        """Return how many links have no known capacity, and how many there are, by level; `node` for those of nodes."""
        wiring, mbits = self.wiring, self._capacities.mbits
        found = {NODE: mbits[wiring.layout.order]}
        found |= {level: mbits[wiring.uplinks(depth)] for depth, level in enumerate(wiring.layout.levels, 1)}
        return {level: (int((of == UNKNOWN).sum()), len(of)) for level, of in found.items()}

    def _unknown(self) -> list[str]:
        """Say once which levels are not limited, as soon as somebody asks for bandwidth."""
        if not self._flows or self._wiring is None:
            return []
        labels = {NODE: next(iter(self._nodes.read.bandwidth), "")}
        return [
            f"gangs ask for bandwidth, and {'networks of nodes' if level == NODE else f'uplinks at level {level}'} of"
            f" unknown capacity are not limited; tell it by node label {labels.get(level) or uplink_label(level)} or in"
            " spec.links"
            for level, (unknown, links) in self.unknown().items()
            if unknown and links > 1  # the uplink of the only domain of a level leads nowhere
        ]
