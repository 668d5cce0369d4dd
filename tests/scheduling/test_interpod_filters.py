"""Pods with inter-pod constraints: where they go, the reasons they get, and when they are tried again."""

from tests.helpers import NVIDIA, make_pod
from tests.scheduling.affinity_pods import (
    HOSTNAME,
    WEB_PODS,
    namespace,
    nodes_in_racks,
    one_gpu_spec,
    pod_affinity,
    pod_anti_affinity,
    web_gang,
    web_pod,
)
from tests.scheduling.driver import held
from topo_scheduler.api.objects import (
    Container,
    PodSpec,
    Quantity,
    ResourceRequirements,
)
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)


def test_a_host_port_is_given_once_a_node() -> None:
    d = nodes_in_racks("a", "a")
    first, second, third = (
        web_pod("one", one_gpu_spec(80)),
        web_pod("two", one_gpu_spec(80)),
        web_pod("three", one_gpu_spec(80)),
    )
    d.run(first, second)
    assert {first.spec.node_name, second.spec.node_name} == {"n1", "n2"}
    d.apply(third)
    d.step()
    assert "2 node(s) didn't have free ports for the requested pod ports" in d.told(third)[0]
    d.run(web_pod("other", one_gpu_spec(81)))
    d.delete(first)
    d.step()
    assert d.flight[third.metadata.uid].node == first.spec.node_name, "woken by the port that is free"


def test_members_of_a_gang_with_a_host_port_get_a_node_each() -> None:
    d = nodes_in_racks("a", "a", "b")
    pods = web_gang(3, one_gpu_spec(80))
    assert set(d.run(*pods).values()) == {"n1", "n2", "n3"}
    late = nodes_in_racks("a", "a")
    more = web_gang(3, one_gpu_spec(80))
    late.apply(*more)
    late.step()
    assert late.flight == {}
    assert "larger than the cluster" in late.told(more[0])[0]


def test_members_that_keep_apart_by_node_get_a_node_each() -> None:
    d = nodes_in_racks("a", "a", "b")
    assert set(d.run(*web_gang(3, one_gpu_spec(affinity=pod_anti_affinity(HOSTNAME)))).values()) == {"n1", "n2", "n3"}


def test_a_pod_with_anti_affinity_goes_elsewhere_and_waits_where_there_is_no_elsewhere() -> None:
    d = nodes_in_racks("a", "a", "b")
    bound = web_pod("there", node="n1")
    d.apply(bound)
    shy = make_pod("shy", spec=one_gpu_spec(affinity=pod_anti_affinity("rack")))
    assert d.run(shy) == {"shy": "n3"}
    blocker = web_pod("blocker", node="n3")
    d.apply(blocker)
    late = make_pod("late", spec=one_gpu_spec(affinity=pod_anti_affinity("rack")))
    d.apply(late)
    d.step()
    assert "3 node(s) didn't match pod anti-affinity rules" in d.told(late)[0]
    d.delete(bound)
    d.step()
    assert d.flight[late.metadata.uid].node in ("n1", "n2")


def test_a_running_pod_may_keep_others_away() -> None:
    d = nodes_in_racks("a", "a", "b")
    guard = make_pod("guard", spec=one_gpu_spec(affinity=pod_anti_affinity("rack")), node="n1", scheduler="other")
    d.apply(guard)
    assert d.run(web_pod("one")) == {"one": "n3"}
    assert d.run(make_pod("nobody", spec=one_gpu_spec(), labels={"app": "db"}))["nobody"] in ("n1", "n2", "n3")
    d.apply(make_pod("guard-2", spec=one_gpu_spec(affinity=pod_anti_affinity("rack")), node="n3", scheduler="other"))
    two = web_pod("two")
    d.apply(two)
    d.step()
    assert "3 node(s) didn't satisfy existing pods anti-affinity rules" in d.told(two)[0]
    d.delete(guard)
    d.step()
    assert d.flight[two.metadata.uid].node in ("n1", "n2")


def test_namespaces_are_chosen_by_their_labels() -> None:
    d = nodes_in_racks("a", "b")
    d.engine.namespaces_applied([namespace("default"), namespace("prod", stage="production")])
    d.apply(
        make_pod("there", spec=one_gpu_spec(), labels={"app": "web"}, namespace="prod", node="n1", scheduler="other")
    )
    term = PodAffinityTerm(WEB_PODS, namespace_selector=LabelSelector({"stage": "production"}), topology_key="rack")
    far = Affinity(pod_anti_affinity=PodAffinity([term]))
    assert d.run(make_pod("shy", spec=one_gpu_spec(affinity=far))) == {"shy": "n2"}
    d.apply(make_pod("guard", spec=one_gpu_spec(affinity=far), node="n2", scheduler="other"))
    both = make_pod("both", spec=one_gpu_spec(affinity=far), labels={"app": "web"}, namespace="prod")
    d.apply(both)
    d.step()
    assert d.flight == {}, "it keeps away from the one, and the guard keeps it away from the other"
    d.engine.namespaces_applied([namespace("prod")])
    d.step()
    assert both.metadata.uid in d.flight, "woken by the labels of a namespace"


