"""Pods that could not be evicted, and namespaces in which that happened again: spared until a pause has passed.

A namespace may have an admission webhook that refuses or never answers evictions, and many pods. Trying one pod of it
after the other would keep a workload of higher priority pending, although pods of other namespaces could be evicted. So
from the second failure on the pause covers the namespace: its pods are chosen only where no others would do. That ends
when all victims of a workload are gone, among them pods of this namespace.
"""

from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.preemption.namespace_pauses import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    NamespacePauses,
    Pause,
)
from topo_scheduler.state.pods.victim_info import VictimInfo


class SparedVictims:
    """Pods by uid and namespaces by name that are not chosen as victims for now."""

    def __init__(self) -> None:
        self._pods: dict[str, Pause] = {}
        self._namespaces = NamespacePauses()

    def failed(self, uid: str, occupant: VictimInfo | None, now: float, *, namespace_too: bool = True) -> None:
        """Record that a pod could not be evicted. ``namespace_too``: for a reason that other pods there may share."""
        pause = self._pods.setdefault(uid, Pause())
        pause.times += 1
        pause.until = now + doubled(FIRST_PAUSE_SECONDS, pause.times, LONGEST_PAUSE_SECONDS)
        if namespace_too and occupant is not None:
            self._namespaces.failed(occupant.namespace, now)

    def succeeded(self, namespace: str) -> None:
        """Record that pods of a namespace were evicted, and are gone."""
        self._namespaces.succeeded(namespace)

    def forget(self, uid: str) -> None:
        """Forget a pod that was deleted."""
        self._pods.pop(uid, None)

    def has(self, uid: str, now: float) -> bool:
        """Return whether a pod itself may not be chosen now."""
        pause = self._pods.get(uid)
        return pause is not None and now < pause.until

    def is_doubted(self, uid: str, occupant: VictimInfo | None) -> bool:
        """Return whether an eviction of a pod, or of one in its namespace, failed before, and none counted since."""
        return uid in self._pods or (occupant is not None and occupant.namespace in self._namespaces)

    def namespaces(self, now: float) -> frozenset[str]:
        """Return the namespaces whose pods are chosen only where no others would do."""
        return frozenset(name for name, pause in self._namespaces.items() if now < pause.until)

    def stamp(self, now: float) -> tuple[str, ...]:
        """Return what identifies the pods and namespaces that may not be chosen now."""
        pauses = (*self._pods.items(), *self._namespaces.items())
        return tuple(name for name, pause in pauses if now < pause.until)

    def next_end(self, since: float) -> float | None:
        """Return when, after a given time, the next of these pauses ends, in seconds."""
        pauses = (*self._pods.items(), *self._namespaces.items())
        return min((pause.until for _, pause in pauses if pause.until > since), default=None)
