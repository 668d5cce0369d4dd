"""Everything that tenants can create many of is capped: it fills neither memory nor time of the scheduler."""

import random
from typing import Any

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, configured, fabric
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.groups import GroupApi, PodGroupObject
from topo_scheduler.api.objects import Container, ObjectMeta, Pod, PodSpec, ResourceRequirements, Toleration
from topo_scheduler.api.process import PendingPodsSettings
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PreferredTerm,
    Requirement,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from topo_scheduler.scheduling.instructions import ReadPod
from topo_scheduler.scheduling.intake import outside as outside_module
from topo_scheduler.scheduling.intake.outside import OutsidePods
from topo_scheduler.scheduling.intake.pod_memory import pod_bytes
from topo_scheduler.scheduling.placing.model import class_views
from topo_scheduler.scheduling.queueing import requeue
from topo_scheduler.scheduling.surveying.waiting import pending_pods
from topo_scheduler.state.nodes.resources import MAX_OFFERED_NAMES, MAX_UNOFFERED_NAMES
from topo_scheduler.state.pods.caps import MAX_SPREAD_CONSTRAINTS, MAX_TERMS, excess
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.pod_groups import read_group
from topo_scheduler.state.pods.workloads import MAX_CLASSES, Workload


def asking(name: str, requests: dict[str, Any], **spec: Any) -> Pod:
    return make_pod(
        name, spec=PodSpec(containers=[Container("main", ResourceRequirements(requests, requests))], **spec)
    )


def in_gang(name: str, pods: list[Pod]) -> list[Pod]:
    """Make pods a gang."""
    for pod in pods:
        pod.metadata.annotations |= {
            "topology.scheduler/gang-name": name,
            "topology.scheduler/gang-size": str(len(pods)),
        }
    return pods


def problem(d: Driver, pod: Pod) -> str:
    entry = d.engine.workloads.of_pod(pod.metadata.uid)
    assert entry is not None
    return entry[1].problem


def placed(d: Driver, pod: Pod) -> bool:
    return bool(d.where(pod))


# ---------------------------------------------------------------- resource names


def test_names_that_pods_invent_add_few_columns_and_harm_no_other_pod() -> None:
    d = Driver([make_node(f"n{number}", gpus=8) for number in range(4)])
    before = d.engine.world.nodes.allocatable.shape[1]
    hostile = [asking(f"h{number}", {f"made.up/r{number}": 1}) for number in range(12_000)]
    victim = make_pod("victim", gpus=1)
    d.run(*hostile, victim)
    assert placed(d, victim)
    assert d.engine.world.nodes.allocatable.shape[1] <= before + MAX_UNOFFERED_NAMES + 16
    assert "made.up/r11999: no node offers this resource" in problem(d, hostile[-1])


def test_a_pod_whose_resource_no_node_offers_is_placed_once_a_node_does() -> None:
    d = Driver([make_node("n1", gpus=8)])
    hostile = [asking(f"h{number}", {f"made.up/r{number}": 1}) for number in range(MAX_UNOFFERED_NAMES)]
    honest = asking("honest", {"example.com/nic": 1})
    d.run(*hostile, honest)
    assert not placed(d, honest)
    assert "example.com/nic" in problem(d, honest)
    node = make_node("n2", gpus=8)
    node.status.allocatable["example.com/nic"] = 1
    d.nodes(node)
    d.run(second := asking("second", {"example.com/nic": 1}))
    assert sorted(placed(d, pod) for pod in (honest, second)) == [False, True], "it has one of them"


def test_what_bound_pods_hold_of_a_resource_counts_though_its_node_is_known_later() -> None:
    d = Driver([make_node("n1", gpus=8)])
    d.run(*(asking(f"h{number}", {f"made.up/r{number}": 1}) for number in range(MAX_UNOFFERED_NAMES)))
    running = asking("running", {"example.com/nic": 1})
    running.spec.node_name = "n2"
    d.apply(running)
    node = make_node("n2", gpus=8)
    node.status.allocatable["example.com/nic"] = 1
    d.nodes(node)
    d.run(late := asking("late", {"example.com/nic": 1}))
    assert not placed(d, late), "its node has one, and another pod holds that"
    d.delete(d.pods[running.metadata.uid])
    d.step(60)
    d.settle()
    assert placed(d, late)


