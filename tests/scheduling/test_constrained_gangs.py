"""Gangs with inter-pod constraints between their members, or of several kinds with constraints towards other pods."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import NVIDIA, controlled_by, make_node, make_pod, owner
from tests.scheduling.affinity_pods import (
    HOSTNAME,
    LAUNCHER_PODS,
    WEB_PODS,
    namespace,
    nodes_in_leaves_and_racks,
    nodes_in_racks,
    one_gpu_spec,
    pod_affinity,
    pod_anti_affinity,
    spread_constraint,
    web_gang,
    web_pod,
)
from tests.scheduling.constraint_reference import CONSTRAINTS, satisfies_constraint
from tests.scheduling.driver import Driver, configured
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from topo_scheduler.scheduling.placing.constrained.sequential_assignment import NODES_SORTED_FIRST, Seating
from topo_scheduler.state.nodes.node_table import Int64


def test_members_that_keep_apart_by_rack_get_a_rack_each() -> None:
    d = nodes_in_racks("a", "a", "b", "c")
    where = d.run(*web_gang(3, one_gpu_spec(affinity=pod_anti_affinity("rack"))))
    assert len(where) == 3
    assert len({{"n1": "a", "n2": "a", "n3": "b", "n4": "c"}[node] for node in where.values()}) == 3
    assert {"n3", "n4"} < set(where.values())


def test_more_members_than_racks_are_refused_with_the_reason() -> None:
    d = nodes_in_racks("a", "a", "b")
    pods = web_gang(3, one_gpu_spec(affinity=pod_anti_affinity("rack")))
    d.apply(*pods)
    d.step()
    assert d.flight == {}
    assert (
        "have required pod anti-affinity: no domain could hold them together even if it were empty"
        in d.told(pods[0])[0]
    )


def test_they_wait_for_a_rack_that_is_taken_and_are_woken() -> None:
    d = nodes_in_racks("a", "b", "c")
    occupant = web_pod("there", node="n2")
    d.apply(occupant)
    pods = web_gang(3, one_gpu_spec(affinity=pod_anti_affinity("rack")))
    d.apply(*pods)
    d.step()
    assert d.flight == {}, "none or all"
    message = d.told(pods[0])[0].lower()
    assert "no room in 1 leaf for 3 pods that have required pod anti-affinity; the most free is" in message
    assert "with room for at most 2." in message, "one rack is taken"
    d.delete(occupant)
    d.settle()
    assert len(set(d.where(*pods).values())) == 3


def test_members_that_want_to_be_together_are() -> None:
    d = nodes_in_leaves_and_racks(("s1/l1", "a"), ("s1/l1", "b"), ("s1/l1", "b"), ("s1/l1", "c"), gpus=2)
    where = d.run(*web_gang(4, one_gpu_spec(affinity=pod_affinity("rack"))))
    assert Counter(where.values()) == {"n2": 2, "n3": 2}


def test_the_first_of_a_series_begins_where_all_have_room() -> None:
    d = nodes_in_leaves_and_racks(("s1/l1", "a"), ("s1/l2", "b"), ("s1/l2", "b"), gpus=2)
    d.apply(make_pod("busy", gpus=1, node="n1", scheduler="other"))
    where = d.run(*web_gang(4, one_gpu_spec(affinity=pod_affinity("rack"))))
    assert Counter(where.values()) == {"n2": 2, "n3": 2}


def test_members_are_spread_among_themselves() -> None:
    d = nodes_in_racks("a", "a", "b", "b")
    where = d.run(*web_gang(6, one_gpu_spec(topology_spread_constraints=[spread_constraint("rack")])))
    assert Counter("a" if node in ("n1", "n2") else "b" for node in where.values()) == {"a": 3, "b": 3}
    by_host = nodes_in_racks("a", "a", "b")
    assert Counter(
        by_host.run(*web_gang(6, one_gpu_spec(topology_spread_constraints=[spread_constraint(HOSTNAME)]))).values()
    ) == {
        "n1": 2,
        "n2": 2,
        "n3": 2,
    }


def test_the_size_rule_reckons_with_what_ties_them() -> None:
    d = nodes_in_leaves_and_racks(("s1/l1", "a"), ("s1/l1", "a"), ("s1/l2", "b"), ("s2/l3", "c"))
    pods = web_gang(2, one_gpu_spec(affinity=pod_anti_affinity("rack")))
    where = d.run(*pods)
    assert "n3" in where.values(), "two leaves of one spine, as no leaf has two racks"
    assert "n4" not in where.values()


def test_a_lost_member_comes_back_without_breaking_the_tie() -> None:
    d = nodes_in_racks("a", "b", "c", "c")
    pods = web_gang(3, one_gpu_spec(affinity=pod_anti_affinity("rack")))
    d.run(*pods)
    lost = next(pod for pod in pods if pod.spec.node_name == "n1")
    d.delete(lost)
    again = web_pod(
        "again", one_gpu_spec(affinity=pod_anti_affinity("rack")), annotations={"gang-name": "g", "gang-size": "3"}
    )
    assert d.run(again) == {"again": "n1"}


def several(*pods: tuple[str, Mapping[str, object]], size: int = 0) -> tuple[Driver, list[Pod]]:
    d = nodes_in_racks("a", "a", "b", "b")
    d.own(owner("ReplicaSet", "g", {"gang-size": str(size or len(pods))}))
    by = controlled_by("ReplicaSet", "g")
    return d, [make_pod(name, owner=by, **more) for name, more in pods]  # type: ignore[arg-type]


def test_different_pods_with_one_port_get_a_node_each() -> None:
    d, pods = several(
        ("launcher", {"spec": one_gpu_spec(80)}),
        ("worker-1", {"spec": one_gpu_spec(80)}),
        ("other", {"gpus": 8, "labels": {}}),
    )
    where = d.run(*pods)
    assert len(where) == 3
    assert where["launcher"] != where["worker-1"]


def test_workers_wait_for_their_launcher_within_one_decision() -> None:
    worker = {"spec": one_gpu_spec(affinity=pod_affinity("rack", LAUNCHER_PODS))}
    d, pods = several(
        ("worker-1", worker),
        ("worker-2", {"spec": one_gpu_spec(affinity=pod_affinity("rack", LAUNCHER_PODS))}),
        ("launcher", {"cpu": "1", "labels": {"role": "launcher"}}),
    )
    where = d.run(*pods)
    assert len(where) == 3
    assert len({"a" if node in ("n1", "n2") else "b" for node in where.values()}) == 1


def test_affinity_to_a_pod_outside_is_kept_and_named_when_no_pod_is_there() -> None:
    d, pods = several(("worker", {"spec": one_gpu_spec(affinity=pod_affinity("rack"))}), ("launcher", {"cpu": "1"}))
    d.apply(*pods)
    d.step()
    assert d.flight == {}
    assert "didn't match pod affinity rules" in d.told(pods[0])[0]
    d.apply(web_pod("there", node="n3"))
    d.settle()
    assert d.where(*pods)["worker"] in ("n3", "n4")


def test_the_limits_per_leaf_hold_for_tied_gangs() -> None:
    d = Driver(
        [make_node(f"n{n}", f"s1/l{(n + 1) // 2}", labels={HOSTNAME: f"n{n}", "rack": f"r{n}"}) for n in range(1, 5)],
        configured("{topologyConstraints: {maxNodesPerLeaf: 1}}"),
    )
    where = d.run(*web_gang(2, one_gpu_spec(affinity=pod_anti_affinity("rack"))))
    assert len({(int(node[1]) + 1) // 2 for node in where.values()}) == 2


def test_what_is_only_preferred_may_spread_further() -> None:
    d = nodes_in_leaves_and_racks(("s1/l1", "a"), ("s1/l1", "b"), ("s2/l2", "c"))
    d.apply(web_pod("there", node="n2"))
    pods = web_gang(2, one_gpu_spec(affinity=pod_anti_affinity("rack")))
    for pod in pods:
        pod.metadata.annotations["topology.scheduler/placement"] = "preferred"
    assert set(d.run(*pods).values()) == {"n1", "n3"}


@pytest.mark.parametrize("strategy", ["consolidated", "distributed"])
def test_labels_by_which_members_differ_are_reckoned_with(strategy: str) -> None:
    """Only one pair of members repels each other: which member sits where matters, not only how many."""
    d = nodes_in_racks("a", "a", "b")
    term = PodAffinityTerm(LabelSelector({"pair": "x"}), topology_key="rack")
    affinity = pod_anti_affinity("rack")
    affinity.pod_anti_affinity.required[:] = [term]  # type: ignore[union-attr]
    pods = web_gang(4, one_gpu_spec(affinity=affinity))
    for number, pod in enumerate(pods):
        pod.metadata.labels["pair"] = "x" if number == 0 else "y"
        pod.metadata.annotations["topology.scheduler/placement-strategy"] = strategy
    d.apply(*pods)
    d.step()
    where = {bind.pod.name: bind.node for bind in d.flight.values()}
    rack = {"n1": "a", "n2": "a", "n3": "b"}
    if where:
        assert all(rack[where["g-0"]] != rack[node] for name, node in where.items() if name != "g-0")
    assert len(where) in (0, 4)


# ---------------------------------------------------------------- by trying everything


@st.composite
def small(draw: st.DrawFn) -> tuple[list[tuple[str, str, int]], int, str, int]:
    count = draw(st.integers(2, 12))
    machines = [
        (draw(st.sampled_from(["l1", "l2"])), draw(st.sampled_from(["a", "b", "c"])), draw(st.integers(0, 3)))
        for _ in range(count)
    ]
    return machines, draw(st.integers(2, 4)), draw(st.sampled_from(sorted(CONSTRAINTS))), draw(st.integers(1, 2))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small())
def test_what_is_placed_holds_and_what_could_be_in_one_leaf_is_found(
    case: tuple[list[tuple[str, str, int]], int, str, int],
) -> None:
    machines, members, tie, skew = case
    d = Driver(
        [
            make_node(f"n{at}", f"s1/{leaf}", gpus=gpus, labels={HOSTNAME: f"n{at}", "rack": rack})
            for at, (leaf, rack, gpus) in enumerate(machines)
        ]
    )
    of = one_gpu_spec(
        affinity={"apart": pod_anti_affinity("rack"), "together": pod_affinity("rack"), "spread": None}[tie],
        topology_spread_constraints=[spread_constraint("rack", skew)] if tie == "spread" else [],
    )
    assert of.containers[0].resources.requests[NVIDIA] == 1
    pods = web_gang(members, of)
    d.apply(*pods)
    d.step()
    chosen = [int(bind.node[1:]) for bind in d.flight.values()]
    possible = [
        order
        for order in itertools.product(range(len(machines)), repeat=members)
        if satisfies_constraint(machines, order, tie, skew)
    ]
    leaves = {len({machines[at][0] for at in order}) for order in possible}
    if chosen:
        assert len(chosen) == members
        assert any(satisfies_constraint(machines, order, tie, skew) for order in itertools.permutations(chosen))
        assert len({machines[at][0] for at in chosen}) == min(leaves), "as few leaves as can be"
    else:
        assert not possible, f"{possible[0]} would do"


def _apart(*pods: Pod, namespaces: Sequence[str] = (), selector: LabelSelector | None = None) -> list[Pod]:
    """Pods of one gang that keep away from each other's nodes, or from those of other namespaces."""
    term = PodAffinityTerm(LabelSelector({"app": "d"}), list(namespaces), selector, topology_key=HOSTNAME)
    for at, pod in enumerate(pods):
        pod.metadata.labels = {"app": "d"}
        pod.metadata.creation_timestamp = f"2024-01-01T00:00:0{at}Z"
        pod.metadata.annotations |= {
            "topology.scheduler/gang-name": "g",
            "topology.scheduler/gang-size": str(len(pods)),
        }
        pod.spec.affinity = Affinity(None, None, PodAffinity([term]))
    return list(pods)


