"""Which GPUs the pods of a simulated run would get on their nodes, by several choosers.

A run decides when a pod is on which node. This module replays that with the links of a real node, and computes how much
of the empty node's bandwidth each pod gets.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.scheduling.devices.gpu_tables import MAX_WEIGHT, GpuTables, shape_of
from topo_scheduler.simulation.cases.model import CaseError
from topo_scheduler.simulation.devices.gpu_choosers import (
    Choose,
    NvidiaBestEffort,
    RandomChoice,
    RocmWeights,
    first_fit,
)
from topo_scheduler.simulation.virtual.history import RunHistory, Stay
from topo_scheduler.state.devices.hardware import HardwareError, NodeHardware, check_count
from topo_scheduler.state.devices.kfd_tree import MAX_FILES, read_tree
from topo_scheduler.state.devices.smi_matrix import read_matrix
from topo_scheduler.state.devices.topology_xml import read_topology

OURS: Final = "ours"
POLICIES: Final = (OURS, "nvidia-best-effort", "rocm", "first-fit", "random")


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """What pods with several whole GPUs got.

    Attributes:
        policy: name of the chooser.
        pods: pods on nodes with as many GPUs as the file describes.
        share: mean of the ring bandwidth of their GPUs over the best on the empty node; None without such pods.
        ideal: share of these pods that got the best; None without such pods.
    """

    policy: str
    pods: int
    share: float | None
    ideal: float | None


def read_hardware(path: Path) -> NodeHardware:
    """Read the links of a node: XML of NCCL or RCCL, output of ``nvidia-smi topo -m``, or a folder with AMD's tree.

    Raises:
        CaseError: it can't be read, or it describes a node without several GPUs.
    """
    try:
        hardware = read_tree(_tree_files(path)) if path.is_dir() else _read_file(path)
        shape_of(hardware)
    except OSError as error:
        raise CaseError(f"--gpu-topology: {error.filename or path}: {error.strerror}") from error
    except (HardwareError, UnicodeDecodeError) as error:
        raise CaseError(f"--gpu-topology: {path}: {error}") from error
    if len(hardware.gpus) < 2:
        raise CaseError(f"--gpu-topology: {path} describes a node with {len(hardware.gpus)} GPU; links need two")
    return hardware


def _read_file(path: Path) -> NodeHardware:
    text = path.read_text(encoding="utf-8")
    return read_topology(text) if text.lstrip().startswith("<") else read_matrix(text)


def _tree_files(path: Path) -> dict[str, str]:
    """Return the properties of the tree at a path, ``/sys/class/kfd/kfd/topology`` or a copy, or in it."""
    nodes = next((folder for folder in (path / "topology" / "nodes", path / "nodes") if folder.is_dir()), path)
    files = sorted([*nodes.glob("[0-9]*/properties"), *nodes.glob("[0-9]*/*/[0-9]*/properties")])
    check_count("tree", len(files), MAX_FILES, "files")
    return {f"nodes/{file.relative_to(nodes).as_posix()}": file.read_text(encoding="utf-8") for file in files}


def read_device_policies(names: str) -> list[str]:
    """Return the policies of a comma-separated list; raises as `read_policies` does."""
    return read_policies("--device-policy", names, POLICIES)


def read_policies(option: str, names: str, known: Sequence[str]) -> list[str]:
    """Return the policies of a comma-separated list that an option has.

    Raises:
        CaseError: a name is unknown, occurs twice, or none is named.
    """
    policies = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in policies if name not in known]
    if unknown or not policies or len(set(policies)) < len(policies):
        problem = f"{unknown[0]!r} is unknown" if unknown else "name each policy once"
        raise CaseError(f"{option}: {problem}; the policies are {', '.join(known)}")
    return policies


def replay(hardware: NodeHardware, history: RunHistory, policies: Sequence[str], seed: int) -> list[DeviceFigures]:
    """Return the figures of each policy.

    Pods that ask for a share of a GPU are left out: devices are chosen for whole GPUs.

    Args:
        hardware: of each node that has as many GPUs.
        history: when pods were on which nodes.
        policies: names, of `POLICIES`.
        seed: of the policy ``random``.
    """
    size = len(hardware.gpus)
    by_node: dict[int, list[Stay]] = {}
    for stay in history.stays:
        if history.capacity[stay.node] == size * WHOLE_GPU and stay.milli and stay.milli % WHOLE_GPU == 0:
            by_node.setdefault(stay.node, []).append(stay)
    sizes = Counter(stay.milli // WHOLE_GPU for stays in by_node.values() for stay in stays)
    max_stays = max(sizes.values(), default=1)
    weights = [-(-sizes[number] * MAX_WEIGHT // max_stays) for number in range(size + 1)]
    tables = GpuTables(shape_of(hardware), weights)
    figures = []
    for policy in policies:
        choose = _chooser(policy, hardware, tables, seed)
        ours = policy == OURS
        shares = [share for node in sorted(by_node) for share in _shares(tables, choose, by_node[node], beside=ours)]
        ideal = mean(share == 1.0 for share in shares) if shares else None
        figures.append(DeviceFigures(policy, len(shares), mean(shares) if shares else None, ideal))
    return figures


def _chooser(policy: str, hardware: NodeHardware, tables: GpuTables, seed: int) -> Choose:
    match policy:
        case "nvidia-best-effort":
            return NvidiaBestEffort(hardware).choose
        case "rocm":
            return RocmWeights(hardware).choose
        case "first-fit":
            return first_fit
        case "random":
            return RandomChoice(seed).choose
        case _:
            return tables.choose


def _shares(tables: GpuTables, choose: Choose, stays: Sequence[Stay], *, beside: bool) -> list[float]:
    """Return the share of the best bandwidth for each pod with several GPUs of a node, in the order of their starts.

    ``beside``: of choices that are alike, the one counts that leaves the most once a running pod ends.
    """
    starts = [(stay.start, True, number) for number, stay in enumerate(stays)]
    ends = [(stay.end, False, number) for number, stay in enumerate(stays)]
    free, held, shares = tables.all_gpus, dict[int, int](), list[float]()
    for _, begins, number in sorted(starts + ends):
        if not begins:
            free |= held.pop(number, 0)
            continue
        size = stays[number].milli // WHOLE_GPU
        chosen = choose(free, size)
        if chosen < 0:
            continue
        if beside and chosen:
            chosen = tables.choose_beside(free, chosen, list(held.values()))
        free &= ~chosen
        held[number] = chosen
        if size > 1:
            shares.append(int(tables.rings[chosen]) / tables.best_ring(tables.all_gpus, size))
    return shares
