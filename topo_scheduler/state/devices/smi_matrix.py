"""Reads the matrix that ``nvidia-smi topo -m`` prints.

The first line names the columns, then each device has a line with one cell for each device. After the cells follow the
CPUs and NUMA node of the GPU. Cells are ``X``, ``NV#`` for so many NVLinks, or the class of the PCIe path. Columns are
separated by tabs, or by spaces in what people paste. Newer versions underline the first line with escape sequences.

Source: NVIDIA's documentation of ``nvidia-smi topo``; two outputs recorded on machines with driver 580.
"""

import re
from collections.abc import Sequence
from typing import Final

from topo_scheduler.api.text import quoted
from topo_scheduler.state.devices.hardware import (
    MAX_GPUS,
    MAX_NICS,
    UNKNOWN_NUMA,
    Gpu,
    GpuLink,
    HardwareError,
    Nic,
    NodeHardware,
    PciePath,
    check_count,
)

MAX_MATRIX_BYTES: Final = 1 << 20
MAX_LINKS: Final = 18
"""NVLinks of one GPU, of all products so far. If its cells add up to more, the links of all pairs lead to switches."""
LINK_MB_PER_SECOND: Final = 25_000
"""MB/s of one NVLink in each direction, of generations 2 to 4. The matrix does not say the generation."""

_PATHS: Final = {
    "X": PciePath.SELF,
    "PIX": PciePath.SWITCH,
    "PXB": PciePath.SWITCHES,
    "PHB": PciePath.HOST_BRIDGE,
    "NODE": PciePath.NODE,
    "SYS": PciePath.SYSTEM,
    "SOC": PciePath.SYSTEM,  # the name of SYS in old versions
}
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU: Final = re.compile(r"GPU[0-9]{1,4}")
_LINKS: Final = re.compile(r"NV([0-9]{1,3})")
_DEVICE: Final = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_NUMA: Final = re.compile(r"[0-9]{1,4}")
_NIC_LEGEND: Final = re.compile(r"^[ \t]+(NIC[0-9]{1,4}):[ \t]*([\w.:-]{1,64})[ \t\r]*$", re.MULTILINE | re.ASCII)
_AFTER_DEVICES: Final = ("CPU", "NUMA", "GPU")
"""First words of the columns after the devices: CPU Affinity, NUMA Affinity, GPU NUMA ID."""
_REMEDY: Final = "give the whole output of: nvidia-smi topo -m"


def read_matrix(text: str, link_mb_per_second: int = LINK_MB_PER_SECOND) -> NodeHardware:
    """Return the hardware that a matrix describes.

    Args:
        text: output of ``nvidia-smi topo -m``.
        link_mb_per_second: MB/s of one NVLink in each direction.

    Raises:
        HardwareError: there is no matrix, or it is not square, not symmetric, names a line twice, or has a cell that is
            none of the above.
    """
    check_count("matrix", len(text), MAX_MATRIX_BYTES, "characters")
    lines = _ESCAPES.sub("", text).splitlines()
    start, columns, has_affinity = _header(lines)
    names = [name for name in columns if _GPU.fullmatch(name)]
    nic_names = [name for name in columns if name not in names]
    check_count("matrix", len(names), MAX_GPUS, "GPUs")
    check_count("matrix", len(nic_names), MAX_NICS, "NICs")
    if odd := next((name for name in columns if not _DEVICE.fullmatch(name)), ""):
        raise HardwareError(f"a column is called {quoted(odd)}, which is no device; {_REMEDY}")
    if len(set(columns)) != len(columns):
        raise HardwareError(f"the matrix names a column twice; {_REMEDY}")
    rows = _rows(lines[start + 1 :], columns, has_affinity)
    cells = {name: _row(name, rows, columns) for name in names}
    _check_symmetry(names, cells, columns)
    legend = dict(_NIC_LEGEND.findall(text))
    numa = [_numa(rows[name][len(columns) :]) for name in names]
    counts = [[_link_count(cells[name][columns.index(other)]) for other in names] for name in names]
    switched = _switched(counts)
    gpus = tuple(
        Gpu(
            index=index,
            numa_node=numa[index],
            switch_links=max(counts[index]) if switched else 0,
            link_mb_per_second=link_mb_per_second if any(counts[index]) else 0,
        )
        for index in range(len(names))
    )
    return NodeHardware(
        gpus=gpus,
        nics=tuple(Nic(legend.get(name, name)) for name in nic_names),
        links=() if switched else _links(counts, link_mb_per_second),
        gpu_paths=tuple(
            tuple(_gpu_path(cells[name][columns.index(other)], numa[i], numa[j]) for j, other in enumerate(names))
            for i, name in enumerate(names)
        ),
        nic_paths=tuple(
            tuple(_path(name, other, cells[name][columns.index(other)]) for other in nic_names) for name in names
        ),
    )


