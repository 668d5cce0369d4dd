"""Gangs whose members request different things are placed as one, within the rules, or not at all."""

from collections import defaultdict
from collections.abc import Sequence

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.helpers import make_node
from tests.scheduling.heterogeneous_reference import (
    ClassCounts,
    ExhaustivePlacement,
    compare_with_exhaustive,
    pod_classes,
)
from tests.scheduling.planning import Small, grid, pods, small_of
from tests.scheduling.reference import Machine, Want
from tests.scheduling.reference_clusters import clusters
from topo_scheduler.api.annotations import Enforcement, PlacementStrategy
from topo_scheduler.scheduling.placing.checks.validation import check
from topo_scheduler.scheduling.placing.model.placement_query import (
    Placement,
    PlacementFailure,
    PlacementQuery,
    SizeRuleLimits,
)
from topo_scheduler.state.nodes.resources import CPU
from topo_scheduler.state.pods.classes import PodClass


def mixed(
    groups: ClassCounts, *, required: bool = True, running: Sequence[int] = (), any_model: bool = False
) -> PlacementQuery:
    enforcement = Enforcement.REQUIRED if required else Enforcement.PREFERRED
    return PlacementQuery(groups, gang=True, enforcement=enforcement, running=running, mixed_models=any_model)


def by_group(small: Small, ask: PlacementQuery) -> list[list[str]]:
    placement = small.plan(ask)
    assert isinstance(placement, Placement), placement
    return [[small.world.nodes.names[row] for row in rows] for rows in placement.rows]


LAUNCHER = pods(0, cpu=1000)
WORKER = pods(8)


def test_a_launcher_stands_in_the_leaf_of_its_workers() -> None:
    small = Small(grid(2, 2, 2))
    small.hold("s1l1n1", gpus=1)
    workers, (launcher,) = by_group(small, mixed([(WORKER, 2), (LAUNCHER, 1)]))
    assert len(set(workers)) == 2
    assert {name[:4] for name in workers} == {launcher[:4]}


def test_the_rule_counts_all_members() -> None:
    small = Small(grid(1, 3, 2))
    placement = small.plan(mixed([(WORKER, 3), (pods(4), 2)]))
    assert isinstance(placement, Placement)
    assert placement.rule.leaves == len(placement.leaves) == 2


def test_it_waits_for_its_leaves_and_takes_more_only_where_it_may() -> None:
    small = Small(grid(1, 3, 2))
    for leaf in (1, 2, 3):
        small.hold(f"s1l{leaf}n1", gpus=8)
    groups = [(WORKER, 1), (pods(4), 2)]
    assert isinstance(small.plan(mixed(groups)), PlacementFailure)
    placement = small.plan(mixed(groups, required=False))
    assert isinstance(placement, Placement)
    assert len(placement.leaves) == 2


def test_larger_than_the_cluster() -> None:
    failure = Small(grid(1, 2, 2)).plan(mixed([(WORKER, 4), (pods(1), 1)]))
    assert isinstance(failure, PlacementFailure)
    assert "larger than the cluster" in failure.sentence


def test_a_cluster_without_nodes_holds_nothing() -> None:
    assert isinstance(Small([]).plan(mixed([(WORKER, 1), (LAUNCHER, 1)])), PlacementFailure)


def test_one_model_for_all_that_ask_for_gpus() -> None:
    nodes = [make_node("x-a", "s/l", model="A", gpus=8), make_node("y-h", "s/l", model="H", gpus=8)]
    nodes += [make_node("z-h", "s/l", model="H", gpus=8), make_node("cpu", "s/l", gpus=0)]
    small = Small(nodes)
    eights, ones, (launcher,) = by_group(small, mixed([(pods(8), 1), (pods(1), 8), (LAUNCHER, 1)]))
    assert {name[2:] for name in (*eights, *ones)} == {"h"}
    assert launcher
    small.hold("z-h", gpus=8)
    assert isinstance(small.plan(mixed([(pods(8), 1), (pods(1), 8)])), PlacementFailure)
    assert isinstance(small.plan(mixed([(pods(8), 1), (pods(1), 8)], any_model=True)), Placement)


def test_one_model_even_where_only_one_of_the_classes_is_bound_to_it() -> None:
    # The large ones fit on H only; the small ones would fit on A as well, and must not go there.
    nodes = [make_node("a", "s/l", model="A", gpus=4), make_node("h", "s/l", model="H", gpus=8)]
    pinned = PodClass(pods(8).amounts, models=("H",))
    small = Small([*nodes, make_node("h2", "s/l", model="H", gpus=8)])
    eights, ones = by_group(small, mixed([(pinned, 1), (pods(4), 1)]))
    assert {*eights, *ones} == {"h", "h2"}
    small.hold("h2", gpus=8)
    assert isinstance(small.plan(mixed([(pinned, 1), (pods(4), 1)])), PlacementFailure)


