"""How many slots, or workers, each namespace may hold: one rule for binds and for all other requests.

A webhook that does not answer keeps slots busy. Two rules keep slots idle for the namespaces of others:

- A namespace that holds a slot takes another only while more than a reserve is idle. One that holds none may take its
  first from the reserve.
- A namespace whose requests hang is marked for some minutes. It may hold a few slots, and takes none of the reserve.

So any number of marked namespaces leave the whole reserve to others, and a namespace alone has all but the reserve. A
marked namespace that gets no slot sends nothing that could hang: its mark ends, and it may use the reserve again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

HUNG_SECONDS: Final = 300.0
"""Seconds for which a namespace stays marked after the last time that one of its binds hung."""
HANGS_AFTER_SECONDS: Final = 3.0
"""Time without an answer after which a request hangs if the API server answers others."""


def loop_time() -> float:
    """Return the time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


class NamespaceShares:
    """Slots that namespaces hold, and which namespaces are marked because their requests hang.

    Args:
        reserved: idle slots that only namespaces without any may take.
        per_namespace: slots that a namespace may hold; None if only the reserve bounds them.
        hanging: slots that a marked namespace may hold.
        marked_seconds: for how long a namespace stays marked after the last time that one of its requests hung.
        clock: seconds.
    """

    def __init__(
        self,
        *,
        reserved: int,
        per_namespace: int | None,
        hanging: int,
        marked_seconds: float = HUNG_SECONDS,
        clock: Callable[[], float] = loop_time,
    ) -> None:
        self._reserved = reserved
        self._per_namespace = per_namespace
        self._hanging = hanging if per_namespace is None else min(hanging, per_namespace)
        self._marked_seconds = marked_seconds
        self._clock = clock
        self._held: Counter[str] = Counter()
        self._hung: dict[str, float] = {}
        """When requests of a namespace hung last, in seconds; the earliest first."""

    @property
    def holders(self) -> Iterable[str]:
        """The namespaces that hold slots."""
        return self._held

    def may_take(self, namespace: str, idle: int) -> bool:
        """Return whether a namespace may take one of the idle slots."""
        held = self._held.get(namespace, 0)
        if namespace in self._hung:
            return idle > self._reserved and held < self._hanging
        if self._per_namespace is not None and held >= self._per_namespace:
            return False
        return idle > (self._reserved if held else 0)

    def take(self, namespace: str) -> None:
        """Note that a namespace took a slot."""
        self._held[namespace] += 1

    def give_back(self, namespace: str) -> None:
        """Note that a request of a namespace ended."""
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]

    def hangs(self, namespace: str) -> None:
        """Mark a namespace: a request of it gets no answer while the API server answers others."""
        self._hung.pop(namespace, None)
        self._hung[namespace] = self._clock()

    def forgive(self, namespace: str) -> None:
        """End the mark of a namespace."""
        self._hung.pop(namespace, None)

    def is_marked(self, namespace: str) -> bool:
        """Return whether a namespace is marked."""
        return namespace in self._hung

    def end_marks(self) -> list[str]:
        """Forget the marks that are over; return their namespaces."""
        ended: list[str] = []
        if self._hung:
            over = self._clock() - self._marked_seconds
            for namespace, last in self._hung.items():
                if last > over:
                    break
                ended.append(namespace)
            for namespace in ended:
                del self._hung[namespace]
        return ended
