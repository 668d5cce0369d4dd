"""A copy of the state on which the search tries remedies: pods that end, nodes that come back, other demands.

Each query runs the same attempt as the engine: from the members of a workload to a Decision.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.shares import ReservationShares
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.queueing.sharing import Sharing
from topo_scheduler.scheduling.reserving.spares import Spares
from topo_scheduler.state.decision import Decision, Verdict
from topo_scheduler.state.nodes.resources import Amounts
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.workloads import Member, Workload
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.topology_merge import crossed


class WhatIf(Trial):
    """A copy of what pods hold and of the properties of nodes. Changes of the original do not affect it.

    It shares names and labels of nodes with the original: when those change, the caller must discard the copy.
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
        shares: ReservationShares | None = None,
    ) -> None:
        """Copy the state.

        Args:
            planner: on the current state.
            sharing: quotas and access to domains.
            layout: the fabric.
            now: seconds.
            neighbours: whether it matters which pods run on a node, beyond the resources that they hold.
            spares: spare nodes; None if there are none.
            shares: what reservations take of the room of pods that end, for this copy alone.
        """
        super().__init__(planner, layout, now, neighbours=neighbours, shares=shares)
        self.planner.nodes.detach()
        self.planner.around.detach()
        self.planner.history = copy.deepcopy(planner.history)
        self.layout = layout
        self.now = now
        self.queries = 0
        """Number of queries for a placement so far."""
        self._attempts = Attempts(self.planner, sharing, spares=spares)

    def ask(self, workload: Workload, members: Sequence[Member]) -> PlacementQuery:
        """Return the query for members of a workload, with the level as relaxed by now.

        Raises:
            PluginError: a plugin failed, so there is no result.
        """
        groups, _, _ = self._attempts.groups(workload, members)
        return self._attempts.ask_by_now(workload, groups, self.layout, self.now)

    def seen_by(self, ask: PlacementQuery) -> Layout:
        """Return the fabric to which the levels of a query refer."""
        return crossed(self.layout, ask.woven)

    def fits(self, workload: Workload, members: Sequence[Member]) -> bool:
        """Return whether the planner finds a placement. This is a quick check; only `decide` is final."""
        self.queries += 1
        return self.place(self.ask(workload, members)) is not None

    def decide(self, workload: Workload, members: Sequence[Member]) -> Decision | None:
        """Return the decision that places the members on this copy, or None where they have no place.

        Raises:
            PluginError: a plugin failed, so there is no result.
        """
        decision = self.decision(workload, members)
        return decision if decision.verdict is Verdict.PLACED else None

    def decision(self, workload: Workload, members: Sequence[Member]) -> Decision:
        """Return the decision, whether it places the members or not.

        Raises:
            PluginError: a plugin failed, so there is no result.
        """
        self.queries += 1
        # Attempts cache failures until the state improves. On a copy, any query may follow an improvement.
        return self._attempts.decide(workload, members, (), self.layout, self.queries, self.now)

    def count(self, row: int, amounts: Amounts, profile: Profile | None) -> None:
        """Count a pod that is nominated to a node as if it were running there."""
        self.planner.nodes.charge(row, amounts)
        if self._neighbours and profile is not None:
            self.planner.around.pod_index.change(row, profile, 1)

    @contextmanager
    def back(self, rows: Iterable[int]) -> Iterator[None]:
        """Make the nodes ready and schedulable within the context."""
        nodes = self.planner.nodes
        earlier = [(row, bool(nodes.ready[row]), bool(nodes.unschedulable[row]), nodes.taint_set[row]) for row in rows]
        for row, _, _, _ in earlier:
            nodes.admit(row)
        try:
            yield
        finally:
            for row, ready, unschedulable, taints in earlier:
                nodes.ready[row], nodes.unschedulable[row], nodes.taint_set[row] = ready, unschedulable, taints
                nodes.facts_changes.append(row)
                nodes.capacity_changes.append(row)
