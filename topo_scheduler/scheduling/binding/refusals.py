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
NAMESPACES: Final = 2
"""Namespaces whose pods must have been refused before it counts against a node for all."""
FORGOTTEN_POINTS: Final = 100
"""Thousandths of a refusal below which it is forgotten."""


@dataclass(slots=True)
class Penalty:
    """A node's refusals. ``points`` thousandths of one refusal as of ``at`` (seconds)."""

    points: int
    at: float

    def now(self, now: float) -> int:
        """Return the points that are left."""
        return int(self.points * 0.5 ** (max(0.0, now - self.at) / HALF_LIFE))


class Penalties:
    """Refusals by node and namespace, fading; and which nodes which classes keep away from meanwhile.

    Pods of a namespace keep away from where pods like them were refused. All others follow, and the node ranks lower,
    only once the kubelet refused pods of several namespaces: one tenant alone can have its pods refused on purpose.
    """

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Penalty]] = {}
        self._until: dict[tuple[PodClass, str], dict[str, float]] = {}
        """By class and node, until when the node is left alone by namespace."""
        self._shunned: dict[PodClass, dict[str, frozenset[str]]] = {}
        """By class, the nodes that are left alone, with the namespaces whose pods were refused there."""

    def __len__(self) -> int:
        return len(self._of) + len(self._until)

    @property
    def any_shunned(self) -> bool:
        """Whether any node is left alone."""
        return bool(self._shunned)

    def shunned(self, namespace: str, cls: PodClass) -> frozenset[str]:
        """Return the nodes that pods of a class and a namespace keep away from."""
        nodes = self._shunned.get(cls)
        if not nodes:
            return frozenset()
        return frozenset(node for node, whose in nodes.items() if namespace in whose or len(whose) >= NAMESPACES)

    def refused(self, node: str, namespace: str, cls: PodClass, now: float) -> bool:
        """Note that a node's kubelet refused a pod; return whether that counts against the node for all.

        Only pods like it keep away: others may have been welcome.
        """
        here = self._of.setdefault(node, {})
        known = here.get(namespace)
        points = 1000 + (known.now(now) if known else 0)
        here[namespace] = Penalty(points, now)
        closed = min(LONGEST_CLOSED, FIRST_CLOSED * 2 ** min(20, (points + 500) // 1000 - 1))
        until = self._until.setdefault((cls, node), {})
        until[namespace] = now + closed
        self._shun(cls, node, until)
        return len(here) >= NAMESPACES

    def _shun(self, cls: PodClass, node: str, until: dict[str, float]) -> None:
        nodes = self._shunned.setdefault(cls, {})
        if until:
            nodes[node] = frozenset(until)
        else:
            nodes.pop(node, None)
        if not nodes:
            del self._shunned[cls]

    def forget(self, node: str) -> None:
        """Forget a node that is gone."""
        self._of.pop(node, None)

    def levels(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield each node that refused pods of several namespaces, and its whole refusals, at least 1.

        Where less than a tenth of a refusal is left of a namespace, those are forgotten.
        """
        for node, here in list(self._of.items()):
            points = {namespace: penalty.now(now) for namespace, penalty in here.items()}
            for namespace, left in points.items():
                if left < FORGOTTEN_POINTS:
                    del here[namespace]
            if not here:
                del self._of[node]
            elif len(here) >= NAMESPACES:
                yield node, max(1, (sum(points[namespace] for namespace in here) + 500) // 1000)

    def reopened(self, now: float) -> list[str]:
        """Return the nodes of which the time is up for pods of a class, and note that they are open to these."""
        found = set()
        for (cls, node), until in list(self._until.items()):
            over = [namespace for namespace, at in until.items() if at <= now]
            if not over:
                continue
            found.add(node)
            for namespace in over:
                del until[namespace]
            self._shun(cls, node, until)
            if not until:
                del self._until[cls, node]
        return sorted(found)

    def next_change(self) -> float | None:
        """Return when a node is open to pods of a class again, None when all are."""
        return min((at for until in self._until.values() for at in until.values()), default=None)
