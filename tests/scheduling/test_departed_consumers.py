"""Claims that are still reserved for pods that ended before this process began, or beside claims that changed."""

import msgspec

from tests.helpers import make_pod, timestamp
from tests.scheduling.device_driver import DeviceDriver, asking, driver, taken
from topo_scheduler.api.devices import DELETE_PROTECTION, ResourceClaim
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.devices.claim_consumers import ClaimConsumers
from topo_scheduler.state.devices.claim_writes import consumer


def reserved(claim: ResourceClaim, *pods: Pod) -> ResourceClaim:
    """Return a claim as it is while it is reserved for some pods."""
    consumers = [consumer(pod.metadata.name, pod.metadata.uid) for pod in pods]
    metadata = msgspec.structs.replace(claim.metadata, finalizers=[DELETE_PROTECTION])
    return msgspec.structs.replace(
        claim, metadata=metadata, status=msgspec.structs.replace(claim.status, reserved_for=consumers)
    )


def takeover(d: DeviceDriver, *names: str) -> list[Pod]:
    """Fill nodes by claims of pods, as a leader finds them that just began; return the pods, which are not applied."""
    d.engine.budgets_known()
    pods = []
    for number, name in enumerate(names, 1):
        pod = d.pod(name, asking(8))
        pod.spec.node_name = f"s1-l1-{number}"
        pod.status.phase, pod.status.start_time = "Running", timestamp(d.now)
        claim = taken(d.claims["default", f"{name}-claim"], pod.spec.node_name, *(f"gpu-{gpu}" for gpu in range(8)))
        d.put_claim(reserved(claim, pod))
        pods.append(pod)
    return pods


def test_a_new_leader_waits_for_devices_of_pods_that_ended_before_and_evicts_no_other() -> None:
    d = driver({"s1/l1": 2})
    _, running = takeover(d, "gone", "running")
    d.apply(running)
    urgent = d.pod("urgent", asking(8), priority=10)
    urgent.status.nominated_node_name = "s1-l1-1"
    d.apply(urgent)
    d.step()
    for _ in range(5):
        d.step(60)
    assert d.preempted() == []
    d.drop_claim("gone-claim")
    d.settle()
    assert urgent.spec.node_name == "s1-l1-1"


def test_a_new_leader_counts_on_devices_of_pods_that_have_succeeded() -> None:
    d = driver({"s1/l1": 2})
    done, running = takeover(d, "done", "running")
    done.status.phase = "Succeeded"
    d.apply(done, running)
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    d.step(60)
    assert d.preempted() == []


def test_devices_of_pending_pods_of_other_schedulers_do_not_come_free_at_a_takeover() -> None:
    d = driver({"s1/l1": 2})
    theirs, running = takeover(d, "theirs", "running")
    theirs.spec.node_name, theirs.status.phase, theirs.spec.scheduler_name = "", "Pending", "default-scheduler"
    d.apply(theirs, running)
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    assert d.preempted() == ["running"]


def test_devices_of_a_pod_that_is_listed_after_its_claim_do_not_come_free() -> None:
    d = driver({"s1/l1": 2})
    late, running = takeover(d, "late", "running")
    d.apply(running)
    d.step()
    d.apply(late)
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    assert len(d.preempted()) == 1


def test_a_pod_that_is_gone_stays_gone_if_its_claim_is_reserved_for_another_too() -> None:
    consumers, key = ClaimConsumers(), ("default", "shared")
    d = driver()
    d.claim("shared", asking(1))
    first, second = make_pod("first"), make_pod("second")
    consumers.changed(key, reserved(d.claims[key], first))
    consumers.depart(first.metadata.uid)
    consumers.changed(key, reserved(d.claims[key], first, second))
    assert list(consumers.departed) == [first.metadata.uid]
    assert consumers.pods_of(key) == 2
    consumers.changed(key, reserved(d.claims[key], second))
    assert list(consumers.departed) == []
