"""Classes of pods that the API server refuses to bind: held back for a growing while, and then tried by one pod.

A webhook may reject every pod of a kind, for hours. Ten thousand such pods must not cost ten thousand requests again
and again, and a gang must not be bound by half because the second half is refused. So the first refusal holds back all
pods of that namespace and class. When their time is up, one workload is decided on and one pod of it for each such
class is bound as a rehearsal (`dryRun=All`), which admission sees and nobody keeps. If that goes well, the pods of this
workload are bound; the first that really is frees all others. If it is refused, nothing was written, and the time
doubles.

A rehearsal that tells nothing (no answer, a webhook that does not take part in dry runs) is not waited for: the binds
themselves tell.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.words import clipped
from topo_scheduler.scheduling.instructions import Bind, DryRunBind, Instruction
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.decision import Seat
from topo_scheduler.state.workloads import Member

FIRST_HELD: Final = 1.0
LONGEST_HELD: Final = 300.0
"""Seconds for which a class is held back, doubled with each refusal."""
REMEMBERED: Final = 600.0
"""Seconds after its time is up for which a class that nobody asked for is remembered."""
MOST_CHARACTERS: Final = 1_024
"""Of the API server's words that are kept of each kind: a webhook may write a megabyte."""
FEW: Final = 64
"""Kinds among which those without pods are not searched for."""
TURN: Final = 1.0
"""Seconds in which the pod that is tried goes before all others of its class."""
STOPPED: Final = "pods like it were refused meanwhile"
"""Why a bind that was decided on is not written."""

Kind = tuple[str, PodClass]
"""Namespace and class: what is refused together."""


def kind_of(member: Member) -> Kind:
    """Return what a pod is refused with."""
    return member.namespace, member.cls


@dataclass(slots=True)
class Held:
    """A kind of pods that was refused.

    ``count`` refusals, those of one attempt counted once; ``until`` when it may be tried again, in seconds; ``why`` the
    API server's words; ``refused`` the workload that was refused last: another goes ``first`` next time, as a webhook
    may tell pods of one kind apart; ``trial`` pods that are being tried now; ``waiting`` workloads that are set aside.
    """

    kind: Kind
    count: int
    until: float
    why: str
    refused: str
    trial: set[str] = field(default_factory=set)
    first: str = ""
    waiting: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Rehearsal:
    """Pods of one decision, of which some are tried. ``waiting`` those of which the answer is not there."""

    seats: dict[str, Seat]
    binds: dict[str, Bind]
    waiting: dict[str, None]
    refused: str = ""


