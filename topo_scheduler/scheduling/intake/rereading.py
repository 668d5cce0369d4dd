"""Pods to read again because an object above them changed: a few in each step, namespaces in turn.

Thousands of pods may be below one owner, PodGroup or namespace, and their tenant may edit it many times a second. Each
pod is queued once, however often the objects above it change. In the long run a namespace gets a part of a core for
reading its pods and for queueing them. Pods that wait for that are not placed, so only its own pods wait.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.objects import Pod

READ_SECONDS: Final = 0.005
"""Seconds of one step, by its clock, after which the rest of the pods is left for the next step."""
ORDINARY_SECONDS: Final = 5e-5
"""Seconds that reading an ordinary pod takes. One with dozens of claims takes longer, and counts as several."""
MOST_PODS: Final = 200
"""As how many pods one counts at most: other work may have interrupted its reading."""
PODS_AT_ONCE: Final = 100_000
"""Ordinary pods of a namespace that are read again without a rest: about five seconds of a core."""
PODS_A_SECOND: Final = 4_000
"""Ordinary pods of a namespace that are read again in the long run: a fifth of a core."""
QUEUED_PODS_PER_READ: Final = 32
"""Pods that are queued in the time in which one is read: a pod may be below dozens of objects that are edited."""
PODS_AFTER_REST: Final = 400
"""Pods that may be read after each rest, so that steps are not due for single pods."""
MAX_NAMESPACES: Final = 1_024
"""Namespaces whose use is known; the one that used its share longest ago is forgotten first."""


@dataclass(slots=True)
class _Share:
    left: float
    at: float
    rests: bool = False


class ReadPace:
    """How many pods of each namespace may be read again. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._shares: OrderedDict[str, _Share] = OrderedDict()

    def take(self, namespace: str, now: float, pods: float = 1) -> None:
        """Count ordinary pods that are read; of those that are only queued `QUEUED_PODS_PER_READ` count as one."""
        share = self._shares.setdefault(namespace, _Share(PODS_AT_ONCE, now))
        self._shares.move_to_end(namespace)
        if len(self._shares) > MAX_NAMESPACES:
            self._shares.popitem(last=False)
        share.left = min(PODS_AT_ONCE, share.left + PODS_A_SECOND * max(0.0, now - share.at)) - pods
        share.at = now
        share.rests = share.left < 1

    def due(self, namespace: str) -> float:
        """Return from when on a pod may be read; 0 if the namespace does not rest."""
        share = self._shares.get(namespace)
        if share is None or not share.rests:
            return 0.0
        return share.at + (PODS_AFTER_REST - share.left) / PODS_A_SECOND


class Rereading:
    """Uids of pending pods to read again, by namespace."""

    def __init__(self) -> None:
        self._pace = ReadPace()
        self._by_namespace: dict[str, dict[str, None]] = {}
        self._namespace_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._namespace_of)

    def __contains__(self, uid: str) -> bool:
        return uid in self._namespace_of

    def put(self, pod: Pod) -> None:
        """Queue a pod, unless it is queued already."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        self._namespace_of[uid] = namespace
        self._by_namespace.setdefault(namespace, {})[uid] = None

    def put_below(self, pods: Collection[Pod], namespace: str, now: float) -> None:
        """Queue the pods of a namespace below an object that changed; that counts as reading some of them."""
        self._pace.take(namespace, now, len(pods) / QUEUED_PODS_PER_READ)
        for pod in pods:
            self.put(pod)

    def due(self, namespace: str) -> float:
        """Return from when on pods of a namespace may be read or queued; 0 if it does not rest."""
        return self._pace.due(namespace)

    def drop(self, uid: str) -> None:
        """Forget a pod: it was read, or deleted."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is None:
            return
        uids = self._by_namespace[namespace]
        del uids[uid]
        if not uids:
            del self._by_namespace[namespace]

    def next_due(self) -> float | None:
        """Return when the next pod may be read, 0 if at once; None if none is queued."""
        return min(map(self._pace.due, self._by_namespace), default=None)

    def read(self, understand: Callable[[str], None], now: float, clock: Callable[[], float]) -> None:
        """Read pods until `READ_SECONDS` have passed, or all their namespaces rest.

        Args:
            understand: called with the uid of a pod.
            now: seconds, on the clock of `next_due`.
            clock: returns seconds; it decides only how many pods are left for later steps.
        """
        if not self._namespace_of:
            return
        began = before = clock()
        while namespaces := self._not_resting(now):
            for namespace in namespaces:
                uid = next(iter(self._by_namespace[namespace]))
                self.drop(uid)
                understand(uid)
                after = clock()
                took, before = after - before, after
                self._pace.take(namespace, now, min(MOST_PODS, max(1.0, took / ORDINARY_SECONDS)))
                if after - began > READ_SECONDS:
                    self._turn(namespace)
                    return

    def _not_resting(self, now: float) -> Iterable[str]:
        return [namespace for namespace in self._by_namespace if self._pace.due(namespace) <= now]

    def _turn(self, namespace: str) -> None:
        """Let the next step begin with the namespace after this one."""
        names = list(self._by_namespace)
        at = names.index(namespace) + 1 if namespace in self._by_namespace else 0
        self._by_namespace = {name: self._by_namespace[name] for name in (*names[at:], *names[:at])}
