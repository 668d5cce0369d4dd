"""Pods that move to make room for pending workloads, and whether these then use the room.

If a workload does not, its namespace pauses as after any other evictions in vain. Otherwise its users could have pods
of others moved again and again.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from topo_scheduler.scheduling.preemption.freed_room import FreedRoom, TakenBy, is_half, room_of, taken_by
from topo_scheduler.scheduling.preemption.vain_evictions import ONE_AT_A_TIME, PAUSED, VainEvictions
from topo_scheduler.scheduling.queueing.queue_keys import least_of
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.resources import Amounts
from topo_scheduler.state.pods.workloads import Stage, Workloads

UNUSED_SECONDS: Final = 60.0
"""Seconds after which room that pods left for a workload was made in vain, if the workload has no place."""
ROOM_IS_UNUSED: Final = (
    "The scheduler moves no pod to make room for this namespace now: another workload of it has yet to use the room"
    " that was made for it"
)


@dataclass(slots=True)
class _Room:
    """What ``pods`` leave for a workload, by uid, and until when, in seconds.

    ``wanted`` are the amounts of the workload, by resource column. ``is_free``: the pods are gone, so that it has until
    then to use the room.
    """

    freed: FreedRoom
    wanted: Counter[int]
    pods: frozenset[str]
    until: float
    is_free: bool = False

    @property
    def namespace(self) -> str:
        """The namespace of the workload."""
        return self.freed.namespace


class RoomByMoves:
    """Workloads for which pods were evicted that move, until they have a place."""

    def __init__(self, world: World, workloads: Workloads, vain_evictions: VainEvictions) -> None:
        self._world = world
        self._workloads = workloads
        self._vain_evictions = vain_evictions
        self.rooms: dict[str, _Room] = {}
        """By id of the workload. Read only."""
        self.deleted_workloads: dict[str, float] = {}
        """Workloads deleted before they used their room, by id, and until when answers to evictions may follow."""

    def evicted(self, pods: Iterable[str], id_: str, namespace: str, until: float, now: float) -> None:
        """Record that at least one of the ``pods`` that move for a workload was evicted.

        ``until``: when the scheduler stops waiting for them, in seconds.
        """
        workload = self._workloads.get(id_)
        if workload is None:
            if id_ not in self.deleted_workloads:
                self.deleted_workloads[id_] = until
                self._vain_evictions.in_vain(namespace, now)
        elif workload.at(Stage.PENDING) and id_ not in self.rooms:
            moving = frozenset(pods)
            freed = room_of(self._world, workload.namespace, moving)
            wanted = sum_of(member.cls.amounts for member in workload.at(Stage.PENDING)[: least_of(workload)])
            self.rooms[id_] = _Room(freed, wanted, moving, until)

    def placed(self, id_: str, pods: Iterable[Amounts]) -> Counter[int] | None:
        """Forget the room of a workload that has a place, and return what was wanted; None if there was none.

        The room remains if ``pods`` use less than half of it.
        """
        room = self.rooms.get(id_)
        if room is None:
            return None
        if not is_half(sum_of(pods), room.wanted):
            return None
        return self.rooms.pop(id_).wanted

    def deleted(self, id_: str, now: float) -> None:
        """Record that a workload was deleted: if pods were evicted for it, that was in vain."""
        room = self.rooms.pop(id_, None)
        if room is not None:
            self.deleted_workloads[id_] = room.until
            self._vain_evictions.in_vain(room.namespace, now)

    def due(self, now: float) -> None:
        """Record the evictions that were in vain by now.

        They were if a workload does not use its room in time, unless others have it. If pods have not left in time,
        they were in vain only if one of these is of the same namespace. A workload that is bound later takes that back.
        """
        ledger = self._world.ledger
        self.deleted_workloads = {id_: until for id_, until in self.deleted_workloads.items() if now < until}
        for id_, room in list(self.rooms.items()):
            remaining = [] if room.is_free else [uid for uid in room.pods if ledger.get(uid) is not None]
            if not remaining and not room.is_free:
                room.is_free, room.until = True, now + UNUSED_SECONDS
            if now >= room.until:
                del self.rooms[id_]
                own_stay = any(ledger.namespace_of(uid) == room.namespace for uid in remaining)
                taken = TakenBy.ITS_NAMESPACE if own_stay else TakenBy.OTHERS
                workload = self._workloads.get(id_)
                pods = workload.members.keys() if workload is not None else ()
                if room.is_free:
                    taken = taken_by(self._world, room.freed, pods)
                nodes = room.freed.amounts.keys()
                self._vain_evictions.lose_room(id_, room.namespace, room.wanted, taken, now, nodes=nodes, pods=pods)

    def next_due(self) -> float | None:
        """Return when `due` must be called next, in seconds."""
        return min((room.until for room in self.rooms.values()), default=None)

    def obstacle(self, namespace: str, now: float) -> str:
        """Return why no pod is moved to make room for another workload of a namespace now, or an empty string."""
        if self._vain_evictions.until(namespace) > now:
            return f"{PAUSED}."
        rooms = [room for room in self.rooms.values() if room.namespace == namespace]
        if any(room.is_free for room in rooms) or self.has_unbound(namespace):
            return f"{ROOM_IS_UNUSED}."
        return f"{ONE_AT_A_TIME}." if rooms and self._vain_evictions.is_doubted(namespace, now) else ""

    def has_unbound(self, namespace: str) -> bool:
        """Return whether a workload of a namespace has a place for which pods were evicted, and is not bound yet."""
        placed = (self._workloads.get(id_) for id_ in self._vain_evictions.unbound(namespace))
        members = (member for workload in placed if workload is not None for member in workload.members.values())
        return any(member.stage is Stage.ASSUMED for member in members)


def sum_of(pods: Iterable[Amounts]) -> Counter[int]:
    """Return the amounts of pods together, by resource column."""
    total: Counter[int] = Counter()
    for amounts in pods:
        total.update(dict(amounts))
    return total
