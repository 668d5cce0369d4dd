"""What is known of GPU products by their names: memory, architecture, links, and the usual layout of their boards.

The fallback where neither ResourceSlices nor labels say more. What a table does not know stays unknown. A name is
compared by its words, so that ``NVIDIA-H100-80GB-HBM3``, ``nvidia-h100-80gb`` and ``H100`` are one product.

Sources: NVIDIA's and AMD's data sheets; bandwidths are in MB/s in each direction.
"""

import re
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Final

from topo_scheduler.state.devices.hardware import (
    UNKNOWN_NUMA,
    XGMI_MB_PER_SECOND,
    Gpu,
    GpuLink,
    NodeHardware,
    PciePath,
)

NVLINK_2_MB_PER_SECOND: Final = 25_000
NVLINK_5_MB_PER_SECOND: Final = 50_000
HYBRID_MESH_LINKS: Final = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
    *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
)
"""DGX-1 with V100: pairs of GPUs, and the NVLinks between them. The first four are the board of four."""
_MEMORY: Final = re.compile(r"(\d+)GB")
_SPLIT: Final = re.compile(r"[^A-Z0-9]+")
_SHARED: Final = re.compile(r"-(SHARED|MIG-.*)$", re.IGNORECASE)


class BoardLinks(Enum):
    """How the GPUs of a node are linked."""

    UNKNOWN = auto()
    PCIE = auto()
    """No links."""
    SWITCH = auto()
    """NVSwitch."""
    MESH = auto()
    """A direct link between each pair."""
    HYBRID_MESH = auto()
    """That of the DGX-1, for eight GPUs or its half."""


TOPOLOGIES: Final = {
    "nvswitch": BoardLinks.SWITCH,
    "xgmi": BoardLinks.MESH,
    "nvlink": BoardLinks.MESH,
    "hybrid-mesh": BoardLinks.HYBRID_MESH,
    "pcie": BoardLinks.PCIE,
}
"""Values of the label for the links between the GPUs of a node."""


@dataclass(frozen=True, slots=True)
class Product:
    """A GPU product.

    Attributes:
        words: words of its name.
        architecture: such as ``hopper``.
        memory_gib: size of its memory by name; 0 if the name of the product does not decide it.
        board: how GPUs of it are linked.
        links: links of one GPU to the switch, or to each other GPU.
        mb_per_second: of one link.
        gpus_per_switch: GPUs below one PCIe switch on boards of eight; 0 if unknown.
    """

    words: frozenset[str]
    architecture: str
    memory_gib: int = 0
    board: BoardLinks = BoardLinks.PCIE
    links: int = 0
    mb_per_second: int = 0
    gpus_per_switch: int = 0


def _product(
    words: str, architecture: str, memory_gib: int = 0, board: BoardLinks = BoardLinks.PCIE, **links: int
) -> Product:
    return Product(frozenset(words.split()), architecture, memory_gib, board, **links)


def _switched(words: str, architecture: str, memory_gib: int, links: int, per_switch: int = 1) -> Product:
    fast = NVLINK_5_MB_PER_SECOND if architecture == "blackwell" else NVLINK_2_MB_PER_SECOND
    return _product(
        words, architecture, memory_gib, BoardLinks.SWITCH, links=links, mb_per_second=fast, gpus_per_switch=per_switch
    )


def _xgmi(words: str, architecture: str, memory_gib: int) -> Product:
    return _product(
        words, architecture, memory_gib, BoardLinks.MESH, links=1, mb_per_second=XGMI_MB_PER_SECOND, gpus_per_switch=1
    )


PRODUCTS: Final = (
    _product("H100 PCIE", "hopper", 80, BoardLinks.UNKNOWN),
    _product("H100 NVL", "hopper", 94, BoardLinks.UNKNOWN),
    _product("H200 NVL", "hopper", 141, BoardLinks.UNKNOWN),
    _product("A100 PCIE", "ampere", 0, BoardLinks.UNKNOWN),
    _product("A800 PCIE", "ampere", 0, BoardLinks.UNKNOWN),
    _product("V100 PCIE", "volta"),
    _switched("A100", "ampere", 0, 12, 2),
    _switched("A800", "ampere", 80, 8, 2),
    _switched("H100", "hopper", 80, 18),
    _switched("H800", "hopper", 80, 8),
    _switched("H20", "hopper", 96, 18),
    _switched("H200", "hopper", 141, 18),
    _switched("B200", "blackwell", 180, 18),
    _switched("B300", "blackwell", 269, 18),
    _switched("GB200", "blackwell", 186, 18),
    _switched("GB300", "blackwell", 278, 18),
    _product("GH200", "hopper", 0, BoardLinks.UNKNOWN),
    _switched("V100 SXM3", "volta", 32, 6, 0),
    _product(
        *("V100 SXM2", "volta", 0, BoardLinks.HYBRID_MESH), mb_per_second=NVLINK_2_MB_PER_SECOND, gpus_per_switch=2
    ),
    _product("V100", "volta", 0, BoardLinks.UNKNOWN),
    _product("A30", "ampere", 24, BoardLinks.UNKNOWN),
    _product("A40", "ampere", 48, BoardLinks.UNKNOWN),
    _product("A10", "ampere", 24),
    _product("A10G", "ampere", 24),
    _product("A16", "ampere", 16),
    _product("A2", "ampere", 16),
    _product("T4", "turing", 16),
    _product("L4", "ada-lovelace", 24),
    _product("L40", "ada-lovelace", 48),
    _product("L40S", "ada-lovelace", 48),
    _product("MI100", "cdna", 32, BoardLinks.UNKNOWN),
    _product("MI210", "cdna2", 64, BoardLinks.UNKNOWN),
    _product("MI250", "cdna2", 128, BoardLinks.UNKNOWN),
    _product("MI250X", "cdna2", 128, BoardLinks.UNKNOWN),
    _xgmi("MI300X", "cdna3", 192),
    _xgmi("MI308X", "cdna3", 192),
    _xgmi("MI325X", "cdna3", 256),
    _xgmi("MI350X", "cdna4", 288),
    _xgmi("MI355X", "cdna4", 288),
)
"""The first of which all words are in a name is it."""


