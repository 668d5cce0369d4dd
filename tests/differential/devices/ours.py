"""Our allocator on a case of the comparison: objects as JSON in, AllocationResults as JSON out."""

from typing import Any

import msgspec
import numpy as np

from tests.differential.choices import Json
from topo_scheduler.api.objects import Node
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.kube.reading.storage import store_sinks
from topo_scheduler.scheduling.devices.device_choice import DeviceChoiceError, PlacedPod, choose_devices
from topo_scheduler.scheduling.rules.device_claims import device_limits
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.pod_claims import PodClaim, encoded
from topo_scheduler.state.pods.classes import PodClass

from .generator import Case

_KEYS = {"deviceclasses": ("classes",), "resourceslices": ("slices",), "resourceclaims": ("claims", "allocated")}


def allocate(case: Case) -> list[Json] | None:
    """Return what the claims of a pod get on the node of a case, None if the node has too few devices.

    Raises:
        DeviceChoiceError: the claims can't be allocated for another reason.
    """
    world = World(SchedulerConfig())
    world.put_node(msgspec.convert(case["node"], Node), 0.0)
    for sink in store_sinks(world.around.storage, world.inventory):
        for key in _KEYS.get(sink.resource.plural, ()):
            items = case[key] if key == "classes" else _apart(case[key])
            sink.applied([msgspec.convert(_named(item), sink.resource.type) for item in items])
        sink.synced()
    world.settle_devices()
    keys = tuple((item["metadata"].get("namespace", ""), item["metadata"]["name"]) for item in _apart(case["claims"]))
    claims = tuple(PodClaim(encoded(world.inventory.claims[key].spec)) for key in keys)
    assert world.around.devices is not None
    row = world.nodes.row_of[case["node"]["metadata"]["name"]]
    fit = world.around.devices.fit(claims, row)
    limit = device_limits(world.around, PodClass((), claims=claims), np.array([row], np.int64), empty=False)
    assert limit[0] == fit.now
    try:
        (choices,) = choose_devices(world.around.devices, [PlacedPod(claims, keys, row, world.nodes.names[row])])
    except DeviceChoiceError as error:
        assert not fit.now
        if error.__cause__ is not None:
            raise
        return None  # too few devices, and nothing else
    return [_plain(choice.allocation) for choice in choices]


def _apart(items: list[Json]) -> list[Json]:
    """Give objects of one name, which no API server has, names of their own in the same order."""
    return [
        {**item, "metadata": {**item["metadata"], "name": f"{item['metadata'].get('name', '')}-{number:04}"}}
        for number, item in enumerate(items)
    ]


def _named(item: Json) -> Json:
    metadata: dict[str, Any] = item["metadata"]
    return {**item, "metadata": {**metadata, "uid": metadata.get("uid") or metadata["name"]}}


def _plain(value: object) -> Json:
    plain: Json = msgspec.json.decode(msgspec.json.encode(value))
    return plain
