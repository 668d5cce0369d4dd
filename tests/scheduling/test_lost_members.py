"""Lost members of a gang are placed again next to those that run."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, fabric
from tests.scheduling.planning import Small, ask_of, gang, grid, small_of
from tests.scheduling.reference import Machine, Path, Reference, Rule, Want
from tests.scheduling.reference_clusters import clusters, wants
from topo_scheduler.api.annotations import PlacementStrategy
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure


def test_in_their_own_leaf_first() -> None:
    small = Small(grid(2, 3, 4))
    small.hold("s2l2n1", gpus=8)
    assert small.place(gang(1, running=small.rows("s2l2n1")))[0].startswith("s2l2")


def test_in_the_fewest_of_their_own_leaves() -> None:
    small = Small(grid(1, 3, 2))
    running = small.rows("s1l1n1", "s1l2n1")
    for name in ("s1l1n1", "s1l2n1"):
        small.hold(name, gpus=8)
    assert len({name[:4] for name in small.place(gang(1, running=running))}) == 1
    assert {name[:4] for name in small.place(gang(2, running=running))} == {"s1l1", "s1l2"}


def test_else_in_the_nearest_leaf_the_rule_still_allows() -> None:
    small = Small(grid(2, 5, 2))
    for node in ("s1l4n1", "s1l4n2", "s1l3n1", "s1l3n2"):
        small.hold(node, gpus=8)
    # Three nodes are two leaves by the rule, one of which is in use: the next to it with room is the other.
    running = small.rows("s1l4n1", "s1l4n2")
    assert small.place(gang(1, running=running))[0].startswith("s1l5")
    small.hold("s1l5n1", gpus=8)
    small.hold("s1l5n2", gpus=8)
    assert small.place(gang(1, running=running))[0].startswith("s1l2")


def test_not_where_the_rule_forbids_it_unless_it_may_be_broken() -> None:
    small = Small(grid(1, 3, 2))
    for node in ("s1l1n1", "s1l1n2"):
        small.hold(node, gpus=8)
    running = small.rows("s1l1n1")
    assert isinstance(small.plan(gang(1, running=running)), PlacementFailure), "two nodes are one leaf, and it is full"
    assert small.place(gang(1, running=running, required=False))[0].startswith("s1l2")


def test_not_under_another_spine() -> None:
    small = Small(grid(2, 2, 1))
    small.hold("s1l1n1", gpus=8)
    small.hold("s1l2n1", gpus=8)
    assert isinstance(small.plan(gang(1, running=small.rows("s1l1n1"))), PlacementFailure)


def test_where_those_that_run_break_the_rule_nearest_is_all_that_is_asked() -> None:
    small = Small(grid(2, 2, 2))
    running = small.rows("s1l1n1", "s2l2n1")
    for name in ("s1l1n1", "s2l2n1", "s1l1n2", "s2l2n2"):
        small.hold(name, gpus=8)
    assert small.place(gang(1, running=running))[0][:4] in ("s1l2", "s2l1")


def test_of_the_model_that_runs() -> None:
    nodes = [make_node(f"a{n}", "s/l", model="A") for n in (1, 2)] + [
        make_node(f"h{n}", "s/l", model="H") for n in (1, 2)
    ]
    small = Small(nodes)
    small.hold("h1", gpus=8)
    assert small.place(gang(1, running=small.rows("h1"))) == ["h2"]
    small.hold("h2", gpus=8)
    assert isinstance(small.plan(gang(1, running=small.rows("h1"))), PlacementFailure)
    assert small.place(gang(1, running=small.rows("h1"), mixed=True))[0].startswith("a")


def test_a_member_without_gpus_on_a_node_without_them_says_nothing_of_the_model() -> None:
    nodes = [make_node("cpu", "s/l", gpus=0), make_node("a1", "s/l", model="A"), make_node("h1", "s/l", model="H")]
    small = Small([*nodes, make_node("h2", "s/l", model="H")])
    small.hold("h1", gpus=8)
    assert small.place(gang(1, running=small.rows("cpu", "h1"))) == ["h2"]


def test_next_to_members_whose_nodes_would_not_be_chosen_today() -> None:
    # Half of the gang's nodes are cordoned for maintenance: together with them the cluster is too small by the rule.
    nodes = grid(1, 2, 2)
    for node in nodes[:2]:
        node.spec.unschedulable = True
    small = Small(nodes)
    for name in ("s1l1n1", "s1l1n2", "s1l2n1"):
        small.hold(name, gpus=8)
    assert small.place(gang(1, running=small.rows("s1l1n1", "s1l1n2", "s1l2n1"))) == ["s1l2n2"]


def test_next_to_members_that_ask_for_less() -> None:
    # A launcher without GPUs and two workers that fill the cluster; one worker was lost.
    nodes = [make_node("w1", "s/l"), make_node("w2", "s/l"), make_node("cpu", "s/l", gpus=0)]
    small = Small(nodes)
    small.hold("w1", gpus=8)
    assert small.place(gang(1, running=small.rows("w1", "cpu"))) == ["w2"]


def test_when_all_nodes_that_ran_it_are_gone() -> None:
    small = Small(grid(1, 1, 2))
    row = small.rows("s1l1n1")
    small.world.remove_node("s1l1n1")
    assert small.place(gang(1, running=row)) == ["s1l1n2"]


def test_distributed_members_keep_off_the_nodes_in_use() -> None:
    small = Small(grid(1, 1, 3))
    small.hold("s1l1n2", gpus=7)
    for name in ("s1l1n1", "s1l1n3"):
        small.hold(name, gpus=1)
    running = small.rows("s1l1n1", "s1l1n3")
    assert small.place(gang(1, 1, strategy=PlacementStrategy.DISTRIBUTED, running=running)) == ["s1l1n2"]


def test_the_limits_count_what_runs() -> None:
    small = Small(grid(1, 1, 4), max_nodes=2)
    small.hold("s1l1n1", gpus=6)
    assert sorted(small.place(gang(2, 1, running=small.rows("s1l1n1")))) == ["s1l1n1", "s1l1n1"]
    small.hold("s1l1n1", gpus=1)
    nodes = small.place(gang(2, 1, running=small.rows("s1l1n1")))
    assert len({*nodes, "s1l1n1"}) == 2
    small = Small(grid(1, 2, 1), max_gpus=4)
    small.hold("s1l1n1", gpus=3)
    assert small.place(gang(1, 1, running=small.rows("s1l1n1"))) == ["s1l1n1"]
    small.hold("s1l1n1", gpus=1)
    assert small.place(gang(1, 1, running=small.rows(*["s1l1n1"] * 4), required=False)) == ["s1l2n1"]


# ---------------------------------------------------------------- against every set of leaves


def _beside(reference: Reference, leaf: Path, running: Counter[str], model: str | None) -> int:
    """How many more members a leaf holds beside those that run there."""
    want = reference.want
    inside = [m for m in reference.machines if m.place == leaf]
    usable = {m.name: reference.on_machine(m) if model is None or m.model == model else 0 for m in inside}
    here = [m.name for m in inside if running[m.name]]
    others = sorted((usable[m.name] for m in inside if not running[m.name]), reverse=True)
    fits = [usable[name] for name in here] + others
    if want.max_nodes:
        spare = max(0, want.max_nodes - len(here))
        fits = sorted(fits[: len(here) + spare], reverse=True)[: want.max_nodes]
    total = sum(fits)
    if want.max_gpus:
        total = min(total, max(0, want.max_gpus // want.gpus - sum(running[name] for name in here)))
    return total


def _can_be_repaired(reference: Reference, rule: Rule, running: Counter[str], missing: int, model: str | None) -> bool:
    place = {m.name: m.place for m in reference.machines}
    home = {place[name] for name in running}
    fits = {leaf: _beside(reference, leaf, running, model) for leaf in reference.leaves}
    if sum(fits[leaf] for leaf in home) >= missing:
        return True
    broken = len({leaf[: rule.depth] for leaf in home}) > 1 or len(home) > rule.leaves
    if broken or not reference.want.required:
        return sum(fits.values()) >= missing
    near = [
        leaf for leaf in reference.leaves if leaf not in home and leaf[: rule.depth] == next(iter(home))[: rule.depth]
    ]
    return any(
        sum(fits[leaf] for leaf in (*home, *more)) >= missing
        for count in range(rule.leaves - len(home) + 1)
        for more in combinations(near, count)
    )


@settings(deadline=None, max_examples=300)
@given(clusters(), wants, st.data(), st.sampled_from(PlacementStrategy))
def test_lost_members_are_placed_where_the_rule_says_or_not_at_all(
    machines: list[Machine], want: Want, data: st.DataObject, strategy: PlacementStrategy
) -> None:
    # Some members run wherever they may have come to run; what they hold is counted as use already.
    names = [m.name for m in machines if m.usable and m.gpus]
    if not names:
        return
    running = Counter(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4)))
    missing = want.members
    models = {m.model for m in machines if running[m.name]} - {""}
    reference = Reference(machines, replace(want, members=missing + running.total()))
    rule = reference.rule()
    small = small_of(machines, want)
    ask = replace(ask_of(want, strategy), running=sorted(small.rows(*running.elements())))
    planned = small.plan(ask)
    if want.mixed or len(models) > 1:
        keeps: list[str | None] = [None] if want.mixed else reference.models()
    else:
        keeps = [*models] or reference.models()
    if rule is None:
        rule = Rule(0, len(reference.leaves))
    possible = any(_can_be_repaired(reference, rule, running, missing, model) for model in keeps)
    if isinstance(planned, PlacementFailure):
        assert not possible, "there is room"
        event("no room")
        return
    event("placed")
    assert isinstance(planned, Placement)
    assert possible
    _check(reference, small, planned, running, rule)


def _check(reference: Reference, small: Small, placement: Placement, running: Counter[str], rule: Rule) -> None:
    want = reference.want
    by_name = {m.name: m for m in reference.machines}
    placed = Counter(small.world.nodes.names[row] for row in placement.rows[0])
    assert placed.total() == want.members - running.total()
    for name, count in placed.items():
        assert count <= reference.on_machine(by_name[name])
    if not want.mixed:
        assert len({by_name[name].model for name in placed}) == 1
    home = {by_name[name].place for name in running}
    new = {by_name[name].place for name in placed}
    for leaf in new:
        inside = {name for name in (*placed, *running) if by_name[name].place == leaf}
        fresh = {name for name in placed if by_name[name].place == leaf} - set(running)
        if want.max_nodes and fresh:
            assert len(inside) <= want.max_nodes
        if want.max_gpus:
            assert sum(placed[name] + running[name] for name in inside) * want.gpus <= want.max_gpus
    intact = len({leaf[: rule.depth] for leaf in home}) == 1 and len(home) <= rule.leaves
    if want.required and intact:
        assert len(home | new) <= rule.leaves
        assert len({leaf[: rule.depth] for leaf in home | new}) == 1


@pytest.mark.parametrize("strategy", PlacementStrategy)
def test_repair_is_ranked_like_any_placement(strategy: PlacementStrategy) -> None:
    small = Small(grid(1, 2, 2))
    small.hold("s1l1n1", gpus=8)
    placement = small.plan(gang(1, running=small.rows("s1l1n1"), strategy=strategy))
    assert isinstance(placement, Placement)
    assert 0 < placement.score.total <= 1000
    assert placement.leaves == [0]


def test_lost_members_of_a_gang_of_different_pods_stay_in_the_leaf_that_all_must_share() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))

    def member(number: int) -> Pod:
        asked = {"gang-name": "g", "gang-size": "3", "required-level": "leaf"}
        return make_pod(f"g-{number}", gpus=8 if number else 0, annotations=asked, created=number)

    members = [member(number) for number in range(3)]
    where = d.run(*members)
    assert {node[:4] for node in where.values()} == {"s1-a"}
    d.delete(*members[:2])
    d.apply(taken := make_pod("taken", gpus=8, node=where["g-1"], scheduler="another"))
    again = [member(0), member(1)]
    assert "g-1" not in d.run(*again)
    d.finish(taken)
    d.settle(5)
    assert d.where(*again)["g-1"] == where["g-1"]
