"""Hardware of known nodes: files of ``TOPO_DATA``, and a DGX-1 with V100, of which no file exists."""

from functools import cache
from pathlib import Path
from typing import Final

from tests.e2e.real_input import data_folder
from topo_scheduler.state.devices.hardware import Gpu, GpuLink, NodeHardware, PciePath
from topo_scheduler.state.devices.topology_xml import read_topology

NVLINK_2_MB_PER_SECOND: Final = 25_000
_DGX_1V_LINKS: Final = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
    *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
)
"""The hybrid cube mesh: pairs of GPUs, and the NVLinks between them. Each GPU has six."""


def dgx_1v() -> NodeHardware:
    """Return a DGX-1 with eight V100: pairs of GPUs below a PCIe switch, two switches on each socket."""
    return NodeHardware(
        gpus=tuple(
            Gpu(
                index,
                numa_node=index // 4,
                pcie_switch=f"switch{index // 2}",
                link_mb_per_second=NVLINK_2_MB_PER_SECOND,
            )
            for index in range(8)
        ),
        links=tuple(
            GpuLink(first, second, count, count * NVLINK_2_MB_PER_SECOND) for first, second, count in _DGX_1V_LINKS
        ),
        gpu_paths=tuple(tuple(_path(first, second) for second in range(8)) for first in range(8)),
    )


def _path(first: int, second: int) -> PciePath:
    if first == second:
        return PciePath.SELF
    if first // 2 == second // 2:
        return PciePath.SWITCH
    return PciePath.NODE if first // 4 == second // 4 else PciePath.SYSTEM


@cache
def folder() -> Path:
    """Return the folder of the topology files. Without it, tests are skipped, and fail in CI."""
    return data_folder() / "intranode"


def from_file(name: str) -> NodeHardware:
    """Return the hardware of a topology file, such as ``rccl/topo_8p_940.xml``."""
    return read_topology((folder() / name).read_text())