def test_lost_members_come_back_near_those_that_run() -> None:
    small = Small(grid(3, 2, 2))
    for name in ("s2l1n1", "s2l1n2"):
        small.hold(name, gpus=8)
    ask = mixed([(WORKER, 1), (pods(2), 1)], running=small.rows("s2l1n1", "s2l1n2"))
    assert {name[:4] for group in by_group(small, ask) for name in group} == {"s2l2"}


# ---------------------------------------------------------------- whatever the cluster


@settings(deadline=None, max_examples=200)
@given(
    clusters(),
    st.lists(st.tuples(pod_classes, st.integers(1, 3)), min_size=2, max_size=3, unique_by=lambda group: group[0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 4)]),
)
def test_all_members_are_placed_within_the_rules_or_none_is(
    machines: list[Machine], groups: ClassCounts, required: bool, any_model: bool, limits: tuple[int, int]
) -> None:
    max_nodes, max_gpus = limits
    small = small_of(machines, Want(1, 1, max_nodes=max_nodes, max_gpus=max_gpus))
    ask = mixed(groups, required=required, any_model=any_model)
    outcome = small.plan(ask)
    layout = small.world.layout
    if isinstance(outcome, PlacementFailure):
        event("no place")
        return
    event("placed")
    assert [len(rows) for rows in outcome.rows] == [count for _, count in groups]
    assert check(small.world.around, layout, ask, outcome, SizeRuleLimits(ask.enforcement, max_nodes, max_gpus)) == ""
    used: defaultdict[str, list[PodClass]] = defaultdict(list)
    for (cls, _), rows in zip(groups, outcome.rows, strict=True):
        for row in rows:
            used[small.world.nodes.names[row]].append(cls)
    by_name = {machine.name: machine for machine in machines}
    for name, held in used.items():
        machine = by_name[name]
        assert machine.usable
        assert sum(cls.gpus for cls in held) <= machine.gpus - machine.used_gpus
        assert sum(cls.amount(0) for cls in held) <= max(0, machine.cpu - machine.used_cpu)
    if not any_model:
        assert len({by_name[name].model for name, held in used.items() if any(cls.gpus for cls in held)}) <= 1
    for leaf in {machine.place for machine in machines}:
        names = [name for name in used if by_name[name].place == leaf]
        assert not max_nodes or len(names) <= max_nodes
        assert not max_gpus or sum(cls.gpus for name in names for cls in used[name]) <= max_gpus
    leaves = {by_name[name].place for name in used}
    if required:
        assert len(leaves) <= outcome.rule.leaves
        assert len({leaf[: outcome.rule.depth] for leaf in leaves}) == 1


# ---------------------------------------------------------------- against every way to place them


@settings(deadline=None, max_examples=150)
@given(
    clusters(),
    st.lists(st.tuples(pod_classes, st.integers(1, 4)), min_size=2, max_size=3, unique_by=lambda group: group[0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 4)]),
)
def test_on_small_clusters_no_place_is_missed_and_none_is_better(
    machines: list[Machine], groups: ClassCounts, required: bool, any_model: bool, limits: tuple[int, int]
) -> None:
    every = ExhaustivePlacement(machines, by_demand(groups), limits, any_model=any_model)
    small = small_of(machines, Want(1, 1, max_nodes=limits[0], max_gpus=limits[1]))
    compare_with_exhaustive(every, small, mixed(by_demand(groups), required=required, any_model=any_model))


def by_demand(groups: ClassCounts) -> ClassCounts:
    """As the engine hands groups over: the most demanding class first."""
    return sorted(groups, key=lambda group: (-group[0].gpus, -group[0].amount(CPU)))


@settings(deadline=None, max_examples=60)
@given(
    clusters(), st.lists(st.tuples(pod_classes, st.integers(1, 2)), min_size=2, max_size=2, unique_by=lambda g: g[0])
)
def test_on_an_empty_cluster_it_is_placed_or_too_large(machines: list[Machine], groups: ClassCounts) -> None:
    small = small_of(
        [Machine(m.name, m.place, m.gpus, m.cpu, model=m.model, usable=m.usable) for m in machines], Want(1, 1)
    )
    outcome = small.plan(mixed(groups))
    assert isinstance(outcome, Placement) or "larger than the cluster" in outcome.sentence


def test_strategies_do_not_keep_it_from_being_placed() -> None:
    for strategy in PlacementStrategy:
        small = Small(grid(1, 2, 2))
        ask = PlacementQuery([(WORKER, 2), (LAUNCHER, 2)], gang=True, strategy=strategy)
        assert isinstance(small.plan(ask), Placement)
