"""The GPUs of a node, from every source that describes them: the more trusted source of a fact wins.

In order of trust: ResourceSlices of the node's drivers; the labels of the node; a table of products. What two sources
say differently is reported, and the more trusted one counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, TypeVar

from topo_scheduler.api.gpu_needs import architecture_name
from topo_scheduler.api.labels import GPU_MODEL_LABELS
from topo_scheduler.api.quantity import QuantityError, parse_quantity
from topo_scheduler.api.text import quoted
from topo_scheduler.state.devices.hardware import (
    AMD_ARCHITECTURES,
    MAX_GPUS,
    UNKNOWN_NUMA,
    NodeHardware,
)
from topo_scheduler.state.devices.mig import GIB
from topo_scheduler.state.devices.products import (
    TOPOLOGIES,
    Product,
    layout_of,
    links_known,
    on_board,
    paths_of,
    product_of,
    suffix_of,
    words_of,
)

Value = TypeVar("Value")
MIB: Final = 1 << 20
MAX_MEMORY_BYTES: Final = 1 << 50
"""More than any GPU has: a larger value is a mistake."""
MAX_KINDS_WITHOUT_NODE: Final = 64
"""Kinds of hardware that are kept without a node, in addition to two for each node."""
MEMORY_PERCENT: Final = 93
"""Share of its nominal memory that a GPU reports at least: an L4 of 24 GB has 22.5 GiB.

This share of a request is enough.
"""
_OWN: Final = "neuronetes.io/"
COUNT_LABELS: Final = ("nvidia.com/gpu.count", "amd.com/gpu.count", _OWN + "gpu-count")
NVIDIA_MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
AMD_MEMORY_LABEL: Final = "amd.com/gpu.vram"
OWN_MEMORY_LABEL: Final = _OWN + "gpu-memory"
MEMORY_LABELS: Final = (NVIDIA_MEMORY_LABEL, AMD_MEMORY_LABEL, OWN_MEMORY_LABEL)
FAMILY_LABEL: Final = "nvidia.com/gpu.family"
MAJOR_LABEL, MINOR_LABEL = "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
TOPOLOGY_LABEL: Final = _OWN + "gpu-topology"
STRATEGY_LABEL: Final = "nvidia.com/mig.strategy"
MIG_CAPABLE_LABELS: Final = ("nvidia.com/mig.capable", _OWN + "mig-capable")
MIG_CONFIG_LABELS: Final = ("nvidia.com/mig.config", _OWN + "mig-config")
REPLICAS_LABEL: Final = "nvidia.com/gpu.replicas"
LABELS_READ: Final = frozenset(
    {
        *(*GPU_MODEL_LABELS, *COUNT_LABELS, NVIDIA_MEMORY_LABEL, AMD_MEMORY_LABEL, OWN_MEMORY_LABEL, FAMILY_LABEL),
        *(MAJOR_LABEL, MINOR_LABEL, TOPOLOGY_LABEL, STRATEGY_LABEL, *MIG_CAPABLE_LABELS, *MIG_CONFIG_LABELS),
        REPLICAS_LABEL,
    }
)
_COMPUTE_CAPABILITIES: Final = {
    (6,): "pascal",
    (7,): "volta",
    (7, 5): "turing",
    (8,): "ampere",
    (8, 9): "ada-lovelace",
    (9,): "hopper",
    (10,): "blackwell",
    (12,): "blackwell",
}
_AMD_NAMES: Final = frozenset(AMD_ARCHITECTURES.values())


class FactSource(IntEnum):
    """Where a fact is from. A lower value is trusted more."""

    SLICES = 0
    """ResourceSlices. The object that a node's agent writes would come next."""
    LABELS = 2
    PRODUCT = 3