def test_anti_affinity_to_pods_of_another_namespace_keeps_no_members_apart() -> None:
    for gpus in ((1, 1, 1, 1), (2, 1, 1, 1)):
        d = Driver(make_node(f"n{at}", "s/l", gpus=4, labels={HOSTNAME: f"n{at}"}) for at in range(2))
        pods = _apart(*(make_pod(f"p{at}", gpus=count) for at, count in enumerate(gpus)), namespaces=["else"])
        d.apply(*pods)
        d.settle()
        assert all(pod.spec.node_name for pod in pods)


def test_anti_affinity_by_labels_of_namespaces_keeps_members_apart_only_where_it_means_their_own() -> None:
    for known in ([], [namespace("default", stage="test")], [namespace("default", stage="prod")]):
        d = Driver(make_node(f"n{at}", "s/l", gpus=4, labels={HOSTNAME: f"n{at}"}) for at in range(2))
        d.engine.namespaces_applied([*known, namespace("else", stage="test")])
        pods = _apart(*(make_pod(f"p{at}", gpus=1) for at in range(4)), selector=LabelSelector({"stage": "test"}))
        d.apply(*pods)
        d.settle()
        elsewhere = [ns.metadata.labels["stage"] for ns in known] == ["prod"]
        assert all(bool(pod.spec.node_name) == elsewhere for pod in pods), "without labels they may be meant"
        d.engine.namespaces_applied([namespace("default", stage="prod")])
        d.settle()
        assert all(pod.spec.node_name for pod in pods), "woken by the labels of the namespace"


