"""Binds of which it is not known if they were written: each is written again to the same node, after a pause.

The pause stays short while the API server is away as a whole: it is back for all binds at once. It grows with each
attempt in a row that was not answered although the API server answered otherwise, as behind a webhook that hangs or
fails: thousands of such binds must not be written every second for hours. Once one of them is answered, the others of
its namespace are written again at once.
"""

import heapq
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.scheduling.pauses import doubled

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
"""Pause after the first attempt that was not answered, doubled with each further one, and the longest."""


@dataclass(slots=True)
class _Unsettled:
    """``due`` when it is written again, infinite while it is being written; ``unanswered`` attempts in a row."""

    namespace: str
    due: float = inf
    unanswered: int = 0


class Unsettled:
    """All of them, by uid of the pod."""

    def __init__(self) -> None:
        self._binds: dict[str, _Unsettled] = {}
        self._due: list[tuple[float, str]] = []
        self._pausing: dict[str, dict[str, None]] = {}
        """Binds whose pause has not ended, by namespace."""
        self._hang: set[str] = set()
        """Binds under way that were not answered for a while, though the API server answered otherwise."""

    def __len__(self) -> int:
        return len(self._binds)

    def __contains__(self, uid: str) -> bool:
        return uid in self._binds

    def hangs(self, uid: str) -> None:
        """Note that the API server answers, but not to this bind."""
        self._hang.add(uid)

    def put(self, uid: str, namespace: str, now: float) -> None:
        """Note that an attempt ended without an answer: the next one follows after a pause."""
        bind = self._binds.setdefault(uid, _Unsettled(namespace))
        bind.unanswered = bind.unanswered + 1 if uid in self._hang else 0
        self._hang.discard(uid)
        self._pausing.setdefault(namespace, {})[uid] = None
        self._schedule(uid, bind, now + doubled(FIRST_PAUSE_SECONDS, bind.unanswered, LONGEST_PAUSE_SECONDS))

    def hasten(self, uid: str, now: float) -> None:
        """Let a bind that pauses be written again at once."""
        bind = self._binds.get(uid)
        if bind is not None and uid in self._pausing.get(bind.namespace, ()):
            self._end_pause(uid, bind)
            self._schedule(uid, bind, now)

    def answered(self, uid: str, now: float) -> None:
        """Note that the API server answered to a bind: others of its namespace that were not answered go at once."""
        bind = self._binds.get(uid)
        for other in list(self._pausing.get(bind.namespace, ())) if bind is not None else ():
            self.hasten(other, now)

    def drop(self, uid: str) -> None:
        """Forget a bind: its end is known, or does not matter any more."""
        self._hang.discard(uid)
        bind = self._binds.pop(uid, None)
        if bind is not None:
            self._end_pause(uid, bind)
        if not self._binds:
            self._due.clear()

    def take_due(self, now: float) -> list[str]:
        """Return the binds that are to be written again now."""
        taken = []
        while self._due and self._due[0][0] <= now:
            due, uid = heapq.heappop(self._due)
            bind = self._binds.get(uid)
            if bind is not None and bind.due == due:  # otherwise it has ended, or was hastened
                bind.due = inf
                self._end_pause(uid, bind)
                taken.append(uid)
        return taken

    def next_due(self) -> float | None:
        """Return when `take_due` must be asked next, in seconds."""
        return self._due[0][0] if self._due else None

    def _schedule(self, uid: str, bind: _Unsettled, due: float) -> None:
        bind.due = due
        heapq.heappush(self._due, (due, uid))
        if len(self._due) > 2 * len(self._binds) + 64:  # mostly of binds that have ended
            self._due = [(bind.due, uid) for uid, bind in self._binds.items() if bind.due < inf]
            heapq.heapify(self._due)

    def _end_pause(self, uid: str, bind: _Unsettled) -> None:
        pausing = self._pausing.get(bind.namespace, {})
        pausing.pop(uid, None)
        if not pausing:
            self._pausing.pop(bind.namespace, None)
