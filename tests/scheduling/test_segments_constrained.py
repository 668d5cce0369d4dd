"""Gangs in segments with inter-pod constraints between their members."""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.helpers import make_node
from tests.scheduling.affinity_pods import (
    HOSTNAME,
    nodes_in_leaves_and_racks,
    one_gpu_spec,
    pod_affinity,
    pod_anti_affinity,
    spread_constraint,
    web_gang,
    web_pod,
)
from tests.scheduling.constraint_reference import CONSTRAINTS, satisfies_constraint
from tests.scheduling.driver import Driver, configured
from tests.scheduling.gang_pods import nodes_by_rank
from topo_scheduler.api.objects import Pod, PodSpec
from topo_scheduler.scheduling.instructions import RecordDecision
from topo_scheduler.scheduling.placing.constrained.segment_assignments import Steps
from topo_scheduler.scheduling.placing.constrained.zone_counts import Zones, ZoneShare


def in_segments(members: int, size: int, of: PodSpec, **annotations: str) -> list[Pod]:
    pods = web_gang(members, of)
    for pod in pods:
        pod.metadata.annotations["topology.scheduler/segment-size"] = str(size)
        for name, value in annotations.items():
            pod.metadata.annotations[f"topology.scheduler/{name.replace('_', '-')}"] = value
    return pods


def test_members_that_keep_apart_by_node_are_in_segments_of_one_leaf_each() -> None:
    d = nodes_in_leaves_and_racks(
        ("s1/a", "a"), ("s1/a", "a"), ("s1/b", "a"), ("s1/b", "a"), ("s1/b", "a"), ("s1/c", "a")
    )
    pods = in_segments(4, 2, one_gpu_spec(affinity=pod_anti_affinity(HOSTNAME)))
    d.run(*pods)
    leaves = [{"n1": "a", "n2": "a", "n6": "c"}.get(node, "b") for node in nodes_by_rank(pods)]
    assert leaves == ["a", "a", "b", "b"]


def test_a_lost_member_of_a_tied_segment_goes_back_to_it() -> None:
    d = nodes_in_leaves_and_racks(
        ("s1/a", "a"), ("s1/a", "a"), ("s1/b", "a"), ("s1/b", "a"), ("s1/b", "a"), ("s1/c", "a")
    )
    pods = in_segments(4, 2, one_gpu_spec(affinity=pod_anti_affinity(HOSTNAME)))
    d.run(*pods)
    lost = next(pod for pod in pods if pod.metadata.annotations["topology.scheduler/rank"] == "2")
    d.delete(lost)
    again = web_pod(
        "again", one_gpu_spec(affinity=pod_anti_affinity(HOSTNAME)), annotations=dict(gang_annotations(pods[0]))
    )
    d.run(again)
    assert again.spec.node_name in ("n3", "n4", "n5")
    assert again.spec.node_name not in {pod.spec.node_name for pod in pods if pod is not lost}


def gang_annotations(pod: Pod) -> dict[str, str]:
    prefix = "topology.scheduler/"
    wanted = ("gang-name", "gang-size", "segment-size", "placement")
    return {
        name: pod.metadata.annotations[prefix + name] for name in wanted if prefix + name in pod.metadata.annotations
    }


def test_where_what_ties_them_tears_segments_they_wait_and_say_so() -> None:
    d = nodes_in_leaves_and_racks(("s1/a", "a"), ("s1/a", "a"), ("s1/b", "b"))
    pods = in_segments(2, 2, one_gpu_spec(affinity=pod_anti_affinity("rack")))
    d.apply(*pods)
    d.step()
    assert d.flight == {}
    message = d.told(pods[0])[0]
    assert "pods in segments that must each share one leaf have required pod anti-affinity" in message


def test_how_many_a_domain_holds_counts_what_ties_them() -> None:
    d = nodes_in_leaves_and_racks(("s1/a", "a"), ("s1/a", "b"), ("s1/b", "a"), ("s1/b", "b"), ("s1/b", "c"))
    d.apply(web_pod("there", node="n4"))
    pods = in_segments(3, 3, one_gpu_spec(affinity=pod_anti_affinity("rack")))
    d.apply(*pods)
    (decision,) = [instruction.decision for instruction in d.step() if isinstance(instruction, RecordDecision)]
    assert {"/".join(path): reason for path, reason in decision.domain_reasons} == {
        "s1/a": "holds at most 1 of 3 pods",
        "s1/b": "holds at most 2 of 3 pods",
    }
    assert decision.sentence.endswith("; the most free is s1/b with room for at most 2.")


