"""The wall clock of a term: that of the API server, as all timestamps that the engine compares with it come from there.

A machine's clock may be minutes off, or be set while the process runs, for example once the network is up. By such a
clock, pods that end in seconds look as if their end were unknown, and others would be evicted in their place.

Within a term the clock only advances, however the machine's clock is set. The term ends if it has drifted from the API
server's: if that was set, if the machine was suspended, or if the API server gave no time when the term began.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError

log = logging.getLogger(__name__)

TOLERATED_SECONDS: Final = 2.0
"""Difference up to which the own clock is used, which is finer than the dates of answers."""
FRESH_SECONDS: Final = 10.0
"""Age of an answer from which on the scheduler asks again: the renewal of the Lease is younger."""
TIMEOUT_SECONDS: Final = 2.0
DRIFT_SECONDS: Final = 10.0
"""Difference from which the clock of a term is wrong. A slow answer, or a busy event loop, may show some seconds."""
DRIFTED_ANSWERS: Final = 6
"""Answers in a row, a minute in all, that must agree: API servers behind one address may have different clocks."""


async def server_time(client: Client, clock: Callable[[], float], wall: Callable[[], float]) -> Callable[[], float]:
    """Return a clock of seconds since the epoch that advances with ``clock``, and starts from the API server's time.

    Without an answer of the API server it starts from ``wall``, the clock of this machine.
    """
    if client.server_clock.age_seconds > FRESH_SECONDS:
        with suppress(KubeError):  # an answer that refuses has a date as well
            await client.request("GET", "/version", timeout=TIMEOUT_SECONDS)
    epoch, server = wall() - clock(), client.server_clock.now()
    ahead = wall() - server if server is not None else 0.0
    # A slow answer may have got its date long before it arrived.
    if server is not None and not -TOLERATED_SECONDS <= ahead <= TOLERATED_SECONDS + client.server_clock.delay_seconds:
        log.warning(
            "the clock of this machine is %.0f s %s that of the API server, which the scheduler uses instead; check the"
            " time synchronisation of both",
            abs(ahead),
            "ahead of" if ahead > 0 else "behind",
        )
        epoch = server - clock()
    return lambda: epoch + clock()


class Drift:
    """Compares the clock of a term with the dates of answers."""

    def __init__(self, client: Client, wall: Callable[[], float]) -> None:
        """``wall`` returns the time of the term, in seconds since the epoch."""
        self._server = client.server_clock
        self._wall = wall
        self._behind: deque[float] = deque(maxlen=DRIFTED_ANSWERS)

    def seconds(self) -> float:
        """Return by how much the term is behind the API server, negative if ahead; 0 unless enough answers agree.

        Call it after each answer that is compared.
        """
        server = self._server.now()
        if server is None:
            return 0.0
        self._behind.append(server - self._wall())
        lowest, highest = min(self._behind), max(self._behind)
        agree = len(self._behind) == DRIFTED_ANSWERS and highest - lowest <= TOLERATED_SECONDS
        return self._behind[-1] if agree and (lowest > DRIFT_SECONDS or highest < -DRIFT_SECONDS) else 0.0
