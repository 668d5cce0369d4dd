"""Evictions in vain: pods were evicted for a workload that was never bound, or lost pods, or left its room unused.

It may have been deleted, its volumes may have failed, or the API server may have refused it.
Users can cause that at any time, with a deleted claim or an edited annotation for example. So a namespace where it
happens again evicts no pods for a while: otherwise its users could evict all pods of lower priority, again and again,
without using their room.

Each wave of evictions has a record of its own: a gang that grows has pods evicted again while binds of its first pods
are on their way. What counts is whether pods are bound that use at least half of the room that was made:

- A failure counts once for a wave, and for those that began before it, by whose pods are in the room. It is taken back
  if as much of the workload is bound by pods that count for no other wave.
- Deleted or edited pods, refused binds, and other pods of the namespace in the room are its own failure: the pauses
  grow to ten minutes.
- If the room is free, or pods of other namespaces use less than half of it, attackers may keep the workload away, or
  accomplices. Then the pauses grow to a minute only.
- If others have the room, or its nodes failed, that can happen to anyone. Only if it goes on, such pauses follow.

Room counts as used for good once its pods have been bound for `USED_AFTER_SECONDS`. If less than half of it is left
before, the evictions were in vain after all.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.scheduling.preemption.freed_room import FreedRoom, TakenBy, is_half
from topo_scheduler.scheduling.preemption.namespace_pauses import Failure, NamespacePauses
from topo_scheduler.state.nodes.resources import Amounts

PAUSED: Final = (
    "The scheduler evicts no pod to make room for this namespace now, because earlier evictions for it were in vain."
    " Its pods were deleted before they were bound or did not use the room, or their volumes, resource claims or binds"
    " failed"
)
ONE_AT_A_TIME: Final = (
    "The scheduler evicts pods for one workload of this namespace at a time, because earlier evictions for it were in"
    " vain. It is the turn of another workload"
)
BINDS_HANG: Final = (
    "The scheduler evicts pods for one workload of this namespace at a time, because pods for which it evicted others"
    " are not bound yet: the API server has not answered their binds"
)
TURN_SECONDS: Final = 5.0
"""Seconds after which a workload searches for victims again, if pods are evicted for another of its namespace.

After a pause, a workload with evictions in vain searches so much later than the others of its namespace. Otherwise
pods of others in its room could keep them all from evicting.
"""
MAX_TURNS_PER_SECOND: Final = 50
"""Attempts at such workloads, shared by namespaces: thousands of them wait longer."""
FREE_LOST_ROOMS: Final = 4
"""How often others may have the room before a namespace pauses for that."""
LONGEST_SHARED_PAUSE_SECONDS: Final = 60.0
"""Longest pause of a namespace in whose room pods of others came, so that these can't keep it from evicting."""

USED_AFTER_SECONDS: Final = 10.0
"""Seconds for which pods must be bound. Otherwise users could have others evicted, bind, delete, and begin again."""
MAX_FAILED_WAVES: Final = 8
"""Failures of one workload that can be taken back, beside those of waves of which pods have a place."""


@dataclass(eq=False, slots=True)
class _Wave:
    """Evictions for a workload that were decided at once, and what became of the place of its pods.

    ``wanted`` are the amounts that they made room for, by resource column, ``bound`` those of bound pods, and ``used``
    those of all with a place. ``unbound`` are the pods with a place that are not bound yet, by uid, with their amounts.
    ``room`` is that place. ``is_settled``: no failure counts any more. ``failure`` counted, and is taken back once half
    is bound: by the ``pods`` of this wave, or on its ``nodes``. ``is_over``: pods ended too early, which counted and is
    not taken back. ``excuse`` is a wave that failed after this one began: this one is of the same incident while that
    counts.
    """

    workload: str
    namespace: str
    wanted: Counter[int]
    bound: Counter[int] = field(default_factory=Counter)
    used: Counter[int] = field(default_factory=Counter)
    unbound: dict[str, Amounts] = field(default_factory=dict)
    room: FreedRoom | None = None
    nodes: Collection[str] = ()
    pods: Collection[str] = ()
    is_settled: bool = False
    is_over: bool = False
    excuse: "_Wave | None" = None
    failure: tuple[NamespacePauses, Failure] | None = None

    @property
    def mostly_bound(self) -> bool:
        """Whether at least half of the amounts is bound."""
        return is_half(self.bound, self.wanted)

    @property
    def is_excused(self) -> bool:
        """Whether a failure is of the same incident as that of another wave, which counts."""
        return self.excuse is not None and self.excuse.failure is not None

    @property
    def is_open(self) -> bool:
        """Whether a failure would count: none did, and less than half is bound."""
        return not (self.is_settled or self.mostly_bound)

    def may_join(self, uid: str, node: str) -> bool:
        """Whether a pod on a node may take back a failure: no other pod uses the room on other nodes."""
        return self.lacks_pods and (uid in self.pods or node in self.nodes)

    def fits(self, amounts: Amounts) -> bool:
        """Whether a pod takes no more than lacks."""
        return all(self.used[column] + amount <= self.wanted[column] for column, amount in amounts)

    @property
    def lacks_pods(self) -> bool:
        """Whether a failure counts that further pods with a place may take back."""
        return self.failure is not None and any(self.used[column] < amount for column, amount in self.wanted.items())


