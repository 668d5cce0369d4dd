"""Slices in the form of NVIDIA's DRA driver, with the values of a real H100: how they are read."""

import json
from itertools import chain
from pathlib import Path

import pytest

from tests.devices.driver_slices import DRIVER, KINDS, UUID, Json, classes, pool_of, read_slices, recorded
from topo_scheduler.simulation.demo_devices import mig_slices, whole_slices
from topo_scheduler.state.devices.device_survey import DeviceState, survey_pool
from topo_scheduler.state.devices.gpus_of_devices import gpus_of_device
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.devices.mig import MigGeometry, geometry_of
from topo_scheduler.state.devices.pool_problems import pool_problems, unreadable_field
from topo_scheduler.state.devices.pools import Pool, PublishedDevice, whole_pool
from topo_scheduler.state.devices.slice_reader import read_slice

NVML = json.loads((Path(__file__).with_name("recorded") / "h100-80gb-nvml.json").read_text())
GPU = {name.removeprefix("nvmlDeviceGet"): answer.get("value") for name, answer in NVML["gpus"][0].items()}
PROFILES = {
    answer["value"]["name"].removeprefix("MIG "): answer["value"]
    for answer in NVML["gpus"][0]["nvmlDeviceGetGpuInstanceProfileInfo"].values()
    if "value" in answer
}


def _pool(mode: str, gpus: int = 1) -> Pool:
    pool = whole_pool([read_slice(item) for item in read_slices(pool_of("n1", mode, gpus))])
    assert pool is not None
    return pool


def _geometry() -> MigGeometry:
    geometry = geometry_of(GPU["Name"], GPU["MemoryInfo"]["total"])
    assert geometry is not None
    return geometry


def _instances(pool: Pool) -> list[PublishedDevice]:
    return [device for device in pool.devices if device.attributes[f"{DRIVER}/type"][1] == "mig"]


def _profile(device: PublishedDevice) -> str:
    return str(device.attributes[f"{DRIVER}/profile"][1])


def _slots(device: PublishedDevice) -> tuple[int, ...]:
    return tuple(sorted(int(name[13:]) for _, name in device.counters if name.startswith("memory-slice-")))


# ---------------------------------------------------------------- without problems


@pytest.mark.parametrize(("mode", "slices", "devices"), [("whole", 1, 8), ("dynamicMIG", 9, 8 * 26)])
def test_a_pool_is_read_whole_and_without_a_problem(mode: str, slices: int, devices: int) -> None:
    items = read_slices(pool_of("n1", mode, gpus=8))
    assert len(items) == slices
    assert [unreadable_field(item.spec) for item in items] == slices * [""]
    assert pool_problems([read_slice(item) for item in items]) == []
    pool = _pool(mode, 8)
    assert pool.usable and not pool.problem
    assert len(pool.devices) == devices


def test_slices_stay_within_what_kubernetes_permits() -> None:
    counters, *boards = recorded("dynamicMIG")
    assert max(len(entry["counters"]) for entry in counters["sharedCounters"]) <= 32
    devices = list(chain.from_iterable(board["devices"] for board in boards))
    assert len(devices) <= 64, "of a slice whose devices consume counters"
    assert all(len(device["attributes"]) + len(device["capacity"]) <= 32 for device in devices)


# ---------------------------------------------------------------- what NVML says of the same GPU


def test_attributes_and_memory_are_what_nvml_says_of_the_gpu() -> None:
    (device,) = _pool("whole").devices
    attributes = {name.removeprefix(f"{DRIVER}/"): value for name, (_, value) in device.attributes.items()}
    assert attributes == {
        "type": "gpu",
        "uuid": UUID,
        "productName": GPU["Name"],
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0.0",
        "cudaDriverVersion": "13.0.0",
        "driverVersion": "580.159.4",
        "addressingMode": "None",
        "resource.kubernetes.io/pciBusID": GPU["PciInfo"]["busIdLegacy"],
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
    }
    assert (
        device.capacity[f"{DRIVER}/memory" if f"{DRIVER}/memory" in device.capacity else "memory"].total.value
        == (GPU["MemoryInfo"]["total"])
    )


def test_each_profile_consumes_what_nvml_says_of_it() -> None:
    pool = _pool("dynamicMIG")
    kinds = {
        "multiprocessors": "multiprocessorCount",
        "copy-engines": "copyEngineCount",
        "decoders": "decoderCount",
        "encoders": "encoderCount",
        "jpeg-engines": "jpegCount",
        "ofa-engines": "ofaCount",
    }
    for device in _instances(pool):
        about = PROFILES[_profile(device)]
        consumed = {name: amount for (_, name), amount in device.counters.items() if "-slice-" not in name}
        assert consumed == {
            **{counter: about[field] for counter, field in kinds.items()},
            "memory": about["memorySizeMB"] << 20,
        }
    largest = {field: max(about[field] for about in PROFILES.values()) for field in kinds.values()}
    totals = {name: amount for (_, name), amount in pool.counters.items()}
    assert {counter: totals[counter] for counter in kinds} == {name: largest[field] for name, field in kinds.items()}


