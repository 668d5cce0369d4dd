"""A cluster in memory whose nodes have devices; a daemon that is started again finds the claims as they are."""

from dataclasses import dataclass, field

from tests.recovery.world import World, copies_of
from tests.scheduling.device_driver import DeviceDriver
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.devices import ResourceClaim


@dataclass
class DeviceWorld(World):
    """`World` with claims."""

    d: DeviceDriver = field(init=False)
    whole_gpus: int = 0
    """GPUs of each node that claims get whole."""

    def _driver(self, config: Configuration) -> DeviceDriver:
        known: list[ResourceClaim] = list(self.d.claims.values()) if hasattr(self, "d") else []
        d = DeviceDriver(copies_of(self.node_objects.values()), self.whole_gpus, config=config)
        self._publish(d)
        for claim in known:
            d.put_claim(claim)
        return d

    def _publish(self, d: DeviceDriver) -> None:
        """Publish further devices."""
