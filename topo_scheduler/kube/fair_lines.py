"""What is to be written of objects, the newest of each, in one line a namespace: the namespaces take turns.

However much one namespace has to be written, or however long the API server takes for it, that of others is written.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairLines(Generic[Item]):
    """Lines of items by uid of their objects.

    Args:
        each: items of one namespace that are written at once, at most.
        since: since when an item is in its line, in seconds.
    """

    def __init__(self, each: int, since: Callable[[Item], float]) -> None:
        self._each = each
        self._since = since
        self._lines: OrderedDict[str, dict[str, Item]] = OrderedDict()
        """By namespace: the one whose turn it is first."""
        self._waiting: dict[str, str] = {}
        """Namespaces of the objects in lines, by uid."""
        self._doing: dict[str, str] = {}
        """Namespaces of the objects that are written, by uid."""
        self._busy: Counter[str] = Counter()
        """How many are written, by namespace."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def get(self, uid: str) -> Item | None:
        """Return what is to be written of an object."""
        namespace = self._waiting.get(uid)
        return None if namespace is None else self._lines[namespace][uid]

    def put(self, namespace: str, uid: str, item: Item) -> None:
        """Add what is to be written of an object, in place of what was."""
        self._lines.setdefault(namespace, {})[uid] = item
        self._waiting[uid] = namespace

    def drop(self, uid: str) -> Item | None:
        """Return what was to be written of an object, no longer in its line."""
        namespace = self._waiting.pop(uid, None)
        if namespace is None:
            return None
        line = self._lines[namespace]
        item = line.pop(uid)
        if not line:
            del self._lines[namespace]
        return item

    def oldest(self) -> float | None:
        """Return since when the oldest of those has been in its line that may be taken; None where none may."""
        return min((self._since(self._lines[namespace][uid]) for namespace, uid in self._heads()), default=None)

    def take(self) -> tuple[str, Item]:
        """Return the next object, by uid, and what is to be written of it; until `done` no more of it is."""
        namespace, uid = next(self._heads())
        self._lines.move_to_end(namespace)
        self._doing[uid] = namespace
        self._busy[namespace] += 1
        item = self.drop(uid)
        assert item is not None
        return uid, item

    def done(self, uid: str) -> None:
        """Note that the write of an object has ended."""
        namespace = self._doing.pop(uid)
        self._busy[namespace] -= 1
        if not self._busy[namespace]:
            del self._busy[namespace]

    def _heads(self) -> Iterator[tuple[str, str]]:
        """Yield namespace and uid of the first of each line that may be taken, in order of turns."""
        for namespace, line in self._lines.items():
            if self._busy.get(namespace, 0) < self._each:
                uid = next((uid for uid in line if uid not in self._doing), None)
                if uid is not None:
                    yield namespace, uid
