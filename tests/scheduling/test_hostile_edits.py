"""What a tenant edits, deletes and lets overrun costs others nothing: no memory, no time, no node and no pod."""

import pytest

from tests.helpers import controlled_by, in_group, make_group, make_node, make_pod, owner, timestamp
from tests.scheduling.device_driver import asking
from tests.scheduling.driver import Driver, fabric, fabric_driver, gang
from tests.scheduling.extended_driver import driver
from tests.scheduling.running_pods import run_pod, run_pod_until, urgent_pod
from topo_scheduler.api.devices import EXTENDED_RESOURCE_CLAIM
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import (
    Container,
    ContainerStatus,
    Pod,
    PodCondition,
    PodResourceClaim,
    Quantity,
    ResourceRequirements,
)
from topo_scheduler.scheduling.binding.contention import SchedulerContention
from topo_scheduler.scheduling.instructions import BindOutcome, EvictionOutcome, LogWarning
from topo_scheduler.scheduling.intake.arrivals import Arrivals
from topo_scheduler.scheduling.intake.groups import watched_api
from topo_scheduler.scheduling.intake.pending import MAX_WARNINGS, PendingPods
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.state.nodes.resources import CPU, MEMORY


def test_what_was_emitted_of_one_pod_is_bounded() -> None:
    d = Driver(fabric({"s/l": 1}))
    pod = make_pod("p", gpus=99)
    for number in range(100):
        pod.metadata.annotations = {f"topology.scheduler/x{number}-{n}": "1" for n in range(8)}
        d.apply(pod)
    assert len(d.engine._emitted._warned[pod.metadata.uid]) == MAX_WARNINGS
    d.step()
    d.forget()
    d.apply(pod)
    d.step()
    assert not any("the scheduler does not know it" in text for text in d.told(pod)), "the newest have their event"


def test_members_that_are_deleted_in_order_are_not_each_followed_by_a_look_at_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = Driver(fabric({"s/l": 1}))
    pods = gang(50)
    d.apply(*pods[:-1])
    d.step()
    read: list[str] = []
    understand = Arrivals.understand

    def counted(self: Arrivals, pod: Pod, now: float) -> None:
        read.append(pod.metadata.name)
        understand(self, pod, now)

    monkeypatch.setattr(Arrivals, "understand", counted)
    d.delete(*pods[:40])
    d.step()
    assert read == ["g-40"]


@pytest.mark.parametrize("grace", [601, 900, 1200])
def test_no_other_pod_is_evicted_shortly_before_a_victim_with_a_long_grace_period_ends(grace: int) -> None:
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    low = run_pod(d, "low", "s1-l1-1")
    run_pod(d, "other", "s1-l2-1", priority=1)
    low.spec.termination_grace_period_seconds = grace
    d.apply(low)
    high = urgent_pod()
    d.run(high)
    d.engine.eviction_finished(low.metadata.uid, EvictionOutcome.GOING, "", d.now)
    low.metadata.deletion_timestamp = timestamp(d.now + grace)
    d.apply(low)
    for _ in range(grace):
        d.step(1)
    d.delete(low)
    d.settle()
    assert d.where(high) == {"urgent": "s1-l1-1"}
    assert d.preempted() == ["low"]


@pytest.mark.parametrize("by", ["PodGroup", "owner"])
def test_a_gang_whose_size_becomes_that_of_those_that_run_is_not_rolled_back(by: str) -> None:
    d = Driver(fabric({"s1/l1": 4}))

    def wants(size: int) -> None:
        if by == "owner":
            d.own(owner("ReplicaSet", "g", {"gang-size": str(size)}))
        else:
            d.groups(make_group("g", size))

    wants(4)
    pods = [make_pod(f"g-{n}", gpus=8, created=n) for n in range(4)]
    for pod in pods:
        if by == "owner":
            pod.metadata.owner_references = [controlled_by("ReplicaSet", "g")]
        else:
            in_group(pod, "g")
    d.apply(*pods)
    d.step()
    first, second, *rest = d.flight
    d.answer(first)
    d.answer(second)
    d.nodes(*(make_node(d.flight[uid].node, "s1/l1", unschedulable=True) for uid in rest))
    for uid in rest:
        d.answer(uid, BindOutcome.REJECTED)
    d.step(0.5)
    wants(2)
    for _ in range(30):
        d.step(1)
    assert d.evicted() == []


