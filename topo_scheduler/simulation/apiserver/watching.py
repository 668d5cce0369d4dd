"""One watch connection: initial objects, then events, and bookmarks while there are no events.

A stream ends normally after its timeout, with an ERROR event if events were dropped, or because of an injected fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from .encoding import Encoder, error_line
from .errors import StatusError, expired
from .faults import BreakWatch, Refuse
from .log import ObjectVersion, Watch

_CHUNK_EVENTS = 500
"""Initial events per chunk; encoding 500 pods takes a few milliseconds."""


class StreamEnd(Exception):
    """Ends a stream after the bytes ``last``; with ``cut`` the connection is closed abruptly."""

    def __init__(self, last: bytes, *, cut: bool) -> None:
        super().__init__("the stream is over")
        self.last = last
        self.cut = cut


@dataclass(slots=True, eq=False)
class Stream:
    """An open watch."""

    watch: Watch
    encoder: Encoder
    seconds: float
    """Timeout of the watch, in seconds."""
    revision: Callable[[], int]
    """Returns the current revision of the store."""
    bookmark_seconds: float = float("inf")
    """Time without events before a bookmark, in seconds."""
    initial: Sequence[ObjectVersion] = ()
    initial_end: int | None = None
    """The revision for a bookmark after the initial events; None for no such bookmark."""
    error: StatusError | None = None
    """An error to send as the only event."""
    fault: BreakWatch | None = None
    sent: int = 0

    def break_now(self, fault: BreakWatch) -> None:
        """Apply a fault to an open stream."""
        self.fault = BreakWatch(fault.how, self.sent + fault.after)
        self.watch.wake()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes to write, as they become available; raises ``StreamEnd`` if a fault ends the stream."""
        if self.error is not None:
            yield error_line(self.error.body)
            return
        for start in range(0, len(self.initial), _CHUNK_EVENTS):
            chunk = self.initial[start : start + _CHUNK_EVENTS]
            yield self._passed([self.encoder.event("ADDED", record) for record in chunk])
        if self.initial_end is not None:
            yield self._passed([self.encoder.bookmark(self.initial_end, initial_end=True)])
        self.initial = ()
        clock = asyncio.get_running_loop().time
        end, bookmark_at = clock() + self.seconds, clock() + self.bookmark_seconds
        while (now := clock()) < end:
            yield self._passed([])
            try:
                events = await self.watch.next(min(end, bookmark_at) - now)
            except StatusError as error:
                yield self._passed([error_line(error.body)])
                return
            lines = [self.encoder.event(kind, record) for kind, record in events]
            if lines or clock() >= bookmark_at:
                yield self._passed(lines or [self.encoder.bookmark(self.revision())])
                bookmark_at = clock() + self.bookmark_seconds

    def _passed(self, lines: list[bytes]) -> bytes:
        """Return the lines for the client, after applying the fault if it is due."""
        fault = self.fault
        passing = len(lines) if fault is None else max(fault.after - self.sent, 0)
        intact, affected = b"".join(lines[:passing]), lines[passing:]
        self.sent += len(lines)
        if fault is None or self.sent < fault.after:
            return intact
        match fault.how:
            case "drop":
                raise StreamEnd(intact, cut=True)
            case "truncate" if affected:
                raise StreamEnd(intact + affected[0][: len(affected[0]) // 2], cut=True)
            case "expire":
                raise StreamEnd(
                    intact + error_line(expired("too old resource version: injected fault").body), cut=False
                )
            case "fail":
                raise StreamEnd(intact + error_line(Refuse(500).error().body), cut=False)
            case "end":
                raise StreamEnd(intact, cut=False)
            case "repeat":
                return intact + b"".join(line + _as_added(line) for line in affected)
        return intact


def _as_added(line: bytes) -> bytes:
    """Return the event as ADDED, as a restarted watch would send it; empty for other events."""
    for kind in (b'{"type":"ADDED"', b'{"type":"MODIFIED"'):
        if line.startswith(kind):
            return b'{"type":"ADDED"' + line[len(kind) :]
    return b""
