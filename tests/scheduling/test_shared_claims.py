"""Claims that several pods name, of which some run and others have no decision any more."""

import msgspec
import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking, driver, nodes_of, slice_of, taken
from tests.scheduling.driver import gang
from topo_scheduler.api.devices import ResourceClaim, ResourceSlice
from topo_scheduler.api.objects import Pod, PodResourceClaim
from topo_scheduler.api.selectors import NodeSelector, NodeSelectorTerm, Requirement
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.state.devices.claim_writes import consumer


def sharing(d: DeviceDriver, count: int) -> list[Pod]:
    """Pods that share one claim."""
    d.claim("shared", asking(1))
    return [d.sharing(make_pod(f"p{number}"), "shared") for number in range(count)]


def close_node(d: DeviceDriver, name: str) -> None:
    d.nodes(make_node(name, "s1/l1", gpus=0, unschedulable=True))


def on_first(d: DeviceDriver, *, admin: bool) -> ResourceClaim:
    """The claim as another scheduler allocates it, for the first node alone."""
    claim = taken(d.claims["default", "shared"], "s1-l1-1", "gpu-3")
    assert claim.status.allocation is not None
    claim.status.allocation.devices.results[0].admin_access = admin or None
    term = NodeSelectorTerm((), (Requirement("metadata.name", "In", ("s1-l1-1",)),))
    claim.status.allocation.node_selector = NodeSelector((term,))
    return claim


def test_devices_that_only_pods_without_a_decision_share_are_released() -> None:
    """Neither pod has the claim alone. Kept, it would tie both to a node that takes no pods any more."""
    d = driver({"s1/l1": 2})
    pods = sharing(d, 2)
    d.apply(*pods)
    d.step()
    assert len(d.flight) == 2
    (node,) = {bind.node for bind in d.flight.values()}
    for pod in pods:
        d.answer(pod.metadata.uid, BindOutcome.REJECTED)
    close_node(d, node)
    d.settle(60)
    d.settle(60)
    assert nodes_of(pods) == 2 * [next(name for name in ("s1-l1-1", "s1-l1-2") if name != node)]
    assert set(d.allocated().values()) == {1}


def test_after_a_restart_too_and_for_pods_that_come_later() -> None:
    d = driver({"s1/l1": 2})
    pods = sharing(d, 3)
    claim = on_first(d, admin=False)
    claim.status.reserved_for = [consumer(pod.metadata.name, pod.metadata.uid) for pod in pods[:2]]
    d.put_claim(claim)
    close_node(d, "s1-l1-1")
    d.run(*pods)
    d.settle(60)
    assert nodes_of(pods) == 3 * ["s1-l1-2"]


@pytest.mark.parametrize(("reserved", "size"), [(0, 257), (253, 4)])
def test_a_gang_that_is_too_large_to_share_a_claim_is_refused_and_evicts_no_pod(reserved: int, size: int) -> None:
    """Kubernetes reserves a claim for 256 pods. Those beyond would take back the decision, after the evictions."""
    d = driver({"s1/l1": 1})
    d.engine.budgets_known()
    low = make_pod("low", cpu="60")
    d.run(low)
    sharing(d, 0)
    claim = on_first(d, admin=False)
    claim.status.reserved_for = [consumer(f"other-{number}", f"uid-{number}") for number in range(reserved)]
    d.put_claim(claim)
    members = [d.sharing(pod, "shared") for pod in gang(size, gpus=0)]
    for pod in members:
        pod.spec.priority, pod.spec.containers[0].resources.requests["cpu"] = 10, "100m"
    d.run(*members)
    assert not nodes_of(members)
    assert d.preempted() == []
    message = (
        f'{size} pending pods share resourceclaim "shared", which Kubernetes can reserve for {256 - reserved} more'
    )
    assert any(message in text for text in d.told(members[0]))
    d.put_claim(msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=[])))
    d.settle(60)
    assert len(nodes_of(members)) == (size if size < 256 else 0)


def test_devices_that_another_pod_runs_with_stay() -> None:
    d = driver({"s1/l1": 2})
    first, second = sharing(d, 2)
    d.run(first)
    d.apply(second)
    d.step()
    d.answer(second.metadata.uid, BindOutcome.REJECTED)
    close_node(d, first.spec.node_name)
    before = d.allocated()
    d.settle(60)
    assert d.allocated() == before
    assert not second.spec.node_name


def test_devices_that_a_pod_of_another_scheduler_may_be_about_to_use_stay() -> None:
    d = driver({"s1/l1": 2})
    (pod,) = sharing(d, 1)
    other = d.sharing(make_pod("theirs", scheduler="default-scheduler"), "shared")
    claim = taken(d.claims["default", "shared"], "s1-l1-1", "gpu-3")
    claim.status.reserved_for = [consumer("theirs", other.metadata.uid), consumer(pod.metadata.name, pod.metadata.uid)]
    d.put_claim(claim)
    d.apply(other)
    d.run(pod)
    assert pod.spec.node_name
    assert set(d.allocated()) == {("s1-l1-1", "gpu-3")}


def test_devices_of_a_pod_that_was_just_bound_stay_until_the_watch_reports_it() -> None:
    d = driver({"s1/l1": 2})
    first, second = sharing(d, 2)
    d.apply(first)
    d.step()
    d.answer(first.metadata.uid, reported=False)
    before = d.allocated()
    d.apply(second)
    d.step()
    d.tell_again(second)
    d.settle(10)
    assert d.allocated() == before
    assert second.spec.node_name == first.spec.node_name


@pytest.mark.parametrize("admin", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_pods_go_elsewhere_once_the_claim_that_they_share_is_free(full: bool, admin: bool) -> None:
    """Nothing else changes on the other node: neither its devices nor what pods hold there."""
    d = driver({"s1/l1": 2})
    d.claim("shared", asking(1, adminAccess=True) if admin else asking(1))
    free = d.claims["default", "shared"]
    d.put_claim(on_first(d, admin=admin))
    if full:
        d.apply(make_pod("large", node="s1-l1-1", cpu="64"))
    else:
        close_node(d, "s1-l1-1")
    pods = [d.sharing(make_pod(f"p{number}"), "shared") for number in range(2)]
    d.run(*pods)
    assert not nodes_of(pods)
    d.put_claim(free)
    d.settle(1)
    d.settle(1)
    assert nodes_of(pods) == 2 * ["s1-l1-2"]


def test_a_shared_claim_leaves_the_device_that_the_pods_own_claim_needs() -> None:
    """The first device would do for both claims, and only that one for the claim of the pod."""
    d = driver({"s1/l1": 1}, gpus=2)
    d.claim("shared", asking(1))
    expression = f"device.attributes['{DRIVER}'].first"
    item = msgspec.to_builtins(slice_of("s1-l1-1", 2, generation=2))
    for number, device in enumerate(item["spec"]["devices"]):
        device["attributes"] = {"first": {"bool": number == 0}}
    d.slices(msgspec.convert(item, ResourceSlice))
    pod = d.pod("p", asking(1, selectors=[{"cel": {"expression": expression}}]))
    pod.spec.resource_claims.append(PodResourceClaim("shared", resource_claim_name="shared"))
    assert d.run(pod) == {"p": "s1-l1-1"}
    assert d.devices_of("p-claim") == ["gpu-0"] and d.devices_of("shared") == ["gpu-1"]
