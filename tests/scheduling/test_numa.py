"""NUMA nodes in the engine: no pod is bound to a machine whose kubelet would reject it, and the reason is reported."""

import msgspec
import pytest

from tests.helpers import NVIDIA, make_node
from tests.scheduling.numa_nodes import NumaDriver, container, pod_of, topology
from topo_scheduler.api.numa import NodeResourceTopology
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import LogWarning
from topo_scheduler.state.pods.numa_zones import REPORT_SECONDS

EIGHT = {NVIDIA: [4, 4]}


def driver(nodes: int = 1) -> NumaDriver:
    return NumaDriver([make_node(f"n{number}", "s/l1", gpus=8) for number in range(nodes)])


def gpus(name: str, count: int, **more: object) -> Pod:
    return pod_of(name, container(gpu=count), **more)  # type: ignore[arg-type]


def where(pod: Pod) -> str:
    return pod.spec.node_name


def test_a_pod_goes_where_one_numa_node_has_all_its_gpus() -> None:
    d = driver(2)
    d.report(topology("n0", {NVIDIA: [2, 1]}, EIGHT), topology("n1", EIGHT))
    filler = gpus("filler", 5)
    filler.spec.node_name = "n0"
    d.apply(filler)
    pod = gpus("p", 3)
    d.run(pod)
    assert where(pod) == "n1"


def test_a_pod_that_no_numa_node_holds_is_pending_and_its_event_lists_what_is_free() -> None:
    d = driver()
    filler = gpus("filler", 5)
    filler.spec.node_name = "n0"
    d.apply(filler)
    d.report(topology("n0", {NVIDIA: [2, 1]}, EIGHT))
    pod = gpus("p", 3)
    d.run(pod)
    assert not where(pod)
    (text,) = d.told(pod, Reason.FAILED_SCHEDULING)
    needed = "3 nvidia.com/gpu needed, free on NUMA nodes: node-0 2, node-1 1"
    assert f"1 node(s) had no NUMA node(s) with room for the pod: {needed}" in text


def test_the_policies_best_effort_and_none_reject_nothing() -> None:
    for policy in ("best-effort", "none"):
        d = driver()
        d.report(topology("n0", EIGHT, policy=policy))
        pod = gpus("p", 6)
        d.run(pod)
        assert where(pod) == "n0"


def test_restricted_rejects_only_what_would_fit_on_fewer_numa_nodes_of_an_empty_machine() -> None:
    d = driver()
    d.report(topology("n0", EIGHT, policy="restricted"))
    wide = gpus("wide", 6)
    d.run(wide)
    assert where(wide) == "n0"
    d.report(topology("n0", {NVIDIA: [1, 1]}, EIGHT, policy="restricted"))
    narrow = gpus("narrow", 2)
    d.run(narrow)
    assert not where(narrow)


def test_equal_pods_follow_each_other_without_a_new_report() -> None:
    d = driver()
    d.report(topology("n0", EIGHT))
    pods = [gpus(f"p{number}", 4) for number in range(3)]
    for pod in pods:
        d.run(pod)
    assert [where(pod) for pod in pods] == ["n0", "n0", ""]


def test_a_different_pod_waits_for_the_report_after_the_one_before_it() -> None:
    d = driver()
    d.report(topology("n0", EIGHT))
    first, second = gpus("first", 1), gpus("second", 4)
    d.run(first)
    d.run(second)
    assert not where(second), "the first may be on any of them"
    d.report(topology("n0", {NVIDIA: [3, 4]}, EIGHT))
    d.settle(1)
    assert where(second) == "n0"


def test_members_of_a_gang_share_machines_only_as_far_as_their_numa_nodes_allow() -> None:
    d = driver(2)
    d.report(topology("n0", EIGHT), topology("n1", EIGHT))
    annotations = {"gang-name": "g", "gang-size": "2"}
    members = [gpus(f"m{number}", 3, annotations=annotations) for number in range(2)]
    d.run(*members)
    assert {where(pod) for pod in members} == {"n0"}
    annotations = {"gang-name": "h", "gang-size": "3"}
    d2 = driver(1)
    d2.report(topology("n0", EIGHT))
    three = [gpus(f"h{number}", 2 + number % 2, annotations=annotations) for number in range(3)]
    d2.run(*three)
    assert not any(where(pod) for pod in three), "3, 2 and 2 GPUs may leave no NUMA node for the last one"


