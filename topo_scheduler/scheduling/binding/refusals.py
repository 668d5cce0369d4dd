"""Recent refusals by kubelets, and their consequences.

A kubelet that refuses a pod knows something this scheduler does not. So pods like it avoid the node for a growing
time. Once several namespaces are affected, the node ranks lower for all pods until the penalty fades.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from topo_scheduler.state.pods.classes import PodClass

KUBELET_REFUSALS: Final = ("OutOf", "UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity")
"""Prefixes of the ``status.reason`` of a pod that its kubelet refused."""
HALF_LIFE_SECONDS: Final = 300.0
"""Seconds in which a node's penalty halves."""
FIRST_EXCLUSION_SECONDS: Final = 5.0
MAX_EXCLUSION_SECONDS: Final = 300.0
"""Seconds for which a node is excluded, doubled with each refusal in memory: the first time, and the longest."""
MIN_NAMESPACES: Final = 2
"""Number of namespaces whose pods a kubelet must refuse before that counts against the node for all."""
FORGOTTEN_POINTS: Final = 100
"""Thousandths of a refusal below which it is forgotten."""


@dataclass(slots=True)
class Penalty:
    """A node's refusals: ``points`` in thousandths of one refusal, as of ``at`` (seconds)."""

    points: int
    at: float

    def now(self, now: float) -> int:
        """Return the points that remain."""
        return int(self.points * 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_SECONDS))


class Penalties:
    """Refusals by node and namespace, which fade; and the nodes that are excluded for some classes until then.

    Pods of a namespace avoid the nodes where pods like them were refused. Once the kubelet refused pods of several
    namespaces, all others avoid the node too, and it ranks lower. One tenant alone can have its pods refused on
    purpose.
    """

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Penalty]] = {}
        self._until: dict[tuple[PodClass, str], dict[str, float]] = {}
        """Until when a node is excluded, in seconds: by class and node, then by namespace."""
        self._shunned: dict[PodClass, dict[str, frozenset[str]]] = {}
        """By class, the nodes that are excluded, with the namespaces whose pods were refused there."""

    def __len__(self) -> int:
        return len(self._of) + len(self._until)

    @property
    def any_shunned(self) -> bool:
        """Whether any node is excluded."""
        return bool(self._shunned)

    def concerns(self, classes: Iterable[PodClass]) -> bool:
        """Return whether a node is excluded for pods of one of these classes, in any namespace."""
        return bool(self._shunned) and any(cls in self._shunned for cls in classes)

    def shunned(self, namespace: str, cls: PodClass) -> frozenset[str]:
        """Return the nodes that are excluded for pods of a class and a namespace."""
        nodes = self._shunned.get(cls)
        if not nodes:
            return frozenset()
        return frozenset(node for node, whose in nodes.items() if namespace in whose or len(whose) >= MIN_NAMESPACES)

    def refused(self, node: str, namespace: str, cls: PodClass, now: float) -> bool:
        """Record that a node's kubelet refused a pod; return whether that counts against the node for all.

        It excludes the node only for pods like it: the kubelet may accept others.
        """
        on_node = self._of.setdefault(node, {})
        known = on_node.get(namespace)
        points = 1000 + (known.now(now) if known else 0)
        on_node[namespace] = Penalty(points, now)
        closed = min(MAX_EXCLUSION_SECONDS, FIRST_EXCLUSION_SECONDS * 2 ** min(20, (points + 500) // 1000 - 1))
        until = self._until.setdefault((cls, node), {})
        until[namespace] = now + closed
        self._shun(cls, node, until)
        return len(on_node) >= MIN_NAMESPACES

    def _shun(self, cls: PodClass, node: str, until: dict[str, float]) -> None:
        nodes = self._shunned.setdefault(cls, {})
        if until:
            nodes[node] = frozenset(until)
        else:
            nodes.pop(node, None)
        if not nodes:
            del self._shunned[cls]

    def forget(self, node: str) -> None:
        """Forget a deleted node."""
        self._of.pop(node, None)

    def levels(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield each node that refused pods of several namespaces, and its number of refusals, rounded, at least 1.

        Refusals of a namespace are forgotten once less than a tenth of one remains.
        """
        for node, on_node in list(self._of.items()):
            points = {namespace: penalty.now(now) for namespace, penalty in on_node.items()}
            for namespace, left in points.items():
                if left < FORGOTTEN_POINTS:
                    del on_node[namespace]
            if not on_node:
                del self._of[node]
            elif len(on_node) >= MIN_NAMESPACES:
                yield node, max(1, (sum(points[namespace] for namespace in on_node) + 500) // 1000)

    def reopened(self, now: float) -> list[str]:
        """Return the nodes whose exclusion for pods of a class has ended, and end it."""
        nodes = set()
        for (cls, node), until in list(self._until.items()):
            over = [namespace for namespace, at in until.items() if at <= now]
            if not over:
                continue
            nodes.add(node)
            for namespace in over:
                del until[namespace]
            self._shun(cls, node, until)
            if not until:
                del self._until[cls, node]
        return sorted(nodes)

    def next_change(self) -> float | None:
        """Return when the next exclusion of a node ends, in seconds; None if there is none."""
        return min((at for until in self._until.values() for at in until.values()), default=None)
