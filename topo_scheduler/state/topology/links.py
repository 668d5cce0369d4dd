"""Bandwidth that gangs have reserved on the links of the fabric.

A gang that requests bandwidth B on each of its nodes may send that much from any node to any other. So it reserves
B x min(its nodes below the link, its nodes elsewhere) on each link, in each direction. The reservation of a gang
follows from the nodes of its pods alone. So the order in which the scheduler reads the pods does not matter.
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
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64, NodeTable
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.wiring import Wiring, capacities, wire

GangKey = tuple[str, str]
"""Namespace and identity of a gang."""
UNLIMITED: Final = 1 << 62
_NONE: Final[Int64] = np.empty(0, np.int64)


def reservation_of(pod: Pod) -> tuple[GangKey, int] | None:
    """Return the gang for which a bound pod has bandwidth reserved, and the Mbit/s per node; None for none."""
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
    """Traffic of one gang. ``pods`` has node and Mbit/s by uid; ``nodes`` and ``bandwidths`` count the pods of each.

    ``links`` int64[n] and ``amounts`` int64[n] are its charges as of the last `Links.settle`.
    """

    pods: dict[str, tuple[str, int]] = field(default_factory=dict)
    nodes: Counter[str] = field(default_factory=Counter)
    bandwidths: Counter[int] = field(default_factory=Counter)
    links: Int64 = field(default_factory=lambda: _NONE)
    amounts: Int64 = field(default_factory=lambda: _NONE)

    @property
    def bandwidth(self) -> int:
        """Mbit/s per node: the highest request of any of its pods."""
        return max(self.bandwidths, default=0)

    def add(self, uid: str, node: str, bandwidth: int) -> None:
        """Count a pod."""
        self.pods[uid] = (node, bandwidth)
        self.nodes[node] += 1
        self.bandwidths[bandwidth] += 1

    def take(self, uid: str) -> None:
        """Stop counting a pod."""
        node, bandwidth = self.pods.pop(uid)
        self.nodes[node] -= 1
        if not self.nodes[node]:
            del self.nodes[node]
        self.bandwidths[bandwidth] -= 1
        if not self.bandwidths[bandwidth]:
            del self.bandwidths[bandwidth]


@dataclass(frozen=True, slots=True)
class LinkShortage:
    """A link whose capacity a gang would exceed: its capacity, what is ``left``, and what the gang needs, in Mbit/s."""

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
        self.capacity: Int64 = _NONE
        """Capacity of each link in Mbit/s (int64[links]), -1 where unknown, as of the last `settle`."""
        self.problems: Sequence[str] = ()
        """Problems in the labels and configuration of links, as of the last `settle`."""
        self.reserved: Int64 = _NONE
        """Reserved bandwidth of each link in Mbit/s (int64[links])."""
        self._configured: Sequence[Link] = ()
        self._stale = self._changed = True
        self._freed = False
        self._complained: set[str] = set()
        self._check_due = False
        self.capacity_changes = 0
        """Number of changes to the capacity of any link, for use in the keys of caches."""

    def __len__(self) -> int:
        """Return the number of gangs with reserved bandwidth."""
        return len(self._flows)

    def copy(self, nodes: NodeTable) -> "Links":
        """Return a copy for trial changes, which publishes its reservations to another node table."""
        twin = copy(self)
        twin._nodes = nodes
        twin._flows = {
            key: replace(flow, pods=dict(flow.pods), nodes=flow.nodes.copy(), bandwidths=flow.bandwidths.copy())
            for key, flow in self._flows.items()
        }
        twin._gang_of, twin._dirty = dict(self._gang_of), dict(self._dirty)
        twin.reserved = self.reserved.copy()
        if twin._wiring is not None:
            twin._publish_reserved()
        return twin

    # ------------------------------------------------------------ changes

    def configure(self, links: Sequence[Link]) -> None:
        """Apply ``links`` of the configuration."""
        self._configured = links
        self._complained.clear()
        default = next((link.mbits for link in links if link.level == NODE), None)
        self._nodes.assume_bandwidth(UNKNOWN if default is None else default)
        self.nodes_changed()

    def nodes_changed(self) -> None:
        """Record that nodes appeared, disappeared, or changed their labels."""
        self._stale = self._freed = self._changed = True

    def put(self, uid: str, gang: GangKey, node: str, bandwidth: int) -> None:
        """Reserve bandwidth for a pod; this replaces its previous reservation.

        Args:
            uid: uid of the pod.
            gang: gang of the pod.
            node: name of its current or future node.
            bandwidth: Mbit/s that the gang requests on each of its nodes, above 0.
        """
        previous_gang = self._gang_of.get(uid)
        if previous_gang is not None:
            if previous_gang == gang and self._flows[gang].pods[uid] == (node, bandwidth):
                return
            self.drop(uid)
        self._check_due |= not self._flows
        self._gang_of[uid] = gang
        self._flows.setdefault(gang, Flow()).add(uid, node, bandwidth)
        self._dirty[gang] = None

    def drop(self, uid: str) -> bool:
        """Release the reservation of a pod; return whether it had one."""
        gang = self._gang_of.pop(uid, None)
        if gang is None:
            return False
        self._flows[gang].take(uid)
        self._dirty[gang] = None
        self._freed = True
        return True

    def pod_bound(self, pod: Pod, *, trusted: bool = True, assumed: bool = False) -> bool:
        """Reserve what the annotations of a bound pod say; return whether that replaced a different reservation.

        A known reservation on the same node stays, as the annotations may have been edited. But the first report of a
        bind without any means that another client bound the pod. For other pods no more than the bandwidth of their
        node counts.

        Args:
            pod: the pod.
            trusted: whether this scheduler may have placed it; annotations of other pods reserve nothing.
            assumed: whether the pod was assumed on this node until now.
        """
        uid, node = pod.metadata.uid, pod.spec.node_name
        previous = self.held(uid) if self._gang_of else None
        reserved = reservation_of(pod) if trusted else None
        if previous is not None and previous[1] == node and (reserved is not None or not assumed):
            return False
        if reserved is not None:
            row = self._nodes.row_of.get(node)
            node_bandwidth = UNKNOWN if row is None else int(self._nodes.bandwidth[row])
            self.put(uid, reserved[0], node, min(reserved[1], node_bandwidth) if node_bandwidth > 0 else reserved[1])
            return previous is not None and previous != self.held(uid)
        return previous is not None and self.drop(uid)

    def take_freed(self) -> bool:
        """Return whether links may have more bandwidth left for other gangs than at the last call."""
        freed, self._freed = self._freed and bool(self._configured or self._flows or self.limited), False
        return freed

    # ------------------------------------------------------------ settling

    def take_changed(self) -> bool:
        """Return whether nodes changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    @property
    def in_use(self) -> bool:
        """Whether the configuration describes links, or any gang has bandwidth reserved."""
        return bool(self._configured or self._flows)

    def settle(self, layout: Layout) -> None:
        """Bring capacities and reservations up to date with nodes and pods. Free of cost if nothing changed."""
        if self._stale or layout is not self._layout:
            self._rewire(layout)
        if self._dirty:
            self._charge_again(self._dirty)
            self._dirty.clear()
            self._publish_reserved()  # needed again: an array restored from bytes is no longer a view

    def _rewire(self, layout: Layout) -> None:
        previous = self.capacity
        if layout is not self._layout:
            self._layout, self._wiring = layout, wire(layout)
            self._charge_all()
            self._publish_reserved()
        assert self._wiring is not None
        self.capacity, self.problems = capacities(self._wiring, self._nodes, self._configured)
        self._stale, self._check_due = False, True
        if not np.array_equal(previous, self.capacity):
            self.capacity_changes += 1

    def _charge_all(self) -> None:
        """Compute the needs of all gangs at once, as `_charge_again` does gang by gang."""
        wiring, row_of = self.wiring, self._nodes.row_of
        self.reserved = np.zeros(wiring.links, np.int64)
        self._flows = {gang: flow for gang, flow in self._flows.items() if flow.pods}
        self._dirty.clear()
        flows = list(self._flows.values())
        pairs = [
            (number, row)
            for number, flow in enumerate(flows)
            for node in flow.nodes
            if (row := row_of.get(node)) is not None
        ]
        pair_array = np.array(pairs, np.int64).reshape(len(pairs), 2)
        link_keys = pair_array[:, :1] * wiring.links + wiring.of_row[pair_array[:, 1]]
        keys, below = np.unique(link_keys, return_counts=True)
        gangs, links = np.divmod(keys, wiring.links)
        totals = np.array([len(flow.nodes) for flow in flows], np.int64)
        bandwidths = np.array([flow.bandwidth for flow in flows], np.int64)
        amounts = bandwidths[gangs] * np.minimum(below, totals[gangs] - below)
        np.add.at(self.reserved, links, amounts)
        ends = np.searchsorted(gangs, np.arange(len(flows) + 1)).tolist()
        for flow, first, last in zip(flows, ends, ends[1:], strict=False):
            flow.links, flow.amounts = links[first:last], amounts[first:last]

    def _charge_again(self, gangs: Collection[GangKey]) -> None:
        for gang in gangs:
            flow = self._flows[gang]
            self.reserved[flow.links] -= flow.amounts
            flow.links, flow.amounts = self._needs(flow, _NONE, 0)
            self.reserved[flow.links] += flow.amounts
        for gang in [gang for gang in gangs if not self._flows[gang].pods]:
            del self._flows[gang]

    def _publish_reserved(self) -> None:
        self._nodes.reserved_bandwidth = self.reserved[: self._nodes.rows]

    def _needs(self, flow: Flow | None, rows: Int64, bandwidth: int) -> tuple[Int64, Int64]:
        """Return the links that a gang uses with further rows, and its need on each in Mbit/s."""
        assert self._wiring is not None
        total = 0
        if flow is not None:
            row_of = self._nodes.row_of
            own_rows = [row for node in flow.nodes if (row := row_of.get(node)) is not None]
            # Deleted nodes are below no link, so they count as elsewhere for all links.
            total = len(flow.nodes) - len(own_rows)
            rows = np.concatenate((rows, np.array(own_rows, np.int64)))
            bandwidth = max(bandwidth, flow.bandwidth)
        rows = np.unique(rows)
        total += len(rows)
        links, below = np.unique(self._wiring.of_row[rows], return_counts=True)
        return links, bandwidth * np.minimum(below, total - below)

    # ------------------------------------------------------------ queries

    @property
    def wiring(self) -> Wiring:
        """The links, as of the last `settle`."""
        assert self._wiring is not None
        return self._wiring

    @property
    def limited(self) -> bool:
        """Whether the capacity of any link is known."""
        return bool((self.capacity != UNKNOWN).any())

    def node_name(self, row: int) -> str:
        """Return the name of the node in a row."""
        return self._nodes.names[row]

    def held(self, uid: str) -> tuple[GangKey, str, int] | None:
        """Return gang, node and reserved Mbit/s of a pod, None without a reservation."""
        gang = self._gang_of.get(uid)
        return None if gang is None else (gang, *self._flows[gang].pods[uid])

    def rows_of(self, gang: GangKey) -> tuple[Int64, int]:
        """Return the rows on which a gang has bandwidth reserved, ascending, and the number of its deleted nodes."""
        flow = self._flows.get(gang)
        if flow is None:
            return _NONE, 0
        rows = [row for node in flow.nodes if (row := self._nodes.row_of.get(node)) is not None]
        return np.array(sorted(rows), np.int64), len(flow.nodes) - len(rows)

    def bandwidth_of(self, gang: GangKey) -> int:
        """Return the Mbit/s per node that are reserved for a gang, 0 for none."""
        flow = self._flows.get(gang)
        return flow.bandwidth if flow is not None else 0

    def left(self, gang: GangKey | None = None) -> Int64:
        """Return the bandwidth left for a gang on each link in Mbit/s, without its own reservation (int64[links]).

        `UNLIMITED` where the capacity is unknown; below 0 where more is reserved than the capacity.
        """
        left = self.capacity - self.reserved
        flow = self._flows.get(gang) if gang is not None else None
        if flow is not None:
            left[flow.links] += flow.amounts
        left[self.capacity == UNKNOWN] = UNLIMITED
        return left

    def shortages(self, gang: GangKey, rows: Iterable[int], bandwidth: int) -> list[LinkShortage]:
        """Return the links that can't carry a gang with further members on the given rows, in order of their numbers.

        A link on which the gang needs no more than it already holds is not included, even if it is overbooked.
        """
        flow = self._flows.get(gang)
        links, needed = self._needs(flow, np.fromiter(rows, np.int64), bandwidth)
        own = np.zeros(len(links), np.int64)
        if flow is not None and len(flow.links):
            own[np.searchsorted(links, flow.links)] = flow.amounts
        capacity = self.capacity[links]
        left = capacity - self.reserved[links] + own
        short = np.flatnonzero((capacity != UNKNOWN) & (needed > left) & (needed > own))
        return [
            LinkShortage(int(links[index]), int(capacity[index]), int(left[index]), int(needed[index]))
            for index in short
        ]

    def complaints(self) -> list[str]:
        """Return problems in the labels and configuration of links; each is returned once until it is corrected."""
        if not self._check_due:
            return []
        self._check_due = False
        problems = dict.fromkeys((*self.problems, *self._unknown()))
        new_problems = [problem for problem in problems if problem not in self._complained]
        self._complained = set(problems)
        return new_problems

    def unknown(self) -> dict[str, tuple[int, int]]:
        """Return by level the number of links of unknown capacity and of all links; `node` for links of nodes."""
        wiring, mbits = self.wiring, self.capacity
        capacities = {NODE: mbits[wiring.layout.order]}
        capacities |= {level: mbits[wiring.uplinks(depth)] for depth, level in enumerate(wiring.layout.levels, 1)}
        return {
            level: (int((level_capacities == UNKNOWN).sum()), len(level_capacities))
            for level, level_capacities in capacities.items()
        }

    def _unknown(self) -> list[str]:
        """Return a message for each level without a limit, if a gang requests bandwidth."""
        if not self._flows or self._wiring is None:
            return []
        labels = {NODE: next(iter(self._nodes.label_keys.bandwidth), "")}
        return [
            f"gangs ask for bandwidth, and {'networks of nodes' if level == NODE else f'uplinks at level {level}'} of"
            f" unknown capacity are not limited; set it by node label {labels.get(level) or uplink_label(level)} or in"
            " spec.links"
            for level, (unknown, links) in self.unknown().items()
            if unknown and links > 1  # the uplink of the only domain of a level leads nowhere
        ]
