"""Claims of pods that wait get their finalizer ahead, so that their allocation is one write."""

import msgspec

from tests.helpers import make_pod, timestamp
from tests.scheduling.device_driver import DeviceDriver, asking, driver, nodes_of
from topo_scheduler.api.devices import DELETE_PROTECTION
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.binding.claim_binding import MAX_PROTECTED_PODS
from topo_scheduler.scheduling.binding.claim_protection import MAX_PROTECTED
from topo_scheduler.state.devices.claim_writes import AllocateClaim, ClaimWrite, ProtectClaim, ReleaseClaim


def full() -> DeviceDriver:
    """A node whose devices are all in use."""
    d = driver({"s1/l1": 1})
    d.run(d.pod("first", asking(8)))
    d.writes.clear()
    return d


def written(d: DeviceDriver) -> list[ClaimWrite]:
    """All writes, in order."""
    return [write for wanted in d.writes for write in wanted.writes]


def end_first(d: DeviceDriver) -> None:
    """The pod that has all devices ends."""
    first = next(pod for pod in d.pods.values() if pod.metadata.name == "first")
    d.delete(first)
    d.drop_claim("first-claim")


def test_the_claim_of_a_pod_that_waits_is_protected_once_and_then_allocated_by_one_write() -> None:
    d = full()
    pod = d.pod("p", asking(8))
    d.run(pod)
    d.settle(60)
    (protection,) = written(d)
    assert isinstance(protection, ProtectClaim)
    end_first(d)
    d.settle(10)
    _, allocation = written(d)
    assert isinstance(allocation, AllocateClaim)
    assert DELETE_PROTECTION in allocation.finalizers
    assert nodes_of([pod])


def test_a_pod_that_can_be_placed_at_once_writes_nothing_ahead() -> None:
    d = driver()
    d.run(d.pod("p", asking(1)))
    assert [type(write) for write in written(d)] == [AllocateClaim]


def test_while_decided_pods_wait_for_their_claims_nothing_is_written_ahead() -> None:
    d = driver({"s1/l1": 1})
    d.unanswered = []
    d.apply(d.pod("first", asking(8)), d.pod("p", asking(8)))
    d.step()
    d.step(1)
    assert [type(write) for write in written(d)] == [AllocateClaim]
    d.write_claims(d.unanswered.pop())
    d.step()
    assert [type(write) for write in written(d)] == [AllocateClaim, ProtectClaim]


def test_few_are_written_ahead_at_once() -> None:
    d = full()
    d.unanswered = []
    pods = [d.pod(f"p{number}", asking(8)) for number in range(3 * MAX_PROTECTED_PODS)]
    d.apply(*pods)
    for _ in range(20):
        d.step(0.1)
    assert len(d.unanswered) == MAX_PROTECTED_PODS
    while d.unanswered:
        d.write_claims(d.unanswered.pop())
        assert len(d.unanswered) <= MAX_PROTECTED_PODS
        d.step()
    assert len(written(d)) == len(pods)


def test_a_pod_that_is_decided_while_its_claim_is_being_protected_waits_for_the_answer() -> None:
    d = full()
    d.unanswered = []
    pod = d.pod("p", asking(8))
    d.apply(pod)
    d.step(1)
    (ahead,), d.unanswered = d.unanswered, None
    end_first(d)
    d.settle(10)
    assert not nodes_of([pod])
    d.write_claims(ahead)
    d.settle(1)
    assert nodes_of([pod])
    assert [type(write) for write in written(d)] == [ProtectClaim, AllocateClaim]


def test_a_claim_that_could_not_be_protected_is_allocated_all_the_same() -> None:
    d = full()
    d.problem = "no"
    pod = d.pod("p", asking(8))
    d.run(pod)
    d.problem = ""
    end_first(d)
    d.settle(10)
    assert nodes_of([pod])


def test_pods_that_share_a_claim_let_it_be_protected_once() -> None:
    d = full()
    d.claim("shared", asking(8))
    d.run(*(d.sharing(make_pod(f"p{number}"), "shared") for number in range(3)))
    d.settle(10)
    assert len(written(d)) == 1


