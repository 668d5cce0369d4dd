"""Levels that gangs ask for: required, preferred, and relaxed while they wait."""

from collections.abc import Mapping

import pytest

from tests.helpers import Owner, controlled_by, in_group, make_group, make_node, make_pod, timestamp
from tests.scheduling.driver import Driver, configured, fabric
from tests.scheduling.gang_pods import annotated_gang
from tests.scheduling.running_pods import fill_nodes
from topo_scheduler.api.config import load_configuration
from topo_scheduler.api.objects import Node, PodCondition

SPINE = "topology.scheduler/spine"


def leaves(where: Mapping[str, str]) -> set[str]:
    """Return the leaves in which pods run, by the names that `fabric` gives nodes."""
    return {node.rpartition("-")[0] for node in where.values()}


PREFERRED = configured("{topologyConstraints: {enforcement: preferred}}")


@pytest.mark.parametrize("level", ["leaf", "topology.scheduler/leaf"])
def test_a_required_level_is_kept_to_where_the_configuration_would_spread(level: str) -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}), PREFERRED)
    busy = fill_nodes(d, "s1-a-1", "s1-b-1")
    members = annotated_gang(2, required_level=level)
    assert d.run(*members) == {}, "a node is free in each leaf, and that will not do"
    d.delete(busy[0])
    d.settle()
    assert leaves(d.where(*members)) == {"s1-a"}


def test_a_required_level_wider_than_the_rule_changes_nothing_of_the_rule() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))
    fill_nodes(d, "s1-a-1", "s1-b-1")
    members = annotated_gang(2, required_level="spine")
    assert d.run(*members) == {}
    assert "needs 1 leaf" in d.told(members[0])[-1]


def test_a_level_that_does_not_exist_is_a_problem_that_names_those_that_do() -> None:
    d = Driver(fabric({"s1/a": 2}))
    members = annotated_gang(2, required_level="rack")
    assert d.run(*members) == {}
    (text,) = set(d.told(members[0]))
    assert text.startswith(
        "Refused: annotation topology.scheduler/required-level on Pod default/g-0: 'rack' is no level"
    )
    assert "spine, leaf" in text
    assert "or the key of a node label for one" in text


def test_a_gang_waits_for_a_level_for_which_no_node_has_a_label() -> None:
    d = Driver(fabric({"s1/a": 2}))
    members = annotated_gang(2, required_level="core")
    assert d.run(*members) == {}
    assert "Its annotation required-level asks for one core, for which no node has a label" in d.told(members[0])[-1]


@pytest.mark.parametrize("others", [[], [make_node("small", "s1/a", gpus=1)]])
def test_a_level_for_which_only_other_nodes_have_a_label_is_named(others: list[Node]) -> None:
    d = Driver([make_node("a"), make_node("b"), *others])
    members = annotated_gang(2, required_level="leaf")
    assert d.run(*members) == {}
    text = d.told(members[0])[-1]
    assert "The nodes that could hold a pod of the gang have no label for leaf" in text
    assert "and its annotation required-level asks for one" in text


def test_a_gang_that_no_domain_of_the_level_holds_gets_an_event_that_says_so() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))
    members = annotated_gang(3, required_level="leaf")
    assert d.run(*members) == {}
    assert "No leaf could hold the gang's 3 pods" in d.told(members[0])[-1]
    assert "and its annotation required-level asks for one" in d.told(members[0])[-1]


@pytest.mark.parametrize(("key", "annotation"), [(SPINE, "leaf"), ("topology.scheduler/leaf", "spine")])
def test_of_podgroup_and_annotation_the_tighter_level_holds(key: str, annotation: str) -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}), PREFERRED)
    fill_nodes(d, "s1-a-1", "s1-b-1")
    d.groups(make_group("pg", 2, key=key))
    members = [in_group(make_pod(f"p-{n}", gpus=8, annotations={"required-level": annotation}), "pg") for n in range(2)]
    assert d.run(*members) == {}, "one leaf is asked for, and none has two nodes free"


def test_a_preferred_level_is_taken_where_it_can_be_had_now() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2, "s2/a": 1, "s2/b": 1}))
    fill_nodes(d, "s1-a-1", "s1-b-1")
    members = annotated_gang(2, preferred_level="spine")
    assert leaves(d.run(*members)) == {"s1-a", "s1-b"}, "the size rule alone would wait for one leaf"


def test_where_the_preferred_level_can_not_be_had_the_rules_hold() -> None:
    d = Driver(fabric({"s1/a": 2, "s2/b": 2}))
    busy = fill_nodes(d, "s1-a-1", "s2-b-1")
    members = annotated_gang(2, preferred_level="spine")
    assert d.run(*members) == {}
    d.delete(busy[1])
    d.settle()
    assert leaves(d.where(*members)) == {"s2-b"}