def test_a_reservation_does_not_wait_for_a_pod_that_should_have_ended_long_ago() -> None:
    d = Driver(fabric({"s1/l1": 1, "s1/l2": 1}))
    stuck = run_pod_until(d, "stuck", "s1-l1-1")
    stuck.metadata.deletion_timestamp = timestamp(30)
    d.apply(stuck)
    run_pod_until(d, "fine", "s1-l2-1", ends=7200)
    d.step(3600)
    d.apply(make_pod("big", gpus=8, created=d.now))
    d.step()
    for _ in range(10):
        d.step(60)
    assert [sorted(held.nodes) for held in d.engine.reserving.holds] == [["s1-l2-1"]]


def test_pods_of_its_own_that_were_let_in_do_not_keep_a_reservation_alive() -> None:
    d = Driver([make_node("n1", "s1/l1"), *(make_node(f"n{n}", "s1/l2", cpu="1") for n in (2, 3))])
    theirs = run_pod_until(d, "theirs", "n1", ends=600, gpus=1, namespace="victim")
    for n in (2, 3):
        run_pod_until(d, f"full{n}", f"n{n}", namespace="victim", restart="Always")
    d.apply(make_pod("big", gpus=8, namespace="hostile"))
    d.step()
    d.step(31)
    assert [sorted(held.nodes) for held in d.engine.reserving.holds] == [["n1"]]
    short = {"expected-duration": "60s"}
    mine = [make_pod(f"s{n}", gpus=int(n == 0), namespace="hostile", annotations=short, created=40) for n in range(9)]
    d.run(*mine)
    for pod in mine:
        assert pod.spec.node_name == "n1"
        pod.status.phase, pod.status.start_time = "Running", timestamp(d.now)
    d.apply(*mine)
    d.step(600)
    d.delete(theirs)
    victim = make_pod("v", gpus=4, namespace="victim", created=d.now)
    d.apply(victim)
    for _ in range(8):  # each time before it expires, one of them ends
        d.settle(3 * 3600)
        d.delete(mine.pop())
    d.settle(60)
    assert d.where(victim) == {"v": "n1"}


@pytest.mark.parametrize("amount", ["9007199254740993", "9223372036854775807", "1e30", "-1"])
@pytest.mark.parametrize("name", ["cpu", "example.com/thing"])
def test_a_request_that_cannot_be_read_hides_no_gpus_of_a_running_pod(name: str, amount: str) -> None:
    """A kubelet leaves out extended resources that its node does not have, and refuses to resize a pod beyond it."""
    pod = make_pod("h", gpus=6, node="s1-l1-1", phase="Running")
    requests = pod.spec.containers[0].resources.requests
    requests[name] = amount
    d = Driver(fabric({"s1/l1": 1}))
    d.apply(pod)
    assert set(d.run(make_pod("large", gpus=3), make_pod("small", gpus=2))) == {"small"}
    assert d.engine.world.nodes.requested[0, MEMORY] == 2 << 30, "the requests that can be read count"
    (problem,) = (line for line in d.complaints() if "default/h" in line)
    assert amount in problem