class VainEvictions:
    """The evictions for each workload until its pods are bound, and namespaces that pause."""

    def __init__(self) -> None:
        self.waves: dict[str, list[_Wave]] = {}
        """By id of the workload, the oldest first. Read only."""
        self._of_pod: dict[str, _Wave] = {}
        """The wave of each pod with a place that is not bound yet, by uid."""
        self._fresh: dict[str, tuple[_Wave, Amounts, FreedRoom | None, float]] = {}
        """Pods that were bound less than `USED_AFTER_SECONDS` ago, by uid: their wave and room, and when they were."""
        self._pauses = NamespacePauses()
        self._shared_pauses = NamespacePauses(LONGEST_SHARED_PAUSE_SECONDS)
        self._lost_rooms = NamespacePauses(LONGEST_SHARED_PAUSE_SECONDS, free=FREE_LOST_ROOMS)
        self._pauses_by_taker = {
            TakenBy.ITS_NAMESPACE: self._pauses,
            TakenBy.NOBODY: self._shared_pauses,
            TakenBy.OTHERS_IN_PART: self._shared_pauses,
            TakenBy.OTHERS: self._lost_rooms,
        }
        self._turns: dict[str, float] = {}
        """When the last workload of each namespace comes again that awaits another, in seconds."""
        self.forgiven: dict[str, None] = {}
        """Namespaces of which a failure was taken back, until their workloads are tried again."""

    # ------------------------------------------------------------ places

    def placed(self, id_: str, wanted: Counter[int], room: FreedRoom, pods: Mapping[str, Amounts], now: float) -> None:
        """Record that pods of a workload have a place for which others were evicted.

        If they use less than half of what was wanted, the workload was edited: that counts at once.

        Args:
            id_: of the workload.
            wanted: amounts for which others were evicted, by resource column.
            room: the place.
            pods: amounts by uid.
            now: seconds.
        """
        for uid in pods:
            self.undone(uid, TakenBy.ITS_NAMESPACE, now)
        self._forget_failed(id_)
        wave = self._begin(
            _Wave(id_, room.namespace, wanted, room=room, nodes=frozenset(room.amounts), pods=frozenset(pods))
        )
        for uid, amounts in pods.items():
            self._join(wave, uid, amounts)
        if not is_half(wave.used, wanted):
            self._fail(wave, TakenBy.ITS_NAMESPACE, now)
            if not wave.unbound and wave.failure is None:
                self._remove(wave)

    def placed_again(self, id_: str, pods: Mapping[str, Amounts], nodes: Mapping[str, str]) -> None:
        """Record that pods of a workload have a place without evictions: failures are taken back once they are bound.

        Only pods for which others were evicted take them back elsewhere. Otherwise users could make others, which have
        always had room.

        Args:
            id_: of the workload.
            pods: amounts by uid.
            nodes: of these pods, by uid.
        """
        waves = self.waves.get(id_, ())
        for uid, amounts in pods.items():
            if uid in self._of_pod:
                continue
            lacking = [wave for wave in reversed(waves) if wave.may_join(uid, nodes[uid])]
            if lacking:
                self._join(next((wave for wave in lacking if wave.fits(amounts)), lacking[0]), uid, amounts)

    def room_of_pod(self, uid: str) -> FreedRoom | None:
        """Return the place of a pod, and others, for which pods were evicted; None if a failure would not count."""
        wave = self._of_pod.get(uid)
        return wave.room if wave is not None and wave.is_open else None

    @property
    def follows_pods(self) -> bool:
        """Whether pods are to be bound for which others were evicted, or were a short time ago."""
        return bool(self.waves or self._fresh)

    def bound(self, uid: str, now: float) -> None:
        """Record that a pod is bound."""
        wave = self._of_pod.pop(uid, None)
        if wave is None:
            return
        amounts = wave.unbound.pop(uid)
        wave.bound.update(dict(amounts))
        self.settle(now)
        self._fresh[uid] = wave, amounts, wave.room, now
        if wave.mostly_bound and wave.failure is not None:
            pauses, failure = wave.failure
            pauses.forgive(failure)
            self.forgiven[wave.namespace] = None
            wave.failure, wave.is_over = None, False
        if not wave.unbound and wave.failure is None:
            self._remove(wave)

    # ------------------------------------------------------------ failures

    def undone(self, uid: str, taken: TakenBy, now: float) -> None:
        """Record that a pod lost its place, as it is gone for example, and whose pods are in the room."""
        wave = self._of_pod.pop(uid, None)
        if wave is None:
            return
        if wave.is_open:
            self._fail(wave, taken, now)
        wave.used.subtract(dict(wave.unbound.pop(uid)))
        if not wave.unbound and wave.failure is None:
            self._remove(wave)

    def settle(self, now: float) -> None:
        """Forget the pods that have been bound for long enough by a time in seconds."""
        while self._fresh and now >= self._fresh[first := next(iter(self._fresh))][3] + USED_AFTER_SECONDS:
            del self._fresh[first]

    def fresh_room(self, uid: str, now: float) -> tuple[str, FreedRoom | None] | None:
        """Return the workload, by id, and the room of a pod that was bound a short time ago; None for others."""
        self.settle(now)
        if (fresh := self._fresh.get(uid)) is None:
            return None
        wave, _, room, _ = fresh
        return wave.workload, room

    def ended_early(self, uid: str, taken: TakenBy | None, now: float, *, lives: bool) -> None:
        """Record that a pod ends which was bound a short time ago.

        If less than half of the amounts is left that were wanted, the evictions were in vain.

        Args:
            uid: of the pod.
            taken: whose fault that is; None if it is no failure.
            now: seconds.
            lives: whether its workload still exists, and may use the room again.
        """
        wave, amounts, _, _ = self._fresh.pop(uid)
        wave.bound.subtract(dict(amounts))
        wave.used.subtract(dict(amounts))
        counted = wave.is_over or wave.failure is not None
        if taken is None or counted or wave.mostly_bound:
            return
        wave.is_over = True
        self._fail(wave, taken, now)
        if lives and wave.failure is not None and wave not in self.waves.get(wave.workload, ()):
            self._forget_failed(wave.workload)
            self._begin(wave)

    def wanted_for(self, uid: str) -> Counter[int]:
        """Return the amounts for which pods were evicted of a pod with a place, and others."""
        return self._of_pod[uid].wanted

    def hand_over(self, uid: str, taken: TakenBy | None, now: float) -> None:
        """Record that the place of a pod goes to a workload of higher priority, which answers for these evictions.

        ``taken``: whose pods took the room of the other pods for which these evictions were made; None if that workload
        uses at least half of it.
        """
        wave = self._of_pod.get(uid)
        if wave is None or not wave.is_open:
            return
        if taken is not None:
            self._fail(wave, taken, now)
        wave.is_settled, wave.room = True, None

    def refused(self, uid: str, id_: str, now: float) -> bool:
        """Record that the API server refused to bind a pod of a workload; return whether that counts as a failure.

        It counts if others were evicted for that pod, or for others of its workload that are not bound yet.
        """
        wave = self._of_pod.get(uid)
        if wave is None:
            wave = next((wave for wave in reversed(self.waves.get(id_, ())) if wave.is_open), None)
        if wave is None or not wave.is_open:
            return False
        self._fail(wave, TakenBy.ITS_NAMESPACE, now)
        return wave.failure is not None

    def lose_room(
        self,
        id_: str,
        namespace: str,
        wanted: Counter[int],
        taken: TakenBy,
        now: float,
        *,
        nodes: Collection[str],
        pods: Collection[str],
    ) -> None:
        """Record that a workload has no place after evictions, or that a pod was deleted for which others were evicted.

        That counts until pods of it are bound that use at least half of the amounts ``wanted``, by column: those for
        which others were evicted, by uid, or any on the ``nodes`` that were emptied.
        """
        self._forget_failed(id_)
        wave = self._begin(_Wave(id_, namespace, wanted, nodes=frozenset(nodes), pods=frozenset(pods)))
        self._fail(wave, taken, now)
        if wave.failure is None:
            self._remove(wave)

    def deleted(self, id_: str, now: float) -> None:
        """Record that a workload was deleted: in vain unless half of it is bound."""
        waves = self.waves.pop(id_, [])
        for uid in [uid for wave in waves for uid in wave.unbound]:
            del self._of_pod[uid]
        if any(wave.is_open and not wave.is_excused for wave in waves):
            self.in_vain(waves[0].namespace, now)

    def in_vain(self, namespace: str, now: float) -> None:
        """Record that a workload is gone for which pods were evicted."""
        self._pauses.failed(namespace, now)

    def _fail(self, wave: _Wave, taken: TakenBy, now: float) -> None:
        wave.is_settled, wave.room = True, None
        if wave.is_excused and wave.excuse is not None:
            wave.excuse.wanted = wave.excuse.wanted + wave.wanted
            return
        pauses = self._pauses_by_taker[taken]
        failure = pauses.failed(wave.namespace, now)
        wave.failure = (pauses, failure) if failure is not None else None
        for other in self.waves.get(wave.workload, ()):
            if other.is_open and not other.is_excused:
                other.excuse = wave

    def _begin(self, wave: _Wave) -> _Wave:
        self.waves.setdefault(wave.workload, []).append(wave)
        return wave

    def _join(self, wave: _Wave, uid: str, amounts: Amounts) -> None:
        wave.unbound[uid] = amounts
        wave.used.update(dict(amounts))
        self._of_pod[uid] = wave

    def _forget_failed(self, id_: str) -> None:
        """Forget the oldest waves of a workload without pods with a place: their failures are not taken back."""
        failed = [wave for wave in self.waves.get(id_, ()) if not wave.unbound]
        for wave in failed[: max(0, len(failed) - MAX_FAILED_WAVES + 1)]:
            self._remove(wave)

    def _remove(self, wave: _Wave) -> None:
        waves = self.waves[wave.workload]
        waves.remove(wave)
        if not waves:
            del self.waves[wave.workload]

    # ------------------------------------------------------------ pauses

    def is_doubted(self, namespace: str, now: float) -> bool:
        """Return whether evictions for a namespace were in vain more than once lately."""
        return any(pauses.is_doubted(namespace, now) for pauses in self._pauses_by_taker.values())

    def unbound(self, namespace: str) -> Iterable[str]:
        """Return the workloads of a namespace for which pods were evicted, until they are bound."""
        return (id_ for id_, waves in self.waves.items() if waves[0].namespace == namespace)

    def awaits(self, namespace: str, uids: Container[str]) -> bool:
        """Return whether one of these pods of a namespace is not bound yet for which others were evicted."""
        return any(wave.namespace == namespace and uid in uids for uid, wave in self._of_pod.items())

    def until(self, namespace: str) -> float:
        """Return until when a namespace evicts no pods, in seconds."""
        return max(pauses.until(namespace) for pauses in self._pauses_by_taker.values())

    def comes_after_others(self, id_: str, now: float) -> bool:
        """Return whether others of its namespace search before a workload, as evictions for it led to a pause."""
        failures = (wave.failure[1] for wave in self.waves.get(id_, ()) if wave.failure is not None)
        return any(failure.at < failure.until and now < failure.until + TURN_SECONDS for failure in failures)

    def next_turn(self, namespace: str, now: float) -> float:
        """Return when a workload comes again that awaits another one of its namespace, in seconds."""
        self._turns = {name: at for name, at in self._turns.items() if at > now or name == namespace}
        spacing = max(1, len(self._turns)) / MAX_TURNS_PER_SECOND
        self._turns[namespace] = max(now + TURN_SECONDS, self._turns.get(namespace, 0.0) + spacing)
        return self._turns[namespace]
