"""Bad input of drivers: the pod has a reason, and the other devices of the node and of other nodes are served on."""

from typing import Any

import msgspec
import pytest

from tests.helpers import make_node
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking, nodes_of, slice_of
from topo_scheduler.api.devices import DeviceClass, ResourceSlice

OTHER = "nic.example.com"
Json = dict[str, Any]


def bad_slices(kind: str) -> list[ResourceSlice]:
    """Slices of pool n1 with something wrong."""
    match kind:
        case "unreadable":
            return [slice_of("n1", capacity={"memory": {"value": "lots"}})]
        case "two generations":
            newer = slice_of("n1", 4, generation=2)
            newer.metadata.name = "n1-newer"
            newer.spec.pool.resource_slice_count = 2
            return [newer]
        case "named twice":
            twice = slice_of("n1", 1)
            twice.spec.devices *= 2
            return [twice]
    counters = [{"counterSet": "none", "counters": {"slots": {"value": "1"}}}]
    return [slice_of("n1", consumesCounters=counters)]


REASONS = {
    "unreadable": "invalid: spec.devices[0].capacity[memory].value: 'lots' is not a quantity",
    "two generations": "being updated",
    "named twice": "invalid: device gpu-0 exists twice",
    "counters": "invalid: device gpu-0 consumes counters of set none, which does not exist",
}


def two_drivers() -> DeviceDriver:
    """Two nodes with GPUs, and a NIC of another driver each."""
    d = DeviceDriver([make_node(name, "s1/l1", gpus=0) for name in ("n1", "n2")])
    selector = {"selectors": [{"cel": {"expression": f"device.driver == '{OTHER}'"}}]}
    d.classes(msgspec.convert({"metadata": {"name": "nic"}, "spec": selector}, DeviceClass))
    for name in ("n1", "n2"):
        nics = slice_of(name, 1)
        nics.metadata.name = f"{name}-nics"
        nics.spec.driver = OTHER
        d.slices(nics)
    return d


@pytest.mark.parametrize("kind", REASONS)
def test_a_bad_pool_is_a_reason_and_everything_else_is_served(kind: str) -> None:
    d = two_drivers()
    d.slices(*bad_slices(kind))
    pods = [d.pod(f"p{number}", asking(8)) for number in range(2)]
    d.run(*pods)
    assert nodes_of(pods) == ["n2"]
    said = " ".join(d.told(pods[0]) + d.told(pods[1]))
    assert f"1 cannot allocate all claims: a pool of driver {DRIVER} is {REASONS[kind]}" in said
    nics = [d.pod(f"nic-{number}", asking(1, deviceClassName="nic")) for number in range(2)]
    d.run(*nics)
    assert sorted(nodes_of(nics)) == ["n1", "n2"], "the node's other devices"


@pytest.mark.parametrize("kind", REASONS)
def test_a_pool_that_is_mended_is_used_again(kind: str) -> None:
    d = two_drivers()
    d.slices(*bad_slices(kind))
    pods = [d.pod(f"p{number}", asking(8)) for number in range(2)]
    d.run(*pods)
    if kind == "two generations":
        d.drop_slice("n1-newer")
    d.slices(slice_of("n1", generation=3))
    d.settle(60)
    assert sorted(nodes_of(pods)) == ["n1", "n2"]


def test_a_driver_that_vanishes_keeps_its_pods_and_gets_no_new_ones_until_it_is_back() -> None:
    d = two_drivers()
    first = d.pod("first", asking(8))
    d.run(first)
    node = first.spec.node_name
    d.drop_slice(f"{node}-gpus")
    d.settle(60)
    assert len(d.allocated()) == 8, "running pods keep their devices"
    pods = [d.pod(f"p{number}", asking(8)) for number in range(2)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 1 and node not in nodes_of(pods)
    d.slices(slice_of(node))
    d.settle(60)
    assert len(nodes_of(pods)) == 1, "its devices are still in use"
    assert set(d.allocated().values()) == {1}


UNSUPPORTED: dict[str, Json] = {
    "attributes[links], a list (feature gate DRAListTypeAttributes)": {
        "attributes": {"links": {"strings": ["a", "b"]}}
    },
    "nodeAllocatableResourceMappings (feature gate DRANodeAllocatableResources)": {
        "nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": "1"}}
    },
}


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_devices_with_a_field_that_is_not_supported_are_the_reason(field: str) -> None:
    d = two_drivers()
    d.slices(*(slice_of(name, 2, **UNSUPPORTED[field]) for name in ("n1", "n2")))
    pod = d.pod("p", asking(1))
    d.run(pod)
    (said,) = d.told(pod)
    reason = f"request gpus: devices that match have {field}, which is not supported"
    assert f"2 cannot allocate all claims: {reason}. " in said
    nic = d.pod("nic", asking(1, deviceClassName="nic"))
    d.run(nic)
    assert nic.spec.node_name, "the node's other devices"


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_some_devices_with_a_field_that_is_not_supported_are_the_reason_if_the_others_are_too_few(field: str) -> None:
    d = two_drivers()
    mixed = slice_of("n1", 2)
    mixed.spec.devices = [*mixed.spec.devices, *slice_of("n1", 3, **UNSUPPORTED[field]).spec.devices[2:]]
    d.slices(mixed, slice_of("n2", 2))
    three, two = d.pod("three", asking(3)), d.pod("two", asking(2))
    d.run(three, two)
    reason = f"request gpus: devices that match have {field}, which is not supported"
    assert f"1 cannot allocate all claims, 1 cannot allocate all claims: {reason}. " in d.told(three)[0]
    assert two.spec.node_name


def test_a_node_with_unsupported_devices_only_and_one_without_devices_have_different_reasons() -> None:
    d = DeviceDriver([make_node(name, "s1/l1", gpus=0) for name in ("n1", "n2")])
    d.drop_slice("n2-gpus")
    d.slices(slice_of("n1", 2, **next(iter(UNSUPPORTED.values()))))
    pod = d.pod("p", asking(1, selectors=[{"cel": {"expression": f"device.attributes['{DRIVER}'].links == 'a'"}}]))
    d.run(pod)
    said = d.told(pod)[0]
    assert "1 cannot allocate all claims: no driver publishes devices for the node" in said
    assert "1 cannot allocate all claims: request gpus: devices that match have attributes[links], a list" in said
