"""A workload takes over room that others were to get: whether it answers for the evictions that freed it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from topo_scheduler.scheduling.preemption.freed_room import TakenBy, is_half, scarce_of, used_of
from topo_scheduler.state.nodes.node_table import NodeTable


@dataclass(slots=True)
class TakeOver:
    """What a workload of a namespace takes of room that pods were evicted for.

    ``left`` are the amounts that its pods take and that count for no room yet, by node and resource column. ``wanted``
    are the scarce resources of all room for which it answers, by column, and ``emptied`` the nodes of that room.
    """

    nodes: NodeTable
    namespace: str
    left: dict[str, Counter[int]]
    wanted: Counter[int] = field(default_factory=Counter)
    emptied: frozenset[str] = frozenset()

    def taken_by(
        self, namespace: str, amounts: Mapping[str, Mapping[int, int]], wanted: Mapping[int, int]
    ) -> TakenBy | None:
        """Return what it counts as for a workload of a namespace that it does not get its room.

        None if the workload that takes it over answers for it, as it uses at least half of the scarce resource. What it
        uses of one room counts for no other.

        Args:
            namespace: of the workload that does not get its room.
            amounts: the room, by node and resource column.
            wanted: the amounts for which pods were evicted, by resource column.
        """
        scarce = scarce_of(self.nodes, amounts, wanted)
        used = used_of(amounts, self.left)
        if not is_half(sum(used.values(), Counter()), scarce):
            return TakenBy.ITS_NAMESPACE if namespace == self.namespace else TakenBy.OTHERS_IN_PART
        for node in self.left.keys() & used.keys():
            self.left[node] = self.left[node] - used[node]
        self.wanted += scarce
        self.emptied |= amounts.keys()
        return None
