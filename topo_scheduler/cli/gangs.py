"""The largest gangs that fit now and stranded GPUs, on a terminal and as JSON."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from topo_scheduler.scheduling.surveying.fragmentation import Fragmentation, LargestGang

Json = dict[str, Any]


def largest_gangs(found: Fragmentation) -> Group:
    """Return a table for each GPU model with a line for each level. They fit into 80 columns; long names fold."""
    parts: list[RenderableType] = [Text("Largest gang that fits now", style="bold")]
    for model in dict.fromkeys(one.model for one in found.gangs):
        parts += [Text(model or "unknown model"), _table([one for one in found.gangs if one.model == model])]
    return Group(*parts)


def _table(gangs: list[LargestGang]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("level", "of whole nodes", "in", "of typical members", "in"):
        table.add_column(name, header_style="dim", overflow="fold", no_wrap=name not in ("in", "level"))
    for one in gangs:
        table.add_row(
            one.level,
            f"{one.whole_nodes} x node = {_gpus(one.whole_gpus)}",
            _where(one.whole_path) if one.whole_gpus else "",
            f"{one.members} x {one.typical} = {_gpus(one.gpus)}",
            _where(one.path) if one.gpus else "",
        )
    return table


def stranded_line(found: Fragmentation) -> Text:
    """Return how many free GPUs nobody can have."""
    parts = [f"{found.stranded[model]} of {free} {model or 'unknown'}" for model, free in found.free.items()]
    text = Text(f"Stranded: {', '.join(parts) or 'none'}")
    if any(found.stranded.values()):
        text.stylize("yellow")
    return text


def as_json(found: Fragmentation) -> Json:
    """Return it as JSON has it."""
    return {
        "largestGangs": [
            {
                "level": one.level,
                "gpuModel": one.model,
                "wholeNodes": {"nodes": one.whole_nodes, "gpus": one.whole_gpus, "domain": "/".join(one.whole_path)},
                "typicalMembers": {
                    "gpusEach": one.typical,
                    "members": one.members,
                    "gpus": one.gpus,
                    "domain": "/".join(one.path),
                },
            }
            for one in found.gangs
        ],
        "strandedGpus": [
            {"gpuModel": model, "free": free, "stranded": found.stranded[model]} for model, free in found.free.items()
        ],
    }


def _where(path: tuple[str, ...]) -> str:
    return "/".join(path) or "cluster"


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"
