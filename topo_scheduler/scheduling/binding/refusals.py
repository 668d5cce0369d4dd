"""What was refused lately, and what follows from it.

A kubelet that refuses a pod knows something this scheduler does not: pods like it leave the node alone for a growing
while, and all pods like it less until the memory fades.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from topo_scheduler.state.classes import PodClass

KUBELET_REFUSALS: Final = ("OutOf", "UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity")
"""Beginnings of the ``status.reason`` of a pod that its kubelet refused."""
HALF_LIFE: Final = 300.0
"""Seconds in which half of a node's penalty is forgotten."""
FIRST_CLOSED: Final = 5.0
LONGEST_CLOSED: Final = 300.0
"""Seconds for which a node is left alone, doubled with each refusal that is not forgotten."""


@dataclass(slots=True)
class Penalty:
    """A node's refusals. ``points`` thousandths of one refusal as of ``at`` (seconds)."""

    points: int
    at: float

    def now(self, now: float) -> int:
        """Return the points that are left."""
        return int(self.points * 0.5 ** (max(0.0, now - self.at) / HALF_LIFE))


class Penalties:
    """Refusals by node, fading; and which nodes which classes keep away from meanwhile."""

    def __init__(self) -> None:
        self.shunned: dict[PodClass, frozenset[str]] = {}
        """By class, the nodes that are left alone."""
        self._of: dict[str, Penalty] = {}
        self._until: dict[tuple[PodClass, str], float] = {}

    def __len__(self) -> int:
        return len(self._of) + len(self._until)

    def refused(self, node: str, cls: PodClass | None, now: float) -> None:
        """Note that a node's kubelet refused a pod. Only pods like it keep away: others may have been welcome."""
        known = self._of.get(node)
        points = 1000 + (known.now(now) if known else 0)
        self._of[node] = Penalty(points, now)
        if cls is not None:
            closed = min(LONGEST_CLOSED, FIRST_CLOSED * 2 ** min(20, (points + 500) // 1000 - 1))
            self._until[cls, node] = now + closed
            self.shunned[cls] = self.shunned.get(cls, frozenset()) | {node}

    def forget(self, node: str) -> None:
        """Forget a node that is gone."""
        self._of.pop(node, None)

    def levels(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield each node that is remembered and its whole refusals, at least 1.

        One of which less than a tenth of a refusal is left is forgotten.
        """
        for node, penalty in list(self._of.items()):
            points = penalty.now(now)
            if points < 100:
                del self._of[node]
            else:
                yield node, max(1, (points + 500) // 1000)

    def reopened(self, now: float) -> list[str]:
        """Return the nodes of which the time is up for a class, and note that they are open to it."""
        over = [key for key, until in self._until.items() if until <= now]
        for cls, node in over:
            del self._until[cls, node]
            left = self.shunned[cls] - {node}
            if left:
                self.shunned[cls] = left
            else:
                del self.shunned[cls]
        return sorted({node for _, node in over})

    def next_change(self) -> float | None:
        """Return when a node is open to a class again, None when all are."""
        return min(self._until.values(), default=None)
