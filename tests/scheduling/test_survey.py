"""The fabric as people and metrics see it adds up."""

from collections import Counter

import pytest
from hypothesis import given, settings

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from tests.scheduling.planning import Small, grid, small_of
from tests.scheduling.reference import Machine, Want
from tests.scheduling.reference_clusters import clusters
from topo_scheduler.api.objects import Node
from topo_scheduler.scheduling.surveying.survey import survey
from topo_scheduler.scheduling.surveying.waiting import longest_waits, pending_pods


def test_a_domain_shows_name_type_capacity_use_nodes_and_neighbours() -> None:
    small = Small(grid(2, 3, 2))
    small.hold("s1l2n1", gpus=4)
    domains = {domain.path: domain for domain in survey(small.world)}
    assert next(iter(domains)) == ()
    assert (domains[()].level, domains[()].name, domains[()].capacity, domains[()].used) == (
        "cluster",
        "cluster",
        96,
        4,
    )
    spine = domains["s1",]
    assert (spine.level, spine.name, spine.capacity, spine.free) == ("spine", "s1", 48, 44)
    assert spine.connected == (("s2",),)
    leaf = domains["s1", "l2"]
    assert (leaf.level, leaf.nodes, leaf.utilization) == ("leaf", ("s1l2n1", "s1l2n2"), 0.25)
    assert leaf.connected == (("s1", "l1"), ("s1", "l3"))
    assert domains["s1", "l3"].connected == (("s1", "l2"),), "a neighbour under another spine is none"
    assert leaf.fragmentation == 1 - 8 / 12


def test_nothing_free_is_not_fragmented() -> None:
    small = Small(grid(1, 1, 1))
    small.hold("s1l1n1", gpus=8)
    assert {domain.fragmentation for domain in survey(small.world)} == {0.0}


@pytest.mark.parametrize("away", [make_node("b", "s1/l1", ready=False), make_node("b", "s1/l1", unschedulable=True)])
def test_nothing_of_a_node_that_is_away_is_free(away: Node) -> None:
    d = Driver([make_node("a", "s1/l1"), away])
    (cluster, *_) = survey(d.engine.world)
    assert (cluster.capacity, cluster.free, cluster.whole, cluster.fragmentation) == (16, 8, 8, 0.0)


def test_gpus_that_a_node_does_not_offer_any_more_are_no_use_of_others() -> None:
    d = Driver([make_node("a", "s1/l1"), make_node("b", "s1/l1")])
    d.apply(make_pod("held", gpus=8, node="a"))
    d.nodes(make_node("a", "s1/l1", gpus=2))
    (cluster, *_) = survey(d.engine.world)
    assert (cluster.capacity, cluster.used, cluster.missing, cluster.free, cluster.utilization) == (10, 8, 6, 8, 0.2)


def test_a_cluster_without_nodes_has_no_domains() -> None:
    assert list(survey(Small([]).world)) == []


@settings(deadline=None, max_examples=50)
@given(clusters())
def test_every_level_adds_up_to_the_whole(machines: list[Machine]) -> None:
    small = small_of(machines, Want(1, 1))
    small.hold(machines[0].name, gpus=3)
    domains = list(survey(small.world))
    whole = domains[0]
    for level in {domain.level for domain in domains}:
        inside = [domain for domain in domains if domain.level == level]
        for what in ("capacity", "used", "free", "whole"):
            assert sum(getattr(domain, what) for domain in inside) == getattr(whole, what)
        names = Counter(name for domain in inside for name in domain.nodes)
        assert names == Counter(machine.name for machine in machines)
    for domain in domains:
        assert 0 <= domain.fragmentation <= 1
        assert 0 <= domain.whole <= domain.free <= domain.capacity


def test_the_longest_wait_of_each_place_in_the_queue_is_that_of_its_oldest_pending_pod() -> None:
    d = Driver([make_node("n1", gpus=8)])
    size = {"gang-name": "g", "gang-size": "3"}
    for name, annotations in (("large", {}), ("later", {}), ("member-1", size), ("member-2", size)):
        d.apply(make_pod(name, gpus=16, annotations=annotations))
        d.step()
        d.step(10.0)
    assert pending_pods(d.engine) == {"active": 0, "backoff": 0, "unschedulable": 2, "gated": 2, "outside": 0}
    waits = {"active": 0.0, "backoff": 0.0, "unschedulable": 40.0, "gated": 20.0}
    assert longest_waits(d.engine, d.now) == waits
