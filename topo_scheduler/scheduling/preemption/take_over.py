"""A workload takes over room that others were to get: whether it answers for the evictions that freed it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from topo_scheduler.scheduling.preemption.freed_room import TakenBy, is_half, total_of, used_of, uses_half_of_scarce
from topo_scheduler.state.nodes.node_table import NodeTable


@dataclass(frozen=True, slots=True)
class EmptiedRoom:
    """Room for which pods were evicted.

    ``amounts`` are what a workload of a namespace was to get, by node and resource column, and ``wanted`` those for
    which it answers, by column. ``evicted`` counts the evicted pods by node, and ``devices`` those of claims to get.
    """

    namespace: str
    amounts: Mapping[str, Mapping[int, int]]
    wanted: Mapping[int, int]
    evicted: Mapping[str, int] = field(default_factory=dict)
    devices: int = 0


@dataclass(slots=True)
class TakeOver:
    """What a workload of a namespace takes of such room.

    ``left`` are the amounts that its pods take and that count for no room yet, by node and resource column. ``devices``
    are those of its claims. ``wanted`` and ``evicted`` are those of all room for which it answers.
    """

    nodes: NodeTable
    namespace: str
    left: dict[str, Counter[int]]
    devices: int = 0
    wanted: Counter[int] = field(default_factory=Counter)
    evicted: Counter[str] = field(default_factory=Counter)
    emptied: set[str] = field(default_factory=set)

    def taken_by(self, room: EmptiedRoom) -> TakenBy | None:
        """Return what it counts as for the other workload that it does not get its room.

        None if the workload that takes it over answers for it: it is of the same namespace, and uses at least half.
        What it uses of one room counts for no other.
        """
        used = used_of(room.amounts, self.left)
        if room.namespace != self.namespace:
            half = uses_half_of_scarce(self.nodes, room.wanted, room.amounts, self.left)
            return TakenBy.OTHERS if half else TakenBy.OTHERS_IN_PART
        if not self._uses_half(room, used):
            return TakenBy.ITS_NAMESPACE
        for node in self.left.keys() & used.keys():
            self.left[node] = self.left[node] - used[node]
        self.devices -= min(self.devices, room.devices)
        self.wanted += Counter(room.wanted)
        self.evicted += Counter(room.evicted)
        self.emptied |= room.amounts.keys()
        return None

    def _uses_half(self, room: EmptiedRoom, used: Mapping[str, Mapping[int, int]]) -> bool:
        """Return whether half of all amounts is used, on nodes from which half of the pods were evicted."""
        evicted = sum(room.evicted.get(node, 0) for node, part in used.items() if is_half(part, room.amounts[node]))
        return (
            is_half(total_of(used), room.wanted)
            and 2 * evicted >= sum(room.evicted.values())
            and 2 * self.devices >= room.devices
        )
