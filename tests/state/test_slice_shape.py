"""Slices have one shape exactly if they differ only in what identifies their devices."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.devices import CounterSet, ResourceSlice
from topo_scheduler.state.devices.pool_layout import layout_of
from topo_scheduler.state.devices.pools import NodeScope, PoolId, PoolLayout, Slice, gather_pools, layout_key
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


@st.composite
def pools_of_nodes(draw: st.DrawFn) -> list[list[ResourceSlice]]:
    """The slices of the pools of some nodes. Many are equal but for what identifies them, and some contradict."""
    sets = draw(st.lists(st.sampled_from(["a", "b"]), max_size=2))
    kinds: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
        [
            {},
            {"consumesCounters": [{"counterSet": "a", "counters": {"memory": {"value": "1"}}}]},
            {"consumesCounters": [{"counterSet": "b", "counters": {"memory": {"value": "1"}}}]},
            {"attributes": {"links": {"strings": ["a"]}}},
            {"bindingConditions": ["ready"]},
        ]
    )
    names = st.lists(st.tuples(st.integers(0, 3), kinds), max_size=4)
    variants = draw(st.lists(names, min_size=1, max_size=3))
    nodes = []
    for node in range(draw(st.integers(2, 5))):
        name = f"n{node}"
        devices = [device(number, **kind) for number, kind in draw(st.sampled_from(variants))]
        counters = [{"name": set_, "counters": {"memory": {"value": "2"}}} for set_ in sets]
        items = [slice_of(draw(st.sampled_from([name, name, name, "other"])), *devices), slice_of(name)]
        for number, item in enumerate(items):
            item.metadata.name = f"{name}-{number}"
            item.spec.pool.name, item.spec.pool.resource_slice_count = name, draw(st.sampled_from([2, 2, 2, 3]))
        items[1].spec.shared_counters = msgspec.convert(counters, list[CounterSet])
        nodes.append(items[: 1 + bool(counters)])
    return nodes


@given(pools_of_nodes())
def test_a_pool_is_the_same_whichever_layouts_are_known(nodes: list[list[ResourceSlice]]) -> None:
    parts, layouts = SharedParts(), dict[object, PoolLayout]()
    for number, items in enumerate(nodes):
        slices = [read_slice(item, parts) for item in items]

        def all_of(_: PoolId, of_pool: Sequence[Slice] = slices) -> Sequence[Slice]:
            return of_pool

        def matches(scope: NodeScope, node: str = f"n{number}") -> bool:
            return scope.node == node

        expected, pools = gather_pools(slices, all_of, matches), gather_pools(slices, all_of, matches, layouts)
        for pool, fresh in zip(pools, expected, strict=True):
            for name in ("id", "devices", "others", "unsupported", "counters", "incomplete", "invalid", "shapes"):
                assert getattr(pool, name) == getattr(fresh, name)
            if fresh.shapes:
                layouts.setdefault(layout_key(fresh.shapes, fresh.devices), layout_of(fresh))


def test_devices_of_one_name_are_noticed_whichever_layouts_are_known() -> None:
    parts = SharedParts()
    good, bad = (read_slice(slice_of(node, device(0), device(number)), parts) for node, number in (("a", 1), ("b", 0)))
    assert good.shape == bad.shape
    (valid,) = gather_pools([good], lambda _: [good], lambda scope: scope.node == "a")
    layouts = {layout_key(valid.shapes, valid.devices): layout_of(valid)}
    (pool,) = gather_pools([bad], lambda _: [bad], lambda scope: scope.node == "b", layouts)
    assert pool.invalid == "device gpu-0 exists twice"
