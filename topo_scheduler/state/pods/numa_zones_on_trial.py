"""NUMA nodes of machines as if some pods had ended or were on other nodes, for searches for room."""

from collections.abc import Iterable, Iterator

from topo_scheduler.state.pods.numa_request import NumaRequest
from topo_scheduler.state.pods.numa_zones import NumaState, NumaZones


class NumaZonesOnTrial(NumaZones):
    """States of machines with other pods than in reality. It is valid until the original changes."""

    def __init__(self, original: NumaZones) -> None:
        super().__init__()
        self.machines = original.machines
        self._original = original
        self._gone: dict[str, dict[str, None]] = {}
        """Pods that are gone, by node."""
        self._come: dict[str, list[NumaRequest]] = {}
        """What pods request that are on other nodes than in reality, by node."""
        self._states: dict[str, NumaState | None] = {}

    def leave(self, pods: Iterable[tuple[str, str, NumaRequest | None]]) -> None:
        """Remove pods, given as node, uid and request. The caller records that the nodes changed."""
        for node, uid, request in self._concerned(pods):
            if self._original.runs_on(node, uid):
                self._gone.setdefault(node, {})[uid] = None
            elif request is not None and request in self._come.get(node, ()):
                self._come[node].remove(request)

    def come(self, pods: Iterable[tuple[str, str, NumaRequest | None]]) -> None:
        """Return pods that left, or put pods on other nodes."""
        for node, uid, request in self._concerned(pods):
            if self._original.runs_on(node, uid):
                self._gone.get(node, {}).pop(uid, None)
            elif request is not None:
                self._come.setdefault(node, []).append(request)

    def _concerned(
        self, pods: Iterable[tuple[str, str, NumaRequest | None]]
    ) -> Iterator[tuple[str, str, NumaRequest | None]]:
        for node, uid, request in pods:
            if node in self.machines:
                self._states.pop(node, None)
                yield node, uid, request

    def state(self, node: str) -> NumaState | None:
        """Return what is known of a node with its pods on this trial; None if its kubelet rejects no pods."""
        departed, come = self._gone.get(node), self._come.get(node)
        if not (departed or come):
            return self._original.state(node)
        if node not in self._states:
            self._states[node] = self._original.state_after(node, departed or (), come or ())
        return self._states[node]
