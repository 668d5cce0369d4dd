"""When a node counts as failed, for how long it is avoided, and what counts as one failure."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.migrations import Cause
from topo_scheduler.api.recovery import LinkLabels, RecoverySpec
from topo_scheduler.recovery.detection.failure_detection import Detection
from topo_scheduler.recovery.detection.node_health import NodeHealth, problem_of, read_health

SPEC = RecoverySpec(enabled=True, debounce=10, quarantine=100)


def _detection(*nodes: str, spec: RecoverySpec = SPEC) -> Detection:
    """Nodes are called spine-leaf-number."""

    def domains(name: str) -> list[tuple[str, ...]]:
        spine, leaf, _ = name.split("-")
        return [(spine,), (spine, leaf)]

    detection = Detection(spec, domains)
    for name in nodes:
        detection.seen(NodeHealth(name, f"uid-{name}"), 0.0)
    return detection


def _ready(detection: Detection, name: str, ready: str, now: float) -> None:
    detection.seen(NodeHealth(name, f"uid-{name}", ready=ready), now)


NODES = [f"s{s}-l{leaf}-{n}" for s in (1, 2) for leaf in (1, 2) for n in (1, 2, 3, 4)]


def test_a_failure_is_reported_once_after_the_debounce() -> None:
    detection = _detection(*NODES)
    _ready(detection, "s1-l1-1", "False", 5.0)
    assert detection.next_due() == 15.0
    assert detection.due(14.9) == []
    (failure,) = detection.due(15.0)
    assert (failure.cause, failure.nodes, failure.since) == (Cause.NOT_READY, ("s1-l1-1",), 5.0)
    assert detection.due(1000.0) == []
    assert detection.next_due() is None


def test_from_not_ready_to_unreachable_it_is_the_same_failure() -> None:
    detection = _detection(*NODES)
    _ready(detection, "s1-l1-1", "False", 0.0)
    _ready(detection, "s1-l1-1", "Unknown", 8.0)
    (failure,) = detection.due(10.0)
    assert failure.cause is Cause.UNREACHABLE
    _ready(detection, "s1-l1-1", "False", 20.0)
    assert detection.due(60.0) == []


def test_a_deleted_node_has_failed_at_once() -> None:
    detection = _detection(*NODES)
    detection.gone("s1-l1-1", "uid-s1-l1-1", 3.0)
    at = detection.next_due()
    assert at is not None
    assert at <= 3.0 + 0.25
    (failure,) = detection.due(at)
    assert (failure.cause, failure.text, failure.since) == (Cause.DELETED, "node s1-l1-1 was deleted", 3.0)
    detection.gone("s1-l1-2", "another", 4.0)
    assert detection.due(9.0) == [], "that was one of the same name, before"


def test_a_leaf_that_is_deleted_is_one_failure() -> None:
    """Its nodes are deleted one by one, and the daemon may know by then that it is gone."""
    known = set(NODES)
    detection = _detection(*NODES)
    domains = detection.domains_of
    detection.domains_of = lambda name: domains(name) if name in known else []
    for number in (1, 2, 3, 4):
        known.discard(f"s1-l1-{number}")
        detection.gone(f"s1-l1-{number}", "", 3.0 + number / 20)
        assert detection.due(3.0 + number / 20) == []
    (failure,) = detection.due(3.3)
    assert (failure.cause, failure.text) == (Cause.DOMAIN, "s1/l1 failed: 4 of its 4 nodes are gone")
    assert failure.nodes == ("s1-l1-1", "s1-l1-2", "s1-l1-3", "s1-l1-4")
    assert detection.next_due() is None
    assert detection.due(100.0) == []


def test_nodes_that_are_deleted_slowly_count_for_their_leaf() -> None:
    detection = _detection(*NODES)
    reported = []
    for number, at in ((1, 0.0), (2, 4.0), (3, 8.0)):
        detection.gone(f"s1-l1-{number}", "", at)
        reported += detection.due(at + 1.0)
    assert [(failure.cause, failure.nodes) for failure in reported] == [
        (Cause.DELETED, ("s1-l1-1",)),
        (Cause.DELETED, ("s1-l1-2",)),
        (Cause.DOMAIN, ("s1-l1-3",)),
    ]
    assert reported[-1].text == "s1/l1 failed: 3 of its 4 nodes are gone"
    detection.gone("s1-l2-1", "", 50.0)
    detection.gone("s1-l1-4", "", 50.0)
    assert [failure.cause for failure in detection.due(51.0)] == [Cause.DELETED] * 2, "the others went long ago"


def test_some_nodes_of_a_leaf_die_and_others_are_deleted() -> None:
    detection = _detection(*NODES)
    for number in (1, 2):
        _ready(detection, f"s1-l1-{number}", "Unknown", 0.0)
    detection.gone("s1-l1-3", "", 2.0)
    (failure,) = detection.due(3.0)
    assert failure.text == "s1/l1 failed: 3 of its 4 nodes are gone or not ready"
    assert failure.since == 0.0
    assert detection.due(60.0) == []


def test_most_nodes_that_are_deleted_at_once_are_believed_after_a_minute() -> None:
    """A server that has lost its store lists no nodes either; a user that removes most of a cluster means it."""
    detection = _detection(*NODES)
    for name in NODES[:12]:
        detection.gone(name, "", 5.0)
    assert detection.due(6.0) == []
    assert "12 of 16 nodes" in detection.held
    at = detection.next_due()
    assert at is not None
    assert {node for failure in detection.due(at) for node in failure.nodes} == set(NODES[:12])
    assert detection.held == ""


def test_a_late_change_of_a_deleted_node_does_not_report_it_twice() -> None:
    """The scheduler's own watch may report the deletion before kopf reports an earlier change."""
    name = NODES[0]
    detection = _detection(*NODES)
    detection.gone(name, f"uid-{name}", 3.0)
    assert len(detection.due(4.0)) == 1
    _ready(detection, name, "True", 4.5)
    assert not detection.is_healthy(name)
    detection.gone(name, f"uid-{name}", 5.0)
    assert detection.due(6.0) == []
    detection.seen(NodeHealth(name, "another"), 7.0)
    assert detection.is_healthy(name), "another node of that name"


