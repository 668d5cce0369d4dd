"""Reports about pending pods: the line operators search for, then the domain's sentence, once for each reason."""

import pytest

from tests.helpers import NVIDIA, make_node, make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Container, Node, Pod, PodSpec, ResourceRequirements, Taint
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.state.decision import Verdict


def gang(size: int, gpus: int = 8, name: str = "g", **annotations: str) -> list[Pod]:
    named = {"gang-name": name, "gang-size": str(size), **annotations}
    return [make_pod(f"{name}-{n}", gpus=gpus, annotations=named, created=n) for n in range(size)]


def why(d: Driver, pod: Pod) -> str:
    d.apply(pod)
    d.step()
    (message,) = d.told(pod, Reason.FAILED_SCHEDULING)
    return message


def test_nodes_are_counted_by_the_first_reason_that_rejects_them() -> None:
    nodes = [
        make_node("cordoned", "s/l", unschedulable=True, ready=False),
        make_node("down", "s/l", ready=False, taints=[Taint("x", "", "NoSchedule")]),
        make_node("tainted", "s/l", taints=[Taint("x", "", "NoSchedule")]),
        make_node("elsewhere", "s/l", labels={"zone": "b"}, model="H100"),
        make_node("other-model", "s/l", labels={"zone": "a"}, model="A100"),
        make_node("slow", "s/l", labels={"zone": "a"}, model="H100", bandwidth="100Gb"),
        make_node("small", "s/l", labels={"zone": "a"}, model="H100", gpus=4),
    ]
    spec = PodSpec(
        node_selector={"zone": "a"}, containers=[Container("c", ResourceRequirements({NVIDIA: 8}, {NVIDIA: 8}))]
    )
    pod = make_pod("p", spec=spec, annotations={"gpu-model": "H100", "network-bandwidth": "200Gb"})
    message = why(Driver(nodes), pod)
    assert message.startswith("0/7 nodes are available: ")
    counted = message.removeprefix("0/7 nodes are available: ").split(". ")[0].split(", ")
    assert counted == sorted(counted), "sorted, so that the same state gives the same line"
    assert sorted(counted) == sorted(
        [
            "1 node(s) were unschedulable",
            "1 node(s) were not ready",
            "1 node(s) had untolerated taint(s)",
            "1 node(s) didn't match Pod's node affinity/selector",
            "1 node(s) had another GPU model",
            "1 node(s) had less network bandwidth",
            f"1 Insufficient {NVIDIA}",
        ]
    )


def test_a_node_counts_for_every_resource_it_lacks() -> None:
    nodes = [make_node("n", "s/l", cpu="1", gpus=1, pods=0)]
    message = why(Driver(nodes), make_pod("p", gpus=2, cpu="2"))
    assert message.startswith(f"0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient {NVIDIA}, 1 Too many pods.")


def test_gpus_asked_by_annotation_alone_are_called_by_what_they_are() -> None:
    message = why(Driver([make_node("n", "s/l")]), make_pod("p", annotations={"gpu-count": "9"}))
    assert "1 Insufficient GPUs" in message


def test_gpus_of_one_vendor_are_not_lacking_where_the_other_vendor_has_them_all() -> None:
    node = make_node("n", "s/l", allocatable={"cpu": 8, "memory": "8Gi", "pods": 9, "amd.com/gpu": 8})
    message = why(Driver([node]), make_pod("p", gpus=1))
    assert f"1 Insufficient {NVIDIA}" in message


def test_a_cluster_without_nodes() -> None:
    assert why(Driver(), make_pod("p")).startswith("0/0 nodes are available.")


def test_the_event_of_a_gang_names_what_it_needs_and_the_largest_free_block() -> None:
    d = Driver(fabric({"s1/l1": 4, "s1/l2": 4}))
    d.run(make_pod("a", gpus=8, annotations={"preferred-domain": "l1"}))
    d.run(make_pod("b", gpus=8, annotations={"preferred-domain": "l2"}))
    d.run(make_pod("c", gpus=8, annotations={"preferred-domain": "l2"}))
    pods = gang(4)
    d.apply(*pods)
    d.step()
    (message,) = {message for pod in pods for message in d.told(pod)}
    assert message.startswith("0/8 nodes are available: ")
    assert "5 node(s) in domains without room for the gang" in message
    assert message.endswith(
        " 40 GPUs are free, but the largest free block in one leaf is 24: l1."
        " The gang needs 1 leaf with room for 4 pods of 8 GPUs."
    )


