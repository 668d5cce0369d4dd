"""Nodes on which a scheduler placed pods and that do not exist: they were deleted while recovery did not watch.

Watches report only what is deleted while they are open. So the nodes that pods are bound to are compared with those
that the scheduler has listed. A node that is missing there may still exist: pods and nodes are listed one after the
other, and a node that does not decode is left out. So the API server is asked for each such node. Pods that were
created with their node do not count: any user can create them, on nodes that never existed.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.names import DNS_SUBDOMAIN
from topo_scheduler.recovery.detection.failure_detection import DELETED_NODE_SECONDS, Detection
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.scheduler_view import SchedulerView

LISTED_SECONDS: Final = 1.0
"""Seconds for which a node must be missing before the API server is asked: it may be listed a moment after its pods."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 60.0
"""Seconds until the API server is asked again for a node that exists, doubled each time."""
UNANSWERED_PAUSE_SECONDS: Final = 5.0
"""Seconds until the scheduler asks again if there was no answer."""
MAX_IN_FLIGHT: Final = 16
"""Nodes for which the API server is asked at once."""
LONGEST_NAME: Final = 253
_NODE_NAME: Final = re.compile(DNS_SUBDOMAIN)


@dataclass(slots=True)
class _AbsentNode:
    """A node that is not listed.

    ``since`` is when that was noticed, ``until`` when the API server is asked, in seconds. ``missing``: it does not
    exist. ``exists``: the API server said so last. ``withheld``: it was missing while most nodes seemed to be dead, so
    the API server is asked once more. ``handled``: its deletion was reported.
    """

    since: float
    until: float
    times: int = 0
    in_flight: bool = False
    missing: bool = False
    exists: bool = False
    withheld: bool = False
    handled: bool = False

    def wait(self, now: float) -> None:
        """Ask again later."""
        self.missing = False
        self.times += 1
        self.until = now + doubled(FIRST_PAUSE_SECONDS, self.times, LONGEST_PAUSE_SECONDS)


@dataclass(slots=True)
class AbsentNodes:
    """The nodes that are not listed, until they are, or no pod is bound to them: each is reported once."""

    view: SchedulerView
    detection: Detection
    held: str = ""
    """Why nodes that do not exist are not reported yet, with the numbers of when that began; empty without a reason."""
    _nodes: dict[str, _AbsentNode] = field(default_factory=dict)

    def step(self, now: float) -> list[str]:
        """Report nodes that do not exist to the detection; return the names of those to ask the API server for."""
        names = self.view.absent_nodes
        if not names and not self._nodes:
            return []
        for name in self._nodes.keys() - names:
            del self._nodes[name]
        for name in sorted(names - self._nodes.keys()):
            if len(name) <= LONGEST_NAME and _NODE_NAME.fullmatch(name):  # others never existed
                self._nodes[name] = _AbsentNode(now, now + LISTED_SECONDS)
        for name, node in self._nodes.items():
            node.handled |= self.detection.saw_deletion(name)
        self._report(now)
        out: list[str] = []
        room = self._room()
        for name, node in self._nodes.items():
            if len(out) < room and self._to_find(node) and node.until <= now:
                node.in_flight = True
                out.append(name)
        return out

    def answered(self, name: str, exists: bool | None, now: float) -> None:
        """Handle what the API server said of a node; None if there was no answer."""
        node = self._nodes.get(name)
        if node is None:
            return
        node.in_flight, node.exists, node.missing = False, exists is True, exists is False
        if node.exists:
            node.wait(now)
        elif not node.missing:
            node.until = now + UNANSWERED_PAUSE_SECONDS

    def next_due(self) -> float | None:
        """Return when `step` must be called next, in seconds."""
        room = self._room()
        times = [
            node.since + DELETED_NODE_SECONDS if node.missing else node.until
            for node in self._nodes.values()
            if not node.handled and not node.in_flight and (node.missing or room)
        ]
        return min(times, default=None)

    def is_gone(self, name: str) -> bool:
        """Return whether a node is known to be gone: a watch reported its deletion, or the API server has no such node.

        Nothing else says so: a new leader has not listed the nodes yet, and a node that does not decode is in no list.
        The API server is asked only if a scheduler placed pods there; otherwise no list of nodes is reason enough.
        """
        if self.detection.health(name) is not None or name in self.view.nodes.row_of:
            return False
        node = self._nodes.get(name)
        is_confirmed = node is not None and node.handled
        return is_confirmed or self.detection.saw_deletion(name) or name not in self.view.absent_nodes

    # ------------------------------------------------------------ helpers

    def _room(self) -> int:
        return MAX_IN_FLIGHT - sum(node.in_flight for node in self._nodes.values())

    @staticmethod
    def _to_find(node: _AbsentNode) -> bool:
        return not (node.handled or node.missing or node.in_flight)

    def _report(self, now: float) -> None:
        """Report the nodes that do not exist; while most nodes seem to be dead, only those that are missing for long.

        An incomplete list of nodes must not move most pods of a cluster.
        """
        missing: list[str] = []
        for name, node in self._nodes.items():
            if not node.missing or node.handled:
                continue
            if self.detection.health(name) is None:
                missing.append(name)
            else:
                node.wait(now)  # recovery's own watch sees it: it was created lately, or will report the deletion
        if not missing:
            self.held = ""
            return
        lately = {
            name for name, node in self._nodes.items() if not node.exists and now < node.since + DELETED_NODE_SECONDS
        }
        lost = lately | self.detection.dead_names()
        row_of = self.view.nodes.row_of
        total = len(row_of) + sum(name not in row_of for name in lost)
        too_many = total >= 3 and len(lost) > self.detection.spec.pause_above_not_ready_share * total
        withheld = lately if too_many else frozenset()
        for name in missing:
            node = self._nodes[name]
            if name in withheld:
                node.withheld = True
            elif node.withheld:
                node.withheld, node.missing, node.until = False, False, now
            else:
                node.handled = True
                self.detection.absent(name, now)
        if withheld.isdisjoint(missing):
            self.held = ""
        elif not self.held:
            self.held = (
                f"{len(lost)} of {total} nodes do not exist any more or are not ready: the list of nodes may be"
                f" incomplete. For {DELETED_NODE_SECONDS:.0f} s the scheduler moves no pod of nodes that were deleted"
                " before it watched them (the limit is recovery.pauseAboveNotReadyShare)"
            )
