"""Nodes in two leaves: labels of two tools that put a node beside different others.

Tools call a leaf by names of their own, and may mean larger or smaller parts of the network by it; neither is wrong.
Two of them contradict each other where a leaf of the one lies in several of the other, and one of these in several of
the first: then some node was moved, or labelled, for one tool only. Its place is the one that the first tells.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from topo_scheduler.api.words import few_of
from topo_scheduler.state.natural import natural_key

Place = tuple[str | None, ...]
Told = tuple[str, tuple[tuple[str, Place], ...]]
"""The label by which a node tells its leaf; other labels that tell one, and its place as their tools have it."""
_EXAMPLES: Final = 3


class Contradictions:
    """Which labels beside those that hold tell the leaves of nodes, and what is wrong with that."""

    def __init__(self) -> None:
        self._told: dict[int, Told] = {}
        self._said: frozenset[str] = frozenset()
        self._changed = False

    def put(self, row: int, told: Told | None) -> None:
        """Take over what labels of a node tell; None where no more than one tells its leaf."""
        if told is None:
            self.remove(row)
        elif self._told.get(row) != told:
            self._told[row] = told
            self._changed = True

    def remove(self, row: int) -> None:
        """Forget a row."""
        self._changed |= self._told.pop(row, None) is not None

    def complaints(self, nodes: Mapping[int, tuple[str, Place]]) -> list[str]:
        """Return what is wrong, each once until it has been put right; ``nodes`` name and place of each row."""
        if not self._changed:
            return []
        self._changed = False
        found = list(self._found(nodes))
        fresh = [text for text in found if text not in self._said]
        self._said = frozenset(found)
        return fresh

    def _found(self, nodes: Mapping[int, tuple[str, Place]]) -> Iterator[str]:
        pairs: dict[tuple[str, str], dict[tuple[Place, Place], list[str]]] = {}
        for row, (first, others) in self._told.items():
            name, place = nodes[row]
            for key, other in others:
                pairs.setdefault((first, key), {}).setdefault((place, other), []).append(name)
        for (first, key), together in sorted(pairs.items()):
            if lost := _strays(together):
                yield (
                    f"{'node' if len(lost) == 1 else 'nodes'} {few_of(lost, _EXAMPLES)}: labels {first} and {key} tell"
                    f" two leaves: by the one it is beside other nodes than by the other; {first} holds. Correct the"
                    " label that is wrong, or remove it"
                )


def _strays(together: Mapping[tuple[Place, Place], list[str]]) -> list[str]:
    """Return the nodes that are not where most nodes of their leaf are by another label, where both are torn.

    All nodes of torn leaves where they are torn in equal parts.
    """
    parts, others = Counter(one for one, _ in together), Counter(other for _, other in together)
    torn = {both: names for both, names in together.items() if parts[both[0]] > 1 and others[both[1]] > 1}
    most: dict[Place, int] = {}
    for (place, _), names in together.items():
        most[place] = max(most.get(place, 0), len(names))
    few = [name for (place, _), names in torn.items() if len(names) < most[place] for name in names]
    return sorted(few or [name for names in torn.values() for name in names], key=natural_key)