def test_a_node_that_was_only_missing_may_come_back() -> None:
    name = NODES[0]
    detection = _detection(*NODES)
    detection.gone(name, "", 3.0)
    _ready(detection, name, "True", 4.0)
    assert detection.is_healthy(name)


def test_a_node_that_was_to_be_emptied_has_failed_when_it_is_deleted() -> None:
    """Pods stay there that say so, but not on a dead node."""
    detection = _detection(*NODES)
    name, taints = "s1-l1-1", ("topology.scheduler/maintenance",)
    detection.seen(NodeHealth(name, f"uid-{name}", cordoned=True, taints=taints), 0.0)
    assert [failure.cause for failure in detection.due(10.0)] == [Cause.MAINTENANCE]
    detection.gone(name, f"uid-{name}", 20.0)
    assert [failure.cause for failure in detection.due(20.25)] == [Cause.DELETED]
    _ready(detection, "s1-l1-2", "False", 20.0)
    assert [failure.cause for failure in detection.due(30.0)] == [Cause.NOT_READY]
    detection.gone("s1-l1-2", "uid-s1-l1-2", 40.0)
    assert detection.due(41.0) == [], "that is the same failure"


def test_what_comes_and_goes_does_not_hide_what_lasts() -> None:
    """GPUs are missing all the time, and a condition flaps."""
    spec = SPEC.model_copy(update={"conditions": ("XidError",), "unhealthy_gpus": True})
    detection = _detection(*NODES, spec=spec)
    missing = (("nvidia.com/gpu", 1),)
    reported = []
    for at in range(0, 30, 3):
        conditions = ("XidError",) if at % 2 else ()
        health = NodeHealth("s1-l1-1", "uid-s1-l1-1", conditions=conditions, missing=missing)
        detection.seen(health, float(at))
        reported += [(at, failure.since) for failure in detection.due(float(at))]
    assert reported[0] == (12, 0.0)
    assert len(reported) == 1


def test_a_node_that_has_something_else_must_have_been_dead_for_the_debounce() -> None:
    detection = _detection(*NODES)
    cordoned = NodeHealth("s1-l1-1", "uid-s1-l1-1", cordoned=True, taints=("topology.scheduler/maintenance",))
    detection.seen(cordoned, 0.0)
    _ready(detection, "s1-l1-1", "False", 9.0)
    assert detection.due(10.0) == [] and not detection.dead_for_debounce("s1-l1-1", 10.0)
    assert [failure.since for failure in detection.due(19.0)] == [9.0]
    assert detection.dead_for_debounce("s1-l1-1", 19.0)


