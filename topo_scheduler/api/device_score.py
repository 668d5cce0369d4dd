"""The score of a pod's GPUs by its parts, as it is written on the pod when it is bound."""

import re
from collections.abc import Mapping
from typing import Final

from topo_scheduler.api.annotations import DEVICE_SCORE

TOPOLOGY_WEIGHT: Final = 40
RESOURCES_WEIGHT: Final = 35
BALANCE_WEIGHT: Final = 25
PARTS: Final = ("total", "topology", "base", "nvlink", "same-socket", "same-pcie-switch", "resources", "balance")
"""``total`` weights ``topology``, ``resources`` and ``balance``. ``topology`` is the sum of the four parts after it."""
_PART: Final = re.compile(r"([a-z-]{1,20})=([0-9]{1,3})")


def write_device_score(parts: Mapping[str, int]) -> str:
    """Return the parts, each from 0 to 100, as text."""
    return ",".join(f"{name}={parts[name]}" for name in PARTS)


def written_device_score(annotations: Mapping[str, str]) -> dict[str, int] | None:
    """Return the parts that this scheduler wrote; None without valid ones."""
    matches = [_PART.fullmatch(text) for text in annotations.get(DEVICE_SCORE, "").split(",", len(PARTS))]
    parts = {match[1]: int(match[2]) for match in matches if match is not None}
    return parts if tuple(parts) == PARTS and len(matches) == len(PARTS) and max(parts.values()) <= 100 else None
