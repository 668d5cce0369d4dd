"""Evictions in vain: pods were evicted for a workload that was never bound, or lost pods, or left its room unused.

It may have been deleted, its volumes may have failed, or the API server may have refused it.
Users can cause that at any time, with a deleted claim or an edited annotation for example. So a namespace where it
happens again evicts no pods for a while: otherwise its users could evict all pods of lower priority, again and again,
without using their room.

Each workload has one record of its last evictions. What counts is whether at least half of it is bound then:

- A failure counts once for these evictions, by whose pods are in the room. It is taken back if the workload is bound.
- If pods of other namespaces came that use less than half of the room, they may be attackers, or accomplices. Then the
  pauses grow to a minute only.
- If others have the room, or its nodes failed, that can happen to anyone. Only if it goes on, such pauses follow.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.scheduling.preemption.freed_room import FreedRoom, TakenBy
from topo_scheduler.scheduling.preemption.namespace_pauses import Failure, NamespacePauses

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
"""Attempts at such workloads, shared by namespaces: thousands of them wait longer."""
FREE_LOST_ROOMS: Final = 4
"""How often others may have the room before a namespace pauses for that."""
LONGEST_SHARED_PAUSE_SECONDS: Final = 60.0
"""Longest pause of a namespace in whose room pods of others came, so that these can't keep it from evicting."""


@dataclass(slots=True)
class _EvictionRecord:
    """The last evictions for a workload of a namespace, and what became of its place.

    ``wanted`` are the amounts that its place must have to count, by resource column. ``room`` is that place.
    ``unbound`` are the pods with a place that are not bound yet, by uid, of ``seats`` in all. ``is_settled``: no
    failure counts any more. ``failure`` counted, and is taken back once half of the workload is bound.
    """

    namespace: str
    wanted: Mapping[int, int] = field(default_factory=dict)
    room: FreedRoom | None = None
    unbound: set[str] = field(default_factory=set)
    seats: int = 0
    is_enough: bool = True
    is_settled: bool = False
    failure: tuple[NamespacePauses, Failure] | None = None

    @property
    def mostly_bound(self) -> bool:
        """Whether at least half of a place that counts is bound."""
        return self.is_enough and self.seats > 0 and 2 * len(self.unbound) <= self.seats

    @property
    def is_open(self) -> bool:
        """Whether a failure would count: none did, and less than half of the place is bound."""
        return not (self.is_settled or self.mostly_bound)


