"""Rail-optimised fabrics: the NICs of a node connect to different leaf switches, one for each rail.

All nodes that share the same leaf switches form one scalable unit: any two of them are one switch apart on every rail.
The unit replaces the leaf in the order of the fabric. It is named by its switches, as Slurm writes lists of hosts:
``su1-rail[0-7]``.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final

from topo_scheduler.state.topology.natural_sort import natural_key

MAX_UNITS: Final = 65_536
"""Maximum number of remembered sets of leaf switches."""


class RailReader:
    """Reads the scalable unit of a node from the labels that name the leaf of each rail."""

    def __init__(self, labels: Sequence[str], level: int) -> None:
        """``level`` is the index of units among the levels of the fabric, -1 if they have none."""
        self.labels = tuple(labels) if level >= 0 else ()
        self.level = level
        self._names: dict[frozenset[str], str] = {}
        self._leaves: dict[str, tuple[str, ...]] = {}

    def unit(self, labels: Mapping[str, str]) -> str | None:
        """Return the name of a node's unit, None if no label names a rail."""
        leaves = frozenset([labels[key] for key in self.labels if labels.get(key)])
        if not leaves:
            return None
        name = self._names.get(leaves)
        if name is None:
            if len(self._names) > MAX_UNITS:
                self._names.clear()
                self._leaves.clear()
            name = self._names[leaves] = unit_name(leaves)
            self._leaves[name] = tuple(sorted(leaves, key=natural_key))
        return name

    def leaves(self, unit: str) -> tuple[str, ...]:
        """Return the leaf switches of a known unit, none for an unknown one."""
        return self._leaves.get(unit, ())


def unit_name(leaves: frozenset[str]) -> str:
    """Return the name of the unit of these leaves: short, and unique to this set of leaves."""
    names = sorted(leaves, key=natural_key)
    if len(names) == 1:
        return names[0]
    shortest = min(map(len, names))
    head = _common_prefix([name[:shortest] for name in names])
    while head and head[-1].isdigit():
        head = head[:-1]
    tails = [name[len(head) :][::-1] for name in names]
    tail = _common_prefix([name[: min(map(len, tails))] for name in tails])
    while tail and tail[-1].isdigit():
        tail = tail[:-1]
    middles = [name[len(head) : len(name) - len(tail)] for name in names]
    return f"{head}[{','.join(_ranges(middles))}]{tail[::-1]}"


def _common_prefix(names: Sequence[str]) -> str:
    """Return the common prefix of all names."""
    return "".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*names, strict=True)))


def _ranges(parts: Sequence[str]) -> list[str]:
    """Return parts in order, runs of numbers of one width as ``first-last``."""
    runs: list[list[str]] = []
    for part in parts:
        previous = runs[-1][-1] if runs else ""
        follows = previous.isdigit() and part.isdigit() and int(part) == int(previous) + 1
        # 9 and 10 are consecutive, 09 and 10 are too, but not 9 and 010: only numbers without leading zeros may grow.
        same_format = len(part) == len(previous) or not (
            part.startswith("0") or (previous.startswith("0") and previous != "0")
        )
        if follows and same_format:
            runs[-1].append(part)
        else:
            runs.append([part])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
