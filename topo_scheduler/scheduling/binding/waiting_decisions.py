"""Decisions of which some pods wait for something before their binds: for claims, or for volumes.

The pods of a decision are bound together: none before all of them have what they wait for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topo_scheduler.scheduling.instructions import Bind
from topo_scheduler.state.decision import Seat

OUTRANKED: Final = "a pod of higher priority needs the room"
EVENT_AFTER_SECONDS: Final = 5.0
"""Seconds for which a pod waits for its volumes or devices before the scheduler emits an event."""


@dataclass(slots=True)
class WaitingDecision:
    """A decision: ``binds`` in its order, and ``waiting``, the pods that do not have yet what they wait for.

    ``rests``: everything was written for some of its pods, so that they wait for others than this scheduler.
    """

    seats: Sequence[Seat]
    binds: dict[str, Bind]
    waiting: dict[str, None]
    failed: bool = False
    rests: bool = False


class WaitingDecisions:
    """Decisions by the uids of their pods."""

    def __init__(self) -> None:
        self._of_pod: dict[str, WaitingDecision] = {}
        self._complete: list[WaitingDecision] = []
        self.outranked: list[str] = []
        """The pods that give up their room when the next step reaches them."""

    def __len__(self) -> int:
        return len(self._of_pod)

    def put(self, seats: Sequence[Seat], binds: Sequence[Bind], waiting: Iterable[str]) -> None:
        """Add a decision, of which some pods wait."""
        decision = WaitingDecision(seats, {bind.pod.uid: bind for bind in binds}, dict.fromkeys(waiting))
        for seat in seats:
            self._of_pod[seat.uid] = decision

    def bind_of(self, uid: str) -> Bind:
        """Return the bind of a pod."""
        return self._of_pod[uid].binds[uid]

    def ready(self, uid: str) -> None:
        """Record that a pod has what it waited for."""
        decision = self._of_pod[uid]
        del decision.waiting[uid]
        if not decision.waiting:
            self._complete.append(decision)

    def rest(self, uid: str) -> list[str]:
        """Record that nothing is left to be written for a pod, which waits all the same.

        Returns:
            The pods of its decision, at the first call for it.
        """
        decision = self._of_pod[uid]
        if decision.rests:
            return []
        decision.rests = True
        return list(decision.binds)

    def release(self, uid: str) -> bool:
        """Forget a pod; return whether it was known. If the others of its decision wait no more, they are complete."""
        decision = self._of_pod.pop(uid, None)
        if decision is None:
            return False
        del decision.binds[uid]
        if uid in decision.waiting:
            del decision.waiting[uid]
            if decision.binds and not decision.waiting and not decision.failed:
                self._complete.append(decision)
        return True

    def is_withheld(self, uid: str) -> bool:
        """Return whether the bind of a pod was not handed out yet because its decision waits."""
        decision = self._of_pod.get(uid)
        return decision is not None and (bool(decision.waiting) or any(decision is done for done in self._complete))

    def outrank(self, uids: Iterable[str]) -> None:
        """Note which of these pods still wait for their binds, for `take_outranked`."""
        self.outranked += filter(self.is_withheld, uids)

    def take_outranked(self) -> list[str]:
        """Return the pods that give up their room, as far as they still wait for their binds."""
        outranked, self.outranked = self.outranked, []
        return [uid for uid in outranked if self.is_withheld(uid)]

    def take_complete(self) -> list[WaitingDecision]:
        """Return the decisions that wait no more, each once."""
        complete, self._complete = [decision for decision in self._complete if not decision.failed], []
        return complete

    def fail(self, failed: Mapping[str, str]) -> list[tuple[str, str]]:
        """Record that pods will not get what they wait for, by uid with the reason; return them with their gangs.

        Before `take_complete`: the others of a decision that a pod of higher priority ends may just have become ready.
        """
        failures = dict(failed)
        for uid, why in failed.items():
            decision = self._of_pod[uid]
            decision.failed = True
            pod = decision.binds[uid].pod
            for other in decision.binds:
                failures.setdefault(other, f"pod {pod.namespace}/{pod.name} of its gang: {why}")
        return list(failures.items())