def test_the_event_of_a_gang_over_several_leaves_names_their_parent() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2, "s2/l1": 2, "s2/l2": 2}))
    d.apply(make_pod("x", gpus=8, node="s1-l1-1", scheduler="o"), make_pod("y", gpus=8, node="s2-l1-1", scheduler="o"))
    pods = gang(4)
    d.apply(*pods)
    d.step()
    assert d.told(pods[0])[0].endswith(
        " 48 GPUs are free, but the largest free block under one spine is 24: s1/l2 16, s1/l1 8."
        " The gang needs 2 leaves in 1 spine with room for 4 pods of 8 GPUs."
    )


def test_a_gang_between_two_gpu_models_gets_an_event_that_it_needs_one() -> None:
    d = Driver([make_node("a", "s1/l1", model="A"), make_node("b", "s1/l1", model="A"), make_node("c", "s1/l1")])
    d.apply(make_pod("x", gpus=8, node="a", scheduler="o"))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    assert d.told(pods[0])[0].endswith(
        " 16 GPUs are free, but of one GPU model at most 8: A."
        " The gang needs 1 leaf with room for 2 pods of 8 GPUs on nodes of one GPU model;"
        " the most free is s1/l1 with room for 1."
    )


def test_a_gang_larger_than_the_cluster_gets_an_event_that_says_so() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pods = gang(3)
    d.apply(*pods)
    d.step()
    assert "larger than the cluster" in d.told(pods[0])[0]


def test_domains_that_lost_are_kept_with_their_reason() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}))
    d.apply(make_pod("x", gpus=8, node="s1-l1-1", scheduler="o"), make_pod("y", gpus=8, node="s1-l2-1", scheduler="o"))
    d.apply(*gang(2))
    d.step()
    (decision,) = d.decisions()
    assert decision.verdict is Verdict.UNSCHEDULABLE
    assert dict(decision.domain_reasons) == {("s1", "l1"): "holds 1 of 2 pods", ("s1", "l2"): "holds 1 of 2 pods"}


def test_a_reason_is_reported_once_and_again_when_it_changes() -> None:
    d = Driver([make_node("n", "s/l", gpus=1)])
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    for number in range(3):
        d.nodes(make_node(f"m{number}", "s/l", gpus=1))
        d.tell_again(pod)
        d.step(5)
    assert len(d.told(pod)) == 1
    d.nodes(make_node("cordoned", "s/l", gpus=8, unschedulable=True))
    d.nodes(make_node("n", "s/l", gpus=16, ready=False))
    d.engine.configure(d.engine.config)
    d.step()
    d.tell_again(pod)
    assert len(d.told(pod)) <= 2


def test_refusals_are_reported_again_when_their_values_change() -> None:
    d = Driver(fabric({"s/l": 1}))
    pod = make_pod("p", annotations={"gang-size": "0"})
    d.apply(pod)
    d.step()
    pod.metadata.annotations["topology.scheduler/gang-size"] = "200000"
    d.apply(pod)
    d.step()
    first, second = d.told(pod)
    assert "0 is not between" in first
    assert "200000 is not between" in second


def test_only_members_that_lack_a_node_are_marked() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    pods = gang(3)
    d.apply(*pods)
    d.step()
    for pod in pods[1:]:
        d.answer(pod.metadata.uid)
    node = d.flight[pods[0].metadata.uid].node
    d.answer(pods[0].metadata.uid, BindOutcome.REJECTED)
    d.apply(make_pod("thief", gpus=8, scheduler="other", node=node))
    d.step(1)
    assert d.marked() == {"g-0"}