def test_many_scattered_failures_are_reported_in_a_moment() -> None:
    """How many nodes a domain has is counted once, not for each node that failed."""
    asked = 0

    def domains(name: str) -> list[tuple[str, ...]]:
        nonlocal asked
        asked += 1
        return [(name[:3],), (name[:3], name[:4])]

    detection = Detection(SPEC, domains)
    names = [f"{number:05}" for number in range(1000)]
    for name in names:
        detection.seen(NodeHealth(name, name), 0.0)
    for name in names[::10]:
        detection.seen(NodeHealth(name, name, ready="Unknown"), 0.0)
    assert len(detection.due(10.0)) == 100
    assert asked <= 2 * len(names)


def test_a_leaf_of_which_most_nodes_fail_is_one_failure() -> None:
    detection = _detection(*NODES)
    for at, name in enumerate(("s1-l1-1", "s1-l1-2", "s1-l1-4")):
        _ready(detection, name, "Unknown", float(at))
    _ready(detection, "s2-l1-1", "Unknown", 0.0)
    failures = {failure.cause: failure for failure in detection.due(10.0)}
    assert failures[Cause.DOMAIN].nodes == ("s1-l1-1", "s1-l1-2", "s1-l1-4")
    assert failures[Cause.DOMAIN].text == "s1/l1 failed: 3 of its 4 nodes are not ready"
    assert failures[Cause.UNREACHABLE].nodes == ("s2-l1-1",)
    # A node that was reported with its domain needs no second wait.
    assert all(detection.dead_for_debounce(name, 10.0) for name in failures[Cause.DOMAIN].nodes)
    assert detection.due(13.0) == []


def test_a_spine_is_one_failure_and_not_two_leaves() -> None:
    detection = _detection(*NODES)
    for name in NODES[:7]:
        _ready(detection, name, "Unknown", 0.0)
    (failure,) = detection.due(10.0)
    assert failure.text == "s1 failed: 7 of its 8 nodes are not ready"


def test_while_most_of_the_cluster_is_not_ready_nothing_is_begun() -> None:
    detection = _detection(*NODES)
    for name in NODES[:9]:
        _ready(detection, name, "Unknown", 0.0)
    assert detection.due(10.0) == []
    assert "9 of 16 nodes are not ready" in detection.held
    assert detection.next_due() is None
    for name in NODES[4:9]:
        _ready(detection, name, "True", 20.0)
    (failure,) = detection.due(20.0)
    assert len(failure.nodes) == 4
    assert not detection.held


def test_a_node_that_failed_earlier_does_not_prolong_a_partition_that_is_over() -> None:
    detection = _detection(*NODES)
    _ready(detection, NODES[0], "Unknown", 0.0)
    assert [failure.nodes for failure in detection.due(10.0)] == [(NODES[0],)]
    for name in NODES[4:]:
        _ready(detection, name, "Unknown", 20.0)
    assert detection.due(30.0) == []
    assert "13 of 16 nodes are not ready" in detection.held
    for name in NODES[4:]:
        _ready(detection, name, "True", 40.0)
    assert detection.due(40.0) == []
    assert not detection.held


def test_in_a_partition_a_node_deleted_long_ago_asks_for_no_further_step() -> None:
    """Otherwise recovery would judge all nodes again without any pause until the partition is over."""
    detection = _detection(*NODES)
    for name in NODES[:10]:
        _ready(detection, name, "Unknown", 0.0)
    detection.gone(NODES[15], "", 5.0)
    assert detection.due(10.0) == []
    assert detection.next_due() == 65.0
    assert detection.due(65.0) == []
    assert "11 of 16 nodes are not ready" in detection.held, "as when it began"
    assert detection.next_due() is None


def test_a_node_that_failed_is_avoided_for_a_while_and_longer_each_time() -> None:
    detection = _detection(*NODES)
    name = "s1-l1-1"
    _ready(detection, name, "False", 0.0)
    assert name in detection.avoided(0.0), "from the first sign on"
    detection.due(10.0)
    _ready(detection, name, "True", 20.0)
    assert detection.avoided(109.0) == {name}
    assert detection.avoided(111.0) == set()
    _ready(detection, name, "False", 120.0)
    detection.due(130.0)
    _ready(detection, name, "True", 131.0)
    assert detection.avoided(329.0) == {name}, "twice as long the second time"
    assert detection.avoided(331.0) == set()
    detection.avoided(1000.0)
    _ready(detection, name, "False", 1000.0)
    detection.due(1010.0)
    _ready(detection, name, "True", 1011.0)
    assert detection.avoided(1111.0) == set(), "forgotten in time"


