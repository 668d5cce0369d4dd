"""What a node has devices for does not depend on the nodes that were tried before, however alike they are."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduling.device_driver import DRIVER, asking
from tests.scheduling.planning import Small, grid
from topo_scheduler.api.devices import DeviceClass, ResourceClaim, ResourceClaimSpec, ResourceSlice
from topo_scheduler.scheduling.devices.node_devices import NodeDevices, NodeFit
from topo_scheduler.scheduling.rules.filters import TermSelector
from topo_scheduler.state.devices.pod_claims import PodClaim, encoded

NODES = 4
Json = dict[str, Any]


@st.composite
def devices(draw: st.DrawFn) -> Json:
    attributes: Json = {
        "uuid": {"string": draw(st.sampled_from(["a", "b"]))},
        "type": {"string": draw(st.sampled_from(["gpu", "mig"]))},
        "numa": {"int": draw(st.integers(0, 1))},
    }
    item: Json = {"attributes": attributes, "capacity": {"memory": {"value": draw(st.sampled_from(["40Gi", "80Gi"]))}}}
    if draw(st.booleans()):
        item["consumesCounters"] = [{"counterSet": "board", "counters": {"slices": {"value": "1"}}}]
    if draw(st.integers(0, 4)) == 0:
        item["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    return item


@st.composite
def clusters(draw: st.DrawFn) -> list[list[Json]]:
    """The slices of each node; nodes often have what another one has, with other identities."""
    kinds = [draw(st.lists(devices(), min_size=1, max_size=3)) for _ in range(2)]
    nodes = []
    for _ in range(NODES):
        of_node = [dict(item, name=f"gpu-{number}") for number, item in enumerate(draw(st.sampled_from(kinds)))]
        uuid = draw(st.sampled_from(["a", "b"]))
        nodes.append([{**item, "attributes": {**item["attributes"], "uuid": {"string": uuid}}} for item in of_node])
    return nodes


def slices_of(node: str, items: list[Json]) -> list[ResourceSlice]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool}
    counters = [{"name": "board", "counters": {"slices": {"value": "2"}}}]
    parts = ({"devices": items}, {"sharedCounters": counters})
    return [
        msgspec.convert({"metadata": {"name": f"{node}-{number}"}, "spec": spec | part}, ResourceSlice)
        for number, part in enumerate(parts)
    ]


SPECS = [
    asking(1),
    asking(2),
    asking(1, selectors=[{"cel": {"expression": f"device.attributes['{DRIVER}'].type == 'mig'"}}]),
    asking(1, selectors=[{"cel": {"expression": f"device.attributes['{DRIVER}'].uuid == 'a'"}}]),
    asking(1, selectors=[{"cel": {"expression": f"device.attributes['{DRIVER}'].all(name, name != 'x')"}}]),
    {"devices": {**asking(2)["devices"], "constraints": [{"matchAttribute": f"{DRIVER}/numa"}]}},
    {"devices": {**asking(2)["devices"], "constraints": [{"matchAttribute": f"{DRIVER}/uuid"}]}},
]


@given(
    cluster=clusters(),
    spec=st.sampled_from(SPECS),
    used=st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, 2)), max_size=3, unique=True),
    order=st.permutations(range(NODES)),
)
def test_each_node_has_devices_for_as_many_pods_as_if_it_were_alone(
    cluster: list[list[Json]], spec: Json, used: list[tuple[int, int]], order: list[int]
) -> None:
    small = Small(grid(1, 1, NODES, gpus=0))
    nodes, inventory = small.world.nodes, small.world.inventory
    selector = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}
    inventory.put(
        inventory.classes, "gpu", msgspec.convert({"metadata": {"name": "gpu"}, "spec": selector}, DeviceClass)
    )
    names = [name for name in nodes.names if name]
    for name, items in zip(names, cluster, strict=True):
        for item in slices_of(name, items):
            inventory.put(inventory.slices, item.metadata.name, item)
    for number, (node, device) in enumerate(used):
        results = [{"request": "gpus", "driver": DRIVER, "pool": names[node], "device": f"gpu-{device}"}]
        status = {"allocation": {"devices": {"results": results}}}
        metadata = {"name": f"c{number}", "namespace": "default", "uid": f"uid-{number}"}
        held = msgspec.convert({"metadata": metadata, "spec": asking(1), "status": status}, ResourceClaim)
        inventory.put(inventory.claims, ("default", f"c{number}"), held)
    claims = (PodClaim(encoded(msgspec.convert(spec, ResourceClaimSpec))),)
    rows = [nodes.row_of[names[number]] for number in order]
    together = NodeDevices(nodes, inventory, TermSelector(nodes))
    fits: list[NodeFit] = [together.fit(claims, row) for row in rows]
    assert fits == [NodeDevices(nodes, inventory, TermSelector(nodes)).fit(claims, row) for row in rows]
