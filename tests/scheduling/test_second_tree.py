"""Accelerator domains beside the network: racks of several leaves, and domains that lie across leaves."""

import random
from collections.abc import Mapping

import pytest

from tests.helpers import controlled_by, in_group, make_group, make_node, make_pod, owner, timestamp
from tests.scheduling.accelerator_domains import (
    CLIQUE,
    DOMAINS_ACROSS_LEAVES,
    PREFERRED_CONFIG,
    domain_nodes,
    fill_four_gpu_nodes,
)
from tests.scheduling.affinity_pods import pod_anti_affinity
from tests.scheduling.driver import Driver, configured
from tests.scheduling.gang_pods import annotated_gang, rank_of
from topo_scheduler.api.config import load_configuration
from topo_scheduler.api.objects import Node
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.explaining.remedies import RemedyKind
from topo_scheduler.scheduling.surveying.fragmentation import fragmentation
from topo_scheduler.scheduling.surveying.link_survey import survey_links
from topo_scheduler.scheduling.surveying.survey import survey_accelerators


def nvl72(racks: int = 2) -> list[Node]:
    """Return racks of 18 nodes, each of which is two leaves of nine under one spine."""
    return [node for r in range(1, racks + 1) for node in domain_nodes(f"uuid.{r}", {f"s1/r{r}a": 9, f"s1/r{r}b": 9})]


def leaf_of(node: str) -> str:
    return node.rpartition("-")[0]


def leaves(where: Mapping[str, str]) -> set[str]:
    return {leaf_of(node) for node in where.values()}


# ---------------------------------------------------------------- required


def test_a_gang_of_16_nodes_spans_the_leaves_of_its_rack_but_not_the_rack() -> None:
    d = Driver(nvl72())
    busy_there = [f"r1a-{n}" for n in range(1, 4)]
    d.apply(*(make_pod(f"busy-{n}", gpus=4, scheduler="other", node=n, phase="Running") for n in busy_there))
    members = annotated_gang(16, gpus=4, required_level="accelerator-domain")
    assert leaves(d.run(*members)) == {"r2a", "r2b"}


def test_segments_within_the_rack_each_have_a_leaf() -> None:
    d = Driver(nvl72())
    members = annotated_gang(16, gpus=4, required_level="accelerator-domain", segment_size="8")
    d.run(*members)
    in_order = [leaf_of(pod.spec.node_name) for pod in sorted(members, key=rank_of)]
    assert in_order == [*["r1a"] * 8, *["r1b"] * 8]


def test_a_gang_of_20_nodes_is_larger_than_any_rack_and_its_event_says_so() -> None:
    d = Driver(nvl72())
    members = annotated_gang(20, gpus=4, required_level="accelerator-domain")
    assert d.run(*members) == {}
    text = d.told(members[0])[-1]
    assert "No accelerator-domain could hold the gang's 20 pods even if it were empty" in text
    assert "and its annotation required-level asks for one" in text


def test_the_event_of_a_gang_that_waits_for_a_rack_names_the_largest_block() -> None:
    d = Driver(nvl72())
    busy = fill_four_gpu_nodes(d, *(f"r{r}{leaf}-{n}" for r in (1, 2) for leaf in "ab" for n in (1, 2)))
    members = annotated_gang(16, gpus=4, required_level="accelerator-domain")
    assert d.run(*members) == {}
    text = d.told(members[0])[-1]
    assert "112 GPUs are free, but the largest free block under one accelerator-domain is 56: r1a 28, r1b 28" in text
    assert "The gang needs 2 leaves in 1 accelerator-domain with room for 16 pods of 4 GPUs" in text
    decision = d.decisions()[-1]
    assert decision.domain_reasons is not None
    assert [why for _, why in decision.domain_reasons] == ["holds 14 of 16 pods"] * 2
    assert {path[-1] for path, _ in decision.domain_reasons} == {"uuid.1", "uuid.2"}
    for pod in busy[:2]:
        d.delete(pod)
    d.settle()
    assert leaves(d.where(*members)) == {"r1a", "r1b"}


def test_leaves_are_whole_for_a_gang_that_asks_for_no_rack() -> None:
    d = Driver(nvl72())
    members = annotated_gang(20, gpus=4)
    assert len(leaves(d.run(*members))) == 3


