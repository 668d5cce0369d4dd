"""The wall clock of a term: that of the API server, as all timestamps that the engine compares with it come from there.

A machine's clock may be minutes off, or be set while the process runs, for example once the network is up. By such a
clock, pods that end in seconds look as if their end were unknown, and others would be evicted in their place.
"""

import logging
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


async def server_time(client: Client, clock: Callable[[], float], wall: Callable[[], float]) -> Callable[[], float]:
    """Return a clock of seconds since the epoch that advances with ``clock``, and starts from the API server's time.

    Without an answer of the API server it starts from ``wall``, the clock of this machine.
    """
    if client.server_clock.age_seconds > FRESH_SECONDS:
        with suppress(KubeError):  # an answer that refuses has a date as well
            await client.request("GET", "/version", timeout=TIMEOUT_SECONDS)
    epoch, server = wall() - clock(), client.server_clock.now()
    if server is not None and abs(server - wall()) > TOLERATED_SECONDS:
        ahead = wall() - server
        log.warning(
            "the clock of this machine is %.0f s %s that of the API server, which the scheduler uses instead; check the"
            " time synchronisation of both",
            abs(ahead),
            "ahead of" if ahead > 0 else "behind",
        )
        epoch = server - clock()
    return lambda: epoch + clock()
