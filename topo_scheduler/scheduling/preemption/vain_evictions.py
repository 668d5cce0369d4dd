"""Evictions in vain: pods were evicted for a workload that was never bound, or lost pods, or left its room unused.

It may have been deleted, its volumes may have failed, or the API server may have refused it.
Users can cause that at any time, with a deleted claim or an edited annotation for example. So a namespace where it
happens again evicts no pods for a while: otherwise its users could evict all pods of lower priority, again and again,
without using their room.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from topo_scheduler.scheduling.preemption.namespace_pauses import NamespacePauses

PAUSED: Final = (
    "The scheduler evicts no pod to make room for this namespace now, as it did so in vain before: pods were deleted"
    " before they were bound or did not use the room, or their volumes, resource claims or binds failed"
)
ONE_AT_A_TIME: Final = (
    "The scheduler evicts pods for one workload of this namespace at a time, now for another one, as it did so in vain"
    " before"
)
TURN_SECONDS: Final = 5.0
"""Seconds after which a workload searches for victims again, if pods are evicted for another of its namespace."""
MAX_TURNS_PER_SECOND: Final = 50
"""Attempts at such workloads: thousands of them wait longer."""


@dataclass(slots=True)
class _Unbound:
    """A workload with a place that others were evicted for: which of its ``seats`` pods are not bound yet, by uid.

    ``refused``: the API server refused to bind one of them. ``counted``: that counts, until half of it is bound.
    """

    namespace: str
    pods: set[str]
    seats: int
    refused: bool = False
    counted: bool = False

    @property
    def mostly_bound(self) -> bool:
        """Whether at least half of it is bound."""
        return 2 * len(self.pods) <= self.seats


@dataclass(frozen=True, slots=True)
class _LostPod:
    """A workload that lost a pod after others were evicted for it, and the ``amounts`` of that room by column."""

    namespace: str
    amounts: Mapping[int, int]


class VainEvictions:
    """Workloads with a place that others were evicted for, until they are bound; and namespaces that pause."""

    def __init__(self) -> None:
        self._unbound: dict[str, _Unbound] = {}
        """Such workloads by id."""
        self._pauses = NamespacePauses()
        self.lost_pods: dict[str, _LostPod] = {}
        """Workloads that lost a pod, by id: their failure is taken back if they are placed."""

    def __bool__(self) -> bool:
        """Return whether a workload with such a place is not bound yet."""
        return bool(self._unbound)

    def placed(self, id_: str, namespace: str, uids: Collection[str]) -> None:
        """Record that pods of a workload, for which others were evicted, have a place."""
        self._unbound[id_] = _Unbound(namespace, set(uids), len(uids))

    def bound(self, id_: str, uid: str) -> None:
        """Record that a pod of a workload is bound."""
        unbound = self._unbound.get(id_)
        if unbound is not None:
            unbound.pods.discard(uid)
            if unbound.counted and unbound.mostly_bound:
                unbound.counted = False
                self._pauses.forgive(unbound.namespace)
            if not unbound.pods:
                del self._unbound[id_]

    def lost(self, id_: str, now: float) -> None:
        """Record that a workload with a place was deleted, or can't be bound: in vain unless half of it is bound."""
        self.lost_pods.pop(id_, None)
        unbound = self._unbound.pop(id_, None)
        if unbound is not None and not (unbound.mostly_bound or unbound.refused):
            self.in_vain(unbound.namespace, now)

    def refused(self, id_: str, now: float) -> bool:
        """Record that the API server refused to bind a pod of a workload with a place.

        The evictions count as in vain until half of it is bound. Return whether it is the first refusal of that place.
        """
        unbound = self._unbound.get(id_)
        if unbound is None or unbound.mostly_bound or unbound.refused:
            return False
        unbound.refused, unbound.counted = True, self._pauses.failed(unbound.namespace, now)
        return True

    def lose_pod(self, id_: str, namespace: str, amounts: Mapping[int, int], now: float) -> None:
        """Record that a workload lost a pod for which others were evicted: that was in vain unless it is placed.

        ``amounts``: of the room for all its pods, by resource column.
        """
        if self._pauses.failed(namespace, now):
            self.lost_pods[id_] = _LostPod(namespace, amounts)

    def forgive(self, id_: str, amounts: Mapping[int, int]) -> None:
        """Record that a workload is placed: if it had lost a pod, another took the room of that pod.

        ``amounts``: of its place. It counts only if that is at least half of the room for which others were evicted.
        """
        lost = self.lost_pods.pop(id_, None)
        if lost is not None and all(2 * amounts.get(column, 0) >= amount for column, amount in lost.amounts.items()):
            self._pauses.forgive(lost.namespace)

    def in_vain(self, namespace: str, now: float) -> None:
        """Record that pods were evicted in vain for a workload of a namespace."""
        self._pauses.failed(namespace, now)

    def is_doubted(self, namespace: str, now: float) -> bool:
        """Return whether evictions for a namespace were in vain more than once lately."""
        return self._pauses.has_failed_twice(namespace, now)

    def unbound(self, namespace: str) -> Iterable[str]:
        """Return the workloads of a namespace that got a place for which pods were evicted, until they are bound."""
        return (id_ for id_, unbound in self._unbound.items() if unbound.namespace == namespace)

    def until(self, namespace: str) -> float:
        """Return until when a namespace evicts no pods, in seconds."""
        return self._pauses.until(namespace)
