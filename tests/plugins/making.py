"""Plugins for tests, and installing them without pip."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from topo_scheduler.plugins import Bool, Filter, Int64, Nodes, Plugin, PodClass

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLE: Final = ROOT / "examples" / "plugins" / "cool-nodes"


def metadata(folder: Path, project: Path) -> Path:
    """Write into a folder what pip would write there for a project: then its entry points are found."""
    table = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dist_info(folder, table["name"], table["entry-points"]["topo_scheduler.plugins"], table["version"])


def dist_info(folder: Path, name: str, points: dict[str, str], version: str = "1.0") -> Path:
    """Write the metadata of an installed package with these plugins."""
    where = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    where.mkdir()
    (where / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = "".join(f"{point} = {target}\n" for point, target in points.items())
    (where / "entry_points.txt").write_text(f"[topo_scheduler.plugins]\n{lines}")
    return where


def filtering(
    accepts: Callable[[Nodes, PodClass, Int64], Bool], *, name: str = "test", annotation: str = "", opt_in: bool = False
) -> Plugin:
    """A plugin with a filter, for pods with an annotation if one is named."""
    return Plugin(
        name,
        annotations=[annotation] if annotation else [],
        opt_in=opt_in,
        filters=[Filter("node(s) would not", accepts)],
    )


def nowhere(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Accept no node."""
    return np.zeros(len(rows), np.bool_)


def anywhere(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Accept every node."""
    return np.ones(len(rows), np.bool_)
