"""Unchanged pods with ``nvidia.com/gpu: 2`` on nodes whose GPUs are in ResourceSlices: they get exact devices."""

import msgspec
import pytest

from tests.helpers import NVIDIA, make_node, make_pod, timestamp
from tests.scheduling.device_driver import DeviceDriver, asking, nodes_of, slice_of, taken
from tests.scheduling.driver import fabric, gang
from tests.scheduling.extended_driver import ExtendedDriver, device_class, driver
from topo_scheduler.api.objects import Container, Pod, PodExtendedResourceClaimStatus
from topo_scheduler.api.reasons import Reason
from topo_scheduler.recovery.detection.lost_gpus import LostGPUs
from topo_scheduler.scheduling.instructions import Bind, BindOutcome, Preempt, WriteClaims
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.devices.claim_writes import CreateClaim, DeleteClaim, after
from topo_scheduler.state.devices.extended_resources import extended_claim_name
from topo_scheduler.state.nodes.resources import GPU


def test_an_unchanged_pod_gets_exact_devices() -> None:
    d = driver()
    pod = make_pod("p", gpus=2)
    d.apply(pod)
    said = d.step()
    assert [type(instruction) for instruction in said if isinstance(instruction, Bind | WriteClaims)] == [
        WriteClaims,
        Bind,
    ]
    (write,) = d.writes[0].writes
    assert isinstance(write, CreateClaim)
    assert write.key == ("default", extended_claim_name("p", pod.metadata.uid))
    (request,) = write.claim.spec.devices.requests
    assert request.name == "container-0-request-2", "after cpu and memory, in order of name"
    assert request.exactly is not None
    assert (request.exactly.device_class_name, request.exactly.count) == ("gpu", 2)
    assert [(m.container, m.resource, m.request) for m in write.claim.mappings] == [("main", NVIDIA, request.name)]
    d.settle()
    assert pod.spec.node_name
    assert {pool for pool, _ in d.allocated()} == {pod.spec.node_name}
    assert sum(d.allocated().values()) == 2
    assert d.free_gpus(pod.spec.node_name) == 6


