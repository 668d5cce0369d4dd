"""The largest gang that fits now, by filling every domain on a real engine; and stranded GPUs."""

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Node
from topo_scheduler.scheduling.surveying.fragmentation import LargestGang, fragmentation


def by_level(d: Driver, model: str = "") -> dict[str, LargestGang]:
    return {largest.level: largest for largest in fragmentation(d.engine.world).gangs if largest.model == model}


def hold(d: Driver, node: str, gpus: int, name: str = "", cpu: str = "100m") -> None:
    d.apply(make_pod(name or f"h-{node}-{gpus}", gpus=gpus, cpu=cpu, memory="1Mi", node=node, scheduler="other"))


def test_an_empty_cluster_takes_what_it_has() -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 3, "t/a": 1}))
    gangs = by_level(d)
    assert [(largest.level, largest.whole_gpus, "/".join(largest.whole_path)) for largest in gangs.values()] == [
        ("cluster", 48, ""),
        ("spine", 40, "s"),
        ("leaf", 24, "s/b"),
    ]
    assert all(largest.typical == 8 and largest.gpus == largest.whole_gpus for largest in gangs.values())
    assert fragmentation(d.engine.world).stranded == {"": 0}


def test_the_typical_member_is_the_size_in_which_most_gpus_are_held() -> None:
    d = Driver(fabric({"s/a": 4}))
    hold(d, "s-a-1", 4)
    hold(d, "s-a-2", 1)
    hold(d, "s-a-3", 1)
    leaf = by_level(d)["leaf"]
    assert (leaf.typical, leaf.members, leaf.gpus) == (4, 1 + 1 + 1 + 2, 20)
    assert (leaf.whole_nodes, leaf.whole_gpus) == (1, 8)
    # Of 7 free GPUs on two nodes a member of 4 leaves 3 each.
    assert fragmentation(d.engine.world).stranded == {"": 6}


def test_without_cpu_or_places_for_pods_all_that_is_free_is_stranded() -> None:
    d = Driver([make_node("a", "s/l", cpu="8"), make_node("b", "s/l", pods=1), make_node("c", "s/l")])
    hold(d, "a", 2, cpu="8")
    hold(d, "b", 2)
    report = fragmentation(d.engine.world)
    assert report.free == {"": 6 + 6 + 8}
    assert report.stranded == {"": 12}


def test_gpus_of_nodes_that_are_away_are_neither_free_nor_stranded() -> None:
    d = Driver([make_node("a", "s/l", ready=False), make_node("b", "s/l", unschedulable=True), make_node("c", "s/l")])
    report = fragmentation(d.engine.world)
    assert (report.free, report.stranded) == ({"": 8}, {"": 0})


def test_gpu_models_are_counted_separately() -> None:
    d = Driver([make_node("a", "s/l", model="A"), make_node("b", "s/l", model="B", gpus=4), make_node("c", "t/l")])
    assert by_level(d, "A")["cluster"].whole_gpus == 8
    assert (by_level(d, "B")["leaf"].whole_gpus, by_level(d, "B")["leaf"].typical) == (4, 4)
    assert by_level(d)["spine"].whole_path == ("t",)


def test_pods_that_end_are_no_longer_typical() -> None:
    d = Driver(fabric({"s/a": 2}))
    hold(d, "s-a-1", 2, "small")
    assert by_level(d)["leaf"].typical == 2
    d.delete(next(pod for pod in d.pods.values() if pod.metadata.name == "small"))
    assert by_level(d)["leaf"].typical == 8


def test_a_cluster_without_nodes_or_gpus() -> None:
    assert fragmentation(Driver().engine.world).gangs == ()
    assert fragmentation(Driver([make_node("a", "s/l", gpus=0)]).engine.world).gangs == ()


Torn = tuple[list[Node], list[tuple[str, int]]]


@st.composite
def torn(draw: st.DrawFn) -> Torn:
    paths = draw(st.lists(st.sampled_from(["s/a", "s/b", "t/a"]), min_size=1, max_size=3, unique=True))
    nodes = [
        make_node(f"n{n}", draw(st.sampled_from(paths)), gpus=4, ready=draw(st.integers(0, 5)) > 0)
        for n in range(draw(st.integers(1, 6)))
    ]
    held = [(node.metadata.name, draw(st.integers(0, 4))) for node in nodes]
    return nodes, [holding for holding in held if holding[1]]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(torn())
def test_as_many_members_are_placed_in_the_best_domain_and_not_one_more(
    case: tuple[list[Node], list[tuple[str, int]]],
) -> None:
    nodes, held = case

    def cluster() -> Driver:
        d = Driver(nodes)
        for node, gpus in held:
            hold(d, node, gpus)
        return d

    for level, largest in by_level(cluster()).items():
        for gpus, expected in ((4, largest.whole_nodes), (largest.typical, largest.members)):
            domains = Counter(path(node, level) for node in nodes)
            best = max(_fits(cluster(), level, domain, gpus, len(nodes) * 4) for domain in domains)
            assert best == expected


def path(node: Node, level: str) -> str:
    labels = [node.metadata.labels.get(f"topology.scheduler/{name}", "") for name in ("spine", "leaf")]
    return "/".join(labels[: {"cluster": 0, "spine": 1, "leaf": 2}[level]])


def _fits(d: Driver, level: str, domain: str, gpus: int, max_pods: int) -> int:
    """How many single pods a real engine places there, one after the other."""
    selector = dict(zip(("spine", "leaf"), domain.split("/"), strict=False)) if domain else {}
    placed = 0
    for number in range(max_pods):
        pod = make_pod(f"p{number}", gpus=gpus, cpu="100m", memory="1Mi")
        pod.spec.node_selector = {f"topology.scheduler/{name}": value for name, value in selector.items()}
        placed += len(d.run(pod))
    return placed