def test_nodes_offer_a_bounded_number_of_resources() -> None:
    node = make_node("n1", gpus=8)
    node.status.allocatable |= {f"example.com/r{number}": 1 for number in range(2 * MAX_OFFERED_NAMES)}
    d = Driver([node])
    assert d.engine.world.nodes.allocatable.shape[1] <= MAX_OFFERED_NAMES + 16
    d.run(pod := make_pod("pod", gpus=1))
    assert placed(d, pod)


# ---------------------------------------------------------------- labels


def test_labels_that_no_node_has_take_no_column_and_their_values_are_not_kept() -> None:
    d = Driver([make_node(f"n{number}", gpus=8, labels={"zone": "a"}) for number in range(4)])
    nodes = d.engine.world.nodes
    values = len(nodes.values)
    selecting = [asking(f"s{n}", {"cpu": "1"}, node_selector={f"made-up-{n}": "x"}) for n in range(300)]
    valued = [asking(f"v{n}", {"cpu": "1"}, node_selector={"zone": f"made-up-{n}"}) for n in range(300)]
    matching = [
        asking(f"m{n}", {"cpu": "1"}, affinity=Affinity(node_affinity=NodeAffinity(NodeSelector((term,)))))
        for n in range(300)
        for term in [NodeSelectorTerm((Requirement("zone", "In", (f"u{n}",)), Requirement(f"k{n}", "Exists")))]
    ]
    d.run(*selecting, *valued, *matching)
    assert not any(placed(d, pod) for pod in (*selecting, *valued, *matching))
    assert len(nodes._label_columns) <= 12
    assert len(nodes.values) <= values + 4
    d.nodes(make_node("new", gpus=8, labels={"made-up-7": "x"}))
    d.step(60)
    d.settle()
    assert placed(d, selecting[7]), "its column is there as soon as a node has it"
    d.drop_node("new")
    assert "made-up-7" not in nodes._label_columns


# ---------------------------------------------------------------- terms of one pod


def _selecting(number: int) -> PodAffinityTerm:
    selector = LabelSelector(match_labels={"app": f"a{number}"})
    return PodAffinityTerm(label_selector=selector, topology_key="kubernetes.io/hostname")


def _apart(count: int) -> Affinity:
    return Affinity(pod_anti_affinity=PodAffinity(required=[_selecting(number) for number in range(count)]))


def _near(count: int) -> Affinity:
    return Affinity(
        pod_affinity=PodAffinity(preferred=[WeightedPodAffinityTerm(1, _selecting(n)) for n in range(count)])
    )


def _preferred(count: int) -> Affinity:
    terms = tuple(PreferredTerm(1, NodeSelectorTerm((Requirement(f"k{n}", "Exists"),))) for n in range(count))
    return Affinity(node_affinity=NodeAffinity(preferred=terms))


def _valued(count: int) -> Affinity:
    term = NodeSelectorTerm((Requirement("kubernetes.io/hostname", "NotIn", tuple(f"n{n}" for n in range(count))),))
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector((term,))))


def _spread(count: int) -> list[TopologySpreadConstraint]:
    keys = [f"key-{number}" for number in range(count)]
    return [TopologySpreadConstraint(key, "DoNotSchedule", 1, label_selector=LabelSelector()) for key in keys]


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.affinity.podAntiAffinity, required terms, has 5000 entries", {"affinity": _apart(5000)}),
        ("spec.affinity.podAffinity, preferred terms, has 5000 entries", {"affinity": _near(5000)}),
        ("spec.affinity.nodeAffinity, preferred terms, has 5000 entries", {"affinity": _preferred(5000)}),
        ("spec.affinity.nodeAffinity, values, has 99999 entries", {"affinity": _valued(99_999)}),
        ("spec.topologySpreadConstraints has 5000 entries", {"topology_spread_constraints": _spread(5000)}),
        ("spec.nodeSelector has 25000 entries", {"node_selector": {f"k{n}": "v" for n in range(25_000)}}),
        ("spec.tolerations has 5000 entries", {"tolerations": [Toleration(f"k{n}") for n in range(5000)]}),
    ],
    ids=lambda value: value.split(" has")[0] if isinstance(value, str) else "",
)
def test_a_pod_with_too_many_terms_is_refused_with_field_count_cap_and_remedy(field: str, spec: dict[str, Any]) -> None:
    d = Driver([make_node("n1", gpus=8)])
    hostile, victim = asking("hostile", {"cpu": "1"}, **spec), make_pod("victim", gpus=1)
    d.run(hostile, victim)
    assert placed(d, victim)
    assert not placed(d, hostile)
    assert field in problem(d, hostile)
    assert "the scheduler reads at most" in problem(d, hostile)
    assert ";" in problem(d, hostile), "a remedy"
    assert not d.engine.world.pod_index.repelling


