"""Bandwidth as a resource: reserved for whole gangs, given back, never more than there is, and the reason."""

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.helpers import make_node, make_pod
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
from topo_scheduler.api.objects import ContainerPort, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.placing.bandwidth.feasible_sets import _narrowed

SPREAD = "topologyConstraints: {maxNodesPerLeaf: 1}"
"""Gangs take one node of a leaf: all they send goes over uplinks."""


# ---------------------------------------------------------------- what is reserved


def test_each_link_reserves_for_the_nodes_on_its_smaller_side() -> None:
    d = Driver(nodes_with_bandwidth({"s1/l1": 3, "s1/l2": 1, "s2/l1": 2}))
    d.run(*bandwidth_gang(6, "100Gb"))
    assert reserved_mbits(d) == {
        **dict.fromkeys(["s1-l1-1", "s1-l1-2", "s1-l1-3", "s1-l2-1", "s2-l1-1", "s2-l1-2"], 100_000),
        "s1/l1": 300_000,
        "s1/l2": 100_000,
        "s2/l1": 200_000,
        "s1": 200_000,
        "s2": 200_000,
    }


def test_members_on_one_node_count_once_and_a_gang_on_one_node_sends_nothing() -> None:
    d = Driver(nodes_with_bandwidth({"s/l": 3}))
    d.run(*bandwidth_gang(4, gpus=2, name="one"))
    assert reserved_mbits(d) == {}
    d.run(*bandwidth_gang(4, gpus=3, name="two"))
    assert reserved_mbits(d) == {"s-l-2": 200_000, "s-l-3": 200_000}


def one_of_a_node(pods: Sequence[Pod]) -> Sequence[Pod]:
    """Let no two of these pods share a node; return them."""
    for pod in pods:
        pod.spec.containers[0].ports = [ContainerPort(host_port=30_000)]
    return pods


def four_nodes(spec: str = "{}") -> Driver:
    """Return four nodes in one leaf; only the namespaces of ``spec`` may have what annotations alone ask for."""
    return Driver(nodes_with_bandwidth({"s/l": 4}), configured(spec, permits=False))


def test_pods_without_gpus_reserve_no_bandwidth() -> None:
    d = four_nodes()
    tiny = one_of_a_node(bandwidth_gang(4, "400Gb", gpus=0, name="tiny"))
    d.run(*tiny)
    assert len(set(nodes_of(tiny))) == 4
    assert reserved_mbits(d) == {}
    assert "network-bandwidth has no effect on a pod without GPUs" in d.told(tiny[0])[0]
    pods = bandwidth_gang(2, "100Gb")
    d.run(*pods)
    assert len(nodes_of(pods)) == 2


def test_pods_without_gpus_reserve_bandwidth_where_their_namespace_may() -> None:
    d = four_nodes("{gpusByAnnotation: {namespaces: [default]}}")
    d.run(*one_of_a_node(bandwidth_gang(4, "400Gb", gpus=0, name="tiny")))
    assert reserved_mbits(d) == dict.fromkeys((f"s-l-{number}" for number in range(1, 5)), 400_000)
    pods = bandwidth_gang(2, "100Gb")
    d.run(*pods)
    assert "has 0 of 400 Gbit/s left, 100 needed" in d.told(pods[0])[-1]


def test_members_without_gpus_reserve_nothing_beside_members_with_gpus() -> None:
    d = four_nodes()
    workers, launcher = bandwidth_gang(4, "400Gb")[:2], bandwidth_gang(4, "400Gb", gpus=0)[2:]
    d.run(*one_of_a_node([*workers, *launcher]))
    assert reserved_mbits(d) == dict.fromkeys(nodes_of(workers), 400_000)


