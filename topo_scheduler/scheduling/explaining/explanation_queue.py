"""Pending workloads to explain: namespaces in turn, and the workloads of a namespace in the order of their arrival.

One namespace may have thousands of them. The others wait for one explanation of it, not for all.
"""


class ExplanationQueue:
    """IDs of workloads, by namespace, with the time since when each is queued. Each is queued once."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[str, float]] = {}
        """In the order of their turns."""

    def __len__(self) -> int:
        return sum(map(len, self._by_namespace.values()))

    def __bool__(self) -> bool:
        return bool(self._by_namespace)

    def has(self, namespace: str, id_: str) -> bool:
        """Return whether a workload is queued."""
        return id_ in self._by_namespace.get(namespace, ())

    def put(self, namespace: str, id_: str, now: float) -> None:
        """Queue a workload, unless it is queued already. A namespace without others has its turn last."""
        self._by_namespace.setdefault(namespace, {}).setdefault(id_, now)

    def drop(self, namespace: str, id_: str) -> None:
        """Remove a workload if it is queued."""
        queued = self._by_namespace.get(namespace)
        if queued is not None and queued.pop(id_, None) is not None and not queued:
            del self._by_namespace[namespace]

    def take(self) -> str:
        """Remove and return the first workload of the namespace whose turn it is."""
        namespace = next(iter(self._by_namespace))
        queued = self._by_namespace.pop(namespace)
        id_ = next(iter(queued))
        del queued[id_]
        if queued:
            self._by_namespace[namespace] = queued
        return id_

    def waited(self, now: float) -> float:
        """Return for how many seconds the oldest workload has been queued, 0 if none is."""
        return now - min((next(iter(queued.values())) for queued in self._by_namespace.values()), default=now)