def test_pods_within_the_caps_are_read() -> None:
    within = asking(
        "within",
        {"cpu": "1"},
        affinity=_apart(MAX_TERMS),
        topology_spread_constraints=_spread(MAX_SPREAD_CONSTRAINTS),
    )
    assert not excess(within)
    assert not excess(asking("valued", {"cpu": "1"}, affinity=_valued(5000)))
    assert not excess(make_pod("plain", gpus=8))


def test_a_bound_pod_with_too_many_terms_holds_its_requests_and_keeps_no_pod_away() -> None:
    d = Driver([make_node("n1", gpus=8)])
    bound_pod = asking("there", {"nvidia.com/gpu": 6}, affinity=_apart(5000))
    bound_pod.spec.node_name = "n1"
    d.apply(bound_pod)
    assert not d.engine.world.pod_index.repelling
    d.run(small := make_pod("small", gpus=2), large := make_pod("large", gpus=4))
    assert placed(d, small)
    assert not placed(d, large)


def test_a_long_annotation_is_not_kept_in_any_message() -> None:
    d = Driver([make_node("n1", gpus=8)])
    pod = make_pod("pod", gpus=1, annotations={"topology.scheduler/preferred-domain": "x" * 200_000})
    d.run(pod)
    assert not placed(d, pod)
    assert len(problem(d, pod)) < 1000
    assert "200000 characters" in problem(d, pod)


# ---------------------------------------------------------------- classes


def test_a_gang_of_too_many_classes_is_refused_with_count_cap_and_remedy() -> None:
    d = Driver(fabric({"s/l": 64}))
    pods = in_gang("many", [asking(f"m{n}", {"nvidia.com/gpu": 1, "cpu": f"{n + 1}m"}) for n in range(MAX_CLASSES + 1)])
    d.run(*pods)
    assert not d.where(*pods)
    assert any(
        f"of {MAX_CLASSES + 1} different classes, a gang may have {MAX_CLASSES}" in message for message in d.told()
    )
    fewer = in_gang(
        "few", [asking(f"f{n}", {"nvidia.com/gpu": 1, "cpu": f"{n % 4 + 1}m"}) for n in range(2 * MAX_CLASSES)]
    )
    d.run(*fewer)
    assert len(d.where(*fewer)) == 2 * MAX_CLASSES