class HeldBack:
    """Kinds of pods that were refused, and decisions of which a pod is being tried."""

    def __init__(self) -> None:
        self._held: dict[Kind, Held] = {}
        """In order of their last refusal."""
        self._few = FEW
        """At most so many are kept before those without pods are dropped."""
        self._trial: dict[str, Held] = {}
        self._rehearsals: dict[str, _Rehearsal] = {}
        self._ended: list[_Rehearsal] = []
        self._freed: dict[str, None] = {}

    def __len__(self) -> int:
        """Return how many kinds of pods are held back."""
        return len(self._held)

    # ------------------------------------------------------------ before a decision

    def must_wait(self, workload: str, members: Iterable[Member], now: float) -> tuple[float, str] | None:
        """Return until when a workload is held back and the API server's words; None when it may be decided on.

        Args:
            workload: its id.
            members: those that are to be placed.
            now: seconds.
        """
        waits: tuple[float, str] | None = None
        for kind in {kind_of(member) for member in members}:
            held = self._held.get(kind)
            if held is None or (until := self._until(kind, held, workload, now)) <= now:
                continue
            held.waiting[workload] = None
            if waits is None or until > waits[0]:
                waits = until, held.why
        return waits

    def _until(self, kind: Kind, held: Held, workload: str, now: float) -> float:
        if held.trial:
            return now + TURN
        if now > held.until + REMEMBERED:
            self._free(kind)
            return now
        if not held.first and workload != held.refused:
            held.first = workload
        # All others come a little later: by then it is known how the first one fared.
        return held.until if held.first in (workload, "") else held.until + TURN

    # ------------------------------------------------------------ from a decision to its binds

    def rehearse(
        self, members: Mapping[str, Member], seats: Sequence[Seat], binds: Sequence[Bind], *, every: bool = False
    ) -> list[Instruction] | None:
        """Return what is to be tried before the binds of a decision; None when they may be written at once.

        One pod of each kind that is held back is tried, or ``every`` pod.
        """
        tried: dict[Kind | str, str] = {bind.pod.uid: bind.pod.uid for bind in binds} if every else {}
        for bind in binds:
            uid = bind.pod.uid
            kind = kind_of(members[uid])
            if (held := self._held.get(kind)) is not None:
                if not every:
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
        """Take over how a rehearsal ended: why it was refused, empty when it was not."""
        rehearsal = self._rehearsals.get(uid)
        if rehearsal is None or uid not in rehearsal.waiting:
            return
        del rehearsal.waiting[uid]
        rehearsal.refused = rehearsal.refused or refused
        if not rehearsal.waiting:
            self._ended.append(rehearsal)

    def take_ended(self) -> tuple[list[tuple[list[Seat], list[Bind]]], list[str]]:
        """Return the decisions whose rehearsals ended well, and the pods of those that were refused."""
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

        ``gets_on``: others of its gang are bound, so that it had better be completed.
        """
        held = self._held.get(kind_of(member))
        if held is None or gets_on or member.uid in held.trial:
            return ""
        return STOPPED

    # ------------------------------------------------------------ what came of it

    def refused(self, kind: Kind, workload: str, why: str, now: float) -> None:
        """Note that a bind or a rehearsal of a workload was refused."""
        known = self._held.get(kind)
        # What was on its way together is refused together, and counts as one.
        count = 1 if known is None else known.count + (now >= known.until)
        if known is not None:
            self._end_trial(known)
            del self._held[kind]
        # Who waits comes again by itself, and is held back anew.
        until = now + doubled(FIRST_HELD, count, LONGEST_HELD)
        self._held[kind] = Held(kind, count, until, clipped(why, MOST_CHARACTERS), workload)

    @property
    def many(self) -> bool:
        """Whether so many kinds were added that `keep` should be called."""
        return len(self._held) > self._few

    def keep(self, kinds: Container[Kind]) -> None:
        """Forget all kinds but those of which there are pods; it is called seldom enough to look at all pods for it."""
        for kind in [kind for kind in self._held if kind not in kinds]:
            self._free(kind)
        self._few = max(FEW, 2 * len(self._held))

    def forget_old(self, now: float) -> None:
        """Forget the kinds of which no pod was tried for long; those that were refused last come last."""
        while self._held:
            held = next(iter(self._held.values()))
            if held.trial or now <= held.until + REMEMBERED:
                return
            self._free(held.kind)

    def bound(self, uid: str) -> None:
        """Note that a pod is bound: if it was on trial, pods like it are held back no longer."""
        held = self._trial.get(uid)
        if held is not None:
            self._free(held.kind)

    def release(self, uid: str) -> None:
        """Forget a pod whose bind has ended, or that is gone."""
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
        """Return whether a decided pod waits for the answer to a rehearsal, its own or that of another."""
        return uid in self._rehearsals

    def pardon(self) -> None:
        """Hold back nobody any longer: what refused them may have been repaired."""
        for kind in list(self._held):
            self._free(kind)

    def take_freed(self) -> list[str]:
        """Return the workloads that are held back no longer, since the last call."""
        freed, self._freed = self._freed, {}
        return list(freed)

    def _free(self, kind: Kind) -> None:
        held = self._held.pop(kind)
        self._end_trial(held)
        self._freed |= held.waiting

    def _end_trial(self, held: Held) -> None:
        for uid in held.trial:
            self._trial.pop(uid, None)
        held.trial.clear()
