"""Accelerator domains on a terminal and as JSON: each domain, and the leaves of its nodes."""

from typing import Any

from rich.table import Table

from topo_scheduler.api.text import few_of
from topo_scheduler.scheduling.surveying.survey import SurveyedDomain, survey_accelerators
from topo_scheduler.scheduling.world import World

MAX_LEAVES = 4
"""Maximum leaves of one domain that are named."""


def domains(world: World) -> list[tuple[SurveyedDomain, list[str]]]:
    """Return every accelerator domain with the paths of its nodes' leaves, in order."""
    layout, row_of = world.layout, world.nodes.row_of
    surveyed = []
    for domain in survey_accelerators(world):
        leaves = sorted(layout.leaves_of(row_of[name] for name in domain.nodes))
        surveyed.append((domain, ["/".join(layout.paths[leaf]) for leaf in leaves]))
    return surveyed


def table(surveyed: list[tuple[SurveyedDomain, list[str]]]) -> Table:
    """Return a table with one row for each domain."""
    rendered = Table(title="Accelerator domains", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("domain", "level", "GPUs free", "nodes", "leaves"):
        rendered.add_column(name, header_style="dim", overflow="fold", no_wrap=name in ("GPUs free", "nodes"))
    for domain, leaves in surveyed:
        rendered.add_row(
            "/".join(domain.path),
            domain.level,
            f"{domain.free} of {domain.capacity}",
            str(len(domain.nodes)),
            few_of(leaves, MAX_LEAVES),
        )
    return rendered


def as_json(surveyed: list[tuple[SurveyedDomain, list[str]]]) -> dict[str, Any]:
    """Return the domains for JSON output; an empty dictionary without any."""
    if not surveyed:
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
            for domain, leaves in surveyed
        ]
    }
