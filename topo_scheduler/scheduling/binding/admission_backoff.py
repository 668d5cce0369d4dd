"""Classes of pods that the API server refuses to bind: in growing backoff, and then tried with one pod.

A webhook may reject every pod of a kind, for hours. Ten thousand such pods must not cost ten thousand requests again
and again. Nor may a gang stay partially bound because its second half is refused.

So the first refusal starts a backoff of all pods of that namespace and class. When it ends, the scheduler decides on
one workload. It first sends one bind for each such class as a dry run (`dryRun=All`): admission sees it, and the API
server stores nothing. If the dry run succeeds, the scheduler binds the pods of this workload. The first pod that is
really bound releases all others of its kind. If the dry run is refused, nothing was written, and the backoff doubles.

A dry run may give no result: no answer, or a webhook that does not take part in dry runs. Then the scheduler does not
wait for one: the binds themselves show it.

A dry run may also succeed where the bind does not: etcd stores no pod above a certain size. After such a refusal the
scheduler evicts nothing for pods of that kind until one of them is bound. The same holds after two refusals of pods for
which others had been evicted.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from topo_scheduler.api.text import clipped
from topo_scheduler.scheduling.instructions import Bind, DryRunBind, Instruction
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.state.decision import Seat
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.workloads import Member

FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 300.0
"""Seconds of the backoff of a class, doubled with each refusal: the first backoff, and the longest."""
REMEMBERED_SECONDS: Final = 600.0
"""Seconds after its backoff for which a class is remembered that no workload asked for."""
MAX_CHARACTERS: Final = 1_024
"""Characters of the API server's message that are kept for each kind: a webhook may write a megabyte."""
FEW_KINDS: Final = 64
"""Number of kinds up to which the scheduler does not search for those without pods."""
TURN_SECONDS: Final = 1.0
"""Seconds by which the pod that is tried precedes all others of its class."""
NO_ROOM_IS_MADE: Final = (
    "The scheduler evicts no pod to make room, as the API server refused to bind such a pod although a dry run"
    " was not refused"
)
"""Why nothing is evicted, before the API server's message."""
MAX_VAIN_EVICTIONS: Final = 2
"""Refusals of pods for which others had been evicted, after which nothing more is evicted for pods of their kind."""
REFUSED_AFTER_EVICTIONS: Final = (
    f"The scheduler evicts no pod to make room, as {MAX_VAIN_EVICTIONS} times the API server refused such a pod after"
    " others were evicted for it"
)
"""Why nothing is evicted, before the API server's message."""
STOPPED: Final = "pods like it were refused meanwhile"
"""Why a decided bind is not written."""

Kind = tuple[str, PodClass]
"""Namespace and class: pods with the same of both are refused together."""


def kind_of(member: Member) -> Kind:
    """Return the kind of a pod, with which it is refused."""
    return member.namespace, member.cls


@dataclass(slots=True, eq=False)
class Held:
    """A kind of pods that was refused.

    Attributes:
        kind: namespace and class of the pods.
        count: number of refusals; those of one attempt count once.
        until: when it may be tried again, in seconds.
        why: the API server's message.
        refused: id of the workload that was refused last. Another one goes first next time, because a webhook may
            distinguish pods of one kind.
        trial: uids of the pods that are being tried now.
        defied: whether a bind was refused although its dry run was not.
        vain: refusals of pods for which others had been evicted.
        first: id of the workload that goes first next time.
        waiting: ids of the workloads in backoff for it, and of those for which no room was made.
    """

    kind: Kind
    count: int
    until: float
    why: str
    refused: str
    trial: set[str] = field(default_factory=set)
    defied: bool = False
    vain: int = 0
    first: str = ""
    waiting: dict[str, None] = field(default_factory=dict)

    @property
    def makes_no_room(self) -> bool:
        """Whether nothing is evicted for pods of the kind."""
        return self.defied or self.vain >= MAX_VAIN_EVICTIONS


@dataclass(slots=True)
class _Rehearsal:
    """Pods of one decision, of which some are tried. ``waiting`` holds the uids whose dry run is not answered yet."""

    seats: dict[str, Seat]
    binds: dict[str, Bind]
    waiting: dict[str, None]
    refused: str = ""


