"""Claims that are deleted while pods run with their devices: no other pod gets these, and quotas still count them."""

import msgspec

from tests.helpers import make_pod
from tests.scheduling.device_driver import DeviceDriver, asking
from tests.scheduling.driver import fabric
from tests.scheduling.extended_driver import driver as extended_driver
from tests.scheduling.preempted_claims import ready, running
from topo_scheduler.state.nodes.resources import GPU


def one_node() -> DeviceDriver:
    return DeviceDriver(fabric({"s1/l1": 1}), 8)


def used(d: DeviceDriver, namespace: str = "default") -> int:
    return d.engine.world.accounts.held(namespace).get(GPU, 0)


def test_devices_of_a_running_pod_are_given_to_no_other_after_its_claim_was_deleted() -> None:
    d = one_node()
    first, second = (d.pod(name, asking(8), gpus=0) for name in ("first", "second"))
    d.run(first)
    d.drop_claim("first-claim")
    d.run(second)
    assert not second.spec.node_name
    assert used(d) == 8
    d.finish(first)
    d.settle(60)
    assert second.spec.node_name == first.spec.node_name
    assert used(d) == 8


def test_the_same_for_extended_resources_which_count_once() -> None:
    d = extended_driver({"s1/l1": 1})
    first, second = make_pod("first", gpus=6), make_pod("second", gpus=6)
    d.run(first)
    ((_, name),) = d.claims
    d.drop_claim(name)
    third = d.pod("third", asking(4), gpus=0)
    d.run(third)
    assert not third.spec.node_name
    assert used(d) == 6
    small = make_pod("small", gpus=2)
    d.run(small)
    assert small.spec.node_name, "the other two devices are free"
    assert d.free_gpus(small.spec.node_name) == 0
    d.delete(first)
    d.run(second)
    assert second.spec.node_name


def test_devices_of_a_shared_claim_stay_in_use_until_its_last_pod_is_gone() -> None:
    d = one_node()
    d.claim("shared", asking(8))
    pods = [d.sharing(make_pod(f"p{number}", gpus=0), "shared") for number in range(2)]
    d.run(*pods)
    assert all(pod.spec.node_name for pod in pods)
    d.drop_claim("shared")
    after = d.pod("after", asking(1), gpus=0)
    d.run(after)
    d.finish(pods[0])
    d.settle(60)
    assert not after.spec.node_name
    assert used(d) == 8
    d.finish(pods[1])
    d.settle(60)
    assert after.spec.node_name


def test_a_claim_with_the_name_of_a_deleted_one_counts_itself() -> None:
    d = extended_driver({"s1/l1": 1})
    first = make_pod("first", gpus=2)
    d.run(first)
    ((_, name),) = d.claims
    d.drop_claim(name)
    d.claim(name, asking(6))
    second = d.sharing(make_pod("second", gpus=0), name)
    d.run(second)
    assert second.spec.node_name
    assert used(d) == 8, "the pod is not charged for it by its requests"


def test_a_claim_that_was_replaced_unseen_counts_as_deleted() -> None:
    d = one_node()
    first = d.pod("first", asking(8), gpus=0)
    d.run(first)
    claim = d.claims["default", "first-claim"]
    metadata = msgspec.structs.replace(claim.metadata, uid="other")
    d.put_claim(msgspec.structs.replace(claim, metadata=metadata, status=type(claim.status)()))
    second = d.pod("second", asking(8), gpus=0)
    d.run(second)
    assert not second.spec.node_name
    assert used(d) == 8


def test_a_pod_whose_claim_was_deleted_is_a_victim_like_others() -> None:
    d = ready()
    first = running(d, "first", 8)
    d.drop_claim("first-claim")
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step()
    assert d.preempted() == ["first"]
    d.evict(first)
    d.settle()
    assert urgent.spec.node_name


def test_a_claim_without_running_pods_is_forgotten() -> None:
    d = one_node()
    first = d.pod("first", asking(8), gpus=0)
    d.run(first)
    d.finish(first)
    d.settle()
    d.drop_claim("first-claim")
    assert not d.engine.world.inventory.claims
    assert not d.engine.world.inventory.devices_in_use()