def count_views(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an entry for each view of a class that is made from now on."""
    made: list[int] = []
    original = class_views.ClassView.__init__

    def counted(self: Any, *args: Any) -> None:
        made.append(1)
        original(self, *args)

    monkeypatch.setattr(class_views.ClassView, "__init__", counted)
    return made


@pytest.mark.unrecorded
def test_thousands_of_classes_are_looked_at_a_few_at_a_time_and_none_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requeue, "NEW_CLASSES_PER_STEP", 8)
    monkeypatch.setattr(requeue, "POSTPONED_PER_CHECK", 16)
    monkeypatch.setattr(class_views, "MAX_VIEWS", 32)
    d = Driver([make_node("n1", gpus=8), make_node("n2", gpus=8)])
    d.run(filler := make_pod("filler", gpus=8), make_pod("filler-2", gpus=8))
    hostile = [
        asking(f"h{n}", {"nvidia.com/gpu": 1, "cpu": f"{n + 1}m"}, node_selector={"no": "such"}) for n in range(300)
    ]
    last = asking("last", {"nvidia.com/gpu": 1, "cpu": "999m"})
    d.run(*hostile, last)
    assert not d.where(*hostile, last)
    made = count_views(monkeypatch)
    d.delete(filler)
    d.step()
    assert len(made) <= 8 + 2, "classes of which a view was made in one step"
    for _ in range(40):
        d.step(requeue.POSTPONED_PAUSE_SECONDS)
    d.settle()
    assert placed(d, last)
    assert not d.engine.requeuer._is_late
    assert not d.engine.requeuer._late_rows


@pytest.mark.unrecorded
def test_twice_as_many_classes_as_views_are_kept_keep_no_other_pod_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real caps: the pod of another namespace is placed as soon as there is room."""
    d = Driver([make_node("n1", gpus=8), make_node("n2", gpus=8)])
    d.run(filler := make_pod("filler", gpus=8), make_pod("filler-2", gpus=8))
    hostile = [
        asking(f"h{n}", {"nvidia.com/gpu": 1, "cpu": f"{n + 1}m"}, node_selector={"no": "such"})
        for n in range(2 * class_views.MAX_VIEWS)
    ]
    victim = asking("victim", {"nvidia.com/gpu": 1, "cpu": "999m"})
    victim.metadata.namespace = "other"
    d.run(*hostile, victim)
    assert not d.where(*hostile, victim)
    assert len(d.engine.attempts.planner.views._views) <= class_views.MAX_VIEWS
    made = count_views(monkeypatch)
    d.delete(filler)
    d.step()
    assert len(made) <= requeue.NEW_CLASSES_PER_STEP + 2, "classes of which a view was made in one step"
    d.step(requeue.POSTPONED_PAUSE_SECONDS)
    d.settle()
    assert placed(d, victim), "in the first look, not after thousands of others"


@pytest.mark.unrecorded
def test_classes_of_one_namespace_do_not_hold_up_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "NEW_CLASSES_PER_STEP", 0)
    monkeypatch.setattr(requeue, "POSTPONED_PER_CHECK", 4)
    monkeypatch.setattr(class_views, "MAX_VIEWS", 4)
    d = Driver([make_node("n1", gpus=8)])
    d.run(filler := make_pod("filler", gpus=8))
    hostile = [
        asking(f"h{n}", {"nvidia.com/gpu": 1, "cpu": f"{n + 1}m"}, node_selector={"no": "such"}) for n in range(300)
    ]
    victim = asking("victim", {"nvidia.com/gpu": 1, "cpu": "999m"})
    victim.metadata.namespace = "other"
    d.run(*hostile, victim)
    d.delete(filler)
    d.step()
    d.step(requeue.POSTPONED_PAUSE_SECONDS)
    d.settle()
    assert placed(d, victim), "in the first look, not after 300 others"


def count_lookups(monkeypatch: pytest.MonkeyPatch) -> list[PodClass]:
    """Return a list that gets the class of each view that is requested from now on."""
    requested: list[PodClass] = []
    original = class_views.Views.get

    def counted(self: class_views.Views, cls: PodClass, *args: int) -> class_views.ClassView:
        requested.append(cls)
        return original(self, cls, *args)

    monkeypatch.setattr(class_views.Views, "get", counted)
    return requested


@pytest.mark.unrecorded
def test_room_too_small_for_a_class_costs_no_look_at_its_view(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver([make_node("n1", gpus=8), make_node("n2", gpus=8)])
    d.run(filler := make_pod("filler", gpus=1), make_pod("rest", gpus=7), make_pod("other", gpus=8))
    large = [asking(f"large{n}", {"nvidia.com/gpu": 8, "cpu": f"{n + 1}m"}) for n in range(300)]
    d.run(*large)
    assert not d.where(*large)
    requested = count_lookups(monkeypatch)
    d.delete(filler)
    d.step()
    assert not requested
    assert not d.engine.requeuer._is_late


@pytest.mark.unrecorded
def test_views_of_classes_that_no_node_takes_are_checked_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "VIEWS_PER_STEP", 8)
    d = Driver([make_node("n1", gpus=8), make_node("n2", gpus=8)])
    d.run(filler := make_pod("filler", gpus=8), make_pod("filler-2", gpus=8))
    hostile = [
        asking(f"h{n}", {"nvidia.com/gpu": 1, "cpu": f"{n + 1}m"}, node_selector={"no": "such"}) for n in range(300)
    ]
    victim = asking("victim", {"nvidia.com/gpu": 1, "cpu": "999m"})
    victim.metadata.namespace = "other"
    d.run(*hostile, victim)
    assert not d.where(*hostile, victim)
    requested = count_lookups(monkeypatch)
    d.delete(filler)
    d.step()
    assert sum(bool(cls.selector) for cls in requested) <= 8
    d.step(requeue.POSTPONED_PAUSE_SECONDS)
    d.settle()
    assert placed(d, victim), "in the first look, not after 300 others"
    for _ in range(20):
        d.step(requeue.POSTPONED_PAUSE_SECONDS)
    assert not d.engine.requeuer._is_late


