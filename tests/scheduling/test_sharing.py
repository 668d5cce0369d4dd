"""Quotas and access to domains: what the configuration leaves to a namespace, and how events report that."""

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, configured, fabric
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.selectors import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.scheduling.queueing.quotas import MAX_NAMESPACES, _cap, _Meter
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.classes import NO_LIMIT, PodClass


def team(size: int, namespace: str = "a", name: str = "g", gpus: int = 8, start: int = 0) -> list[Pod]:
    annotations = {"gang-name": name, "gang-size": str(size)}
    return [
        make_pod(f"{name}-{n}", namespace=namespace, gpus=gpus, annotations=annotations, created=start + n)
        for n in range(size)
    ]


def cluster(spec: str, leaves: dict[str, int] | None = None) -> Driver:
    return Driver(fabric(leaves or {"s1/l1": 2, "s1/l2": 2, "s2/l1": 2, "s2/l2": 2}), configured(spec))


def spines(d: Driver, *pods: Pod) -> set[str]:
    return {node.partition("-")[0] for node in d.where(*pods).values()}


# ---------------------------------------------------------------- access


def test_a_domain_is_for_the_namespaces_listed_only() -> None:
    d = cluster("{domainAccess: [{domain: s1, namespaces: [a, 'ml-*']}]}")
    mine, theirs, other = (make_pod(name, namespace=name, gpus=8) for name in ("a", "ml-x", "b"))
    for pod in (mine, theirs):
        pod.spec.node_selector = {"topology.scheduler/spine": "s1"}
    d.run(mine, theirs, other)
    assert spines(d, mine, theirs) == {"s1"}
    assert spines(d, other) == {"s2"}


def test_a_pod_with_room_in_a_reserved_domain_only_gets_an_event() -> None:
    d = cluster("{domainAccess: [{domain: s1/l1, namespaces: [a]}]}", {"s1/l1": 2})
    pod = make_pod("p", namespace="b", gpus=1)
    assert d.run(pod) == {}
    assert f"0/2 nodes are available: 2 {NodeReason.ACCESS}." in d.told(pod)[0]


def test_a_gang_keeps_out_of_a_reserved_leaf_and_its_rule_knows() -> None:
    """Without l1 no single leaf holds four nodes: two leaves are the fewest."""
    d = cluster("{domainAccess: [{domain: l1, namespaces: [a]}]}", {"s1/l1": 4, "s1/l2": 2, "s1/l3": 2})
    pods = team(4, "b")
    assert {node.rpartition("-")[0] for node in d.run(*pods).values()} == {"s1-l2", "s1-l3"}


def test_access_that_is_opened_helps_at_once_and_access_that_is_taken_evicts_no_pod() -> None:
    d = cluster("{domainAccess: [{domain: s1, namespaces: [a]}]}", {"s1/l1": 1})
    first, second = (make_pod(name, namespace="b", gpus=1, created=n) for n, name in enumerate(("p", "q")))
    assert d.run(first) == {}
    d.engine.configure(configured())
    d.settle()
    assert d.where(first)
    d.engine.configure(configured("{domainAccess: [{domain: s1, namespaces: [a]}]}"))
    d.settle()
    assert d.run(second) == {}
    assert d.where(first)
    assert d.evicted() == []


def test_access_follows_labels() -> None:
    d = cluster("{domainAccess: [{domain: s1, namespaces: [a]}]}", {"s1/l1": 1})
    pod = make_pod("p", namespace="b", gpus=1)
    assert d.run(pod) == {}
    d.nodes(make_node("s1-l1-1", "s2/l1"))
    d.settle()
    assert d.where(pod)


# ---------------------------------------------------------------- quotas


def test_a_quota_of_the_whole_cluster_counts_the_pods_of_every_scheduler() -> None:
    d = cluster("{quotas: [{namespaces: [a], hard: {gpus: 16}}]}")
    d.apply(make_pod("others", namespace="a", gpus=8, scheduler="default-scheduler", node="s1-l1-1"))
    first, second = (make_pod(name, namespace="a", gpus=8, created=n) for n, name in enumerate(("one", "two")))
    free = make_pod("free", namespace="b", gpus=8, created=9)
    d.run(first, second, free)
    assert set(d.where(first, second, free)) == {"one", "free"}
    message = d.told(second)[-1]
    assert f"8 {NodeReason.QUOTA}" in message
    assert "Quota of namespace a: 16 of 16 gpus in use, 8 more asked." in message