# ---------------------------------------------------------------- finalizers that another client removed


def sharing(d: DeviceDriver, name: str = "shared") -> Pod:
    """Return a pod that runs with all devices of a node, by a claim that a user made."""
    d.claim(name, asking(8))
    pod = running(d, d.sharing(make_pod("p", gpus=0), name))
    d.writes.clear()
    return pod


def running(d: DeviceDriver, pod: Pod) -> Pod:
    d.run(pod)
    assert pod.spec.node_name
    pod.status.phase, pod.status.start_time = "Running", timestamp(d.now)
    d.apply(pod)
    d.settle()
    return pod


def strip(d: DeviceDriver, name: str = "shared", *, reserved: bool = True, **metadata: str) -> None:
    """Another client removes the finalizer; unless ``reserved``, Kubernetes takes the pods off the claim then."""
    claim = d.claims["default", name]
    kept = msgspec.structs.replace(claim.metadata, finalizers=["example.com/other"], **metadata)
    status = claim.status if reserved else msgspec.structs.replace(claim.status, reserved_for=[])
    d.put_claim(msgspec.structs.replace(claim, metadata=kept, status=status))


def test_a_claim_in_use_gets_its_finalizer_back() -> None:
    d = driver({"s1/l1": 1})
    sharing(d)
    strip(d)
    d.settle()
    (write,) = written(d)
    assert isinstance(write, ProtectClaim)
    assert d.claims["default", "shared"].metadata.finalizers == ["example.com/other", DELETE_PROTECTION]
    d.settle(60)
    assert len(written(d)) == 1


def test_without_its_finalizer_a_pod_is_a_victim_like_others() -> None:
    d = driver({"s1/l1": 1})
    d.engine.budgets_known()
    sharing(d)
    strip(d)
    d.settle()
    d.apply(d.pod("urgent", asking(8), priority=10))
    d.step()
    assert d.preempted() == ["p"]


def test_a_claim_that_outlives_its_pods_is_deallocated() -> None:
    d = driver({"s1/l1": 1})
    pod = sharing(d)
    d.delete(pod)
    strip(d, reserved=False)
    d.settle()
    assert [type(write) for write in written(d)] == [ReleaseClaim]
    other = d.pod("other", asking(8))
    d.run(other)
    assert other.spec.node_name


def test_a_claim_that_no_pod_used_keeps_its_devices() -> None:
    d = driver({"s1/l1": 1})
    pod = sharing(d)
    allocated = d.claims["default", "shared"]
    d.delete(pod)
    d.drop_claim("shared")
    d.settle()
    metadata = msgspec.structs.replace(allocated.metadata, name="by-hand", uid="by-hand", finalizers=[])
    status = msgspec.structs.replace(allocated.status, reserved_for=[])
    d.put_claim(msgspec.structs.replace(allocated, metadata=metadata, status=status))
    d.settle(60)
    assert not written(d)


def test_a_claim_that_is_being_deleted_is_left_alone() -> None:
    d = driver({"s1/l1": 1})
    sharing(d)
    strip(d, deletion_timestamp=timestamp(d.now))
    d.settle(60)
    assert not written(d)


def test_a_claim_whose_finalizer_can_not_be_written_is_not_written_again_at_once() -> None:
    d = driver({"s1/l1": 1})
    sharing(d)
    d.problem = "forbidden"
    strip(d)
    d.settle(60)
    assert len(written(d)) == 1


def test_only_some_finalizers_are_written_at_once() -> None:
    d = driver({"s1/l1": 1})
    names = [f"shared-{number}" for number in range(8)]
    for name in names:
        d.claim(name, asking(1))
        running(d, d.sharing(make_pod(f"p-{name}", gpus=0), name))
    d.writes.clear()
    d.unanswered = []
    for name in names:
        strip(d, name)
    d.step()
    d.step(1)
    assert len(d.unanswered) == MAX_PROTECTED
    while d.unanswered:
        d.write_claims(d.unanswered.pop())
        d.step()
    assert all(DELETE_PROTECTION in d.claims["default", name].metadata.finalizers for name in names)