def test_events_of_placed_pods_name_leaves_score_and_rank() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}))
    pods = gang(4)
    d.run(*pods)
    for pod in pods:
        (message,) = d.told(pod, Reason.SCHEDULED)
        assert message.startswith(f"Successfully assigned default/{pod.metadata.name} to {pod.spec.node_name} (")
        assert "s1/l1, s1/l2, 2 of 2 leaves needed" in message
        assert f"rank {pod.metadata.annotations['topology.scheduler/rank']} of gang g" in message


@pytest.mark.parametrize(
    ("leaves", "annotations", "text"),
    [
        ({"s1/l1": 2, "s1/l2": 3}, {}, "chosen from 5 nodes"),
        ({"s1/l1": 1}, {}, "chosen from 1 node"),
        ({"s1/l1": 2, "s1/l2": 3}, {"placement-strategy": "consolidated"}, "chosen from 2 leaves"),
        ({"s1/l1": 2}, {"placement-strategy": "consolidated"}, "chosen from 1 leaf"),
    ],
)
def test_the_score_of_a_single_pod_is_no_share_of_its_candidates(
    leaves: dict[str, int], annotations: dict[str, str], text: str
) -> None:
    d = Driver(fabric(leaves))
    pod = make_pod("p", gpus=1, annotations=annotations)
    d.run(pod)
    (message,) = d.told(pod, Reason.SCHEDULED)
    (decision,) = d.decisions()
    assert decision.score is not None
    assert f"(s1/l1, score {decision.score.total / 1000:.3f}, {text}" in message


LABELLED = [make_node("labelled", "s1/l1")]


@pytest.mark.parametrize(
    ("nodes", "path"),
    [
        ([make_node(f"n{number}") for number in range(3)], "unlabelled"),
        ([*LABELLED, *(make_node(f"n{number}") for number in range(3))], "unlabelled/unlabelled"),
        ([*LABELLED, *(make_node(f"n{number}", "s1/") for number in range(3))], "s1/unlabelled"),
        # Leaf l1 of which spine? It need not be one switch.
        ([*LABELLED, *(make_node(f"n{number}", "l1") for number in range(3))], "unlabelled/l1"),
    ],
    ids=["no node is labelled", "half of them", "by spine only", "by leaf only"],
)
def test_of_nodes_whose_labels_give_no_position_no_leaves_are_counted(nodes: list[Node], path: str) -> None:
    d = Driver(nodes)
    pods = gang(3)
    d.run(*pods)
    for pod in pods:
        (message,) = d.told(pod, Reason.SCHEDULED)
        assert f"({path}, of nodes whose labels do not give their position in the fabric, score" in message
        assert "needed" not in message


def test_of_a_gang_on_labelled_and_unlabelled_nodes_no_leaves_are_counted() -> None:
    d = Driver([*LABELLED, make_node("plain"), make_node("half", "s1/")])
    pods = gang(3)
    d.run(*pods)
    (message,) = d.told(pods[0], Reason.SCHEDULED)
    assert "s1/l1, s1/unlabelled, unlabelled/unlabelled, of nodes whose labels do not give" in message
    assert "needed" not in message


def test_a_node_that_can_not_be_read_is_complained_of_by_name_and_used() -> None:
    d = Driver([make_node("n", "s/l", allocatable={"cpu": "8", "memory": "lots", "pods": 10})])
    d.apply(make_pod("p", cpu="1", memory="0"))
    d.step()
    assert any(message.startswith("node n: allocatable memory: 'lots'") for message in d.complaints())
    assert len(d.flight) == 1


def test_a_bound_pod_that_can_not_be_read_is_complained_of_once() -> None:
    d = Driver(fabric({"s/l": 1}))
    pod = make_pod("p", cpu="lots", node="s-l-1", scheduler="other")
    d.apply(pod)
    for _ in range(3):
        d.tell_again(pod)
    d.step()
    (message,) = d.complaints()
    assert "default/p" in message
    assert "'lots'" in message


def test_decisions_are_announced_one_an_attempt() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    d.run(*gang(2), make_pod("p", gpus=9))
    verdicts = sorted(decision.verdict for decision in d.decisions())
    assert verdicts == [Verdict.PLACED, Verdict.UNSCHEDULABLE]
    assert len({decision.id for decision in d.decisions()}) == 2
