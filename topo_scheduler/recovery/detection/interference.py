"""Failed nodes whose pods lost their Migration: a client deleted, ended or edited it, or it ended without moving them.

A failure is reported once, so recovery would not return to these pods by itself. Any client that can write Migrations
in a namespace can do this repeatedly. Each time costs the namespace a longer pause, and concerns no other namespace.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Migration
from topo_scheduler.recovery.detection.absent_nodes import AbsentNodes
from topo_scheduler.recovery.detection.failure_detection import Detection, DomainFailure
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.scheduler_view import SchedulerView

FIRST_PAUSE_SECONDS: Final = 10.0
LONGEST_PAUSE_SECONDS: Final = 300.0


@dataclass(slots=True)
class _NodeInterference:
    """Interference with Migrations of a node: ``times`` in all, ``edits`` of them edits.

    ``until`` is when the node is handled again, if set. ``has_ended``: a Migration that the scheduler ended has been
    the reason before.
    """

    times: int = 0
    edits: int = 0
    waits: bool = False
    has_ended: bool = False
    until: float | None = None


@dataclass(slots=True)
class Interference:
    """Nodes to handle again, by namespace of the Migration and name; forgotten once they are healthy or empty."""

    view: SchedulerView
    detection: Detection
    absent_nodes: AbsentNodes
    _lost: dict[tuple[str, str], _NodeInterference] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._lost)

    def lost(self, migration: Migration, *, by_edit: bool = False) -> dict[str, bool]:
        """Record that a Migration may have left pods behind.

        Return the failed nodes with such pods, with whether they were not to be handled again already.
        """
        nodes: dict[str, bool] = {}
        for node in filter(self._needed, sorted(self._nodes_of(migration))):
            lost = self._lost.setdefault((migration.metadata.namespace, node), _NodeInterference())
            nodes[node] = not lost.waits
            lost.times += not lost.waits
            lost.edits += by_edit and not lost.waits
            lost.waits = True
        return nodes

    def left_to_healing(self, migration: Migration) -> None:
        """Have the failed nodes of a Migration handled that the scheduler itself has ended: at once the first time.

        Users can create any number of Migrations that end.
        """
        for node in filter(self._needed, self._nodes_of(migration)):
            lost = self._lost.setdefault((migration.metadata.namespace, node), _NodeInterference())
            if not lost.waits:
                lost.times += lost.has_ended
                lost.until = None if lost.has_ended else -inf
                lost.waits = lost.has_ended = True

    def edits(self, migration: Migration) -> int:
        """Return how often clients edited Migrations of this namespace for one of its nodes, at most."""
        lost = (self._lost.get((migration.metadata.namespace, node)) for node in self._nodes_of(migration))
        return max((node.edits for node in lost if node is not None), default=0)

    def due(self, now: float) -> list[tuple[str, DomainFailure]]:
        """Return the failures whose pods need a Migration again, each with the namespace of these pods."""
        self._lost = {key: lost for key, lost in self._lost.items() if self._needed(key[1])}
        failures: list[tuple[str, DomainFailure]] = []
        for (namespace, node), lost in self._lost.items():
            if not lost.waits:
                continue
            if lost.until is None:
                lost.until = now + doubled(FIRST_PAUSE_SECONDS, lost.times, LONGEST_PAUSE_SECONDS)
            elif lost.until <= now and not self.detection.held:
                lost.waits, lost.until = False, None
                if (failure := self.detection.reported(node, now)) is not None:
                    failures.append((namespace, failure))
        return failures

    def next_due(self) -> float | None:
        """Return when `due` must be called next, in seconds."""
        if self.detection.held:
            return None
        return min((lost.until for lost in self._lost.values() if lost.until is not None), default=None)

    def _nodes_of(self, migration: Migration) -> Iterable[str]:
        """Return the nodes of the pods of a Migration, without those of other namespaces: any user can name any uid."""
        own = ("", migration.metadata.namespace)
        entries = (self.view.entry(pod.uid) for pod in migration.spec.pods if self.view.namespace_of(pod.uid) in own)
        moves = (move for move in migration.status.moves if self.view.namespace_of(move.uid) in own)
        return {move.from_ for move in moves} | {entry.node for entry in entries if entry is not None}

    def _needed(self, node: str) -> bool:
        """Return whether a node is known to have failed, and pods are left on it.

        Each node that detection does not know yet would be reported as deleted.
        """
        is_failed = (
            self.detection.has_problem(node) or self.detection.saw_deletion(node) or self.absent_nodes.is_gone(node)
        )
        return is_failed and bool(self.view.pods_on(node))
