"""What may place instead of the planner, so that other algorithms are compared on the very same accounts and queue."""

from typing import TYPE_CHECKING, Protocol

from topo_scheduler.scheduling.placing.ask import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.fabric import Layout

if TYPE_CHECKING:
    from topo_scheduler.scheduling.placing.planner import Planner
    from topo_scheduler.scheduling.placing.site import PlanningContext


class Baseline(Protocol):
    """An algorithm that simulations compare with; no daemon has one."""

    def plan(self, planner: "Planner", ask: PlacementQuery, layout: Layout) -> Placement | PlacementFailure:
        """Return a place for every member of an ask, or why there is none; what is asked of topology may be ignored."""
        ...

    def choose_share(self, site: "PlanningContext", cls: PodClass, row: int) -> int:
        """Return which GPU of a row a share that is placed alone gets, -1 for the one with least free."""
        ...
