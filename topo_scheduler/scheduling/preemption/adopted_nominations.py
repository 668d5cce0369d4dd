"""Nominations on pods of this scheduler that this process did not write, until a claim of their workload covers them.

An earlier process wrote them, or a component that knows of upcoming room. The first attempt on a workload takes them
over. But there is no attempt on a gang that lacks pods, or on a pod that is refused: they would keep the nodes from
others without end. So such a nomination counts for a minute. After one that ended so, no further one of its namespace
counts for an hour: a client that may write the status of pods could write one after the other.
"""

from typing import Final

COUNTS_SECONDS: Final = 60.0
"""Seconds for which such a nomination counts while no claim covers it."""
DOUBTED_SECONDS: Final = 3600.0
"""Seconds for which no further nominations of a namespace count after one that no claim covered."""


class AdoptedNominations:
    """Namespace of each pod by uid, and until when its nomination counts, in seconds."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[str, float]] = {}
        self._doubted: dict[str, float] = {}
        """Namespaces whose nominations do not count, and until when, in seconds."""

    def put(self, uid: str, namespace: str, now: float) -> bool:
        """Record the nomination of a pod; return whether it counts."""
        if now < self._doubted.get(namespace, now):
            return False
        self._until[uid] = namespace, now + COUNTS_SECONDS
        return True

    def drop(self, uid: str) -> None:
        """Forget a pod that is placed or gone."""
        self._until.pop(uid, None)

    def due(self, now: float) -> list[str]:
        """Return the pods whose nominations end now, unless a claim covers them: then `drop` them, otherwise `end`."""
        return [uid for uid, (_, until) in self._until.items() if until <= now]

    def end(self, uid: str, now: float) -> None:
        """Record that the nomination of a pod has ended because no claim covered it."""
        self._doubted = {name: until for name, until in self._doubted.items() if now < until}
        self._doubted[self._until.pop(uid)[0]] = now + DOUBTED_SECONDS

    def next_due(self) -> float | None:
        """Return when `due` has something to return, in seconds."""
        return min((until for _, until in self._until.values()), default=None)
