"""Slices have one shape exactly if they differ only in what identifies their devices."""

from typing import Any

import msgspec
import pytest

from topo_scheduler.api.devices import ResourceSlice
from topo_scheduler.state.devices.pools import Slice, gather_pools
from topo_scheduler.state.devices.slice_reader import SharedParts, read_slice

DRIVER = "gpu.example.com"


def device(number: int, **changed: Any) -> dict[str, Any]:
    attributes = {
        "uuid": {"string": f"GPU-{number}"},
        "pciBusID": {"string": f"0000:{number}"},
        "type": {"string": "gpu"},
        "driverVersion": {"version": "1.2.3"},
    }
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}, **changed}


def slice_of(node: str, *devices: dict[str, Any], **spec: Any) -> ResourceSlice:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    body = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(devices), **spec}
    return msgspec.convert({"metadata": {"name": f"{node}-gpu"}, "spec": body}, ResourceSlice)


def shape(parts: SharedParts, *devices: dict[str, Any], **spec: Any) -> int:
    return read_slice(slice_of("n", *devices, **spec), parts).shape


def test_identities_names_and_nodes_do_not_matter() -> None:
    parts = SharedParts()
    first = read_slice(slice_of("n1", device(0), device(1)), parts)
    second = read_slice(slice_of("n2", device(7), device(8)), parts)
    assert first.shape == second.shape != 0


@pytest.mark.parametrize(
    "changed",
    [
        {"attributes": {"type": {"string": "mig"}}},
        {"attributes": {"type": {"string": "gpu"}, "uuid": {"version": "1.0.0"}}},
        {"capacity": {"memory": {"value": "40Gi"}}},
        {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        {"allowMultipleAllocations": True},
        {"bindingConditions": ["ready"]},
        {"consumesCounters": [{"counterSet": "s", "counters": {"memory": {"value": "1"}}}]},
    ],
)
def test_everything_else_does(changed: dict[str, Any]) -> None:
    parts = SharedParts()
    assert shape(parts, device(0)) != shape(parts, device(0, **changed))
    assert shape(parts, device(0)) != shape(parts, device(0), device(1))
    assert shape(parts, device(0)) != shape(parts, device(0), driver="other.example.com")


def test_no_number_is_given_twice_when_parts_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_scheduler.state.devices.slice_reader.MAX_SHARED_PARTS", 4)
    parts = SharedParts()
    numbers = [shape(parts, device(0, capacity={"memory": {"value": str(size)}})) for size in range(20)]
    assert len(set(numbers)) == 20


def pools_of(*slices: Slice) -> list[tuple[int, ...]]:
    return [pool.shapes for pool in gather_pools(slices, lambda _: slices, lambda scope: scope.node in ("", "n"))]


def test_only_pools_of_one_node_have_shapes() -> None:
    parts = SharedParts()
    own = read_slice(slice_of("n", device(0)), parts)
    assert pools_of(own) == [(own.shape,)]
    everywhere = read_slice(slice_of("n", device(0), nodeName="", allNodes=True), parts)
    assert [pool.shapes for pool in gather_pools([everywhere], lambda _: [everywhere], lambda _: True)] == [()]
    twice = read_slice(slice_of("n", device(0), device(0)), parts)
    assert pools_of(twice) == [()], "nothing of it may be allocated"
