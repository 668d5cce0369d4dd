"""A copy of what pods hold, on which it is tried what would be if some of them went."""

import copy
from collections.abc import Iterable
from dataclasses import replace

from topo_scheduler.scheduling.placing.ask import Ask, Failure, Placement
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.victims import Candidate
from topo_scheduler.state.changes import ChangeLog
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.links import GangKey, Links


class Trial:
    """A planner of its own. Facts of nodes are shared with the original, what is requested of them is not.

    It is used and thrown away between two changes of the original.
    """

    def __init__(self, planner: Planner, layout: Layout, now: float, *, neighbours: bool, links: bool = True) -> None:
        """``neighbours``: whether it matters who is there, beyond what they hold; ``links`` what they send."""
        nodes = copy.copy(planner.nodes)
        nodes.requested = nodes.requested.copy()
        nodes.capacity_changes = ChangeLog()
        around = planner.around
        residents = around.residents.copy() if neighbours else around.residents
        self._links = around.links if links else None
        self._links_copied = False
        self._sent: dict[str, tuple[GangKey, str, int]] = {}
        """What pods that are gone sent."""
        policy = replace(planner.policy, alone="")  # what it keeps by class would be made anew for a single look
        self.planner = Planner(replace(around, nodes=nodes, residents=residents), planner.history, policy)
        self._layout = layout
        self._now = now
        self._neighbours = neighbours

    def remove(self, pods: Iterable[Candidate]) -> None:
        """Let pods be gone."""
        self._change(pods, -1)

    def restore(self, pods: Iterable[Candidate]) -> None:
        """Let pods that were gone be there again."""
        self._change(pods, 1)

    def place(self, ask: Ask) -> Placement | None:
        """Return where a workload would go."""
        found = self.planner.plan(ask, self._layout, self._now)
        return None if isinstance(found, Failure) else found

    def rule(self, ask: Ask) -> SizeRule | None:
        """Return the size rule of a workload that can't be placed."""
        return self.planner.plan(ask, self._layout, self._now).rule

    def place_without(self, pods: Iterable[Candidate], ask: Ask) -> Placement | None:
        """Return where a workload would go if these pods went, which are there again afterwards."""
        gone = list(pods)
        self.remove(gone)
        try:
            return self.place(ask)
        finally:
            self.restore(gone)

    def _change(self, pods: Iterable[Candidate], change: int) -> None:
        changed = list(pods)
        self.planner.nodes.charge_pods([(pod.row, pod.amounts) for pod in changed], sign=change)
        if self._neighbours:
            for pod in changed:
                if pod.profile is not None:
                    self.planner.around.residents.change(pod.row, pod.profile, change)
        if self._links is not None:
            for pod in changed:
                self._send(self._links, pod.occupant.uid, change)

    def _send(self, links: Links, uid: str, change: int) -> None:
        if change < 0 and (held := links.held(uid)) is not None:
            if not self._links_copied:
                self._links_copied = True
                links = self._links = self.planner.around.links = links.copy(self.planner.nodes)
            self._sent[uid] = held
            links.drop(uid)
        elif change > 0 and uid in self._sent:
            links.put(uid, *self._sent.pop(uid))
