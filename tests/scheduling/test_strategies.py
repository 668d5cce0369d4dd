"""What strategies, preferences and outcomes change among the places that the size rule leaves."""

from dataclasses import replace

import pytest

from tests.helpers import make_node, term, where
from tests.scheduling.planning import Small, gang, grid, pods, single
from topo_scheduler.api.annotations import PlacementStrategy
from topo_scheduler.api.links import Link
from topo_scheduler.api.selectors import NodeAffinity, PreferredTerm
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.state.nodes.resources import GPU, PODS
from topo_scheduler.state.pods.classes import PodClass

CONSOLIDATED, DISTRIBUTED, BALANCED = (
    PlacementStrategy.CONSOLIDATED,
    PlacementStrategy.DISTRIBUTED,
    PlacementStrategy.BALANCED,
)


def uneven() -> Small:
    """Three leaves: empty, half used, full but for one node."""
    small = Small(grid(1, 3, 4))
    for node in ("s1l2n1", "s1l2n2", "s1l3n1", "s1l3n2", "s1l3n3"):
        small.hold(node, gpus=8)
    return small


def test_strategies_choose_what_their_names_say() -> None:
    small = uneven()
    assert small.leaves(gang(1, 8, strategy=CONSOLIDATED)) == ["s1/l3"]
    assert small.leaves(gang(1, 8, strategy=DISTRIBUTED)) == ["s1/l1"]
    # The mean is 5 of 12; a leaf at 3 of 4 is 4 of 12 off it, one at 1 of 4 only 2.
    assert small.leaves(gang(1, 8, strategy=BALANCED)) == ["s1/l1"]
    assert small.leaves(gang(2, 8, strategy=CONSOLIDATED)) == ["s1/l2"]


def test_a_consolidated_gang_shares_few_nodes_and_a_distributed_one_many() -> None:
    small = Small(grid(1, 1, 4))
    assert len(set(small.place(gang(4, 2, strategy=CONSOLIDATED)))) == 1
    assert len(set(small.place(gang(4, 2, strategy=DISTRIBUTED)))) == 4
    assert len(set(small.place(gang(6, 2, strategy=DISTRIBUTED)))) == 4
    assert len(set(small.place(gang(6, 2, strategy=BALANCED)))) == 2


def test_a_distributed_gang_is_spread_inside_its_leaf_not_over_more_leaves() -> None:
    small = Small(grid(1, 4, 2))
    placement = small.plan(gang(4, 2, strategy=DISTRIBUTED))
    assert isinstance(placement, Placement)
    assert len(placement.leaves) == placement.rule.leaves == 1


def test_the_least_is_stranded() -> None:
    small = Small(grid(1, 1, 3))
    small.hold("s1l1n1", gpus=4)
    small.hold("s1l1n2", gpus=6)
    assert small.place(single(2)) == ["s1l1n2"]
    assert small.place(single(4)) == ["s1l1n1"]
    assert small.place(single(8)) == ["s1l1n3"]
    assert small.place(gang(3, 2)) == ["s1l1n3"] * 3


def test_pods_without_gpus_keep_off_nodes_that_have_some() -> None:
    small = Small([make_node("a-gpu", "s/l"), make_node("b-cpu", "s/l", gpus=0)])
    assert small.place(PlacementQuery([(pods(0, cpu=1000), 1)], gang=False)) == ["b-cpu"]
    full = Small([make_node("a-gpu", "s/l"), make_node("b-cpu", "s/l", gpus=0, cpu="500m")])
    assert full.place(PlacementQuery([(pods(0, cpu=1000), 1)], gang=False)) == ["a-gpu"]


# ---------------------------------------------------------------- replicas


def test_distributed_replicas_are_spread_over_leaves_whatever_else_runs_there() -> None:
    small = Small(grid(1, 2, 4))
    for node in ("s1l1n1", "s1l1n2", "s1l1n3"):
        small.hold(node, gpus=8)
    taken: list[str] = []
    for _ in range(4):
        (node,) = small.place(single(1, strategy=DISTRIBUTED, siblings=small.rows(*taken)))
        small.hold(node, gpus=1)
        taken.append(node)
    assert sorted(name[:4] for name in taken) == ["s1l1", "s1l1", "s1l2", "s1l2"]


def test_distributed_replicas_are_spread_over_nodes_where_leaves_are_even() -> None:
    small = Small(grid(1, 1, 3))
    taken: list[str] = []
    for _ in range(3):
        (node,) = small.place(single(1, strategy=DISTRIBUTED, siblings=small.rows(*taken)))
        small.hold(node, gpus=1)
        taken.append(node)
    assert len(set(taken)) == 3


def test_a_leaf_without_room_does_not_count_as_one_without_siblings() -> None:
    small = Small(grid(1, 2, 1))
    small.hold("s1l2n1", gpus=8)
    assert small.place(single(1, strategy=DISTRIBUTED, siblings=small.rows("s1l1n1"))) == ["s1l1n1"]


