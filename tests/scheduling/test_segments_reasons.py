"""Why a gang in segments is pending, by segments; and what makes room for it."""

from typing import Any

import pytest

from tests.helpers import EPOCH, make_pod
from tests.scheduling.driver import Driver, explanation_of, fabric
from tests.scheduling.gang_pods import annotated_gang, launcher_gang, leader_worker_set, leaf_by_rank
from tests.scheduling.repair_moves import moves_by_pod, plan_moves, repair_driver, replicated_pod, run_on
from tests.scheduling.running_pods import fill_nodes, foreign_pod, run_pod_until
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.explaining.remedies import Remedy, RemedyKind


def reason(d: Driver, pods: list[Pod]) -> str:
    assert d.run(*pods) == {}
    return d.told(pods[0])[-1]


def test_the_sentence_counts_segments() -> None:
    d = Driver(fabric({"s/leaf-1": 9, "s/leaf-2": 5, "s/leaf-3": 4, "s/leaf-4": 3}))
    fill_nodes(d, "s-leaf-3-1")
    message = reason(d, annotated_gang(20, segment_size="4", required_level="spine"))
    assert "No spine could hold the gang's 20 pods even if it were empty" in message, "four segments fit"
    d = Driver(fabric({"s/leaf-1": 9, "s/leaf-2": 5, "s/leaf-3": 4, "s/leaf-4": 4}))
    fill_nodes(d, "s-leaf-3-1", "s-leaf-4-1")
    message = reason(d, annotated_gang(20, segment_size="4"))
    assert "3 segments of 4 pods fit, 5 are needed: leaf-1 takes 2, leaf-2 takes 1. The gang needs 4 leaves" in message


def test_segments_that_fit_but_not_under_one_spine() -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 2, "t/c": 2, "t/d": 2}))
    fill_nodes(d, "s-a-1", "t-d-1")
    message = reason(d, annotated_gang(4, segment_size="2"))
    assert (
        "2 segments of 2 pods fit, 2 are needed, and in 2 leaves under one spine no more than 1: b takes 1" in message
    )


def test_no_segment_fits() -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 2}))
    fill_nodes(d, "s-a-1", "s-b-1")
    assert "No segments of 2 pods fit, 1 is needed. The gang needs 1 leaf" in reason(
        d, annotated_gang(2, segment_size="2")
    )


def test_segments_of_a_spine_each() -> None:
    d = Driver(fabric({"s/a": 3, "s/b": 2, "t/a": 2, "t/b": 2}))
    fill_nodes(d, "t-b-1")
    message = reason(d, annotated_gang(8, segment_size="4", segment_level="spine"))
    assert "1 segment of 4 pods fits, 2 are needed: s takes 1. The gang needs 2 spines" in message


@pytest.mark.parametrize("alike", [False, True])
def test_segments_that_are_not_alike_are_counted_too(alike: bool) -> None:
    d = Driver(fabric({"s/a": 4, "s/b": 3, "s/c": 3}))
    fill_nodes(d, "s-a-1", "s-a-2", "s-c-1")
    pods = leader_worker_set(6, 3) if alike else launcher_gang(3, 4)
    if alike:
        pods = leader_worker_set(7, 3)
    message = reason(d, pods)
    if alike:
        assert "1 segment fits, 2 are needed: b takes 1. The gang needs 2 leaves in 1 spine" in message
    else:
        assert "1 segment fits, 3 are needed: b takes 1. The gang needs 3 leaves in 1 spine" in message


def test_too_few_gpus_come_first() -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 2}))
    fill_nodes(d, "s-a-1")
    message = reason(d, annotated_gang(4, segment_size="2"))
    assert "32 GPUs are needed and 24 are free. The gang needs 2 leaves" in message


def test_the_table_counts_whole_segments() -> None:
    d = Driver(fabric({"s/a": 3, "s/b": 2, "t/a": 2}))
    d.apply(foreign_pod("x", "s-b-1"))
    pods = annotated_gang(4, segment_size="2", required_level="spine")
    d.apply(*pods)
    table = {"/".join(domain.path): domain.room for domain in explanation_of(d, pods[0]).domains}
    assert table == {"s": 2, "t": 2, "s/a": 2, "s/b": 0, "t/a": 2}


# ---------------------------------------------------------------- what gives them room