def test_requests_that_are_too_large_together_take_no_gpus_from_their_pod() -> None:
    half = str(2**52 // 1000)
    pod = make_pod("h", cpu=half, gpus=6, node="s1-l1-1", phase="Running")
    pod.spec.containers += [Container(f"more-{number}", ResourceRequirements({"cpu": half})) for number in range(2)]
    d = Driver(fabric({"s1/l1": 1}))
    d.apply(pod)
    assert set(d.run(make_pod("large", gpus=3), make_pod("small", gpus=2))) == {"small"}


def test_a_status_that_a_tenant_writes_hides_no_gpus_of_a_running_pod() -> None:
    """The API server lets who may write the status of a pod say that its node refused a resize."""
    pod = make_pod("h", gpus=6, node="s1-l1-1", phase="Running")
    pod.status.conditions = [PodCondition("PodResizePending", status="True", reason="Infeasible")]
    held = ResourceRequirements({"cpu": "10m"})
    pod.status.container_statuses = [ContainerStatus("main", resources=held, allocated_resources={"cpu": "10m"})]
    pod.status.resources = held
    d = Driver(fabric({"s1/l1": 1}))
    d.apply(pod)
    assert set(d.run(make_pod("large", gpus=3), make_pod("small", gpus=2))) == {"small"}
    assert d.engine.world.nodes.requested[0, CPU] == 1010


def test_a_status_that_a_tenant_writes_takes_no_gpus_for_a_running_pod() -> None:
    """Only CPU and memory can be resized, so no quota sees GPUs that stand in a status alone."""
    pod = make_pod("h", gpus=0, node="s1-l1-1", phase="Running")
    gpus: dict[str, Quantity] = {"nvidia.com/gpu": "8"}
    held = ResourceRequirements(gpus)
    pod.status.container_statuses = [ContainerStatus("main", resources=held, allocated_resources=gpus)]
    pod.status.resources = held
    d = Driver(fabric({"s1/l1": 1}))
    d.apply(pod)
    assert set(d.run(make_pod("whole", gpus=8))) == {"whole"}


@pytest.mark.parametrize("edited", [False, True])
def test_the_uid_of_an_owner_may_be_a_name_under_which_the_pod_follows_something_else(edited: bool) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = in_group(in_group(make_pod("p", gpus=1), "g", GroupApi.PLUGINS), "h", GroupApi.VOLCANO)
    pod.metadata.owner_references = [controlled_by("Job", "train", watched_api(GroupApi.PLUGINS))]
    d.apply(pod)
    d.step()
    if edited:
        pod.metadata.annotations["example.com/a"] = "1"
        d.apply(pod)
        d.step()
    d.delete(pod)
    d.engine.owner_changed(watched_api(GroupApi.VOLCANO), d.now)
    other = make_pod("other", gpus=1)
    d.run(other)
    assert d.where(other) == {"other": "s1-l1-1"}
    assert not any("internal error" in text for text in d.told(pod))
    pending = d.engine.arrivals._pods
    assert not pending._below and not pending._owners


@pytest.mark.unrecorded
@pytest.mark.parametrize("of", [SchedulerContention, Arrivals, Preempting])
def test_a_deletion_that_raises_ends_nothing_else(monkeypatch: pytest.MonkeyPatch, of: type) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=9)
    d.run(pod)

    def fails(*_: object, **__: object) -> None:
        raise KeyError("any")

    with monkeypatch.context() as patched:
        patched.setattr(of, "pod_deleted" if of is Preempting else "deleted", fails)
        d.delete(pod)
    other = make_pod("other", gpus=1)
    d.run(other)
    assert d.where(other) == {"other": "s1-l1-1"}
    assert any(
        isinstance(instruction, LogWarning) and "KeyError: 'any'" in instruction.message for instruction in d.said
    )


@pytest.mark.unrecorded
def test_an_owner_whose_pods_cannot_be_found_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=9, owner=controlled_by("Job", "train"))
    d.run(pod)

    def fails(*_: object) -> None:
        raise KeyError("any")

    with monkeypatch.context() as patched:
        patched.setattr(PendingPods, "below", fails)
        d.own(owner("Job", "train"))
        d.step()
    other = make_pod("other", gpus=1)
    d.run(other)
    assert d.where(other) == {"other": "s1-l1-1"}


def test_the_claim_that_a_pod_names_may_be_marked_as_made_for_its_extended_resources() -> None:
    d = driver()
    pod = make_pod("p", gpus=9)
    claim = d.claims[d.claim("own", asking(), pod=pod)]
    claim.metadata.annotations = {EXTENDED_RESOURCE_CLAIM: "true"}
    d.put_claim(claim)
    d.step()
    pod.spec.resource_claims = [PodResourceClaim("devices", resource_claim_name="own")]
    d.apply(pod)
    d.step()
    d.delete(pod)
    d.put_claim(claim)
    d.step()
    assert not d.engine.arrivals._pods._below
