"""Migrations that wait for seats at the same time are planned together, in parts between which everything else goes on.

Whoever comes to begin finds what is planned for it. There is a plan for all who wait because of failures, for those
who make room for these, and for those whose Migrations are being written; none where one is alone, or where more than
`MOST` wait: then each takes what it finds, in their order. What was planned is looked at once more before it counts,
and planned anew when it is no good any more. Nothing of it outlives the process, as nothing was done for it yet.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.api.annotations import OnFailure
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.recovery.claims import Copies, RelocationRequest, SeatGrant
from topo_scheduler.recovery.ground import MigrationContext
from topo_scheduler.recovery.instructions import CreateMigration
from topo_scheduler.recovery.reading import Refused, Unlearned, policy_of, read_pods
from topo_scheduler.recovery.room import neighbours_unread
from topo_scheduler.recovery.room_for_all import MaybeParts, Others, room_for_all
from topo_scheduler.recovery.searching import LEAST_PAUSE, PAUSE, SLICE
from topo_scheduler.recovery.seating import MovingPod
from topo_scheduler.recovery.seats_for_all import EXACT, free_seats
from topo_scheduler.recovery.seats_for_all import Parts as Steps
from topo_scheduler.recovery.tracked import Tracked
from topo_scheduler.scheduling.parts import Parts

MOST: Final = 32
"""Migrations that are planned together at most."""
PATIENCE: Final = 1.0
"""Seconds that those who have free seats wait until it is known how others get room."""
LONGEST: Final = 5.0
"""Seconds a plan may take, also where it is begun anew as nodes change; then each takes what it finds."""
SOON: Final = 0.1
"""Seconds in which one comes for seats that is planned with the others."""

Asks = Callable[[Migration, Sequence[MovingPod], float], RelocationRequest]
"""What a Migration asks for, for these pods, at a time."""


@dataclass(frozen=True, slots=True)
class PlanningTurn:
    """What one gets that comes to begin; None while that is being planned.

    ``final``: whether others that might move were looked at, so that there is nothing more to look for until ``again``
    seconds.
    """

    share: SeatGrant | None
    final: bool = False
    again: float = 0.0


@dataclass(slots=True)
class _Plan:
    """What each gets that has not come for it yet, as of a ``state``; ``final`` and ``again`` as in `PlanningTurn`.

    ``for_now``: who might move could not be looked at yet; ``leaving`` all who leave first; ``until`` when those wait
    who are not in it, in seconds, so that the others come first.
    """

    shares: dict[str, SeatGrant]
    state: object
    final: bool
    again: float
    for_now: bool
    leaving: tuple[MovingPod, ...]
    until: float = -inf


@dataclass(slots=True)
class _JointSearch:
    """What is being planned, since ``begun`` for the first time; ``free`` seats once these are known, at ``since``.

    ``unread`` pods that must be read then; after that all is planned anew.
    """

    claims: Mapping[str, RelocationRequest]
    parts: Parts[dict[str, SeatGrant]]
    state: object
    begun: float
    free: dict[str, SeatGrant] | None = None
    since: float = 0.0
    spent: float = 0.0
    unread: frozenset[str] = frozenset()


class Together:
    """The plan for all who wait. ``asks`` what a Migration asks for."""

    def __init__(self, ground: MigrationContext, clock: Callable[[], float], asks: Asks) -> None:
        self._ground = ground
        self._clock = clock
        self._asks = asks
        self._plan: _Plan | None = None
        self._search: _JointSearch | None = None
        self._failed: set[str] = set()
        """Who found its seats no good when it came to them."""
        self._stepped = self._room_again = -inf
        self._alone = -inf
        """When it was seen last that each takes what it finds."""

    def turn(self, known: Tracked, leavers: Sequence[MovingPod], state: object, now: float) -> PlanningTurn | None:
        """Return what one gets; None where it takes what it finds.

        Args:
            known: the Migration, which may begin.
            leavers: its pods.
            state: what the answer depends on.
            now: seconds.
        """
        key = known.migration.key
        if not self._joins(known.migration):
            return None
        claim = self._asks(known.migration, leavers, now)
        if (found := self._planned(claim, state, now)) is not None:
            return found
        if self._alone == now:
            return None
        if self._plan is not None and now < self._plan.until:
            return PlanningTurn(None)
        search = self._search
        read = search is not None and search.unread and search.unread <= known.learned
        if search is None or search.parts.stale or read or key not in search.claims:
            claims, begun = self._claims(known, state, now), search.begun if search is not None else now
            if claims and key not in claims:
                return None  # it waits for others already, who make room
            if len(claims) < 2 or now - begun > LONGEST:
                self._search, self._alone = None, now
                return None
            search = _JointSearch(claims, Parts(self._ground.engine.world), state, begun)
            self._plan, self._search = None, search
            search.parts.begin(_found(free_seats(Copies(self._ground.engine, now), list(claims.values()))))
        self._step(search, known, now)
        return self._planned(claim, state, now) or self._meanwhile(claim, state, now)

    # ------------------------------------------------------------ what is planned

    def _planned(self, claim: RelocationRequest, state: object, now: float) -> PlanningTurn | None:
        """Return what was planned for one, if that is good still."""
        plan = self._plan
        share = plan.shares.get(claim.key) if plan is not None else None
        if plan is None or share is None:
            return None
        if not share.seats:
            stays = plan.state == state and not (plan.for_now and self._others_may_move)
            return PlanningTurn(share, plan.final, plan.again) if stays else None
        if self._good(claim, share, now):
            self._failed.discard(claim.key)
            if not (share.whole and claim.rest):  # it comes once more, with all of the gang
                del plan.shares[claim.key]
            return PlanningTurn(share, plan.final, plan.again)
        self._plan = None
        if claim.key in self._failed:
            self._failed.discard(claim.key)
            self._search, self._alone = None, now
        else:
            self._failed.add(claim.key)
        return None

    def _good(self, claim: RelocationRequest, share: SeatGrant, now: float) -> bool:
        asked = claim.whole if share.whole else claim
        if share.seats.keys() != {one.member.uid for one in asked.leavers}:
            return False
        leaving = self._plan.leaving if self._plan is not None else ()
        return Copies(self._ground.engine, now).still(asked, share, leaving)

    @property
    def _others_may_move(self) -> bool:
        """Whether others that might move are looked at: what was lent comes first, and kernels must be compiled."""
        engine = self._ground.engine
        return engine.preempting.ready and not engine.spares.lent()

    def _meanwhile(self, claim: RelocationRequest, state: object, now: float) -> PlanningTurn | None:
        """Return what one gets while the search goes on: its free seats, if all have waited for others long enough.

        Who has none goes on waiting, and takes what it finds once the search has taken too long.
        """
        search = self._search
        if search is not None and search.free is not None and now - search.since > PATIENCE:
            there = {key: share for key, share in search.free.items() if share.seats}
            if there:
                self._plan = _Plan(there, search.state, False, now, for_now=True, leaving=(), until=now + SOON)
                self._search = None
                return self._planned(claim, state, now) or PlanningTurn(None)
        if search is not None and now - search.begun > LONGEST:
            self._search, self._alone = None, now
            return None
        return PlanningTurn(None)

    # ------------------------------------------------------------ the search

    def _step(self, search: _JointSearch, known: Tracked, now: float) -> None:
        """Search on, once in a step."""
        if self._stepped == now:
            return
        self._stepped = now
        began = self._clock()

        def more() -> bool:
            return self._clock() - began < SLICE

        while search.parts.going:
            found = search.parts.work(more)
            if found:
                search.parts.drop()
                self._take(search, found[0], known, now)
            if not more():
                break
        search.spent += self._clock() - began

    def _take(self, search: _JointSearch, shares: dict[str, SeatGrant], known: Tracked, now: float) -> None:
        """Take over what was found: that is the plan, or it is looked for room for those who have no seats."""
        lacking = [claim for claim in search.claims.values() if not shares[claim.key].seats]
        helped = [claim for claim in lacking if claim.rest or claim.moves_others]
        may = self._others_may_move
        if search.free is None and helped and may and now >= self._room_again:
            search.free, search.since = shares, now
            some = helped if len(search.claims) > EXACT else search.claims.values()
            unread = [pod for claim in some for pod in neighbours_unread(self._ground.engine, claim.leavers)]
            unread = [pod for pod in unread if pod.uid not in known.learned]
            if unread:
                search.unread = frozenset(pod.uid for pod in unread)
                self._ground.learn(known, unread)
            else:
                self._look_for_room(search, now)
            return
        final = not helped or (search.free is not None and shares is not search.free)
        again = now + max(LEAST_PAUSE, PAUSE * search.spent)
        if search.free is not None and not final:
            self._room_again = again
        leaving = tuple(other for share in shares.values() for other in share.others)
        self._plan = _Plan(shares, search.state, final, again, for_now=not final and not may, leaving=leaving)
        self._search = None

    def _look_for_room(self, search: _JointSearch, now: float) -> None:
        ground, claims = self._ground, list(search.claims.values())
        moved = (known.migration for known in ground.tracked.values() if known.migration.key not in search.claims)
        taken = frozenset(move.uid for one in moved for move in one.status.moves)
        others, copies = Others(taken, ground.epoch + now), Copies(ground.engine, now)
        assert search.free is not None
        search.parts.begin(_found(_or_free(room_for_all(copies, claims, search.free, others), search.free)))

    # ------------------------------------------------------------ who waits

    def _claims(self, known: Tracked, state: object, now: float) -> dict[str, RelocationRequest]:
        """Return what all ask for who wait, in their order; nothing where there are too many."""
        ground = self._ground
        waiting = [one for one in ground.tracked.values() if one is known or self._waits(one, state, now)]
        waiting += [_as_tracked(one) for one in ground.coming if one.key not in ground.tracked]
        if not 2 <= len(waiting) <= MOST:
            return {}
        claims = [claim for one in waiting if (claim := self._claim(one, now)) is not None]
        claims.sort(key=lambda claim: (-claim.priority, -len(claim.leavers), claim.key))
        return {claim.key: claim for claim in claims}

    def _joins(self, migration: Migration) -> bool:
        """Whether it waits because something failed, or makes room for one that does."""
        helped = self._ground.tracked.get(migration.spec.makes_room_for)
        return migration.cause.of_node or (helped is not None and helped.migration.cause.of_node)

    def _waits(self, one: Tracked, state: object, now: float) -> bool:
        """Whether it may come for seats soon: not where it was planned in vain, and nothing has changed."""
        migration = one.migration
        if migration.phase not in (None, Phase.PLANNED) or migration.gives_way or migration.shrinks:
            return False
        if one.state == state or one.not_before > now + SOON:
            return False
        return self._joins(migration) and not self._ground.engine.preempting.replacements.knows(migration.key)

    def _claim(self, one: Tracked, now: float) -> RelocationRequest | None:
        ground, migration = self._ground, one.migration
        if migration.phase is Phase.PLANNED:
            leavers = ground.leavers(migration)
            if ground.holds_back(migration, leavers, now) or ground.helpers(migration):
                return None
        else:
            try:
                leavers = read_pods(ground.engine, migration, one.learned, ground.others(one))
            except (Refused, Unlearned):
                return None
        if not leavers or not all(pod.member.cls.amounts for pod in leavers):
            return None
        if policy_of(leavers, migration) == OnFailure.SHRINK:
            return None
        return self._asks(migration, leavers, now)


def _as_tracked(create: CreateMigration) -> Tracked:
    meta = ObjectMeta(name=create.name, namespace=create.namespace)
    return Tracked(Migration(metadata=meta, spec=create.spec))


def _or_free(steps: MaybeParts, free: dict[str, SeatGrant]) -> Steps:
    found = yield from steps
    return free if found is None else found


def _found(steps: Steps) -> Iterator[dict[str, SeatGrant] | None]:
    """Yield None after each part of the work, and what comes of it."""
    while True:
        try:
            yield next(steps)
        except StopIteration as ended:
            yield ended.value
            return
