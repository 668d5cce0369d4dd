"""Nominations of pods of other schedulers, each for as long as victims may take to end.

A user who may write the status of a pod can nominate it to any node, for a scheduler that does not exist. So such a
nomination counts for a minute, and longer only while pods on the node are being deleted. If its pod is not bound by
then, no nomination of its namespace counts for an hour. The same holds if its nominations are ended before, again and
again.
"""

from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import Instruction, LogWarning
from topo_scheduler.scheduling.preemption.nomination_trust import COUNTS_SECONDS, DOUBTED_SECONDS, NominationTrust
from topo_scheduler.scheduling.preemption.nominations import Nominations, nomination_of
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.pods.victim_info import LONGEST_WAIT_SECONDS


class NominationsOfOthers:
    """Which of them count, and until when."""

    def __init__(self, world: World, nominations: Nominations) -> None:
        self._world = world
        self._nominations = nominations
        self._trust = NominationTrust(world.nodes)
        self._looks: dict[str, float] = {}
        """When to look at each nomination that counts again, in seconds."""
        self._in_vain: dict[str, None] = {}
        """Namespaces whose nominations are doubted since the last call of `due`."""

    def applied(self, pod: Pod, now: float) -> None:
        """Record the nomination of a pending pod of another scheduler, or that it has none any more."""
        uid, node = pod.metadata.uid, pod.status.nominated_node_name
        known = self._nominations.get(uid)
        if known is not None and known.node != node:
            self.ended(uid, now, in_vain=True)
        if not node:
            return
        nomination = nomination_of(pod, self._world)
        if uid in self._looks:
            self._nominations.put(nomination)
        elif self._trust.admit(nomination, now):
            self._nominations.put(nomination)
            self._looks[uid] = now + COUNTS_SECONDS

    def ended(self, uid: str, now: float, *, in_vain: bool) -> None:
        """Drop the nomination of a pod that is bound, or in vain of one that is gone or has it no more."""
        if self._looks.pop(uid, None) is None:
            return
        self._nominations.drop(uid)
        if namespace := self._trust.end(uid, now, in_vain=in_vain):
            self._in_vain[namespace] = None

    def due(self, now: float) -> list[Instruction]:
        """End the nominations that were in vain."""
        self._trust.forget(now)
        for uid in [uid for uid, at in self._looks.items() if at <= now]:
            until = self._until(uid, now)
            if now < until:
                self._looks[uid] = until
            else:
                self.ended(uid, now, in_vain=True)
        doubted, self._in_vain = self._in_vain, {}
        for namespace in doubted:
            for uid in self._trust.of_namespace(namespace):
                self.ended(uid, now, in_vain=True)
        return [
            LogWarning(
                f"namespace {namespace}: no scheduler binds a nominated pod to its node; nominations of other"
                f" schedulers' pods in this namespace do not count for {DOUBTED_SECONDS:g} s",
                namespace,
            )
            for namespace in doubted
        ]

    def next_due(self) -> float | None:
        """Return when `due` must be called next, in seconds."""
        return 0.0 if self._in_vain else min(self._looks.values(), default=None)

    def _until(self, uid: str, now: float) -> float:
        """Return until when a nomination counts as far as is known, in seconds."""
        nomination, since = self._nominations.get(uid), self._trust.since(uid)
        if nomination is None or since is None:
            return now
        if nomination.node not in self._world.nodes.row_of:
            return now + COUNTS_SECONDS  # it takes no room yet
        longest = since + LONGEST_WAIT_SECONDS + COUNTS_SECONDS
        until = since + COUNTS_SECONDS
        for other in self._world.ledger.on_node(nomination.node):
            entry = self._world.ledger.get(other)
            occupant = entry.occupant if entry is not None else None
            if occupant is not None and occupant.terminating:
                seconds = occupant.seconds_to_end(now + self._world.epoch)
                if seconds <= LONGEST_WAIT_SECONDS:
                    until = max(until, now + seconds + COUNTS_SECONDS)
        return min(until, longest)