def _with_affinity(name: str, gpus: Sequence[int], *terms: PodAffinityTerm) -> list[Pod]:
    annotations = {"gang-name": name, "gang-size": str(len(gpus))}
    pods = [
        make_pod(f"{name}-{at}", gpus=count, labels={"app": "web"}, annotations=annotations)
        for at, count in enumerate(gpus)
    ]
    for pod in pods:
        pod.spec.affinity = Affinity(pod_affinity=PodAffinity(list(terms)))
    return pods


def test_affinity_to_pods_elsewhere_is_not_asked_of_the_members() -> None:
    d = Driver(make_node(f"n{at}", "s/l", gpus=4, labels={HOSTNAME: f"n{at}", "rack": "a"}) for at in range(2))
    outsider = make_pod("there", gpus=1, labels={"app": "web"}, namespace="else", node="n0", scheduler="other")
    d.apply(outsider)
    term = PodAffinityTerm(WEB_PODS, namespaces=["else"], topology_key="rack")
    for sizes in ((1, 1), (1, 1, 2)):
        pods = _with_affinity(f"g{len(sizes)}", sizes, term)
        d.apply(*pods)
        d.settle()
        assert all(pod.spec.node_name for pod in pods), sizes


def test_affinity_of_which_members_meet_a_part_only_is_met_by_others() -> None:
    # Only a pod that meets all terms counts for any of them.
    d = Driver(make_node(f"n{at}", "s/l", gpus=4, labels={HOSTNAME: f"n{at}", "rack": "a"}) for at in range(2))
    d.apply(make_pod("there", labels={"app": "web", "role": "launcher"}, node="n0", scheduler="other"))
    terms = [PodAffinityTerm(WEB_PODS, topology_key="rack"), PodAffinityTerm(LAUNCHER_PODS, topology_key="rack")]
    pods = _with_affinity("g", (1, 1, 2), *terms)
    d.apply(*pods)
    d.settle()
    assert all(pod.spec.node_name for pod in pods)


