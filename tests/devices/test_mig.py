"""MIG geometry beside what drivers report, and the choice of slots beside every slot."""

import json
import re
from dataclasses import astuple
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.scheduling.devices.mig_slots import MigSlot, MigSlots, SplitGpu
from topo_scheduler.state.devices import mig
from topo_scheduler.state.devices.mig import GIB, MigGeometry, MigProfile, geometry_of

RECORDED = Path(__file__).with_name("recorded")
PROFILE = re.compile(r"MIG (?P<name>\S+) +(?P<id>\d+) +\d+/(?P<count>\d+)")
PLACES = re.compile(r"Profile ID +(?P<id>\d+) Placements? *: \{(?P<starts>[\d,]+)\}:(?P<size>\d+)")


def _geometry(model: str = "NVIDIA H100 80GB HBM3", gigabytes: int = 80) -> MigGeometry:
    geometry = geometry_of(model, gigabytes * GIB)
    assert geometry is not None
    return geometry


def _profile(geometry: MigGeometry, name: str) -> MigProfile:
    profile = geometry.profile(name)
    assert profile is not None
    return profile


@pytest.mark.parametrize("gpu", ["h100-80gb", "h200-141gb"])
def test_the_tables_are_what_the_driver_of_a_real_gpu_reports(gpu: str) -> None:
    """What NVML answers about the GPU, and ``nvidia-smi mig -lgip`` and ``-lgipp``, with driver 580.159."""
    text = (RECORDED / f"{gpu}-mig.txt").read_text()
    answers = json.loads((RECORDED / f"{gpu}-nvml.json").read_text())["gpus"][0]
    model = answers["nvmlDeviceGetName"]["value"]
    memory_bytes = answers["nvmlDeviceGetMemoryInfo"]["value"]["total"]
    places = {match["id"]: match for match in PLACES.finditer(text)}
    reported = {
        match["name"]: (
            int(places[match["id"]]["size"]),
            tuple(map(int, places[match["id"]]["starts"].split(","))),
            int(match["count"]),
        )
        for match in PROFILE.finditer(text)
    }
    geometry = geometry_of(model, memory_bytes)
    assert geometry is not None and len(reported) == 7
    assert {p.name: (p.memory_slices, p.starts, p.max_count) for p in geometry.profiles} == reported


