"""Nodes in two leaves: labels of two tools that group a node with different nodes.

Each tool has its own names for leaves, which may stand for larger or smaller parts of the network; neither is wrong.
Two tools contradict each other if a leaf of one overlaps several of the other, and one of these overlaps several of
the first. Then a node was moved, or labelled, for one tool only. The first tool's label decides its position.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from topo_scheduler.api.text import few_of
from topo_scheduler.state.topology.natural_sort import natural_key

Place = tuple[str | None, ...]
LeafLabels = tuple[str, tuple[tuple[str, Place], ...]]
"""The label that decides a node's leaf; the other labels with a leaf, and the node's position by each."""
_EXAMPLES: Final = 3


class LabelConflicts:
    """Nodes with several labels for their leaf, and the contradictions among these labels."""

    def __init__(self) -> None:
        self._labels: dict[int, LeafLabels] = {}
        self._reported: frozenset[str] = frozenset()
        self._changed = False

    def put(self, row: int, labels: LeafLabels | None) -> None:
        """Store the leaf labels of a node; None where at most one label has its leaf."""
        if labels is None:
            self.remove(row)
        elif self._labels.get(row) != labels:
            self._labels[row] = labels
            self._changed = True

    def remove(self, row: int) -> None:
        """Remove a row."""
        self._changed |= self._labels.pop(row, None) is not None

    def complaints(self, nodes: Mapping[int, tuple[str, Place]]) -> list[str]:
        """Return contradictions, each once until it is corrected; ``nodes`` has name and position of each row."""
        if not self._changed:
            return []
        self._changed = False
        messages = list(self._conflicts(nodes))
        new_messages = [text for text in messages if text not in self._reported]
        self._reported = frozenset(messages)
        return new_messages

    def _conflicts(self, nodes: Mapping[int, tuple[str, Place]]) -> Iterator[str]:
        pairs: dict[tuple[str, str], dict[tuple[Place, Place], list[str]]] = {}
        for row, (first, unused) in self._labels.items():
            name, place = nodes[row]
            for key, other_place in unused:
                pairs.setdefault((first, key), {}).setdefault((place, other_place), []).append(name)
        for (first, key), nodes_by_places in sorted(pairs.items()):
            if strays := _strays(nodes_by_places):
                yield (
                    f"{'node' if len(strays) == 1 else 'nodes'} {few_of(strays, _EXAMPLES)}: labels {first} and {key}"
                    " name different leaves, each with other nodes;"
                    f" {first} is used. Correct the wrong label, or remove it"
                )


def _strays(nodes_by_places: Mapping[tuple[Place, Place], list[str]]) -> list[str]:
    """Return the nodes that the second label separates from most nodes of their leaf, if both leaves are split.

    If leaves are split into equal parts, return all their nodes.
    """
    parts_of_first = Counter(first for first, _ in nodes_by_places)
    parts_of_second = Counter(second for _, second in nodes_by_places)
    torn = {
        places: names
        for places, names in nodes_by_places.items()
        if parts_of_first[places[0]] > 1 and parts_of_second[places[1]] > 1
    }
    largest: dict[Place, int] = {}
    for (place, _), names in nodes_by_places.items():
        largest[place] = max(largest.get(place, 0), len(names))
    minority = [name for (place, _), names in torn.items() if len(names) < largest[place] for name in names]
    return sorted(minority or [name for names in torn.values() for name in names], key=natural_key)
