"""The matrix that ``nvidia-smi topo -m`` prints: every cell, in the formats of several versions."""

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.state.devices.hardware import (
    UNKNOWN_NUMA,
    Gpu,
    HardwareError,
    PciePath,
    largest_linked,
    linked,
    pair_bandwidth,
)
from topo_scheduler.state.devices.smi_matrix import MAX_MATRIX_BYTES, read_matrix

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_1
"""
RECORDED = (
    "\t\x1b[4mGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \t0-15\t0\t\tN/A\n" + LEGEND.partition("NIC Legend")[0]
)
"""One H100, as driver 580.159.04 printed it into a file."""


def _matrix(cells: dict[tuple[str, str], str], gpus: int, nics: int = 0, *, tabs: bool = True, numa: int = 4) -> str:
    """Return a matrix. ``cells``: by first and second device; ``numa``: GPUs of a NUMA node."""
    names = [f"GPU{index}" for index in range(gpus)] + [f"NIC{index}" for index in range(nics)]
    gap = "\t" if tabs else "    "
    lines = [gap + gap.join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for row, name in enumerate(names):
        cells_of_row = (cells.get((name, other)) or cells.get((other, name)) or " X " for other in names)
        line = [name, *cells_of_row]
        line += ["0-47,96-143", str(row // numa), "", "N/A"] if row < gpus else []
        lines.append(gap.join(line))
    return "\n".join(lines) + "\n" + LEGEND


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    return [(first, second) for index, first in enumerate(names) for second in names[index + 1 :]]


def test_the_matrix_of_a_real_h100_is_read() -> None:
    hardware = read_matrix(RECORDED)
    assert hardware.gpus == (Gpu(0, numa_node=0),)
    assert not hardware.links and not hardware.nics and not pair_bandwidth(hardware).any()


@pytest.mark.parametrize("tabs", [True, False])
@pytest.mark.parametrize(("count", "gpus"), [(18, 8), (12, 8), (8, 8), (6, 16)], ids=["H100", "A100", "A800", "DGX-2"])
def test_links_of_all_to_all_lead_to_switches(count: int, gpus: int, tabs: bool) -> None:
    names = [f"GPU{index}" for index in range(gpus)]
    hardware = read_matrix(_matrix(dict.fromkeys(_pairs(names), f"NV{count}"), gpus, tabs=tabs))
    assert not hardware.links
    assert {gpu.switch_links for gpu in hardware.gpus} == {count}
    pairs = pair_bandwidth(hardware)
    assert {int(pairs[i, j]) for i in range(gpus) for j in range(gpus) if i != j} == {25_000 * count}
    assert largest_linked(linked(hardware), (1 << gpus) - 1) == gpus
    assert [gpu.numa_node for gpu in hardware.gpus] == [index // 4 for index in range(gpus)]


@given(st.data())
def test_every_cell_is_read(data: st.DataObject) -> None:
    gpus, nics = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 3))
    names = [f"GPU{index}" for index in range(gpus)] + [f"NIC{index}" for index in range(nics)]
    paths = {"PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1, "SOC": 1}
    cells = {
        (first, second): data.draw(st.sampled_from([*paths, *(["NV1", "NV2"] if "NIC" not in first + second else [])]))
        for first, second in _pairs(names)
    }
    hardware = read_matrix(_matrix(cells, gpus, nics, tabs=data.draw(st.booleans())))
    assert [nic.name for nic in hardware.nics] == ["mlx5_0", "mlx5_bond_1", "NIC2"][:nics]
    counts = {(link.first, link.second): link.count for link in hardware.links}
    for (first, second), cell in cells.items():
        if "NIC" in first:
            continue
        row, column = int(first[3:]), int(second[3:])
        if "NIC" in second:
            assert hardware.nic_paths[row][column] == paths[cell]
        elif cell.startswith("NV"):
            assert counts[row, column] == int(cell[2:])
            assert hardware.path(row, column) is (PciePath.NODE if row // 4 == column // 4 else PciePath.SYSTEM)
        else:
            assert hardware.path(row, column) == hardware.path(column, row) == paths[cell]
            assert (row, column) not in counts


def test_gpus_that_no_link_connects_are_counted_apart() -> None:
    cells = dict.fromkeys(_pairs(["GPU0", "GPU1", "GPU2", "GPU3"]), "NODE") | {
        ("GPU0", "GPU1"): "NV4",
        ("GPU2", "GPU3"): "NV4",
    }
    neighbours = linked(read_matrix(_matrix(cells, 4)))
    assert [largest_linked(neighbours, free) for free in (0b1111, 0b0111, 0b0101, 0b0001, 0)] == [2, 2, 1, 1, 0]


def test_switches_that_connect_only_some_pairs_connect_no_others() -> None:
    """As a host prints it that has partitions of its NVSwitches."""
    names = [f"GPU{index}" for index in range(8)]
    cells = {pair: "NV18" if int(pair[0][3:]) // 4 == int(pair[1][3:]) // 4 else "SYS" for pair in _pairs(names)}
    hardware = read_matrix(_matrix(cells, 8))
    assert pair_bandwidth(hardware)[0].tolist() == [0, 450_000, 450_000, 450_000, 6_000, 6_000, 6_000, 6_000]
    assert largest_linked(linked(hardware), 0xFF) == 4


def test_a_matrix_of_many_lines_is_read_at_once() -> None:
    started = perf_counter()
    read_matrix(RECORDED + "\n" * 200_000)
    assert perf_counter() - started < 10


def test_a_matrix_without_numa_nodes_is_read() -> None:
    """As old versions print it."""
    lines = ["        GPU0    GPU1    mlx5_0  CPU Affinity"]
    lines += ["GPU0     X      NV1     PIX     0-23", "GPU1    NV1      X      SYS     0-23"]
    text = "\n".join(lines)
    hardware = read_matrix(text)
    assert [gpu.numa_node for gpu in hardware.gpus] == [UNKNOWN_NUMA] * 2
    assert hardware.path(0, 1) is PciePath.UNKNOWN and hardware.nics[0].name == "mlx5_0"
    assert read_matrix(RECORDED.replace("\t0\t\t", f"\t{'9' * 5000}\t\t")).gpus[0].numa_node == UNKNOWN_NUMA


GOOD = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV1\t0-3\nGPU1\tNV1\t X \t0-3\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line names GPU0"),
        ("No devices were found", "no line names GPU0"),
        (GOOD.replace("GPU1\tNV1\t X \t0-3\n", ""), "not square: GPU1 has a column and no line"),
        (GOOD.replace("GPU1\tNV1\t X \t0-3\n", "GPU1\tNV1\n"), "not square: line GPU1 has 1 cells for 2 columns"),
        (GOOD.replace("GPU0\t X \tNV1", "GPU0\t X \tNV2"), "GPU0 to GPU1 is NV2, but GPU1 to GPU0 is NV1"),
        (GOOD.replace("NV1", "FAST"), "line GPU0, column GPU1: 'FAST' is no NV#"),
        (GOOD.replace(" X ", "SYS"), "line GPU0, column GPU0: 'SYS' instead of X"),
        (GOOD.replace("NV1", "X"), "GPU0 to GPU1 is X"),
        (GOOD.replace("\tGPU1\tCPU", "\tGPU0\tCPU"), "names a column twice"),
        ("\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tNV1\t0\n", "NV1 between a GPU and a NIC"),
        ("\t" + "\t".join(f"GPU{index}" for index in range(17)), "17 GPUs, of 16 at most"),
        (GOOD + "GPU2\tNV1\tNV1\t0-3\n", "not square: 'GPU2' has a line and no column"),
        (GOOD + "NIC0\tPIX\tSYS\n", "not square: 'NIC0' has a line and no column"),
        (GOOD.replace("NV1\t0-3", "NV1\tNV1\t0-3"), "line GPU0 has 'NV1' after the cells of its 2 columns"),
        (GOOD.replace("\tCPU Affinity", ""), "line GPU0 has '0-3' after the cells of its 2 columns"),
        (GOOD.replace("\t", "  ").replace("NV1  0-3", "NV1  SYS"), "line GPU0 has 'SYS' after the cells"),
        (GOOD + "GPU1\tNV1\t X \t0-3\n", "the matrix has two lines for GPU1"),
        (GOOD + LEGEND + GOOD, "the matrix has two lines for GPU0"),
        (GOOD + LEGEND + GOOD.replace("\t", "  "), "the matrix has two lines for GPU0"),
        ("x" * (MAX_MATRIX_BYTES + 1), "1,048,576 at most"),
        (GOOD.replace("NV1", "NV" + "1" * 5000), "line GPU0, column GPU1: 'NV1{18}' is no NV#"),
        (GOOD.replace("\tGPU1\tCPU", "\t\x07\x9b\tCPU"), r"a column is called '\\x07\\x9b', which is no device"),
        ("\tGPU0\t" + "\t".join(f"NIC{index}" for index in range(257)), "257 NICs, of 256 at most"),
    ],
)
def test_bad_matrices_are_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        read_matrix(text)