@pytest.mark.unrecorded
def test_requests_of_few_classes_are_compared_in_one_step_and_none_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requeue, "COMPARED_PER_STEP", 100)
    d = Driver([make_node("n1", gpus=8)])
    d.run(filler := make_pod("filler", gpus=8))
    hostile = [asking(f"h{n}", {"nvidia.com/gpu": 9, "cpu": f"{n + 1}m"}) for n in range(300)]
    late = asking("late", {"nvidia.com/gpu": 8, "cpu": "999m"})
    d.run(*hostile, late)
    assert not d.where(*hostile, late)
    d.delete(filler)
    d.step()
    assert len(d.engine.requeuer._is_late) == 201
    for _ in range(20):
        d.step(requeue.POSTPONED_PAUSE_SECONDS)
    d.settle()
    assert placed(d, late)
    assert not d.engine.requeuer._is_late


# ---------------------------------------------------------------- pending pods of a namespace


def reading(**limits: int) -> Configuration:
    """Return a configuration with these limits of pending pods, which may be lower than administrators may set."""
    configuration = configured()
    scheduler = configuration.scheduler.model_copy(
        update={"pending_pods": PendingPodsSettings().model_copy(update=limits)}
    )
    return Configuration(scheduler, configuration.topology)


def test_pods_beyond_those_a_namespace_may_have_pending_come_in_when_there_is_room() -> None:
    d = Driver([make_node("n1", gpus=8)], config=reading(max_per_namespace=20, memory=1 << 30))
    filler = make_pod("filler", gpus=8)
    d.run(filler)
    many = [make_pod(f"p{n:03}", gpus=1, created=n) for n in range(100)]
    d.run(*reversed(many))
    assert len(d.engine.arrivals.outside) == 80
    assert pending_pods(d.engine)["outside"] == 80
    limits = "(pendingPods.maxPerNamespace 20, pendingPods.memory 1024Mi for all)"
    assert sum("pending pods already" in message and limits in message for message in d.told()) == 80
    victim = make_pod("victim", gpus=0, namespace="other")
    d.run(victim)
    assert placed(d, victim)
    d.delete(filler)
    d.settle()
    assert len(d.where(*many)) == 8
    assert len(d.engine.arrivals.outside) == 72
    bound = [pod for pod in many if placed(d, pod)]
    assert min(int(p.metadata.name[1:]) for p in many if p.metadata.uid in d.engine.arrivals.outside) > 0
    d.delete(*many[30:60])
    d.delete(*bound)
    for _ in range(40):
        d.step(1)
        d.settle()
        d.delete(*[pod for pod in many if pod.metadata.uid in d.pods and placed(d, pod)])
    assert len(d.where(*many)) >= 70, "all others had their turn"
    assert not len(d.engine.arrivals.outside)
    assert not d.engine.arrivals.outside._lines


@pytest.mark.unrecorded
def test_pods_beyond_the_memory_for_pending_pods_stay_outside_and_namespaces_share_it() -> None:
    d = Driver([make_node("n1", gpus=8)], config=reading(max_per_namespace=1000, memory=500_000))
    d.run(filler := make_pod("filler", gpus=8))
    large = {f"word{n}": "x" * 60 for n in range(200)}
    hostile = [make_pod(f"h{n:03}", gpus=1, created=n) for n in range(100)]
    for pod in hostile:
        pod.metadata.labels = dict(large)
    d.run(*hostile)
    outside = d.engine.arrivals.outside
    assert 0 < 100 - len(outside) < 10, "each counts 90 kB"
    assert d.engine.arrivals._pods._all_bytes < 2 * 500_000
    plain = [make_pod(f"v{n}", gpus=8, namespace="other", created=200) for n in range(20)]
    d.run(*plain)
    assert not any(pod.metadata.uid in outside for pod in plain), "its share is free"
    d.delete(filler)
    d.settle()
    assert len(d.where(*plain, *hostile)) > 0
    for _ in range(150):
        d.step(1)
        d.settle()
        d.delete(*[pod for pod in (*hostile, *plain) if pod.metadata.uid in d.pods and placed(d, pod)])
    assert not len(outside)
    assert not d.engine.arrivals._pods._bytes
    assert d.engine.arrivals._pods._all_bytes == 0
    assert not d.engine.arrivals._pods._bytes_of


