"""The search for others that might move, one at a time and in parts, between which everything else goes on.

It looks at a copy of the state. Where it took more than one step, what it found is looked at once more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Phase
from topo_scheduler.recovery.ground import MigrationContext
from topo_scheduler.recovery.room import Relocation, look_for_room, looked_again
from topo_scheduler.recovery.seating import MovingPod
from topo_scheduler.recovery.tracked import Tracked
from topo_scheduler.scheduling.parts import Parts

SLICE: Final = 0.005
"""Seconds a step may search; one part may take longer."""
NEXT: Final = 0.02
"""Seconds until the search goes on, or the next Migration may begin one."""
FORGOTTEN: Final = 1.0
"""Seconds after which a search is given up that nobody asked for."""
PAUSE: Final = 10
"""How many times as long as a search that found nothing took the next for the same waits."""
LEAST_PAUSE: Final = 1.0
"""Seconds it waits at least."""


@dataclass(slots=True)
class _SlicedSearch:
    key: str
    parts: Parts[Relocation]
    state: object
    asked: float
    spent: float = 0.0
    slices: int = 0


@dataclass(frozen=True, slots=True)
class Searched:
    """How a search ended: what was found, if anything; else ``state`` on which it looked, and when to look again."""

    room: Relocation | None
    state: object
    again: float


class Searching:
    """One search at a time. ``clock`` tells how long a step has searched; if it stands still, all is done in one."""

    def __init__(self, ground: MigrationContext, clock: Callable[[], float]) -> None:
        self._ground = ground
        self._clock = clock
        self._search: _SlicedSearch | None = None
        self._stepped = -inf

    def drop(self, known: Tracked) -> None:
        """A Migration needs no room any more."""
        if self._search is not None and self._search.key == known.migration.key:
            self._search = None

    def step(
        self, known: Tracked, leavers: Sequence[MovingPod], avoided: frozenset[str], state: object, now: float
    ) -> Searched | None:
        """Search for a Migration, on from where it was; None while that is not done.

        Args:
            known: the Migration.
            leavers: pods that leave.
            avoided: nodes that are no target.
            state: what the answer depends on.
            now: seconds.
        """
        if self._stepped == now or not self._mine(known, leavers, avoided, state, now):
            return None
        search = self._search
        assert search is not None
        self._stepped, search.asked = now, now
        began = self._clock()
        found = search.parts.work(lambda: self._clock() - began < SLICE)
        search.spent += self._clock() - began
        search.slices += 1
        if search.parts.going and not found:
            return None
        self._search = None
        room = found[0] if found else None
        if room is not None and search.slices > 1:
            ground = self._ground
            room = looked_again(ground.engine, leavers, avoided, search.key, now, ground.epoch + now, room)
        return Searched(room, search.state, now + max(LEAST_PAUSE, PAUSE * search.spent))

    def _mine(
        self, known: Tracked, leavers: Sequence[MovingPod], avoided: frozenset[str], state: object, now: float
    ) -> bool:
        """Return whether the search is that of a Migration; it is begun where there is none."""
        ground, key, search = self._ground, known.migration.key, self._search
        if search is not None and search.key != key:
            other = ground.tracked.get(search.key)
            planned = other is not None and other.migration.phase is Phase.PLANNED
            if planned and now - search.asked <= FORGOTTEN:
                return False
            search = None
        if search is None or search.parts.stale:
            parts: Parts[Relocation] = Parts(ground.engine.world)
            taken = set(ground.others(known))
            parts.begin(look_for_room(ground.engine, leavers, avoided, taken, key, now, ground.epoch + now))
            self._search = _SlicedSearch(key, parts, state, now)
        return True
