"""Pending pods beyond the limits: the scheduler keeps them outside, and lets in the oldest of a namespace first.

It keeps each as compressed JSON: a plain pod takes 0.4 KiB, and one with random text about two thirds of its JSON. So
large pods have budgets of memory. Of those beyond them the scheduler keeps a reference only, and reads them from the
API server when it is their turn: no pod is lost, and only the API server limits their number.
"""

import heapq
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from topo_scheduler.api.objects import Pod
from topo_scheduler.api.process import PendingPodsSettings
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.state.tenant_memory import TenantMemory

ENTERING_PODS: Final = 200
"""Pods of a namespace let in at once at most, so that decisions on other pods can go on in between."""
SMALL_BYTES: Final = 1_024
"""Compressed bytes up to which a pod is kept whole without counting: few more than its reference takes."""
NAMESPACE_BYTES: Final = 8 << 20
"""Compressed bytes of the larger pods of one namespace: some 100 that name every node of a large cluster."""
TOTAL_BYTES: Final = 24 << 20
"""The same for all namespaces together. Beyond it, the namespace with the most loses its newest ones."""
_LAST: Final = "~"
"""Sorts behind all times of creation."""
READ_AT_ONCE_PODS: Final = 4
"""Pods of a namespace that are read from the API server at once."""


class _Packed(NamedTuple):
    """A pod outside: ``data`` is its compressed JSON; empty if only the reference is kept."""

    namespace: str
    name: str
    created: str
    data: bytes


class OutsidePods:
    """Pods that are not read yet, by namespace and in order of creation."""

    def __init__(self) -> None:
        self._pods: dict[str, _Packed] = {}
        self._counts: Counter[str] = Counter()
        """Number of pods outside, by namespace."""
        self._lines: dict[str, list[tuple[str, str]]] = {}
        """Creation and uid of each pod by namespace, as heaps; uids of pods that left are dropped when reached."""
        self._memory = TenantMemory(TOTAL_BYTES).kind(NAMESPACE_BYTES)
        self._reading: dict[str, str] = {}
        """Namespace of each pod that is being read from the API server, by uid: it is in no line."""
        self._reading_of: Counter[str] = Counter()
        """Number of these pods, by namespace."""

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def put(self, pod: Pod) -> bool:
        """Keep a pod outside, or replace its earlier version; return whether it is new there."""
        meta = pod.metadata
        uid, namespace = meta.uid, meta.namespace
        previous = self._pods.get(uid)
        created = meta.creation_timestamp or ""
        packed = _Packed(namespace, meta.name, created, zlib.compress(msgspec.json.encode(pod), 1))
        if not self._memory.put(namespace, uid, _counted_bytes(packed)):
            packed = packed._replace(data=b"")
        self._pods[uid] = packed
        for _, lost in self._memory.take_lost():
            self._pods[str(lost)] = self._pods[str(lost)]._replace(data=b"")
        if previous is None:
            self._counts[namespace] += 1
        if previous is None or self._end_read(uid):
            heapq.heappush(self._lines.setdefault(namespace, []), (created, uid))
        return previous is None

    def keeps_whole(self, uid: str) -> bool:
        """Return whether more than the reference of a pod is kept."""
        return bool(self._pods[uid].data)

    def is_being_read(self, uid: str) -> bool:
        """Return whether a pod outside is to be read from the API server, and neither came since nor left."""
        return uid in self._reading

    def read_later(self, uid: str) -> None:
        """Let the other pods of a namespace go first: a pod can't be read from the API server."""
        namespace = self._reading.get(uid)
        if namespace is not None and self._end_read(uid):
            heapq.heappush(self._lines.setdefault(namespace, []), (_LAST, uid))

    def drop(self, uid: str) -> None:
        """Forget a pod that was deleted, bound or let in."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._end_read(uid)
            self._left(uid, pod)

    def _end_read(self, uid: str) -> bool:
        """Note that a pod need not be read any more; return whether it was being read."""
        namespace = self._reading.pop(uid, None)
        if namespace is None:
            return False
        self._reading_of[namespace] -= 1
        if not self._reading_of[namespace]:
            del self._reading_of[namespace]
        return True

    def _left(self, uid: str, pod: _Packed) -> None:
        namespace = pod.namespace
        self._memory.drop(namespace, uid)
        self._counts[namespace] -= 1
        left = self._counts[namespace]
        if not left:
            del self._counts[namespace]
            self._lines.pop(namespace, None)
        elif len(line := self._lines.get(namespace, [])) > 2 * left + 16:
            line[:] = [entry for entry in line if entry[1] in self._pods and entry[1] not in self._reading]
            heapq.heapify(line)

    def reads(self, namespace: str) -> bool:
        """Return whether pods of a namespace are being read: room is left for them."""
        return namespace in self._reading_of

    def namespaces(self) -> Iterator[str]:
        """Yield the namespaces of which `take` returns a pod now."""
        return filter(self._next, list(self._lines))

    def _next(self, namespace: str) -> str:
        """Return the uid of the oldest pod in the line of a namespace if it may be taken now; otherwise empty."""
        line = self._lines.get(namespace, [])
        while line and (line[0][1] not in self._pods or line[0][1] in self._reading):
            heapq.heappop(line)
        if not line:
            self._lines.pop(namespace, None)
            return ""
        uid = line[0][1]
        reading = self._reading_of.get(namespace, 0)
        # Younger pods wait for those that are being read: otherwise they could always take the room first.
        waits = reading >= READ_AT_ONCE_PODS if not self._pods[uid].data else reading > 0
        return "" if waits else uid

    def take(self, namespace: str) -> Pod | PodRef | None:
        """Take the oldest pod of a namespace out of its line; None if none is left there or may be taken now.

        Returns:
            The pod, which is not outside any more. Or its reference: it must be read from the API server.
        """
        uid = self._next(namespace)
        if not uid:
            return None
        heapq.heappop(self._lines[namespace])
        packed = self._pods[uid]
        if packed.data:
            del self._pods[uid]
            self._left(uid, packed)
            return _decoder.decode(zlib.decompress(packed.data))
        self._reading[uid] = namespace
        self._reading_of[namespace] += 1
        return PodRef(namespace, packed.name, uid)


def _counted_bytes(pod: _Packed) -> int:
    return len(pod.data) if len(pod.data) > SMALL_BYTES else 0


def said_outside(namespace: str, count: int, limits: PendingPodsSettings, *, whole: bool = True) -> str:
    """Return the message for a pod that stays outside, while ``count`` pending pods of its namespace are read.

    ``whole``: whether more than its reference is kept.
    """
    message = (
        f"namespace {namespace} has {count} pending pods already, and the scheduler reads no more of it now"
        f" (pendingPods.maxPerNamespace {limits.max_per_namespace}, pendingPods.memory {limits.memory >> 20}Mi for"
        " all): this pod is read once some of them are bound or deleted; the oldest comes first"
    )
    if whole:
        return message
    return (
        f"{message}. Large pods of the namespace beyond these take {NAMESPACE_BYTES >> 20} MiB or its share already, so"
        " only a reference to this pod is kept until then; shorten its affinity"
    )


_decoder: Final = msgspec.json.Decoder(Pod)