@pytest.mark.parametrize("gpus", [(1, 1, 1, 1), (2, 1, 1)])
def test_a_spread_with_an_empty_selector_counts_no_member(gpus: tuple[int, ...]) -> None:
    # kube-scheduler counts no bound pod for it, so that the node which no pod may use sets no limit.
    open_node = make_node("n0", "s/l", gpus=4, labels={HOSTNAME: "n0"})
    d = Driver([open_node, make_node("n1", "s/l", gpus=4, labels={HOSTNAME: "n1"}, unschedulable=True)])
    constraint = TopologySpreadConstraint(HOSTNAME, "DoNotSchedule", 1, label_selector=LabelSelector())
    pods = [make_pod(f"g-{at}", gpus=count, labels={"app": "web"}) for at, count in enumerate(gpus)]
    for pod in pods:
        pod.metadata.annotations |= {
            "topology.scheduler/gang-name": "g",
            "topology.scheduler/gang-size": str(len(gpus)),
        }
        pod.spec.topology_spread_constraints = [constraint]
    d.apply(*pods)
    d.settle()
    assert [pod.spec.node_name for pod in pods] == ["n0"] * len(gpus)


@pytest.mark.parametrize("launcher", [0, 1, 2])
def test_a_member_that_may_go_anywhere_leaves_the_nodes_that_others_need(launcher: int) -> None:
    labels = [{HOSTNAME: f"n{at}", "pool": pool} for at, pool in enumerate(("a", "b", "a"))]
    d = Driver(make_node(f"n{at}", "s/l", gpus=4, labels=labels[at]) for at in range(3))
    pods = [make_pod(f"w{at}", gpus=1) for at in range(2)]
    for pod in pods:
        pod.spec.node_selector = {"pool": "a"}
    pods.insert(launcher, make_pod("launcher", gpus=1))
    d.apply(*_apart(*pods))
    d.settle()
    assert sorted(pod.spec.node_name for pod in pods) == ["n0", "n1", "n2"]


def test_nodes_further_away_are_tried_where_the_nearest_are_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """More are near than are put in order first; alike nodes are one option."""
    near = NODES_SORTED_FIRST + 1
    seating = object.__new__(Seating)
    seating._choices, seating._leaf = 3, np.array([0] * near + [1, 2], np.int64)

    def one_a_leaf(self: Seating, group: int, candidates: Int64, distance: Int64) -> list[int]:
        return sorted({int(self._leaf[at]): at for at in candidates.tolist()[::-1]}.values())

    monkeypatch.setattr(Seating, "_in_order", one_a_leaf)
    everything = np.arange(near + 2, dtype=np.int64)
    assert seating._best_first(0, everything, np.zeros(1, np.int64)) == [0, near, near + 1]
