"""Pods that hold a tainted device by their extended resources are evicted, carefully."""

from typing import Any

import msgspec
import pytest

from tests.helpers import make_node, make_pod, timestamp
from tests.scheduling.device_driver import DRIVER, asking, slice_of
from tests.scheduling.driver import fabric
from tests.scheduling.extended_driver import ExtendedDriver, driver
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.devices import DeviceTaint, DeviceToleration
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import EvictTainted, Instruction

DEBOUNCE = 10


def taint(d: ExtendedDriver, node: str, *, device: int = 0, effect: str = "NoExecute", **taint: Any) -> None:
    """The driver taints a GPU of a node."""
    item = slice_of(node)
    item.spec.devices[device].taints = [msgspec.convert({"key": "xid", "effect": effect, **taint}, DeviceTaint)]
    d.slices(item)


def evicted(said: list[Instruction]) -> list[str]:
    return [instruction.pod.name for instruction in said if isinstance(instruction, EvictTainted)]


def placed(*names: str, nodes: int = 4, gpus: int = 8, namespace: str = "default") -> tuple[ExtendedDriver, list[Pod]]:
    """Return a driver on which pods run."""
    d = driver({"s1/l1": nodes})
    pods = [make_pod(name, gpus=gpus, namespace=namespace) for name in names]
    d.run(*pods)
    assert all(pod.spec.node_name for pod in pods)
    return d, pods


def test_only_the_pod_on_the_device_is_evicted_and_only_once() -> None:
    d, (pod, _) = placed("p", "q")
    taint(d, pod.spec.node_name)
    assert evicted(d.step()) == []
    assert evicted(d.step(DEBOUNCE)) == ["p"]
    assert d.told(pod, Reason.DEVICE_TAINTED) == [
        f"device {DRIVER}/{pod.spec.node_name}/gpu-0 has the taint xid:NoExecute; the pod is evicted"
    ]
    assert evicted(d.step(1)) == []
    assert evicted(d.step(60)) == ["p"], "it is still there, as after a refusal by a disruption budget"
    d.delete(pod)
    assert evicted(d.step(120)) == []


def test_a_taint_that_goes_in_time_evicts_nothing() -> None:
    d, (pod,) = placed("p")
    taint(d, pod.spec.node_name)
    d.step(1)
    d.slices(slice_of(pod.spec.node_name))
    assert evicted(d.step(DEBOUNCE)) == []
    taint(d, pod.spec.node_name)
    d.step()
    assert evicted(d.step(DEBOUNCE - 1)) == [], "it counts from its return"


@pytest.mark.parametrize("effect", ["NoSchedule", "None"])
def test_other_effects_evict_nothing(effect: str) -> None:
    d, (pod,) = placed("p")
    taint(d, pod.spec.node_name, effect=effect)
    d.step()
    assert evicted(d.step(DEBOUNCE)) == []


def test_a_pod_on_other_devices_of_the_node_stays() -> None:
    d, (pod,) = placed("p", gpus=2)
    taint(d, pod.spec.node_name, device=7)
    d.step()
    assert evicted(d.step(DEBOUNCE)) == []


def test_a_pod_with_claims_of_its_own_is_left_to_kubernetes() -> None:
    d = driver({"s1/l1": 4})
    pod = d.pod("p", asking(8))
    d.run(pod)
    taint(d, pod.spec.node_name)
    d.step()
    assert evicted(d.step(DEBOUNCE)) == []


def test_a_toleration_holds_for_its_seconds_from_when_the_taint_was_added() -> None:
    d, (pod,) = placed("p")
    (claim,) = d.claims.values()
    toleration = DeviceToleration(key="xid", operator="Exists", toleration_seconds=100)
    assert claim.status.allocation is not None
    for result in claim.status.allocation.devices.results:
        result.tolerations = [toleration]
    d.put_claim(claim)
    taint(d, pod.spec.node_name, timeAdded=timestamp(d.now))
    d.step()
    assert evicted(d.step(90)) == []
    assert evicted(d.step(11)) == ["p"]


def test_a_driver_that_taints_most_pools_is_not_believed() -> None:
    d, pods = placed("p", "q", "r", "s")
    for pod in pods[:3]:
        taint(d, pod.spec.node_name)
    d.step()
    said = d.step(DEBOUNCE)
    assert evicted(said) == []
    d.step(3600)
    warnings = [text for text in d.complaints() if "pools of driver" in text]
    assert len(warnings) == 1
    for pod in pods[1:3]:
        d.slices(slice_of(pod.spec.node_name))
    assert evicted(d.step(1)) == ["p"], "one of four may be broken"


def tainted(limit: str, *namespaces: str) -> tuple[ExtendedDriver, list[Pod]]:
    """Return a driver with a limit of 3, on whose tainted nodes pods of these namespaces run."""
    count = len(namespaces)
    nodes = [*fabric({"s1/l1": count}, gpus=0), *(make_node(f"idle-{n}", "s1/l1", gpus=0) for n in range(count))]
    d = ExtendedDriver(nodes)
    pods = [make_pod(f"p{number}", gpus=8, namespace=namespace) for number, namespace in enumerate(namespaces)]
    d.run(*pods)
    topology = d.engine.config.topology
    recovery = topology.spec.recovery
    limits = recovery.limits.model_copy(update={limit: 3})
    spec = topology.spec.model_copy(update={"recovery": recovery.model_copy(update={"limits": limits})})
    d.engine.configure(Configuration(d.engine.config.scheduler, topology.model_copy(update={"spec": spec})))
    for pod in pods:
        taint(d, pod.spec.node_name)
    d.step()
    return d, pods


def test_evictions_keep_to_the_limits_of_recovery() -> None:
    d, pods = tainted("at_once", *8 * ["default"])
    first = evicted(d.step(DEBOUNCE))
    assert len(first) == 3
    assert evicted(d.step(5)) == []
    d.delete(*(pod for pod in pods if pod.metadata.name in first))
    assert len(evicted(d.step(1))) == 3


@pytest.mark.parametrize("limit", ["at_once", "per_hour"])
def test_pods_that_stay_keep_none_of_another_namespace_from_being_evicted(limit: str) -> None:
    """A budget may protect them for ever."""
    d, _ = tainted(limit, *6 * ["default"], "other")
    first = evicted(d.step(DEBOUNCE))
    assert "p6" in first
    assert len(first) == 4, "the limit, and the share of the other namespace"


def test_a_slice_of_an_older_generation_does_not_count() -> None:
    d, (pod,) = placed("p")
    newer = slice_of(pod.spec.node_name, generation=2)
    newer.metadata.name = "newer"
    d.slices(newer)
    taint(d, pod.spec.node_name)
    d.step()
    assert evicted(d.step(DEBOUNCE)) == []
