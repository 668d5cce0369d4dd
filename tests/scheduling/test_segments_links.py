"""Segments that send over links, and the size rule of gangs of different pods that do."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.affinity_pods import HOSTNAME, one_gpu_spec, pod_anti_affinity
from tests.scheduling.driver import Driver, configured
from tests.scheduling.link_bandwidth import (
    LEAF_LINKS,
    bandwidth_gang,
    capacity_mbits,
    nodes_of,
    nodes_with_bandwidth,
    placement_annotations,
    random_cluster,
    reserved_mbits,
)
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason


def with_launcher(pods: list[Pod]) -> list[Pod]:
    pods[0] = make_pod(pods[0].metadata.name, gpus=4, annotations=told(pods[0]))
    return pods


def told(pod: Pod) -> dict[str, str]:
    prefix = "topology.scheduler/"
    size = pod.metadata.annotations.get(prefix + "segment-size")
    return {**placement_annotations(pod), **({"segment-size": size} if size else {})}


def leaves_of(pods: Sequence[Pod]) -> list[str]:
    ranked = sorted((int(pod.metadata.annotations["topology.scheduler/rank"]), pod.spec.node_name) for pod in pods)
    return [node.rpartition("-")[0] for _, node in ranked]


def test_the_size_rule_of_different_pods_asks_for_as_many_leaves_as_links_can_ever_carry() -> None:
    d = Driver(nodes_with_bandwidth({f"s/l{n}": 4 for n in range(1, 5)}), configured("{" + LEAF_LINKS + "}"))
    pods = with_launcher(bandwidth_gang(8, "400Gb"))
    d.run(*pods)
    assert Counter(name[:4] for name in nodes_of(pods)) == {"s-l1": 2, "s-l2": 2, "s-l3": 2, "s-l4": 2}


def test_so_does_that_of_members_that_keep_apart() -> None:
    cluster = [
        make_node(f"s-l{leaf}-{n}", f"s/l{leaf}", gpus=8, bandwidth="400Gb", labels={HOSTNAME: f"s-l{leaf}-{n}"})
        for leaf in range(1, 5)
        for n in range(4)
    ]
    d = Driver(cluster, configured("{" + LEAF_LINKS + "}"))
    pods = [
        make_pod(
            f"g-{n}",
            annotations=told(pod),
            spec=one_gpu_spec(affinity=pod_anti_affinity(HOSTNAME)),
            labels={"app": "web"},
            created=n,
        )
        for n, pod in enumerate(bandwidth_gang(8, "400Gb"))
    ]
    d.run(*pods)
    assert Counter(name[:4] for name in nodes_of(pods)) == {"s-l1": 2, "s-l2": 2, "s-l3": 2, "s-l4": 2}


@pytest.mark.parametrize("mixed", [False, True])
def test_what_links_can_never_carry_is_reported_as_such(mixed: bool) -> None:
    d = Driver(nodes_with_bandwidth({"s/l1": 4, "s/l2": 4}), configured("{links: [{level: leaf, capacity: 100Gb}]}"))
    pods = bandwidth_gang(6, segment_size="2")
    d.run(*(with_launcher(pods) if mixed else pods))
    (text,) = d.told(pods[0], Reason.FAILED_SCHEDULING)
    assert "even if it were empty and carry 200 Gbit/s a node over its uplinks" in text


@pytest.mark.parametrize("mixed", [False, True])
def test_segments_keep_whole_where_links_allow_two_nodes_of_a_leaf(mixed: bool) -> None:
    d = Driver(nodes_with_bandwidth({f"s/l{n}": 4 for n in range(1, 5)}), configured("{" + LEAF_LINKS + "}"))
    pods = bandwidth_gang(8, "400Gb", segment_size="2")
    pods = with_launcher(pods) if mixed else pods
    d.run(*pods)
    leaves = leaves_of(pods)
    assert leaves[::2] == leaves[1::2]
    assert sorted(leaves[::2]) == ["s-l1", "s-l2", "s-l3", "s-l4"]


def test_the_rule_of_segments_of_an_outer_level_knows_links_too() -> None:
    links = "{links: [{level: spine, capacity: 800Gb}]}"
    d = Driver(nodes_with_bandwidth({f"s{s}/l{n}": 2 for s in range(1, 5) for n in range(1, 3)}), configured(links))
    pods = bandwidth_gang(8, "400Gb", segment_size="2", segment_level="spine")
    d.run(*pods)
    assert [leaf[:2] for leaf in leaves_of(pods)] == ["s1"] * 2 + ["s2"] * 2 + ["s3"] * 2 + ["s4"] * 2


@pytest.mark.parametrize("seed", range(6))
def test_no_link_ever_carries_more_than_it_can_and_segments_hold(seed: int) -> None:
    """Three hundred decisions each on gangs in segments, alike or not, that come, end, and lose members."""
    luck = random.Random(seed)
    d = random_cluster(luck)
    capacity = capacity_mbits(d)
    alive: dict[str, tuple[list[Pod], int]] = {}
    number = made = several = again = 0
    while made < 300:
        if len(alive) > 6 or (alive and luck.random() < 0.35):
            name = luck.choice(sorted(alive))
            pods, size = alive.pop(name)
            if luck.random() < 0.5:
                lost = luck.choice(pods)
                back = make_pod(lost.metadata.name, gpus=luck.choice([1, 2]), annotations=told(lost), created=0)
                d.delete(lost)
                alive[name] = [pod for pod in pods if pod is not lost] + [back], size
                d.apply(back)
                again += 1
            else:
                d.delete(*pods)
        else:
            number += 1
            size, count = luck.choice([2, 2, 3, 4]), luck.randint(1, 3)
            pods = bandwidth_gang(
                size * count,
                luck.choice(["50Gb", "100Gb", "200Gb"]),
                gpus=luck.choice([1, 2, 4]),
                name=f"g{number}",
                segment_size=str(size),
                placement=luck.choice(["required", "preferred"]),
            )
            if luck.random() < 0.5:
                pods[0] = make_pod(pods[0].metadata.name, gpus=0, annotations=told(pods[0]))
            alive[f"g{number}"] = pods, size
            d.apply(*pods)
        d.settle(luck.choice([0, 1, 5]))
        made += len(d.decisions())
        d.forget()
        now = reserved_mbits(d)
        assert not {link: amount for link, amount in now.items() if amount > capacity.get(link, amount)}
        for pods, size in alive.values():
            segments: dict[int, set[str]] = {}
            for pod in pods:
                if pod.spec.node_name:
                    rank = int(pod.metadata.annotations["topology.scheduler/rank"])
                    segments.setdefault(rank // size, set()).add(pod.spec.node_name.rpartition("-")[0])
            assert all(len(leaves) == 1 for leaves in segments.values())
            several += len({leaf for leaves in segments.values() for leaf in leaves}) > 1
    assert several > 20, "hardly any gang was spread over leaves"
    assert again > 10
