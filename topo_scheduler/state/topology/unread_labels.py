"""Node labels under the scheduler's own prefix that it does not read: most often a typing error in a label's name."""

from collections.abc import Iterable, Iterator
from typing import Final

from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.text import did_you_mean, few_of
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.topology.natural_sort import natural_key

MAX_REPORTED: Final = 32
"""Maximum labels that warnings name at the same time."""
_EXAMPLES: Final = 3
_LONGEST_SUGGESTED_CHARACTERS: Final = 40


class UnreadLabels:
    """Warns once about each label of nodes under the prefix that nothing reads, until no node has it any more."""

    def __init__(self, nodes: NodeTable, read: Iterable[str]) -> None:
        self._nodes = nodes
        self._always = frozenset(read)
        self._read = self._always
        self._reported: frozenset[str] = frozenset()
        self._generation = -1

    def configure(self, read: Iterable[str]) -> None:
        """Set the labels that the current configuration reads in addition."""
        self._read = self._always | frozenset(read)
        self._generation = -1

    def complaints(self) -> list[str]:
        """Return new warnings. Costs next to nothing if nodes have the same labels as before."""
        if self._generation == self._nodes.keys_generation:
            return []
        self._generation = self._nodes.keys_generation
        unread = sorted(key for key in self._nodes.carried_keys() if key.startswith(PREFIX) and key not in self._read)
        unread = [key for key in unread if key in self._reported] + [key for key in unread if key not in self._reported]
        new = [key for key in unread[:MAX_REPORTED] if key not in self._reported]
        self._reported = frozenset(unread[:MAX_REPORTED])
        return [self._complaint(key) for key in new]

    def _complaint(self, key: str) -> str:
        names = sorted(self._nodes_with(key), key=natural_key)
        hint = ""
        if len(key) <= len(PREFIX) + _LONGEST_SUGGESTED_CHARACTERS:
            known = [name.removeprefix(PREFIX) for name in sorted(self._read) if name.startswith(PREFIX)]
            hint = did_you_mean(key.removeprefix(PREFIX).lower(), known).replace("mean ", f"mean {PREFIX}")
        return (
            f"{'node' if len(names) == 1 else 'nodes'} {few_of(names, _EXAMPLES)}: label {key} is not known to this"
            f" scheduler and is ignored{hint and '; '}{hint}"
        )

    def _nodes_with(self, key: str) -> Iterator[str]:
        for name, row in self._nodes.row_of.items():
            if key in self._nodes.labels[row]:
                yield name
