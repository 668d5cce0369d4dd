"""Clusters with running pods, and the victims that preemption chooses among them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from hypothesis import strategies as st

from tests.scheduling.planning import Small, gang, grid, pods, single
from topo_scheduler.api.annotations import PlacementRequest
from topo_scheduler.api.objects import BudgetSpec, BudgetStatus, DisruptionBudget, ObjectMeta
from topo_scheduler.api.selectors import LabelSelector
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.preemption.plan import PreemptionPlan, plan_preemption
from topo_scheduler.scheduling.preemption.shares import ReservationShare, ReservationShares
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidates, Key, candidates_below
from topo_scheduler.state.nodes.resources import CPU, GPU, PODS
from topo_scheduler.state.pods.disruption_budgets import Budgets
from topo_scheduler.state.pods.pod_groups import Disruption
from topo_scheduler.state.pods.profiles import ANY_ADDRESS, Port
from topo_scheduler.state.pods.victim_info import VictimInfo
from topo_scheduler.state.pods.workloads import Member, Stage, Workload, Workloads

NOW_SECONDS = 1_000_000.0


@dataclass(frozen=True)
class RunningPod:
    """A pod that runs since ``ran`` seconds; ``budget`` names the PodDisruptionBudget that covers it."""

    node: str
    gpus: int = 8
    priority: int = 0
    ran: int = 100
    gang: str = ""
    budget: str = ""
    cpu: int = 0
    terminating: bool = False
    daemon: bool = False
    port: int = 0


class PreemptionScene:
    """A cluster with running pods that the planner may preempt."""

    def __init__(self, small: Small, held: Sequence[RunningPod]) -> None:
        self.small = small
        self.workloads = Workloads()
        self.budgets = Budgets()
        self.spent: dict[str, int] = {}
        self.spared: set[str] = set()
        self.shares: list[ReservationShare] = []
        for number, running in enumerate(held):
            self._add(f"v{number}", running)

    def _add(self, name: str, running: RunningPod) -> None:
        world = self.small.world
        labels = {"budget": running.budget} if running.budget else {}
        ports = (Port(ANY_ADDRESS, "TCP", running.port),) if running.port else ()
        profile = world.pod_index.profile("default", labels, ports=ports)
        asked = ((CPU, running.cpu), (PODS, 1), (GPU, running.gpus))
        amounts = tuple((column, amount) for column, amount in asked if amount)
        world.ledger.confirm(name, running.node, amounts, daemon=running.daemon, profile=profile)
        started = NOW_SECONDS - running.ran
        world.ledger.occupy(
            VictimInfo("default", name, name, running.priority, started, 30, running.terminating, fixed=running.daemon)
        )
        if running.gang:
            member = Member(name, "default", name, pods(), running.priority, 0, 0, stage=Stage.BOUND, node=running.node)
            template = Workload(running.gang, "default", running.gang, "test", 1, PlacementRequest(), gang=True)
            self.workloads.join(template, member, describes=False)

    def gang(self, name: str, least: int, mode: str = "pod") -> None:
        """Set how many members a gang needs."""
        workload = self.workloads.get(name)
        assert workload is not None
        workload.size, workload.disruption_mode = least, Disruption(mode)

    def budget(self, name: str, allowed: int) -> None:
        selector = LabelSelector(match_labels={"budget": name})
        meta = ObjectMeta(name=name, namespace="default", generation=1)
        assert not self.budgets.put(DisruptionBudget(meta, BudgetSpec(selector), BudgetStatus(allowed, 1)))

    def candidates(self, priority: int = 10) -> Candidates:
        world = self.small.world
        return candidates_below(
            priority, world, self.workloads, self.budgets, self.spent, self.spared.__contains__, (), NOW_SECONDS
        )

    def plan(self, ask: PlacementQuery, priority: int = 10) -> PreemptionPlan | None:
        layout, candidates = self.small.world.layout, self.candidates(priority)
        return plan_preemption(self.small.planner, ask, layout, candidates, 0, self.shares)

    def victims(self, ask: PlacementQuery, priority: int = 10) -> list[str]:
        """Return the names of the victims, or fail."""
        plan = self.plan(ask, priority)
        assert plan is not None
        return sorted(victim.occupant.name for victim in plan.victims)

    def cheapest(self, ask: PlacementQuery, priority: int = 10) -> Key | None:
        """Return the least key of all sets of victims with which the planner finds a place: by trying them all."""
        candidates = self.candidates(priority)
        trial = Trial(
            self.small.planner, self.small.world.layout, 0, neighbours=True, shares=ReservationShares(self.shares)
        )
        trial.remove(candidates.leaving)
        numbers = range(len(candidates.pods))
        best: Key | None = None
        for size in range(1, len(numbers) + 1):
            for chosen in combinations(numbers, size):
                if candidates.closed(chosen) != list(chosen):
                    continue
                key = candidates.key(chosen)
                if best is not None and key >= best:
                    continue
                if trial.place_without([candidates.pods[n] for n in chosen], ask) is not None:
                    best = key
        return best


def preemption_scene(nodes: int, *held: RunningPod, leaves: int = 1) -> PreemptionScene:
    """Return a scene of one spine with this number of leaves, and of nodes in each."""
    return PreemptionScene(Small(grid(1, leaves, nodes)), held)


@st.composite
def running_pods(draw: st.DrawFn, gangs: bool, budgets: bool) -> list[RunningPod]:
    """Draw running pods on the nodes of a fabric of two leaves with two nodes of 4 GPUs each."""
    free = Counter({f"s1l{leaf}n{n}": 4 for leaf in (1, 2) for n in (1, 2)})
    drawn = []
    for _ in range(draw(st.integers(3, 8))):
        node = draw(st.sampled_from(sorted(free)))
        gpus = draw(st.integers(1, 4))
        if free[node] >= gpus:
            free[node] -= gpus
            drawn.append(
                RunningPod(
                    node,
                    gpus,
                    priority=draw(st.sampled_from([0, 0, 0, 1, 2])),
                    ran=draw(st.sampled_from([0, 10, 10, 20, 300])),
                    gang=draw(st.sampled_from(["", "g", "h"])) if gangs else "",
                    budget=draw(st.sampled_from(["", "b", "c"])) if budgets else "",
                )
            )
    return drawn


placement_queries = st.one_of(
    st.integers(1, 4).map(single),
    st.builds(gang, st.integers(2, 4), st.integers(1, 4), required=st.booleans()),
)