class VainEvictions:
    """The last evictions for each workload until it is bound, and namespaces that pause."""

    def __init__(self) -> None:
        self.evictions: dict[str, _EvictionRecord] = {}
        """By id of the workload. Read only."""
        self._of_pod: dict[str, str] = {}
        """The workload of each pod with a place that is not bound yet, by uid."""
        self._pauses = NamespacePauses()
        self._shared_pauses = NamespacePauses(LONGEST_SHARED_PAUSE_SECONDS)
        self._lost_rooms = NamespacePauses(LONGEST_SHARED_PAUSE_SECONDS, free=FREE_LOST_ROOMS)
        self._pauses_by_taker = {
            TakenBy.NOBODY: self._pauses,
            TakenBy.OTHERS_IN_PART: self._shared_pauses,
            TakenBy.OTHERS: self._lost_rooms,
        }
        self._turns: dict[str, float] = {}
        """When the last workload of each namespace comes again that awaits another, in seconds."""
        self.forgiven: dict[str, None] = {}
        """Namespaces of which a failure was taken back, until their workloads are tried again."""

    # ------------------------------------------------------------ places

    def placed(self, id_: str, room: FreedRoom, uids: Collection[str], now: float, *, evicted: bool) -> None:
        """Record that pods of a workload have a place. ``evicted``: others were evicted for it since it had none."""
        if evicted:
            self.deleted(id_, now)  # the evictions before these led to nothing
            self.evictions[id_] = _EvictionRecord(room.namespace)
        eviction = self.evictions.get(id_)
        if eviction is None:
            return
        total = room.total
        eviction.is_enough = all(2 * total[column] >= amount for column, amount in eviction.wanted.items())
        self._forget_pods(eviction)
        eviction.room, eviction.unbound, eviction.seats = room, set(uids), len(uids)
        self._of_pod.update(dict.fromkeys(uids, id_))

    def room(self, id_: str) -> FreedRoom | None:
        """Return the place of a workload for which pods were evicted, unless a failure counted or half is bound."""
        eviction = self.evictions.get(id_)
        return eviction.room if eviction is not None and eviction.is_open else None

    def bound(self, id_: str, uid: str) -> None:
        """Record that a pod of a workload is bound."""
        eviction = self.evictions.get(id_)
        if eviction is None or uid not in eviction.unbound:
            return
        eviction.unbound.discard(uid)
        self._of_pod.pop(uid, None)
        if eviction.mostly_bound and eviction.failure is not None:
            pauses, failure = eviction.failure
            pauses.forgive(failure)
            self.forgiven[eviction.namespace] = None
            eviction.failure = None
        if not eviction.unbound:
            del self.evictions[id_]

    # ------------------------------------------------------------ failures

    def undone(self, id_: str, taken: TakenBy, now: float) -> None:
        """Record that a workload, or some of its pods, lost the place, and whose pods are in the room."""
        eviction = self.evictions.get(id_)
        if eviction is None or not eviction.is_open:
            return
        self._fail(eviction, taken, now)

    def pod_deleted(self, uid: str, now: float) -> None:
        """Record that a pod is gone: if it had a place and was not bound, its workload lost that place."""
        if (id_ := self._of_pod.get(uid)) is not None:
            self.undone(id_, TakenBy.NOBODY, now)

    def refused(self, id_: str, now: float) -> bool:
        """Record that the API server refused to bind a pod of a workload with a place.

        Return whether it is the first failure after these evictions.
        """
        eviction = self.evictions.get(id_)
        if eviction is None or not eviction.is_open:
            return False
        self._fail(eviction, TakenBy.NOBODY, now)
        return True

    def lose_room(self, id_: str, room: FreedRoom, taken: TakenBy, now: float) -> None:
        """Record that a workload has no place after evictions, or that a pod was deleted for which others were evicted.

        That counts until half of it is bound, in a place of at least half the ``room``.
        """
        self.deleted(id_, now)
        eviction = self.evictions[id_] = _EvictionRecord(room.namespace, room.total)
        self._fail(eviction, taken, now)

    def deleted(self, id_: str, now: float) -> None:
        """Record that a workload was deleted: in vain unless half of it is bound."""
        eviction = self.evictions.pop(id_, None)
        if eviction is None:
            return
        self._forget_pods(eviction)
        if eviction.is_open:
            self.in_vain(eviction.namespace, now)

    def in_vain(self, namespace: str, now: float) -> None:
        """Record that a workload is gone for which pods were evicted."""
        self._pauses.failed(namespace, now)

    def _fail(self, eviction: _EvictionRecord, taken: TakenBy, now: float) -> None:
        pauses = self._pauses_by_taker[taken]
        failure = pauses.failed(eviction.namespace, now)
        eviction.failure = (pauses, failure) if failure is not None else None
        eviction.is_settled, eviction.room = True, None

    def _forget_pods(self, eviction: _EvictionRecord) -> None:
        for uid in eviction.unbound:
            self._of_pod.pop(uid, None)

    # ------------------------------------------------------------ pauses

    def is_doubted(self, namespace: str, now: float) -> bool:
        """Return whether evictions for a namespace were in vain more than once lately."""
        return any(pauses.is_doubted(namespace, now) for pauses in self._pauses_by_taker.values())

    def is_blamed(self, namespace: str, now: float) -> bool:
        """Return whether a namespace pauses for a failure of its own."""
        return self._pauses.is_paused(namespace, now)

    def blames_others(self, namespace: str, now: float) -> bool:
        """Return whether a namespace pauses for a failure for which pods of others may be the reason."""
        return self._shared_pauses.is_paused(namespace, now)

    def unbound(self, namespace: str) -> Iterable[str]:
        """Return the workloads of a namespace for which pods were evicted, until they are bound."""
        return (id_ for id_, eviction in self.evictions.items() if eviction.namespace == namespace)

    def until(self, namespace: str) -> float:
        """Return until when a namespace evicts no pods, in seconds."""
        return max(pauses.until(namespace) for pauses in self._pauses_by_taker.values())

    def next_turn(self, namespace: str, now: float) -> float:
        """Return when a workload comes again that awaits another one of its namespace, in seconds."""
        self._turns = {name: at for name, at in self._turns.items() if at > now or name == namespace}
        spacing = max(1, len(self._turns)) / MAX_TURNS_PER_SECOND
        self._turns[namespace] = max(now + TURN_SECONDS, self._turns.get(namespace, 0.0) + spacing)
        return self._turns[namespace]