def test_a_domain_across_two_leaves_is_one_domain() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain")
    where = d.run(*members)
    assert set(where.values()) in ({"a-1", "a-2", "b-1", "b-2"}, {"a-3", "a-4", "b-3", "b-4"})


def test_the_address_and_the_quality_are_those_of_the_network() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain")
    d.run(*members)
    annotations = [pod.metadata.annotations for pod in members]
    assert {written["topology.scheduler/address"].count(".") for written in annotations} == {2}
    assert {written["topology.scheduler/spanned-level"] for written in annotations} == {"spine"}


@pytest.mark.parametrize("key", [CLIQUE, "accelerator-domain"])
def test_the_label_names_the_level_too(key: str) -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    where = d.run(*annotated_gang(4, gpus=4, required_level=key))
    assert len({int(node[-1]) > 2 for node in where.values()}) == 1


def test_the_topology_key_of_a_podgroup_may_be_that_of_the_second_tree() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    d.groups(make_group("pg", 4, key=CLIQUE))
    members = [in_group(make_pod(f"p-{n}", gpus=4), "pg") for n in range(4)]
    where = d.run(*members)
    assert len({int(node[-1]) > 2 for node in where.values()}) == 1


def test_levels_of_both_trees_hold_together() -> None:
    d = Driver(
        [*domain_nodes("x.1", {"s1/a": 2, "s2/b": 3}), *domain_nodes("x.2", {"s1/a": 1}, first=3)], PREFERRED_CONFIG
    )
    d.groups(make_group("pg", 3, key="topology.scheduler/spine"))
    annotations = {"required-level": "accelerator-domain"}
    members = [in_group(make_pod(f"p-{n}", gpus=4, annotations=annotations), "pg") for n in range(3)]
    assert leaves(d.run(*members)) == {"b"}, "a has three nodes under one spine, but of two domains"


def test_a_required_domain_and_a_preferred_leaf_go_together() -> None:
    d = Driver([*domain_nodes("x.1", {"s1/a": 1, "s1/b": 1}), *domain_nodes("x.2", {"s1/c": 1, "s1/d": 2})])
    members = annotated_gang(2, gpus=4, required_level="accelerator-domain", preferred_level="leaf")
    assert leaves(d.run(*members)) == {"d"}


def test_a_gang_waits_for_a_level_of_the_second_tree_for_which_no_node_has_a_label() -> None:
    d = Driver(domain_nodes("", {"s1/a": 4}))
    members = annotated_gang(2, gpus=4, required_level="accelerator-domain")
    assert d.run(*members) == {}
    message = d.told(members[0])[-1]
    assert "Its annotation required-level asks for one accelerator-domain, for which no node has a label" in message
    d.nodes(*domain_nodes("x.1", {"s1/a": 2}))
    d.settle()
    assert set(d.where(*members).values()) == {"a-1", "a-2"}


def test_a_preferred_level_for_which_no_node_has_a_label_is_ignored_and_reported() -> None:
    d = Driver(domain_nodes("", {"s1/a": 2}))
    members = annotated_gang(2, gpus=4, preferred_level="accelerator-domain")
    assert len(d.run(*members)) == 2
    assert d.told(members[0], Reason.DOMAIN_UNKNOWN) == [
        "annotation topology.scheduler/preferred-level: no node has a label for a level called accelerator-domain; it"
        " was ignored"
    ]


def test_nodes_without_a_domain_label_share_no_domain() -> None:
    d = Driver([*domain_nodes("", {"s1/a": 4}), *domain_nodes("x.1", {"s1/b": 1})])
    members = annotated_gang(2, gpus=4, required_level="accelerator-domain")
    assert d.run(*members) == {}
    assert "No accelerator-domain could hold the gang's 2 pods" in d.told(members[0])[-1]


def test_the_preferred_domain_may_be_one_of_the_second_tree() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain", preferred_domain="x.2")
    assert set(d.run(*members).values()) == {"a-3", "a-4", "b-3", "b-4"}
    assert d.told(members[0], Reason.DOMAIN_UNKNOWN) == []


def test_a_preferred_leaf_in_several_domains_is_ignored_and_reported() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain", preferred_domain="s1/a")
    assert len(d.run(*members)) == 4
    message = (
        "annotation topology.scheduler/preferred-domain: s1/a has parts in several accelerator domains; it was ignored"
    )
    assert d.told(members[0], Reason.DOMAIN_UNKNOWN) == [message]


