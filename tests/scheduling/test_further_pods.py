"""Further pods of a gang that runs in part: preemption makes room wherever the planner would place them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import fabric_driver
from tests.scheduling.planning import Small, gang, grid, pods
from tests.scheduling.preemption_scenes import PreemptionScene, RunningPod
from tests.scheduling.running_pods import run_pod
from topo_scheduler.scheduling.moving.plan import by_domain
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.preemption.trial import Trial

GANG = {"topology.scheduler/gang-name": "g", "topology.scheduler/gang-size": "2"}
SPARED = 20
"""A priority above that of the asking gang, 10."""


def makes_room(scene: PreemptionScene, ask: PlacementQuery) -> bool:
    """Return whether the planner finds a place without all pods of lower priority."""
    trial = Trial(scene.small.planner, scene.small.world.layout, 0, neighbours=True)
    return trial.place_without(scene.candidates().pods, ask) is not None


# ---------------------------------------------------------------- many small members


@pytest.mark.parametrize(("nodes", "small_members"), [(4, 2), (4, 3), (4, 4), (4, 9), (8, 8)])
def test_a_further_pod_gets_room_whatever_the_number_of_small_members(nodes: int, small_members: int) -> None:
    """Members of that size would not all fit the leaf."""
    d = fabric_driver({"s1/l1": nodes})
    small = [make_pod(f"small-{n}", gpus=0, annotations=GANG, priority=10) for n in range(small_members)]
    d.apply(*small)
    d.settle(1)
    assert len(d.where(*small)) == small_members
    low = [run_pod(d, f"low-{n}", f"s1-l1-{n}") for n in range(1, nodes + 1)]
    large = make_pod("large", gpus=8, annotations=GANG, priority=10)
    d.apply(large)
    d.step(1)
    assert len(d.preempted()) == 1
    d.evict(*(pod for pod in low if pod.metadata.name in d.preempted()))
    d.settle(1)
    assert set(d.where(large)) == {"large"}


def test_moves_make_room_for_a_further_pod_beside_many_small_members() -> None:
    held = [RunningPod(f"s1l1n{n}", gpus=4) for n in (1, 2, 3, 4) for _ in range(2)]
    held += [RunningPod("s1l1n4", gpus=0, cpu=1) for _ in range(4)]
    s = PreemptionScene(Small(grid(1, 1, 4)), held)
    ask = gang(1, running=s.small.rows(*(f"s1l1n{n}" for n in (1, 2, 3, 4))))
    trial = Trial(s.small.planner, s.small.world.layout, 0, neighbours=False)
    sets = [chosen for chosen in by_domain(trial, ask, s.small.world.layout, s.candidates(), 3) if chosen is not None]
    assert (0, 1) in sets


# ---------------------------------------------------------------- near the members that run


def test_many_cheaper_pods_in_leaves_that_the_gang_may_not_use_hide_no_victim() -> None:
    """More than the search tries: 18 nodes of other leaves, and a costly pod beside the gang."""
    cheap = [RunningPod(f"s1l{leaf}n{n}", ran=1) for leaf in range(2, 8) for n in (1, 2, 3)]
    s = PreemptionScene(Small(grid(1, 7, 3)), [*cheap, *(RunningPod(f"s1l1n{n}", ran=9000) for n in (2, 3))])
    s.small.hold("s1l1n1", gpus=8)
    beside = s.small.rows("s1l1n1")
    assert s.victims(gang(1, running=beside)) == ["v18"], "two nodes of this size fit one leaf"
    many = [*beside] * 9
    assert s.victims(gang(1, running=many))[0] not in {"v18", "v19"}, "no size rule: anywhere"
    assert s.victims(replace(gang(1, running=many), within=2, level="leaf")) == ["v18"]


@pytest.mark.parametrize(("required", "within"), [(True, 0), (True, 1), (False, 1), (True, 2), (False, 2)])
def test_a_required_level_is_kept_beside_many_small_members(required: bool, within: int) -> None:
    cheap = [RunningPod(f"s2l{leaf}n{n}", ran=1) for leaf in (1, 2) for n in (1, 2)]
    costly = [RunningPod(f"s1l{leaf}n{n}", ran=1000 * (3 - leaf)) for leaf in (2, 1) for n in (1, 2)]
    s = PreemptionScene(Small(grid(2, 2, 2)), [*cheap, *costly])
    ask = gang(1, required=required, running=s.small.rows(*["s1l1n1", "s1l1n2"] * 5))
    ask = replace(ask, within=within, level=("", "spine", "leaf")[within])
    expected = {0: {"v0", "v1", "v2", "v3"}, 1: {"v4", "v5"}, 2: {"v6", "v7"}}[within]
    assert set(s.victims(ask)) <= expected


def test_nodes_that_the_gang_uses_count_against_the_limit_of_a_leaf() -> None:
    held = [RunningPod("s1l1n1", ran=900), RunningPod("s1l1n2", ran=800), RunningPod("s1l1n3", ran=1)]
    s = PreemptionScene(Small(grid(1, 2, 3), max_nodes=2), [*held, RunningPod("s1l2n1", ran=5000)])
    s.small.hold("s1l2n2", gpus=8)
    s.small.hold("s1l2n3", gpus=8)
    assert s.victims(gang(1, running=s.small.rows("s1l1n1"))) == ["v2"]
    assert s.victims(gang(1, running=s.small.rows("s1l1n1", "s1l1n2"))) == ["v1"], "no third node of the leaf"
    assert s.victims(gang(2, running=s.small.rows("s1l1n1", "s1l1n1"))) == ["v0", "v2"]


def test_many_cheaper_pods_on_nodes_beyond_the_limit_hide_no_victim() -> None:
    held = [RunningPod(f"s1l1n{n}", ran=1) for n in range(2, 21)]
    s = PreemptionScene(Small(grid(1, 1, 20), max_nodes=1), [*held, RunningPod("s1l1n1", ran=9000)])
    assert s.victims(gang(1, running=s.small.rows("s1l1n1"))) == ["v19"]


def test_members_that_run_count_against_the_gpus_of_a_leaf() -> None:
    s = PreemptionScene(
        Small(grid(1, 2, 3), max_gpus=16), [RunningPod("s1l1n3", ran=1), *(RunningPod(f"s1l2n{n}") for n in (1, 2, 3))]
    )
    for node in ("s1l1n1", "s1l1n2"):
        s.small.hold(node, gpus=8)
    plan = s.plan(gang(1, running=s.small.rows("s1l1n1")))
    assert plan is not None
    assert [pod.occupant.name for pod in plan.victims] == ["v0"]
    assert s.victims(gang(1, required=False, running=s.small.rows("s1l1n1", "s1l1n2"))) in (["v1"], ["v2"], ["v3"])


def test_further_pods_of_several_classes_get_room_wherever_the_planner_places_them() -> None:
    """All pods beside the gang have a higher priority, and its size rule does not apply to further pods."""
    held = [RunningPod(f"s1l{leaf}n{n}", priority=SPARED) for leaf in (1, 2) for n in (1, 2)]
    s = PreemptionScene(Small(grid(2, 2, 2)), [*held, *(RunningPod(f"s2l1n{n}") for n in (1, 2))])
    s.small.hold("s2l2n1", gpus=8)
    s.small.hold("s2l2n2", gpus=8)
    ask = PlacementQuery([(pods(8), 1), (pods(4), 1)], gang=True, running=s.small.rows("s1l1n1"))
    assert makes_room(s, ask)
    assert s.victims(ask) == ["v4", "v5"]
    assert s.plan(replace(ask, within=1, level="spine")) is None


def test_a_gpu_model_on_which_the_size_rule_does_not_hold_hides_no_victim() -> None:
    """Two nodes of a leaf have model A, and each of seven leaves has a node of model B with a cheaper pod."""
    nodes = [make_node(f"a{n}", "s1/a", model="A") for n in (1, 2)]
    nodes += [make_node(f"b{n}", f"s1/b{n}", model="B") for n in range(7)]
    held = [RunningPod(f"a{n}", ran=5000) for n in (1, 2)] + [RunningPod(f"b{n}", ran=1) for n in range(7)]
    s = PreemptionScene(Small(nodes), held)
    assert s.victims(gang(2)) == ["v0", "v1"]


# ---------------------------------------------------------------- against removing all


@st.composite
def scenes(draw: st.DrawFn) -> tuple[PreemptionScene, Sequence[int]]:
    """Draw a small cluster with limits, pods that hold its nodes, and the rows of the members that run."""
    nodes = grid(*draw(st.sampled_from([(1, 1, 4), (1, 2, 2), (2, 2, 2), (2, 1, 3), (1, 3, 2)])))
    names = [node.metadata.name for node in nodes]
    small = Small(nodes, max_nodes=draw(st.sampled_from([0, 0, 1, 2])), max_gpus=draw(st.sampled_from([0, 0, 8, 16])))
    reach = draw(st.sampled_from([2, len(names)]))
    running = draw(st.lists(st.sampled_from(names[:reach]), min_size=1, max_size=5))
    held: list[RunningPod] = []
    for node in names:
        priorities, ages = st.sampled_from([0, 0, 1, SPARED]), st.sampled_from([10, 100, 1000])
        for gpus in draw(st.sampled_from([(), (8,), (8,), (4, 4)])):
            if len(held) < 9:
                held.append(RunningPod(node, gpus, priority=draw(priorities), ran=draw(ages)))
    return PreemptionScene(small, held), sorted(small.rows(*running))


@pytest.mark.parametrize("every_set", [True, False], ids=["every set", "by domain"])
@given(
    scene=scenes(),
    members=st.integers(1, 3),
    gpus=st.sampled_from([4, 8]),
    required=st.booleans(),
    within=st.sampled_from([0, 0, 1, 2]),
)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_further_pods_get_the_cheapest_room_whenever_removing_all_pods_makes_room(
    every_set: bool,
    scene: tuple[PreemptionScene, Sequence[int]],
    members: int,
    gpus: int,
    required: bool,
    within: int,
) -> None:
    s, running = scene
    ask = replace(gang(members, gpus, required=required, running=running), within=within, level="level")
    if isinstance(s.small.plan(ask), Placement):
        return
    with pytest.MonkeyPatch.context() as patch:
        if not every_set:
            patch.setattr("topo_scheduler.scheduling.preemption.clearing.EXHAUSTIVE_DOMAIN_CANDIDATES", -1)
        plan, best = s.plan(ask), s.cheapest(ask)
    assert (plan is not None) == makes_room(s, ask) == (best is not None)
    if plan is not None and best is not None:
        assert plan.key is not None
        parts = len(best) if every_set else 4
        assert plan.key[:parts] == best[:parts]
        assert s.plan(ask) == plan, "the same state has the same victims"


@given(scene=scenes(), members=st.integers(1, 2), gpus=st.sampled_from([4, 8]), within=st.sampled_from([0, 1, 2]))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_further_pods_of_several_classes_get_room_whenever_removing_all_pods_makes_room(
    scene: tuple[PreemptionScene, Sequence[int]], members: int, gpus: int, within: int
) -> None:
    s, running = scene
    groups = [(pods(gpus), members), (pods(2, cpu=10), 1)]
    ask = PlacementQuery(groups, gang=True, running=running, within=within, level="level")
    if not isinstance(s.small.plan(ask), Placement) and makes_room(s, ask):
        assert s.plan(ask) is not None
