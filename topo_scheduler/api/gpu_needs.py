"""What a workload asks of the GPUs of its node by annotation: how close they are, how large, and of which kind."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from topo_scheduler.api.quantity import QuantityError, parse_quantity
from topo_scheduler.api.text import quoted

MIN_MEMORY_BYTES: Final = 1 << 20
MAX_BANDWIDTH_MB_PER_SECOND: Final = 100_000_000
MAX_ARCHITECTURES: Final = 16
_ARCHITECTURE: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_MIG_PROFILE: Final = re.compile(r"[1-9]g\.[1-9][0-9]{0,2}gb((\+|\.)(me\.all|me|gfx)|-me)?")
ARCHITECTURE_ALIASES: Final = {"ada": "ada-lovelace", "lovelace": "ada-lovelace"}


class GpuLocality(StrEnum):
    """How close the GPUs of a pod must be to each other."""

    ANY = "any"
    SAME_NODE = "same-node"
    """As any: the GPUs of a pod are always on one node."""
    SAME_SOCKET = "same-socket"
    SAME_PCIE_SWITCH = "same-pcie-switch"
    NVLINK = "nvlink"
    """Connected by NVLink or XGMI, directly, over each other, or by a switch."""


@dataclass(frozen=True, slots=True)
class GpuNeeds:
    """What a pod asks of its GPUs; the defaults ask for nothing.

    Attributes:
        locality: how close they are to each other.
        bandwidth: MB/s in each direction that the slowest link of their best ring has; 0 for no request.
        memory_bytes: memory that each has; 0 for no request.
        architectures: acceptable ones, in order; empty for any.
        mig_profile: profile of the MIG devices that the limits name; empty for none.
        required: whether nodes that do not meet a request are excluded; otherwise they are only less preferred.
    """

    locality: GpuLocality = GpuLocality.ANY
    bandwidth: int = 0
    memory_bytes: int = 0
    architectures: tuple[str, ...] = ()
    mig_profile: str = ""
    required: bool = True

    @property
    def close(self) -> bool:
        """Whether it matters which GPUs of a node a pod gets."""
        return self.bandwidth > 0 or self.locality not in (GpuLocality.ANY, GpuLocality.SAME_NODE)

    @property
    def of_each(self) -> bool:
        """Whether it matters what each GPU is like."""
        return bool(self.memory_bytes or self.architectures or self.mig_profile)

    def closeness(self) -> "GpuNeeds":
        """Return only what is asked on how close the GPUs are."""
        return GpuNeeds(self.locality, self.bandwidth, required=self.required)


def parse_gpu_memory(text: str) -> int:
    """Return the memory of a GPU in bytes.

    Raises:
        ValueError: no quantity, or less than 1 MiB, as of a number without unit.
    """
    try:
        size = parse_quantity(text.strip())
    except QuantityError as error:
        raise ValueError(f"{quoted(text)} is not a size of memory such as 40Gi or 80G") from error
    if size < MIN_MEMORY_BYTES:
        raise ValueError(f"{quoted(text)} is less than 1 MiB; write a size with its unit, such as 40Gi")
    return size


def parse_gpu_bandwidth(text: str) -> int:
    """Return a bandwidth between GPUs in MB/s in each direction, rounded up.

    The text is in bytes per second, both directions together, as vendors state it for NVLink and XGMI.

    Raises:
        ValueError: no quantity, zero, or more than the links of any GPU carry.
    """
    stripped = text.strip()
    if re.search(r"[0-9]\s*[KMGT]i?(b|bps|bit|bit/s)$", stripped):
        raise ValueError(f"{quoted(text)} is in bits; write bytes per second, both directions together, such as 600G")
    try:
        size = parse_quantity(re.sub(r"(?<=[KMGTi])B(ps|/s)?$", "", stripped))
    except QuantityError as error:
        raise ValueError(f"{quoted(text)} is not a bandwidth in bytes per second such as 600G or 600Gi") from error
    mb_per_second = -(-size // 2_000_000)
    if not 0 < mb_per_second <= MAX_BANDWIDTH_MB_PER_SECOND or size < 1_000_000:
        raise ValueError(f"{quoted(text)} is not between 1M and 200T bytes per second; write a value such as 600G")
    return mb_per_second


def parse_architectures(text: str) -> tuple[str, ...]:
    """Return names of architectures, normalised and in order.

    Raises:
        ValueError: none, too many, or not a name.
    """
    names = sorted({architecture_name(part) for part in text.split(",") if part.strip()})
    if not names or len(names) > MAX_ARCHITECTURES:
        raise ValueError(f"{quoted(text)} has not 1 to {MAX_ARCHITECTURES} architectures, separated by commas")
    for name in names:
        if _ARCHITECTURE.fullmatch(name) is None:
            raise ValueError(f"{quoted(name)} is not an architecture such as hopper or cdna3")
    return tuple(names)


def architecture_name(text: str) -> str:
    """Return the name of an architecture in the form that is compared: ``Ada Lovelace`` is ``ada-lovelace``."""
    name = re.sub(r"[\s_]+", "-", text.strip().lower())
    return ARCHITECTURE_ALIASES.get(name, name)


def parse_mig_profile(text: str) -> str:
    """Return a MIG profile as NVIDIA writes it.

    Raises:
        ValueError: not a profile.
    """
    profile = text.strip().lower()
    if _MIG_PROFILE.fullmatch(profile) is None:
        raise ValueError(f"{quoted(text)} is not a MIG profile such as 1g.10gb or 1g.10gb+me")
    return re.sub(r"gb\.(?=me|gfx)", "gb+", profile)


def mig_resource_suffix(profile: str) -> str:
    """Return the end of the resource name of a profile: the device plugin writes ``+me`` as ``.me``."""
    return profile.replace("+", ".")


def memory_text(size_bytes: int) -> str:
    """Return a size of memory as users write it."""
    return f"{size_bytes / (1 << 30):.4g}Gi"


def bandwidth_text(mb_per_second: int) -> str:
    """Return a bandwidth as users write it: bytes per second, both directions together."""
    both = 2 * mb_per_second
    return f"{both // 1000} GB/s" if both >= 1000 else f"{both} MB/s"