def test_lost_members_come_back_into_the_domain_of_the_others() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    members = annotated_gang(3, gpus=4, required_level="accelerator-domain")
    before = d.run(*members)
    d.delete(members[0])
    late = [node for node in ("a-1", "a-2", "a-3", "a-4") if node not in before.values()]
    again = annotated_gang(3, gpus=4, required_level="accelerator-domain")[0]
    again.metadata.uid += "-again"
    where = d.run(again)
    assert late
    assert len({int(node[-1]) > 2 for node in [*where.values(), *d.where(*members[1:]).values()]}) == 1


def test_preemption_makes_room_in_one_domain() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    d.engine.budgets_known()
    low = fill_four_gpu_nodes(d, "a-1", "b-1", "a-3")
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain")
    for pod in members:
        pod.spec.priority = 100
    d.apply(*members)
    d.step()
    assert d.preempted() == ["busy-a-3"], "one pod less in the way than in the other domain"
    d.evict(low[2])
    d.settle()
    assert set(d.where(*members).values()) == {"a-3", "a-4", "b-3", "b-4"}


def test_gangs_of_different_pods_share_a_domain_too() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    fill_four_gpu_nodes(d, "a-1")
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain")
    launcher = annotated_gang(4, gpus=0, required_level="accelerator-domain")[0]
    where = d.run(launcher, *members[1:])
    assert len(where) == 4
    assert len({int(node[-1]) > 2 for node in where.values()}) == 1


def test_gangs_whose_members_keep_apart_share_a_domain_too() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    fill_four_gpu_nodes(d, "a-1", "b-2")
    members = annotated_gang(3, gpus=1, required_level="accelerator-domain")
    for pod in members:
        pod.metadata.labels |= {"app": "web"}
        pod.spec.affinity = pod_anti_affinity("kubernetes.io/hostname")
    where = d.run(*members)
    assert len(set(where.values())) == 3
    assert {int(node[-1]) > 2 for node in where.values()} == {True}


def test_bandwidth_is_reserved_on_the_links_of_the_network() -> None:
    """One leaf's uplink carries one node of the gang at most, so no domain does that has two nodes in each leaf."""
    spec = configured("{links: [{level: leaf, capacity: 100Gb}], topologyConstraints: {enforcement: preferred}}")
    wide = {"s1/c": 1, "s1/d": 3}
    nodes = [*DOMAINS_ACROSS_LEAVES, *domain_nodes("x.3", wide)]
    for node in nodes:
        node.metadata.labels["topology.scheduler/network-bandwidth"] = "400Gb"
    d = Driver(nodes, spec)
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain", network_bandwidth="100Gb")
    assert leaves(d.run(*members)) == {"c", "d"}
    layout, links = d.engine.world.layout, d.engine.world.links
    links.settle(layout)
    reserved = links.reserved[links.wiring.uplinks(layout.depth)].tolist()
    assert dict(zip((path[-1] for path in layout.paths), reserved, strict=True)) == {
        "a": 0,
        "b": 0,
        "c": 100_000,
        "d": 100_000,
    }


# ---------------------------------------------------------------- preferred, and not asked for


def test_a_preferred_domain_is_taken_where_it_can_be_had_and_done_without_elsewhere() -> None:
    d = Driver([*domain_nodes("x.1", {"s1/a": 1, "s1/b": 1}), *domain_nodes("x.2", {"s1/a": 1, "s1/b": 1}, first=2)])
    first = annotated_gang(2, "one", gpus=4, preferred_level="accelerator-domain")
    where = d.run(*first)
    assert len({node[-1] for node in where.values()}) == 1, "the size rule would have one leaf"
    second = annotated_gang(3, "two", gpus=4, preferred_level="accelerator-domain")
    assert d.run(*second) == {}
    assert "The gang needs 2 leaves" in d.told(second[0])[-1]


def test_among_equal_places_one_domain_is_taken_though_no_annotation_asks_for_it() -> None:
    d = Driver(
        [
            *domain_nodes("x.1", {"s1/a": 1}),
            *domain_nodes("x.2", {"s1/a": 1, "s1/b": 1}, first=2),
            *domain_nodes("x.3", {"s1/c": 2}),
        ]
    )
    assert leaves(d.run(*annotated_gang(2, gpus=4))) == {"c"}