def words_of(model: str) -> frozenset[str]:
    """Return the words of a product name, without the suffixes that device plugins add for shared and split GPUs."""
    return frozenset(filter(None, _SPLIT.split(_SHARED.sub("", model).upper())))


def suffix_of(model: str) -> str:
    """Return the suffix that device plugins add for shared and split GPUs; empty if there is none."""
    match = _SHARED.search(model)
    return match[0] if match is not None else ""


@lru_cache(maxsize=1024)
def product_of(model: str) -> Product | None:
    """Return the product of a name, with the memory that the name gives; None if it is not in the table."""
    words = words_of(model)
    for product in PRODUCTS:
        if product.words <= words:
            sizes = [int(size[1]) for word in sorted(words) if (size := _MEMORY.fullmatch(word))]
            return replace(product, memory_gib=sizes[0]) if len(sizes) == 1 and sizes[0] < 1000 else product
    return None


# ---------------------------------------------------------------- layout


def layout_of(product: Product | None, count: int) -> NodeHardware:
    """Return the GPUs of a node by its product: links, and on boards of eight their sockets and PCIe switches.

    Args:
        product: the product; None if unknown.
        count: number of GPUs of the node.
    """
    if product is None or count < 2:
        return NodeHardware(tuple(Gpu(index) for index in range(count)))
    whole_board = count == 8 and product.board in (BoardLinks.SWITCH, BoardLinks.MESH, BoardLinks.HYBRID_MESH)
    gpus = tuple(
        Gpu(
            index,
            numa_node=index // 4 if whole_board else UNKNOWN_NUMA,
            pcie_switch=_switch_name(product, index) if whole_board else "",
            switch_links=product.links if product.board is BoardLinks.SWITCH else 0,
            link_mb_per_second=product.mb_per_second,
        )
        for index in range(count)
    )
    return NodeHardware(gpus, links=_links(product, count), gpu_paths=paths_of(gpus))


def _switch_name(product: Product, index: int) -> str:
    return f"of GPU {index - index % product.gpus_per_switch}" if product.gpus_per_switch else ""


def _links(product: Product, count: int) -> tuple[GpuLink, ...]:
    fast = product.mb_per_second
    if product.board is BoardLinks.MESH:
        pairs = [(first, second) for first in range(count) for second in range(first + 1, count)]
        return tuple(GpuLink(*pair, product.links, product.links * fast) for pair in pairs)
    if product.board is BoardLinks.HYBRID_MESH and count in (4, 8):
        return tuple(GpuLink(a, b, links, links * fast) for a, b, links in HYBRID_MESH_LINKS if b < count)
    return ()


def on_board(product: Product | None, board: BoardLinks, known: bool) -> Product:
    """Return a product on the board that a label names, with the links of its own if the table knows it so."""
    if product is not None and known and product.board is board:
        return product
    links, fast = {
        BoardLinks.SWITCH: (1, 0),
        BoardLinks.MESH: (1, 0),
        BoardLinks.HYBRID_MESH: (0, NVLINK_2_MB_PER_SECOND),
    }.get(board, (0, 0))
    if product is not None and product.links and product.mb_per_second:
        links, fast = product.links, product.mb_per_second
    plain = product or Product(frozenset(), "")
    return replace(plain, board=board, links=links, mb_per_second=fast)


def links_known(product: Product | None, count: int) -> bool:
    """Return whether the table knows the links of so many GPUs of a product."""
    if product is None or count < 2:
        return False
    return product.board in (BoardLinks.PCIE, BoardLinks.SWITCH, BoardLinks.MESH) or (
        product.board is BoardLinks.HYBRID_MESH and count in (4, 8)
    )


def paths_of(gpus: tuple[Gpu, ...]) -> tuple[tuple[PciePath, ...], ...]:
    """Return the PCIe path of each pair, as far as switches, roots and NUMA nodes tell.

    GPUs below one PCIe root count as below one switch: a root has the lanes of one GPU.
    """
    return tuple(tuple(_path(first, second) for second in gpus) for first in gpus)


def _path(first: Gpu, second: Gpu) -> PciePath:
    if first.index == second.index:
        return PciePath.SELF
    if first.pcie_switch and first.pcie_switch == second.pcie_switch:
        return PciePath.SWITCH
    if first.pcie_root and first.pcie_root == second.pcie_root:
        return PciePath.SWITCH
    if UNKNOWN_NUMA in (first.numa_node, second.numa_node):
        return PciePath.UNKNOWN
    return PciePath.NODE if first.numa_node == second.numa_node else PciePath.SYSTEM