def test_a_gang_counts_whole() -> None:
    d = cluster("{quotas: [{namespaces: [a], hard: {gpus: 24}}]}")
    pods = team(4)
    assert d.run(*pods) == {}
    assert "0 of 24 gpus in use, 32 more asked, which it can never grant" in d.told(pods[0])[-1]
    assert "larger than the cluster" not in d.told(pods[0])[-1]
    three = team(3, name="three")
    assert len(d.run(*three)) == 3


def test_pods_alone_beside_each_other_stay_within_a_quota() -> None:
    d = cluster("{quotas: [{namespaces: ['*'], hard: {cpu: '2500m', memory: 1Ti}}]}")
    pods = [make_pod(f"p{n}", namespace="a", cpu="1", created=n) for n in range(4)]
    assert set(d.run(*pods)) == {"p0", "p1"}
    assert "Quota of namespace a: 2 of 2.5 cpu in use, 1 more asked." in d.told(pods[2])[-1]


def test_each_namespace_of_a_pattern_has_the_quota_by_itself() -> None:
    d = cluster("{quotas: [{namespaces: ['team-*'], hard: {nvidia.com/gpu: 8}}]}")
    pods = [make_pod(f"p-{ns}-{n}", namespace=ns, gpus=8) for ns in ("team-a", "team-b") for n in range(2)]
    assert len(d.run(*pods)) == 2


@pytest.mark.parametrize("event", ["ends", "config"])
def test_a_pod_that_waits_for_a_quota_is_tried_again_when_it_has_room(event: str) -> None:
    d = cluster("{quotas: [{namespaces: [a], hard: {gpus: 8}}]}")
    # What is freed lies on a node where the waiting pod could not go.
    d.nodes(make_node("apart", "s3/l1", labels={"kind": "odd"}, unschedulable=True))
    holder = make_pod("holder", namespace="a", gpus=8, scheduler="default-scheduler", node="apart")
    pod = make_pod("p", namespace="a", gpus=8)
    d.apply(holder)
    assert d.run(pod) == {}
    if event == "ends":
        d.finish(holder)
    else:
        d.engine.configure(configured("{quotas: [{namespaces: [a], hard: {gpus: 16}}]}"))
    d.settle()
    assert d.where(pod)


def test_a_pod_that_waits_for_a_quota_is_not_tried_because_more_of_it_is_used() -> None:
    d = cluster("{quotas: [{namespaces: [a], hard: {gpus: 12}}]}")
    d.run(make_pod("holder", namespace="a", gpus=8))
    assert d.run(make_pod("waits", namespace="a", gpus=8)) == {}
    d.forget()
    d.apply(make_pod("theirs", namespace="a", gpus=2, scheduler="default-scheduler", node="s2-l2-1"))
    d.settle()
    assert d.decisions() == []


def test_a_gang_that_waits_for_a_quota_is_tried_again() -> None:
    d = cluster("{quotas: [{namespaces: [a], domain: s1, hard: {gpus: 16}}]}", {"s1/l1": 2, "s1/l2": 2})
    holder = make_pod("holder", namespace="a", gpus=8, scheduler="default-scheduler", node="s1-l1-1")
    d.apply(holder)
    pods = team(2)
    assert d.run(*pods) == {}
    assert "Quota of namespace a in s1: 8 of 16 gpus in use, 16 more asked." in d.told(pods[0])[-1]
    d.finish(holder)
    d.settle()
    assert len(d.where(*pods)) == 2


def test_a_quota_does_not_hide_that_no_node_has_a_label_for_the_level() -> None:
    """No pod is preempted for a gang that no room would help, and the others are served."""
    d = cluster("{quotas: [{namespaces: [a], hard: {gpus: 16}}]}", {"l1": 2, "l2": 2})
    d.engine.budgets_known()
    d.run(make_pod("holder", namespace="a", gpus=8))
    pods = team(2)
    for pod in pods:
        pod.spec.priority = 1
        pod.metadata.annotations["topology.scheduler/required-level"] = "spine"
    other = make_pod("other", namespace="b", gpus=8)
    assert set(d.run(*pods, other)) == {"other"}
    assert d.preempted() == []
    assert "asks for one spine, for which no node has a label" in d.told(pods[0])[-1]
    assert "8 of 16 gpus in use, 16 more asked." in d.told(pods[0])[-1]