def _cells(line: str) -> list[str]:
    """Return the cells of a line. Only tabs can separate empty ones."""
    return [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()


def _header(lines: Sequence[str]) -> tuple[int, list[str], bool]:
    """Return the number of the line that names the columns, the devices on it, and whether more columns follow them."""
    for number, line in enumerate(lines):
        cells = line.split()
        if cells and _GPU.fullmatch(cells[0]) and (len(cells) == 1 or not _is_cell(cells[1])):
            end = next((index for index, cell in enumerate(cells) if cell in _AFTER_DEVICES), len(cells))
            return number, cells[:end], end < len(cells)
    raise HardwareError(f"no line names GPU0, GPU1 and so on as columns; {_REMEDY}")


def _is_cell(text: str) -> bool:
    return text in _PATHS or _LINKS.fullmatch(text) is not None


def _rows(lines: Sequence[str], columns: Sequence[str], has_affinity: bool) -> dict[str, list[str]]:
    """Return the cells of each line by device. Other lines are those of legends."""
    rows: dict[str, list[str]] = {}
    known = set(columns)
    for line in lines:
        name, *cells = _cells(line) or [""]
        if name not in known:
            if _GPU.fullmatch(name) or (name and cells and _is_cell(cells[0])):
                raise HardwareError(f"the matrix is not square: {quoted(name)} has a line and no column; {_REMEDY}")
            continue
        if name in rows:
            raise HardwareError(f"the matrix has two lines for {name}; {_REMEDY}")
        surplus = [cell for cell in cells[len(columns) :] if _is_cell(cell) or (cell and not has_affinity)]
        if surplus:
            raise HardwareError(
                f"the matrix is not square: line {name} has {quoted(surplus[0])} after the cells of its"
                f" {len(columns)} columns; {_REMEDY}"
            )
        rows[name] = cells
    return rows


def _row(name: str, rows: dict[str, list[str]], columns: Sequence[str]) -> list[str]:
    if name not in rows:
        raise HardwareError(f"the matrix is not square: {name} has a column and no line; {_REMEDY}")
    cells = rows[name][: len(columns)]
    if len(cells) < len(columns):
        raise HardwareError(
            f"the matrix is not square: line {name} has {len(cells)} cells for {len(columns)} columns; {_REMEDY}"
        )
    for column, cell in zip(columns, cells, strict=True):
        if not _is_cell(cell):
            raise HardwareError(
                f"line {name}, column {column}: {cell[:20]!r} is no NV#, PIX, PXB, PHB, NODE or SYS; {_REMEDY}"
            )
    return cells


def _check_symmetry(names: Sequence[str], cells: dict[str, list[str]], columns: Sequence[str]) -> None:
    for i, name in enumerate(names):
        if cells[name][columns.index(name)] != "X":
            raise HardwareError(
                f"line {name}, column {name}: {cells[name][columns.index(name)]!r} instead of X; {_REMEDY}"
            )
        for other in names[:i]:
            forward, back = cells[other][columns.index(name)], cells[name][columns.index(other)]
            if forward != back or forward == "X":
                raise HardwareError(f"{other} to {name} is {forward}, but {name} to {other} is {back}; {_REMEDY}")


def _link_count(cell: str) -> int:
    match = _LINKS.fullmatch(cell)
    return int(match[1]) if match else 0


def _switched(counts: Sequence[Sequence[int]]) -> bool:
    """Return whether links lead to switches that connect all GPUs with links. In partitions, they connect only some."""
    with_links = [index for index, row in enumerate(counts) if any(row)]
    every_pair = all(counts[i][j] for i in with_links for j in with_links if i != j)
    return every_pair and any(sum(row) > MAX_LINKS for row in counts)


def _links(counts: Sequence[Sequence[int]], link_mb_per_second: int) -> tuple[GpuLink, ...]:
    return tuple(
        GpuLink(first, second, count, count * link_mb_per_second)
        for first, row in enumerate(counts)
        for second, count in enumerate(row)
        if first < second and count
    )


def _gpu_path(cell: str, numa: int, other_numa: int) -> PciePath:
    """Return the PCIe path of a pair of GPUs. Where the matrix shows NVLinks, only the NUMA nodes tell about it."""
    if cell in _PATHS:
        return _PATHS[cell]
    if UNKNOWN_NUMA in (numa, other_numa):
        return PciePath.UNKNOWN
    return PciePath.NODE if numa == other_numa else PciePath.SYSTEM


def _path(name: str, column: str, cell: str) -> PciePath:
    if cell not in _PATHS:
        raise HardwareError(f"line {name}, column {column}: {cell} between a GPU and a NIC; {_REMEDY}")
    return _PATHS[cell]


def _numa(after: Sequence[str]) -> int:
    """Return the NUMA node of a GPU from the cells after the matrix: the CPUs, the NUMA node, and more."""
    return int(after[1]) if len(after) > 1 and _NUMA.fullmatch(after[1]) else UNKNOWN_NUMA
