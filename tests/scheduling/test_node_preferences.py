"""Preferences of pods decide where there is a choice, and never keep a pod pending."""

from collections import Counter

import numpy as np
import pytest

from tests.helpers import NVIDIA, make_node, make_pod, where
from tests.helpers import term as node_term
from tests.scheduling.affinity_pods import HOSTNAME, WEB_PODS, one_gpu_spec, pod_affinity, web_pod
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import (
    Container,
    ContainerImage,
    Node,
    PodSpec,
    ResourceRequirements,
    Taint,
    Toleration,
)
from topo_scheduler.api.selectors import (
    Affinity,
    NodeAffinity,
    PodAffinity,
    PodAffinityTerm,
    PreferredTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from topo_scheduler.scheduling.rules.node_preferences import images_there

GB = 1024**3


def racks(*of: tuple[str, str], **more: object) -> Driver:
    """Nodes n1, n2, … at (leaf, rack)."""
    return Driver(
        [
            make_node(f"n{number}", leaf, labels={HOSTNAME: f"n{number}", "rack": rack}, **more)  # type: ignore[arg-type]
            for number, (leaf, rack) in enumerate(of, 1)
        ]
    )


def weighted(key: str, weight: int = 100) -> WeightedPodAffinityTerm:
    return WeightedPodAffinityTerm(weight, PodAffinityTerm(WEB_PODS, topology_key=key))


def rather_near(key: str) -> Affinity:
    return Affinity(pod_affinity=PodAffinity(preferred=[weighted(key)]))


def rather_away(key: str) -> Affinity:
    return Affinity(pod_anti_affinity=PodAffinity(preferred=[weighted(key)]))


def rather_on(key: str, value: str, weight: int = 10) -> Affinity:
    return Affinity(node_affinity=NodeAffinity(preferred=(PreferredTerm(weight, node_term(where(key, "In", value))),)))


def anyway(key: str) -> PodSpec:
    return one_gpu_spec(
        topology_spread_constraints=[TopologySpreadConstraint(key, "ScheduleAnyway", 1, label_selector=WEB_PODS)]
    )


def with_image(name: str, gpus: int = 0) -> PodSpec:
    requests: dict[str, str | int | float] = {NVIDIA: gpus} if gpus else {"cpu": "1"}
    return PodSpec(containers=[Container("main", ResourceRequirements(requests, requests), image=name)])


def holding(name: str, leaf: str, **images: int) -> Node:
    node = make_node(name, leaf)
    node.status.images = [ContainerImage([f"registry/{image}:latest"], size) for image, size in images.items()]
    return node


def test_a_pod_goes_where_it_would_rather_be_in_whatever_leaf_that_is() -> None:
    d = racks(("s1/l1", "a"), ("s1/l2", "b"), ("s2/l3", "c"))
    d.apply(make_pod("busy", gpus=4, node="n1", scheduler="other"))
    assert d.run(make_pod("p", spec=one_gpu_spec(affinity=rather_on("rack", "c")))) == {"p": "n3"}


def test_and_somewhere_else_when_there_is_no_room() -> None:
    d = racks(("s1/l1", "a"), ("s2/l3", "c"))
    d.apply(make_pod("full", gpus=8, node="n2", scheduler="other"))
    assert d.run(make_pod("p", spec=one_gpu_spec(affinity=rather_on("rack", "c")))) == {"p": "n1"}


def test_a_pod_is_placed_near_pods_that_it_prefers_and_away_from_those_that_it_does_not() -> None:
    d = racks(("s1/l1", "a"), ("s1/l2", "b"), ("s2/l3", "b"), ("s2/l4", "a"))
    d.apply(web_pod("there", node="n3"))
    assert d.run(make_pod("friend", spec=one_gpu_spec(affinity=rather_near("rack"))))["friend"] in ("n2", "n3")
    assert d.run(make_pod("shy", spec=one_gpu_spec(affinity=rather_away("rack"))))["shy"] in ("n1", "n4")


def test_the_preferences_of_running_pods_count_too() -> None:
    d = racks(("s1/l1", "a"), ("s1/l2", "b"), ("s2/l3", "c"))
    d.apply(make_pod("lonely", spec=one_gpu_spec(affinity=rather_near("rack")), node="n3", scheduler="other"))
    assert d.run(web_pod("p")) == {"p": "n3"}
    other = racks(("s1/l1", "a"), ("s1/l1", "b"))
    other.apply(make_pod("hermit", spec=one_gpu_spec(affinity=rather_away("rack")), node="n1", scheduler="other"))
    assert other.run(web_pod("p")) == {"p": "n2"}
    needy = racks(("s1/l1", "a"), ("s1/l2", "b"), ("s2/l3", "c"))
    needy.apply(make_pod("bound", spec=one_gpu_spec(affinity=pod_affinity("rack")), node="n2", scheduler="other"))
    assert needy.run(web_pod("p")) == {"p": "n2"}, "required affinity of a running pod draws a little"


def test_what_should_be_spread_anyway_is_even_and_never_waits() -> None:
    d = racks(("s1/l1", "a"), ("s1/l1", "a"), ("s1/l1", "b"))
    pods = [web_pod(f"p{number}", anyway("rack")) for number in range(6)]
    for pod in pods:
        d.run(pod)
    rack = {"n1": "a", "n2": "a", "n3": "b"}
    assert Counter(rack[pod.spec.node_name] for pod in pods) == {"a": 3, "b": 3}
    full = racks(("s1/l1", "a"), ("s1/l1", "b"))
    full.apply(make_pod("busy", gpus=8, node="n2", scheduler="other"))
    assert len(full.run(*[web_pod(f"q{number}", anyway("rack")) for number in range(4)])) == 4


def test_a_taint_that_only_deters_is_avoided_unless_tolerated() -> None:
    deterred = make_node("n1", "s1/l1", taints=[Taint("spot", "", "PreferNoSchedule")])
    d = Driver([deterred, make_node("n2", "s1/l2", gpus=4)])
    d.apply(make_pod("busy", gpus=2, node="n1", scheduler="other"))
    assert d.run(make_pod("p", gpus=4)) == {"p": "n2"}
    assert d.run(make_pod("q", gpus=4)) == {"q": "n1"}, "rather there than nowhere"
    tolerant = make_pod("t", gpus=1)
    tolerant.spec.tolerations = [Toleration("spot", "Exists")]
    assert d.run(tolerant) == {"t": "n1"}


def test_members_of_a_gang_get_the_leaf_they_like_but_never_more_leaves_for_it() -> None:
    d = racks(*[("s1/l1", "a")] * 2, *[("s1/l2", "b")] * 2)
    wish = one_gpu_spec(affinity=rather_on("rack", "b"))
    annotations = {"gang-name": "g", "gang-size": "2"}
    pods = [
        make_pod(f"g-{number}", spec=one_gpu_spec(affinity=wish.affinity), annotations=annotations)
        for number in range(2)
    ]
    assert set(d.run(*pods).values()) <= {"n3", "n4"}
    split = racks(("s1/l1", "a"), ("s1/l1", "a"), ("s1/l2", "b"), ("s1/l3", "b"))
    whole = {NVIDIA: 8}
    pods = [
        make_pod(
            f"g-{number}",
            spec=PodSpec(containers=[Container("main", ResourceRequirements(whole, whole))], affinity=wish.affinity),  # type: ignore[arg-type]
            annotations=annotations,
        )
        for number in range(2)
    ]
    assert set(split.run(*pods).values()) == {"n1", "n2"}, "one leaf they like less, not two that they like"


def test_among_equal_nodes_one_that_has_the_image_is_taken() -> None:
    d = Driver([holding("n1", "s1/l1"), holding("n2", "s1/l1", big=8 * GB), holding("n3", "s1/l1", other=8 * GB)])
    assert d.run(make_pod("p", spec=with_image("registry/big"))) == {"p": "n2"}
    assert d.run(make_pod("q", spec=with_image("registry/big:latest"))) == {"q": "n2"}
    d.nodes(holding("n2", "s1/l1"), holding("n3", "s1/l1", big=8 * GB))
    assert d.run(make_pod("r", spec=with_image("registry/big"))) == {"r": "n3"}, "images come and go"
    d.drop_node("n3")
    assert d.engine.world.nodes.images.sizes == {}


@pytest.mark.parametrize(
    ("size", "have", "points"),
    [
        # 100 * (size * have / nodes - 23 MiB) / (1000 MiB - 23 MiB), as kube-scheduler 1.36 reckons
        (500 * 1024**2, 1, 23),
        (500 * 1024**2, 2, 48),
        (20 * 1024**2, 2, 0),
        (4000 * 1024**2, 2, 100),
    ],
)
def test_images_count_by_size_and_by_how_many_have_them(size: int, have: int, points: int) -> None:
    nodes = [holding("n1", "s1/l1", big=size), holding("n2", "s1/l1", **({"big": size} if have == 2 else {}))]
    d = Driver(nodes)
    pod = make_pod("p", spec=with_image("registry/big"))
    d.apply(pod)
    entry = d.engine.workloads.of_pod(pod.metadata.uid)
    assert entry is not None
    image_scores = images_there(d.engine.world.nodes, entry[1].cls)
    assert image_scores is not None
    assert int(image_scores[d.engine.world.nodes.row_of["n1"]]) == points


def test_the_images_of_all_containers_count_together() -> None:
    size = 500 * 1024**2
    d = Driver([holding("n1", "s1/l1", big=size, other=size), holding("n2", "s1/l1")])
    spec = with_image("registry/big")
    spec.containers += with_image("registry/other").containers
    pod = make_pod("p", spec=spec)
    d.apply(pod)
    entry = d.engine.workloads.of_pod(pod.metadata.uid)
    assert entry is not None
    image_scores = images_there(d.engine.world.nodes, entry[1].cls)
    assert image_scores is not None
    # 100 * (2 * 250 MiB - 23 MiB) / (2 * 1000 MiB - 23 MiB), as kube-scheduler 1.36 reckons
    assert int(image_scores[d.engine.world.nodes.row_of["n1"]]) == 24


@pytest.mark.parametrize(
    ("asked", "same"),
    [("registry/big", True), ("registry/big:latest", True), ("registry/big:1", False), ("registry:5000/big", False)],
)
def test_an_image_without_a_tag_is_the_latest(asked: str, same: bool) -> None:
    d = Driver([holding("n1", "s1/l1", big=8 * GB), holding("n2", "s1/l1")])
    pod = make_pod("p", spec=with_image(asked))
    d.apply(pod)
    entry = d.engine.workloads.of_pod(pod.metadata.uid)
    assert entry is not None
    image_scores = images_there(d.engine.world.nodes, entry[1].cls)
    assert (image_scores is not None and bool(image_scores.any())) == same


def test_a_wish_that_can_not_be_parsed_refuses_the_pod_as_kube_scheduler_does() -> None:
    d = racks(("s1/l1", "a"))
    bad = rather_near("rack")
    assert bad.pod_affinity is not None
    assert bad.pod_affinity.preferred[0].pod_affinity_term.label_selector is not None
    bad.pod_affinity.preferred[0] = WeightedPodAffinityTerm(
        1, PodAffinityTerm(type(WEB_PODS)({"no key!": "x"}), topology_key="rack")
    )
    pod = make_pod("p", spec=one_gpu_spec(affinity=bad))
    d.apply(pod)
    d.step()
    assert "affinity.podAffinity preference 1" in d.told(pod)[0]


def test_a_spread_that_can_not_be_parsed_refuses_the_pod_as_kube_schedulers_scores_do() -> None:
    d = racks(("s1/l1", "a"))
    bad = TopologySpreadConstraint("rack", "ScheduleAnyway", 1, label_selector=type(WEB_PODS)({"no key!": "x"}))
    pod = make_pod("p", spec=one_gpu_spec(topology_spread_constraints=[bad]))
    other = web_pod("other")
    d.apply(pod)
    assert d.run(other) == {"other": "n1"}, "the queue moves on"
    assert d.told(pod)[0].startswith("Refused: topologySpreadConstraints 1: ")
    assert d.where(pod) == {}


def test_what_is_kept_of_preferences_is_what_a_new_computation_gives() -> None:
    d = racks(("s1/l1", "a"), ("s1/l2", "b"), ("s2/l3", "c"))
    pod = web_pod("p", one_gpu_spec(affinity=rather_away("rack")))
    d.run(pod)
    for number in range(4):
        d.run(web_pod(f"more-{number}", one_gpu_spec(affinity=rather_away("rack"))))
        around, planner = d.engine.world.around, d.engine.planner
        probe = web_pod("probe", one_gpu_spec(affinity=rather_away("rack")))
        d.apply(probe)
        entry = d.engine.workloads.of_pod(probe.metadata.uid)
        assert entry is not None
        cls = around.seen_by(entry[1].cls, entry[1].profile)
        kept = planner.views.get(cls).liking.copy()
        anew = type(planner.views)(around).get(cls).liking
        assert np.array_equal(kept, anew)
        d.delete(probe)


def test_between_gpu_models_the_nodes_that_a_gang_likes_best_come_before_the_name() -> None:
    d = Driver(
        [
            make_node("a", "s1/l1", model="A", taints=[Taint("old", "", "PreferNoSchedule")]),
            make_node("b", "s1/l2", model="B"),
        ]
    )
    members = [
        make_pod(f"g-{n}", gpus=2, annotations={"gang-name": "g", "gang-size": "2"}, created=n) for n in range(2)
    ]
    assert set(d.run(*members).values()) == {"b"}


def test_of_two_spreads_that_over_more_domains_counts_for_more() -> None:
    """By the logarithm of their number, as in kube-scheduler: 3 pods in 1 of 8 rows outweigh 4 in 1 of 3 racks."""
    racks_of = {"n1": "a", "n2": "b", "n3": "a"}
    rows_of = {"n2": "r2", "n4": "r2"}
    names = [f"n{number}" for number in range(1, 10)]
    d = Driver(
        [
            make_node(name, "s1/l1", labels={"rack": racks_of.get(name, "c"), "row": rows_of.get(name, f"r{name[1:]}")})
            for name in names
        ]
    )
    counts = {"n3": 4, "n4": 3, "n5": 3}
    d.apply(*[web_pod(f"{node}-{number}", node=node) for node, count in counts.items() for number in range(count)])
    both = [TopologySpreadConstraint(key, "ScheduleAnyway", 1, label_selector=WEB_PODS) for key in ("rack", "row")]
    assert d.run(web_pod("p", one_gpu_spec(topology_spread_constraints=both))) == {"p": "n1"}


def test_a_spread_outweighs_a_node_that_is_liked_less_than_twice_as_much_as_it_is_crowded() -> None:
    """One pod and none are as uneven as can be: 2 x 100 points, as in kube-scheduler. The liking is worth 2 x 75."""
    d = racks(("s1/l1", "a"), ("s1/l1", "b"))
    d.apply(web_pod("there", node="n1"))
    liked = tuple(
        PreferredTerm(weight, node_term(where(HOSTNAME, "In", name))) for name, weight in (("n1", 100), ("n2", 25))
    )
    pod = web_pod("p", anyway("rack"))
    pod.spec.affinity = Affinity(node_affinity=NodeAffinity(preferred=liked))
    assert d.run(pod) == {"p": "n2"}
