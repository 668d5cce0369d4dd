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


def rows(node: NodeView, colour: Colour) -> Iterator[Text]:
    """Yield the links of a node on which some GPUs have better ones than others, and the pods that have each GPU."""
    gpus = node.hardware
    if gpus is None or not gpus.uneven:
        return
    by_count: dict[int, list[str]] = {}
    for link in gpus.hardware.links:
        by_count.setdefault(link.count, []).append(f"{link.first}-{link.second}")
    named = [f"x{count} {' '.join(pairs)}" for count, pairs in sorted(by_count.items(), reverse=True)]
    yield Text(f"{_name(gpus)} {', '.join(named)}", style="dim")
    holders = [
        Text.assemble(f"{_indexes(tenant.gpu_indexes)} ", (tenant.name, colour(tenant.namespace, tenant.name)))
        for tenant in node.tenants
        if tenant.gpu_indexes
    ]
    if holders:
        note = "" if node.chosen_by_index else "  (predicted)"
        yield Text.assemble(Text(", ").join(holders), note)


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
