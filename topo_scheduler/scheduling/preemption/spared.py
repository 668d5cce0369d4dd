"""Pods that could not be evicted, and namespaces in which that happened again: spared until a pause has passed.

A namespace may have an admission webhook that refuses or never answers evictions, and many pods. Trying one pod of it
after the other would keep a workload of higher priority pending, although pods of other namespaces could be evicted. So
from the second failure on the pause covers the namespace: its pods are chosen only where no others would do. An
eviction there that succeeds ends that.
"""

from dataclasses import dataclass
from typing import Final

from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.state.pods.victim_info import VictimInfo

FIRST_PAUSE_SECONDS: Final = 10.0
"""Seconds for which a pod or namespace is not chosen after a failed eviction, doubled each time."""
LONGEST_PAUSE_SECONDS: Final = 600.0


@dataclass(slots=True)
class Pause:
    """A backoff: the number of failures, and when the pause after the last one ends, in seconds."""

    times: int = 0
    until: float = 0.0


class SparedVictims:
    """Pods by uid and namespaces by name that are not chosen as victims for now."""

    def __init__(self) -> None:
        self._pods: dict[str, Pause] = {}
        self._namespaces: dict[str, Pause] = {}

    def failed(self, uid: str, occupant: VictimInfo | None, now: float, *, namespace_too: bool = True) -> None:
        """Record that a pod could not be evicted. ``namespace_too``: for a reason that other pods there may share."""
        pause = self._pods.setdefault(uid, Pause())
        pause.times += 1
        pause.until = now + doubled(FIRST_PAUSE_SECONDS, pause.times, LONGEST_PAUSE_SECONDS)
        if not namespace_too or occupant is None:
            return
        recent = now - LONGEST_PAUSE_SECONDS
        self._namespaces = {name: known for name, known in self._namespaces.items() if known.until > recent}
        pause = self._namespaces.setdefault(occupant.namespace, Pause())
        if pause.times and now <= pause.until:
            return  # of the same incident
        pause.times += 1
        repeated = pause.times - 1
        pause.until = now + (doubled(FIRST_PAUSE_SECONDS, repeated, LONGEST_PAUSE_SECONDS) if repeated else 0.0)

    def succeeded(self, namespace: str) -> None:
        """Record that a pod of a namespace was evicted."""
        self._namespaces.pop(namespace, None)

    def forget(self, uid: str) -> None:
        """Forget a pod that was deleted."""
        self._pods.pop(uid, None)

    def has(self, uid: str, now: float) -> bool:
        """Return whether a pod itself may not be chosen now."""
        pause = self._pods.get(uid)
        return pause is not None and now < pause.until

    def is_doubted(self, uid: str, occupant: VictimInfo | None) -> bool:
        """Return whether an eviction of a pod, or of one in its namespace, failed before and none succeeded since."""
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
        pauses = (*self._pods.values(), *self._namespaces.values())
        return min((pause.until for pause in pauses if pause.until > since), default=None)