def test_pods_outside_are_kept_small() -> None:
    outside = OutsidePods()
    pod = make_pod("pod", gpus=1)
    pod.metadata.labels = {f"word{n}": "x" * 60 for n in range(200)}
    outside.put(pod)
    assert len(outside._pods[pod.metadata.uid].data) < pod_bytes(pod) / 20
    assert outside.take("default") == pod


def test_the_oldest_pod_outside_comes_in_first_and_those_that_go_are_forgotten() -> None:
    outside = OutsidePods()
    pods = [make_pod(f"p{n}", created=n) for n in range(200)]
    for pod in reversed(pods):
        assert outside.put(pod)
        assert not outside.put(pod)
    for pod in pods[:50] + pods[60:180]:
        outside.drop(pod.metadata.uid)
    assert len(outside._lines["default"]) <= 2 * 30 + 16
    assert [outside.take("default") for _ in range(30)] == pods[50:60] + pods[180:]
    assert outside.take("default") is None
    assert not len(outside)
    assert not outside._lines
    assert not outside._counts


def _random_names(name: str, characters: int, *, namespace: str = "default", created: int = 0) -> Pod:
    """Return a pod with text that does not compress."""
    pod = make_pod(name, gpus=8, namespace=namespace, created=created)
    chance = random.Random(f"{namespace}/{name}")
    values = tuple(f"{chance.getrandbits(240):060x}" for _ in range(characters // 60))
    term = NodeSelectorTerm((Requirement("zone", "NotIn", values),))
    pod.spec.affinity = Affinity(NodeAffinity(NodeSelector((term,))))
    return pod


def test_large_pods_outside_beyond_their_budget_keep_a_reference_only_and_other_namespaces_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outside_module, "NAMESPACE_BYTES", 100_000)
    monkeypatch.setattr(outside_module, "TOTAL_BYTES", 240_000)
    outside = OutsidePods()
    for number in range(50):
        outside.put(_random_names(f"h{number}", 30_000, namespace="hostile"))
    plain = [make_pod(f"p{number}", namespace="hostile") for number in range(100)]
    for pod in plain:
        outside.put(pod)
    of_others = [_random_names("large", 30_000, namespace=f"n{number}") for number in range(8)]
    for pod in of_others:
        outside.put(pod)
    whole = [uid for uid in outside._pods if outside.keeps_whole(uid)]
    assert sum(len(packed.data) for packed in outside._pods.values() if len(packed.data) > 1024) < 300_000
    assert {pod.metadata.uid for pod in (*plain, *of_others)} <= set(whole)
    assert len(whole) < 100 + 8 + 100_000 // 15_000
    for uid in list(outside._pods):
        outside.drop(uid)
    assert not outside._memory._bytes_of
    assert not outside._lines


@pytest.mark.unrecorded
def test_a_pod_of_which_only_the_reference_is_kept_is_read_from_the_api_server_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outside_module, "NAMESPACE_BYTES", 40_000)
    d = Driver([make_node("n1", gpus=8)], config=reading(max_per_namespace=2, memory=1 << 30))
    d.run(filler := make_pod("filler", gpus=8))
    many = [_random_names(f"p{number:02}", 30_000, created=number) for number in range(12)]
    young = make_pod("young", gpus=8, created=100)
    d.run(*many, young)
    outside = d.engine.arrivals.outside
    references = [pod for pod in many if pod.metadata.uid in outside and not outside.keeps_whole(pod.metadata.uid)]
    assert len(references) > 5
    assert sum("only a reference to this pod is kept" in message for message in d.told()) == len(references)
    assert outside.keeps_whole(young.metadata.uid), "a small pod is kept whole"
    d.delete(filler)
    order: list[str] = []
    for number in range(40):
        d.step(1)
        wanted = [instruction.pod.uid for instruction in d.said if isinstance(instruction, ReadPod)]
        d.said.clear()
        if wanted:
            assert not d.engine.pending_work, "it waits for the answers"
            d.apply(late := make_pod(f"late-{number}", gpus=8, created=200))
            assert late.metadata.uid in outside, "room is left for pods that are being read"
            d.delete(late)
        for uid in wanted:
            assert outside.is_being_read(uid)
            d.tell_again(d.pods[uid])
        d.settle()
        bound = [pod for pod in (*many, young) if pod.metadata.uid in d.pods and placed(d, pod)]
        order += [pod.metadata.name for pod in bound]
        d.delete(*bound)
    assert sorted(order) == sorted(pod.metadata.name for pod in (*many, young))
    assert order[-1] == "young", "the oldest comes first"
    assert not len(outside)
    assert not outside._reading
    assert not outside._reading_of