def test_tied_segments_of_an_outer_level_keep_the_limits_per_leaf() -> None:
    d = Driver(
        [make_node(f"n{n}", f"s{1 + n // 4}/l{n // 2}", labels={HOSTNAME: f"n{n}"}, gpus=8) for n in range(8)],
        configured("{topologyConstraints: {enforcement: preferred, maxNodesPerLeaf: 1}}"),
    )
    pods = in_segments(4, 2, one_gpu_spec(affinity=pod_anti_affinity(HOSTNAME)), segment_level="spine")
    d.run(*pods)
    at = [int(node[1:]) for node in nodes_by_rank(pods)]
    assert [n // 4 for n in at] == [0, 0, 1, 1]
    assert len({n // 2 for n in at}) == 4


# ---------------------------------------------------------------- by trying everything


@st.composite
def small(draw: st.DrawFn) -> tuple[list[tuple[str, str, int]], int, int, str, int, bool]:
    count = draw(st.integers(2, 12))
    machines = [
        (draw(st.sampled_from(["s1/l1", "s1/l2", "s2/l3"])), draw(st.sampled_from("abc")), draw(st.integers(0, 3)))
        for _ in range(count)
    ]
    segments, size = draw(st.sampled_from([(1, 2), (2, 1), (2, 2), (1, 3), (1, 4)]))
    tie = draw(st.sampled_from(sorted(CONSTRAINTS)))
    return machines, segments, size, tie, draw(st.integers(1, 2)), draw(st.booleans())


def best_of(
    machines: Sequence[tuple[str, str, int]], segments: int, size: int, tie: str, skew: int
) -> tuple[int, int, int] | None:
    """The lowest level, fewest leaves and least width of all ways to place the gang."""
    leaves = sorted({leaf for leaf, _, _ in machines})
    ranks = []
    for chosen in itertools.product(range(len(machines)), repeat=segments * size):
        parts = [chosen[at * size : (at + 1) * size] for at in range(segments)]
        used = sorted({leaves.index(machines[at][0]) for at in chosen})
        if any(len({machines[at][0] for at in part}) > 1 for part in parts):
            continue
        if any(satisfies_constraint(machines, order, tie, skew) for order in orders(machines, chosen, tie)):
            outward = int(len({leaves[at][:2] for at in used}) > 1)
            ranks.append((outward, len(used), used[-1] - used[0]))
    return min(ranks, default=None)


def orders(machines: Sequence[tuple[str, str, int]], chosen: Sequence[int], tie: str) -> list[Sequence[int]]:
    """Ways to seat members in turn: for a spread it matters, and the emptiest rack first is as good as any."""
    if tie != "spread":
        return [chosen]
    left, order = list(chosen), []
    count: Counter[str] = Counter()
    while left:
        at = min(left, key=lambda at: count[machines[at][1]])
        left.remove(at)
        order.append(at)
        count[machines[at][1]] += 1
    return [order]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small())
def test_on_few_nodes_tied_segments_are_placed_as_well_as_can_be(
    case: tuple[list[tuple[str, str, int]], int, int, str, int, bool],
) -> None:
    machines, segments, size, tie, skew, _ = case
    d = Driver(
        [
            make_node(f"n{at}", leaf, gpus=gpus, labels={HOSTNAME: f"n{at}", "rack": rack})
            for at, (leaf, rack, gpus) in enumerate(machines)
        ]
    )
    of = one_gpu_spec(
        affinity={"apart": pod_anti_affinity("rack"), "together": pod_affinity("rack"), "spread": None}[tie],
        topology_spread_constraints=[spread_constraint("rack", skew)] if tie == "spread" else [],
    )
    pods = in_segments(segments * size, size, of)
    d.run(*pods)
    best = best_of(machines, segments, size, tie, skew)
    placed = [pod for pod in pods if pod.spec.node_name]
    if best is None:
        assert not placed
        event("no place")
        return
    assert len(placed) == len(pods), f"{best} would do"
    chosen = [int(node[1:]) for node in nodes_by_rank(pods)]
    leaves = sorted({leaf for leaf, _, _ in machines})
    for number in range(segments):
        assert len({machines[at][0] for at in chosen[number * size : (number + 1) * size]}) == 1
    used = sorted({leaves.index(machines[at][0]) for at in chosen})
    outward = int(len({leaves[at][:2] for at in used}) > 1)
    assert (outward, len(used), used[-1] - used[0]) == best
    event(f"{tie}, {len(used)} leaves")


def test_a_domain_in_which_the_rest_of_a_segment_does_not_run_has_no_zones_for_it() -> None:
    """Lost members of such a gang once ended the step: the search looked up leaves far before the domain in it."""
    room, pods_by_zone = np.array([[4]], np.int64), np.array([0], np.int64)
    share = ZoneShare(np.array([0], np.int64), np.array([4], np.int64))
    zones = Zones(4, room, np.zeros(5, np.int64), pods_by_zone, [share], True)
    assert list(zones.shared([0, 0, 4], Steps())) == []
    assert list(zones.shared([4, 4, 5], Steps())) == []