class AdmissionBackoff:
    """Kinds of pods that were refused, and decisions of which a pod is being tried."""

    def __init__(self) -> None:
        self._held: dict[Kind, Held] = {}
        """Kinds in backoff, in order of their last refusal."""
        self.any_held = False
        """Whether any kind is in backoff. Each decision asks, so this is no call."""
        self._few = FEW_KINDS
        """Number of kinds above which the scheduler drops those without pods."""
        self._trial: dict[str, Held] = {}
        self._rehearsals: dict[str, _Rehearsal] = {}
        self._ended: list[_Rehearsal] = []
        self._freed: dict[str, None] = {}
        self._waits: dict[str, list[Held]] = {}
        """Kinds for which each workload waits."""
        self._expires = inf
        """When a kind is forgotten for which no room was made, or before that, in seconds."""

    def __len__(self) -> int:
        """Return how many kinds of pods are in backoff."""
        return len(self._held)

    # ------------------------------------------------------------ before a decision

    def any_in_backoff(self, kinds: Iterable[Kind]) -> bool:
        """Return whether pods of one of these kinds were refused and have not been accepted since."""
        return bool(self._held) and any(kind in self._held for kind in kinds)

    def why_none_makes_room(self, workload: str, members: Iterable[Member]) -> str:
        """Return why nothing is evicted for pods of a workload, as a sentence; empty if something may be.

        The workload is among those that `take_freed` returns once that may differ.
        """
        text = ""
        for held in map(self._held.get, {kind_of(member) for member in members} if self._held else ()):
            if held is None or not held.makes_no_room:
                continue
            self._wait(workload, held)
            self._expires = min(self._expires, held.until + REMEMBERED_SECONDS)
            text = text or f"{NO_ROOM_IS_MADE if held.defied else REFUSED_AFTER_EVICTIONS}: {held.why}."
        return text

    def must_wait(self, workload: str, members: Iterable[Member], now: float) -> tuple[float, str] | None:
        """Return until when a workload is in backoff and the API server's message; None if it may be decided on.

        Args:
            workload: its id.
            members: those to place.
            now: seconds.
        """
        waits: tuple[float, str] | None = None
        for kind in {kind_of(member) for member in members}:
            held = self._held.get(kind)
            if held is None or (until := self._until(kind, held, workload, now)) <= now:
                continue
            self._wait(workload, held)
            if waits is None or until > waits[0]:
                waits = until, held.why
        return waits

    def _wait(self, workload: str, held: Held) -> None:
        if workload not in held.waiting:
            held.waiting[workload] = None
            self._waits.setdefault(workload, []).append(held)

    def _until(self, kind: Kind, held: Held, workload: str, now: float) -> float:
        if held.trial:
            return now + TURN_SECONDS
        if now >= held.until + REMEMBERED_SECONDS:
            self._free(kind)
            return now
        if not held.first and workload != held.refused:
            held.first = workload
        # All others follow a little later: by then the result of the first one is known.
        return held.until if held.first in (workload, "") else held.until + TURN_SECONDS

    # ------------------------------------------------------------ from a decision to its binds

    def rehearse(
        self, members: Mapping[str, Member], seats: Sequence[Seat], binds: Sequence[Bind], *, all_members: bool = False
    ) -> list[Instruction] | None:
        """Return the dry runs to send before the binds of a decision; None if the binds may be written at once.

        The scheduler tries one pod of each kind in backoff; with ``all_members`` every pod.
        """
        tried: dict[Kind | str, str] = {bind.pod.uid: bind.pod.uid for bind in binds} if all_members else {}
        for bind in binds:
            uid = bind.pod.uid
            kind = kind_of(members[uid])
            if (held := self._held.get(kind)) is not None:
                if not all_members:
                    tried.setdefault(kind, uid)
                held.trial.add(uid)
                self._trial[uid] = held
        if not tried:
            return None
        by_uid = {bind.pod.uid: bind for bind in binds}
        rehearsal = _Rehearsal({seat.uid: seat for seat in seats}, by_uid, dict.fromkeys(tried.values()))
        for uid in by_uid:
            self._rehearsals[uid] = rehearsal
        return [DryRunBind(by_uid[uid]) for uid in tried.values()]

    def answered(self, uid: str, refused: str) -> None:
        """Record how a dry run ended: ``refused`` is the reason of a refusal, or empty."""
        rehearsal = self._rehearsals.get(uid)
        if rehearsal is None or uid not in rehearsal.waiting:
            return
        del rehearsal.waiting[uid]
        rehearsal.refused = rehearsal.refused or refused
        if not rehearsal.waiting:
            self._ended.append(rehearsal)

    def take_ended(self) -> tuple[list[tuple[list[Seat], list[Bind]]], list[str]]:
        """Return the decisions whose dry runs succeeded, and the uids of pods whose decisions were refused."""
        good: list[tuple[list[Seat], list[Bind]]] = []
        undone: list[str] = []
        for rehearsal in self._ended:
            for uid in rehearsal.binds:
                del self._rehearsals[uid]
            if rehearsal.refused:
                undone += rehearsal.binds
            elif rehearsal.binds:
                good.append((list(rehearsal.seats.values()), list(rehearsal.binds.values())))
        self._ended.clear()
        return good, undone

    def stops(self, member: Member, *, gets_on: bool) -> str:
        """Return why a decided pod must not be bound after all, or an empty string.

        ``gets_on``: other members of its gang are bound, so the scheduler had better complete the gang.
        """
        held = self._held.get(kind_of(member))
        if held is None or gets_on or member.uid in held.trial:
            return ""
        return STOPPED

    # ------------------------------------------------------------ what came of it

    def refused(
        self, kind: Kind, workload: str, why: str, now: float, *, longest: float = MAX_BACKOFF_SECONDS, bind: str = ""
    ) -> None:
        """Record that the API server refused a bind or a dry run of a workload.

        Args:
            kind: of the pod.
            workload: its id.
            why: the API server's message.
            now: seconds.
            longest: backoff in seconds.
            bind: uid of the pod, if a bind was refused.
        """
        # Workloads in backoff come again by themselves, and their backoff then starts again.
        known = self._held.pop(kind, None)
        held = self._held[kind] = known or Held(kind, 0, now, "", "")
        self.any_held = True
        held.defied = held.defied or bind in held.trial
        self._end_trial(held)
        # Binds that were in flight together are refused together, and count as one refusal.
        held.count += now >= held.until
        held.until = now + doubled(FIRST_BACKOFF_SECONDS, held.count, longest)
        held.why, held.refused, held.first = clipped(why, MAX_CHARACTERS), workload, ""

    def evicted_in_vain(self, kind: Kind) -> None:
        """Record that others had been evicted for a pod that was refused."""
        if (held := self._held.get(kind)) is not None:
            held.vain += 1

    @property
    def many(self) -> bool:
        """Whether so many kinds were added that `keep` should be called."""
        return len(self._held) > self._few

    def keep(self, kinds: Container[Kind]) -> None:
        """Forget all kinds without pods. It is called rarely enough that the caller can go through all pods for it."""
        for kind in [kind for kind in self._held if kind not in kinds]:
            self._free(kind)
        self._few = max(FEW_KINDS, 2 * len(self._held))

    def forget_old(self, now: float) -> None:
        """Forget the kinds of which no pod was tried for long; the ones refused last come last."""
        while self._held:
            held = next(iter(self._held.values()))
            if held.trial or now < held.until + REMEMBERED_SECONDS:
                break
            self._free(held.kind)
        if now < self._expires:
            return
        self._expires = inf
        for held in [held for held in self._held.values() if held.makes_no_room and held.waiting]:
            if not held.trial and now >= held.until + REMEMBERED_SECONDS:
                self._free(held.kind)
                continue
            # A bind on trial may take longer. Its result ends the trial, and changes `until` or frees the kind.
            at = max(held.until + REMEMBERED_SECONDS, now + MAX_BACKOFF_SECONDS if held.trial else now)
            self._expires = min(self._expires, at)

    def next_due(self) -> float | None:
        """Return when `forget_old` may free workloads for which no room was made, in seconds."""
        return self._expires if self._expires < inf else None

    def forget(self, workload: str) -> None:
        """Forget a workload that was deleted."""
        for held in self._waits.pop(workload, ()):
            held.waiting.pop(workload, None)
            if held.first == workload:
                held.first = ""  # another one goes first
        self._freed.pop(workload, None)

    def bound(self, uid: str) -> None:
        """Record that a pod is bound: if it was on trial, pods of its kind are no longer in backoff."""
        held = self._trial.get(uid)
        if held is not None:
            self._free(held.kind)

    def release(self, uid: str) -> None:
        """Forget a pod whose bind has ended, or which was deleted."""
        held = self._trial.pop(uid, None)
        if held is not None:
            held.trial.discard(uid)
        rehearsal = self._rehearsals.pop(uid, None)
        if rehearsal is None:
            return
        del rehearsal.seats[uid], rehearsal.binds[uid]
        if uid in rehearsal.waiting:
            del rehearsal.waiting[uid]
            if not rehearsal.waiting:
                self._ended.append(rehearsal)

    def is_tried(self, uid: str) -> bool:
        """Return whether a decided pod waits for the result of a dry run, its own or that of another pod."""
        return uid in self._rehearsals

    def pardon(self) -> None:
        """Release all kinds: the cause of the refusals may have been fixed."""
        for kind in list(self._held):
            self._free(kind)

    def take_freed(self) -> list[str]:
        """Return the workloads that were released since the last call."""
        freed, self._freed = self._freed, {}
        return list(freed)

    def _free(self, kind: Kind) -> None:
        held = self._held.pop(kind)
        self.any_held = bool(self._held)
        self._end_trial(held)
        self._freed |= held.waiting
        for workload in held.waiting:
            waits = self._waits[workload]
            waits.remove(held)
            if not waits:
                del self._waits[workload]
        held.waiting.clear()

    def _end_trial(self, held: Held) -> None:
        for uid in held.trial:
            self._trial.pop(uid, None)
        held.trial.clear()