def test_a_preferred_level_takes_the_tightest_domain_first() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 4}))
    members = annotated_gang(4, preferred_level="spine")
    assert leaves(d.run(*members)) == {"s1-b"}


NVLINK = """
apiVersion: topology.scheduler/v1alpha1
kind: SchedulerConfig
topology:
  levels:
    - {name: spine, labels: [topology.scheduler/spine]}
    - {name: leaf, labels: [topology.scheduler/leaf]}
    - {name: nvlink, labels: [nvidia.com/gpu.clique]}
"""


def test_nvlink_domains_are_a_level_below_the_leaf() -> None:
    nodes = [
        make_node(f"{leaf}-{clique}-{n}", f"s1/{leaf}", labels={"nvidia.com/gpu.clique": f"uuid.{clique}"})
        for leaf, clique in (("a", 1), ("a", 2), ("b", 1), ("b", 2))
        for n in range(2)
    ]
    d = Driver(nodes, load_configuration({"test": NVLINK}))
    fill_nodes(d, "a-1-0")
    parts = annotated_gang(4, "parts", required_level="leaf", segment_size="2", segment_level="nvlink")
    assert leaves(d.run(*parts)) == {"b-1", "b-2"}, "cliques of one name in two leaves are two"
    whole = annotated_gang(2, "whole", required_level="nvlink")
    assert leaves(d.run(*whole)) == {"a-2"}
    large = annotated_gang(3, "large", required_level="nvidia.com/gpu.clique")
    assert d.run(*large) == {}
    assert "No nvlink could hold the gang's 3 pods" in d.told(large[0])[-1]


# ---------------------------------------------------------------- relax-after


def test_a_level_relaxes_one_step_after_each_interval_and_the_pod_says_so() -> None:
    d = Driver(fabric({"s1/a": 1, "s1/b": 1, "s2/c": 1}))
    members = annotated_gang(3, required_level="leaf", relax_after="10m")
    d.apply(*members)
    d.settle()
    assert d.where(*members) == {}
    assert d.engine.next_due() == 600, "it is woken when the time comes, though nothing else happens"
    d.settle(600)
    assert d.where(*members) == {}, "a spine has two nodes at most"
    assert "level relaxed from leaf to spine after 10m" in d.told(members[0])[-1]
    assert members[0].metadata.name in d.marked()
    d.settle(600)
    assert len(d.where(*members)) == 3
    assert "level relaxed from leaf to cluster after 20m" in d.decisions()[-1].sentence


def test_without_a_required_level_that_of_the_size_rule_relaxes() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))
    fill_nodes(d, "s1-a-1", "s1-b-1")
    members = annotated_gang(2, relax_after="1m30s")
    d.apply(*members)
    d.settle()
    d.settle(89)
    assert d.where(*members) == {}
    d.settle(1)
    assert leaves(d.where(*members)) == {"s1-a", "s1-b"}
    assert "level relaxed from leaf to spine after 1m 30s" in d.decisions()[-1].sentence


def test_what_can_be_had_without_relaxing_is_taken_though_the_time_is_up() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))
    busy = fill_nodes(d, "s1-a-1", "s1-b-1", "s1-b-2")
    members = annotated_gang(2, relax_after="1m")
    d.apply(*members)
    d.settle()
    d.now += 59.9
    d.delete(busy[0])
    d.settle(0.2)
    assert leaves(d.where(*members)) == {"s1-a"}
    assert "relaxed" not in d.decisions()[-1].sentence


def test_the_time_counts_from_when_all_pods_are_there() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))
    fill_nodes(d, "s1-a-1", "s1-b-1")
    first, second = annotated_gang(2, relax_after="1m")
    d.apply(first)
    d.settle(100)
    d.apply(second)
    d.settle()
    assert d.where(first, second) == {}
    d.settle(60)
    assert len(d.where(first, second)) == 2


def test_a_gang_that_lost_a_pod_while_it_was_unschedulable_says_that_it_waits_for_it() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))
    fill_nodes(d, "s1-a-1", "s1-b-1")
    first, second = annotated_gang(2, relax_after="1h")
    d.apply(first, second)
    d.settle()
    d.delete(second)
    d.settle()
    d.settle(5)
    assert "waiting for 1 of 2 pods" in d.told(first)[-1]


