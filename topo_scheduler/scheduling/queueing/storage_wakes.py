"""When changes of storage objects count for pods that use volumes: each namespace has pauses of its own.

Users make such changes: a volume for each claim, and CSIStorageCapacity objects. They may concern the pods of all
namespaces that use volumes. So the more pending workloads of a namespace one change wakes, the later the next one does.
"""

from collections import Counter
from typing import Final

PAUSE_SECONDS_PER_WORKLOAD: Final = 5e-3
"""Seconds to the next change that counts for a namespace, for each of its workloads that the last one woke."""
MAX_PAUSE_SECONDS: Final = 30.0


class StorageWakes:
    """Namespaces for which changes do not count yet. Times in seconds."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """End of the pause of each namespace that has one."""
        self.late: dict[str, None] = {}
        """Namespaces with a pause in which something changed."""
        self._woken: Counter[str] = Counter()
        """Workloads that the current change wakes."""
        self._changed = False

    def begin(self, now: float, *, changed: bool) -> bool:
        """Begin a step; return whether any namespace has workloads to wake.

        ``changed``: whether an object changed since the last step.
        """
        self._changed = changed
        for namespace in [namespace for namespace, until in self._until.items() if until <= now]:
            del self._until[namespace]
        return changed or any(namespace not in self._until for namespace in self.late)

    def concerns(self, namespace: str) -> bool:
        """Record that a change concerns a workload that uses volumes; return whether to wake it now."""
        if namespace in self._until:
            if self._changed:
                self.late[namespace] = None
            return False
        wakes = self._changed or namespace in self.late
        self._woken[namespace] += wakes
        return wakes

    def end(self, now: float) -> None:
        """End a step: the namespaces with workloads that were woken have a pause."""
        self.late = {namespace: None for namespace in self.late if namespace in self._until}
        for namespace, woken in self._woken.items():
            self._until[namespace] = now + min(MAX_PAUSE_SECONDS, PAUSE_SECONDS_PER_WORKLOAD * woken)
        self._woken.clear()
        self._changed = False

    def next_due(self) -> float | None:
        """Return when the next pause ends after which workloads are woken."""
        return min((self._until.get(namespace, 0.0) for namespace in self.late), default=None)
