"""The right to write: every request that changes something checks the fence right before its bytes leave.

A leader loses its right to write at a moment that its own clock knows. At that moment it may be waiting for a pooled
connection, for the event loop, or for SIGCONT. So the client, and no writer, asks the fence three times:

* Before it builds the request. The fence also gives the request a deadline that the API server enforces
  (``?timeout=``).
* When the body is about to be handed to the socket, which is the last line of Python before ``send``.
* While a request has no answer: for how long may the API server still be carrying it out?

Guarantees, with ``left()`` the seconds for which this process may write:

* No byte of a write reaches the kernel unless ``left()`` is above the deadline that the write carries.
* The API server abandons a write at its deadline, counted from when it has read the headers. Consider a write
  received within ``flight_seconds`` of being sent. At ``flight_seconds`` after the right has ended, it has taken
  effect or never will.
* The kernel drops bytes that the API server's side does not acknowledge within ``flight_seconds``. It does so even
  while the process is stopped (``TCP_USER_TIMEOUT``, on Linux).
"""

import asyncio
import math
import socket
import time
from collections.abc import Callable
from typing import Final

from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter
from aiohttp.payload import BytesPayload

from topo_scheduler.kube.connection.errors import Fenced, KubeError, Unreachable, Withdrawn
from topo_scheduler.kube.connection.waiting import set_or_due

CLOCK_DRIFT_SHARE: Final = 0.1
"""The largest assumed difference between the rates of two clocks, as a share."""
FLIGHT_SECONDS: Final = 3.0
"""Longest time that bytes travel from here to the API server, in seconds; afterwards the kernel drops them."""
RESERVE_SECONDS: Final = 0.5
SHORTEST_SECONDS: Final = 0.1
"""Shortest deadline of a new write, in seconds: the API server could hardly keep a shorter one."""

_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", None)


class Fence:
    """Decides whether a write may leave now, and until when the API server may carry it out.

    Args:
        left: seconds for which this process may still write; 0 or less when it may not.
        reserve: seconds of ``left`` kept for the wait for a connection; the deadline of a write excludes them.
        flight_seconds: longest time that bytes travel to the API server.
        clock: seconds, as ``left`` counts them.
    """

    def __init__(
        self,
        left: Callable[[], float],
        *,
        reserve: float = RESERVE_SECONDS,
        flight_seconds: float = FLIGHT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.flight_seconds = flight_seconds
        self._left = left
        self._reserve = reserve
        self._clock = clock
        self._on_wire: dict[FencedBody, float] = {}
        """Writes without an answer so far, with when they can no longer take effect."""
        self._answered = asyncio.Event()
        self._quiet_at = -math.inf
        """When no write that ended without an answer can take effect any more."""

    def deadline(self, seconds: float) -> float:
        """Return the seconds that a write may take at the API server, at most ``seconds``.

        Raises:
            Fenced: this process may not write, or not for long enough.
        """
        left = self._left()
        allowed = min(seconds, (left - self._reserve) * (1 - CLOCK_DRIFT_SHARE))
        if allowed < min(SHORTEST_SECONDS, seconds):
            raise Fenced(_ended(left))
        return allowed

    def ask(self, deadline: float) -> None:
        """Return if a write with this deadline may leave now.

        Raises:
            Fenced: this process may not write any more.
            Unreachable: it may, but for less time than the deadline: the write waited too long for its connection.
        """
        left = self._left()
        if left <= 0:
            raise Fenced(_ended(left))
        if left * (1 - CLOCK_DRIFT_SHARE) < deadline:
            raise Unreachable(f"waited too long for a connection: the lease ends in {left:.1f} s", sent=False)

    def leaves(self, write: "FencedBody", deadline: float) -> None:
        """Note that the bytes of a write leave now, if a lease protects it."""
        if not math.isinf(self._left()):
            self._on_wire[write] = self._clock() + deadline / (1 - CLOCK_DRIFT_SHARE) + self.flight_seconds

    def is_on_wire(self, write: "FencedBody") -> bool:
        """Return whether a write that a lease protects has been sent and has not ended."""
        return write in self._on_wire

    def ended(self, write: "FencedBody", *, settled: bool) -> None:
        """Note that a write has ended. ``settled``: it took effect, or never will."""
        over_at = self._on_wire.pop(write, -math.inf)
        if settled:
            self._answered.set()
        else:
            self._quiet_at = max(self._quiet_at, over_at)

    def unsettled_seconds(self) -> float:
        """Return for how many seconds a write without an answer may still take effect; 0 if there is none."""
        return max(0.0, max((self._quiet_at, *self._on_wire.values())) - self._clock())

    async def settled(self) -> None:
        """Wait until every write has been answered, or can no longer take effect."""
        while (seconds := self.unsettled_seconds()) > 0:
            self._answered.clear()
            await set_or_due(self._answered, self._clock() + seconds, self._clock)


UNFENCED: Final = Fence(lambda: math.inf)
"""For writes that no lease protects: the Lease itself, events, and requests of a user on the command line.

An event reports what has happened. It remains true when a former leader posts it late, and no scheduling decision
depends on it. A TokenReview is a question, which a standby asks as well.
"""


class FencedBody(BytesPayload):
    """The body of a write. It checks the fence when it is about to be handed to the socket, headers included."""

    def __init__(self, data: bytes, fence: Fence, deadline: float, recheck: Callable[[], str] | None = None) -> None:
        """``recheck`` returns why the write is no longer correct, or an empty string; called after the fence check."""
        super().__init__(data)
        self._fence = fence
        self._deadline = deadline
        self._recheck = recheck
        self.left = False
        """Whether bytes have been handed to the socket."""
        self.refusal: KubeError | None = None

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write headers and body together; aiohttp calls this once connected, with the headers still buffered."""
        transport = writer.transport if isinstance(writer, StreamWriter) else None
        self.send(transport.get_extra_info("socket") if transport is not None else None)
        await super().write_with_length(writer, content_length)

    def send(self, connection: socket.socket | None) -> None:
        """Check that the bytes may leave on this connection.

        Raises:
            Fenced: this process may not write any more.
            Unreachable: the deadline is now longer than the time left.
            Withdrawn: the write is no longer correct.
        """
        if connection is not None and _USER_TIMEOUT is not None:
            connection.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, math.ceil(self._fence.flight_seconds * 1000))
        try:
            self._fence.ask(self._deadline)
            if self._recheck is not None and (why := self._recheck()):
                raise Withdrawn(why)
        except KubeError as error:
            self.refusal = error
            raise
        self.left = True
        self._fence.leaves(self, self._deadline)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text."""
        return self._value.decode(encoding, errors)


def _ended(left: float) -> str:
    return "the lease has ended: nothing was sent" if left <= 0 else f"the lease ends in {left:.1f} s: nothing was sent"
