"""Why a gang is pending, and the remedies: the words, when they are reported, and that the engine stays responsive."""

import pytest

from tests.helpers import EPOCH, make_node, make_pod, timestamp
from tests.scheduling.driver import Driver, configured, explanation_of, fabric, gang
from tests.scheduling.running_pods import foreign_pod
from topo_scheduler.api.objects import Pod, Taint
from topo_scheduler.api.reasons import NodeReason, Reason
from topo_scheduler.scheduling.explaining import explainer
from topo_scheduler.scheduling.explaining.dominant import nodes_with
from topo_scheduler.scheduling.explaining.explainer import (
    MAX_EXPLAINED_WORKLOADS,
    MIN_INTERVAL_SECONDS,
    REFRESH_SECONDS,
    Explanation,
)
from topo_scheduler.scheduling.explaining.remedies import RemedyKind
from topo_scheduler.scheduling.explaining.remedy_text import NOTE_BYTES, say
from topo_scheduler.scheduling.instructions import EmitEvent, LogWarning, MarkUnschedulable


def ways(d: Driver, pod: Pod) -> dict[RemedyKind, str]:
    return {way.kind: say(way, d.now + EPOCH) for way in explanation_of(d, pod).ways}


def kinds(explanation: Explanation) -> list[RemedyKind]:
    return [way.kind for way in explanation.ways]


# ---------------------------------------------------------------- the dominant reason


def test_the_sentence_of_the_issue() -> None:
    d = Driver(
        [
            make_node("a", "spine-1/leaf-3"),
            make_node("b", "spine-1/leaf-7"),
            make_node("c", "spine-2/leaf-9"),
            make_node("d", "spine-2/leaf-11"),
        ]
    )
    d.apply(foreign_pod("x", "b", 4), foreign_pod("y", "c", 4), foreign_pod("z", "d", 8))
    pods = gang(4, gpus=4)
    d.apply(*pods)
    assert explanation_of(d, pods[0]).reason == (
        "16 GPUs are free, but the largest free block under one spine is 12: leaf-3 8, leaf-7 4."
        " The gang needs 2 leaves in 1 spine with room for 4 pods of 4 GPUs."
    )
    (message,) = set(d.told(reason=Reason.FAILED_SCHEDULING))
    assert message.startswith("0/4 nodes are available: ")
    assert (
        ". 16 GPUs are free, but the largest free block under one spine is 12: leaf-3 8, leaf-7 4. The gang" in message
    )


def reason(nodes: dict[str, int], *running: Pod, size: int, gpus: int = 8, **annotations: str) -> str:
    d = Driver(fabric(nodes))
    d.apply(*running)
    pods = gang(size, gpus=gpus)
    for pod in pods:
        pod.metadata.annotations |= {f"topology.scheduler/{key}": value for key, value in annotations.items()}
    d.apply(*pods)
    return explanation_of(d, pods[0]).reason.split(". ")[0].removesuffix(".")


@pytest.mark.parametrize(
    ("nodes", "running", "size", "gpus", "expected"),
    [
        ({"s/l": 2}, [("s-l-1", 8)], 2, 8, "16 GPUs are needed and 8 are free"),
        (
            {"s/l": 4},
            [("s-l-1", 1), ("s-l-2", 1), ("s-l-3", 1)],
            2,
            8,
            "29 GPUs are free, but only 8 of them where a pod of 8 GPUs has room",
        ),
        (
            {"s/l": 2},
            [("s-l-1", 1), ("s-l-2", 1)],
            1,
            8,
            "14 GPUs are free, but none of them where a pod of 8 GPUs has room",
        ),
        (
            {"s/a": 2, "s/b": 2},
            [("s-a-1", 8), ("s-b-1", 8)],
            2,
            8,
            "16 GPUs are free, but the largest free block in one leaf is 8: a",
        ),
        (
            {"s/a": 2, "t/a": 2, "t/b": 2, "t/c": 2},
            [("s-a-1", 8), ("t-a-1", 8), ("t-b-1", 8), ("t-c-1", 8)],
            4,
            8,
            "32 GPUs are free, but the largest free block in 2 leaves under one spine is 16: t/a 8, b 8",
        ),
    ],
)
def test_the_dominant_reason(
    nodes: dict[str, int], running: list[tuple[str, int]], size: int, gpus: int, expected: str
) -> None:
    pods = [foreign_pod(f"x{n}", node, used) for n, (node, used) in enumerate(running)]
    assert reason(nodes, *pods, size=size, gpus=gpus) == expected


