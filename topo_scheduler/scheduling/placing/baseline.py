"""Baseline algorithms that replace the planner in simulations, to compare them on the same state and queue."""

from typing import TYPE_CHECKING, Protocol

from topo_scheduler.scheduling.placing.ask import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.fabric import Layout

if TYPE_CHECKING:
    from topo_scheduler.scheduling.placing.planner import Planner
    from topo_scheduler.scheduling.placing.site import PlanningContext


class Baseline(Protocol):
    """An algorithm that simulations compare with. The daemon never has one."""

    def plan(self, planner: "Planner", query: PlacementQuery, layout: Layout) -> Placement | PlacementFailure:
        """Return a placement for every member of a query, or the failure; demands on topology may be ignored."""
        ...

    def choose_share(self, context: "PlanningContext", cls: PodClass, row: int) -> int:
        """Return the GPU of a row for a GPU share that is placed alone, -1 for the GPU with least free."""
        ...