@pytest.mark.parametrize("mixed", [False, True])
def test_others_give_way_to_segments_of_higher_priority_and_no_more_than_must(mixed: bool) -> None:
    d = Driver(fabric({"s/a": 3, "s/b": 3}))
    d.engine.budgets_known()
    low = [make_pod(f"low-{n}", gpus=8, node=f"s-{leaf}-{n % 3 + 1}") for n, leaf in enumerate("aaabbb")]
    for pod in low:
        pod.metadata.owner_references = []
    d.apply(*low)
    pods = launcher_gang(2, 3) if mixed else annotated_gang(4, segment_size="2")
    for pod in pods:
        pod.spec.priority = 10
    d.apply(*pods)
    d.step()
    going = d.preempted()
    assert sorted(name[-1] in "012" for name in going) == [False, False, True, True], "two nodes of each leaf"
    d.evict(*[pod for pod in low if pod.metadata.name in going])
    d.settle(1)
    leaves = leaf_by_rank(d, pods)
    size = 3 if mixed else 2
    assert leaves == ["s-a"] * size + ["s-b"] * size


def ways(d: Driver, pod: Pod) -> dict[RemedyKind, Remedy]:
    entry = d.engine.workloads.of_pod(pod.metadata.uid)
    assert entry is not None
    explanation = d.engine.why.explain(entry[0], d.now, EPOCH + 60.0, lambda: 0.0)
    assert explanation is not None
    return {way.kind: way for way in explanation.ways}


@pytest.mark.parametrize("kind", ["alike", "mixed", "leader"])
def test_remedies_of_gangs_in_segments_are_true(kind: str) -> None:
    def gang() -> list[Pod]:
        if kind == "leader":
            return leader_worker_set(5, 2)
        return launcher_gang(2, 3) if kind == "mixed" else annotated_gang(4, segment_size="2")

    # Enough is free of single nodes, and one pod too many in the second leaf.
    nodes, foreign = fabric({"s/a": 3, "s/b": 2, "s/c": 1}), [foreign_pod("x", "s-b-1"), foreign_pod("y", "s-c-1")]
    d = Driver(nodes)
    d.apply(*foreign)
    pods = gang()
    assert d.run(*pods) == {}
    remedies = ways(d, pods[0])
    assert [pod for ending in remedies[RemedyKind.FREE].ended for pod in ending.pods] == ["default/x"]
    assert remedies[RemedyKind.REDUCE].size == {"alike": 2, "mixed": 3, "leader": 3}[kind]
    again = Driver(nodes)
    again.apply(foreign[1])
    assert len(again.run(*gang())) == len(pods)


@pytest.mark.parametrize("mixed", [False, True])
def test_the_leaves_in_which_segments_fit_first_are_held(mixed: bool) -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 2, "s/c": 2}))
    for node, ends in (("s-a-1", 7200), ("s-b-1", 3600), ("s-c-1", 1800)):
        run_pod_until(d, f"on-{node}", node, ends=ends)
    pods = launcher_gang(2, 3) if mixed else annotated_gang(4, segment_size="2")
    d.apply(*pods)
    d.step()
    d.step(30)
    (reservation,) = d.engine.reserving.holds
    assert sorted(reservation.nodes) == ["s-b-1", "s-b-2", "s-c-1", "s-c-2"]
    assert reservation.start == 3600


@pytest.mark.parametrize("mixed", [False, True])
def test_one_pod_moves_for_a_gang_in_segments(mixed: bool) -> None:
    d = repair_driver({"s/a": 2, "s/b": 3})
    run_on(d, replicated_pod("x"), on=["s-a-1"])
    pods = launcher_gang(2, 3) if mixed else annotated_gang(4, segment_size="2")
    assert d.run(*pods) == {}
    assert moves_by_pod(d, plan_moves(d, pods)) == {"x": ("s-a-1", "s-b-3")}


@pytest.mark.parametrize("segmented", [False, True])
def test_a_gang_in_segments_does_not_move(segmented: bool) -> None:
    """The plan would not assign its members again; members of a gang without segments may move."""
    d = repair_driver({"s/a": 2, "s/b": 2})
    annotations: dict[str, Any] = {"gang-name": "there", "gang-size": "2", "placement": "preferred"}
    if segmented:
        annotations |= {"segment-size": "2", "segment-level": "spine"}
    running = [replicated_pod(f"there-{n}", 8, **annotations) for n in range(2)]
    run_on(d, *running, on=["s-a-1", "s-b-1"])
    pods = annotated_gang(2)
    assert d.run(*pods) == {}
    assert (plan_moves(d, pods) is None) is segmented


def test_where_segments_have_a_spine_each_spines_are_counted() -> None:
    d = Driver(fabric({"s1/a": 1, "s1/b": 1, "s2/a": 1, "s2/b": 1}))
    members = annotated_gang(4, segment_size="2", segment_level="spine")
    assert len(d.run(*members)) == 4
    assert "s1/a, s1/b, s2/a, s2/b, 2 of 2 spines needed, score" in d.told(members[0])[-1]
