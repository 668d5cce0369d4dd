"""An engine on nodes whose GPUs are in ResourceSlices, for a DeviceClass that backs an extended resource."""

import msgspec

from tests.helpers import NVIDIA
from tests.scheduling.device_driver import DRIVER, DeviceDriver
from tests.scheduling.driver import fabric
from topo_scheduler.api.devices import DeviceClass
from topo_scheduler.api.objects import Node
from topo_scheduler.state.nodes.resources import GPU


def device_class(name: str = "gpu", resource: str = NVIDIA, created: str | None = None) -> DeviceClass:
    spec = {
        "selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}],
        "extendedResourceName": resource,
    }
    return msgspec.convert({"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}, DeviceClass)


class ExtendedDriver(DeviceDriver):
    """An engine on nodes of which those without GPUs of their own have a slice, for a class that backs GPUs."""

    def __init__(self, nodes: list[Node], gpus: int = 8) -> None:
        super().__init__(nodes, gpus)
        for node in nodes:
            if NVIDIA in node.status.allocatable:
                self.drop_slice(f"{node.metadata.name}-gpus")
        self.classes(device_class())

    def free_gpus(self, node: str) -> int:
        table = self.engine.world.nodes
        row = table.row_of[node]
        return int(table.allocatable[row, GPU] - table.requested[row, GPU])


def driver(leaves: dict[str, int] | None = None, gpus: int = 8) -> ExtendedDriver:
    return ExtendedDriver(fabric(leaves or {"s1/l1": 2}, gpus=0), gpus)