def test_one_domain_is_not_worth_a_leaf_more() -> None:
    d = Driver([*domain_nodes("x.1", {"s1/a": 1}), *domain_nodes("x.2", {"s1/a": 1, "s1/b": 2}, first=2)])
    fill_four_gpu_nodes(d, "b-2")
    assert leaves(d.run(*annotated_gang(2, gpus=4))) == {"a"}


# ---------------------------------------------------------------- segments


def test_each_segment_is_in_one_domain_and_the_domains_are_next_to_each_other() -> None:
    d = Driver([node for r in (1, 2, 3) for node in domain_nodes(f"x.{r}", {f"s1/r{r}a": 2, f"s1/r{r}b": 2})])
    fill_four_gpu_nodes(d, "r2a-1")
    members = annotated_gang(8, gpus=4, segment_size="4", segment_level="accelerator-domain", placement="preferred")
    d.run(*members)
    placed = sorted((rank_of(pod), leaf_of(pod.spec.node_name)[:2]) for pod in members)
    assert [at for _, at in placed] == ["r1"] * 4 + ["r3"] * 4


def test_segments_of_a_domain_each_with_leaves_in_common() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    members = annotated_gang(6, gpus=4, segment_size="3", segment_level="accelerator-domain")
    d.run(*members)
    half = [int(pod.spec.node_name[-1]) > 2 for pod in sorted(members, key=rank_of)]
    assert len(set(half[:3])) == len(set(half[3:])) == 1
    assert half[0] != half[3]


def test_what_is_lost_of_a_segment_goes_back_to_its_domain() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    members = annotated_gang(6, gpus=4, segment_size="3", segment_level="accelerator-domain")
    d.run(*members)
    lost = next(pod for pod in members if rank_of(pod) == 4)
    mates = [pod for pod in members if rank_of(pod) in (3, 5)]
    d.delete(lost)
    again = next(pod for pod in annotated_gang(6, gpus=4, segment_size="3", segment_level="accelerator-domain"))
    again.metadata.name, again.metadata.uid = "again", "again"
    d.run(again)
    assert {int(pod.spec.node_name[-1]) > 2 for pod in (again, *mates)} in ({True}, {False})
    assert rank_of(again) == 4


# ---------------------------------------------------------------- rules, time, remedies


RULES = "{placementRules: [{name: rack, nodes: 2, level: accelerator-domain}]}"


def test_a_placement_rule_may_ask_for_a_domain() -> None:
    d = Driver(
        [*domain_nodes("x.1", {"s1/a": 1}), *domain_nodes("x.2", {"s1/a": 1, "s1/b": 1}, first=2)], configured(RULES)
    )
    members = annotated_gang(2, gpus=4)
    assert d.run(*members)["g-0"] in ("a-2", "b-2")
    assert leaves(d.where(*members)) == {"a", "b"}
    assert not any("no node" in text for text in d.complaints())


def test_a_rule_that_can_not_be_kept_now_is_named() -> None:
    d = Driver(
        [*domain_nodes("x.1", {"s1/a": 1}), *domain_nodes("x.2", {"s1/a": 1, "s1/b": 1}, first=2)], configured(RULES)
    )
    fill_four_gpu_nodes(d, "b-2")
    members = annotated_gang(2, gpus=4)
    assert d.run(*members) == {}
    assert "Placement rule rack asks for all leaves in 1 accelerator-domain" in d.told(members[0])[-1]


def test_a_required_domain_relaxes_to_the_whole_fabric() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    fill_four_gpu_nodes(d, "a-1", "a-3")
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain", relax_after="1m")
    assert d.run(*members) == {}
    d.settle(60)
    assert len(d.where(*members)) == 4
    assert any("level relaxed from accelerator-domain to spine after 1m" in text for text in d.told(members[0]))


def test_what_relaxed_may_use_nodes_without_a_domain_within_the_limits_per_leaf() -> None:
    plain = [make_node("a-1", "s/a", gpus=4), make_node("b-1", "s/b", gpus=4), make_node("b-2", "s/b", gpus=4)]
    d = Driver([*domain_nodes("r1", {"s/c": 1}), *plain], configured("{topologyConstraints: {maxNodesPerLeaf: 1}}"))
    members = annotated_gang(3, gpus=4, required_level="accelerator-domain", relax_after="1m")
    assert d.run(*members) == {}
    d.settle(600)
    where = d.where(*members)
    assert len(where) == 3
    assert len({leaf_of(node) for node in where.values()}) == 3