def test_the_next_leader_goes_on_where_the_last_one_was() -> None:
    nodes = fabric({"s1/a": 2, "s1/b": 2})
    d = Driver(nodes)
    busy = fill_nodes(d, "s1-a-1", "s1-b-1")
    members = annotated_gang(2, relax_after="1h")
    d.apply(*members)
    d.settle()
    d.settle(3000)
    assert d.where(*members) == {}
    d.write_conditions()
    new = Driver(nodes)
    new.now = d.now
    new.apply(*busy, *members)
    new.settle()
    assert new.where(*members) == {}
    assert new.engine.next_due() == 3600, "it relaxes when it would have without a change of leader"
    new.settle(600)
    assert leaves(new.where(*members)) == {"s1-a", "s1-b"}


def test_a_clock_that_runs_ahead_shortens_no_waiting() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))
    fill_nodes(d, "s1-a-1", "s1-b-1")
    members = annotated_gang(2, relax_after="1m")
    for pod in members:
        pod.status.conditions = [PodCondition("PodScheduled", "False", "Unschedulable", "", timestamp(500))]
    d.apply(*members)
    d.settle()
    d.settle(59)
    assert d.where(*members) == {}
    d.settle(1)
    assert len(d.where(*members)) == 2


def test_others_give_way_for_the_level_to_which_it_has_relaxed() -> None:
    """In no leaf enough of them may go, in both together they may: no pod was preempted for that before."""
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))
    d.engine.budgets_known()
    busy = fill_nodes(d, "s1-a-1", "s1-a-2", "s1-b-1", "s1-b-2")
    for pod in (busy[0], busy[2]):
        pod.spec.priority = 100
    d.apply(*busy)
    members = annotated_gang(2, relax_after="10m")
    for pod in members:
        pod.spec.priority = 10
    d.apply(*members)
    d.settle()
    d.settle(599)
    assert d.preempted() == []
    d.settle(1)
    assert d.preempted() == ["busy-s1-a-2", "busy-s1-b-2"]
    d.evict(busy[1], busy[3])
    d.settle(1)
    assert leaves(d.where(*members)) == {"s1-a", "s1-b"}


def test_nodes_are_held_for_the_level_to_which_it_has_relaxed() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}))
    for name, hours in (("s1-a-1", 9), ("s1-a-2", 1), ("s1-b-1", 9), ("s1-b-2", 1)):
        pod = make_pod(name, gpus=8, scheduler="other", node=name, phase="Running")
        pod.metadata.annotations["topology.scheduler/expected-duration"] = f"{hours}h"
        pod.status.start_time = timestamp(0)
        d.apply(pod)
    members = annotated_gang(2, relax_after="10m")
    d.apply(*members)
    d.settle()
    d.settle(31)
    (held,) = d.engine.reserving.holds
    assert held.start == 9 * 3600, "a leaf is asked for"
    d.settle(600)
    d.settle(60)
    (held,) = d.engine.reserving.holds
    assert held.start == 3600
    assert sorted(held.nodes) == ["s1-a-2", "s1-b-2"]


@pytest.mark.parametrize("text", ["0s", "-10m", "ten", "", "10", "10m5"])
def test_a_duration_that_can_not_be_read_is_a_problem_of_the_pod(text: str) -> None:
    d = Driver(fabric({"s1/a": 2}))
    members = annotated_gang(2, relax_after=text)
    assert d.run(*members) == {}
    assert "annotation topology.scheduler/relax-after on Pod default/g-0" in d.told(members[0])[-1]


def test_a_job_above_may_say_it_for_all_its_pods() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 2}), PREFERRED)
    fill_nodes(d, "s1-a-1", "s1-b-1")
    d.own(
        Owner(
            "Job",
            "train",
            annotations={"topology.scheduler/required-level": "leaf", "topology.scheduler/gang-size": "2"},
        )
    )
    by = controlled_by("Job", "train")
    members = [make_pod(f"train-{n}", gpus=8, owner=by) for n in range(2)]
    assert d.run(*members) == {}


def test_a_pod_alone_does_not_mind() -> None:
    d = Driver([make_node("n1")])
    pod = make_pod("one", gpus=1, annotations={"required-level": "leaf", "relax-after": "1m", "segment-size": "3"})
    assert d.run(pod) == {"one": "n1"}


def test_nodes_without_a_label_for_a_level_share_no_domain_of_it() -> None:
    d = Driver([*fabric({"s1/a": 3}), *(make_node(f"x{n}", "/b") for n in range(4))])
    busy = fill_nodes(d, "s1-a-1")
    members = annotated_gang(3, required_level="spine")
    assert d.run(*members) == {}
    d.delete(*busy)
    d.settle()
    assert leaves(d.where(*members)) == {"s1-a"}
