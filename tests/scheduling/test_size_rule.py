"""The size rule by the examples of the issue: how many leaves a gang gets, and under which parent."""

import pytest

from tests.helpers import make_node
from tests.scheduling.planning import Small, gang, grid, single
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure, PlacementQuery


def limited(nodes: int = 4, leaves: int = 4, spines: int = 2) -> Small:
    """Leaves of four nodes with eight GPUs, and the limits of the shipped example."""
    return Small(grid(spines, leaves, nodes), max_nodes=4, max_gpus=32)


def failure(small: Small, ask: PlacementQuery) -> PlacementFailure:
    planned = small.plan(ask)
    assert isinstance(planned, PlacementFailure), planned
    return planned


def placement(small: Small, ask: PlacementQuery) -> Placement:
    planned = small.plan(ask)
    assert isinstance(planned, Placement), planned
    return planned


@pytest.mark.parametrize(
    ("members", "leaves"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (12, 3), (16, 4)]
)
def test_whole_nodes_take_as_few_leaves_as_hold_them(members: int, leaves: int) -> None:
    small = limited()
    placed = placement(small, gang(members))
    assert placed.rule.leaves == leaves
    assert placed.rule.nodes == members
    assert len(placed.leaves) == leaves
    assert placed.leaves == list(range(placed.leaves[0], placed.leaves[0] + leaves)), "neighbours"
    assert placed.rule.domain == ("leaf" if leaves == 1 else "spine")


def test_four_nodes_are_a_whole_leaf() -> None:
    small = limited()
    assert len({name[:4] for name in small.place(gang(4))}) == 1
    assert sorted(name[4:] for name in small.place(gang(4))) == ["n1", "n2", "n3", "n4"]


def test_the_limits_hold_where_leaves_are_larger() -> None:
    small = limited(nodes=8, leaves=4)
    assert placement(small, gang(4)).rule.leaves == 1
    assert placement(small, gang(8)).rule.leaves == 2
    places = small.place(gang(8))
    assert all(sum(name.startswith(leaf) for name in places) == 4 for leaf in {name[:4] for name in places})
    # By GPUs: 32 of one leaf are 8 members of 4, on no more than 4 nodes.
    assert placement(small, gang(8, 4)).rule.leaves == 1
    assert placement(small, gang(9, 4)).rule.leaves == 2


def test_without_limits_a_leaf_holds_what_it_has() -> None:
    small = Small(grid(1, 2, 8))
    assert placement(small, gang(8)).rule.leaves == 1
    assert placement(small, gang(9)).rule.leaves == 2


def test_limits_are_for_gangs_and_not_for_pods_alone() -> None:
    small = Small(grid(1, 1, 1), max_nodes=1, max_gpus=4)
    assert small.place(single(8)) == ["s1l1n1"]
    assert "8 GPUs, and maxGPUsPerLeaf is 4" in failure(small, gang(2, 8)).sentence
    held = "hold 1 of 2 pods even when empty within maxNodesPerLeaf 1 and maxGPUsPerLeaf 4"
    assert held in failure(small, gang(2, 4)).sentence


def test_a_gang_waits_for_its_leaves_though_the_cluster_has_room() -> None:
    small = limited(spines=1)
    for leaf in range(1, 5):
        small.hold(f"s1l{leaf}n1", gpus=1)
    refused = failure(small, gang(4))
    assert refused.rule is not None
    assert refused.rule.leaves == 1
    assert len(small.place(gang(4, required=False))) == 4
    assert len(small.place(gang(3))) == 3


def test_the_lowest_common_domain_when_a_spine_is_too_small() -> None:
    nodes = [
        make_node(f"c{c}s{s}l{leaf}n{n}", f"c{c}/s{s}/l{leaf}")
        for c in (1, 2)
        for s in (1, 2)
        for leaf in (1, 2)
        for n in (1, 2)
    ]
    small = Small(nodes)
    for members, domain, leaves in (
        (2, "leaf", 1),
        (4, "spine", 2),
        (6, "core", 3),
        (8, "core", 4),
        (10, "cluster", 5),
    ):
        placed = placement(small, gang(members))
        assert (placed.rule.domain, placed.rule.leaves) == (domain, leaves)
        names = small.place(gang(members))
        common = {"leaf": 6, "spine": 4, "core": 2, "cluster": 0}[domain]
        assert len({name[:common] for name in names}) == 1


def test_a_gang_that_a_spine_holds_does_not_leave_it_for_fewer_leaves() -> None:
    # Leaves of one spine hold 2 each; over two spines 4 and 4 would be fewer leaves.
    nodes = [make_node(f"a{n}", "s1/l1") for n in range(4)] + [make_node(f"b{n}", "s2/l1") for n in range(4)]
    nodes += [make_node(f"c{leaf}{n}", f"s3/l{leaf}") for leaf in range(4) for n in range(2)]
    small = Small(nodes)
    placed = placement(small, gang(8))
    assert (placed.rule.domain, placed.rule.leaves) == ("spine", 4)
    assert all(name.startswith("c") for name in small.place(gang(8)))


def test_larger_than_the_cluster_is_said_so() -> None:
    small = limited()
    refused = failure(small, gang(33))
    assert refused.rule is None
    assert "larger than the cluster" in refused.sentence
    assert "32 of 33" in refused.sentence
    assert "even if it were empty" in failure(small, single(9)).sentence
    assert "no matching node could hold one of the gang's 2 pods" in failure(small, gang(2, 9)).sentence


