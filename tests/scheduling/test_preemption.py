"""Who gives way: the order in which sets of victims are compared, and the least of all sets by trying them all."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import make_node
from tests.scheduling.planning import Small, gang, grid, pods, single
from topo_scheduler.api.annotations import PlacementRequest
from topo_scheduler.api.objects import BudgetSpec, BudgetStatus, DisruptionBudget, ObjectMeta
from topo_scheduler.api.selectors import LabelSelector
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.preemption.plan import PreemptionPlan, plan_preemption
from topo_scheduler.scheduling.preemption.shares import ReservationShare, ReservationShares
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidates, Key, candidates_below
from topo_scheduler.state.nodes.resources import CPU, GPU, PODS
from topo_scheduler.state.pods.constraints import Constraints
from topo_scheduler.state.pods.disruption_budgets import Budgets
from topo_scheduler.state.pods.pod_groups import Disruption
from topo_scheduler.state.pods.pod_index import ANY_ADDRESS, Port
from topo_scheduler.state.pods.victim_info import Occupant
from topo_scheduler.state.pods.workloads import Member, Stage, Workload, Workloads

NOW = 1_000_000.0


@dataclass(frozen=True)
class Held:
    """A pod that runs. ``ran`` seconds; ``budget`` the name of one that guards it."""

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


class Scene:
    """A cluster with pods that may give way."""

    def __init__(self, small: Small, held: Sequence[Held]) -> None:
        self.small = small
        self.workloads = Workloads()
        self.budgets = Budgets()
        self.spent: dict[str, int] = {}
        self.spared: set[str] = set()
        self.shares: list[ReservationShare] = []
        for number, one in enumerate(held):
            self._add(f"v{number}", one)

    def _add(self, name: str, one: Held) -> None:
        world = self.small.world
        labels = {"budget": one.budget} if one.budget else {}
        ports = (Port(ANY_ADDRESS, "TCP", one.port),) if one.port else ()
        profile = world.residents.profile("default", labels, ports=ports)
        asked = ((CPU, one.cpu), (PODS, 1), (GPU, one.gpus))
        amounts = tuple((column, amount) for column, amount in asked if amount)
        world.ledger.confirm(name, one.node, amounts, daemon=one.daemon, profile=profile)
        started = NOW - one.ran
        world.ledger.occupy(
            Occupant("default", name, name, one.priority, started, 30, one.terminating, fixed=one.daemon)
        )
        if one.gang:
            member = Member(name, "default", name, pods(), one.priority, 0, 0, stage=Stage.BOUND, node=one.node)
            template = Workload(one.gang, "default", one.gang, "test", 1, PlacementRequest(), gang=True)
            self.workloads.join(template, member, describes=False)

    def gang(self, name: str, least: int, mode: str = "pod") -> None:
        """Tell of a gang how many members it needs."""
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
            priority, world, self.workloads, self.budgets, self.spent, self.spared.__contains__, (), NOW
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


def scene(nodes: int, *held: Held, leaves: int = 1) -> Scene:
    return Scene(Small(grid(1, leaves, nodes)), held)


# ---------------------------------------------------------------- the order, word by word


def test_the_highest_priority_of_a_victim_comes_first() -> None:
    s = scene(2, Held("s1l1n1", priority=5, ran=1), *(Held("s1l1n2", gpus=1, ran=10_000) for _ in range(8)))
    assert s.victims(single(8)) == [f"v{n}" for n in range(1, 9)]


def test_then_fewer_gangs_are_broken() -> None:
    s = scene(2, Held("s1l1n1", ran=1, gang="g"), Held("s1l1n2", ran=10_000))
    s.gang("g", 1)
    assert s.victims(single(8)) == ["v1"]


def test_a_gang_that_keeps_its_minimum_is_not_broken() -> None:
    s = scene(2, Held("s1l1n1", gpus=4, ran=1, gang="g"), Held("s1l1n1", gpus=4, gang="g"), Held("s1l1n2", ran=2))
    s.gang("g", 1)
    assert s.victims(single(4)) == ["v0"]


def test_then_less_gpu_time_is_lost() -> None:
    s = scene(2, Held("s1l1n1", ran=1000), *(Held("s1l1n2", gpus=1, ran=900) for _ in range(8)))
    assert s.victims(single(8)) == [f"v{n}" for n in range(1, 9)]


def test_then_fewer_pods_go() -> None:
    s = scene(2, *(Held("s1l1n1", gpus=4, ran=100) for _ in range(2)), Held("s1l1n2", ran=100))
    assert s.victims(single(8)) == ["v2"]


def test_then_the_youngest() -> None:
    s = scene(2, Held("s1l1n1", gpus=0, cpu=60_000, ran=500), Held("s1l1n2", gpus=0, cpu=60_000, ran=100))
    assert s.victims(PlacementQuery([(pods(0, cpu=50_000), 1)], gang=False)) == ["v1"]


def test_then_the_name() -> None:
    s = scene(3, Held("s1l1n3"), Held("s1l1n1"), Held("s1l1n2"))
    assert s.victims(single(8)) == ["v0"]


# ---------------------------------------------------------------- what is never done


def test_nobody_of_equal_or_higher_priority_gives_way() -> None:
    s = scene(2, Held("s1l1n1", priority=10), Held("s1l1n2", priority=11))
    assert s.plan(single(8)) is None


def test_a_budget_is_never_violated() -> None:
    s = scene(2, *(Held("s1l1n1", gpus=4, ran=1, budget="b") for _ in range(2)), Held("s1l1n2", ran=10_000))
    s.budget("b", 1)
    assert s.victims(single(8)) == ["v2"]
    assert s.victims(single(4)) == ["v0"]
    s.spent["default/b"] = 1
    assert s.victims(single(4)) == ["v2"]


def test_a_budget_that_blocks_for_ever_is_named() -> None:
    s = scene(1, Held("s1l1n1", budget="b"))
    s.budget("b", 0)
    assert s.plan(single(8)) is None
    assert s.candidates().shielded == {"default/b": 1}


def test_a_pod_with_two_budgets_stays() -> None:
    s = scene(1, Held("s1l1n1", budget="b"))
    s.budget("b", 5)
    everything = DisruptionBudget(
        ObjectMeta("all", "default", generation=1), BudgetSpec(LabelSelector()), BudgetStatus(5, 1)
    )
    s.budgets.put(everything)
    assert s.plan(single(8)) is None


def test_a_budget_whose_last_change_was_not_looked_at_allows_nothing() -> None:
    s = scene(1, Held("s1l1n1", budget="b"))
    meta = ObjectMeta(name="b", namespace="default", generation=2)
    s.budgets.put(DisruptionBudget(meta, BudgetSpec(LabelSelector({"budget": "b"})), BudgetStatus(5, 1)))
    assert s.plan(single(8)) is None


def test_a_pod_of_a_daemonset_stays() -> None:
    assert scene(1, Held("s1l1n1", daemon=True, gpus=0, cpu=60_000)).candidates().pods == []


def test_who_is_spared_stays() -> None:
    s = scene(2, Held("s1l1n1", ran=1), Held("s1l1n2", ran=2))
    s.spared.add("v0")
    assert s.victims(single(8)) == ["v1"]


def test_no_more_go_while_enough_are_going() -> None:
    s = scene(2, Held("s1l1n1", terminating=True), Held("s1l1n2"))
    plan = s.plan(single(8))
    assert plan is not None
    assert plan.victims == ()
    assert [pod.occupant.name for pod in plan.awaited] == ["v0"]


# ---------------------------------------------------------------- gangs


def test_a_domain_is_cleared_as_one() -> None:
    """One leaf has three free nodes and a costly pod, the other four cheap ones: one victim is enough there."""
    s = scene(4, *(Held(f"s1l1n{n}", ran=10) for n in (1, 2, 3, 4)), Held("s1l2n1", ran=100_000), leaves=2)
    assert s.victims(gang(4)) == ["v0", "v1", "v2", "v3"]


def test_a_gang_that_only_prefers_one_domain_takes_the_least_anywhere() -> None:
    s = scene(2, *(Held(f"s1l1n{n}", ran=100) for n in (1, 2)), *(Held(f"s1l2n{n}", ran=n) for n in (1, 2)), leaves=2)
    assert s.victims(gang(2)) == ["v2", "v3"]
    s = scene(2, Held("s1l1n1", ran=1), Held("s1l1n2", ran=9), Held("s1l2n1", ran=1), Held("s1l2n2", ran=9), leaves=2)
    assert s.victims(gang(2, required=False)) == ["v0", "v2"]


def test_a_gang_is_broken_only_where_no_other_way_is_left() -> None:
    s = scene(
        4,
        *(Held(f"s1l1n{n}", ran=10, gang="g") for n in (1, 2, 3, 4)),
        *(Held(f"s1l2n{n}", ran=1000) for n in (1, 2, 3, 4)),
        leaves=2,
    )
    s.gang("g", 4)
    assert s.victims(gang(2)) == ["v4", "v5"]


def test_a_gang_goes_whole_when_its_mode_says_so() -> None:
    s = scene(2, *(Held(f"s1l{leaf}n{n}", gang="g") for leaf in (1, 2) for n in (1, 2)), leaves=2)
    s.gang("g", 3)
    assert len(s.victims(gang(2))) == 2
    s.gang("g", 3, "gang")
    assert len(s.victims(gang(2))) == 4
    assert len(s.victims(single(8))) == 1, "it keeps its minimum"
    s.gang("g", 2, "gang")
    assert len(s.victims(gang(2))) == 2


def test_a_gang_that_must_go_whole_stays_when_a_member_must_stay() -> None:
    s = scene(1, Held("s1l1n1", gang="g"), Held("s1l2n1", gang="g", priority=20), leaves=2)
    s.gang("g", 2, "gang")
    assert s.plan(single(8)) is None


def test_limits_per_leaf_hold() -> None:
    small = Small(grid(1, 4, 3), max_nodes=2)
    s = Scene(small, [Held(f"s1l{leaf}n{n}", ran=leaf * 10 + n) for leaf in (1, 2, 3, 4) for n in (1, 2, 3)])
    plan = s.plan(gang(4))
    assert plan is not None
    assert sorted(v.occupant.name for v in plan.victims) == ["v0", "v1", "v3", "v4"]


def test_of_many_pods_with_a_budget_no_more_go_than_it_allows() -> None:
    guarded = [Held(f"s1l1n{n}", ran=n, budget="b") for n in (1, 2, 3, 4)]
    small = [Held("s1l1n7", gpus=1, ran=5000) for _ in range(8)]
    s = scene(7, *guarded, Held("s1l1n5", ran=1000), Held("s1l1n6", ran=2000), *small)
    s.budget("b", 1)
    assert s.victims(gang(2)) == ["v0", "v4"]
    s.budget("b", 2)
    assert s.victims(gang(2)) == ["v0", "v1"]


def test_of_many_gangs_those_are_broken_that_lose_least() -> None:
    """More than can be tried in every combination."""
    s = scene(8, *(Held(f"s1l1n{n}", gpus=4, ran=1000 - 100 * n, gang=f"g{n}") for n in range(1, 9) for _ in range(2)))
    for n in range(1, 9):
        s.gang(f"g{n}", 2)
    assert s.victims(gang(2)) == ["v12", "v13", "v14", "v15"]


def test_of_many_candidates_that_lose_as_much_the_fewest_go() -> None:
    s = scene(
        4,
        *(Held("s1l1n1", gpus=4) for _ in range(2)),
        *(Held(f"s1l1n{n}") for n in (2, 3)),
        *(Held("s1l1n4", gpus=1, ran=10_000) for _ in range(8)),
    )
    assert s.victims(gang(2)) == ["v2", "v3"]


def test_of_gangs_that_go_whole_and_lose_as_much_that_of_fewer_pods_goes() -> None:
    """Five pods of 24 GPUs, three of them elsewhere, or six of 16 GPUs that have run for longer."""
    fewer = [Held(node, gpus=gpus, ran=200, gang="fewer") for node, gpus in (("s1l1n1", 8), ("s1l1n2", 8))]
    fewer += [Held("s1l2n1", gpus=gpus, ran=200, gang="fewer") for gpus in (4, 2, 2)]
    more = [Held(node, gpus=gpus, ran=300, gang="more") for node in ("s1l1n3", "s1l1n4") for gpus in (4, 2, 2)]
    s = scene(4, *fewer, *more, *(Held(f"s1l2n{n}", priority=10) for n in (2, 3, 4)), leaves=2)
    s.gang("fewer", 5, "gang")
    s.gang("more", 6, "gang")
    assert s.victims(gang(2)) == [f"v{n}" for n in range(5)]


def test_members_of_one_node_are_counted_together() -> None:
    held = [Held(f"s1l1n{n}", gpus=2, ran=10 * n + k) for n in (1, 2, 3, 4) for k in range(4)]
    s = scene(4, *held)
    assert s.victims(gang(3, 4)) == ["v0", "v1", "v2", "v3", "v4", "v5"]


def test_a_lost_member_is_given_room_beside_the_others() -> None:
    s = scene(2, Held("s1l1n2", ran=1000), Held("s1l2n1", ran=1), Held("s1l2n2", ran=1), leaves=2)
    s.small.hold("s1l1n1", gpus=8)
    assert s.victims(gang(1, running=s.small.rows("s1l1n1"))) == ["v0"]


# ---------------------------------------------------------------- other rules


def test_a_port_is_made_free() -> None:
    s = scene(2, Held("s1l1n1", gpus=1, ran=100, port=80), Held("s1l1n2", gpus=1, ran=10, port=80))
    cls = replace(pods(1), constraints=Constraints("default", ports=(Port(ANY_ADDRESS, "TCP", 80),)))
    assert s.victims(PlacementQuery([(cls, 1)], gang=False)) == ["v1"]
    assert len(s.victims(PlacementQuery([(cls, 2)], gang=True))) == 2


def test_by_trial_too_a_gang_that_takes_a_higher_priority_along_counts_as_that() -> None:
    held = [Held("s1l1n1", gpus=2, priority=1), Held("s1l1n2", gang="g"), Held("s1l1n3", priority=1, gang="g")]
    s = scene(3, *held)
    s.gang("g", 2, "gang")
    cls = replace(pods(8), constraints=Constraints("default", ports=(Port(ANY_ADDRESS, "TCP", 80),)))
    assert s.victims(PlacementQuery([(cls, 1)], gang=False)) == ["v0"]


def test_a_gang_of_different_pods_is_given_room() -> None:
    s = scene(3, *(Held(f"s1l1n{n}", ran=n) for n in (1, 2, 3)))
    launcher = pods(0, cpu=1000)
    assert s.victims(PlacementQuery([(pods(8), 2), (launcher, 1)], gang=True)) == ["v0", "v1"]


def test_a_gang_whose_members_keep_apart_is_given_room() -> None:
    s = scene(2, *(Held(f"s1l1n{n}", gpus=4, ran=n * 10 + k) for n in (1, 2) for k in (1, 2)))
    cls = replace(pods(4), constraints=Constraints("default", ports=(Port(ANY_ADDRESS, "TCP", 80),)))
    assert s.victims(PlacementQuery([(cls, 2)], gang=True)) == ["v0", "v2"]


def test_a_gang_of_different_pods_needs_no_more_room_than_it_takes() -> None:
    """Three members of the larger kind would not even fit the fabric."""
    s = scene(2, Held("s1l1n1"), Held("s1l1n2"))
    assert len(s.victims(PlacementQuery([(pods(8), 2), (pods(0, cpu=1000), 1)], gang=True))) == 2


def test_a_node_that_may_not_be_used_is_not_cleared() -> None:
    nodes = [make_node("a", "s1/l1", unschedulable=True), make_node("b", "s1/l1")]
    s = Scene(Small(nodes), [Held("a", ran=1), Held("b", ran=1000)])
    assert s.victims(single(8)) == ["v1"]


# ---------------------------------------------------------------- against all sets


@st.composite
def helds(draw: st.DrawFn, gangs: bool, budgets: bool) -> list[Held]:
    free = Counter({f"s1l{leaf}n{n}": 4 for leaf in (1, 2) for n in (1, 2)})
    found = []
    for _ in range(draw(st.integers(3, 8))):
        node = draw(st.sampled_from(sorted(free)))
        gpus = draw(st.integers(1, 4))
        if free[node] >= gpus:
            free[node] -= gpus
            found.append(
                Held(
                    node,
                    gpus,
                    priority=draw(st.sampled_from([0, 0, 0, 1, 2])),
                    ran=draw(st.sampled_from([0, 10, 10, 20, 300])),
                    gang=draw(st.sampled_from(["", "g", "h"])) if gangs else "",
                    budget=draw(st.sampled_from(["", "b", "c"])) if budgets else "",
                )
            )
    return found


asks = st.one_of(
    st.integers(1, 4).map(single),
    st.builds(gang, st.integers(2, 4), st.integers(1, 4), required=st.booleans()),
)


@pytest.mark.parametrize("small_too", [True, False], ids=["every set", "by domain"])
@given(data=st.data(), ask=asks, slack=st.integers(0, 1), mode=st.sampled_from(["pod", "gang"]))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_other_set_costs_less(
    small_too: bool, monkeypatch: pytest.MonkeyPatch, data: st.DataObject, ask: PlacementQuery, slack: int, mode: str
) -> None:
    """Exact on a small cluster. By nodes and domains it is so too, but for what budgets and spare members tie."""
    with pytest.MonkeyPatch.context() as patch:
        if not small_too:
            patch.setattr("topo_scheduler.scheduling.preemption.clearing.EVERY_SET_OF_A_DOMAIN", -1)
            slack, mode = 0, "pod"
        held = data.draw(helds(gangs=True, budgets=small_too))
        s = Scene(Small(grid(1, 2, 2, gpus=4)), held)
        for name, count in Counter(one.gang for one in held if one.gang).items():
            s.gang(name, max(1, count - slack), mode)
        for name in ("b", "c"):
            s.budget(name, data.draw(st.integers(0, 2)))
        if isinstance(s.small.plan(ask), Placement):
            return
        plan, best = s.plan(ask), s.cheapest(ask)
        assert (plan is None) == (best is None)
        if plan is not None and best is not None and plan.key is not None:
            parts = 6 if small_too else 4
            assert plan.key[:parts] == best[:parts]


@given(data=st.data(), every_set=st.sampled_from([5, 0]))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_port_is_made_free_at_the_least_cost(data: st.DataObject, every_set: int) -> None:
    """By trial; where not every set is tried, at least nobody goes who could stay."""
    held = [
        replace(one, port=data.draw(st.sampled_from([0, 80]))) for one in data.draw(helds(gangs=True, budgets=True))
    ]
    cls = replace(
        pods(data.draw(st.integers(1, 3))), constraints=Constraints("default", ports=(Port(ANY_ADDRESS, "TCP", 80),))
    )
    ask = PlacementQuery([(cls, 1)], gang=False)
    s = Scene(Small(grid(1, 2, 2, gpus=4)), held)
    for name in ("b", "c"):
        s.budget(name, data.draw(st.integers(0, 2)))
    if isinstance(s.small.plan(ask), Placement):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topo_scheduler.scheduling.preemption.reprieve.EVERY_SET", every_set)
        plan, best = s.plan(ask), s.cheapest(ask)
    if every_set:
        assert (plan is None) == (best is None)
    if plan is None or best is None or plan.key is None:
        return
    assert plan.key[0] == best[0]
    if every_set:
        assert plan.key == best
    trial = Trial(s.small.planner, s.small.world.layout, 0, neighbours=True)
    for spared in plan.victims:
        rest = [victim for victim in plan.victims if victim is not spared]
        assert trial.place_without(rest, ask) is None


@given(data=st.data(), ask=asks)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_plan_makes_room_and_breaks_no_budget(data: st.DataObject, ask: PlacementQuery) -> None:
    held = data.draw(helds(gangs=True, budgets=True))
    s = Scene(Small(grid(1, 2, 2, gpus=4)), held)
    allowed = {name: data.draw(st.integers(0, 2)) for name in ("b", "c")}
    for name, count in allowed.items():
        s.budget(name, count)
    before = s.small.world.nodes.requested.copy()
    plan = s.plan(ask)
    assert (s.small.world.nodes.requested == before).all(), "planning changes nothing"
    if plan is None:
        return
    spent = Counter(held[int(v.occupant.name[1:])].budget for v in plan.victims)
    assert all(spent[name] <= count for name, count in allowed.items())
    for victim in plan.victims:
        s.small.world.ledger.release(victim.occupant.uid)
    assert isinstance(s.small.plan(ask), Placement)