@pytest.mark.parametrize(
    ("why", "nodes"),
    [
        (NodeReason.TAINT, "nodes that had untolerated taint(s)"),
        (NodeReason.QUOTA, "nodes where the namespace's quota leaves no room"),
        (NodeReason.ACCESS, "nodes in a domain that is reserved for other namespaces"),
        (NodeReason.NUMA, "nodes that had no NUMA node(s) with room for the pod"),
        (NodeReason.DEVICES, 'nodes with "cannot allocate all claims"'),
    ],
)
def test_nodes_are_described_by_the_reason_of_a_filter(why: NodeReason, nodes: str) -> None:
    assert nodes_with(why) == nodes


def test_free_gpus_on_nodes_that_pods_may_not_use() -> None:
    nodes = fabric({"s/l": 2})
    nodes[0].spec.taints = [Taint("team", "a", "NoSchedule")]
    d = Driver(nodes)
    pods = gang(2)
    d.apply(*pods)
    explanation = explanation_of(d, pods[0])
    # Not even empty nodes would do: that stands before all else.
    assert explanation.reason.startswith("The gang is larger than the cluster")
    d.apply(foreign_pod("x", "s-l-2", 4))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    assert explanation_of(d, pod).reason == "12 GPUs are free, but 8 of them on nodes that had untolerated taint(s)."


def test_free_gpus_of_nodes_that_are_away_are_counted_separately() -> None:
    nodes = fabric({"s/l": 3})
    nodes[0].spec.unschedulable = True
    d = Driver(nodes)
    d.apply(foreign_pod("x", "s-l-2"))
    pods = gang(2)
    d.apply(*pods)
    assert explanation_of(d, pods[0]).reason.startswith(
        "16 GPUs are needed and 8 are free; 8 more are on nodes that are cordoned or not ready. The gang"
    )


def test_of_several_models_the_one_with_most_is_named() -> None:
    d = Driver([make_node("a", "s/l", model="A"), make_node("b", "s/l", model="B"), make_node("c", "s/l", model="B")])
    d.apply(foreign_pod("x", "b"))
    pods = gang(2)
    d.apply(*pods)
    assert explanation_of(d, pods[0]).reason.startswith("16 GPUs are free, but of one GPU model at most 8: A. The gang")


# ---------------------------------------------------------------- domains


def test_every_leaf_and_spine_shows_free_room_and_what_took_its_nodes() -> None:
    nodes = fabric({"s/a": 3, "s/b": 2, "t/a": 2})
    nodes[1].spec.unschedulable = True
    d = Driver(nodes)
    d.apply(foreign_pod("x", "s-a-1"), foreign_pod("y", "s-b-1", 2), foreign_pod("z", "t-a-1"))
    pods = gang(3)
    d.apply(*pods)
    table = {"/".join(domain.path): domain for domain in explanation_of(d, pods[0]).domains}
    assert {path: (domain.level, domain.nodes, domain.free_gpus, domain.room) for path, domain in table.items()} == {
        "s": ("spine", 5, 22, 2),
        "t": ("spine", 2, 8, 1),
        "s/a": ("leaf", 3, 8, 1),
        "s/b": ("leaf", 2, 14, 1),
        "t/a": ("leaf", 2, 8, 1),
    }
    assert table["s/a"].reasons == {
        "node(s) were unschedulable": 1,
        "Insufficient nvidia.com/gpu": 1,
        "node(s) in domains without room for the gang": 1,
    }


# ---------------------------------------------------------------- remedies, one by one


