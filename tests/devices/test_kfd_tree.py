"""The tree of AMD's kernel driver, in its format: two sockets, GPUs of each, links of XGMI and PCIe."""

import pytest

from tests.devices.kfd_files import CPU, GPU, LINK, kfd_files
from topo_scheduler.state.devices.hardware import HardwareError, PciePath, linked, pair_bandwidth
from topo_scheduler.state.devices.kfd_tree import read_tree


def test_gpus_links_sockets_and_memory_are_read() -> None:
    hardware = read_tree(kfd_files())
    assert [gpu.bus_id for gpu in hardware.gpus] == ["0000:41:00.0", "0000:43:00.0", "0000:85:00.0", "0000:c6:00.0"]
    assert [gpu.numa_node for gpu in hardware.gpus] == [0, 0, 1, 1]
    assert {(gpu.memory_bytes, gpu.architecture) for gpu in hardware.gpus} == {(64 << 30, "cdna2")}
    assert hardware.gpus[0].uuid == "0000000000000066"
    assert [(link.first, link.second, link.count, link.mb_per_second) for link in hardware.links] == [
        (0, 1, 2, 100_000),
        (2, 3, 2, 100_000),
    ]
    assert hardware.path(0, 1) is PciePath.NODE and hardware.path(0, 2) is PciePath.SYSTEM
    assert pair_bandwidth(hardware)[0].tolist() == [0, 100_000, 6_000, 6_000]
    assert linked(hardware).tolist() == [0b10, 0b01, 0b1000, 0b0100]


def test_gpus_come_in_the_order_of_their_nodes_and_not_of_their_names() -> None:
    files = {path.replace("nodes/5/", "nodes/10/"): text for path, text in kfd_files().items()}
    assert [gpu.bus_id[5:7] for gpu in read_tree(files).gpus] == ["41", "43", "85", "c6"]


def test_the_lower_bandwidth_counts_where_the_directions_of_a_link_differ() -> None:
    files = kfd_files() | {"nodes/3/io_links/1/properties": LINK.format(kind=11, target=2, weight=15, speed=50_000)}
    assert read_tree(files).links[0].mb_per_second == 50_000


def test_a_link_without_bandwidth_is_one_xgmi_link() -> None:
    """As old drivers report it."""
    files = {path: text.replace("max_bandwidth 100000", "max_bandwidth 0") for path, text in kfd_files().items()}
    assert {(link.count, link.mb_per_second) for link in read_tree(files).links} == {(1, 50_000)}


def test_a_gpu_that_shares_its_node_with_a_cpu_is_on_this_socket() -> None:
    """As old drivers report APUs."""
    files = {f"nodes/{number}/properties": "cpu_cores_count 8\nsimd_count 44\n" for number in (0, 1)}
    files |= {
        f"nodes/{number}/io_links/0/properties": LINK.format(kind=2, target=1 - number, weight=20, speed=0)
        for number in (0, 1)
    }
    hardware = read_tree(files)
    assert [gpu.numa_node for gpu in hardware.gpus] == [0, 1]
    assert hardware.path(0, 1) is PciePath.SYSTEM


@pytest.mark.parametrize(
    ("version", "architecture"), [(90_402, "cdna3"), (90_500, "cdna4"), (90_008, "cdna"), (110_000, ""), (0, "")]
)
def test_the_architecture_follows_from_the_instruction_set(version: int, architecture: str) -> None:
    assert {gpu.architecture for gpu in read_tree(kfd_files(version)).gpus} == {architecture}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "there is no GPU"),
        ({"nodes/0/properties": CPU}, "there is no GPU"),
        (kfd_files() | {"nodes/2/properties": "simd_count many\n"}, "'nodes/2/properties': 'simd_count many'"),
        (
            {f"nodes/{number}/properties": GPU.format(version=0, location=0, unique=0) for number in range(17)},
            "17 GPUs",
        ),
        ({f"nodes/{number}/properties": "" for number in range(65_537)}, "65,536 at most"),
        (
            kfd_files() | {"nodes/2/io_links/1/properties": LINK.format(kind=11, target=3, weight=15, speed="9" * 20)},
            "max_bandwidth is 9{20}, of 100,000,000 at most",
        ),
        ({f"nodes/{'1' * 5000}/properties": GPU.format(version=0, location=0, unique=0)}, "there is no GPU"),
        ({"\x1b[2J" * 500 + "/nodes/2/properties": "simd_count -1\n"}, r"^'\\x1b.{0,120}: 'simd_count -1' is no name"),
    ],
    ids=[
        "nothing",
        "CPUs only",
        "no number",
        "too many GPUs",
        "too many files",
        "too fast",
        "too long a number",
        "control characters",
    ],
)
def test_bad_trees_are_refused_with_a_reason(files: dict[str, str], message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        read_tree(files)