@pytest.mark.parametrize("tied", [False, True])
def test_members_without_gpus_need_no_bandwidth_of_the_links_around_them(tied: bool) -> None:
    """The launcher has no room beside the workers, and the uplinks would not carry what it reserves."""
    d = Driver(nodes_with_bandwidth({"s/l1": 2, "s/l2": 1}), configured("{links: [{level: leaf, capacity: 100Gb}]}"))
    workers = bandwidth_gang(3, "400Gb")[:2]
    (launcher,) = bandwidth_gang(3, gpus=0)[2:]
    del launcher.metadata.annotations["topology.scheduler/network-bandwidth"]
    for worker in workers:
        worker.spec.containers[0].resources.requests["cpu"] = "40"
    launcher.spec.containers[0].resources.requests["cpu"] = "40"
    pods = [*workers, launcher]
    d.run(*(one_of_a_node(pods) if tied else pods))
    assert nodes_of(workers) == ["s-l1-1", "s-l1-2"]
    assert nodes_of([launcher]) == ["s-l2-1"]
    assert reserved_mbits(d) == {"s-l1-1": 400_000, "s-l1-2": 400_000}


def test_a_restarted_scheduler_believes_no_reservation_of_pods_without_gpus() -> None:
    forged = bandwidth_gang(2, "400Gb", gpus=0, name="forged")
    for number, pod in enumerate(forged):
        pod.spec.node_name = f"s-l-{number + 1}"
        pod.metadata.annotations |= {
            "topology.scheduler/reserved-bandwidth": "400000",
            "topology.scheduler/gang-id": "default/forged",
        }
    for spec, count in (("{}", 0), ("{gpusByAnnotation: {namespaces: [default]}}", 2)):
        d = four_nodes(spec)
        d.engine.pods_applied(forged, d.now)
        assert len(reserved_mbits(d)) == count


def test_it_is_given_back_as_members_end() -> None:
    d = Driver(nodes_with_bandwidth({"s/l1": 2, "s/l2": 2}))
    pods = bandwidth_gang(4, "100Gb")
    d.run(*pods)
    assert reserved_mbits(d) == {**dict.fromkeys(nodes_of(pods), 100_000), "s/l1": 200_000, "s/l2": 200_000}
    first = next(pod for pod in pods if pod.spec.node_name.startswith("s-l1"))
    d.finish(first)
    assert reserved_mbits(d) == {
        **dict.fromkeys(nodes_of(set_without(pods, first)), 100_000),
        "s/l1": 100_000,
        "s/l2": 100_000,
    }
    for pod in pods:
        d.delete(pod)
    assert reserved_mbits(d) == {}
    assert not len(d.engine.world.links)


def set_without(pods: Sequence[Pod], excluded: Pod) -> list[Pod]:
    return [pod for pod in pods if pod is not excluded]


def test_the_whole_gang_reserves_before_its_first_pod_is_bound_and_gives_back_what_fails() -> None:
    d = Driver(nodes_with_bandwidth({"s/l1": 1, "s/l2": 1}))
    pods = bandwidth_gang(2)
    d.apply(*pods)
    d.step()
    assert reserved_mbits(d)["s/l1"] == 200_000
    for pod in pods:
        d.refused(pod.metadata.uid)
        d.delete(pod)
    assert reserved_mbits(d) == {}


def test_pods_alone_reserve_nothing_and_their_node_must_have_what_they_ask() -> None:
    d = Driver(nodes_with_bandwidth({"s/slow": 1}, "100Gb") + nodes_with_bandwidth({"s/fast": 1}))
    pod = make_pod("p", gpus=8, annotations={"network-bandwidth": "200Gb"})
    assert d.run(pod) == {"p": "s-fast-1"}
    assert reserved_mbits(d) == {}
    assert "topology.scheduler/reserved-bandwidth" not in pod.metadata.annotations


def test_a_launcher_that_asks_for_less_takes_part_with_what_its_workers_ask() -> None:
    d = Driver(nodes_with_bandwidth({"s/l1": 1, "s/l2": 1}))
    launcher, worker = bandwidth_gang(2, "100Gb")
    worker.metadata.annotations["topology.scheduler/network-bandwidth"] = "300Gb"
    d.run(launcher, worker)
    assert reserved_mbits(d)["s/l1"] == 300_000
    assert launcher.metadata.annotations["topology.scheduler/reserved-bandwidth"] == "300000"


