"""Namespaces with failures of one kind: from the second failure on, each is followed by a pause that grows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from topo_scheduler.scheduling.pauses import doubled

FIRST_PAUSE_SECONDS: Final = 10.0
"""Seconds of the first pause, doubled each time."""
LONGEST_PAUSE_SECONDS: Final = 600.0


@dataclass(slots=True)
class Pause:
    """A backoff: the number of failures, and when the pause after the last one ends, in seconds."""

    times: int = 0
    until: float = 0.0


class NamespacePauses:
    """Pauses by namespace. A namespace without a failure for long is forgotten."""

    def __init__(self) -> None:
        self._namespaces: dict[str, Pause] = {}

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._namespaces

    def failed(self, namespace: str, now: float) -> bool:
        """Record a failure, one for all within a pause; return whether it counts."""
        recent = now - LONGEST_PAUSE_SECONDS
        self._namespaces = {name: known for name, known in self._namespaces.items() if known.until > recent}
        pause = self._namespaces.setdefault(namespace, Pause())
        if pause.times and now <= pause.until:
            return False  # of the same incident
        pause.times += 1
        repeated = pause.times - 1
        pause.until = now + (doubled(FIRST_PAUSE_SECONDS, repeated, LONGEST_PAUSE_SECONDS) if repeated else 0.0)
        return True

    def forgive(self, namespace: str) -> None:
        """Take back a failure that counted, with its pause."""
        pause = self._namespaces.get(namespace)
        if pause is not None:
            pause.times -= 1
            pause.until = 0.0
            if not pause.times:
                del self._namespaces[namespace]

    def succeeded(self, namespace: str) -> None:
        """Forget the failures of a namespace."""
        self._namespaces.pop(namespace, None)

    def until(self, namespace: str) -> float:
        """Return when the pause of a namespace ends, in seconds; 0 if there was no failure."""
        pause = self._namespaces.get(namespace)
        return pause.until if pause is not None else 0.0

    def has_failed_twice(self, namespace: str, now: float) -> bool:
        """Return whether a namespace has failed more than once lately."""
        pause = self._namespaces.get(namespace)
        return pause is not None and pause.times > 1 and pause.until > now - LONGEST_PAUSE_SECONDS

    def items(self) -> Iterable[tuple[str, Pause]]:
        """Return the namespaces with failures, and their pauses."""
        return self._namespaces.items()
