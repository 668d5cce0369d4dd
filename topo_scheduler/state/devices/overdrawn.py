"""Whether claims have more of a device than there is of it, as two schedulers allocated parts of it at one moment."""

from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.devices.pools import DeviceId


def is_overdrawn(inventory: DeviceInventory, device: DeviceId) -> bool:
    """Return whether claims consume more than the capacity of a shared device, or of the counters that it consumes.

    What no slice publishes any more is not judged.
    """
    slices = inventory.slices_of_pool(device[:2])
    generation = max((item.generation for item in slices), default=0)
    published = {
        published_device.id: published_device
        for item in slices
        if item.generation == generation
        for published_device in item.devices
    }
    own = published.get(device)
    if own is None or not (own.shared or own.counters):
        return False
    used = inventory.use_of_pools([device[:2]])
    for name, amount in used.shares.get(device, {}).items():
        if own.shared and name in own.capacity and amount > own.capacity[name].total.value:
            return True
    if not own.counters:
        return False
    left = inventory.counters_of(own)
    for id_ in {*used.whole, *used.shares}:
        for counter, amount in published[id_].counters.items() if id_ in published else ():
            if counter in left:
                left[counter] -= amount
    return any(left.get(counter, 0) < 0 for counter in own.counters)