def test_a_node_is_never_given_more_than_its_devices() -> None:
    d = driver()
    pods = [make_pod(f"p{number}", gpus=3) for number in range(6)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 4
    assert set(d.allocated().values()) == {1}


def test_a_gang_gets_the_leaf_that_holds_it_whole() -> None:
    d = driver({"s1/l1": 2, "s1/l2": 4})
    pods = gang(8, gpus=4)
    d.run(*pods)
    assert {name.rpartition("-")[0] for name in nodes_of(pods)} == {"s1-l2"}
    assert len(d.allocated()) == 32
    more = gang(3, gpus=8, name="more")
    d.run(*more)
    assert not nodes_of(more)
    assert len(d.allocated()) == 32


def test_a_node_that_offers_gpus_itself_gives_them_without_a_claim() -> None:
    d = ExtendedDriver([make_node("plugin", "s1/l1", gpus=8), make_node("slices", "s1/l1", gpus=0)])
    pods = [make_pod(f"p{number}", gpus=8) for number in range(3)]
    d.run(*pods)
    assert sorted(nodes_of(pods)) == ["plugin", "slices"]
    assert {pool for pool, _ in d.allocated()} == {"slices"}
    assert len(d.allocated()) == 8


def test_allocatable_wins_where_a_node_has_both() -> None:
    d = ExtendedDriver([make_node("both", "s1/l1", gpus=4)])
    d.slices(slice_of("both"))
    pods = [make_pod(f"p{number}", gpus=4) for number in range(2)]
    d.run(*pods)
    assert nodes_of(pods) == ["both"]
    assert not d.allocated()


def test_a_gang_may_be_on_nodes_of_both_kinds() -> None:
    d = ExtendedDriver([make_node("plugin", "s1/l1", gpus=8), make_node("slices", "s1/l1", gpus=0)])
    pods = gang(4, gpus=4)
    d.run(*pods)
    assert sorted(nodes_of(pods)) == 2 * ["plugin"] + 2 * ["slices"]
    assert len(d.allocated()) == 8


def test_devices_of_claims_are_not_given_again() -> None:
    d = driver({"s1/l1": 1})
    d.run(d.pod("claims", asking(6)))
    assert d.free_gpus("s1-l1-1") == 2
    pods = [make_pod(f"p{number}", gpus=2) for number in range(2)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 1
    assert set(d.allocated().values()) == {1}


def test_a_pod_that_reserves_gpus_by_annotation_gets_no_node_of_slices() -> None:
    d = driver()
    pod = make_pod("p", annotations={"gpu-count": "2"})
    d.run(pod)
    assert not pod.spec.node_name


def test_a_bind_that_was_rejected_leaves_one_claim_of_the_next_node() -> None:
    d = driver()
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.answer(pod.metadata.uid, BindOutcome.REJECTED)
    d.settle(30)
    assert pod.spec.node_name
    assert {pool for pool, _ in d.allocated()} == {pod.spec.node_name}
    assert [type(write) for instruction in d.writes for write in instruction.writes] == [
        CreateClaim,
        DeleteClaim,
        CreateClaim,
    ]


def test_a_gang_whose_claims_cannot_be_written_is_bound_nowhere() -> None:
    d = driver()
    d.problem = "the API server said no"
    pods = gang(2)
    d.apply(*pods)
    d.step()
    assert not d.flight
    assert not d.allocated()
    d.problem = ""
    d.settle(60)
    assert len(nodes_of(pods)) == 2


def test_what_an_earlier_process_left_is_removed_before_the_pod_is_placed() -> None:
    first = driver()
    pod = make_pod("p", gpus=8)
    first.apply(pod)
    first.step()
    (left,) = first.claims.values()
    second = driver()
    second.put_claim(left)
    pod.status.extended_resource_claim_status = None  # the earlier process ended before it wrote it
    second.run(pod)
    assert [type(write) for instruction in second.writes for write in instruction.writes] == [DeleteClaim, CreateClaim]
    assert len(second.allocated()) == 8
    assert {pool for pool, _ in second.allocated()} == {pod.spec.node_name}


def test_a_claim_that_is_listed_after_its_pod_is_removed_too() -> None:
    first = driver()
    pod = make_pod("p", gpus=8)
    first.apply(pod)
    first.step()
    (left,) = first.claims.values()
    second = driver()
    second.unanswered = []
    second.apply(pod)  # its status names the claim
    second.step()
    second.put_claim(left)
    second.step()
    (early,) = second.unanswered
    second.unanswered = None
    second.engine.claims_written(
        pod.metadata.uid, [(write, after(write, None)) for write in early.writes], "", second.now
    )
    second.settle(6)
    assert [type(write) for instruction in second.writes for write in instruction.writes] == [
        DeleteClaim,
        DeleteClaim,
        CreateClaim,
    ]
    assert pod.spec.node_name


def test_a_class_that_appears_or_goes_is_noticed() -> None:
    d = DeviceDriver(fabric({"s1/l1": 1}, gpus=0))
    pod, other = make_pod("p", gpus=2), make_pod("q", gpus=2)
    d.run(pod)
    assert nodes_of([pod]) == []
    d.classes(device_class())
    d.settle(60)
    assert nodes_of([pod]) == ["s1-l1-1"]
    d.drop_class("gpu")
    d.run(other)
    assert not other.spec.node_name


@pytest.mark.parametrize(("older", "newer"), [("a", "b"), ("b", "a")])
def test_of_two_classes_with_one_name_the_newer_counts(older: str, newer: str) -> None:
    d = driver()
    d.drop_class("gpu")
    d.classes(device_class(newer, created="2026-02-01T00:00:00Z"), device_class(older, created="2026-01-01T00:00:00Z"))
    pod = make_pod("p", gpus=1)
    d.run(pod)
    (claim,) = d.claims.values()
    exactly = claim.spec.devices.requests[0].exactly
    assert exactly is not None
    assert exactly.device_class_name == newer


def test_every_class_has_a_resource_of_its_own() -> None:
    d = driver()
    pod = make_pod("p")
    pod.spec.containers[0].resources.requests["deviceclass.resource.kubernetes.io/gpu"] = 2
    d.run(pod)
    assert pod.spec.node_name
    assert len(d.allocated()) == 2


def test_a_higher_priority_preempts_on_nodes_of_slices() -> None:
    d = driver({"s1/l1": 1})
    d.engine.budgets_known()
    low = make_pod("low", gpus=8)
    d.run(low)
    high = make_pod("high", gpus=8, priority=10)
    d.apply(high)
    said = d.step()
    assert [instruction.pod.uid for instruction in said if isinstance(instruction, Preempt)] == [low.metadata.uid]


def test_a_driver_that_vanishes_takes_no_pod_with_it() -> None:
    d = driver()
    pods = [make_pod("p", gpus=8), make_pod("q", gpus=8)]
    d.run(pods[0])
    d.drop_slice(f"{pods[0].spec.node_name}-gpus")
    d.run(pods[1])
    assert sorted(nodes_of(pods)) == ["s1-l1-1", "s1-l1-2"], "the other node is used on"
    assert LostGPUs(SchedulerView(d.engine)).problems() == {}
    d.slices(slice_of(pods[0].spec.node_name))
    d.step()
    assert d.free_gpus(pods[0].spec.node_name) == 0


def test_gpus_by_extended_resources_count_once_for_the_namespace() -> None:
    d = driver()
    pod = make_pod("p", gpus=4)
    d.apply(pod)
    d.step()
    accounts = d.engine.world.accounts
    assert accounts.held("default")[GPU] == 4, "decided"
    d.settle()
    assert accounts.held("default")[GPU] == 4, "bound"
    assert accounts.share("default") == 250_000, "4 of 16"
    d.delete(pod)
    for _, name in list(d.claims):
        d.drop_claim(name)
    d.step()
    assert accounts.held("default").get(GPU, 0) == 0


def low_priority_claims(d: ExtendedDriver, count: int, number: int) -> list[Pod]:
    """Run pods that hold devices by claims of their own."""
    pods = [d.pod(f"low-{index}", asking(count)) for index in range(number)]
    d.run(*pods)
    assert len(nodes_of(pods)) == number
    for pod in pods:
        pod.status.phase, pod.status.start_time = "Running", timestamp(d.now)
        d.apply(pod)
    d.engine.budgets_known()
    d.settle()
    return pods


def test_a_higher_priority_preempts_pods_that_hold_devices_by_claims_of_their_own() -> None:
    d = driver()
    low_priority_claims(d, 8, 2)
    urgent = make_pod("urgent", gpus=8, priority=10)
    d.apply(urgent)
    d.step()
    (victim,) = d.preempted()
    d.evict(*(pod for pod in d.pods.values() if pod.metadata.name == victim))
    d.drop_claim(f"{victim}-claim")
    d.settle()
    assert urgent.spec.node_name


def test_a_gang_of_higher_priority_preempts_both_kinds_of_pods() -> None:
    d = driver({"s1/l1": 2})
    low_priority_claims(d, 5, 2)
    extended = [make_pod(f"extended-{number}", gpus=3) for number in range(2)]
    d.run(*extended)
    for pod in extended:
        pod.status.phase, pod.status.start_time = "Running", timestamp(d.now)
        d.apply(pod)
    members = gang(2, gpus=8)
    for pod in members:
        pod.spec.priority = 10
    d.apply(*members)
    d.step()
    assert len(d.preempted()) == 4


def test_devices_of_claims_do_not_change_how_many_leaves_a_gang_needs() -> None:
    d = driver({"s1/l1": 2, "s1/l2": 2})
    for node in ("s1-l1-1", "s1-l2-1"):
        low = d.pod(f"on-{node}", asking(8))
        low.spec.node_name = node
        devices = (f"gpu-{number}" for number in range(8))
        d.put_claim(taken(d.claims["default", f"on-{node}-claim"], node, *devices))
        d.apply(low)
    members = gang(2, gpus=8)
    d.apply(*members)
    d.settle()
    assert not nodes_of(members), "an empty leaf holds the gang, so it waits for one"


def test_a_reason_does_not_say_that_empty_nodes_lack_what_claims_hold() -> None:
    d = driver()
    low_priority_claims(d, 8, 2)
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.settle()
    assert not any("even if it were empty" in text for text in d.told(pod, Reason.FAILED_SCHEDULING))


def running_by_devices(name: str, node: str) -> Pod:
    """Return a pod that runs, as a new process finds it."""
    pod = make_pod(name, gpus=8, node=node)
    pod.status.extended_resource_claim_status = PodExtendedResourceClaimStatus(f"{name}-claim")
    return pod


def test_a_new_process_does_not_call_nodes_oversubscribed_whose_devices_it_has_not_read_yet() -> None:
    d = DeviceDriver(fabric({"s1/l1": 1}, gpus=0), synced=False)
    pods = [running_by_devices("p", "s1-l1-1"), make_pod("cpu", node="s1-l1-1")]
    d.apply(*pods)
    d.classes(device_class())
    d.sync()
    d.step()
    assert d.complaints() == []
    assert d.told(reason=Reason.OVERSUBSCRIBED) == []


def test_a_driver_that_vanishes_makes_no_later_pod_guilty() -> None:
    d = driver({"s1/l1": 1})
    d.run(make_pod("p", gpus=8))
    d.drop_slice("s1-l1-1-gpus")
    d.step()
    d.apply(make_pod("cpu", scheduler="other", node="s1-l1-1"))
    d.step()
    assert d.complaints() == []
    assert d.told(reason=Reason.OVERSUBSCRIBED) == []


def test_what_is_taken_without_devices_is_reported_on_nodes_of_slices_too() -> None:
    d = driver({"s1/l1": 1})
    d.run(make_pod("p", gpus=8))
    d.apply(make_pod("thief", gpus=4, scheduler="other", node="s1-l1-1"))
    d.step()
    (message,) = d.told(reason=Reason.OVERSUBSCRIBED)
    assert "default/thief" in message


def test_a_pod_that_no_claim_can_describe_gets_a_node_that_offers_the_resource() -> None:
    container = {"resources": {"limits": {NVIDIA: "1"}, "requests": {NVIDIA: "1"}}}
    pod = make_pod("p", gpus=0)
    pod.spec.containers = [msgspec.convert({**container, "name": f"c{number}"}, Container) for number in range(40)]
    d = ExtendedDriver([make_node("slices", "s1/l1", gpus=0)], gpus=64)
    d.run(pod)
    assert not d.where(pod)
    assert any("more than 32 requests for extended resources" in text for text in d.told(pod)), d.told(pod)
    d.nodes(make_node("plugin", "s1/l1", gpus=40))
    d.settle(60)
    assert nodes_of([pod]) == ["plugin"]
    assert not d.allocated()
