"""The devices of each node with their holders, for commands: from ResourceSlices and ResourceClaims."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from topo_scheduler.cli.device_listing import DEVICE_KINDS, ListedDevices
from topo_scheduler.kube.connection.resources import RESOURCE_CLAIMS
from topo_scheduler.kube.reading.storage import StoreSink, store_sinks
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.device_survey import (
    DeviceState,
    SurveyedDevice,
    all_problems,
    survey_pool,
)
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceInventory
from topo_scheduler.state.devices.pools import whole_pool


def device_sinks(world: World) -> dict[str, StoreSink[Any, Any]]:
    """Return the sinks of the devices of a world by plural name of the kind."""
    sinks = {sink.resource.plural: sink for sink in store_sinks(world.around.storage, world.inventory)}
    return {kind.plural: sinks[kind.plural] for kind in DEVICE_KINDS}


def add_devices(world: World, listed: ListedDevices) -> None:
    """Store what was listed."""
    for plural, sink in device_sinks(world).items():
        if plural in listed.objects:
            sink.applied(listed.objects[plural])
            sink.synced()
    world.settle_devices()


def device_problems(world: World) -> list[str]:
    """Return what is wrong with the devices of a cluster."""
    return [str(problem) for problem in all_problems(world.inventory)]


# ---------------------------------------------------------------- views


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that has a device. ``pods``: for which it is reserved, in its namespace."""

    namespace: str
    claim: str
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device of a node with its holders; ``holders`` is None if claims could not be read."""

    device: SurveyedDevice
    holders: tuple[Holder, ...] | None = ()

    @property
    def free(self) -> bool:
        """Whether it can be allocated now."""
        return self.device.state is DeviceState.FREE


def devices_by_node(world: World) -> dict[str, list[HeldDevice]]:
    """Return the devices of each node that has some, in the order of its pools and slices.

    Devices that several nodes can use, such as those behind a network, belong to no node.
    """
    inventory = world.inventory
    known = RESOURCE_CLAIMS.described not in inventory.unlisted
    by_node: dict[str, list[HeldDevice]] = {}
    for pool_id in sorted(inventory.pools()):
        pool = whole_pool(inventory.slices_of_pool(pool_id))
        if pool is None:
            continue
        for device in survey_pool(pool, inventory):
            if device.node:
                holders = tuple(_holder(inventory, key) for key in device.claims) if known else None
                by_node.setdefault(device.node, []).append(HeldDevice(device, holders))
    return by_node


def _holder(inventory: DeviceInventory, key: ClaimKey) -> Holder:
    claim = inventory.claims.get(key)
    pods = [entry.name for entry in claim.status.reserved_for if entry.resource == "pods"] if claim is not None else []
    return Holder(*key, tuple(sorted(pods)))


def physical(devices: Iterable[HeldDevice]) -> list[HeldDevice]:
    """Return the devices that are no partitions of others."""
    return [view for view in devices if not view.device.partition]


def notable_partitions(devices: Iterable[HeldDevice]) -> list[HeldDevice]:
    """Return the partitions that claims have, or that have taints: the others are only places."""
    return [view for view in devices if view.device.partition and (view.device.claims or view.device.taints)]


@dataclass(frozen=True, slots=True)
class PlaceCount:
    """Places for partitions of one profile on one board: all, allocated, and those where one fits now."""

    driver: str
    pool: str
    board: str
    profile: str
    total: int
    allocated: int
    free: int


def places(devices: Sequence[HeldDevice]) -> list[PlaceCount]:
    """Return the places for partitions by board and profile, in order of the devices."""
    by_key: dict[tuple[str, str, str, str], list[DeviceState]] = {}
    for view in devices:
        device = view.device
        if device.partition:
            by_key.setdefault((*device.id[:2], device.board, device.profile), []).append(device.state)
    return [
        PlaceCount(
            *key,
            total=len(states),
            allocated=states.count(DeviceState.ALLOCATED) + states.count(DeviceState.SHARED),
            free=states.count(DeviceState.FREE),
        )
        for key, states in by_key.items()
    ]