def test_what_ends_by_itself_is_waited_for() -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 2}))
    soon, late = foreign_pod("soon", "s-a-1", expected="2h"), foreign_pod("late", "s-b-1")
    late.spec.active_deadline_seconds = 6 * 3600
    for pod in (soon, late):
        pod.status.start_time = timestamp(0)
    d.apply(soon, late)
    pods = gang(2)
    d.apply(*pods)
    explanation = explanation_of(d, pods[0])
    way = next(way for way in explanation.ways if way.kind is RemedyKind.WAIT)
    assert way.until == EPOCH + 7200
    assert way.cost.seconds == 7200
    assert [ending.name for ending in way.ended] == ["default/soon"]
    assert say(way, EPOCH) == "wait until about 00:13 UTC, when pod default/soon ends"
    d.now = 7201
    assert RemedyKind.WAIT not in kinds(explanation_of(d, pods[0])) or ways(d, pods[0])[RemedyKind.WAIT].count("late")


def test_a_gang_ends_as_a_whole() -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 1}))
    old = gang(3, name="old")
    for pod in old:
        pod.metadata.annotations["topology.scheduler/placement"] = "preferred"
    assert len(d.run(*old)) == 3
    pods = gang(1, name="new")
    d.apply(*pods)
    (way,) = explanation_of(d, pods[0]).ways
    assert (way.kind, way.cost.pods, way.cost.gpus) == (RemedyKind.FREE, 3, 24)
    assert [(ending.name, ending.gang, len(ending.pods)) for ending in way.ended] == [("default/old", True, 3)]
    assert say(way, 0) == "end gang default/old (3 pods) on nodes s-a-1, s-a-2, s-b-1: 3 pods, 24 GPUs"


def test_the_fewest_pods_are_to_end() -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 2}))
    d.apply(*(foreign_pod(f"x{n}", "s-a-1", 1) for n in range(8)), foreign_pod("one", "s-b-1", 2))
    pods = gang(2)
    d.apply(*pods)
    assert ways(d, pods[0])[RemedyKind.FREE] == "end pod default/one on node s-b-1: 1 pod, 2 GPUs"


def test_nodes_come_back_if_that_is_enough_and_no_more_of_them_than_needed() -> None:
    nodes = fabric({"s/a": 4})
    for node in nodes[:3]:
        node.spec.unschedulable = True
        node.spec.taints = [Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")]
    d = Driver(nodes)
    pods = gang(2)
    d.apply(*pods)
    way = next(way for way in explanation_of(d, pods[0]).ways if way.kind is RemedyKind.RETURN)
    assert (len(way.nodes), way.value, way.cost.nodes) == (1, "uncordon", 1)
    assert say(way, 0) == f"uncordon node {way.nodes[0]}"


def test_a_node_that_is_not_ready_is_to_be_brought_back() -> None:
    nodes = fabric({"s/a": 2})
    nodes[0].status.conditions[0].status = "False"
    d = Driver(nodes)
    pods = gang(2)
    d.apply(*pods)
    assert ways(d, pods[0])[RemedyKind.RETURN] == "bring back node s-a-1"


def test_the_level_may_be_dropped() -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 2}))
    d.apply(foreign_pod("x", "s-a-1"), foreign_pod("y", "s-b-1"))
    pods = gang(2)
    d.apply(*pods)
    assert (
        ways(d, pods[0])[RemedyKind.RELAX] == "set topology.scheduler/placement to preferred: it fits under one spine"
    )


def test_the_reason_names_a_model_that_no_node_has_and_those_that_exist() -> None:
    d = Driver([make_node("a", "s/l", model="NVIDIA-H100-80GB-HBM3"), make_node("b", "s/m", model="A100")])
    single = make_pod("single", gpus=1, annotations={"gpu-model": "H100"})
    members = gang(2)
    for pod in members:
        pod.metadata.annotations["topology.scheduler/gpu-model"] = "H100,H200"
    known = make_pod("known", gpus=9, annotations={"gpu-model": "A100,H100"})
    d.apply(single, *members, known)
    d.settle()
    there_are = "there are A100, NVIDIA-H100-80GB-HBM3"
    for pod, models in ((single, "H100"), (members[0], "H100, H200")):
        text = f"even if it were empty; no node has the GPU model {models}: {there_are}."
        assert text in d.told(pod, Reason.FAILED_SCHEDULING)[0]
    assert "no node has" not in d.told(known, Reason.FAILED_SCHEDULING)[0]