# ---------------------------------------------------------------- capacity


def test_a_second_gang_goes_where_links_are_free() -> None:
    d = Driver(nodes_with_bandwidth({f"s/l{n}": 3 for n in (1, 2, 3, 4)}), configured(f"{{{LEAF_LINKS}, {SPREAD}}}"))
    first, second = bandwidth_gang(2, "400Gb", name="a"), bandwidth_gang(2, "400Gb", name="b")
    third = bandwidth_gang(2, "400Gb", name="c")
    for pods in (first, second, third):
        assert len(d.run(*pods)) == 2
    assert {leaf: amount for leaf, amount in reserved_mbits(d).items() if "/" in leaf} == {
        "s/l1": 800_000,
        "s/l2": 800_000,
        "s/l3": 400_000,
        "s/l4": 400_000,
    }


def test_the_reason_names_the_link_and_released_bandwidth_wakes_gangs_that_wait_for_it() -> None:
    d = Driver(nodes_with_bandwidth({"s1/l1": 4, "s1/l2": 4}, "900Gb"), configured(f"{{{LEAF_LINKS}, {SPREAD}}}"))
    first, second = bandwidth_gang(2, "600Gb", name="a"), bandwidth_gang(2, "300Gb", name="b")
    d.run(*first)
    assert reserved_mbits(d)["s1/l1"] == 600_000
    d.run(*second)
    assert nodes_of(second) == []
    (text,) = d.told(second[0], Reason.FAILED_SCHEDULING)
    assert "There is room for the gang, but not the bandwidth" in text
    short = "uplink of s1/l1 has 200 of 800 Gbit/s left, 300 needed"
    assert short in text
    assert d.decisions()[-1].domain_reasons[0] == (("s1", "l1"), short)
    d.finish(first[0])
    d.settle()
    assert len(nodes_of(second)) == 2, "a gang of which one node is left sends nothing"


def test_bandwidth_wakes_gangs_that_could_not_use_the_nodes_that_get_free() -> None:
    big = [
        make_node(f"big-{leaf}-{n}", f"s/l{leaf}", gpus=8, model="H100", bandwidth="400Gb")
        for leaf in (1, 2)
        for n in (1, 2)
    ]
    old = [
        make_node(f"old-{leaf}-{n}", f"s/l{leaf}", gpus=4, model="A100", bandwidth="400Gb")
        for leaf in (1, 2)
        for n in (1, 2)
    ]
    d = Driver([*big, *old], configured("{" + LEAF_LINKS + "}"))
    first, second = (
        bandwidth_gang(4, "400Gb", name="a", gpu_model="H100"),
        bandwidth_gang(4, "400Gb", gpus=4, name="b", gpu_model="A100"),
    )
    d.run(*first)
    d.run(*second)
    assert (len(nodes_of(first)), nodes_of(second)) == (4, [])
    d.delete(*first)
    d.settle()
    assert len(nodes_of(second)) == 4


def test_the_network_of_a_node_sums_over_gangs() -> None:
    d = Driver(nodes_with_bandwidth({"s/l": 2}))
    d.run(*bandwidth_gang(2, "300Gb", gpus=4, name="a", placement_strategy="distributed"))
    second = bandwidth_gang(2, "200Gb", gpus=4, name="b", placement_strategy="distributed")
    d.run(*second)
    assert nodes_of(second) == []
    assert "network of node s-l-1 has 100 of 400 Gbit/s left, 200 needed" in d.told(second[0])[-1]
    d.run(*bandwidth_gang(2, "100Gb", gpus=4, name="c", placement_strategy="distributed"))
    assert reserved_mbits(d) == {"s-l-1": 400_000, "s-l-2": 400_000}


