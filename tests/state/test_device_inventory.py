"""What the inventory keeps of ResourceSlices: parts that nodes have alike once, and nothing as it was written."""

from typing import Any

import msgspec

from topo_scheduler.api.devices import ResourceSlice, ResourceSliceSpec
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.devices.pools import PublishedDevice


def slice_of(node: str, generation: int = 1, **device: Any) -> ResourceSlice:
    devices = [
        {
            "name": f"mig-{number}",
            "attributes": {"parent": {"string": node}, "profile": {"string": "1g.10gb"}},
            "capacity": {"memory": {"value": "10Gi"}},
            "consumesCounters": [{"counterSet": "gpu", "counters": {f"slice-{number}": {"value": "1"}}}],
            **device,
        }
        for number in range(2)
    ]
    metadata = {"name": node, "uid": f"uid-{node}", "generation": generation}
    spec = {"driver": "d", "nodeName": node, "pool": {"name": node}, "devices": devices}
    return msgspec.convert({"metadata": metadata, "spec": spec}, ResourceSlice)


def kept(*slices: ResourceSlice) -> DeviceInventory:
    inventory = DeviceInventory()
    for item in slices:
        inventory.put(inventory.slices, item.metadata.name, item)
    return inventory


def devices_of(inventory: DeviceInventory, node: str) -> tuple[PublishedDevice, ...]:
    (item,) = inventory.slices_of(node)
    return item.devices


def test_nodes_that_are_alike_share_parts_of_their_devices() -> None:
    inventory = kept(slice_of("a"), slice_of("b"))
    (first, second), (other, _) = devices_of(inventory, "a"), devices_of(inventory, "b")
    assert first.attributes is second.attributes
    assert first.attributes["d/profile"] is other.attributes["d/profile"]
    assert first.attributes["d/parent"] == ("string", "a")
    assert other.attributes["d/parent"] == ("string", "b")
    assert first.capacity is second.capacity is other.capacity
    assert first.counters is other.counters
    assert first.counters != second.counters
    assert all(item.spec == ResourceSliceSpec() for item in inventory.slices.values())


def test_a_slice_is_read_again_only_if_its_specification_changed() -> None:
    inventory = kept(slice_of("a"))
    version = inventory.slices_version("a")
    inventory.put(inventory.slices, "a", slice_of("a"))
    assert inventory.slices_version("a") == version
    inventory.put(inventory.slices, "a", slice_of("a", 2, capacity={}))
    assert inventory.slices_version("a") != version
    assert devices_of(inventory, "a")[0].capacity == {}
