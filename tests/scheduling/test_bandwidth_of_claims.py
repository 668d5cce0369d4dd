"""Bandwidth of gangs whose devices come by claims: reserved for as long as they run, and not without devices."""

from collections.abc import Sequence

from tests.helpers import make_node
from tests.scheduling.device_driver import DeviceDriver, Json, asking
from tests.scheduling.driver import configured
from tests.scheduling.extended_driver import device_class
from tests.scheduling.link_bandwidth import bandwidth_gang, nodes_of, reserved_mbits
from topo_scheduler.api.objects import ContainerPort, Pod, PodResourceClaim
from topo_scheduler.api.reasons import Reason

RESOURCE = "example.com/gpu"
"""A resource of no GPU vendor that the scheduler knows: devices back it by a DeviceClass."""
BOTH = {"n0": 100_000, "n1": 100_000}


def _driver() -> DeviceDriver:
    nodes = [make_node(f"n{number}", "s/l", gpus=0, bandwidth="400Gb") for number in range(2)]
    d = DeviceDriver(nodes, config=configured("{}", permits=False))
    d.classes(device_class(resource=RESOURCE))
    return d


def _pods() -> list[Pod]:
    """Return two pods without GPUs of their own, which can't share a node."""
    pods = bandwidth_gang(2, "100Gb", gpus=0)
    for pod in pods:
        pod.spec.containers[0].ports = [ContainerPort(host_port=30_000)]
    return pods


def _restarted(d: DeviceDriver, pods: Sequence[Pod]) -> DeviceDriver:
    fresh = _driver()
    for claim in d.claims.values():
        fresh.put_claim(claim)
    fresh.apply(*pods)
    fresh.step()
    return fresh


def test_gangs_with_extended_resources_keep_what_they_reserved() -> None:
    d, pods = _driver(), _pods()
    for pod in pods:
        pod.spec.containers[0].resources.requests[RESOURCE] = 4
    d.run(*pods)
    assert sorted(nodes_of(pods)) == ["n0", "n1"]
    assert reserved_mbits(d) == BOTH
    assert reserved_mbits(_restarted(d, pods)) == BOTH


def test_gangs_with_claims_keep_what_they_reserved() -> None:
    d = _driver()
    pods = [d.with_claim(pod, asking(4)) for pod in _pods()]
    d.run(*pods)
    assert reserved_mbits(d) == reserved_mbits(_restarted(d, pods)) == BOTH


def test_claims_that_ask_for_no_device_reserve_none() -> None:
    nothing: Json = {"devices": {"requests": []}}
    d = _driver()
    pods = [d.with_claim(pod, nothing) for pod in _pods()]
    d.run(*pods)
    assert sorted(nodes_of(pods)) == ["n0", "n1"]
    assert reserved_mbits(d) == {}
    assert "has no effect on a pod without GPUs" in d.told(pods[0], Reason.ANNOTATION)[0]
    for pod in pods:
        pod.metadata.annotations |= {"topology.scheduler/reserved-bandwidth": "100000"}
    assert reserved_mbits(_restarted(d, pods)) == {}


def test_a_pod_whose_claim_is_still_to_be_made_is_not_said_to_have_no_devices() -> None:
    d = _driver()
    pods = _pods()
    for pod in pods:
        pod.spec.resource_claims = [PodResourceClaim("devices", resource_claim_template_name="template")]
    d.run(*pods)
    assert d.told(pods[0], Reason.ANNOTATION) == []
    d.run(*(d.with_claim(pod, asking(4)) for pod in pods))
    assert reserved_mbits(d) == BOTH


def test_pods_created_with_their_node_reserve_nothing_by_naming_claims() -> None:
    d, pods = _driver(), _pods()
    d.step()
    for number, pod in enumerate(pods):
        pod.spec.node_name = f"n{number}"
        pod.spec.resource_claims = [PodResourceClaim("devices", resource_claim_name="never-made")]
        pod.metadata.annotations |= {
            "topology.scheduler/reserved-bandwidth": "100000",
            "topology.scheduler/gang-id": "default/g",
        }
    d.apply(*pods)
    d.step()
    assert reserved_mbits(d) == {}