# ---------------------------------------------------------------- geometry


def test_places_are_those_of_the_geometry_table() -> None:
    places: dict[str, dict[int, int]] = {}
    for device in _instances(_pool("dynamicMIG")):
        slots = _slots(device)
        assert slots == tuple(range(slots[0], slots[-1] + 1))
        places.setdefault(_profile(device), {})[slots[0]] = len(slots)
    table = {p.name: dict.fromkeys(p.starts, p.memory_slices) for p in _geometry().profiles}
    assert places == table


def test_what_fits_by_counters_fits_by_the_geometry_table_and_the_other_way_around() -> None:
    """All sets of instances, built up in the order of their slots."""
    pool, geometry = _pool("dynamicMIG"), _geometry()
    instances = sorted(_instances(pool), key=lambda device: (_slots(device), device.id))
    profiles = {profile.name: profile for profile in geometry.profiles}
    seen = 0
    todo: list[tuple[int, tuple[PublishedDevice, ...]]] = [(0, ())]
    while todo:
        begin, chosen = todo.pop()
        seen += 1
        for index in range(begin, len(instances)):
            wanted = (*chosen, instances[index])
            by_counters = all(
                sum(device.counters.get(counter, 0) for device in wanted) <= total
                for counter, total in pool.counters.items()
            )
            slots = list(chain.from_iterable(map(_slots, wanted)))
            names = [_profile(device) for device in wanted]
            by_table = (
                len(slots) == len(set(slots))
                and sum(profiles[name].compute_slices for name in names) <= geometry.compute_slices
                and all(names.count(name) <= profiles[name].max_count for name in names)
            )
            assert by_counters == by_table, names
            if by_counters:
                todo.append((index + 1, wanted))
    assert seen > 723, "as many without media extensions"


def test_a_gpu_in_parts_cannot_be_given_whole() -> None:
    pool = _pool("dynamicMIG", 2)
    inventory = DeviceInventory()
    states = {device.id[2]: device for device in pool.devices}
    assert pool.counters.keys() >= states["gpu-0"].counters.keys()
    assert {entry.state for entry in survey_pool(pool, inventory)} == {DeviceState.FREE}
    assert states["gpu-0"].counter_sets == {"gpu-0-counter-set"}
    assert dict(states["gpu-1"].counters) == {key: v for key, v in pool.counters.items() if key[0].startswith("gpu-1-")}


# ---------------------------------------------------------------- quotas


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("1g.10gb", 143),
        ("1g.10gb+me", 143),
        ("1g.20gb", 250),
        ("2g.20gb", 286),
        ("3g.40gb", 500),
        ("4g.40gb", 572),
        ("7g.80gb", 1000),
    ],
)
def test_an_instance_counts_toward_quotas_by_its_size(profile: str, expected: int) -> None:
    pool = _pool("dynamicMIG")
    counted = {
        gpus_of_device(DRIVER, device, None, pool.counters)
        for device in _instances(pool)
        if _profile(device) == profile
    }
    assert counted == {expected}


def test_whole_gpus_count_as_one() -> None:
    for mode in ("whole", "dynamicMIG"):
        pool = _pool(mode)
        assert gpus_of_device(DRIVER, pool.devices[0], None, pool.counters) == 1000


def test_the_chart_has_a_class_for_each_kind() -> None:
    named: list[Json] = classes(extended=True)
    assert {item["metadata"]["name"] for item in named} == set(KINDS)
    assert [item["spec"].get("extendedResourceName") for item in named] == ["nvidia.com/gpu", None, None]


# ---------------------------------------------------------------- the demo


@pytest.mark.parametrize(("made", "mode"), [(whole_slices("n1", 1), "whole"), (mig_slices("n1", 1), "dynamicMIG")])
def test_the_demo_publishes_a_part_of_what_was_recorded(made: list[Json], mode: str) -> None:
    """All but the identity and the PCIe root of GPUs, which it makes up."""
    real = {device["name"]: device for item in recorded(mode) for device in item.get("devices", [])}
    (counters,) = recorded(mode)[0].get("sharedCounters", [{"counters": {}}])
    for item in made:
        for entry in item["spec"].get("sharedCounters", []):
            assert entry["name"] == counters["name"]
            assert entry["counters"].items() <= counters["counters"].items()
        for device in item["spec"].get("devices", []):
            same = real[device["name"]]
            assert device["attributes"].keys() <= same["attributes"].keys()
            for name in device["attributes"].keys() - {"uuid", "parentUUID", "resource.kubernetes.io/pcieRoot"}:
                assert device["attributes"][name] == same["attributes"][name]
            assert device["capacity"].items() <= same["capacity"].items()
            for mine, theirs in zip(device.get("consumesCounters", []), same.get("consumesCounters", []), strict=True):
                assert mine["counterSet"] == theirs["counterSet"]
                assert mine["counters"].items() <= theirs["counters"].items()
                slots = {name for name in theirs["counters"] if name.startswith("memory-slice-")}
                assert slots <= mine["counters"].keys()