def test_a_gang_that_needs_only_one_node_takes_one_where_networks_are_full() -> None:
    d = Driver(nodes_with_bandwidth({"s/l": 2}))
    d.run(*bandwidth_gang(2, "400Gb", gpus=4, name="a", placement_strategy="distributed"))
    second = bandwidth_gang(2, "200Gb", gpus=2, name="b", placement_strategy="distributed")
    assert len(set(d.run(*second).values())) == 1


def test_the_size_rule_asks_for_as_many_leaves_as_links_can_ever_carry() -> None:
    d = Driver(nodes_with_bandwidth({f"s/l{n}": 4 for n in range(1, 5)}), configured("{" + LEAF_LINKS + "}"))
    pods = bandwidth_gang(8, "400Gb")
    d.run(*pods)
    assert Counter(name[:4] for name in nodes_of(pods)) == {"s-l1": 2, "s-l2": 2, "s-l3": 2, "s-l4": 2}


def test_what_links_can_never_carry_is_reported_as_such() -> None:
    d = Driver(nodes_with_bandwidth({"s/l1": 4, "s/l2": 4}), configured("{links: [{level: leaf, capacity: 100Gb}]}"))
    pods = bandwidth_gang(6)
    d.run(*pods)
    (text,) = d.told(pods[0], Reason.FAILED_SCHEDULING)
    assert "even if it were empty and carry 200 Gbit/s a node over its uplinks" in text
    assert d.run(*bandwidth_gang(4, name="h")), "one leaf needs no uplink"


def test_more_than_half_of_a_gang_in_one_leaf_needs_little_of_its_uplink() -> None:
    d = Driver(
        nodes_with_bandwidth({"s/l1": 1, "s/l2": 5, "s/l3": 1}), configured("{links: [{level: leaf, capacity: 200Gb}]}")
    )
    pods = bandwidth_gang(6)
    d.run(*pods)
    assert Counter(name[:4] for name in nodes_of(pods))["s-l2"] == 5


def test_unknown_links_are_not_limited_and_that_is_said_once() -> None:
    d = Driver(nodes_with_bandwidth({"s/l1": 2, "s/l2": 2}, ""))
    d.run(*bandwidth_gang(4, "9Tb"))
    assert reserved_mbits(d)["s/l1"] == 18_000_000
    assert [text for text in d.complaints() if "networks of nodes of unknown capacity" in text]
    assert [text for text in d.complaints() if "uplinks at level leaf of unknown capacity" in text]
    d.forget()
    d.run(*bandwidth_gang(4, "1Tb", gpus=0, name="h"))
    assert d.complaints() == []


def test_gangs_without_bandwidth_go_anywhere() -> None:
    d = Driver(nodes_with_bandwidth({"s/l1": 2, "s/l2": 2}), configured("{links: [{level: leaf, capacity: 1Mb}]}"))
    annotations = {"gang-name": "g", "gang-size": "4"}
    pods = [make_pod(f"g-{n}", gpus=8, annotations=annotations) for n in range(4)]
    assert len(d.run(*pods)) == 4
    assert reserved_mbits(d) == {}


def test_more_capacity_wakes_pending_gangs_and_less_of_it_evicts_no_pod() -> None:
    d = Driver(nodes_with_bandwidth({"s/l1": 2, "s/l2": 2}), configured("{links: [{level: leaf, capacity: 300Gb}]}"))
    pods = bandwidth_gang(4)
    d.run(*pods)
    assert nodes_of(pods) == []
    d.engine.configure(configured("{links: [{level: leaf, capacity: 400Gb}]}"))
    d.settle()
    assert len(nodes_of(pods)) == 4
    d.engine.configure(configured("{links: [{level: leaf, capacity: 100Gb}]}"))
    d.settle()
    assert d.evicted() == []
    assert reserved_mbits(d)["s/l1"] == 400_000