def test_a_flapping_node_that_never_fails_for_long_costs_nothing() -> None:
    detection = _detection(*NODES)
    for at in range(0, 1000, 10):
        _ready(detection, "s1-l1-1", "False", at)
        assert detection.due(at + 9.0) == []
        _ready(detection, "s1-l1-1", "True", at + 9.0)
    assert detection.avoided(1000.0) == set()


@given(st.lists(st.tuples(st.sampled_from(NODES[:6]), st.sampled_from(["True", "False", "Unknown"]), st.floats(0, 8))))
def test_only_failures_that_lasted_are_reported_and_once(events: list[tuple[str, str, float]]) -> None:
    detection = _detection(*NODES)
    since: dict[str, float] = {}
    reported: dict[str, float] = {}
    now = 0.0
    for name, ready, pause in events:
        _ready(detection, name, ready, now)
        if ready == "True":
            since.pop(name, None)
            reported.pop(name, None)
        else:
            since.setdefault(name, now)
        now += pause
        for failure in detection.due(now):
            alone = failure.cause is not Cause.DOMAIN
            for node in failure.nodes:
                assert node in since and node not in reported
                assert not alone or since[node] + 10 <= now
                reported[node] = now
            assert any(since[node] + 10 <= now for node in failure.nodes)
    for failure in detection.due(now + 10):
        reported |= dict.fromkeys(failure.nodes, now)
    assert reported.keys() == since.keys()


def _node(**parts: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "n", "uid": "u", "labels": parts.get("labels", {})},
        "spec": {
            "unschedulable": parts.get("cordoned", False),
            "taints": [{"key": k} for k in parts.get("taints", ())],
        },
        "status": {
            "conditions": [
                {"type": "Ready", "status": parts.get("ready", "True"), "reason": "Because"},
                *({"type": t, "status": "True"} for t in parts.get("conditions", ())),
            ],
            "capacity": {"nvidia.com/gpu": "8"},
            "allocatable": {"nvidia.com/gpu": str(parts.get("gpus", 8))},
        },
    }


@pytest.mark.parametrize(
    ("parts", "cause", "text"),
    [
        ({}, None, ""),
        ({"ready": "False"}, Cause.NOT_READY, "is not ready (Because)"),
        ({"ready": "Unknown"}, Cause.UNREACHABLE, "is unreachable (Because)"),
        ({"gpus": 6}, Cause.GPUS, "offers less than it has: 2 of nvidia.com/gpu missing"),
        ({"conditions": ["XIDError"]}, Cause.CONDITION, "has the condition XIDError"),
        ({"conditions": ["Unheard"]}, None, ""),
        ({"labels": {"now": "3", "should": "4"}}, Cause.LINKS, "has degraded links: now is 3 and should 4"),
        ({"labels": {"now": "4", "should": "4"}}, None, ""),
        ({"cordoned": True}, None, ""),
        ({"taints": ["topology.scheduler/maintenance"]}, None, ""),
        (
            {"cordoned": True, "taints": ["topology.scheduler/maintenance"]},
            Cause.MAINTENANCE,
            "is cordoned with the taint topology.scheduler/maintenance",
        ),
        (
            {"taints": ["node.kubernetes.io/out-of-service"]},
            Cause.NOT_READY,
            "has the taint node.kubernetes.io/out-of-service",
        ),
    ],
)
def test_what_is_wrong_with_a_node(parts: dict[str, Any], cause: Cause | None, text: str) -> None:
    links = (LinkLabels(current="now", expected="should"),)
    spec = RecoverySpec(conditions=("XIDError",), link_labels=links, unhealthyGPUs=True)
    problem = problem_of(read_health(_node(**parts), spec, ("nvidia.com/gpu",)), spec)
    assert (problem.cause if problem else None) is cause
    assert not text or (problem is not None and text in problem.text)


@pytest.mark.parametrize("node", [{}, {"metadata": None, "status": [], "spec": "x"}, {"status": {"conditions": [3]}}])
def test_a_node_that_is_not_as_the_api_has_it_reports_no_problem(node: dict[str, Any]) -> None:
    assert problem_of(read_health(node, SPEC, ("nvidia.com/gpu",)), SPEC) is None
