"""Rail-optimised fabrics: the NICs of a node hang on different leaf switches, one for each rail.

All nodes that share the same leaf switches form one scalable unit: any two of them are one switch apart on every rail.
The unit takes the leaf's place in the order of the fabric. It is named by its switches, as Slurm writes lists of hosts:
``su1-rail[0-7]``.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from topo_scheduler.state.natural import natural_key


class RailReader:
    """Reads the scalable unit of a node from the labels that name the leaf of each rail."""

    def __init__(self, labels: Sequence[str], level: int) -> None:
        """``level`` the place of units among the levels of the fabric, -1 where they have none."""
        self.labels = tuple(labels) if level >= 0 else ()
        self.level = level
        self._names: dict[frozenset[str], str] = {}
        self._leaves: dict[str, tuple[str, ...]] = {}

    def unit(self, labels: Mapping[str, str]) -> str | None:
        """Return the name of a node's unit, None where no label tells a rail."""
        leaves = frozenset([labels[key] for key in self.labels if labels.get(key)])
        if not leaves:
            return None
        name = self._names.get(leaves)
        if name is None:
            if len(self._names) > 65_536:
                self._names.clear()
                self._leaves.clear()
            name = self._names[leaves] = unit_name(leaves)
            self._leaves[name] = tuple(sorted(leaves, key=natural_key))
        return name

    def leaves(self, unit: str) -> tuple[str, ...]:
        """Return the leaf switches of a unit that some node was in, none where there is no such unit."""
        return self._leaves.get(unit, ())


def unit_name(leaves: frozenset[str]) -> str:
    """Return the name of the unit that hangs on these leaves: short, and no other set of leaves has it."""
    names = sorted(leaves, key=natural_key)
    if len(names) == 1:
        return names[0]
    shortest = min(map(len, names))
    head = _alike([name[:shortest] for name in names])
    while head and head[-1].isdigit():
        head = head[:-1]
    tails = [name[len(head) :][::-1] for name in names]
    tail = _alike([name[: min(map(len, tails))] for name in tails])
    while tail and tail[-1].isdigit():
        tail = tail[:-1]
    between = [name[len(head) : len(name) - len(tail)] for name in names]
    return f"{head}[{','.join(_ranges(between))}]{tail[::-1]}"


def _alike(names: Sequence[str]) -> str:
    """Return what all names begin with."""
    return "".join(one[0] for one in takewhile(lambda column: len(set(column)) == 1, zip(*names, strict=True)))


def _ranges(parts: Sequence[str]) -> list[str]:
    """Return parts in order, runs of numbers of one width as ``first-last``."""
    out: list[list[str]] = []
    for part in parts:
        before = out[-1][-1] if out else ""
        follows = before.isdigit() and part.isdigit() and int(part) == int(before) + 1
        # 9 and 10 are neighbours, 09 and 9 are not alike: only numbers without leading zeros may grow.
        alike = len(part) == len(before) or not (part.startswith("0") or (before.startswith("0") and before != "0"))
        if follows and alike:
            out[-1].append(part)
        else:
            out.append([part])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in out]
