"""Gangs in segments whose pods request different things, or whose segments differ."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduling.driver import Driver, configured, fabric
from tests.scheduling.gang_pods import launcher_gang, leader_worker_set, leaf_by_rank, rank_of
from tests.scheduling.heterogeneous_reference import ExhaustivePlacement, compare_with_exhaustive, pod_classes
from tests.scheduling.planning import Small, gang_in_segments, grid, pods, small_of
from tests.scheduling.reference import Machine, Path, Want
from tests.scheduling.reference_clusters import clusters
from tests.scheduling.running_pods import fill_nodes
from topo_scheduler.api.objects import ContainerPort
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.state.nodes.resources import CPU
from topo_scheduler.state.pods.classes import PodClass


def test_each_segment_is_within_one_leaf_with_its_launcher() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2, "s1/c": 2}))
    members = launcher_gang(3, 3)
    assert len(d.run(*members)) == 9
    assert leaf_by_rank(d, members) == ["s1-a"] * 3 + ["s1-b"] * 3 + ["s1-c"] * 3


def test_a_heterogeneous_segment_that_no_leaf_holds_is_reported() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))
    members = launcher_gang(2, 4)
    assert d.run(*members) == {}
    message = d.told(members[0])[-1]
    assert "The gang of 8 pods in segments that must each share one leaf is larger than the cluster" in message


def test_segments_of_different_pods_of_an_outer_level() -> None:
    d = Driver(
        fabric({"s1/a": 2, "s1/b": 2, "s2/a": 2, "s2/b": 2}),
        configured("{topologyConstraints: {enforcement: preferred, maxNodesPerLeaf: 2}}"),
    )
    members = launcher_gang(2, 5, segment_level="spine")
    d.run(*members)
    assert [leaf[:2] for leaf in leaf_by_rank(d, members)] == ["s1"] * 5 + ["s2"] * 5


def test_a_lost_member_of_a_mixed_segment_goes_back_to_it() -> None:
    d = Driver(fabric({"s1/a": 4, "s1/b": 4}))
    fill_nodes(d, "s1-a-1", "s1-a-2")
    members = launcher_gang(2, 3, placement="preferred")
    d.run(*members)
    assert leaf_by_rank(d, members) == ["s1-b"] * 6
    lost = [pod for pod in members if rank_of(pod) in (3, 4)]
    d.delete(*lost)
    again = [pod for pod in launcher_gang(2, 3, placement="preferred") if pod.metadata.name in ("g-3", "g-4")]
    d.run(*again)
    assert {rank_of(pod): pod.spec.node_name[:4] for pod in again} == {3: "s1-b", 4: "s1-b"}


def test_a_whole_lost_segment_goes_near_the_others_where_it_fits_whole() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2, "s1/c": 2, "s1/d": 2}))
    members = launcher_gang(2, 3, placement="preferred")
    d.run(*members)
    assert leaf_by_rank(d, members) == ["s1-a"] * 3 + ["s1-b"] * 3
    lost = [pod for pod in members if rank_of(pod) < 3]
    d.delete(*lost)
    fill_nodes(d, "s1-a-1", "s1-c-1")
    again = launcher_gang(2, 3, placement="preferred")[:3]
    d.run(*again)
    assert {pod.spec.node_name[:4] for pod in again} == {"s1-d"}


def test_a_lost_segment_is_not_taken_for_the_one_that_runs() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2, "s1/c": 2, "s1/d": 2}))
    members = launcher_gang(2, 3, placement="preferred")
    d.run(*members)
    d.delete(*[pod for pod in members if rank_of(pod) >= 3])
    fill_nodes(d, "s1-b-1", "s1-c-1")
    again = launcher_gang(2, 3, placement="preferred")[3:]
    d.run(*again)
    assert {pod.spec.node_name[:4] for pod in again} == {"s1-d"}


def test_what_is_lost_of_a_mixed_segment_waits_for_room_where_the_rest_runs() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 4}))
    fill_nodes(d, "s1-b-3", "s1-b-4")
    members = launcher_gang(2, 3, placement="preferred")
    d.run(*members)
    assert leaf_by_rank(d, members) == ["s1-a"] * 3 + ["s1-b"] * 3
    lost = next(pod for pod in members if rank_of(pod) == 1)
    node = lost.spec.node_name
    d.delete(lost)
    busy = fill_nodes(d, node)
    again = launcher_gang(2, 3, placement="preferred")[1]
    d.run(again)
    assert not again.spec.node_name
    assert "No room for 1 pod in s1/a, where the rest of their segment runs" in d.told(again)[-1]
    d.delete(*busy)
    d.settle()
    assert again.spec.node_name == node


# ---------------------------------------------------------------- LeaderWorkerSets


@pytest.mark.parametrize("leader_gpus", [8, 0])
def test_the_leader_on_top_of_its_subgroups_is_in_the_first(leader_gpus: int) -> None:
    d = Driver(fabric({"s1/a": 3, "s1/b": 3, "s1/c": 3}), configured("{topologyConstraints: {}}"))
    members = leader_worker_set(7, 2, leader_gpus=leader_gpus)
    assert len(d.run(*members)) == 7
    leaves = leaf_by_rank(d, members)
    for subgroup in ((0, 1, 2), (3, 4), (5, 6)):
        assert len({leaves[rank] for rank in subgroup}) == 1


def test_subgroups_of_one_have_the_leader_beside_the_first() -> None:
    d = Driver(fabric({"s1/a": 1, "s1/b": 2}))
    members = leader_worker_set(3, 1)
    d.run(*members)
    assert leaf_by_rank(d, members) == ["s1-b", "s1-b", "s1-a"]


def test_a_leader_that_is_excluded_may_be_anywhere_near() -> None:
    d = Driver(fabric({"s1/a": 1, "s1/b": 2, "s1/c": 2}))
    members = leader_worker_set(5, 2, policy="LeaderExcluded")
    d.run(*members)
    leaves = leaf_by_rank(d, members)
    assert (leaves[0], leaves[1] == leaves[2], leaves[3] == leaves[4]) == ("s1-a", True, True)


def test_a_lost_leader_goes_back_to_the_first_subgroup() -> None:
    d = Driver(fabric({"s1/a": 3, "s1/b": 3, "s1/c": 3}))
    members = leader_worker_set(5, 2)
    d.run(*members)
    first = leaf_by_rank(d, members)[0]
    d.delete(members[0])
    again = leader_worker_set(5, 2)[0]
    d.run(again)
    assert again.spec.node_name.startswith(first)


# ---------------------------------------------------------------- against every way to place them


class EverySegment(ExhaustivePlacement):
    """All ways to give leaves whole segments; members of none are on their own."""

    def __init__(self, machines: list[Machine], ask: PlacementQuery, limits: tuple[int, int]) -> None:
        super().__init__(machines, ask.groups, limits, any_model=ask.mixed_models)
        vectors: dict[object, Counter[int]] = {}
        for group, part in enumerate(ask.segments.parts):
            for position, number in enumerate(part):
                key = number if number >= 0 else (group, position)
                vectors.setdefault(key, Counter())[group] += 1
        self.vectors = [tuple(counts[group] for group in range(len(ask.groups))) for counts in vectors.values()]

    def holds(self, leaves: tuple[Path, ...], model: str | None, *, empty: bool) -> bool:
        known: dict[tuple[Path, tuple[int, ...]], bool] = {}
        for given_to in product(leaves, repeat=len(self.vectors)):
            held = {leaf: [0] * len(self.groups) for leaf in leaves}
            for leaf, vector in zip(given_to, self.vectors, strict=True):
                held[leaf] = [a + b for a, b in zip(held[leaf], vector, strict=True)]
            for leaf, members in held.items():
                key = leaf, tuple(members)
                if key not in known:
                    known[key] = self.holds_members((leaf,), model, key[1], empty=empty)
            if all(known[leaf, tuple(members)] for leaf, members in held.items()):
                return True
        return False


@st.composite
def gangs(draw: st.DrawFn) -> tuple[list[tuple[PodClass, int]], list[list[int]]]:
    """Up to three classes, each member in one of up to three segments or in none."""
    parts = draw(
        st.lists(
            st.tuples(pod_classes, st.lists(st.sampled_from([0, 0, 1, 1, 2, -1]), min_size=1, max_size=4)),
            min_size=1,
            max_size=3,
            unique_by=lambda part: part[0],
        )
    )
    parts.sort(key=lambda part: (-part[0].gpus, -part[0].amount(CPU)))  # as the engine hands them over
    return [(cls, len(part)) for cls, part in parts], [sorted(part) for _, part in parts]


@settings(deadline=None, max_examples=250)
@given(clusters(), gangs(), st.booleans(), st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 4)]))
def test_on_small_clusters_segments_are_placed_as_well_as_can_be(
    machines: list[Machine],
    gang: tuple[list[tuple[PodClass, int]], list[list[int]]],
    required: bool,
    limits: tuple[int, int],
) -> None:
    ask = gang_in_segments(*gang, required=required)
    every = EverySegment(machines, ask, limits)
    compare_with_exhaustive(every, small_of(machines, Want(1, 1, max_nodes=limits[0], max_gpus=limits[1])), ask)


def test_many_segments_on_many_leaves_are_found_quickly_enough_to_be_placed() -> None:
    """Too many kinds for the complete search: the windows that are filled in do."""
    small = Small(grid(4, 10, 4))
    workers, launcher = pods(8), pods(0, cpu=1000)
    parts = [[n for n in range(20) for _ in range(3)], [0, 5, 5, 7, 9, 9, 9]]
    placement = small.plan(gang_in_segments([(workers, 60), (launcher, 7)], parts, required=False))
    assert isinstance(placement, Placement)
    layout = small.world.layout
    for number in range(20):
        inside = {
            int(layout.leaf_of_row[row])
            for rows, part in zip(placement.rows, parts, strict=True)
            for row, segment in zip(rows, part, strict=True)
            if segment == number
        }
        assert len(inside) == 1


def test_leader_and_workers_that_are_alike_keep_what_holds_for_single_pods() -> None:
    """Host ports keep members apart, also where segments are not alike."""
    d = Driver(fabric({"s1/a": 3, "s1/b": 3}))
    members = leader_worker_set(5, 2)
    for pod in members:
        pod.spec.containers[0].ports.append(ContainerPort(host_port=80))
        pod.spec.containers[0].resources.limits.clear()
        pod.spec.containers[0].resources.requests = {"cpu": "1"}
    where = d.run(*members)
    assert len(set(where.values())) == 5
    leaves = leaf_by_rank(d, members)
    assert leaves[0] == leaves[1] == leaves[2] != leaves[3] == leaves[4]
