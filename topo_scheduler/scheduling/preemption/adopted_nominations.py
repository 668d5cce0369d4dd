"""Nominations on pods of this scheduler that this process did not write, until a claim of their workload covers them.

An earlier process wrote them, or a component that knows of upcoming room. The first attempt on a workload takes them
over. But there is no attempt on a gang that lacks pods, or on a pod that is refused: they would keep the nodes from
others without end. So such a nomination counts for a minute. After one that ended so, or several whose pods were
deleted before, no further one of its namespace counts for an hour: a client that may write the status of pods could
write one after the other.
"""

from topo_scheduler.scheduling.preemption.nomination_trust import COUNTS_SECONDS, NominationTrust
from topo_scheduler.scheduling.preemption.nominations import Nomination
from topo_scheduler.scheduling.world import World


class AdoptedNominations:
    """Which of them count, and until when."""

    def __init__(self, world: World) -> None:
        self._trust = NominationTrust(world.nodes)
        self._until: dict[str, float] = {}
        """Until when the nomination of each pod counts, in seconds."""
        self.early: dict[str, tuple[str, bool]] = {}
        """Nodes of pods that no workload includes yet, as their owners are not known, and whether each was listed."""

    def read(self, uid: str, node: str, *, listed: bool) -> None:
        """Keep the nomination of a pod until a workload includes the pod.

        ``listed``: it is from before the first decision. It stays so if the pod is read again with the same node.
        """
        self.early[uid] = node, listed or self.early.get(uid) == (node, True)

    def put(self, nomination: Nomination, now: float) -> bool:
        """Record a nomination that was read: of a predecessor, or of another component. Return whether it counts."""
        of_predecessor = self.early.pop(nomination.uid, None) == (nomination.node, True)
        if not self._trust.admit(nomination, now, of_predecessor=of_predecessor):
            return False
        self._until[nomination.uid] = now + COUNTS_SECONDS
        return True

    def ended(self, uid: str, now: float, *, in_vain: bool) -> None:
        """Forget a pod that is placed or has a claim, or in vain one that is gone or whose time is over."""
        self.early.pop(uid, None)
        if self._until.pop(uid, None) is not None:
            self._trust.end(uid, now, in_vain=in_vain)

    def due(self, now: float) -> list[str]:
        """Return the pods whose time is over; each has `ended` then, in vain unless a claim covers it."""
        self._trust.forget(now)
        return [uid for uid, until in self._until.items() if until <= now]

    def next_due(self) -> float | None:
        """Return when `due` has something to return, in seconds."""
        return min(self._until.values(), default=None)
