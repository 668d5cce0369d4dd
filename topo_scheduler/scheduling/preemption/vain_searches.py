"""Searches for victims that found none: workloads with equal requests share the last result, as long as it holds."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

MAX_SEARCHES: Final = 4096
"""Maximum number of searches that are remembered."""
MAX_UNUSED_SEARCHES: Final = 16
"""Maximum number of searches in vain that are remembered though no workload shares them any more."""


@dataclass(slots=True)
class VainSearch:
    """Searches in vain by workloads with equal requests.

    ``stamp`` is the state of the last search. ``until`` is when the next search may start, in seconds.
    """

    key: object
    stamp: Hashable = None
    reason: str = ""
    """Why the last search found no victims, for readers in the namespace ``reader``."""
    reader: str = ""
    reason_elsewhere: str = ""
    """The same for readers in other namespaces: it names no object."""
    times: int = 0
    until: float = 0.0
    exceeded: int = 0
    """Operations that the last search exceeded; 0 if it exceeded none."""
    users: int = 0
    """Workloads that share this search."""

    def sentence(self, reader: str) -> str:
        """Return why the last search found no victims, for readers in a namespace."""
        return self.reason if reader == self.reader else self.reason_elsewhere


class VainSearches:
    """Searches by their key, and the one that each workload shares."""

    def __init__(self) -> None:
        self._searches: dict[object, VainSearch] = {}
        self._search_of: dict[str, VainSearch] = {}
        self._unused: dict[object, None] = {}
        """Keys of searches that no workload shares any more, the oldest first."""

    def get(self, key: object) -> VainSearch | None:
        """Return the search with a key."""
        return self._searches.get(key)

    def of(self, id_: str) -> VainSearch | None:
        """Return the search that a workload shares."""
        return self._search_of.get(id_)

    def share(self, id_: str, key: object) -> VainSearch:
        """Return the search with a key, which a workload shares from now on."""
        if len(self._searches) > MAX_SEARCHES:
            self._searches.clear()
            self._unused.clear()
        self._unused.pop(key, None)
        search = self._searches.setdefault(key, VainSearch(key))
        if self._search_of.get(id_) is not search:
            self.leave(id_)
            self._search_of[id_] = search
            search.users += 1
        return search

    def leave(self, id_: str) -> None:
        """Record that a workload no longer shares its last search.

        Keys of searches hold classes, which may be large.
        """
        search = self._search_of.pop(id_, None)
        if search is None:
            return
        search.users -= 1
        if not search.users and self._searches.get(search.key) is search:
            self._unused[search.key] = None
        while len(self._unused) > MAX_UNUSED_SEARCHES:
            key = next(iter(self._unused))
            del self._unused[key]
            self._searches.pop(key, None)

    def forget_unused(self) -> None:
        """Forget searches that no workload shares any more."""
        for key in self._unused:
            self._searches.pop(key, None)
        self._unused.clear()