PLACEMENTS = {
    "A30 24GB": [
        ("1g.6gb", 1, 1, (0, 1, 2, 3), 4),
        ("1g.6gb+me", 1, 1, (0, 1, 2, 3), 1),
        ("2g.12gb", 2, 2, (0, 2), 2),
        ("2g.12gb+me", 2, 2, (0, 2), 1),
        ("4g.24gb", 4, 4, (0,), 1),
    ],
    "A100 40GB": [
        ("1g.5gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.5gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.10gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.10gb", 2, 2, (0, 2, 4), 3),
        ("3g.20gb", 3, 4, (0, 4), 2),
        ("4g.20gb", 4, 4, (0,), 1),
        ("7g.40gb", 7, 8, (0,), 1),
    ],
    "A100 80GB": [
        ("1g.10gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.10gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.20gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.20gb", 2, 2, (0, 2, 4), 3),
        ("3g.40gb", 3, 4, (0, 4), 2),
        ("4g.40gb", 4, 4, (0,), 1),
        ("7g.80gb", 7, 8, (0,), 1),
    ],
    "H100 80GB": [
        ("1g.10gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.10gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.20gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.20gb", 2, 2, (0, 2, 4), 3),
        ("3g.40gb", 3, 4, (0, 4), 2),
        ("4g.40gb", 4, 4, (0,), 1),
        ("7g.80gb", 7, 8, (0,), 1),
    ],
    "H100 94GB": [
        ("1g.12gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.12gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.24gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.24gb", 2, 2, (0, 2, 4), 3),
        ("3g.47gb", 3, 4, (0, 4), 2),
        ("4g.47gb", 4, 4, (0,), 1),
        ("7g.94gb", 7, 8, (0,), 1),
    ],
    "H100 96GB": [
        ("1g.12gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.12gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.24gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.24gb", 2, 2, (0, 2, 4), 3),
        ("3g.48gb", 3, 4, (0, 4), 2),
        ("4g.48gb", 4, 4, (0,), 1),
        ("7g.96gb", 7, 8, (0,), 1),
    ],
    "H20 96GB": [
        ("1g.12gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.12gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.24gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.24gb", 2, 2, (0, 2, 4), 3),
        ("3g.48gb", 3, 4, (0, 4), 2),
        ("4g.48gb", 4, 4, (0,), 1),
        ("7g.96gb", 7, 8, (0,), 1),
    ],
    "H200 141GB": [
        ("1g.18gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.18gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.35gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.35gb", 2, 2, (0, 2, 4), 3),
        ("3g.71gb", 3, 4, (0, 4), 2),
        ("4g.71gb", 4, 4, (0,), 1),
        ("7g.141gb", 7, 8, (0,), 1),
    ],
    "GH200 96GB": [
        ("1g.12gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.12gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.24gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.24gb", 2, 2, (0, 2, 4), 3),
        ("3g.48gb", 3, 4, (0, 4), 2),
        ("4g.48gb", 4, 4, (0,), 1),
        ("7g.96gb", 7, 8, (0,), 1),
    ],
    "GH200 144GB": [
        ("1g.18gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.18gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.36gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.36gb", 2, 2, (0, 2, 4), 3),
        ("3g.72gb", 3, 4, (0, 4), 2),
        ("4g.72gb", 4, 4, (0,), 1),
        ("7g.144gb", 7, 8, (0,), 1),
    ],
    "B200 180GB": [
        ("1g.23gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.23gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.45gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.45gb", 2, 2, (0, 2, 4), 3),
        ("3g.90gb", 3, 4, (0, 4), 2),
        ("4g.90gb", 4, 4, (0,), 1),
        ("7g.180gb", 7, 8, (0,), 1),
    ],
    "GB200 186GB": [
        ("1g.23gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.23gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.47gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.47gb", 2, 2, (0, 2, 4), 3),
        ("3g.93gb", 3, 4, (0, 4), 2),
        ("4g.93gb", 4, 4, (0,), 1),
        ("7g.186gb", 7, 8, (0,), 1),
    ],
    "B300 269GB": [
        ("1g.34gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        ("1g.34gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.67gb", 1, 2, (0, 2, 4, 6), 4),
        ("2g.67gb", 2, 2, (0, 2, 4), 3),
        ("3g.135gb", 3, 4, (0, 4), 2),
        ("4g.135gb", 4, 4, (0,), 1),
        ("7g.269gb", 7, 8, (0,), 1),
    ],
}
"""By product: profile, compute slices, memory slices, starts, and instances on one GPU, of NVIDIA's MIG user guide."""


@pytest.mark.parametrize("product", PLACEMENTS)
def test_the_tables_are_those_of_the_user_guide(product: str) -> None:
    model, size = product.split()
    geometry = _geometry(f"NVIDIA {model}", int(size.removesuffix("GB")))
    assert [astuple(profile) for profile in geometry.profiles] == PLACEMENTS[product]
    assert (geometry.compute_slices, geometry.memory_slices) == ((4, 4) if model == "A30" else (7, 8))


def test_the_user_guide_names_every_product_of_the_tables() -> None:
    assert {f"{product} {gigabytes}GB" for product, gigabytes, _ in mig._TABLES} == set(PLACEMENTS)


@pytest.mark.parametrize(
    ("model", "gigabytes", "whole"),
    [
        ("NVIDIA A100-SXM4-40GB", 40, "7g.40gb"),
        ("NVIDIA-A100-SXM4-80GB", 80, "7g.80gb"),
        ("NVIDIA A100 80GB PCIe", 80, "7g.80gb"),
        ("NVIDIA A30", 24, "4g.24gb"),
        ("NVIDIA H100 NVL", 94, "7g.94gb"),
        ("NVIDIA GH200 144G HBM3e", 144, "7g.144gb"),
        ("NVIDIA GH200 480GB", 96, "7g.96gb"),
        ("NVIDIA H20", 96, "7g.96gb"),
        ("NVIDIA GB200", 186, "7g.186gb"),
        ("NVIDIA B200", 179, "7g.180gb"),
        ("nvidia b300", 268, "7g.269gb"),
    ],
)
def test_a_product_is_known_by_its_name_and_memory(model: str, gigabytes: int, whole: str) -> None:
    assert _geometry(model, gigabytes).profiles[-1].name == whole


@pytest.mark.parametrize("model", ["", "Tesla V100-SXM2-16GB", "NVIDIA L40S", "AMD Instinct MI300X", "A1000"])
def test_products_without_mig_have_no_geometry(model: str) -> None:
    assert geometry_of(model, 80 * GIB) is None


@pytest.mark.parametrize(("model", "gigabytes"), [("NVIDIA A100-SXM-64GB", 64), ("NVIDIA A100-SXM4-80GB", 0)])
def test_a_product_with_other_or_unknown_memory_has_no_geometry(model: str, gigabytes: int) -> None:
    assert geometry_of(model, gigabytes * GIB) is None


@st.composite
def _splits(draw: st.DrawFn) -> tuple[MigGeometry, list[SplitGpu]]:
    """Draw GPUs with instances that fit together."""
    geometry = draw(st.sampled_from([_geometry(), _geometry("NVIDIA A30", 24)]))
    slots, gpus = MigSlots(geometry), []
    for _ in range(draw(st.integers(1, 3))):
        gpu, instances = SplitGpu(), list[tuple[MigProfile, int]]()
        for _ in range(draw(st.integers(0, 5))):
            profile = draw(st.sampled_from(geometry.profiles))
            if starts := slots.starts(gpu, profile):
                start = draw(st.sampled_from(starts))
                gpu = gpu.with_instance(profile, start)
                instances.append((profile, start))
        taken = [start + offset for profile, start in instances for offset in range(profile.memory_slices)]
        assert len(set(taken)) == len(taken)
        assert sum(profile.compute_slices for profile, _ in instances) <= geometry.compute_slices
        names = [profile.name for profile, _ in instances]
        assert all(names.count(profile.name) <= profile.max_count for profile, _ in instances)
        gpus.append(gpu)
    return geometry, gpus


@given(_splits())
def test_the_slot_that_loses_the_least_capacity_is_chosen(drawn: tuple[MigGeometry, list[SplitGpu]]) -> None:
    """Of equal ones, that on the GPU with the most instances."""
    geometry, gpus = drawn
    slots = MigSlots(geometry)

    def capacity(gpu: SplitGpu) -> Fraction:
        compute_left = geometry.compute_slices - gpu.compute
        return sum(
            Fraction(profile.memory_slices, len(profile.starts))
            for profile in geometry.profiles
            for start in profile.starts
            if profile.compute_slices <= compute_left
            and not any(gpu.memory >> bit & 1 for bit in range(start, start + profile.memory_slices))
        ) + Fraction(0)

    for profile in geometry.profiles:
        ranked = [
            (capacity(gpu) - capacity(gpu.with_instance(profile, start)), -gpu.instances, index, start)
            for index, gpu in enumerate(gpus)
            for start in slots.starts(gpu, profile)
        ]
        expected = MigSlot(min(ranked)[2], min(ranked)[3]) if ranked else None
        assert slots.choose(gpus, profile) == expected


@given(_splits())
def test_an_instance_that_is_taken_back_leaves_the_gpu_as_it_was(drawn: tuple[MigGeometry, list[SplitGpu]]) -> None:
    geometry, gpus = drawn
    slots = MigSlots(geometry)
    for gpu in gpus:
        for profile in geometry.profiles:
            for start in slots.starts(gpu, profile):
                assert gpu.with_instance(profile, start).without_instance(profile, start) == gpu


@pytest.mark.parametrize("name", ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb"])
def test_split_gpus_are_filled_before_a_whole_one(name: str) -> None:
    """Whatever the first small instance is: the whole GPU counts as much for one large instance."""
    geometry = _geometry()
    profile = _profile(geometry, name)
    for other in geometry.profiles:
        for start in other.starts:
            split = SplitGpu().with_instance(other, start)
            slots = MigSlots(geometry)
            if slots.starts(split, profile):
                slot = slots.choose([SplitGpu(), split], profile)
                assert slot is not None and slot.gpu == 1, (other.name, start)


def test_an_instance_with_media_engines_is_on_a_gpu_once() -> None:
    geometry = _geometry()
    profile = _profile(geometry, "1g.10gb+me")
    slots = MigSlots(geometry)
    gpu = SplitGpu().with_instance(profile, 0)
    assert slots.choose([gpu], profile) is None
    assert slots.choose([gpu], _profile(geometry, "1g.10gb")) is not None


def test_two_of_three_slices_strand_one_compute_slice() -> None:
    geometry = _geometry()
    three = _profile(geometry, "3g.40gb")
    gpu = SplitGpu().with_instance(three, 0).with_instance(three, 4)
    assert gpu.compute == 6
    assert all(MigSlots(geometry).choose([gpu], profile) is None for profile in geometry.profiles)
