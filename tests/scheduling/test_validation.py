"""The last look before a placement is assumed finds what must not be."""

from dataclasses import replace

import pytest

from tests.helpers import make_node
from tests.scheduling.planning import Small, gang, grid, pods
from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.links import Link
from topo_scheduler.scheduling.placing.checks.validation import check
from topo_scheduler.scheduling.placing.model.placement_query import (
    GangTraffic,
    Placement,
    PlacementQuery,
    Segments,
    SizeRuleLimits,
)


def found(small: Small, ask: PlacementQuery) -> Placement:
    placement = small.plan(ask)
    assert isinstance(placement, Placement)
    return placement


def verdict(small: Small, ask: PlacementQuery, rows: list[list[int]], limits: SizeRuleLimits | None = None) -> str:
    placement = replace(found(small, ask), rows=rows)
    return check(small.world.around, small.world.layout, ask, placement, limits or SizeRuleLimits())


def test_what_the_planner_finds_is_right() -> None:
    small = Small(grid(2, 2, 2))
    for ask in (gang(2), gang(4), gang(3, 4)):
        placement = found(small, ask)
        assert check(small.world.around, small.world.layout, ask, placement, SizeRuleLimits()) == ""


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["s1l1n1"], "1 of 2 members have a node"),
        (["s1l1n1", "s1l1n1"], "has 8 gpu free, 16 were placed"),
        (["s1l1n1", "s1l2n1"], "2 leaves were used where the size rule allows 1"),
        (["s1l1n1", "s2l1n1"], "2 leaves were used"),
    ],
)
def test_what_is_wrong_is_said(names: list[str], words: str) -> None:
    small = Small(grid(2, 2, 2))
    assert words in verdict(small, gang(2), [small.rows(*names)])


def test_leaves_must_share_the_domain_of_the_rule() -> None:
    small = Small(grid(2, 2, 2))
    rows = small.rows("s1l1n1", "s1l1n2", "s2l1n1", "s2l1n2")
    assert "do not share one spine" in verdict(small, gang(4), [rows])


def test_nodes_must_be_usable() -> None:
    nodes = grid(1, 1, 3)
    nodes[2].spec.unschedulable = True
    small = Small(nodes)
    assert "node s1l1n3 may not be used" in verdict(small, gang(2), [small.rows("s1l1n1", "s1l1n3")])


def test_models_must_not_be_mixed() -> None:
    nodes = [make_node(f"{model}{n}", "s/l", model=model) for model in ("a", "b") for n in (1, 2)]
    small = Small(nodes)
    rows = small.rows("a1", "b1")
    assert "several GPU models" in verdict(small, gang(2), [rows])
    assert verdict(small, gang(2, mixed=True), [rows]) == ""


def test_limits_in_one_leaf_must_hold() -> None:
    small = Small(grid(1, 1, 4))
    rows = small.rows("s1l1n1", "s1l1n2", "s1l1n3")
    assert "more than 2 nodes" in verdict(small, gang(3), [rows], SizeRuleLimits(max_nodes_per_leaf=2))
    assert "more than 16 GPUs" in verdict(small, gang(3), [rows], SizeRuleLimits(max_gpus_per_leaf=16))


def test_classes_on_one_node_are_added_up() -> None:
    small = Small(grid(1, 1, 2))
    ask = PlacementQuery([(pods(8), 1), (pods(4), 1)], gang=True)
    assert "has 8 gpu free, 12 were placed" in verdict(small, ask, [small.rows("s1l1n1"), small.rows("s1l1n1")])


def test_segments_must_be_whole_also_of_different_pods_and_where_the_rest_runs() -> None:
    small = Small(grid(1, 2, 3))
    groups = [(pods(8), 2), (pods(0, cpu=1), 2)]
    ask = PlacementQuery(
        groups, gang=True, enforcement=Enforcement.PREFERRED, segments=Segments(1, parts=((0, 1), (0, -1)))
    )
    whole = [small.rows("s1l1n1", "s1l2n1"), small.rows("s1l1n2", "s1l2n2")]
    assert verdict(small, ask, whole) == ""
    torn = [small.rows("s1l1n1", "s1l2n1"), small.rows("s1l2n2", "s1l2n2")]
    assert verdict(small, ask, torn) == "segment 0 was spread over more than one leaf"
    placed = found(small, ask)
    elsewhere = replace(ask, segments=replace(ask.segments, homes=((1, 0),)), running=small.rows("s1l1n3"))
    wrong = check(small.world.around, small.world.layout, elsewhere, replace(placed, rows=whole), SizeRuleLimits())
    assert wrong == "segment 1 was spread over more than one leaf"


def test_no_link_may_be_taken_beyond_what_it_carries() -> None:
    """A leaf's uplink carries one node of the gang; the network of each node both of its members."""
    small = Small([make_node(f"{leaf}{n}", f"s1/{leaf}", bandwidth="400Gb") for leaf in "ab" for n in (1, 2)])
    small.world.links.configure([Link(level="leaf", capacity="300Gb")])
    ask = replace(gang(2), enforcement=Enforcement.PREFERRED, traffic=GangTraffic(("default", "g"), 200_000))
    assert verdict(small, ask, [small.rows("a1", "b1")]) == ""
    small.send("other", 200_000, "a2", "b2")
    assert verdict(small, ask, [small.rows("a1", "a2")]) == "", "nothing leaves the leaf"
    wrong = verdict(small, ask, [small.rows("a1", "b1")])
    assert wrong == "uplink of s1/a has 100 of 300 Gbit/s left, 200 needed"
    small.send("third", 300_000, "a1", "a2")
    assert "network of node a1 has 100 of 400 Gbit/s left" in verdict(small, ask, [small.rows("a1", "a2")])