def test_a_bind_that_fails_gives_back_to_the_quota() -> None:
    d = cluster("{quotas: [{namespaces: [a], hard: {gpus: 8}}]}")
    first, second = (make_pod(name, namespace="a", gpus=8, created=n) for n, name in enumerate(("one", "two")))
    d.apply(first, second)
    d.step()
    assert [bind.pod.name for bind in d.flight.values()] == ["one"]
    d.answer(first.metadata.uid, BindOutcome.WITHDRAWN)
    d.step()
    assert [bind.pod.name for bind in d.flight.values()] == ["two"]


def test_a_quota_of_a_domain_sends_the_rest_elsewhere() -> None:
    d = cluster("{quotas: [{namespaces: [a], domain: s1, hard: {gpus: 16}}]}")
    pods = [
        make_pod(f"p{n}", namespace="a", gpus=8, created=n, annotations={"preferred-domain": "s1"}) for n in range(6)
    ]
    where = d.run(*pods)
    assert [node.partition("-")[0] for node in where.values()].count("s1") == 2
    assert len(where) == 6


def test_a_gang_goes_to_the_domain_where_its_quota_holds_all_of_it() -> None:
    d = cluster("{quotas: [{namespaces: [a], domain: s1, hard: {gpus: 8}}]}")
    pods = team(2)
    d.run(*pods)
    assert spines(d, *pods) == {"s2"}


def test_a_quota_of_a_leaf_caps_the_members_there() -> None:
    d = cluster("{quotas: [{namespaces: [a], domain: s1/l1, hard: {gpus: 8}}]}", {"s1/l1": 4, "s1/l2": 3})
    pods = team(4)
    where = list(d.run(*pods).values())
    assert sorted(node.rpartition("-")[0] for node in where) == ["s1-l1", "s1-l2", "s1-l2", "s1-l2"]


def test_a_gang_of_different_pods_keeps_out_of_a_domain_that_can_not_take_it_whole() -> None:
    d = cluster("{quotas: [{namespaces: [a], domain: s1, hard: {gpus: 15}}]}")
    annotations = {"gang-name": "g", "gang-size": "3"}
    pods = [
        make_pod(f"g-{n}", namespace="a", gpus=gpus, annotations=annotations, created=n)
        for n, gpus in enumerate((8, 4, 4))
    ]
    d.run(*pods)
    assert spines(d, *pods) == {"s2"}


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ("{quotas: [{namespaces: [a], domain: s1, hard: {gpus: 15}}]}", {"s2"}),
        ("{domainAccess: [{domain: s1, namespaces: [b]}]}", {"s2"}),
        ("{quotas: [{namespaces: [a], hard: {gpus: 15}}]}", set()),
        ("{quotas: [{namespaces: [a], hard: {gpus: 16}}]}", {"s1"}),
    ],
    ids=["quota of a domain", "reserved", "quota", "quota with room"],
)
def test_a_gang_whose_members_look_at_each_other_keeps_to_it_too(spec: str, where: set[str]) -> None:
    d = cluster(spec)
    annotations = {"gang-name": "g", "gang-size": "2"}
    pods = [
        make_pod(f"g-{n}", namespace="a", gpus=8, annotations=annotations, created=n, labels={"app": "g"})
        for n in range(2)
    ]
    for pod in pods:
        near = PodAffinityTerm(LabelSelector({"app": "g"}), topology_key="topology.scheduler/leaf")
        pod.spec.affinity = Affinity(pod_affinity=PodAffinity([near]))
    d.run(*pods)
    assert spines(d, *pods) == where
    assert not [message for message in d.told() if "fault" in message]


def test_a_quota_follows_labels() -> None:
    d = cluster("{quotas: [{namespaces: [a], domain: s1, hard: {gpus: 8}}]}", {"s1/l1": 1, "s2/l1": 1})
    holder = make_pod("holder", namespace="a", gpus=4, scheduler="default-scheduler", node="s2-l1-1")
    d.apply(holder)
    d.nodes(make_node("s2-l1-1", "s1/l2"))
    first, second = (make_pod(name, namespace="a", gpus=4, created=n) for n, name in enumerate(("one", "two")))
    assert len(d.run(first, second)) == 1
    d.drop_node("s2-l1-1")
    d.settle()
    assert len(d.where(first, second)) == 2, "what its node took along counts no more"


def test_a_quota_of_a_domain_without_nodes_keeps_no_pod_pending() -> None:
    d = cluster("{quotas: [{namespaces: [a], domain: s2, hard: {gpus: 8}}]}", {"s1/l1": 1})
    pods = team(2)
    assert d.run(*pods) == {}
    assert d.told(pods[0])
    assert not [text for text in d.told(pods[0]) if "Quota" in text]
    d.nodes(make_node("s2-l1-1", "s2/l1"))
    large = make_pod("large", namespace="a", gpus=9)
    assert d.run(large) == {}
    assert "Quota of namespace a in s2: 8 of 8 gpus in use, 9 more asked" in d.told(large)[0]


