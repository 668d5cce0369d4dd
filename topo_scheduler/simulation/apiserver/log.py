"""What happened to the objects of one kind, in order, for those who watch.

A watcher is a position in this log and nothing more: it keeps no queue of its own, however slow it is. Whoever
falls behind the part of the log that is kept learns so (410) and lists again. Every version of an object is
encoded at most once for each way of showing it, however many watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from .errors import expired
from .kinds import View
from .objects import Json, Key
from .selectors import EVERYTHING, Selection

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
_encode: Final = msgspec.json.Encoder().encode


class ObjectVersion:
    """One version of one object. It reads like the object it holds."""

    __slots__ = ("_encoded", "key", "obj", "revision")

    def __init__(self, key: Key, obj: Json, revision: int) -> None:
        self.key = key
        self.obj = obj
        self.revision = revision
        self._encoded: dict[str, bytes] = {}

    def __getitem__(self, part: str) -> Any:
        return self.obj[part]

    def get(self, part: str, default: Any = None) -> Any:
        """As ``dict.get``."""
        return self.obj.get(part, default)

    def encoded(self, view: View | None = None) -> bytes:
        """The object as JSON."""
        name = view.name if view else ""
        if (body := self._encoded.get(name)) is None:
            body = self._encoded[name] = _encode(view.show(self.obj) if view else self.obj)
        return body


class StoreEvent:
    """One change: what was there before, and what is there now."""

    __slots__ = ("_gone", "after", "before", "revision")

    def __init__(self, before: ObjectVersion | None, after: ObjectVersion | None, revision: int) -> None:
        self.before = before
        self.after = after
        self.revision = revision
        self._gone: ObjectVersion | None = None

    @property
    def record(self) -> ObjectVersion:
        """The object after the change, or as it was last when it is gone."""
        return self.after or self.gone()

    @property
    def key(self) -> Key:
        """The key of the object that changed."""
        return self.record.key

    def gone(self) -> ObjectVersion:
        """The last state, stamped with the revision at which it was left."""
        if self._gone is None:
            before = self.before
            if before is None:
                raise ValueError("an object that was never there cannot be gone")
            metadata = {**before.obj["metadata"], "resourceVersion": str(self.revision)}
            self._gone = ObjectVersion(before.key, {**before.obj, "metadata": metadata}, self.revision)
        return self._gone

    def seen_through(self, selection: Selection) -> tuple[EventType, ObjectVersion] | None:
        """The event a watcher with that selection gets: an object that leaves the selection is deleted for it."""
        after, before = self.after, self.before
        if selection is EVERYTHING:
            return ("DELETED", self.gone()) if after is None else ("MODIFIED" if before else "ADDED", after)
        was = before is not None and selection.includes(before.key, before.obj)
        if after is not None and selection.includes(after.key, after.obj):
            return ("MODIFIED" if was else "ADDED", after)
        return ("DELETED", self.gone()) if was else None


class Log:
    """The last events of one kind; ``window`` of them at least, twice as many at most."""

    def __init__(self, window: int, revision: int) -> None:
        self._window = window
        self._events: list[StoreEvent] = []
        self._dropped = 0
        """How many events lie before the first that is kept; positions count from the beginning of time."""
        self.oldest = revision
        """The oldest revision from which the future is completely known."""
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def end(self) -> int:
        """The position after the last event."""
        return self._dropped + len(self._events)

    def append(self, event: StoreEvent) -> None:
        """Add what just happened and wake those who wait for it."""
        self._events.append(event)
        if len(self._events) >= 2 * self._window:
            self._drop(len(self._events) - self._window)
        self.wake()

    def wake(self) -> None:
        """Let every waiting watcher look again."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def compact(self) -> None:
        """Forget everything, as etcd does every five minutes; every position but the end expires."""
        if self._events:
            self._drop(len(self._events))

    def _drop(self, count: int) -> None:
        self.oldest = self._events[count - 1].revision
        self._dropped += count
        del self._events[:count]

    def position(self, revision: int) -> int:
        """Where the events after ``revision`` begin."""
        if revision < self.oldest:
            raise expired(f"too old resource version: {revision} ({self.oldest})")
        low, high = 0, len(self._events)
        while low < high:
            middle = (low + high) // 2
            if self._events[middle].revision <= revision:
                low = middle + 1
            else:
                high = middle
        return self._dropped + low

    def since(self, position: int) -> list[StoreEvent]:
        """All events from a position on."""
        if position < self._dropped:
            raise expired("The resourceVersion for the provided watch is too old.")
        return self._events[position - self._dropped :] if position < self.end else []

    async def changed(self, position: int, timeout: float | None = None) -> None:
        """Return when there is something after ``position``, or when the time is over."""
        if position != self.end:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await asyncio.wait([future], timeout=timeout)


class Watch:
    """A watcher: a place in a log and what it wants to see of it."""

    def __init__(self, log: Log, position: int, selection: Selection = EVERYTHING) -> None:
        self._log = log
        self.position = position
        self._selection = selection

    def wake(self) -> None:
        """Let a ``next`` that waits return with what there is."""
        self._log.wake()

    def pending(self) -> list[tuple[EventType, ObjectVersion]]:
        """What happened since the last look; raises 410 when part of it is no longer known."""
        events = self._log.since(self.position)
        self.position += len(events)
        seen = (event.seen_through(self._selection) for event in events)
        return [event for event in seen if event is not None]

    async def next(self, timeout: float | None = None) -> list[tuple[EventType, ObjectVersion]]:
        """The next events, at once if there are any; an empty list when ``timeout`` passes without one."""
        await self._log.changed(self.position, timeout)
        return self.pending()


Observer = Callable[[str, StoreEvent], None]
"""Called with the table and each event in it, in the very moment of the write."""