def test_a_taint_a_selector_and_a_model_may_be_dropped() -> None:
    nodes = fabric({"s/a": 2})
    for node in nodes:
        node.spec.taints = [Taint("team", "a", "NoSchedule")]
    d = Driver(nodes)
    pods = gang(2)
    d.apply(*pods)
    assert ways(d, pods[0])[RemedyKind.DROP] == "tolerate the taint team=a:NoSchedule, or remove it"
    d = Driver(fabric({"s/a": 2}))
    pods = gang(2)
    for pod in pods:
        pod.spec.node_selector = {"zone": "x"}
    d.apply(*pods)
    assert ways(d, pods[0])[RemedyKind.DROP] == "remove zone=x from nodeSelector"
    d = Driver([make_node("a", "s/l", model="A"), make_node("b", "s/l", model="B")])
    pods = gang(2)
    d.apply(*pods)
    assert ways(d, pods[0])[RemedyKind.DROP] == "set topology.scheduler/gpu-model-mixed to true"


def test_the_largest_size_that_fits() -> None:
    d = Driver(fabric({"s/a": 4}))
    d.apply(foreign_pod("x", "s-a-1"))
    pods = gang(4)
    d.apply(*pods)
    assert ways(d, pods[0])[RemedyKind.REDUCE] == "reduce it to 3 pods"


def test_the_cheapest_comes_first() -> None:
    nodes = fabric({"s/a": 2, "s/b": 3})
    nodes[4].spec.unschedulable = True
    d = Driver(nodes)
    timed = foreign_pod("t", "s-a-1", expected="1h")
    timed.status.start_time = timestamp(0)
    d.apply(timed, foreign_pod("y", "s-b-1"))
    pods = gang(2)
    d.apply(*pods)
    explanation = explanation_of(d, pods[0])
    assert kinds(explanation) == [
        RemedyKind.WAIT,
        RemedyKind.RETURN,
        RemedyKind.RELAX,
        RemedyKind.REDUCE,
        RemedyKind.FREE,
    ]
    assert [way.cost for way in explanation.ways] == sorted(way.cost for way in explanation.ways)


# ---------------------------------------------------------------- telling


def waiting(d: Driver) -> list[Pod]:
    d.apply(foreign_pod("x", "s-a-1"))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    return pods


def test_remedies_are_published_after_the_reason_as_event_and_condition_of_each_pod() -> None:
    d = Driver(fabric({"s/a": 2}))
    pods = waiting(d)
    before = d.told(pods[0])
    assert len(before) == 1 and "What would help" not in before[0]
    said = d.explain()
    events = {instruction.pod.name: instruction.message for instruction in said if isinstance(instruction, EmitEvent)}
    marked = {
        instruction.pod.name: instruction.message for instruction in said if isinstance(instruction, MarkUnschedulable)
    }
    assert events == marked and set(events) == {"g-0", "g-1"}
    assert events["g-0"] == (
        f"{before[0]} What would help, cheapest first: (1) reduce it to 1 pod;"
        " (2) end pod default/x on node s-a-1: 1 pod, 8 GPUs."
    )


def test_less_than_half_of_a_gang_is_no_remedy_but_how_many_fit_is_reported() -> None:
    d = Driver(fabric({"s/a": 10}))
    for number in range(2, 11):
        d.apply(foreign_pod(f"x-{number}", f"s-a-{number}"))
    pods = gang(10)
    d.apply(*pods)
    d.step()
    d.explain()
    text = d.told(pods[0])[-1]
    assert "reduce it to" not in text
    assert text.endswith(" 1 of 10 pods would fit now.")
    assert "What would help, cheapest first: (1) end " in text


