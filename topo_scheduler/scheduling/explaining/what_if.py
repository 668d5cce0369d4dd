"""A copy of the state on which ways out are tried: pods that end, nodes that come back, other demands.

Whether a workload has a place there is asked as the engine asks it: one attempt, from its members to a Decision.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.queueing.sharing import Sharing
from topo_scheduler.scheduling.reserving.spares import Spares
from topo_scheduler.state.crossing import crossed
from topo_scheduler.state.decision import Decision, Verdict
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.resources import Amounts
from topo_scheduler.state.workloads import Member, Workload


class WhatIf(Trial):
    """A copy of what pods hold and of what nodes are. It stays as it was when the original changes.

    Names and labels of nodes are shared with the original: when those change it is thrown away.
    """

    def __init__(
        self,
        planner: Planner,
        sharing: Sharing,
        layout: Layout,
        now: float,
        *,
        neighbours: bool,
        spares: Spares | None = None,
    ) -> None:
        """``neighbours``: whether it matters who is there, beyond what they hold of resources."""
        super().__init__(planner, layout, now, neighbours=neighbours)
        self.planner.nodes.detach()
        self.planner.around.detach()
        self.planner.history = copy.deepcopy(planner.history)
        self.layout = layout
        self.now = now
        self.asked = 0
        """How often it was asked for a place."""
        self._attempts = Attempts(self.planner, sharing)
        self._attempts.spares = spares

    def ask(self, workload: Workload, members: Sequence[Member]) -> PlacementQuery:
        """Return what the planner is asked for some members of a workload, its level as it has loosened by now.

        Raises:
            PluginError: a plugin failed, so that nothing can be said.
        """
        groups, _, _ = self._attempts.groups(workload, members)
        return self._attempts.ask_by_now(workload, groups, self.layout, self.now)

    def seen_by(self, ask: PlacementQuery) -> Layout:
        """Return the fabric on which an ask is meant."""
        return crossed(self.layout, ask.woven)

    def fits(self, workload: Workload, members: Sequence[Member]) -> bool:
        """Return whether the planner finds a place, as a first look; `decide` has the last word."""
        self.asked += 1
        return self.place(self.ask(workload, members)) is not None

    def decide(self, workload: Workload, members: Sequence[Member]) -> Decision | None:
        """Return the decision with which members of a workload are placed as things are here, None where they aren't.

        Raises:
            PluginError: a plugin failed, so that nothing can be said.
        """
        decision = self.decision(workload, members)
        return decision if decision.verdict is Verdict.PLACED else None

    def decision(self, workload: Workload, members: Sequence[Member]) -> Decision:
        """Return the decision, whatever it is.

        Raises:
            PluginError: a plugin failed, so that nothing can be said.
        """
        self.asked += 1
        # Failures are remembered until something improves; here anything may have.
        return self._attempts.decide(workload, members, (), self.layout, self.asked, self.now)

    def count(self, row: int, amounts: Amounts, profile: Profile | None) -> None:
        """Count a pod that is nominated to a node as if it ran there."""
        self.planner.nodes.charge(row, amounts)
        if self._neighbours and profile is not None:
            self.planner.around.residents.change(row, profile, 1)

    @contextmanager
    def back(self, rows: Iterable[int]) -> Iterator[None]:
        """Let nodes be ready and schedulable while the context lasts."""
        nodes = self.planner.nodes
        before = [(row, bool(nodes.ready[row]), bool(nodes.unschedulable[row]), nodes.taint_set[row]) for row in rows]
        for row, _, _, _ in before:
            nodes.admit(row)
        try:
            yield
        finally:
            for row, ready, unschedulable, taints in before:
                nodes.ready[row], nodes.unschedulable[row], nodes.taint_set[row] = ready, unschedulable, taints
                nodes.facts_changes.append(row)
                nodes.capacity_changes.append(row)