def test_a_lost_member_is_placed_again_within_what_links_carry() -> None:
    d = Driver(nodes_with_bandwidth({"s/l1": 3, "s/l2": 3}), configured("{links: [{level: leaf, capacity: 400Gb}]}"))
    pods = bandwidth_gang(5)
    d.run(*pods)
    assert len(nodes_of(pods)) == 5
    lost = pods[2]
    d.delete(lost)
    again = make_pod(
        "g-2",
        gpus=8,
        annotations={
            k.split("/")[1]: v for k, v in pods[0].metadata.annotations.items() if "gang-" in k or "network" in k
        },
        created=2,
    )
    for written in ("gang-id", "gang-minimum"):
        again.metadata.annotations.pop(f"topology.scheduler/{written}", None)
    d.run(again)
    assert again.spec.node_name
    assert max(amount for name, amount in reserved_mbits(d).items() if "/" in name) <= 400_000


def test_a_gang_of_higher_priority_may_have_bandwidth_cleared_for_it() -> None:
    d = Driver(
        nodes_with_bandwidth({"s/l1": 2, "s/l2": 2}),
        configured(f"{{links: [{{level: leaf, capacity: 300Gb}}], {SPREAD}}}"),
    )
    d.engine.budgets_known()
    first, second = bandwidth_gang(2, name="a"), bandwidth_gang(2, name="b")
    d.run(*first)
    for pod in second:
        pod.spec.priority = 10
    d.apply(*second)
    d.step()
    going = d.preempted()
    assert going
    d.evict(*[pod for pod in first if pod.metadata.name in going])
    d.settle(1)
    assert len(nodes_of(second)) == 2
    assert reserved_mbits(d)["s/l1"] == 200_000


def test_no_pod_is_evicted_where_that_frees_no_bandwidth() -> None:
    d = Driver(
        nodes_with_bandwidth({"s/l1": 2, "s/l2": 2}),
        configured(f"{{links: [{{level: leaf, capacity: 300Gb}}], {SPREAD}}}"),
    )
    d.engine.budgets_known()
    first, second = bandwidth_gang(2, name="a"), bandwidth_gang(2, name="b")
    for pod in first:
        pod.spec.priority = 20
    d.run(*first)
    low = make_pod("low", gpus=8, node="s-l1-2")
    for pod in second:
        pod.spec.priority = 10
    d.apply(low, *second)
    d.settle()
    d.settle(60)
    assert (d.preempted(), nodes_of(second)) == ([], [])


# ---------------------------------------------------------------- after a restart


def test_a_new_process_knows_what_is_reserved_from_the_pods_alone() -> None:
    cluster = nodes_with_bandwidth({"s1/l1": 3, "s1/l2": 3, "s2/l1": 2})
    first = Driver(cluster)
    pods = [
        *bandwidth_gang(6, "100Gb", gpus=4, name="a"),
        *bandwidth_gang(4, "50Gb", gpus=4, name="b"),
        *bandwidth_gang(3, gpus=1, name="c"),
    ]
    first.run(*pods)
    first.finish(pods[1])
    second = Driver(cluster)
    second.apply(*reversed(pods))
    second.settle()
    assert reserved_mbits(second) == reserved_mbits(first)
    assert reserved_mbits(first)


def test_a_pod_that_another_client_binds_to_its_node_reserves_nothing_as_for_a_new_process() -> None:
    cluster = nodes_with_bandwidth({"s/l1": 1, "s/l2": 1})
    first = Driver(cluster)
    pods = bandwidth_gang(2)
    first.apply(*pods)
    first.step()
    stolen = pods[0]
    stolen.spec.node_name = first.flight.pop(stolen.metadata.uid).node
    first.apply(stolen)
    assert first.engine.world.links.held(stolen.metadata.uid) is None
    second = Driver(cluster)
    second.apply(stolen)
    first.delete(pods[1])
    assert reserved_mbits(first) == reserved_mbits(second) == {}


