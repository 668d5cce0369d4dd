"""Pods to read again because an object above them changed: a few in each step, namespaces in turn.

Thousands of pods may be below one owner, PodGroup or namespace, and their tenant may edit it many times a second. Each
pod is queued once, however often the objects above it change.
"""

from collections.abc import Callable
from typing import Final

from topo_scheduler.api.objects import Pod

READ_SECONDS: Final = 0.005
"""Seconds of one step, by its clock, after which the rest of the pods is left for the next step."""
CLOCK_EVERY_PODS: Final = 8
"""Pods between two readings of the clock: they take about a millisecond."""


class Rereading:
    """Uids of pending pods to read again, by namespace."""

    def __init__(self) -> None:
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

    def drop(self, uid: str) -> None:
        """Forget a pod: it was read, or deleted."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is None:
            return
        uids = self._by_namespace[namespace]
        del uids[uid]
        if not uids:
            del self._by_namespace[namespace]

    def read(self, understand: Callable[[str], None], clock: Callable[[], float]) -> None:
        """Read pods until `READ_SECONDS` have passed.

        Args:
            understand: called with the uid of a pod.
            clock: returns seconds; it decides only how many pods are left for the next step.
        """
        if not self._namespace_of:
            return
        began, count = clock(), 0
        while self._by_namespace:
            for namespace in list(self._by_namespace):
                uid = next(iter(self._by_namespace[namespace]))
                self.drop(uid)
                understand(uid)
                count += 1
                if count % CLOCK_EVERY_PODS == 0 and clock() - began > READ_SECONDS:
                    self._turn(namespace)
                    return

    def _turn(self, namespace: str) -> None:
        """Let the next step begin with the namespace after this one."""
        names = list(self._by_namespace)
        at = names.index(namespace) + 1 if namespace in self._by_namespace else 0
        self._by_namespace = {name: self._by_namespace[name] for name in (*names[at:], *names[:at])}