def test_they_are_reported_once_as_long_as_they_stay_the_same_and_again_when_they_change() -> None:
    d = Driver(fabric({"s/a": 2, "t/a": 1}))
    pods = waiting(d)
    assert d.explain()
    d.step(REFRESH_SECONDS + 1)
    assert d.explain() == []
    d.nodes(make_node("s-a-3", "s/a", ready=False))
    d.step(1)
    d.explain(MIN_INTERVAL_SECONDS)
    assert "bring back node s-a-3" in d.told(pods[0])[-1]


def test_they_follow_what_is_reported_later_too() -> None:
    """After a while an event reports reserved nodes, though nothing changed: the condition keeps the remedies."""
    d = Driver(fabric({"s/a": 2}), configured("{reservation: {after: 30s}}"))
    d.apply(foreign_pod("x", "s-a-1", expected="1h"))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    assert d.explain()
    for _ in range(4):
        d.step(15)
        d.explain()
    conditions = [
        instruction.message
        for instruction in d.said
        if isinstance(instruction, MarkUnschedulable) and instruction.pod.name == "g-0"
    ]
    assert "Reserved: s/a" in conditions[-1]
    assert "What would help, cheapest first: (1) wait until" in conditions[-1]
    assert conditions == list(dict.fromkeys(conditions)), "none of it is reported twice"


def test_what_would_help_is_reported_again_when_the_required_level_relaxes() -> None:
    d = Driver(fabric({"s/a": 2, "t/a": 2}))
    d.apply(foreign_pod("x", "s-a-1"))
    asked = {"gang-name": "g", "gang-size": "5", "required-level": "spine", "relax-after": "10m"}
    pods = [make_pod(f"g-{n}", gpus=8, annotations=asked, created=n) for n in range(5)]
    d.apply(*pods)
    d.step()
    d.explain()
    assert d.told(pods[0])[-1].endswith(" 2 of 5 pods would fit now.")
    d.step(601)
    d.explain()
    assert "level relaxed from spine to cluster after 10m" in d.told(pods[0])[-1]
    assert "What would help, cheapest first: (1) reduce it to 3 pods" in d.told(pods[0])[-1]


def test_a_gang_that_was_placed_meanwhile_is_not_explained() -> None:
    d = Driver(fabric({"s/a": 2}))
    waiting(d)
    d.delete(d.pods[next(uid for uid, pod in d.pods.items() if pod.metadata.name == "x")])
    d.settle()
    assert d.explain() == []
    assert d.engine.why.waiting == 0


def test_an_event_never_exceeds_what_the_api_takes() -> None:
    d = Driver(fabric({f"{'spine' * 10}-{s}/{'leaf' * 12}-{leaf}": 2 for s in range(3) for leaf in range(3)}))
    names = sorted(d.engine.world.nodes.row_of)
    d.apply(*(foreign_pod(f"{'pod' * 20}-{n}", name) for n, name in enumerate(names[::2])))
    pods = gang(9)
    d.apply(*pods)
    d.step()
    messages = [instruction.message for instruction in d.explain() if isinstance(instruction, EmitEvent)]
    assert messages and all(len(message.encode()) <= NOTE_BYTES for message in messages)
    assert all("What would help" in message for message in messages)


def test_explaining_changes_nothing() -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 2}))
    pods = waiting(d)
    nodes = d.engine.world.nodes
    before = (nodes.requested.tolist(), nodes.ready.tolist(), nodes.taint_set.tolist(), nodes.capacity_changes.position)
    decisions = len(d.decisions())
    d.explain()
    after = (nodes.requested.tolist(), nodes.ready.tolist(), nodes.taint_set.tolist(), nodes.capacity_changes.position)
    assert before == after
    d.finish(pods[0], "Failed")
    d.step()
    assert [decision.id for decision in d.decisions()] == list(range(1, len(d.decisions()) + 1))
    assert len(d.decisions()) >= decisions


