"""The life of one watch connection: first what is there, then what happens, and a bookmark when nothing does.

A stream ends in good order when its time is over, with an ERROR event when it can no longer tell everything, or
whenever a fault wants it to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from .encoding import Encoder, error_line
from .errors import APIError, expired
from .faults import BreakWatch
from .log import ObjectVersion, Watch

_CHUNK = 500
"""Initial events written at a time: encoding 500 pods takes a few milliseconds."""


class Over(Exception):
    """The stream ends here; ``cut`` if the connection is to be closed without a word."""

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
    """How long it lasts."""
    revision: Callable[[], int]
    """How far the store has come."""
    bookmark_seconds: float = float("inf")
    """How long it may be quiet before a bookmark is due."""
    initial: Sequence[ObjectVersion] = ()
    initial_end: int | None = None
    """The revision to announce once the initial events are sent; None announces nothing."""
    error: APIError | None = None
    """Why there is nothing to tell: an error in the stream, not in its place."""
    fault: BreakWatch | None = None
    sent: int = 0

    def break_now(self, fault: BreakWatch) -> None:
        """Have a fault strike a stream that is already open."""
        self.fault = BreakWatch(fault.how, self.sent + fault.after)
        self.watch.wake()

    async def pieces(self) -> AsyncIterator[bytes]:
        """What to write, as much at a time as there is; raises ``Over`` when a fault ends it."""
        if self.error is not None:
            yield error_line(self.error.body)
            return
        for start in range(0, len(self.initial), _CHUNK):
            chunk = self.initial[start : start + _CHUNK]
            yield self._passed([self.encoder.event("ADDED", record) for record in chunk])
        if self.initial_end is not None:
            yield self._passed([self.encoder.bookmark(self.initial_end, initial_end=True)])
        self.initial = ()
        clock = asyncio.get_running_loop().time
        end, quiet_until = clock() + self.seconds, clock() + self.bookmark_seconds
        while (now := clock()) < end:
            yield self._passed([])
            try:
                events = await self.watch.next(min(end, quiet_until) - now)
            except APIError as error:
                yield self._passed([error_line(error.body)])
                return
            lines = [self.encoder.event(kind, record) for kind, record in events]
            if lines or clock() >= quiet_until:
                yield self._passed(lines or [self.encoder.bookmark(self.revision())])
                quiet_until = clock() + self.bookmark_seconds

    def _passed(self, lines: list[bytes]) -> bytes:
        """The lines as the client gets them, once the fault, if it is due, had its way with them."""
        fault = self.fault
        room = len(lines) if fault is None else max(fault.after - self.sent, 0)
        good, struck = b"".join(lines[:room]), lines[room:]
        self.sent += len(lines)
        if fault is None or self.sent < fault.after:
            return good
        match fault.how:
            case "drop":
                raise Over(good, cut=True)
            case "truncate" if struck:
                raise Over(good + struck[0][: len(struck[0]) // 2], cut=True)
            case "expire":
                raise Over(good + error_line(expired("too old resource version: injected fault").body), cut=False)
            case "end":
                raise Over(good, cut=False)
            case "repeat":
                return good + b"".join(line + _as_added(line) for line in struck)
        return good


def _as_added(line: bytes) -> bytes:
    """The same event once more, as a watch that starts over would tell it."""
    for kind in (b'{"type":"ADDED"', b'{"type":"MODIFIED"'):
        if line.startswith(kind):
            return b'{"type":"ADDED"' + line[len(kind) :]
    return b""