def test_labels_that_take_a_pod_out_of_a_quota_s_domain_help_pods_that_wait_for_it() -> None:
    d = cluster("{quotas: [{namespaces: [a], domain: s1, hard: {gpus: 8}}]}", {"s1/l1": 2})
    holder = make_pod("holder", namespace="a", gpus=8, scheduler="default-scheduler", node="s1-l1-1")
    pod = make_pod("p", namespace="a", gpus=8)
    d.apply(holder)
    assert d.run(pod) == {}
    d.nodes(make_node("s1-l1-1", "s2/l1"))
    d.settle()
    assert d.where(pod) == {"p": "s1-l1-2"}


def test_after_a_restart_a_quota_is_as_used_as_before() -> None:
    spec = "{quotas: [{namespaces: [a], domain: s1, hard: {gpus: 8}}]}"
    d = cluster(spec, {"s1/l1": 2})
    first, second = (make_pod(name, namespace="a", gpus=8, created=n) for n, name in enumerate(("one", "two")))
    d.run(first)
    again = cluster(spec, {"s1/l1": 2})
    again.apply(*d.pods.values())
    assert again.run(second) == {}


# ---------------------------------------------------------------- names


def test_names_that_mean_nothing_are_complained_of_once() -> None:
    d = cluster(
        "{domainAccess: [{domain: s9, namespaces: [a]}], quotas: [{namespaces: [a], domain: l1, hard: {cpu: 1}}]}"
    )
    d.step()
    d.nodes(make_node("new", "s3/l1"))
    d.step()
    assert len(d.complaints()) == 2
    assert "spec.domainAccess: no domain is called s9" in d.complaints()[0]
    assert "spec.quotas: l1 may mean s1/l1, s2/l1; it applies to all of them" in d.complaints()[1]
    d.engine.configure(configured())
    d.step()
    assert len(d.complaints()) == 2


def test_names_are_not_complained_of_before_any_node_is_known() -> None:
    d = Driver((), configured("{domainAccess: [{domain: s1, namespaces: [a]}]}"))
    d.step()
    d.nodes(make_node("n", "s1/l1"))
    d.step()
    assert d.complaints() == []


def test_a_name_that_several_domains_have_means_all_of_them() -> None:
    d = cluster("{domainAccess: [{domain: l1, namespaces: [a]}]}")
    pods = [make_pod(f"p{n}", namespace="b", gpus=8, created=n) for n in range(8)]
    assert {node.split("-")[1] for node in d.run(*pods).values()} == {"l2"}
    assert len(d.where(*pods)) == 4


@pytest.mark.parametrize(("held", "now"), [(0, NO_LIMIT), (2, NO_LIMIT), (3, NO_LIMIT), (5, 1), (7, 0)])
def test_a_quota_that_has_enough_left_caps_nothing(held: int, now: int) -> None:
    """Of 7 GPUs, for two pods of 2; the quota is short because of others that are placed with them."""
    meter = _Meter(("a",), "", {GPU: 7000})
    cap = _cap(meter, {GPU: held}, [GPU], (PodClass(((GPU, 2),)), 2), 0, whole=False)
    assert cap is not None and (cap.now, cap.ever) == (now, NO_LIMIT)


def test_namespaces_that_come_and_go_leave_nothing_behind() -> None:
    spec = "{quotas: [{namespaces: ['*'], domain: l1, hard: {gpus: 8}}], domainAccess: [{domain: l2, namespaces: [a]}]}"
    d = Driver(fabric({"s1/l1": 1, "s1/l2": 1}), configured(spec))
    sharing, one_gpu = d.engine.sharing, PodClass(amounts=((GPU, 1),))
    for number in range(2 * MAX_NAMESPACES):
        sharing.bound(f"ci-{number}", [(one_gpu, [])], 0)
    for number in range(20):
        pod = make_pod("p", namespace=f"ci-{number}", gpus=1, node="s1-l1-1", scheduler="other")
        d.apply(pod)
        d.step()
        d.delete(pod)
    meter = sharing._quotas._meters[0]
    assert meter.inside.any()
    assert not meter.held
    assert len(sharing._quotas._of) <= MAX_NAMESPACES
    assert len(sharing._shut) <= MAX_NAMESPACES