def test_a_reference_that_is_being_read_follows_newer_versions_and_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_module, "NAMESPACE_BYTES", 0)
    outside = OutsidePods()
    first, second = _random_names("a", 30_000), _random_names("b", 30_000, created=1)
    for pod in (first, second):
        outside.put(pod)
        outside.take("default")
        assert outside.is_being_read(pod.metadata.uid)
    outside.drop(first.metadata.uid)
    assert not outside.is_being_read(first.metadata.uid)
    assert not outside.put(second), "its newer version came by the watch"
    assert not outside.is_being_read(second.metadata.uid)
    assert list(outside.namespaces()) == ["default"], "it is in the line again"


def test_a_gang_of_too_many_classes_that_grows_gets_one_event_per_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s/l": 4}))
    pods = in_gang("many", [asking(f"m{n}", {"cpu": f"{n + 1}m"}) for n in range(2 * MAX_CLASSES)])
    looked: list[int] = []
    original = vars(Workload)["problem"].fget

    def problem(workload: Workload) -> Any:
        looked.append(1)
        return original(workload)

    monkeypatch.setattr(Workload, "problem", property(problem))
    for pod in pods:
        looked.clear()
        d.run(pod)
        assert len(looked) <= 8, "whether it can be placed is not asked once for each member"
    assert sum("different classes, a gang may have" in message for message in d.told()) == len(pods), (
        "each gets one event"
    )


def test_labels_of_too_many_characters_refuse_a_pending_pod_and_select_no_bound_one() -> None:
    d = Driver(fabric({"s/l1": 2}))
    labels = {f"{n:0300d}": "v" * 63 for n in range(60)}
    pending = make_pod("pending", gpus=1, labels=labels)
    bound = make_pod("bound", gpus=1, labels=labels, node="s-l1-0")
    d.apply(pending, bound)
    d.step()
    assert "metadata.labels has 21780 characters, the scheduler reads at most 16384" in d.told(pending)[0]
    entry = d.engine.world.ledger.get(bound.metadata.uid)
    assert entry is not None and entry.profile is not None and entry.profile.labels == {}


def test_a_podgroup_with_too_many_subgroup_policies_is_refused_and_what_is_quoted_is_short() -> None:
    many = [{"name": f"s{number}", "networkTopology": {"highestTierAllowed": 1}} for number in range(65)]
    group = PodGroupObject(ObjectMeta(name="g", namespace="ns"), {"minMember": 2, "subGroupPolicy": many})
    assert "spec.subGroupPolicy has 65 entries" in read_group(GroupApi.VOLCANO, "v1beta1", group).problem
    group.spec["subGroupPolicy"] = [{"name": "s", "matchLabelKeys": ["k" * 30_000, 1]}]
    problem = read_group(GroupApi.VOLCANO, "v1beta1", group).problem
    assert len(problem) < 300
    assert problem.endswith("... is not a list of label keys"), "what is wrong stands behind what is quoted"
    selector = {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v" * 30_000]}]}
    group.spec["subGroupPolicy"] = [{"name": "s", "labelSelector": selector}]
    assert read_group(GroupApi.VOLCANO, "v1beta1", group).problem.endswith("...' is not a label value")
