"""Pods that look at other pods: where they go, what they are told, and when they are tried again."""

from tests.helpers import NVIDIA, make_node, make_pod
from tests.scheduling.driver import Driver, held
from topo_scheduler.api.objects import (
    Container,
    ContainerPort,
    ObjectMeta,
    PartialObject,
    Pod,
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

HOST = "kubernetes.io/hostname"
WEB = LabelSelector({"app": "web"})


def nodes(*racks: str) -> Driver:
    """Nodes n1, n2, … of 8 GPUs in these racks, all under one leaf."""
    return Driver(
        [
            make_node(f"n{number}", "s1/l1", labels={HOST: f"n{number}", "rack": rack})
            for number, rack in enumerate(racks, 1)
        ]
    )


def spec(port: int = 0, **parts: object) -> PodSpec:
    requests: dict[str, Quantity] = {NVIDIA: 1, "cpu": "1"}
    ports = [ContainerPort(port)] if port else []
    return PodSpec(containers=[Container("main", ResourceRequirements(requests, requests), ports=ports)], **parts)  # type: ignore[arg-type]


def near(key: str, selector: LabelSelector = WEB) -> Affinity:
    return Affinity(pod_affinity=PodAffinity([PodAffinityTerm(selector, topology_key=key)]))


def away(key: str, selector: LabelSelector = WEB) -> Affinity:
    return Affinity(pod_anti_affinity=PodAffinity([PodAffinityTerm(selector, topology_key=key)]))


def web(name: str, of: PodSpec | None = None, *, node: str = "", **more: object) -> Pod:
    scheduler = "other" if node else "topology-aware-scheduler"
    return make_pod(name, spec=of or spec(), labels={"app": "web"}, node=node, scheduler=scheduler, **more)  # type: ignore[arg-type]


def gang(size: int, of: PodSpec) -> list[Pod]:
    annotations = {"gang-name": "g", "gang-size": str(size)}
    return [web(f"g-{number}", spec_of(of), annotations=annotations) for number in range(size)]


def spec_of(of: PodSpec) -> PodSpec:
    return PodSpec(
        containers=of.containers,
        affinity=of.affinity,
        node_selector=of.node_selector,
        topology_spread_constraints=of.topology_spread_constraints,
    )


def namespace(name: str, **labels: str) -> PartialObject:
    return PartialObject(metadata=ObjectMeta(name=name, labels=labels))


def test_a_host_port_is_given_once_a_node() -> None:
    d = nodes("a", "a")
    one, two, three = web("one", spec(80)), web("two", spec(80)), web("three", spec(80))
    d.run(one, two)
    assert {one.spec.node_name, two.spec.node_name} == {"n1", "n2"}
    d.apply(three)
    d.step()
    assert "2 node(s) didn't have free ports for the requested pod ports" in d.told(three)[0]
    d.run(web("other", spec(81)))
    d.delete(one)
    d.step()
    assert d.flight[three.metadata.uid].node == one.spec.node_name, "woken by the port that is free"


def test_members_of_a_gang_with_a_host_port_get_a_node_each() -> None:
    d = nodes("a", "a", "b")
    pods = gang(3, spec(80))
    assert set(d.run(*pods).values()) == {"n1", "n2", "n3"}
    late = nodes("a", "a")
    more = gang(3, spec(80))
    late.apply(*more)
    late.step()
    assert late.flight == {}
    assert "larger than the cluster" in late.told(more[0])[0]


def test_members_that_keep_apart_by_node_get_a_node_each() -> None:
    d = nodes("a", "a", "b")
    assert set(d.run(*gang(3, spec(affinity=away(HOST)))).values()) == {"n1", "n2", "n3"}


def test_who_keeps_away_goes_elsewhere_and_waits_where_there_is_no_elsewhere() -> None:
    d = nodes("a", "a", "b")
    there = web("there", node="n1")
    d.apply(there)
    shy = make_pod("shy", spec=spec(affinity=away("rack")))
    assert d.run(shy) == {"shy": "n3"}
    blocker = web("blocker", node="n3")
    d.apply(blocker)
    late = make_pod("late", spec=spec(affinity=away("rack")))
    d.apply(late)
    d.step()
    assert "3 node(s) didn't match pod anti-affinity rules" in d.told(late)[0]
    d.delete(there)
    d.step()
    assert d.flight[late.metadata.uid].node in ("n1", "n2")


def test_who_runs_may_keep_others_away() -> None:
    d = nodes("a", "a", "b")
    guard = make_pod("guard", spec=spec(affinity=away("rack")), node="n1", scheduler="other")
    d.apply(guard)
    assert d.run(web("one")) == {"one": "n3"}
    assert d.run(make_pod("nobody", spec=spec(), labels={"app": "db"}))["nobody"] in ("n1", "n2", "n3")
    d.apply(make_pod("guard-2", spec=spec(affinity=away("rack")), node="n3", scheduler="other"))
    two = web("two")
    d.apply(two)
    d.step()
    assert "3 node(s) didn't satisfy existing pods anti-affinity rules" in d.told(two)[0]
    d.delete(guard)
    d.step()
    assert d.flight[two.metadata.uid].node in ("n1", "n2")


def test_namespaces_are_chosen_by_their_labels() -> None:
    d = nodes("a", "b")
    d.engine.namespaces_applied([namespace("default"), namespace("prod", stage="production")])
    d.apply(make_pod("there", spec=spec(), labels={"app": "web"}, namespace="prod", node="n1", scheduler="other"))
    term = PodAffinityTerm(WEB, namespace_selector=LabelSelector({"stage": "production"}), topology_key="rack")
    far = Affinity(pod_anti_affinity=PodAffinity([term]))
    assert d.run(make_pod("shy", spec=spec(affinity=far))) == {"shy": "n2"}
    d.apply(make_pod("guard", spec=spec(affinity=far), node="n2", scheduler="other"))
    both = make_pod("both", spec=spec(affinity=far), labels={"app": "web"}, namespace="prod")
    d.apply(both)
    d.step()
    assert d.flight == {}, "it keeps away from the one, and the guard keeps it away from the other"
    d.engine.namespaces_applied([namespace("prod")])
    d.step()
    assert both.metadata.uid in d.flight, "woken by the labels of a namespace"


def test_what_a_guard_means_while_namespaces_are_not_known_is_everybody() -> None:
    d = nodes("a", "b")
    term = PodAffinityTerm(WEB, namespace_selector=LabelSelector({"stage": "production"}), topology_key="rack")
    far = Affinity(pod_anti_affinity=PodAffinity([term]))
    d.apply(make_pod("guard", spec=spec(affinity=far), node="n1", scheduler="other"))
    assert d.run(web("one")) == {"one": "n2"}


def test_a_gang_stays_away_from_who_keeps_it_away() -> None:
    d = nodes("a", "a", "b", "b")
    d.apply(make_pod("guard", spec=spec(affinity=away("rack")), node="n1", scheduler="other"))
    requests: dict[str, Quantity] = {NVIDIA: 8}
    whole = PodSpec(containers=[Container("main", ResourceRequirements(requests, requests))])
    assert set(d.run(*gang(2, whole)).values()) == {"n3", "n4"}


def test_who_wants_company_goes_to_it_and_waits_for_it() -> None:
    d = nodes("a", "b", "b")
    follower = make_pod("follower", spec=spec(affinity=near("rack")))
    d.apply(follower)
    d.step()
    assert "3 node(s) didn't match pod affinity rules" in d.told(follower)[0]
    d.apply(web("leader", node="n2"))
    d.step()
    assert d.flight[follower.metadata.uid].node in ("n2", "n3")


def test_the_first_of_its_kind_may_go_anywhere() -> None:
    d = nodes("a", "b")
    first, second = web("first", spec(affinity=near("rack"))), web("second", spec(affinity=near("rack")))
    d.run(first)
    d.run(second)
    assert first.spec.node_name == second.spec.node_name


def test_replicas_are_spread() -> None:
    d = nodes("a", "a", "b")
    constraint = TopologySpreadConstraint("rack", "DoNotSchedule", 1, label_selector=WEB)
    pods = [web(f"p{n}", spec(topology_spread_constraints=[constraint])) for n in range(4)]
    d.run(*pods)
    assert sum(pod.spec.node_name == "n3" for pod in pods) == 2


def test_who_comes_between_decision_and_bind_is_seen() -> None:
    for mine, theirs, words in (
        (spec(80), spec(80), "a pod with the same host port"),
        (spec(affinity=away("rack")), spec(), "a pod it keeps away from"),
        (spec(), spec(affinity=away("rack")), "a pod that keeps away from it"),
    ):
        d = nodes("a")
        pod = web("p", mine)
        d.apply(pod)
        d.step()
        uid = pod.metadata.uid
        assert d.engine.may_bind(uid) == ""
        d.apply(web("other", theirs, node="n1"))
        assert words in d.refused(uid)
        assert held(d, "n1") == 1, "only the other's GPU is taken"


def test_members_of_one_gang_do_not_exclude_each_other_at_the_bind() -> None:
    for of in (spec(80), spec(affinity=away(HOST)), spec(affinity=near("rack"))):
        d = nodes("a", "a", "a")
        pods = gang(3, of)
        d.apply(*pods)
        d.step()
        assert [d.engine.may_bind(pod.metadata.uid) for pod in pods] == ["", "", ""]
