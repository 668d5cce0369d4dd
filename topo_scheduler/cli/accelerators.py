"""The second tree on a terminal and as JSON: each accelerator domain, and the leaves in which its nodes hang."""

from typing import Any

from rich.table import Table

from topo_scheduler.api.words import few_of
from topo_scheduler.scheduling.surveying.survey import SurveyedDomain, survey_accelerators
from topo_scheduler.scheduling.world import World

MOST_LEAVES = 4
"""Leaves named of one domain."""


def domains(world: World) -> list[tuple[SurveyedDomain, list[str]]]:
    """Return every accelerator domain with the leaves that its nodes hang on, in order."""
    layout, row_of = world.layout, world.nodes.row_of
    found = []
    for domain in survey_accelerators(world):
        leaves = sorted(layout.leaves_of(row_of[name] for name in domain.nodes))
        found.append((domain, ["/".join(layout.paths[leaf]) for leaf in leaves]))
    return found


def table(found: list[tuple[SurveyedDomain, list[str]]]) -> Table:
    """Return a table with a line for each domain."""
    out = Table(title="Accelerator domains", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("domain", "level", "GPUs free", "nodes", "leaves"):
        out.add_column(name, header_style="dim", overflow="fold", no_wrap=name in ("GPUs free", "nodes"))
    for domain, leaves in found:
        out.add_row(
            "/".join(domain.path),
            domain.level,
            f"{domain.free} of {domain.capacity}",
            str(len(domain.nodes)),
            few_of(leaves, MOST_LEAVES),
        )
    return out


def as_json(found: list[tuple[SurveyedDomain, list[str]]]) -> dict[str, Any]:
    """Return them as JSON has it; nothing where there are none."""
    if not found:
        return {}
    return {
        "accelerators": [
            {
                "name": domain.name,
                "type": domain.level,
                "path": "/".join(domain.path),
                "gpus": {
                    "capacity": domain.capacity,
                    "used": domain.used,
                    "free": domain.free,
                    "onEmptyNodes": domain.whole,
                },
                "utilization": round(domain.utilization, 4),
                "fragmentation": round(domain.fragmentation, 4),
                "leaves": leaves,
                "nodes": list(domain.nodes),
            }
            for domain, leaves in found
        ]
    }
