"""The change log of one kind, in order, for watchers.

A watcher is only a position in this log; it has no queue of its own, however slow it is. A watcher that falls behind
the kept part of the log gets an error (410) and must list again. Each version of an object is encoded at most once per
view, regardless of the number of watchers.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
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
    """One version of one object. It can be read like the object itself."""

    __slots__ = ("_encoded", "key", "obj", "revision")

    def __init__(self, key: Key, obj: Json, revision: int) -> None:
        self.key = key
        self.obj = obj
        self.revision = revision
        self._encoded: dict[str, bytes] = {}

    def __getitem__(self, field: str) -> Any:
        return self.obj[field]

    def get(self, field: str, default: Any = None) -> Any:
        """Return a field of the object, as ``dict.get`` does."""
        return self.obj.get(field, default)

    def encoded(self, view: View | None = None) -> bytes:
        """Return the object as JSON."""
        name = view.name if view else ""
        if (body := self._encoded.get(name)) is None:
            body = self._encoded[name] = _encode(view.show(self.obj) if view else self.obj)
        return body


class StoreEvent:
    """One change: the object before and after it. ``before`` is None for a creation, ``after`` for a removal."""

    __slots__ = ("_gone", "after", "before", "revision")

    def __init__(self, before: ObjectVersion | None, after: ObjectVersion | None, revision: int) -> None:
        self.before = before
        self.after = after
        self.revision = revision
        self._gone: ObjectVersion | None = None

    @property
    def record(self) -> ObjectVersion:
        """The object after the change, or its last state if it was removed."""
        return self.after or self.gone()

    @property
    def key(self) -> Key:
        """The key of the object that changed."""
        return self.record.key

    def gone(self) -> ObjectVersion:
        """Return the last state, with the revision of the removal."""
        if self._gone is None:
            before = self.before
            if before is None:
                raise ValueError("an object that was never there cannot be gone")
            metadata = {**before.obj["metadata"], "resourceVersion": str(self.revision)}
            self._gone = ObjectVersion(before.key, {**before.obj, "metadata": metadata}, self.revision)
        return self._gone

    def seen_through(self, selection: Selection) -> tuple[EventType, ObjectVersion] | None:
        """Return the event for a watcher with that selection. An object that leaves the selection counts as deleted."""
        after, before = self.after, self.before
        if selection is EVERYTHING:
            return ("DELETED", self.gone()) if after is None else ("MODIFIED" if before else "ADDED", after)
        was_selected = before is not None and selection.includes(before.key, before.obj)
        if after is not None and selection.includes(after.key, after.obj):
            return ("MODIFIED" if was_selected else "ADDED", after)
        return ("DELETED", self.gone()) if was_selected else None


class Log:
    """The last events of one kind: at least ``window``, at most twice as many."""

    def __init__(self, window: int, revision: int) -> None:
        self._window = window
        self._events: list[StoreEvent] = []
        self._dropped = 0
        """Number of dropped events; positions count from the first event ever."""
        self.oldest = revision
        """The oldest revision from which all later events are kept."""
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def end(self) -> int:
        """The position after the last event."""
        return self._dropped + len(self._events)

    def append(self, event: StoreEvent) -> None:
        """Append an event and wake waiting watchers."""
        self._events.append(event)
        if len(self._events) >= 2 * self._window:
            self._drop(len(self._events) - self._window)
        self.wake()

    def wake(self) -> None:
        """Wake all waiting watchers."""
        futures, self._waiting = self._waiting, []
        for future in futures:
            if not future.done():
                future.set_result(None)

    def compact(self) -> None:
        """Drop all events, as etcd does every five minutes; all positions but the end expire."""
        if self._events:
            self._drop(len(self._events))

    def _drop(self, count: int) -> None:
        self.oldest = self._events[count - 1].revision
        self._dropped += count
        del self._events[:count]

    def position(self, revision: int) -> int:
        """Return the position of the first event after ``revision``; raises 410 if it is too old."""
        if revision < self.oldest:
            raise expired(f"too old resource version: {revision} ({self.oldest})")
        return self._dropped + bisect_right(self._events, revision, key=lambda event: event.revision)

    def since(self, position: int) -> list[StoreEvent]:
        """Return all events from a position on; raises 410 if some were dropped."""
        if position < self._dropped:
            raise expired("The resourceVersion for the provided watch is too old.")
        return self._events[position - self._dropped :] if position < self.end else []

    async def changed(self, position: int, timeout: float | None = None) -> None:
        """Wait until there is an event after ``position``, or for ``timeout`` seconds."""
        if position != self.end:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await asyncio.wait([future], timeout=timeout)


class Watch:
    """A watcher: a position in a log, and a selection of objects."""

    def __init__(self, log: Log, position: int, selection: Selection = EVERYTHING) -> None:
        self._log = log
        self.position = position
        self._selection = selection

    def wake(self) -> None:
        """Wake a waiting ``next`` call."""
        self._log.wake()

    def pending(self) -> list[tuple[EventType, ObjectVersion]]:
        """Return the events since the last call; raises 410 if some were dropped."""
        events = self._log.since(self.position)
        self.position += len(events)
        visible = (event.seen_through(self._selection) for event in events)
        return [event for event in visible if event is not None]

    async def next(self, timeout: float | None = None) -> list[tuple[EventType, ObjectVersion]]:
        """Return the next events as soon as there are any; an empty list after ``timeout`` seconds without events."""
        await self._log.changed(self.position, timeout)
        return self.pending()


Observer = Callable[[str, StoreEvent], None]
"""Called with the table and the event, synchronously within each write."""
