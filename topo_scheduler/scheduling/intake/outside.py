"""Pending pods beyond the limits: the scheduler keeps them outside, and lets in the oldest of a namespace first.

It keeps each as compressed JSON, which takes a tenth of the memory: only the API server limits their number.
"""

import heapq
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from topo_scheduler.api.objects import Pod
from topo_scheduler.api.process import PendingPodsSettings

ENTERING_PODS: Final = 200
"""Pods of a namespace let in at once at most, so that decisions on other pods can go on in between."""


class _Packed(NamedTuple):
    """A pod outside: ``data`` is its compressed JSON."""

    namespace: str
    data: bytes


class OutsidePods:
    """Pods that are not read yet, by namespace and in order of creation."""

    def __init__(self) -> None:
        self._pods: dict[str, _Packed] = {}
        self._counts: Counter[str] = Counter()
        """Number of pods outside, by namespace."""
        self._lines: dict[str, list[tuple[str, str]]] = {}
        """Creation and uid of each pod by namespace, as heaps; uids of pods that left are dropped when reached."""

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def put(self, pod: Pod) -> bool:
        """Keep a pod outside, or replace its earlier version; return whether it is new there."""
        meta = pod.metadata
        new = meta.uid not in self._pods
        self._pods[meta.uid] = _Packed(meta.namespace, zlib.compress(msgspec.json.encode(pod), 1))
        if new:
            self._counts[meta.namespace] += 1
            heapq.heappush(self._lines.setdefault(meta.namespace, []), (meta.creation_timestamp or "", meta.uid))
        return new

    def drop(self, uid: str) -> None:
        """Forget a pod that was deleted or bound."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._left(pod.namespace)

    def _left(self, namespace: str) -> None:
        self._counts[namespace] -= 1
        left = self._counts[namespace]
        if not left:
            del self._counts[namespace]
            del self._lines[namespace]
        elif len(line := self._lines[namespace]) > 2 * left + 16:
            line[:] = [entry for entry in line if entry[1] in self._pods]
            heapq.heapify(line)

    def namespaces(self) -> Iterator[str]:
        """Yield the namespaces that have pods outside."""
        yield from list(self._lines)

    def take(self, namespace: str, max_pods: int) -> list[Pod]:
        """Remove and return the oldest pods of a namespace, at most ``max_pods``."""
        taken: list[Pod] = []
        while namespace in self._lines and len(taken) < max_pods:
            _, uid = heapq.heappop(self._lines[namespace])
            if (pod := self._pods.pop(uid, None)) is not None:
                taken.append(_decoder.decode(zlib.decompress(pod.data)))
                self._left(namespace)
        return taken


def said_outside(namespace: str, count: int, limits: PendingPodsSettings) -> str:
    """Return the message for a pod that stays outside, while ``count`` pending pods of its namespace are read."""
    return (
        f"namespace {namespace} has {count} pending pods already, and the scheduler reads no more of it now"
        f" (pendingPods.maxPerNamespace {limits.max_per_namespace}, pendingPods.memory {limits.memory >> 20}Mi for"
        " all): this pod is read once some of them are bound or deleted; the oldest comes first"
    )


_decoder: Final = msgspec.json.Decoder(Pod)
