"""The largest gangs that fit now and stranded GPUs, on a terminal and as JSON."""

from typing import Any

from rich.table import Table
from rich.text import Text

from topo_scheduler.scheduling.surveying.fragmentation import Fragmentation

Json = dict[str, Any]


def largest_gangs(found: Fragmentation) -> Table:
    """Return a table with a line for each level and GPU model."""
    table = Table(
        title="Largest gang that fits now", title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    for name in ("level", "model", "of whole nodes", "in", "of typical members", "in"):
        # Names are folded on a narrow terminal, figures are not.
        table.add_column(name, header_style="dim", no_wrap=name not in ("model", "in"), overflow="fold")
    for one in found.gangs:
        table.add_row(
            one.level,
            one.model or "unknown",
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
