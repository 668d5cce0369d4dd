"""The largest gangs that fit now, and stranded GPUs, on a terminal and as JSON."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from topo_scheduler.api.text import counted
from topo_scheduler.scheduling.surveying.fragmentation import Fragmentation, LargestGang

Json = dict[str, Any]


def largest_gangs(survey: Fragmentation) -> Group:
    """Return a table for each GPU model with one row for each level. They fit into 80 columns; long names fold."""
    parts: list[RenderableType] = [Text("Largest gang that fits now", style="bold")]
    for model in dict.fromkeys(gang.model for gang in survey.gangs):
        parts += [Text(model or "unknown model"), _table([gang for gang in survey.gangs if gang.model == model])]
    return Group(*parts)


def _table(gangs: list[LargestGang]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("level", "of whole nodes", "in", "of typical members", "in"):
        table.add_column(name, header_style="dim", overflow="fold", no_wrap=name not in ("in", "level"))
    for gang in gangs:
        table.add_row(
            gang.level,
            f"{gang.whole_nodes} x node = {counted(gang.whole_gpus, 'GPU')}",
            _where(gang.whole_path) if gang.whole_gpus else "",
            f"{gang.members} x {gang.typical} = {counted(gang.gpus, 'GPU')}",
            _where(gang.path) if gang.gpus else "",
        )
    return table


def stranded_line(survey: Fragmentation) -> Text:
    """Return a line with the number of free GPUs that no pod can use."""
    parts = [f"{survey.stranded[model]} of {free} {model or 'unknown'}" for model, free in survey.free.items()]
    text = Text(f"Stranded: {', '.join(parts) or 'none'}")
    if any(survey.stranded.values()):
        text.stylize("yellow")
    return text


def as_json(survey: Fragmentation) -> Json:
    """Return the largest gangs and stranded GPUs for JSON output."""
    return {
        "largestGangs": [
            {
                "level": gang.level,
                "gpuModel": gang.model,
                "wholeNodes": {"nodes": gang.whole_nodes, "gpus": gang.whole_gpus, "domain": "/".join(gang.whole_path)},
                "typicalMembers": {
                    "gpusEach": gang.typical,
                    "members": gang.members,
                    "gpus": gang.gpus,
                    "domain": "/".join(gang.path),
                },
            }
            for gang in survey.gangs
        ],
        "strandedGpus": [
            {"gpuModel": model, "free": free, "stranded": survey.stranded[model]} for model, free in survey.free.items()
        ],
    }


def _where(path: tuple[str, ...]) -> str:
    return "/".join(path) or "cluster"
