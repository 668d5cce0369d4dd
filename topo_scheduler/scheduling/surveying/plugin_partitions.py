"""MIG instances that NVIDIA's device plugin offers as resources: how many are allocated and free, by profile.

Those of ResourceSlices are counted by `device_survey`. Nothing says where on which GPU the plugin's instances are, so
the fragmentation of these GPUs is not known.
"""

from collections import Counter
from typing import Final

import numpy as np

from topo_scheduler.api.gpu_needs import mig_resource_suffix
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.device_survey import DeviceState
from topo_scheduler.state.nodes.resources import GPU

PLUGIN: Final = "nvidia.com"
"""The driver label of these instances: the domain of their resources."""
_SHARED: Final = ".shared"
"""End of the resource names of replicas, where several pods get one instance."""


def plugin_partitions(world: World) -> dict[tuple[str, str, str], int]:
    """Return the number of instances by driver, profile and state, as `DeviceTotals.devices` has those of slices.

    Replicas of instances that several pods share count under the profile with the end ``.shared``.
    """
    nodes = world.nodes
    counts: Counter[tuple[str, str, str]] = Counter()
    replicas = [number for number, gpus in world.hardware.kinds.items() if gpus.shared_by_time]
    for number, offer in enumerate(nodes.gpus.mig_offers):
        rows = np.flatnonzero(nodes.gpus.mig == number)
        single = offer.strategy == "single"
        for profile in offer.profiles:
            column = GPU if single else nodes.resources.find(f"nvidia.com/mig-{mig_resource_suffix(profile)}")
            if not 0 <= column < nodes.allocatable.shape[1]:
                continue
            backed = [row for row, columns in nodes.backed_columns.items() if column in columns]
            of_plugin = rows[~np.isin(rows, backed)]
            is_shared = np.isin(nodes.gpus.kind[of_plugin], replicas) & single
            for named, chosen in ((profile, of_plugin[~is_shared]), (profile + _SHARED, of_plugin[is_shared])):
                if len(chosen):
                    offered = nodes.allocatable[chosen, column]
                    allocated = np.minimum(offered, nodes.requested[chosen, column])
                    counts[PLUGIN, named, DeviceState.ALLOCATED.value] += int(allocated.sum())
                    counts[PLUGIN, named, DeviceState.FREE.value] += int((offered - allocated).sum())
    return dict(counts)
