"""Nominations of pods of other schedulers, each for as long as victims may take to end.

Who may write the status of a pod can nominate it to any node, for a scheduler that does not exist. So such a nomination
counts for a minute, and longer only while pods on the node are being deleted. If its pod is not bound by then, no
nomination of its namespace counts for an hour.
"""

from typing import Final

from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import Instruction, LogWarning
from topo_scheduler.scheduling.preemption.nominations import Nominations, nomination_of
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.pods.victim_info import LONGEST_WAIT_SECONDS

COUNTS_SECONDS: Final = 60.0
"""Seconds for which a nomination counts, without pods on the node that are being deleted."""
DOUBTED_SECONDS: Final = 3600.0
"""Seconds for which the nominations of a namespace do not count after one in vain."""


class NominationsOfOthers:
    """Which of them count, and until when."""

    def __init__(self, world: World, nominations: Nominations) -> None:
        self._world = world
        self._nominations = nominations
        self._since: dict[str, tuple[str, float]] = {}
        """Namespace of each pod whose nomination counts, and since when, in seconds."""
        self._looks: dict[str, float] = {}
        """When to look at each of them again, in seconds."""
        self._doubted: dict[str, float] = {}
        """Namespaces whose nominations do not count, and until when, in seconds."""

    def applied(self, pod: Pod, now: float) -> None:
        """Record the nomination of a pending pod of another scheduler, or that it has none any more."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        if not pod.status.nominated_node_name or now < self._doubted.get(namespace, now):
            self._nominations.drop(uid)
            self.forget(uid)
            return
        self._nominations.put(nomination_of(pod, self._world))
        if uid not in self._since:
            self._since[uid], self._looks[uid] = (namespace, now), now + COUNTS_SECONDS

    def forget(self, uid: str) -> None:
        """Forget a pod that is bound or gone."""
        self._since.pop(uid, None)
        self._looks.pop(uid, None)

    def due(self, now: float) -> list[Instruction]:
        """End the nominations that were in vain."""
        self._doubted = {name: until for name, until in self._doubted.items() if now < until}
        vain: dict[str, None] = {}
        for uid in [uid for uid, at in self._looks.items() if at <= now]:
            namespace, since = self._since[uid]
            until = self._until(uid, since, now)
            if now < until:
                self._looks[uid] = until
            else:
                vain[namespace] = None
        ended = [uid for uid, (namespace, _) in self._since.items() if namespace in vain]
        for uid in ended:
            self._nominations.drop(uid)
            self.forget(uid)
        self._doubted |= dict.fromkeys(vain, now + DOUBTED_SECONDS)
        return [
            LogWarning(
                f"namespace {namespace}: no scheduler binds a nominated pod to its node; nominations of other"
                f" schedulers' pods in this namespace do not count for {DOUBTED_SECONDS:g} s"
            )
            for namespace in vain
        ]

    def next_due(self) -> float | None:
        """Return when `due` must be called next, in seconds."""
        return min(self._looks.values(), default=None)

    def _until(self, uid: str, since: float, now: float) -> float:
        """Return until when a nomination counts as far as is known, in seconds."""
        nomination = self._nominations.get(uid)
        if nomination is None:
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
