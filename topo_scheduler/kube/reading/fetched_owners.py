"""Answers of the API server about owners that no watch reports, with caps on their number and memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.objects import OwnerReference
from topo_scheduler.kube.reading.owner_chains import Absent, ChainLink, Key, key_of
from topo_scheduler.kube.reading.watched_owners import counted_bytes

MAX_FETCHED_OWNERS: Final = 20_000
"""Maximum number of owners that are kept."""
MAX_FETCHED_BYTES: Final = 32 * 2**20
"""Maximum memory of the annotations of large ones, in bytes."""
DROPPED_FRACTION: Final = 0.1
"""Fraction of either maximum that is freed at once."""


@dataclass(slots=True)
class FetchedOwner:
    """The last answer about an owner, when it was requested, and when the owner was used last, both in seconds."""

    namespace: str
    reference: OwnerReference
    answer: ChainLink | Absent
    asked: float
    used: float
    unanswered: int = 0
    """Consecutive refreshes without an answer."""


class FetchedOwners:
    """Fetched owners by all parts of a reference: one that borrows a uid must not get the answer for the uid's owner.

    Beyond a maximum, the least recently used owners that no pending pod needs are dropped. ``needed`` returns whether
    any pending pod is below the owner with a given uid.
    """

    def __init__(self, needed: Callable[[str], bool]) -> None:
        self._needed = needed
        self._owners: dict[Key, FetchedOwner] = {}
        self._bytes = 0
        self._checked_owners, self._checked_bytes = 0, 0
        """What was left when there were too many last."""

    def __len__(self) -> int:
        return len(self._owners)

    def get(self, key: Key) -> FetchedOwner | None:
        """Return an owner."""
        return self._owners.get(key)

    def items(self) -> list[tuple[Key, FetchedOwner]]:
        """Return all owners with their keys."""
        return list(self._owners.items())

    def put(self, namespace: str, reference: OwnerReference, answer: ChainLink | Absent, now: float) -> None:
        """Keep an answer in place of the last one about this owner."""
        key = key_of(namespace, reference)
        self.pop(key)
        self._owners[key] = FetchedOwner(namespace, reference, answer, now, now)
        self._bytes += _bytes(answer)
        self._make_room()

    def update(self, owner: FetchedOwner, answer: ChainLink | Absent) -> None:
        """Record a newer answer for a kept owner."""
        self._bytes += _bytes(answer) - _bytes(owner.answer)
        owner.answer = answer

    def pop(self, key: Key) -> None:
        """Forget an owner."""
        if (owner := self._owners.pop(key, None)) is not None:
            self._bytes -= _bytes(owner.answer)

    def _make_room(self) -> None:
        # Those that pods need stay. Do not look at all of them each time that one more is read.
        too_many = len(self._owners) > max(MAX_FETCHED_OWNERS, self._checked_owners * (1 + DROPPED_FRACTION))
        too_large = self._bytes > max(MAX_FETCHED_BYTES, self._checked_bytes * (1 + DROPPED_FRACTION))
        if not (too_many or too_large):
            return
        unneeded = [key for key, owner in self._owners.items() if not self._needed(owner.reference.uid)]
        unneeded.sort(key=lambda key: self._owners[key].used)
        owners, bytes_left = MAX_FETCHED_OWNERS * (1 - DROPPED_FRACTION), MAX_FETCHED_BYTES * (1 - DROPPED_FRACTION)
        for key in unneeded:
            if len(self._owners) <= owners and self._bytes <= bytes_left:
                break
            self.pop(key)
        self._checked_owners, self._checked_bytes = len(self._owners), self._bytes


def _bytes(answer: ChainLink | Absent) -> int:
    return counted_bytes(answer) if isinstance(answer, ChainLink) else 0