def test_a_report_that_contradicts_itself_is_reported_once_and_the_node_is_used_as_without_it() -> None:
    d = driver()
    d.report(topology("n0", {NVIDIA: [9, 1]}, EIGHT))
    pod = gpus("p", 6)
    d.run(pod)
    assert where(pod) == "n0"
    d.report(topology("n0", {NVIDIA: [9, 1]}, EIGHT))
    d.settle(1)
    (warning,) = [instruction.message for instruction in d.said if isinstance(instruction, LogWarning)]
    assert warning.startswith("NodeResourceTopology n0 is not used")
    assert "zone node-0: nvidia.com/gpu: available 9, allocatable 4" in warning


@pytest.mark.parametrize(
    "change",
    [
        {"attributes": [{"name": "topologyManagerPolicy", "value": "strict"}]},
        {"topologyPolicies": ["Whatever"], "attributes": []},
        {"zones": []},
        {"zones": [{"name": f"node-{number}", "type": "Node"} for number in range(4000)]},
        {"zones": 2 * [{"name": "node-0", "type": "Node"}]},
        {"zones": [{"name": "left", "type": "Node"}]},
        {
            "zones": [
                {
                    "name": "node-0",
                    "type": "Node",
                    "resources": 2 * [{"name": "cpu", "capacity": 1, "allocatable": 1, "available": 1}],
                }
            ]
        },
        {
            "zones": [
                {
                    "name": "node-0",
                    "type": "Node",
                    "resources": [{"name": "cpu", "capacity": 1, "allocatable": "x", "available": 1}],
                }
            ]
        },
    ],
    ids=["policy", "old policy", "no zones", "too many", "twice", "no number", "resource twice", "no quantity"],
)
def test_a_report_that_cannot_be_used_is_named_with_its_field(change: dict[str, object]) -> None:

    d = driver()
    whole = msgspec.to_builtins(topology("n0", EIGHT)) | change
    d.report(msgspec.convert(whole, NodeResourceTopology))
    pod = gpus("p", 6)
    d.run(pod)
    assert where(pod) == "n0"
    (warning,) = [instruction.message for instruction in d.said if isinstance(instruction, LogWarning)]
    assert "NodeResourceTopology n0" in warning


def test_a_node_whose_object_is_deleted_is_used_again() -> None:
    d = driver()
    d.report(topology("n0", EIGHT))
    pod = gpus("p", 6)
    d.run(pod)
    assert not where(pod)
    d.unreport("n0")
    d.settle(1)
    assert where(pod) == "n0"


def test_what_a_pod_that_ended_held_is_used_again_even_if_no_report_follows() -> None:
    d = driver()
    d.report(topology("n0", EIGHT))
    first = gpus("first", 4)
    d.run(first)
    d.report(topology("n0", {NVIDIA: [0, 4]}, EIGHT))
    d.settle(1)
    d.delete(first)
    same = gpus("same", 4)
    d.run(same)  # the machine looks as before, so its exporter writes nothing
    later = gpus("later", 3)
    d.run(later)
    assert not where(later)
    for _ in range(4):
        d.settle(REPORT_SECONDS)
    assert where(later) == "n0"


def test_no_pod_is_evicted_for_one_that_its_machine_would_reject() -> None:
    d = driver()
    low = [gpus(f"low-{number}", 4) for number in range(2)]
    d.report(topology("n0", EIGHT))
    for pod in low:
        d.run(pod)
    d.report(topology("n0", {NVIDIA: [0, 0]}, EIGHT))
    high = gpus("high", 6, priority=100)
    d.run(high)
    d.settle(30)
    assert {pod.metadata.name for pod in low} <= {pod.metadata.name for pod in d.pods.values()}
    assert not where(high)