def test_preferred_does_not_make_a_gang_fit_that_is_too_large() -> None:
    assert "larger than the cluster" in failure(limited(), gang(33, required=False)).sentence


def test_what_is_not_ready_is_not_counted_on() -> None:
    nodes = grid(1, 2, 2)
    nodes[0].status.conditions[0].status = "False"
    small = Small(nodes)
    placed = placement(small, gang(3))
    assert placed.rule.leaves == 2
    assert small.place(gang(2)) == ["s1l2n1", "s1l2n2"]


def test_what_daemons_hold_never_leaves() -> None:
    small = Small(grid(1, 2, 2))
    for name in ("s1l1n1", "s1l2n1"):
        small.world.ledger.confirm(f"daemon-{name}", name, ((4, 1),), daemon=True)
    assert placement(small, gang(2)).rule.leaves == 2


def test_leaves_of_one_name_under_two_spines_are_two_leaves() -> None:
    nodes = [make_node(f"n{s}{n}", f"s{s}/leaf-1") for s in (1, 2) for n in (1, 2)]
    small = Small(nodes)
    assert set(small.place(gang(2))) in ({"n11", "n12"}, {"n21", "n22"})
    assert placement(small, gang(3)).rule.domain == "cluster"


# ---------------------------------------------------------------- one model


def models() -> Small:
    nodes = [make_node(f"a{n}", "s1/l1", model="A100") for n in (1, 2)]
    nodes += [make_node(f"h{n}", "s1/l1", model="H100") for n in (1, 2, 3)]
    return Small(nodes)


def test_a_gang_keeps_to_one_model() -> None:
    assert set(models().place(gang(3))) == {"h1", "h2", "h3"}
    refused = failure(models(), gang(4))
    assert "of one GPU model hold 3 of 4" in refused.sentence


def test_unless_it_may_mix() -> None:
    assert len(set(models().place(gang(5, mixed=True)))) == 5


def test_pods_alone_and_gangs_without_gpus_take_any_model() -> None:
    small = models()
    for name in ("h1", "h2", "h3"):
        small.hold(name, gpus=8)
    assert small.place(single(8))[0].startswith("a")
    assert len(small.place(gang(4, 0, cpu=60_000))) == 4


def test_a_gang_waits_for_the_least_demanding_model() -> None:
    # Two A100 nodes share a leaf, two H100 nodes do not: one leaf is what it waits for.
    nodes = [make_node("a1", "s1/l1", model="A"), make_node("a2", "s1/l1", model="A")]
    nodes += [make_node("h1", "s1/l2", model="H"), make_node("h2", "s1/l3", model="H")]
    small = Small(nodes)
    small.hold("a1", gpus=1)
    refused = failure(small, gang(2))
    assert refused.rule is not None
    assert refused.rule.leaves == 1


# ---------------------------------------------------------------- the unlabelled


def test_the_rule_holds_among_the_unlabelled_of_one_parent() -> None:
    small = Small([make_node(f"u{n}", "s1/") for n in range(4)] + [make_node("l", "s2/l1")])
    placed = placement(small, gang(3))
    assert placed.rule.leaves == 1
    assert small.leaves(gang(3)) == ["s1/unlabelled"]
    assert placed.score.alignment == 0


def test_labelled_leaves_come_first() -> None:
    nodes = [make_node(f"u{n}", "s1/") for n in range(2)] + [make_node(f"l{n}", "s1/l9") for n in range(2)]
    small = Small(nodes)
    assert set(small.place(gang(2))) == {"l0", "l1"}
    assert small.place(single())[0] in ("l0", "l1")
    small.hold("l0", gpus=1)
    assert set(small.place(gang(2))) == {"u0", "u1"}, "what is unlabelled is used before a gang waits"


def test_unlabelled_nodes_do_not_make_the_rule_laxer_for_gangs_that_labelled_leaves_hold() -> None:
    nodes = [make_node(f"u{n}", "s1/") for n in range(9)] + [make_node(f"l{n}", f"s1/l{n // 2}") for n in range(4)]
    small = Small(nodes)
    assert placement(small, gang(4)).rule.leaves == 2
    assert placement(small, gang(6)).rule.leaves == 1, "only the unlabelled hold it"


def test_a_cluster_without_labels_is_one_leaf() -> None:
    small = Small([make_node(f"n{n}") for n in range(4)])
    placed = placement(small, gang(4))
    assert (placed.rule.leaves, placed.rule.domain, placed.score.alignment) == (1, "leaf", 0)


def test_a_cluster_without_nodes_holds_nothing() -> None:
    assert failure(Small([]), gang(2)).sentence
    assert failure(Small([]), single()).sentence


# ---------------------------------------------------------------- neighbours


def test_the_narrowest_leaves_are_taken() -> None:
    small = Small(grid(1, 5, 2))
    small.hold("s1l2n1", gpus=8)
    small.hold("s1l2n2", gpus=8)
    assert small.leaves(gang(4)) in (["s1/l3", "s1/l4"], ["s1/l4", "s1/l5"])
    small.hold("s1l4n1", gpus=8)
    small.hold("s1l4n2", gpus=8)
    assert small.leaves(gang(4)) in (["s1/l1", "s1/l3"], ["s1/l3", "s1/l5"])


def test_leaves_are_shared_with_others() -> None:
    small = Small(grid(1, 2, 2))
    small.hold("s1l1n1", gpus=4)
    assert small.leaves(gang(3)) == ["s1/l1", "s1/l2"]
    assert placement(small, gang(3)).rule.leaves == 2
