"""Where kube-scheduler's allocator breaks the API's documentation; a new version may mend it, and these tests tell."""

from collections.abc import Callable, Iterator

import pytest

from tests.differential.choices import Json

from .exhaustive import allocate
from .generator import Case
from .hardware import NODE, node
from .oracle import Oracle
from .validate import validate


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as running:
        yield running


def _slice(name: str, driver: str, pool: Json, selection: Json, **content: list[Json]) -> Json:
    return {"metadata": {"name": name}, "spec": {"driver": driver, "pool": pool, **selection, **content}}


def _case(slices: list[Json], requests: list[Json], constraints: list[Json]) -> Case:
    devices = {"requests": requests, "constraints": constraints}
    return {
        "node": node(),
        "slices": slices,
        "classes": [{"metadata": {"name": "any"}, "spec": {}}],
        "claims": [{"metadata": {"name": "claim", "namespace": "default"}, "spec": {"devices": devices}}],
        "allocated": [],
    }


def _request(count: int) -> Json:
    return {
        "name": "request",
        "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": count},
    }


def _distinct() -> Case:
    """Three devices with two values of an attribute, all of which a request wants to be distinct."""
    devices = [
        {"name": f"gpu-{index}", "attributes": {"numa": {"int": number}}} for index, number in enumerate((0, 1, 0))
    ]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    slices = [_slice("slice", "gpu.example.com", pool, {"nodeName": NODE}, devices=devices)]
    return _case(slices, [_request(3)], [{"distinctAttribute": "gpu.example.com/numa"}])


def _counters() -> Case:
    """Two drivers name their pools after the node; both have one counter, and two devices that consume it."""
    slices = []
    for driver in ("a.example.com", "b.example.com"):
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 2}
        counter_set = f"{driver[0]}-counters"
        counters = {"units": {"value": "1"}}
        devices: list[Json] = [
            {"name": f"device-{index}", "consumesCounters": [{"counterSet": counter_set, "counters": counters}]}
            for index in range(2)
        ]
        shared: list[Json] = [{"name": counter_set, "counters": counters}]
        slices += [
            _slice(f"{driver}-counters", driver, pool, {"nodeName": NODE}, sharedCounters=shared),
            _slice(f"{driver}-devices", driver, pool, {"nodeName": NODE}, devices=devices),
        ]
    return _case(slices, [_request(3)], [])


def _generations() -> Case:
    """The newer generation of a pool is for another node, and the older one for this."""
    slices = []
    for generation, name in ((1, NODE), (2, "elsewhere")):
        pool = {"name": "moved", "generation": generation, "resourceSliceCount": 1}
        slices.append(_slice(name, "gpu.example.com", pool, {"nodeName": name}, devices=[{"name": "gpu-0"}]))
    return _case(slices, [_request(1)], [])


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize("make", [_distinct, _counters, _generations])
def test_kube_scheduler_allocates_what_is_illegal(oracle: Oracle, make: Callable[[], Case]) -> None:
    case = make()
    allocations = oracle.answer(case).allocations
    assert allocations is not None
    assert validate(case, allocations)
    assert allocate(case) is None
