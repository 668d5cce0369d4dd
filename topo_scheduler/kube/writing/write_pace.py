"""Pace of a namespace's low-priority writes about large objects.

To write a condition, the API server reads, patches, validates and sends the whole object. That takes about 2 ms of its
CPU for a usual pod, and 60 ms for one of 256 containers: twice what the tenant's own creation of that pod takes. So a
namespace has one write with a large answer in progress at a time. Then it rests for a multiple of the time that the
write took. Time adapts to a slow API server. Size tells such writes from those that only took long.
"""

from collections.abc import Callable
from typing import Final

from topo_scheduler.kube.connection.namespace_shares import loop_time

USUAL_ANSWER_BYTES: Final = 32 * 1024
"""Bytes of the answers to one write that cost no rest."""
REST_FACTOR: Final = 7.0
"""Rest as a multiple of the duration of a write, times the part of the answers beyond `USUAL_ANSWER_BYTES`."""
LONGEST_REST_SECONDS: Final = 30.0
REMEMBERED_SECONDS: Final = 60.0
"""Seconds after its last large answer for which a namespace has one write in progress at a time."""
_TIMER_SECONDS: Final = 0.001
"""By so much a timer may fire early."""


class WritePace:
    """When namespaces may write again after large answers. ``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = loop_time) -> None:
        self._clock = clock
        self._large: dict[str, tuple[float, float]] = {}
        """When a namespace got its last large answer, and until when it rests; the earliest answer first."""

    def may_write(self, namespace: str, *, holds: bool) -> bool:
        """Return whether a namespace may begin a write. ``holds``: whether it has one in progress."""
        known = self._large.get(namespace)
        return known is None or (not holds and known[1] <= self._clock() + _TIMER_SECONDS)

    def wrote(self, namespace: str, received: int, seconds: float) -> float:
        """Note a write: the bytes of the answers, and for how long it was in progress.

        If it begins or prolongs a rest of the namespace, return the seconds of that from now.
        """
        if received <= USUAL_ANSWER_BYTES and namespace not in self._large:
            return 0.0
        now = self._clock()
        _, until = self._large.get(namespace, (now, 0.0))
        if received <= USUAL_ANSWER_BYTES:
            if until <= now:
                self._large.pop(namespace, None)
            return 0.0
        rest = REST_FACTOR * seconds * (received - USUAL_ANSWER_BYTES) / received
        rest = min(max(0.0, until - now) + rest, LONGEST_REST_SECONDS)
        self._large.pop(namespace, None)
        self._large[namespace] = now, now + rest
        return rest

    def forgotten(self) -> list[str]:
        """Forget namespaces whose last large answer is long ago; return them."""
        over = self._clock() - REMEMBERED_SECONDS if self._large else 0.0
        ended: list[str] = []
        for namespace, (last, _) in self._large.items():
            if last > over:
                break
            ended.append(namespace)
        for namespace in ended:
            del self._large[namespace]
        return ended