def test_the_first_pod_of_a_node_may_end_before_the_others() -> None:
    cluster = nodes_with_bandwidth({"s/l1": 1, "s/l2": 1})
    first = Driver(cluster)
    pods = bandwidth_gang(4, gpus=4)
    first.run(*pods)
    by_node: dict[str, list[Pod]] = {}
    for pod in pods:
        by_node.setdefault(pod.spec.node_name, []).append(pod)
    for node_pods in by_node.values():
        first.finish(node_pods[0])
    second = Driver(cluster)
    second.apply(*pods)
    second.settle()
    assert (
        reserved_mbits(second)
        == reserved_mbits(first)
        == dict.fromkeys(["s-l1-1", "s-l2-1", "s/l1", "s/l2", "s"][:4], 200_000)
    )


# ---------------------------------------------------------------- ten thousand decisions


@pytest.mark.parametrize("seed", range(10))
def test_no_link_ever_carries_more_than_it_can(seed: int) -> None:
    """A thousand decisions each: gangs come, end whole or by parts, lose members; links of many kinds."""
    luck = random.Random(seed)
    d = random_cluster(luck)
    capacity = capacity_mbits(d)
    alive: dict[str, list[Pod]] = {}
    number = made = short = full = 0
    while made < 1000:
        if len(alive) > 8 or (alive and luck.random() < 0.35):
            name = luck.choice(sorted(alive))
            pods = alive.pop(name)
            if luck.random() < 0.3:
                lost = luck.choice(pods)
                d.delete(lost)
                back = make_pod(
                    lost.metadata.name, gpus=luck.choice([1, 2, 4]), annotations=placement_annotations(lost), created=0
                )
                alive[name] = [*(pod for pod in pods if pod is not lost), back]
                d.apply(back)
            else:
                d.delete(*pods)
        else:
            number += 1
            pods = alive[f"g{number}"] = random_gang(luck, f"g{number}")
            d.apply(*pods)
        d.settle(luck.choice([0, 1, 5]))
        made += len(d.decisions())
        short += sum("not the bandwidth" in decision.sentence for decision in d.decisions())
        d.forget()
        now = reserved_mbits(d)
        full += any(now.get(link) == limit for link, limit in capacity.items())
        assert not {link: amount for link, amount in now.items() if amount > capacity.get(link, amount)}
    assert short > 5, "links were hardly tried"
    assert full > 20, "links were hardly filled"
    again = Driver(d.cluster, d.engine.config)
    again.apply(*[pod for pods in alive.values() for pod in pods if pod.spec.node_name])
    assert reserved_mbits(again) == reserved_mbits(d)


def random_gang(luck: random.Random, name: str) -> list[Pod]:
    size = luck.randint(1, 9)
    annotations = {
        "placement_strategy": luck.choice(["consolidated", "balanced", "distributed"]),
        "latency_sensitive": luck.choice(["true", "false"]),
    }
    bandwidth = luck.choice(["50Gb", "100Gb", "200Gb", "400Gb"])
    pods = bandwidth_gang(size, bandwidth, gpus=luck.choice([1, 2, 4]), name=name, **annotations)
    if luck.random() < 0.2:  # a launcher
        pods[0] = make_pod(f"{name}-0", gpus=0, annotations=placement_annotations(pods[0]))
    return pods


@pytest.mark.parametrize(("spared", "kept"), [((), 1), ((0,), 2), ((0, 0), 3), ((0, 0, 0), 4)])
def test_domains_around_the_one_that_holds_most_are_not_limited_by_their_uplinks(
    spared: tuple[int, ...], kept: int
) -> None:
    """Uplinks for 1, 2 and 3 nodes, from the outermost to the leaf: those of all that are spared do not count."""
    one_domain, rows = np.array([0, 4], np.int64), np.arange(4, dtype=np.int64)
    layout = SimpleNamespace(depth=3, order=rows, offsets=np.arange(5, dtype=np.int64), domains=[one_domain] * 4)
    wiring = SimpleNamespace(layout=layout, uplinks=lambda level: slice(level - 1, level))
    served, none = np.array([1, 2, 3], np.int64), np.empty(0, np.int64)
    room: Any = SimpleNamespace(wiring=wiring, below=served, home=none)
    assert int(_narrowed(room, np.ones(4, np.int64), 0, spared).sum()) == kept
