"""Searches for pods to relocate, one search at a time and in slices between other work.

A search runs on a copy of the state. If it took more than one step, its result is checked again on the current state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Phase
from topo_scheduler.recovery.model.migration_context import MigrationContext
from topo_scheduler.recovery.model.migration_state import Tracked
from topo_scheduler.recovery.model.seating import MovingPod
from topo_scheduler.recovery.planning.relocation import check_again, look_for_room
from topo_scheduler.recovery.planning.seat_claims import SeatGrant
from topo_scheduler.scheduling.time_slicing import SlicedSearch

FORGOTTEN_AFTER_SECONDS: Final = 1.0
"""Seconds after which a search is dropped that no Migration continued."""
PAUSE_FACTOR: Final = 10
"""Pause before the next search for the same Migration, as a multiple of the time of a search without result."""
LEAST_PAUSE_SECONDS: Final = 1.0
"""Shortest such pause, in seconds."""


@dataclass(slots=True)
class _CurrentSearch:
    key: str
    parts: SlicedSearch[SeatGrant]
    state: object
    continued_at: float
    spent: float = 0.0
    slices: int = 0


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of a search: the room, or the ``state`` that was searched and when to search again, in seconds."""

    room: SeatGrant | None
    state: object
    retry_at: float


@dataclass(slots=True)
class RelocationSearch:
    """One search at a time. ``clock`` measures how long a step has searched; if it stands still, one step does all."""

    context: MigrationContext
    clock: Callable[[], float]
    _search: _CurrentSearch | None = None
    _stepped: float = -inf

    def drop(self, tracked: Tracked) -> None:
        """Drop the search of a Migration that needs no room any more."""
        if self._search is not None and self._search.key == tracked.migration.key:
            self._search = None

    def step(
        self, tracked: Tracked, moving_pods: Sequence[MovingPod], avoided: frozenset[str], state: object, now: float
    ) -> Searched | None:
        """Continue the search for a Migration; None while it is unfinished.

        Args:
            tracked: the Migration.
            moving_pods: pods that leave.
            avoided: nodes that are no target.
            state: the version of the state on which the answer depends.
            now: seconds.
        """
        if self._stepped == now or not self._mine(tracked, moving_pods, avoided, state, now):
            return None
        search = self._search
        assert search is not None
        self._stepped, search.continued_at = now, now
        rooms = search.parts.step(self.clock)
        search.spent += self.clock() - search.parts.stepped_at
        search.slices += 1
        if search.parts.going and not rooms:
            return None
        self._search = None
        room = rooms[0] if rooms else None
        if room is not None and search.slices > 1:
            context = self.context
            room = check_again(context.view, moving_pods, avoided, search.key, now, context.epoch + now, room)
        return Searched(room, search.state, now + max(LEAST_PAUSE_SECONDS, PAUSE_FACTOR * search.spent))

    def _mine(
        self, tracked: Tracked, moving_pods: Sequence[MovingPod], avoided: frozenset[str], state: object, now: float
    ) -> bool:
        """Return whether the search is that of a Migration; begin one if there is none."""
        context, key, search = self.context, tracked.migration.key, self._search
        if search is not None and search.key != key:
            other = context.tracked.get(search.key)
            planned = other is not None and other.migration.phase is Phase.PLANNED
            if planned and now - search.continued_at <= FORGOTTEN_AFTER_SECONDS:
                return False
            search = None
        if search is None or search.parts.stale:
            parts: SlicedSearch[SeatGrant] = context.view.planning.sliced_search()
            taken = {*context.moved_elsewhere(tracked), *(uid for uid in tracked.stayed if tracked.stays(uid, now))}
            parts.begin(look_for_room(context.view, moving_pods, avoided, taken, key, now, context.epoch + now))
            self._search = _CurrentSearch(key, parts, state, now)
        return True
