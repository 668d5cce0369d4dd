"""Binds whose result is unknown: the scheduler writes each again to the same node, after a backoff.

Pods of higher priority that need the room do not wait for that: see `Outcomes.yield_room`.

The backoff stays short while the whole API server is unreachable: it comes back for all binds at once. It grows with
each attempt in a row that got no answer although the API server answered other requests. That happens behind a webhook
that hangs or fails: thousands of such binds must not be written every second for hours. Once one of them is answered,
the scheduler writes the others of its namespace again at once.
"""

import heapq
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.scheduling.pauses import doubled

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
"""Backoff after the first attempt without an answer, doubled with each further one; and the longest backoff."""


@dataclass(slots=True)
class _UnsettledBind:
    """``due`` is when it is written again, infinite while it is being written; ``unanswered`` attempts in a row."""

    namespace: str
    due: float = inf
    unanswered: int = 0


class Unsettled:
    """All binds whose result is unknown, by uid of the pod."""

    def __init__(self) -> None:
        self._binds: dict[str, _UnsettledBind] = {}
        self._due: list[tuple[float, str]] = []
        self._pausing: dict[str, dict[str, None]] = {}
        """Binds whose backoff has not ended, by namespace."""
        self._hang: set[str] = set()
        """Binds being written without an answer for a while, although the API server answers other requests."""

    def __len__(self) -> int:
        return len(self._binds)

    def __contains__(self, uid: str) -> bool:
        return uid in self._binds

    def hangs(self, uid: str) -> None:
        """Record that the API server answers, but not to this bind."""
        self._hang.add(uid)

    def is_hanging(self, uid: str) -> bool:
        """Return whether the attempt under way hangs."""
        return uid in self._hang

    def unanswered(self) -> list[str]:
        """Return the binds whose last attempt hung, and whose backoff has not ended."""
        pausing = (uid for uids in self._pausing.values() for uid in uids)
        return [uid for uid in pausing if self._binds[uid].unanswered]

    def pausing(self, namespace: str) -> list[str]:
        """Return the binds of a namespace whose backoff has not ended."""
        return list(self._pausing.get(namespace, ()))

    def put(self, uid: str, namespace: str, now: float) -> None:
        """Record that an attempt ended without an answer: the next one follows after a backoff."""
        bind = self._binds.setdefault(uid, _UnsettledBind(namespace))
        bind.unanswered = bind.unanswered + 1 if uid in self._hang else 0
        self._hang.discard(uid)
        self._pausing.setdefault(namespace, {})[uid] = None
        self._schedule(uid, bind, now + doubled(FIRST_PAUSE_SECONDS, bind.unanswered, LONGEST_PAUSE_SECONDS))

    def defer(self, uid: str, now: float) -> None:
        """Record that an attempt could not be made: it follows after a backoff."""
        if (bind := self._binds.get(uid)) is not None:
            self.put(uid, bind.namespace, now)

    def hasten(self, uid: str, now: float) -> None:
        """End the backoff of a bind, so that it is written again at once."""
        bind = self._binds.get(uid)
        if bind is not None and uid in self._pausing.get(bind.namespace, ()):
            self._end_pause(uid, bind)
            self._schedule(uid, bind, now)

    def answered(self, uid: str, now: float) -> None:
        """Record that a bind was answered: unanswered binds of its namespace are written again at once."""
        bind = self._binds.get(uid)
        for other in self.pausing(bind.namespace) if bind is not None else ():
            self.hasten(other, now)

    def drop(self, uid: str) -> None:
        """Forget a bind: its result is known, or does not matter any more."""
        self._hang.discard(uid)
        bind = self._binds.pop(uid, None)
        if bind is not None:
            self._end_pause(uid, bind)
        if not self._binds:
            self._due.clear()

    def take_due(self, now: float) -> list[str]:
        """Return the binds to write again now."""
        taken = []
        while self._due and self._due[0][0] <= now:
            due, uid = heapq.heappop(self._due)
            bind = self._binds.get(uid)
            if bind is not None and bind.due == due:  # otherwise it has ended, or its backoff was cut short
                bind.due = inf
                self._end_pause(uid, bind)
                taken.append(uid)
        return taken

    def next_due(self) -> float | None:
        """Return when to call `take_due` next, in seconds."""
        return self._due[0][0] if self._due else None

    def _schedule(self, uid: str, bind: _UnsettledBind, due: float) -> None:
        bind.due = due
        heapq.heappush(self._due, (due, uid))
        if len(self._due) > 2 * len(self._binds) + 64:  # mostly entries of binds that have ended
            self._due = [(bind.due, uid) for uid, bind in self._binds.items() if bind.due < inf]
            heapq.heapify(self._due)

    def _end_pause(self, uid: str, bind: _UnsettledBind) -> None:
        pausing = self._pausing.get(bind.namespace, {})
        pausing.pop(uid, None)
        if not pausing:
            self._pausing.pop(bind.namespace, None)
