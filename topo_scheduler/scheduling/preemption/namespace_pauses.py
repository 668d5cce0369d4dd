"""Namespaces with failures of one kind: after the first ones, each is followed by a pause that grows."""

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


@dataclass(slots=True)
class _NamespacePause(Pause):
    """The pause of a namespace.

    ``first``: when it failed first, since it was forgotten. ``last``: when it failed last, also if that was taken back.
    Both in seconds. ``is_shared``: it failed again within the pause, which stays if the failure before is taken back.
    """

    first: float = 0.0
    last: float = 0.0
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure that counts, at a time; until when its namespace paused ``before``, and pauses now. All in seconds."""

    namespace: str
    at: float
    before: float
    until: float


class NamespacePauses:
    """Pauses by namespace. A namespace without a failure for long is forgotten."""

    def __init__(self, longest_seconds: float = LONGEST_PAUSE_SECONDS, *, free: int = 1) -> None:
        """Set up without failures. ``free``: how many failures of a namespace have no pause."""
        self._longest_seconds = longest_seconds
        self._free = free
        self._namespaces: dict[str, _NamespacePause] = {}

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._namespaces

    def failed(self, namespace: str, now: float) -> Failure | None:
        """Record a failure, one for all within a pause; return it if it counts."""
        recent = now - LONGEST_PAUSE_SECONDS
        self._namespaces = {
            name: known for name, known in self._namespaces.items() if max(known.until, known.last) > recent
        }
        pause = self._namespaces.setdefault(namespace, _NamespacePause(first=now))
        if self.is_paused(namespace, now):
            pause.is_shared = True
            return None  # of the same incident
        before = pause.until
        pause.times += 1
        repeated = pause.times - self._free
        pause.until = now + (doubled(FIRST_PAUSE_SECONDS, repeated, self._longest_seconds) if repeated > 0 else 0.0)
        pause.last, pause.is_shared = now, False
        return Failure(namespace, now, before, pause.until)

    def forgive(self, failure: Failure) -> None:
        """Take back one failure that counted, and its pause. Others stay as they are.

        It may have been forgotten already, with its namespace. If the namespace failed again within its pause, the
        failure stands for the others of that incident, and stays.
        """
        pause = self._namespaces.get(failure.namespace)
        if pause is None or not pause.times or failure.at < pause.first:
            return
        if pause.until == failure.until and pause.is_shared:
            return
        pause.times -= 1
        if pause.until == failure.until:
            pause.until = failure.before
        if not pause.times:
            del self._namespaces[failure.namespace]

    def succeeded(self, namespace: str) -> None:
        """Forget the failures of a namespace."""
        self._namespaces.pop(namespace, None)

    def is_paused(self, namespace: str, now: float) -> bool:
        """Return whether a namespace pauses; in the moment of its first failure, too."""
        pause = self._namespaces.get(namespace)
        return pause is not None and pause.times > 0 and now <= pause.until

    def until(self, namespace: str) -> float:
        """Return when the pause of a namespace ends, in seconds; 0 if there was no failure."""
        pause = self._namespaces.get(namespace)
        return pause.until if pause is not None else 0.0

    def is_doubted(self, namespace: str, now: float) -> bool:
        """Return whether a namespace has failed lately more often than is free."""
        pause = self._namespaces.get(namespace)
        return (
            pause is not None
            and pause.times > self._free
            and max(pause.until, pause.last) > now - LONGEST_PAUSE_SECONDS
        )

    def items(self) -> Iterable[tuple[str, Pause]]:
        """Return the namespaces with failures, and their pauses."""
        return self._namespaces.items()