def test_a_guard_excludes_pods_of_every_namespace_while_namespaces_are_not_known() -> None:
    d = nodes_in_racks("a", "b")
    term = PodAffinityTerm(WEB_PODS, namespace_selector=LabelSelector({"stage": "production"}), topology_key="rack")
    far = Affinity(pod_anti_affinity=PodAffinity([term]))
    d.apply(make_pod("guard", spec=one_gpu_spec(affinity=far), node="n1", scheduler="other"))
    assert d.run(web_pod("one")) == {"one": "n2"}


def test_a_gang_stays_away_from_a_pod_whose_anti_affinity_excludes_it() -> None:
    d = nodes_in_racks("a", "a", "b", "b")
    d.apply(make_pod("guard", spec=one_gpu_spec(affinity=pod_anti_affinity("rack")), node="n1", scheduler="other"))
    requests: dict[str, Quantity] = {NVIDIA: 8}
    whole = PodSpec(containers=[Container("main", ResourceRequirements(requests, requests))])
    assert set(d.run(*web_gang(2, whole)).values()) == {"n3", "n4"}


def test_a_pod_with_affinity_waits_for_a_matching_pod_and_goes_near_it() -> None:
    d = nodes_in_racks("a", "b", "b")
    follower = make_pod("follower", spec=one_gpu_spec(affinity=pod_affinity("rack")))
    d.apply(follower)
    d.step()
    assert "3 node(s) didn't match pod affinity rules" in d.told(follower)[0]
    d.apply(web_pod("leader", node="n2"))
    d.step()
    assert d.flight[follower.metadata.uid].node in ("n2", "n3")


def test_the_first_of_its_kind_may_go_anywhere() -> None:
    d = nodes_in_racks("a", "b")
    first, second = (
        web_pod("first", one_gpu_spec(affinity=pod_affinity("rack"))),
        web_pod("second", one_gpu_spec(affinity=pod_affinity("rack"))),
    )
    d.run(first)
    d.run(second)
    assert first.spec.node_name == second.spec.node_name


def test_replicas_are_spread() -> None:
    d = nodes_in_racks("a", "a", "b")
    constraint = TopologySpreadConstraint("rack", "DoNotSchedule", 1, label_selector=WEB_PODS)
    pods = [web_pod(f"p{n}", one_gpu_spec(topology_spread_constraints=[constraint])) for n in range(4)]
    d.run(*pods)
    assert sum(pod.spec.node_name == "n3" for pod in pods) == 2


def test_a_pod_that_comes_between_decision_and_bind_is_seen() -> None:
    for mine, theirs, words in (
        (one_gpu_spec(80), one_gpu_spec(80), "a pod with the same host port"),
        (one_gpu_spec(affinity=pod_anti_affinity("rack")), one_gpu_spec(), "a pod that its anti-affinity excludes"),
        (one_gpu_spec(), one_gpu_spec(affinity=pod_anti_affinity("rack")), "a pod whose anti-affinity excludes it"),
    ):
        d = nodes_in_racks("a")
        pod = web_pod("p", mine)
        d.apply(pod)
        d.step()
        uid = pod.metadata.uid
        assert d.engine.may_bind(uid) == ""
        d.apply(web_pod("other", theirs, node="n1"))
        assert words in d.refused(uid)
        assert held(d, "n1") == 1, "only the other's GPU is taken"


def test_members_of_one_gang_do_not_exclude_each_other_at_the_bind() -> None:
    for of in (
        one_gpu_spec(80),
        one_gpu_spec(affinity=pod_anti_affinity(HOSTNAME)),
        one_gpu_spec(affinity=pod_affinity("rack")),
    ):
        d = nodes_in_racks("a", "a", "a")
        pods = web_gang(3, of)
        d.apply(*pods)
        d.step()
        assert [d.engine.may_bind(pod.metadata.uid) for pod in pods] == ["", "", ""]


def test_the_ports_of_all_running_pods_are_charged() -> None:
    d = nodes_in_racks("a")
    d.apply(*(web_pod(f"x{number}", one_gpu_spec(port=9000 + number), node="n1") for number in range(100)))
    d.step()
    d.apply(make_pod("p", spec=one_gpu_spec(port=80)))
    d.step()
    assert d.engine.attempting.spent_on_attempt > 40
    few = d.engine.attempting.spent_on_attempt
    d.apply(*(web_pod(f"y{number}", one_gpu_spec(port=8000 + number), node="n1") for number in range(900)))
    d.step()
    d.apply(make_pod("q", spec=one_gpu_spec(port=81)))
    d.step()
    assert d.engine.attempting.spent_on_attempt > few + 400, "a fixed number for each node before"