@dataclass(frozen=True, slots=True)
class PublishedGpu:
    """A GPU of a ResourceSlice; fields are as for `Gpu`."""

    name: str
    uuid: str = ""
    bus_id: str = ""
    model: str = ""
    memory_bytes: int = 0
    architecture: str = ""
    numa_node: int = UNKNOWN_NUMA
    pcie_root: str = ""


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs of a node without what differs between identical nodes, so that these share one object.

    Attributes:
        hardware: GPUs and links; without uuids and PCI addresses.
        model: product name; empty if unknown.
        memory_bytes: of each GPU, the least of them; 0 if unknown.
        architecture: empty if unknown, or if they differ.
        vendor: ``nvidia`` or ``amd``; empty if unknown.
        links_known: whether links between them are known; otherwise there may be some.
        shared_by_time: several pods get one GPU by time slicing or MPS, so no set of GPUs can be chosen.
        mig_strategy: ``single`` or ``mixed`` if GPUs are split; else empty.
        mig_profiles: profiles of MIG devices that the node offers, in order.
        mig_capable: whether a label says that its GPUs can be split; None without one.
        mig_config: name of the MIG configuration by label; empty without one.
        sources: the source of each fact by name, in order.
    """

    hardware: NodeHardware
    model: str = ""
    memory_bytes: int = 0
    architecture: str = ""
    vendor: str = ""
    links_known: bool = False
    shared_by_time: bool = False
    mig_strategy: str = ""
    mig_profiles: tuple[str, ...] = ()
    mig_capable: bool | None = None
    mig_config: str = ""
    sources: tuple[tuple[str, FactSource], ...] = field(default=(), compare=False)

    @property
    def count(self) -> int:
        """Number of GPUs that are described."""
        return len(self.hardware.gpus)

    @property
    def uneven(self) -> bool:
        """Whether direct links connect some pairs of GPUs better than others."""
        links = self.hardware.links
        if not links:
            return False
        pairs = self.count * (self.count - 1) // 2
        return len(links) < pairs or len({link.mb_per_second for link in links}) > 1

    @property
    def partly_split(self) -> bool:
        """Whether some GPUs are split by MIG, so that it is not known which are whole."""
        return self.mig_strategy == "mixed" and bool(self.mig_profiles)

    @property
    def all_gpus(self) -> int:
        """The set of all GPUs, as bits by index."""
        return (1 << self.count) - 1


@dataclass(slots=True)
class _GatheredFacts:
    """Facts of one node while they are gathered: complaints, and where each is from."""

    complaints: list[str] = field(default_factory=list)
    sources: dict[str, FactSource] = field(default_factory=dict)

    def choose(
        self,
        what: str,
        claims: Iterable[tuple[FactSource, str, Value | None]],
        same: Callable[[Value, Value], bool] | None = None,
        shown: Callable[[Value], str] = str,
    ) -> Value | None:
        """Return the most trusted of what sources say of a fact, each given with where it says so; report others."""
        known = [(source, where, value) for source, where, value in claims if value is not None]
        if not known:
            return None
        known.sort(key=lambda claim: claim[0])
        source, where, value = known[0]
        self.sources[what] = source
        for _, other_where, other in known[1:]:
            if not (same(value, other) if same is not None else value == other):
                self.complaints.append(
                    f"{other_where} says that the {what} of its GPUs is {shown(other)}, and {where} {shown(value)};"
                    f" {shown(value)} counts"
                )
        return value


# ---------------------------------------------------------------- reading


def describe(
    labels: Mapping[str, str], offered: Mapping[str, int], published: Sequence[PublishedGpu] = ()
) -> tuple[NodeGpus | None, list[str]]:
    """Return the GPUs of a node, None without any, and what contradicts itself or can't be read.

    Args:
        labels: of the node.
        offered: allocatable resources of GPU vendors, such as ``nvidia.com/gpu``, by name.
        published: GPUs of its ResourceSlices, in order.
    """
    facts = _GatheredFacts()
    model = _model(labels, published, facts)
    product = product_of(model) if model else None
    shared = model.endswith("-SHARED") or labels.get(REPLICAS_LABEL, "1") not in ("", "0", "1")
    count = _count(labels, offered, published, facts, shared_by_time=shared)
    if not count and not model:
        return None, facts.complaints
    profiles, strategy = _mig(labels, offered, model)
    if strategy == "single" and profiles:
        count = 0  # of MIG devices, between which there are no links
    if count > MAX_GPUS:
        facts.complaints.append(f"it has {count} GPUs, and links are known for {MAX_GPUS} at most; theirs are unknown")
    memory = _memory(labels, published, product, facts)
    architecture = _architecture(labels, published, product, facts)
    hardware, known = _layout(labels, published, product, count if count <= MAX_GPUS else 0, facts)
    return NodeGpus(
        hardware,
        model,
        memory,
        architecture,
        _vendor(labels, offered, architecture),
        known,
        shared_by_time=shared,
        mig_strategy=strategy,
        mig_profiles=profiles,
        mig_capable=_mig_capable(labels, facts),
        mig_config=next((labels[key] for key in MIG_CONFIG_LABELS if labels.get(key)), ""),
        sources=tuple(sorted(facts.sources.items())),
    ), facts.complaints


def _model(labels: Mapping[str, str], published: Sequence[PublishedGpu], facts: _GatheredFacts) -> str:
    models = {gpu.model for gpu in published if gpu.model}
    of_slices = next(iter(models)) if len(models) == 1 else None
    claims: list[tuple[FactSource, str, str | None]] = [(FactSource.SLICES, "its ResourceSlices", of_slices)]
    claims += [(FactSource.LABELS, f"label {key}", labels.get(key) or None) for key in GPU_MODEL_LABELS]
    model = facts.choose("model", claims, _same_model, quoted) or ""
    label = next((labels[key] for key in GPU_MODEL_LABELS if labels.get(key)), "")
    if not of_slices or not label:
        return model
    # A label has the suffixes for shared and split GPUs, and a slice has not.
    return label if _same_model(label, model) else model + suffix_of(label)


def _same_model(first: str, second: str) -> bool:
    """Return whether two names may be of one product: one has all words of the other, or both are one product."""
    words, others = words_of(first), words_of(second)
    if words <= others or others <= words:
        return True
    product, other = product_of(first), product_of(second)
    return product is not None and other is not None and product.words == other.words


def _count(
    labels: Mapping[str, str],
    offered: Mapping[str, int],
    published: Sequence[PublishedGpu],
    facts: _GatheredFacts,
    *,
    shared_by_time: bool,
) -> int:
    claims: list[tuple[FactSource, str, int | None]] = [
        (FactSource.SLICES, "its ResourceSlices", len(published) or None)
    ]
    claims += [(FactSource.LABELS, f"label {key}", _whole(labels, key, facts)) for key in COUNT_LABELS]
    if count := facts.choose("number", claims):
        return count
    count = sum(amount for name, amount in offered.items() if name.endswith("/gpu"))
    if not shared_by_time:
        return count
    replicas = _replicas(labels)
    return count // replicas if replicas > 1 and count % replicas == 0 else 0


def _replicas(labels: Mapping[str, str]) -> int:
    """Return how many pods share a GPU by the label; 0 without one."""
    text = labels.get(REPLICAS_LABEL, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 6 else 0


def _whole(labels: Mapping[str, str], key: str, facts: _GatheredFacts) -> int | None:
    text = labels.get(key, "")
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 6:
        return int(text)
    facts.complaints.append(f"label {key}: {quoted(text)} is not a whole number; it was ignored")
    return None


def _memory(
    labels: Mapping[str, str], published: Sequence[PublishedGpu], product: Product | None, facts: _GatheredFacts
) -> int:
    of_slices = min((gpu.memory_bytes for gpu in published if gpu.memory_bytes), default=None)
    by_name = product.memory_gib * GIB if product is not None and product.memory_gib else None
    claims: list[tuple[FactSource, str, int | None]] = [
        (FactSource.SLICES, "its ResourceSlices", of_slices),
        *(
            (FactSource.LABELS, f"label {key}", _size(labels, key, facts))
            for key in (NVIDIA_MEMORY_LABEL, AMD_MEMORY_LABEL)
        ),
        (FactSource.LABELS, f"label {OWN_MEMORY_LABEL}", _size(labels, OWN_MEMORY_LABEL, facts)),
    ]
    if not any(_is_split(labels.get(key, "")) for key in GPU_MODEL_LABELS):
        claims.append((FactSource.PRODUCT, "the name of its product", by_name))
    return facts.choose("memory", claims, _same_memory, lambda size: f"{size / GIB:.1f} GiB") or 0


def _is_split(model: str) -> bool:
    return "-MIG-" in model


def _same_memory(first: int, second: int) -> bool:
    return min(first, second) * 100 >= max(first, second) * MEMORY_PERCENT


def _size(labels: Mapping[str, str], key: str, facts: _GatheredFacts) -> int | None:
    """Return the size that a label gives in bytes: a number alone is in MiB."""
    text = labels.get(key, "").removesuffix("B").removesuffix("b")
    if not text:
        return None
    if key == AMD_MEMORY_LABEL and text.endswith("G"):
        text += "i"  # AMD's labeller divides by 1024
    try:
        size = parse_quantity(text)
    except QuantityError as error:
        facts.complaints.append(f"label {key}: {error}; it was ignored")
        return None
    size = size * MIB if text.isdecimal() else size
    if 0 < size <= MAX_MEMORY_BYTES:
        return size
    facts.complaints.append(f"label {key}: {quoted(text)} is no size of a memory; it was ignored")
    return None


def _architecture(
    labels: Mapping[str, str], published: Sequence[PublishedGpu], product: Product | None, facts: _GatheredFacts
) -> str:
    names = {gpu.architecture for gpu in published if gpu.architecture}
    claims: list[tuple[FactSource, str, str | None]] = [
        (FactSource.SLICES, "its ResourceSlices", next(iter(names)) if len(names) == 1 else None),
        (FactSource.LABELS, f"label {FAMILY_LABEL}", architecture_name(labels.get(FAMILY_LABEL, "")) or None),
        (
            FactSource.LABELS,
            f"label {MAJOR_LABEL}",
            _of_capability(labels),
        ),
        (FactSource.PRODUCT, "the name of its product", product.architecture if product is not None else None),
    ]
    return facts.choose("architecture", claims) or ""


def _of_capability(labels: Mapping[str, str]) -> str | None:
    major, minor = labels.get(MAJOR_LABEL, ""), labels.get(MINOR_LABEL, "")
    if not (major.isascii() and major.isdecimal() and len(major) < 4):
        return None
    exact = (int(major), int(minor)) if minor.isascii() and minor.isdecimal() and len(minor) < 4 else (int(major),)
    return _COMPUTE_CAPABILITIES.get(exact) or _COMPUTE_CAPABILITIES.get(exact[:1])


def _vendor(labels: Mapping[str, str], offered: Mapping[str, int], architecture: str) -> str:
    if architecture in _AMD_NAMES or any(name.startswith("amd.com/") for name in offered):
        return "amd"
    if architecture or any(name.startswith("nvidia.com/") for name in (*offered, *labels)):
        return "nvidia"
    return ""


# ---------------------------------------------------------------- links and layout


def _layout(
    labels: Mapping[str, str],
    published: Sequence[PublishedGpu],
    product: Product | None,
    count: int,
    facts: _GatheredFacts,
) -> tuple[NodeHardware, bool]:
    board = None
    if topology := labels.get(TOPOLOGY_LABEL, "").strip().lower():
        board = TOPOLOGIES.get(topology)
        if board is None:
            facts.complaints.append(
                f"label {TOPOLOGY_LABEL}: {quoted(topology)} is not one of {', '.join(TOPOLOGIES)}; it was ignored"
            )
    known = links_known(product, count)
    if board is not None and not (topology == "nvlink" and known):
        product, known = on_board(product, board, known), count > 1
        facts.sources["links"] = FactSource.LABELS
    elif known:
        facts.sources["links"] = FactSource.PRODUCT
    hardware = layout_of(product, count)
    numbered = len(published) == count and any(gpu.pcie_root or gpu.numa_node >= 0 for gpu in published)
    if not numbered:
        return hardware, known
    facts.sources["sockets"] = FactSource.SLICES
    gpus = tuple(
        replace(
            gpu,
            numa_node=read.numa_node if read.numa_node != UNKNOWN_NUMA else gpu.numa_node,
            pcie_root=read.pcie_root,
            pcie_switch="" if read.pcie_root else gpu.pcie_switch,
        )
        for gpu, read in zip(hardware.gpus, published, strict=True)
    )
    return replace(hardware, gpus=gpus, gpu_paths=paths_of(gpus)), known


def _mig_capable(labels: Mapping[str, str], facts: _GatheredFacts) -> bool | None:
    values = {"true": True, "false": False}
    claims = [
        (FactSource.LABELS, f"label {key}", values.get(labels.get(key, "").lower())) for key in MIG_CAPABLE_LABELS
    ]
    return facts.choose("MIG capability", claims, shown=lambda capable: str(capable).lower())


def _mig(labels: Mapping[str, str], offered: Mapping[str, int], model: str) -> tuple[tuple[str, ...], str]:
    """Return the profiles of MIG devices of a node, and the strategy that names them."""
    prefix = "nvidia.com/mig-"
    mixed = {name.removeprefix(prefix).replace(".me", "+me") for name in offered if name.startswith(prefix)}
    if mixed:
        return tuple(sorted(mixed)), "mixed"
    if _is_split(model):
        profile = model.rpartition("-MIG-")[2].lower().removesuffix("-shared")
        return (profile.replace(".me", "+me"),), "single"
    strategy = labels.get(STRATEGY_LABEL, "")
    return (), strategy if strategy in ("single", "mixed") else ""
