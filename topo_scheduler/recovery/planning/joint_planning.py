"""Plans Migrations that wait for seats at the same time together, in slices of work between other work.

A Migration that is about to begin takes the grant that is planned for it. The plan covers all pending Migrations that a
failure caused, those that make room for these, and those that are being created. There is no plan for a single
Migration, or for more than `MAX_MIGRATIONS`: then each takes what it finds, in their order. A grant is checked once
more before it counts, and planned again if it is no longer valid. No plan outlives the process, as nothing was done
for it yet.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from topo_scheduler.api.annotations import OnFailure
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.recovery.model.instructions import CreateMigration
from topo_scheduler.recovery.model.migration_context import MigrationContext
from topo_scheduler.recovery.model.migration_state import Tracked
from topo_scheduler.recovery.model.seating import MovingPod
from topo_scheduler.recovery.planning.joint_assignment import EXACT_MIGRATIONS, PlanSteps, free_seats
from topo_scheduler.recovery.planning.joint_relocation import EligiblePods, room_for_all
from topo_scheduler.recovery.planning.migration_validation import PodsNotRead, Refused, policy_of, read_pods
from topo_scheduler.recovery.planning.relocation import unread_neighbours
from topo_scheduler.recovery.planning.relocation_search import LEAST_PAUSE_SECONDS, PAUSE_FACTOR
from topo_scheduler.recovery.planning.seat_claims import Copies, RelocationRequest, SeatGrant
from topo_scheduler.scheduling.time_slicing import STEP_SECONDS, SlicedSearch

MAX_MIGRATIONS: Final = 32
"""Migrations that are planned together at most."""
PATIENCE_SECONDS: Final = 1.0
"""Seconds that Migrations with free seats wait for the plan of those that need other pods to move."""
LONGEST_PLAN_SECONDS: Final = 5.0
"""Seconds that a plan may take, restarts because of changed nodes included; then each takes what it finds."""
DUE_SOON_SECONDS: Final = 0.1
"""Seconds within which a Migration must be due to be planned with the others."""

RequestOf = Callable[[Migration, Sequence[MovingPod], float], RelocationRequest]
"""Returns the request of a Migration, for pods and a time in seconds."""


@dataclass(frozen=True, slots=True)
class PlanningTurn:
    """The grant of a Migration that is about to begin; None while the search for it goes on.

    ``final`` is whether the search included relocating other pods, so that none is due before ``retry_at``, in seconds.
    """

    share: SeatGrant | None
    final: bool = False
    retry_at: float = 0.0


@dataclass(slots=True)
class _Plan:
    """Grants that Migrations have not taken yet, for a ``state``; ``final`` and ``retry_at`` as in `PlanningTurn`.

    ``for_now`` is whether relocating other pods could not be considered yet. ``leaving`` are all pods that leave first.
    ``until``, in seconds, is until when Migrations outside the plan wait, so that those in the plan begin first.
    """

    shares: dict[str, SeatGrant]
    state: object
    final: bool
    retry_at: float
    for_now: bool
    leaving: tuple[MovingPod, ...]
    until: float = -inf


@dataclass(slots=True)
class _JointSearch:
    """A search in progress, ``begun`` at its first start. ``free`` are the free seats once known, at ``since``.

    ``unread`` are uids of pods that must be read first; after that the search restarts. ``learned`` are those that were
    read for earlier starts, or can't be read.
    """

    claims: Mapping[str, RelocationRequest]
    parts: SlicedSearch[dict[str, SeatGrant]]
    state: object
    begun: float
    free: dict[str, SeatGrant] | None = None
    since: float = 0.0
    spent: float = 0.0
    unread: frozenset[str] = frozenset()
    learned: frozenset[str] = frozenset()


@dataclass
class JointPlanning:
    """The plan for all Migrations that wait for seats. ``request_of`` returns the request of a Migration."""

    context: MigrationContext
    clock: Callable[[], float]
    request_of: RequestOf
    _plan: _Plan | None = None
    _search: _JointSearch | None = None
    _failed: set[str] = field(default_factory=set)
    """Keys of Migrations whose planned seats were invalid when they were about to begin."""
    _stepped: float = -inf
    _room_retry_at: float = -inf
    _alone: float = -inf
    """When each Migration was last left to take what it finds, in seconds."""

    def turn(
        self, tracked: Tracked, moving_pods: Sequence[MovingPod], state: object, now: float
    ) -> PlanningTurn | None:
        """Return the grant of a Migration; None if it takes what it finds.

        Args:
            tracked: the Migration, which is ready to begin.
            moving_pods: its pods.
            state: the version of the state on which the answer depends.
            now: seconds.
        """
        key = tracked.migration.key
        if not self._joins(tracked):
            return None
        claim = self.request_of(tracked.migration, moving_pods, now)
        if (turn := self._planned(claim, state, now)) is not None:
            return turn
        if self._alone == now:
            return None
        if self._plan is not None and now < self._plan.until:
            return PlanningTurn(None)
        search = self._search
        read = search is not None and search.unread and not any(map(self.context.index.is_readable, search.unread))
        if search is None or search.parts.stale or read or key not in search.claims:
            claims, begun = self._claims(tracked, state, now), search.begun if search is not None else now
            learned = self._learned(search)
            if claims and key not in claims:
                return None  # it already waits for pods that make room
            if len(claims) < 2 or now - begun > LONGEST_PLAN_SECONDS:
                self._search, self._alone = None, now
                return None
            parts: SlicedSearch[dict[str, SeatGrant]] = self.context.view.planning.sliced_search()
            search = _JointSearch(claims, parts, state, begun, learned=learned)
            self._plan, self._search = None, search
            search.parts.begin(_with_result(free_seats(Copies(self.context.view, now), list(claims.values()))))
        self._step(search, tracked, now)
        return self._planned(claim, state, now) or self._meanwhile(claim, state, now)

    def _learned(self, search: _JointSearch | None) -> frozenset[str]:
        """Return the pods that were read for a search, and for those that it continues, or that can't be read."""
        if search is None:
            return frozenset()
        return search.learned.union(uid for uid in search.unread if not self.context.index.is_readable(uid))

    # ------------------------------------------------------------ the plan

    def _planned(self, claim: RelocationRequest, state: object, now: float) -> PlanningTurn | None:
        """Return the planned grant of a Migration, if it is still valid."""
        plan = self._plan
        share = plan.shares.get(claim.key) if plan is not None else None
        if plan is None or share is None:
            return None
        if not share.seats:
            valid = plan.state == state and not (plan.for_now and self._may_relocate)
            return PlanningTurn(share, plan.final, plan.retry_at) if valid else None
        if self._good(claim, share, now):
            self._failed.discard(claim.key)
            if not (share.whole and claim.other_members):  # the Migration returns once more, with the whole gang
                del plan.shares[claim.key]
            return PlanningTurn(share, plan.final, plan.retry_at)
        self._plan = None
        if claim.key in self._failed:
            self._failed.discard(claim.key)
            self._search, self._alone = None, now
        else:
            self._failed &= self.context.tracked.keys()  # others have ended since
            self._failed.add(claim.key)
        return None

    def _good(self, claim: RelocationRequest, share: SeatGrant, now: float) -> bool:
        request = claim.whole if share.whole else claim
        if share.seats.keys() != {pod.member.uid for pod in request.moving_pods}:
            return False
        leaving = self._plan.leaving if self._plan is not None else ()
        return Copies(self.context.view, now).still_valid(request, share, leaving)

    @property
    def _may_relocate(self) -> bool:
        """Whether relocating other pods is considered: lent spare nodes come first, and kernels must be compiled."""
        view = self.context.view
        return view.planning.ready and not view.held.lent()

    def _meanwhile(self, claim: RelocationRequest, state: object, now: float) -> PlanningTurn | None:
        """Return the grant while the search goes on: the free seats, once their holders waited long enough.

        A Migration without free seats keeps waiting, and takes what it finds once the search has taken too long.
        """
        search = self._search
        if search is not None and search.free is not None and now - search.since > PATIENCE_SECONDS:
            with_seats = {key: share for key, share in search.free.items() if share.seats}
            if with_seats:
                self._plan = _Plan(
                    with_seats, search.state, False, now, for_now=True, leaving=(), until=now + DUE_SOON_SECONDS
                )
                self._search = None
                return self._planned(claim, state, now) or PlanningTurn(None)
        if search is not None and now - search.begun > LONGEST_PLAN_SECONDS:
            self._search, self._alone = None, now
            return None
        return PlanningTurn(None)

    # ------------------------------------------------------------ the search

    def _step(self, search: _JointSearch, tracked: Tracked, now: float) -> None:
        """Continue the search, once per step of recovery."""
        if self._stepped == now:
            return
        self._stepped = now
        started = self.clock()

        def time_left() -> bool:
            return self.clock() - started < STEP_SECONDS

        while search.parts.going:
            results = search.parts.work(time_left, self.clock)
            if results:
                search.parts.drop()
                self._take(search, results[0], tracked, now)
            if not time_left():
                break
        search.spent += self.clock() - started

    def _take(self, search: _JointSearch, shares: dict[str, SeatGrant], tracked: Tracked, now: float) -> None:
        """Make the result the plan, or search for room for the Migrations that have no seats."""
        lacking = [claim for claim in search.claims.values() if not shares[claim.key].seats]
        helped = [claim for claim in lacking if claim.other_members or claim.may_relocate]
        may_relocate = self._may_relocate
        if search.free is None and helped and may_relocate and now >= self._room_retry_at:
            search.free, search.since = shares, now
            searched = helped if len(search.claims) > EXACT_MIGRATIONS else search.claims.values()
            unread = [pod for claim in searched for pod in unread_neighbours(self.context.view, claim.moving_pods)]
            unread = [pod for pod in unread if pod.uid not in tracked.learned and pod.uid not in search.learned]
            if unread:
                search.unread = frozenset(pod.uid for pod in unread)
                self.context.learn(tracked, unread)
            else:
                self._look_for_room(search, now)
            return
        final = not helped or (search.free is not None and shares is not search.free)
        retry_at = now + max(LEAST_PAUSE_SECONDS, PAUSE_FACTOR * search.spent)
        if search.free is not None and not final:
            self._room_retry_at = retry_at
        leaving = tuple(pod for share in shares.values() for pod in share.relocated)
        self._plan = _Plan(
            shares, search.state, final, retry_at, for_now=not final and not may_relocate, leaving=leaving
        )
        self._search = None

    def _look_for_room(self, search: _JointSearch, now: float) -> None:
        context, claims = self.context, list(search.claims.values())
        elsewhere = (
            tracked.migration for tracked in context.tracked.values() if tracked.migration.key not in search.claims
        )
        taken = {move.uid for migration in elsewhere for move in context.own_moves(migration)}
        planned = (context.tracked[claim.key] for claim in claims if claim.key in context.tracked)
        taken.update(uid for tracked in planned for uid in tracked.stayed if tracked.stays(uid, now))
        eligible, copies = EligiblePods(frozenset(taken), context.epoch + now), Copies(context.view, now)
        assert search.free is not None
        search.parts.begin(_with_result(room_for_all(copies, claims, search.free, eligible)))

    # ------------------------------------------------------------ Migrations that wait

    def _claims(self, tracked: Tracked, state: object, now: float) -> dict[str, RelocationRequest]:
        """Return the requests of all Migrations that wait, in their order; empty if there are too few or too many."""
        context = self.context
        waiting = [
            waiting_migration
            for waiting_migration in context.tracked.values()
            if waiting_migration is tracked or self._waits(waiting_migration, state, now)
        ]
        waiting += [_as_tracked(create) for create in context.coming if create.key not in context.tracked]
        if not 2 <= len(waiting) <= MAX_MIGRATIONS:
            return {}
        claims = [claim for waiting_migration in waiting if (claim := self._claim(waiting_migration, now)) is not None]
        claims.sort(key=lambda claim: (-claim.priority, -len(claim.moving_pods), claim.key))
        return {claim.key: claim for claim in claims}

    def _joins(self, tracked: Tracked) -> bool:
        """Return whether a failure caused the Migration, or it makes room for one that a failure caused."""
        migration = tracked.migration
        beneficiary = self.context.tracked.get(migration.spec.makes_room_for)
        helps = beneficiary is not None and beneficiary.migration.cause.of_node and self.context.is_helper(tracked)
        return migration.cause.of_node or helps

    def _waits(self, tracked: Tracked, state: object, now: float) -> bool:
        """Return whether a Migration may soon ask for seats: not if its last plan failed and nothing has changed."""
        migration = tracked.migration
        if migration.phase not in (None, Phase.PLANNED) or migration.returns_nodes or migration.shrinks:
            return False
        if not self._joins(tracked) or tracked.state == state or tracked.not_before > now + DUE_SOON_SECONDS:
            return False
        return not self.context.view.held.has_seats_of(migration.key)

    def _claim(self, tracked: Tracked, now: float) -> RelocationRequest | None:
        context, migration = self.context, tracked.migration
        if migration.phase is Phase.PLANNED:
            moving_pods = context.moving_pods(migration)
            if context.waiting_condition(migration, moving_pods, now) or context.helpers(migration, now):
                return None
        else:
            try:
                moving_pods = read_pods(context.view, migration, tracked.learned, context.moved_elsewhere(tracked))
            except (Refused, PodsNotRead):
                return None
        if not moving_pods or not all(pod.member.cls.amounts for pod in moving_pods):
            return None
        if policy_of(moving_pods, migration) == OnFailure.SHRINK:
            return None
        return self.request_of(migration, moving_pods, now)


def _as_tracked(create: CreateMigration) -> Tracked:
    meta = ObjectMeta(name=create.name, namespace=create.namespace)
    return Tracked(Migration(metadata=meta, spec=create.spec))


def _with_result(steps: PlanSteps) -> Iterator[dict[str, SeatGrant] | None]:
    """Yield None after each slice of the work, and then the result."""
    yield (yield from steps)