def test_work_is_done_in_slices_and_decisions_go_on_between_them() -> None:
    d = Driver(fabric({f"s/l{n}": 4 for n in range(8)}))
    d.apply(*(foreign_pod(f"x{n}", f"s-l{n}-1") for n in range(8)))
    pods = gang(4)
    d.apply(*pods)
    d.step()
    slices = 0
    said: list[object] = []
    while d.engine.why.waiting:
        slices += 1
        said += d.engine.explain(d.now, lambda: 0.0, 0.0)
        single = make_pod(f"single-{slices}", gpus=1)
        assert d.run(single) or slices > 20
    assert slices > 10
    assert any(isinstance(instruction, EmitEvent) for instruction in said)


def test_pods_that_come_while_it_is_explained_free_nothing_when_they_end() -> None:
    """What is free counts as of the moment of the copy; pods that came after it used no GPU then."""
    d = Driver(fabric({"s/a": 2}))
    waiting(d)
    d.engine.explain(d.now, lambda: 0.0, 0.0)
    d.apply(foreign_pod("late", "s-a-2"))
    said = d.explain()
    assert said and not any("late" in instruction.message for instruction in said if isinstance(instruction, EmitEvent))


def test_members_that_leave_while_their_gang_is_explained_are_no_fault() -> None:
    d = Driver(fabric({"s/a": 2}))
    d.apply(foreign_pod("x", "s-a-1"))
    pods = gang(2)
    pods[1].spec.containers[0].resources.requests["cpu"] = "2"
    d.apply(*pods)
    d.step()
    d.engine.explain(d.now, lambda: 0.0, 0.0)
    d.delete(pods[0])
    d.step()
    d.explain()


def test_a_fault_stops_no_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise IndexError("no such row")

    d = Driver(fabric({"s/a": 2}))
    waiting(d)
    monkeypatch.setattr(explainer, "search_remedies", broken)
    said = d.engine.explain(d.now, lambda: 0.0, 1.0)
    (fault,) = [instruction.message.partition(": ")[2] for instruction in said if isinstance(instruction, LogWarning)]
    text = "internal fault in the explanation of why it is pending, please report it: IndexError: no such row at"
    text += " test_reasons.py:"
    assert fault.startswith(text)
    assert d.run(make_pod("next", gpus=1))


def test_it_is_begun_again_when_nodes_change_meanwhile() -> None:
    d = Driver(fabric({"s/a": 2, "s/b": 2}))
    d.apply(foreign_pod("y", "s-b-1"))
    waiting(d)
    d.engine.explain(d.now, lambda: 0.0, 0.0)
    d.drop_node("s-b-2")
    d.engine.explain(d.now, lambda: 0.0, 0.0)
    assert d.engine.why.waiting == 0
    due = d.engine.why.next_due()
    assert due is not None and due <= d.now + 1
    said = d.explain(1)
    assert all("s-b-2" not in instruction.message for instruction in said if isinstance(instruction, EmitEvent))
    assert said


def test_gangs_that_ask_alike_share_an_explanation() -> None:
    d = Driver(fabric({"s/a": 2}))
    d.apply(foreign_pod("x", "s-a-1"))
    for name in ("one", "two"):
        d.apply(*gang(2, name=name))
    d.step()
    events = {
        instruction.pod.name: instruction.message for instruction in d.explain() if isinstance(instruction, EmitEvent)
    }
    assert set(events) == {"one-0", "one-1", "two-0", "two-1"}


def test_single_pods_beyond_many_are_left_to_the_command_and_gangs_never() -> None:
    d = Driver(fabric({"s/a": 1}))
    d.apply(foreign_pod("x", "s-a-1"))
    singles = [make_pod(f"p{n}", gpus=8, created=n) for n in range(MAX_EXPLAINED_WORKLOADS + 5)]
    d.apply(*singles)
    d.step()
    d.apply(*gang(2, name="late", gpus=4))
    d.step()
    explained = {instruction.pod.name for instruction in d.explain() if isinstance(instruction, EmitEvent)}
    assert {"late-0", "late-1"} <= explained
    assert len(explained & {pod.metadata.name for pod in singles}) == MAX_EXPLAINED_WORKLOADS
    assert explanation_of(d, singles[-1]).ways


