"""Which nominations count that this process did not write, and for how long those of a namespace were in vain.

A user who may write the status of a pod can nominate it to any node. So a nomination counts for a minute. A namespace
whose nominations ended without a bind for a minute altogether loses the benefit for an hour: otherwise it could replace
pods, or move their nominations, just before each minute is over. Meanwhile the nominations of a namespace count on few
nodes only, so that others go elsewhere. All that count are charged again for each decision, so their number has a cap,
too.
"""

from collections import Counter, defaultdict
from collections.abc import Sized
from dataclasses import dataclass
from typing import Final

from topo_scheduler.scheduling.preemption.nominations import Nomination

COUNTS_SECONDS: Final = 60.0
"""Seconds for which a nomination counts, and for which those of a namespace may be in vain."""
DOUBTED_SECONDS: Final = 3600.0
"""Seconds for which the nominations of a namespace do not count after that, and after which it is forgotten."""
MAX_WEIGHT: Final = 512
"""Weight of all nominations that count. A step takes about 10 microseconds for each unit."""
MAX_NAMESPACE_WEIGHT: Final = 256
"""Weight of the nominations of one namespace that count."""
PREDECESSOR_FACTOR: Final = 8
"""How many times as much those may weigh that a predecessor wrote, perhaps for a large gang."""
MAX_NODES_SHARE: Final = 0.1
"""Share of all nodes to which nominations count, and at least `MIN_NODES`; those of one namespace to half as many."""
MIN_NODES: Final = 8


@dataclass(frozen=True, slots=True)
class _Counting:
    """A nomination that counts, by namespace; ``since`` in seconds."""

    namespace: str
    node: str
    weight: int
    since: float


@dataclass(slots=True)
class _Vain:
    """How many seconds the nominations of a namespace were in vain; ``first``: when one ended so first.

    Seconds of several at once count once. ``begin`` and ``until`` are the latest seconds that are counted.
    """

    first: float
    begin: float
    until: float
    seconds: float = 0.0

    def add(self, since: float, now: float) -> None:
        """Add the seconds of a nomination that ends now."""
        self.seconds += max(0.0, self.begin - since) + now - max(since, self.until)
        self.begin = since if since > self.until else min(self.begin, since)
        self.until = now


class NominationTrust:
    """Nominations that count, and the namespaces whose nominations do not."""

    def __init__(self, nodes: Sized) -> None:
        """Set up without nominations. ``nodes`` are those of the cluster, at any time."""
        self._all_nodes = nodes
        self._nodes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Number of nominations that count, by namespace and node."""
        self._held_nodes = 0
        self._counting: dict[str, _Counting] = {}
        self._weights: Counter[str] = Counter()
        self._vain: dict[str, _Vain] = {}
        self._doubted: dict[str, float] = {}
        """Namespaces whose nominations do not count, and until when, in seconds."""

    def admit(self, nomination: Nomination, now: float, *, of_predecessor: bool = False) -> bool:
        """Record a nomination; return whether it counts. One ``of_predecessor`` does on any number of nodes."""
        namespace, node, weight = nomination.namespace, nomination.node, weight_of(nomination)
        if self.doubts(namespace, now):
            return False
        self.end(nomination.uid, now, in_vain=False)
        of_namespace, factor = self._weights[namespace] + weight, PREDECESSOR_FACTOR if of_predecessor else 1
        if of_namespace > factor * MAX_NAMESPACE_WEIGHT or self._weights.total() + weight > factor * MAX_WEIGHT:
            return False
        nodes = self._nodes.get(namespace, Counter())
        if node not in nodes:
            max_nodes = max(MIN_NODES, int(MAX_NODES_SHARE * len(self._all_nodes)))
            if not of_predecessor and (len(nodes) >= max_nodes // 2 or self._held_nodes >= max_nodes):
                return False
            self._held_nodes += 1
        self._nodes[namespace][node] += 1
        self._weights[namespace] = of_namespace
        self._counting[nomination.uid] = _Counting(namespace, node, weight, now)
        return True

    def doubts(self, namespace: str, now: float) -> bool:
        """Return whether the nominations of a namespace do not count now."""
        return now < self._doubted.get(namespace, now)

    def since(self, uid: str) -> float | None:
        """Return since when a nomination counts, in seconds; None if it does not."""
        counting = self._counting.get(uid)
        return counting.since if counting is not None else None

    def of_namespace(self, namespace: str) -> list[str]:
        """Return the pods of a namespace whose nominations count."""
        return [uid for uid, counting in self._counting.items() if counting.namespace == namespace]

    def end(self, uid: str, now: float, *, in_vain: bool) -> str:
        """End a nomination; return its namespace if its nominations are doubted from now on, or an empty string."""
        counting = self._counting.pop(uid, None)
        if counting is None:
            return ""
        namespace = counting.namespace
        self._weights[namespace] -= counting.weight
        if not self._weights[namespace]:
            del self._weights[namespace]
        nodes = self._nodes[namespace]
        nodes[counting.node] -= 1
        if not nodes[counting.node]:
            del nodes[counting.node]
            self._held_nodes -= 1
        if not nodes:
            del self._nodes[namespace]
        if not in_vain or self.doubts(namespace, now):
            return ""
        vain = self._vain.get(namespace)
        if vain is None or now >= vain.first + DOUBTED_SECONDS:
            vain = self._vain[namespace] = _Vain(now, counting.since, counting.since)
        vain.add(counting.since, now)
        if vain.seconds < COUNTS_SECONDS:
            return ""
        del self._vain[namespace]
        self._doubted[namespace] = now + DOUBTED_SECONDS
        return namespace

    def forget(self, now: float) -> None:
        """Forget namespaces that are trusted again."""
        if self._doubted:
            self._doubted = {name: until for name, until in self._doubted.items() if now < until}
        if self._vain:
            self._vain = {name: vain for name, vain in self._vain.items() if now < vain.first + DOUBTED_SECONDS}


def weight_of(nomination: Nomination) -> int:
    """Return how many times as much work as a plain one a nomination is: once more for each of its constraints."""
    profile = nomination.profile
    if profile is None:
        return 1
    return 1 + sum(map(len, (profile.repels, profile.attracts, profile.claims, profile.ports, profile.disks)))
