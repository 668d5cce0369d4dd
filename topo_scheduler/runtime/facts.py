"""Passes what reflectors observe to the engine, with the time of arrival, and then triggers a step."""

from collections.abc import Callable, Sequence

from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import DisruptionBudget, Node, PartialObject, Pod
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.state.pods.pod_groups import GroupKey, PodGroup, Serving


class Facts:
    """Passes facts to the engine, on the event loop."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float],
        wake: Callable[[], None],
        forget: Callable[[str], None],
        groups_listed: Callable[[GroupApi], None],
    ) -> None:
        """Connect reflectors to the engine.

        Args:
            engine: receives the facts.
            clock: seconds, on the clock of the engine.
            wake: triggers a step of the engine.
            forget: called with the uid of each pod about which the scheduler has nothing more to write.
            groups_listed: called with each API whose PodGroups are all known.
        """
        self._engine = engine
        self._clock = clock
        self._wake = wake
        self._forget = forget
        self._groups_listed = groups_listed

    def pods_applied(self, pods: Sequence[Pod]) -> None:
        """Report pods that appeared or changed."""
        self._engine.pods_applied(pods, self._clock())
        for pod in pods:
            if pod.spec.node_name:
                self._forget(pod.metadata.uid)
        self._wake()

    def pods_deleted(self, references: Sequence[Deleted]) -> None:
        """Report pods that were deleted."""
        now = self._clock()
        for reference in references:
            self._engine.pod_deleted(reference.uid, now)
            self._forget(reference.uid)
        self._wake()

    def nodes_applied(self, nodes: Sequence[Node]) -> None:
        """Report nodes that appeared or changed."""
        self._engine.nodes_applied(nodes, self._clock())
        self._wake()

    def nodes_deleted(self, references: Sequence[Deleted]) -> None:
        """Report nodes that were deleted."""
        for reference in references:
            self._engine.node_deleted(reference.name, reference.uid)
        self._wake()

    def namespaces_applied(self, namespaces: Sequence[PartialObject]) -> None:
        """Report namespaces that appeared or changed."""
        self._engine.namespaces_applied(namespaces)
        self._wake()

    def namespaces_deleted(self, references: Sequence[Deleted]) -> None:
        """Report namespaces that were deleted."""
        for reference in references:
            self._engine.namespace_deleted(reference.name)
        self._wake()

    def groups_applied(self, groups: Sequence[PodGroup]) -> None:
        """Report PodGroups that appeared or changed."""
        self._engine.groups_applied(groups, self._clock())
        self._wake()

    def groups_deleted(self, groups: Sequence[tuple[GroupKey, str]]) -> None:
        """Report PodGroups that were deleted."""
        now = self._clock()
        for key, uid in groups:
            self._engine.group_deleted(key, uid, now)
        self._wake()

    def groups_served(self, api: GroupApi, serving: Serving, requested_at: float) -> None:
        """Report whether the API server serves PodGroups of an API, as answered to a request at ``asked``."""
        self._engine.groups_served(api, serving, requested_at, self._clock())
        if serving is Serving.LISTED:
            self._groups_listed(api)
        self._wake()

    def budgets_applied(self, budgets: Sequence[DisruptionBudget]) -> None:
        """Report disruption budgets that appeared or changed."""
        self._engine.budgets_applied(budgets)
        self._wake()

    def budgets_deleted(self, references: Sequence[Deleted]) -> None:
        """Report disruption budgets that were deleted."""
        for reference in references:
            self._engine.budget_deleted(reference.namespace, reference.name)
        self._wake()

    def budgets_synced(self) -> None:
        """Report that the list of disruption budgets is complete."""
        self._engine.budgets_known()
        self._wake()