def test_namespaces_are_explained_in_turn() -> None:
    d = Driver(fabric({"s/a": 1}))
    d.apply(foreign_pod("x", "s-a-1"))
    d.apply(*[make_pod(f"p{n}", gpus=8, cpu=f"{n + 1}m", namespace="many", created=n) for n in range(50)])
    d.step()
    d.apply(*[make_pod(f"{name}-{n}", gpus=8, namespace=name, created=99) for name in ("few", "other") for n in (0, 1)])
    d.step()
    said = [instruction.pod.namespace for instruction in d.explain() if isinstance(instruction, EmitEvent)]
    assert said[:6] == ["many", "few", "other"] * 2


def test_the_pods_of_one_namespace_leave_others_their_part_of_the_explanations() -> None:
    d = Driver(fabric({"s/a": 1}))
    d.apply(foreign_pod("x", "s-a-1"))
    d.apply(*[make_pod(f"p{n}", gpus=8, namespace="many", created=n) for n in range(MAX_EXPLAINED_WORKLOADS + 5)])
    d.step()
    late = [make_pod(f"q{n}", gpus=8, namespace="late", created=n) for n in range(MAX_EXPLAINED_WORKLOADS)]
    d.apply(*late)
    d.step()
    said = [instruction.pod.namespace for instruction in d.explain() if isinstance(instruction, EmitEvent)]
    assert (said.count("many"), said.count("late")) == (MAX_EXPLAINED_WORKLOADS, MAX_EXPLAINED_WORKLOADS // 2)
    d.delete(*late)
    assert d.engine.why.waiting == 0


def test_a_quota_is_not_wished_away() -> None:
    d = Driver(fabric({"s/a": 4}), configured("{quotas: [{namespaces: [default], hard: {gpus: 16}}]}"))
    pods = gang(3)
    d.apply(*pods)
    d.step()
    explanation = explanation_of(d, pods[0])
    assert kinds(explanation) == [RemedyKind.REDUCE]
    assert explanation.ways[0].size == 2


def test_that_an_explanation_is_to_follow_is_known_until_it_is_reported_or_nothing_helps() -> None:
    d = Driver([make_node("a", "s1/l1"), make_node("b", "s1/l2")])
    why_ = d.engine.why
    pods = gang(2, gpus=8)
    other = gang(2, name="huge", gpus=16)  # no remedy: no node has so many
    d.apply(foreign_pod("x", "b", 4), *pods, *other)
    entry = d.engine.workloads.of_pod(pods[0].metadata.uid)
    assert entry is not None
    assert not why_.expected(entry[0].id), "nothing was reported yet"
    d.engine.step(d.now, lambda: 0.0, 1.0)
    assert why_.expected(entry[0].id)
    while why_.due(d.now):
        d.engine.explain(d.now, lambda: 0.0, 1.0)
    assert not any(why_.expected(workload.id) for workload in d.engine.workloads)


def test_the_room_of_a_domain_is_that_of_one_model_as_in_the_reason() -> None:
    nodes = [make_node(f"h{at}", "s1/l1", model="H100") for at in range(4)]
    nodes += [make_node(f"a{at}", "s1/l2", model="A100") for at in range(2)]
    d = Driver([*nodes, *(make_node(f"x{at}", "s2/l3", model="H100") for at in range(5))])
    d.apply(*(foreign_pod(f"y{at}", f"x{at}") for at in range(5)))
    pods = gang(5, gpus=8)
    d.apply(*pods)
    explanation = explanation_of(d, pods[0])
    assert "with room for 4" in explanation.message
    room = {"/".join(domain.path): domain.room for domain in explanation.domains}
    assert room == {"s1": 4, "s2": 0, "s1/l1": 4, "s1/l2": 2, "s2/l3": 0}
