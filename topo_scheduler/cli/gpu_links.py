"""Links between the GPUs of a node, and which pods have which of them, as text and JSON."""

from collections.abc import Iterator
from typing import Any, Final

from rich.text import Text

from topo_scheduler.api.gpu_needs import bandwidth_text
from topo_scheduler.cli.device_rows import Colour, ranges
from topo_scheduler.cli.views import NodeView
from topo_scheduler.state.devices.node_hardware import NodeGpus

_LINKS: Final = {"amd": "XGMI"}
"""Names of links by vendor; NVLink otherwise."""


def rows(node: NodeView, colour: Colour, *, every: bool = True) -> Iterator[Text]:
    """Yield how the GPUs of a node are linked, and the pods that have each GPU; without ``every``, for uneven links."""
    gpus = node.hardware
    if not every and (gpus is None or not gpus.uneven):
        return
    if text := _links(node, gpus):
        yield Text(text, style="dim")
    holders = [
        Text.assemble(f"{_indexes(tenant.gpu_indexes)} ", (tenant.name, colour(tenant.namespace, tenant.name)))
        for tenant in node.tenants
        if tenant.gpu_indexes
    ]
    if holders:
        note = "" if node.chosen_by_index else "  (predicted)"
        yield Text.assemble(Text(", ").join(holders), note)


def _links(node: NodeView, gpus: NodeGpus | None) -> str:
    """Return how the GPUs of a node are linked; empty if it has fewer than two, or parts of split ones."""
    if gpus is not None and gpus.mig_strategy == "single" and gpus.mig_profiles:
        return ""
    if ((gpus.count if gpus is not None else 0) or node.capacity) < 2:
        return ""
    if gpus is None or not gpus.links_known:
        return "links between GPUs unknown"
    if gpus.uneven:
        by_count: dict[int, list[str]] = {}
        for link in gpus.hardware.links:
            by_count.setdefault(link.count, []).append(f"{link.first}-{link.second}")
        named = [f"x{count} {' '.join(pairs)}" for count, pairs in sorted(by_count.items(), reverse=True)]
        return f"{_name(gpus)} {', '.join(named)}"
    every = f"{_indexes(tuple(range(gpus.count)))} linked by"
    if gpus.hardware.links:
        of_pair = _bandwidth(gpus.hardware.links[0].mb_per_second, "between each pair")
        return f"{every} {_name(gpus)}, {of_pair}"
    if _is_switched(gpus):
        slowest = min(gpu.switch_links * gpu.link_mb_per_second for gpu in gpus.hardware.gpus)
        return f"{every} NVSwitch, {_bandwidth(slowest, 'each')}"
    return f"{every} PCIe only"


def _bandwidth(mb_per_second: int, of_what: str) -> str:
    return f"{bandwidth_text(mb_per_second)} {of_what}" if mb_per_second else "bandwidth unknown"


def as_json(node: NodeView) -> dict[str, Any]:
    """Return what is known of the links of a node; nothing if nothing is."""
    gpus = node.hardware
    if gpus is None or not gpus.links_known:
        return {}
    hardware = gpus.hardware
    return {
        "gpuLinks": {
            "kind": _name(gpus) if hardware.links or _is_switched(gpus) else None,
            "switched": _is_switched(gpus),
            "pairs": [
                {
                    "gpus": [link.first, link.second],
                    "links": link.count,
                    "bandwidth": bandwidth_text(link.mb_per_second),
                }
                for link in hardware.links
            ],
        }
    }


def _is_switched(gpus: NodeGpus) -> bool:
    return any(gpu.switch_links for gpu in gpus.hardware.gpus)


def _name(gpus: NodeGpus) -> str:
    return _LINKS.get(gpus.vendor, "NVLink")


def _indexes(indexes: tuple[int, ...]) -> str:
    shown = ranges([str(index) for index in indexes]).replace("[", "").replace("]", "")
    return f"GPU {shown}" if len(indexes) == 1 else f"GPUs {shown}"
