"""NUMA nodes of machines as if some pods had ended, for searches that choose which pods are to end."""

from collections.abc import Iterable

from topo_scheduler.state.pods.numa_zones import NumaState, NumaZones


class NumaZonesOnTrial(NumaZones):
    """States of machines without some of their pods. It is valid until the original changes."""

    def __init__(self, original: NumaZones) -> None:
        super().__init__()
        self.machines = original.machines
        self._original = original
        self._gone: dict[str, dict[str, None]] = {}
        """Pods that are gone, by node."""
        self._states: dict[str, NumaState | None] = {}

    def leave(self, pods: Iterable[tuple[str, str]]) -> None:
        """Remove pods, given as node and uid. The caller records that the nodes changed."""
        for node, uid in pods:
            if node in self.machines:
                self._gone.setdefault(node, {})[uid] = None
                self._states.pop(node, None)

    def come_back(self, pods: Iterable[tuple[str, str]]) -> None:
        """Return pods that left."""
        for node, uid in pods:
            if node in self.machines:
                self._gone.get(node, {}).pop(uid, None)
                self._states.pop(node, None)

    def state(self, node: str) -> NumaState | None:
        """Return what is known of a node without the pods that left; None if its kubelet rejects no pods."""
        gone = self._gone.get(node)
        if not gone:
            return self._original.state(node)
        if node not in self._states:
            self._states[node] = self._original.state_without(node, gone)
        return self._states[node]