# ---------------------------------------------------------------- preferences


def test_a_preferred_domain_wins_among_equals() -> None:
    small = Small(grid(2, 2, 2))
    layout = small.world.layout
    for name in ("s1/l2", "s2/l1", "s2/l2"):
        ((depth, index),) = layout.find(name)
        first, last = layout.domains[depth][index : index + 2].tolist()
        assert small.leaves(gang(2, preferred=(first, last))) == [name]
    ((depth, index),) = layout.find("s2")
    first, last = layout.domains[depth][index : index + 2].tolist()
    assert small.leaves(gang(2, preferred=(first, last)))[0].startswith("s2/")


def test_a_preferred_domain_is_no_must() -> None:
    small = Small(grid(1, 2, 2))
    small.hold("s1l2n1", gpus=8)
    assert small.leaves(gang(2, preferred=(1, 2))) == ["s1/l1"]


def test_a_preferred_node_wins_in_its_leaf() -> None:
    wish = NodeAffinity(preferred=(PreferredTerm(10, term(where("disk", "In", "nvme"))),))
    nodes = [make_node(f"n{n}", "s/l", labels={"disk": "nvme" if n == 2 else "hdd"}) for n in range(4)]
    small = Small(nodes)
    cls = PodClass(((PODS, 1), (GPU, 4)), affinity=wish)
    assert small.place(PlacementQuery([(cls, 1)], gang=False)) == ["n2"]


@pytest.mark.parametrize("strategy", PlacementStrategy)
def test_a_leaf_where_much_failed_lately_comes_last_and_is_forgiven_in_time(strategy: PlacementStrategy) -> None:
    small = Small(grid(1, 2, 2))
    for _ in range(5):
        small.world.history.note(("s1", "l1"), 0, good=False)
    ask = gang(2, strategy=strategy)
    assert {name[:4] for name in small.place(ask, now=1)} == {"s1l2"}
    assert {name[:4] for name in small.place(ask, now=10**6)} == {"s1l1"}


# ---------------------------------------------------------------- links


def test_for_the_latency_sensitive_the_least_loaded_links_outweigh_packing() -> None:
    nodes = [make_node(f"l{leaf}n{n}", f"s/l{leaf}", bandwidth="100Gb") for leaf in (1, 2) for n in (1, 2)]
    small = Small(nodes)
    small.hold("l2n1", gpus=8)
    small.send("busy", 50_000, "l1n1", "l2n1")
    ask = gang(1, 8, strategy=CONSOLIDATED)
    assert small.leaves(ask) == ["s/l2"]
    small.send("busier", 90_000, "l2n2", "l2n1")
    for latency, leaf in ((False, "s/l2"), (True, "s/l1")):
        sensitive = PlacementQuery(ask.groups, gang=True, strategy=CONSOLIDATED, latency=latency)
        assert small.leaves(sensitive) == [leaf]


def test_the_latency_sensitive_cross_the_uplinks_that_are_least_loaded() -> None:
    small = Small(make_node(f"l{leaf}n{n}", f"s/l{leaf}", bandwidth="400Gb") for leaf in (1, 2, 3, 4) for n in (1, 2))
    small.world.links.configure([Link(level="leaf", capacity="400Gb")])
    small.send("near", 100_000, "l1n1", "l2n1")
    for latency, leaves in ((False, ["s/l1", "s/l2"]), (True, ["s/l3", "s/l4"])):
        assert small.leaves(replace(gang(4), latency=latency)) == leaves
    small.send("inside", 300_000, "l3n1", "l3n2")
    assert small.leaves(replace(gang(2), latency=True)) == ["s/l4"], "one leaf uses no uplink, only networks of nodes"
    assert small.leaves(replace(gang(4), latency=True)) == ["s/l1", "s/l2"]


def test_where_no_bandwidth_is_known_use_stands_for_load() -> None:
    small = uneven()
    ask = PlacementQuery([(pods(8), 1)], gang=True, strategy=CONSOLIDATED, latency=True)
    assert small.leaves(ask) == ["s1/l1"]


# ---------------------------------------------------------------- beyond the rule


def test_preferred_enforcement_takes_the_next_best_spread() -> None:
    nodes = grid(2, 4, 2)
    small = Small(nodes)
    for leaf in (1, 2, 3, 4):
        small.hold(f"s1l{leaf}n1", gpus=8)
        small.hold(f"s2l{leaf}n1", gpus=8)
    assert len(small.leaves(gang(2, required=False))) == 2
    assert {name[:2] for name in small.place(gang(4, required=False))} in ({"s1"}, {"s2"}), "one spine where it can be"
    assert len(small.leaves(gang(6, required=False))) == 6
    inside = small.plan(gang(1))
    beyond = small.plan(gang(2, required=False))
    assert isinstance(inside, Placement)
    assert isinstance(beyond, Placement)
    assert inside.score.alignment == 1000
    assert beyond.score.alignment < 1000
