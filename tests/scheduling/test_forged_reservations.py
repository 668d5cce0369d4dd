"""Claims reserved for pods of others, or for one pod without end: the right to write a status allows that."""

import msgspec

from tests.helpers import make_pod
from tests.scheduling.device_driver import DeviceDriver, asking, taken
from tests.scheduling.preempted_claims import ready, running
from topo_scheduler.api.devices import DELETE_PROTECTION, ResourceClaim
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.devices.claim_writes import consumer
from topo_scheduler.state.devices.deleted_claims import MAX_DEVICES_OF_POD


def forge(d: DeviceDriver, name: str, node: str, devices: int, *pods: Pod, finalizers: tuple[str, ...] = ()) -> None:
    """A tenant allocates devices to a claim itself, and reserves it for pods."""
    metadata = {"name": name, "namespace": "hostile", "uid": f"uid-{name}", "finalizers": finalizers}
    claim = msgspec.convert({"metadata": metadata, "spec": asking(devices)}, ResourceClaim)
    claim = taken(claim, node, *(f"gpu-{number}" for number in range(devices)))
    reserved = [consumer(pod.metadata.name, pod.metadata.uid) for pod in pods]
    d.put_claim(msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=reserved)))


def test_a_deleted_claim_of_another_namespace_keeps_no_device_for_a_pod() -> None:
    d = ready()
    victim = make_pod("victim", gpus=0)
    d.run(victim)
    forge(d, "forged", victim.spec.node_name, 8, victim)
    d.settle()
    d.drop_claim("forged", "hostile")
    pod = d.pod("pod", asking(8))
    d.run(pod)
    assert pod.spec.node_name


def test_deleted_claims_for_one_pod_keep_no_more_devices_than_one_pod_gets() -> None:
    d = ready()
    mine = make_pod("mine", gpus=0, namespace="hostile")
    d.run(mine)
    for number in range(2 * MAX_DEVICES_OF_POD // 32):
        forge(d, f"forged-{number}", f"nowhere-{number}", 32, mine)
        d.drop_claim(f"forged-{number}", "hostile")
    for number in range(10):
        forge(d, f"empty-{number}", "nowhere", 0, mine)
        d.drop_claim(f"empty-{number}", "hostile")
    assert len(d.engine.world.inventory.claims) == MAX_DEVICES_OF_POD // 32
    d.delete(mine)
    assert not d.engine.world.inventory.claims


def test_no_pod_is_evicted_for_devices_of_a_claim_of_another_namespace() -> None:
    d = ready({"s1/l1": 2})
    victim = make_pod("victim", gpus=0)
    d.run(victim)
    victim.status.phase = "Running"
    d.apply(victim)
    for number in (1, 2):
        forge(d, f"forged-{number}", f"s1-l1-{number}", 8, victim, finalizers=(DELETE_PROTECTION,))
    d.apply(d.pod("urgent", asking(8), priority=10))
    d.step()
    assert d.preempted() == []


def test_no_pod_is_evicted_together_with_the_pod_that_has_the_devices() -> None:
    d = ready()
    victim = make_pod("victim", gpus=0)
    d.run(victim)
    victim.status.phase = "Running"
    d.apply(victim)
    mine = make_pod("mine", gpus=0, namespace="hostile", node="s1-l1-1", phase="Running")
    d.apply(mine)
    forge(d, "forged", "s1-l1-1", 8, mine, victim, finalizers=(DELETE_PROTECTION,))
    d.apply(d.pod("urgent", asking(8), priority=10))
    d.step()
    assert d.preempted() == ["mine"]


def test_a_pod_whose_own_devices_do_not_come_free_alone_is_no_obstacle() -> None:
    """Devices of a claim of another namespace count neither for its size as a victim nor for its share."""
    d = ready()
    small = running(d, "small", 1)
    forge(d, "forged", "s1-l1-1", 8, small, finalizers=(DELETE_PROTECTION,))
    d.settle()
    assert d.engine.world.claimed_gpus.of_pod(small.metadata.uid) == 1000


def test_a_claim_that_is_reserved_for_a_pod_of_another_namespace_gets_no_finalizer() -> None:
    d = ready()
    pods = [make_pod(f"p{number}", gpus=0, namespace=space) for number, space in enumerate(("default", "hostile"))]
    d.run(*pods)
    for pod in pods:
        forge(d, f"for-{pod.metadata.namespace}", "s1-l1-1", 1, pod)
        d.settle()
    assert d.claims["hostile", "for-default"].metadata.finalizers == []
    assert d.claims["hostile", "for-hostile"].metadata.finalizers == [DELETE_PROTECTION]