def test_remedies_name_the_level_to_drop_to() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    fill_four_gpu_nodes(d, "a-1", "a-3")
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain")
    assert d.run(*members) == {}
    d.explain()
    workload = d.engine.workloads.get(d.decisions()[-1].workload)
    assert workload is not None
    explanation = d.engine.why.explain(workload, d.now, d.now, lambda: 0.0)
    assert explanation is not None
    assert {row.level for row in explanation.domains} == {"spine", "accelerator-domain", "leaf"}
    offers = {(way.demand, way.value) for way in explanation.ways if way.demand}
    assert ("topology.scheduler/required-level", "spine") in offers
    assert any(way.size == 3 for way in explanation.ways)
    (free,) = [way for way in explanation.ways if way.kind is RemedyKind.FREE]
    assert [ended.pods for ended in free.ended] in ([("default/busy-a-1",)], [("default/busy-a-3",)])


def test_a_level_to_drop_to_is_combined_with_pods_to_end_as_it_would_be_asked() -> None:
    """On the network the gang has a leaf as the size rule asks; placement need not be preferred for that."""
    d = Driver([make_node(f"n{n}", "s1/l1", gpus=2, labels={CLIQUE: f"x.{n}"}) for n in (1, 2)])
    d.run(*annotated_gang(4, name="other", gpus=1))
    members = annotated_gang(4, gpus=1, required_level="accelerator-domain")
    assert d.run(*members) == {}
    d.explain(1)
    assert "(1) set topology.scheduler/required-level to leaf and end gang default/other" in d.told(members[0])[-1]


def test_nodes_of_one_domain_are_held_for_a_gang_that_waits_long() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    for node, ends in (("a-1", 1800), ("b-1", 7200), ("a-3", 3600), ("b-3", 3600)):
        annotations = {"expected-duration": f"{ends}s"}
        pod = make_pod(f"busy-{node}", gpus=4, scheduler="other", node=node, phase="Running", annotations=annotations)
        pod.status.start_time, pod.spec.restart_policy = timestamp(0), "Never"
        d.apply(pod)
    d.apply(*annotated_gang(4, gpus=4, required_level="accelerator-domain"))
    d.step()
    d.step(30)
    (held,) = d.engine.reserving.holds
    assert sorted(held.nodes) == ["a-3", "a-4", "b-3", "b-4"]
    assert (held.start, held.domain) == (3600, "s1/a, s1/b")


def test_the_fewest_moves_that_free_a_domain_are_found() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES, configured("{preemption: {enabled: false}, reservation: {enabled: false}}"))
    d.engine.budgets_known()
    for name, node in (("x", "a-1"), ("y", "b-2"), ("z", "a-3")):
        pod = make_pod(name, gpus=2, owner=controlled_by("StatefulSet", name))
        d.own(owner("StatefulSet", name))
        d.apply(pod)
        pod.spec.node_name = node
        d.apply(pod)
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain")
    d.apply(*members)
    d.step()
    workload = d.engine.workloads.of_pod(members[0].metadata.uid)
    assert workload is not None
    plan = d.engine.moving.plan(workload[0], d.now, 8)
    assert plan is not None
    assert [move.pod.occupant.name for move in plan.moves] == ["z"]
    names = {d.engine.world.nodes.names[row] for row in plan.placement.rows[0]}
    assert names == {"a-3", "a-4", "b-3", "b-4"}


# ---------------------------------------------------------------- what people see


def test_the_largest_gang_is_reported_by_level_of_the_second_tree() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES)
    fill_four_gpu_nodes(d, "a-1")
    torn = fragmentation(d.engine.world)
    (gang,) = [gang for gang in torn.gangs if gang.level == "accelerator-domain"]
    assert (gang.whole_nodes, gang.whole_gpus, gang.path) == (4, 16, ("x.2",))


def test_the_survey_lists_the_domains() -> None:
    d = Driver([*DOMAINS_ACROSS_LEAVES, *domain_nodes("", {"s1/c": 1})])
    fill_four_gpu_nodes(d, "a-1")
    domains = {domain.path: (domain.level, domain.free, domain.nodes) for domain in survey_accelerators(d.engine.world)}
    assert domains == {
        ("x.1",): ("accelerator-domain", 12, ("a-1", "a-2", "b-1", "b-2")),
        ("x.2",): ("accelerator-domain", 16, ("a-3", "a-4", "b-3", "b-4")),
    }


# ---------------------------------------------------------------- labels change


