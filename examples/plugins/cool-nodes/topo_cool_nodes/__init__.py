"""Keeps pods off hot nodes, and prefers cooler ones.

A node tells its temperature in the label ``example.com/celsius``; an agent on the node keeps it up to date. A
pod, or an owner of it, says in the annotation ``example.com/max-celsius`` how hot its node may be.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from topo_cool_nodes.kernels import cool_enough
from topo_scheduler.plugins import WHOLE, Bool, Filter, Int64, Nodes, Plugin, PodClass, Request, Score

LABEL = "example.com/celsius"
ANNOTATION = "example.com/max-celsius"
UNKNOWN = -1


def temperatures(nodes: Nodes, rows: Int64) -> Int64:
    """Return the temperature of each row (int64[n], degrees Celsius), -1 where its label tells none."""
    ids = nodes.label_column(LABEL)[rows]
    # Few values are shared by many nodes: read each once.
    values, where = np.unique(ids, return_inverse=True)
    read = [_celsius(nodes.values[value]) if value >= 0 else UNKNOWN for value in values.tolist()]
    return np.array(read, np.int64)[where]


def _celsius(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 4 else UNKNOWN


def not_too_hot(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return which rows are cool enough; one that tells no temperature is."""
    wanted = cls.annotation(ANNOTATION)
    limit = _celsius(wanted) if wanted is not None else UNKNOWN
    if limit == UNKNOWN:
        return np.ones(len(rows), np.bool_)
    return cool_enough(temperatures(nodes, rows), limit)  # type: ignore[no-any-return]


def plugin(arguments: Mapping[str, Any]) -> Plugin:
    """Return the plugin. Arguments: ``hottest``, the temperature that scores 0 (default 100).

    Raises:
        ValueError: an argument that is unknown, or makes no sense.
    """
    if unknown := set(arguments) - {"hottest"}:
        raise ValueError(f"unknown argument {min(unknown)}; there is hottest")
    hottest = arguments.get("hottest", 100)
    if not isinstance(hottest, int) or hottest < 1:
        raise ValueError(f"hottest is {hottest!r}; write degrees Celsius above 0")

    def coolness(nodes: Nodes, request: Request, rows: Int64) -> Int64:
        """Return 1000 at 0 degrees, 0 at the hottest; 500 where nothing is known."""
        celsius = temperatures(nodes, rows)
        scores = WHOLE - WHOLE * np.minimum(celsius, hottest) // hottest
        return np.where(celsius == UNKNOWN, WHOLE // 2, scores)

    return Plugin(
        annotations=[ANNOTATION],
        node_labels=[LABEL],
        filters=[Filter("node(s) were too hot", not_too_hot)],
        scores=[Score("coolness", nodes=coolness, weight=0.2)],
    )