def test_a_node_moved_to_another_domain_counts_there_at_once() -> None:
    d = Driver(domain_nodes("x.1", {"s1/a": 2}) + domain_nodes("x.2", {"s1/b": 1}))
    members = annotated_gang(3, gpus=4, required_level="accelerator-domain")
    assert d.run(*members) == {}
    d.nodes(make_node("b-1", "s1/b", gpus=4, labels={CLIQUE: "x.1"}))
    d.settle()
    assert set(d.where(*members).values()) == {"a-1", "a-2", "b-1"}


@pytest.mark.parametrize("seed", range(4))
def test_a_successor_completes_a_gang_in_its_domain(seed: int) -> None:
    first = Driver(DOMAINS_ACROSS_LEAVES)
    members = annotated_gang(4, gpus=4, required_level="accelerator-domain")
    first.apply(*members)
    first.step()
    shuffler = random.Random(seed)
    for uid in shuffler.sample(sorted(first.flight), 2):
        first.write(first.flight[uid])
    second = Driver(shuffler.sample(DOMAINS_ACROSS_LEAVES, len(DOMAINS_ACROSS_LEAVES)))
    second.apply(*shuffler.sample(members, len(members)))
    second.settle()
    where = second.where(*members)
    assert len(set(where.values())) == 4
    assert len({int(node[-1]) > 2 for node in where.values()}) == 1


def test_what_came_bit_by_bit_decides_as_what_is_listed_at_once() -> None:
    gradual = Driver(DOMAINS_ACROSS_LEAVES)
    for node in DOMAINS_ACROSS_LEAVES:
        labels = dict(node.metadata.labels)
        gradual.nodes(make_node(node.metadata.name, "s9/x", gpus=4, labels={CLIQUE: "other"}))
        gradual.nodes(make_node(node.metadata.name, "", gpus=4, labels=labels))
    listed = Driver(list(reversed(DOMAINS_ACROSS_LEAVES)))
    for number in range(3):
        pods = [annotated_gang(2 + number, f"g{number}", gpus=2, required_level="accelerator-domain") for _ in (1, 2)]
        assert gradual.run(*pods[0]) == listed.run(*pods[1])


# ---------------------------------------------------------------- rails


def test_gangs_keep_to_the_unit_of_a_rail_optimised_fabric() -> None:
    def railed(name: str, unit: int) -> Node:
        labels = {f"topology.scheduler/leaf-rail-{rail}": f"su{unit}-rail{rail}" for rail in range(4)}
        return make_node(name, gpus=4, labels=labels | {"topology.scheduler/network-bandwidth": "400Gb"})

    nodes = [railed(f"n{unit}-{n}", unit) for unit in (1, 2) for n in (1, 2, 3)]
    d = Driver(nodes, configured("{links: [{level: leaf, capacity: 400Gb}]}"))
    fill_four_gpu_nodes(d, "n1-1")
    members = annotated_gang(3, gpus=4)
    where = d.run(*members)
    assert set(where.values()) == {"n2-1", "n2-2", "n2-3"}
    assert members[0].metadata.annotations["topology.scheduler/address"].startswith("su2-rail[0-3].n2-")
    spread = annotated_gang(2, "wide", gpus=4, network_bandwidth="100Gb")
    assert len(d.run(*spread)) == 2
    assert {link.path: link.capacity for link in survey_links(d.engine.world) if link.level == "leaf"} == {
        ("su1-rail[0-3]",): 400_000,
        ("su2-rail[0-3]",): 400_000,
    }


OWN = """
apiVersion: topology.scheduler/v1alpha1
kind: SchedulerConfig
topology:
  accelerators:
    - {name: nvlink, labels: [example.com/rack]}
"""


def test_levels_of_ones_own_replace_those_that_are_known() -> None:
    nodes = [make_node(f"n{n}", f"s1/l{n}", gpus=4, labels={"example.com/rack": f"r{n % 2}"}) for n in range(4)]
    d = Driver(nodes, load_configuration({"test": OWN}))
    where = d.run(*annotated_gang(2, gpus=4, required_level="nvlink"))
    assert set(where.values()) in ({"n0", "n2"}, {"n1", "n3"})
    refused = annotated_gang(2, "h", gpus=4, required_level="accelerator-domain")
    assert d.run(*refused) == {}
    assert "'accelerator-domain' is no level of the fabric; write one of" in d.told(refused[0])[-1]
