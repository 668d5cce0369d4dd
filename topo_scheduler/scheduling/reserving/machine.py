"""Reservation with backfill, as a state machine without I/O: which workloads get which nodes, and which others use
them.

In each priority, the workloads that have been pending longest get a reservation (`reservation`), a few at a time. They
get the place that comes free first. A workload keeps its reservation until it is placed, anywhere, or deleted. `holds`
describes how a reservation excludes other workloads. It does not apply to these:

- workloads of higher priority,
- members that a running gang has lost,
- workloads that are expected to end in time.

In time means before the end that was expected when the nodes were chosen. After that time no workload may backfill any
more. So pods that run longer than they declared delay the reservation only if they were there by then.

The scheduler checks a reservation again when something became free or changed, at a pace that follows the cost of
checking. A reservation moves to other nodes when its own are no longer possible, or others are clearly earlier. Each
such move doubles what the next one must gain, and how long the scheduler waits if no end is known. So a workload does
not follow wrong estimates from place to place. Once it has been pending longer than any pod runs, it stays. All pods
there have then ended when the longest of them has. Reservations are not stored: after a restart the scheduler chooses
nodes again.
"""

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from math import inf
from typing import Final

from topo_scheduler.api.waiting import ReservationSpec
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import Backoff
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.placing.levels import next_relaxation, wish_of
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.preemption.shares import ReservationShare
from topo_scheduler.scheduling.queueing.fair_queue import Order
from topo_scheduler.scheduling.queueing.queue_keys import least_of, order_of
from topo_scheduler.scheduling.reserving.choosing import Choosing, waits
from topo_scheduler.scheduling.reserving.ends import MIN_REMAINING_SECONDS, Ends, Lasting, lasting_of
from topo_scheduler.scheduling.reserving.holds import Holds, Reservation
from topo_scheduler.scheduling.reserving.reservation_messages import holds_what, kept_off
from topo_scheduler.scheduling.time_slicing import More, SlicedSearch, always
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.devices.pod_claims import devices_asked
from topo_scheduler.state.nodes.resources import Amounts
from topo_scheduler.state.pods.workloads import Stage, Workload, Workloads, size_of

PAUSE_SECONDS_PER_POD: Final = 2e-3
"""Seconds to the next check, for each pod that the last one examined."""
FIRST_CHECK_SECONDS: Final = 2.0
"""Seconds for which the first check keeps decisions waiting at most."""
FIRST_RECHECK_SECONDS, MAX_RECHECK_SECONDS = 1.0, 30.0
"""Minimum seconds between two checks, and the maximum if something changed."""
MAX_PLANS: Final = 4
"""Maximum number of plans in one check."""
WORKLOADS_PER_PART: Final = 256
"""Pending workloads that one part checks."""
SORTED_PER_PART: Final = 2048
"""Pending workloads that one part puts in order."""
MAX_DOUBLINGS: Final = 32
"""Maximum number of doublings of what a move must gain: by then it is longer than any run."""
VICTIMS_END_SECONDS: Final = 60.0
"""Seconds within which evicted pods usually end.

A workload that evicts pods and should end in time is assumed to start only after that.
"""
FIRST_FAILED_PAUSE_SECONDS, MAX_FAILED_PAUSE_SECONDS = 2.0, 120.0
"""Seconds after which the scheduler tries again to reserve nodes for a workload for which it found none.

The first is the initial pause, doubled each time, and the second its maximum.
"""


@dataclass(frozen=True, slots=True)
class _PendingWorkload:
    """A workload without room, with its place in the queue. ``text`` is the reason that was reported."""

    priority: int
    since: float
    id: str
    namespace: str
    text: str


_Turn = tuple[int, int, float, str, _PendingWorkload]
"""A pending workload, after what it is sorted by. Ids differ, so workloads are not compared."""


@dataclass(slots=True)
class _FailedReservation:
    """How often no nodes were found for a workload, in which state, and when the scheduler tries again, in seconds."""

    times: int = 0
    blind: bool = False
    state: Hashable = None
    until: float = 0.0


@dataclass(slots=True)
class _QueueCheck:
    """What one check of all pending workloads has done so far.

    ``at`` is when the next check is due in any case, in seconds.
    """

    plans: int = 0
    pods: int = 0
    at: float = inf
    planned: set[str] = field(default_factory=set)
    """Namespaces with a plan in this check."""
    passed_over: dict[str, None] = field(default_factory=dict)
    """Namespaces with a workload that got no plan because those of others came before it."""


class Reserving:
    """The pending workloads that need much room, and their reservations."""

    def __init__(
        self, world: World, workloads: Workloads, attempts: Attempts, preempting: Preempting, spec: ReservationSpec
    ) -> None:
        self.holds = Holds(world)
        self.ends = Ends(world, workloads)
        self._spec = spec
        self._world = world
        self._workloads = workloads
        self._preempting = preempting
        self._choosing = Choosing(world, attempts, preempting, self.holds, self.ends, spec)
        self._waiting: dict[str, _PendingWorkload] = {}
        self._looked_at = ""
        """The workload that is being checked."""
        self._failed: dict[str, Backoff] = {}
        """Workloads for which a check raised or took too much, and until when they are not checked again."""
        self._vain: dict[str, _FailedReservation] = {}
        self._given_up: dict[str, float] = {}
        """Workloads whose reservation expired, and until when they get no other."""
        self._barred: dict[str, float] = {}
        """Namespaces of these workloads, and until when their other workloads get none while others hold GPUs."""
        self._idle: dict[str, tuple[float, float]] = {}
        """Namespaces whose last reservation ended without its workload being placed: when it had moved on, and ended.

        So a workload that a tenant deletes and creates again holds nodes no longer than one that stays.
        """
        self._stubborn: set[str] = set()
        """Pods without a declared end that a reservation waited for in vain."""
        self._first: dict[str, int] = {}
        """Namespaces that the last check passed over, with their place: the next one plans for each of them in turn.

        Otherwise a namespace with many old workloads for which there are no nodes would take the plans of all others.
        """
        self._let_in: list[Reservation] = []
        """Reservations whose free room the workload of the current attempt may use, because it ends in time."""
        self._arrived = 0
        self._seen: Hashable = None
        self._at = inf
        self._not_before = -inf
        self._parts: SlicedSearch[tuple[Workload, str]] = SlicedSearch(world)
        self._now = 0.0
        """The time of the current part."""
        self._first_began: float | None = None
        """When the first check of this process began."""
        self._left_at: Hashable = None
        self._moved = False
        """Whether the state changed between two parts."""

    def configure(self, spec: ReservationSpec) -> None:
        """Apply a new configuration."""
        self._parts.drop()
        if spec != self._spec:
            self._spec = spec
            self._choosing.configure(spec)
            self._vain.clear()
            self._seen = None
            if not spec.enabled:
                for held in self.holds:
                    self.holds.drop(held.workload)

    @property
    def gpus(self) -> int:
        """GPUs that are reserved for pending workloads, including those that other pods still use."""
        return sum(held.gpus for held in self.holds)

    def is_large(self, workload: Workload) -> bool:
        """Return whether a pending workload may get a reservation."""
        pending = workload.at(Stage.PENDING)
        if not workload.gang:
            return any(member.cls.gpus > 1 or devices_asked(member.cls.claims) > 1 for member in pending)
        return self._spec.bare_gangs or workload.group is not None or all(member.recreated for member in pending)

    # ------------------------------------------------------------ attempts

    def count_for(self, workload: Workload, now: float) -> Hashable:
        """Charge the reservations that apply to a workload; return an identifier of this set."""
        self._let_in.clear()
        return self.holds.count_for(self._applying(workload, now)) if self.holds else None

    def shares(self, workload: Workload, now: float) -> list[ReservationShare]:
        """Return the shares of the reservations that apply to a workload which evicts pods now.

        They are what the reservations take once pods that they wait for have ended.
        """
        started = now + VICTIMS_END_SECONDS
        return [share for held in self._against(workload, started)[0] for share in self.holds.shares(held)]

    def kept_from(self, workload: Workload, now: float) -> list[tuple[int, Amounts]]:
        """Return what would be charged to which rows in an attempt for a workload now. Changes nothing."""
        row_of = self._world.nodes.row_of
        lacking = [item for held in self._against(workload, now)[0] for item in self.holds.lacking(held).items()]
        return [(row, amounts) for node, amounts in lacking if (row := row_of.get(node)) is not None and amounts]

    def placed(self, workload: Workload, decision: Decision) -> None:
        """Record that a workload has a place and is no longer pending.

        If it backfills reserved nodes, their reservations wait for it as well.
        """
        if self.holds and self.holds.drop(workload.id) is not None:
            self._idle.pop(workload.namespace, None)
        self.forget(workload.id)
        for held in self._let_in:
            for seat in decision.seats:
                if seat.node in held.nodes:
                    self.holds.let_in(held, seat.uid, seat.node, f"{seat.namespace}/{seat.name}")
                    self.ends.hold_to_estimate(workload.members[seat.uid], size_of(workload))

    def found_unschedulable(self, workload: Workload, decision: Decision, text: str, now: float) -> str:
        """Record that a workload has no room; return what to add to the reason why it is pending."""
        if not self._spec.enabled:
            return ""
        self.refused(workload.id, order_of(workload) if decision.room_helps and self.is_large(workload) else None, text)
        if not self.holds:
            return ""
        held = self.holds.get(workload.id)
        if held is not None and self._preempting.claims(workload.id):
            self.forget(workload.id)
            held = None
        if held is not None:
            return holds_what(held, self._world.epoch, self._world.reader(held.namespace))
        self._let_in.clear()
        applying, pending = self._applying(workload, now), workload.at(Stage.PENDING)
        if not applying or not pending:
            return ""
        reader = self._world.reader(workload.namespace)
        return kept_off(self._world.nodes, self.holds, applying, pending[0].cls, self._world.epoch, reader)

    def refused(self, id_: str, order: Order | None, text: str) -> None:
        """Record that a workload has no room. ``order`` is its place in the queue, or None if it may get no
        reservation.
        """
        if not self._spec.enabled:
            return
        if order is None:
            self.forget(id_)
            return
        if id_ not in self._waiting:
            self._arrived += 1
        self._waiting[id_] = _PendingWorkload(order.priority, order.since, id_, order.namespace, text)

    def applying(self, order: Order, lasting: Lasting, now: float) -> list[Reservation]:
        """Return the reservations that apply to a workload without running members, if it is started now. Changes
        nothing.
        """
        applying = self.holds.of_others(order.id, order.priority)
        end = self.ends.after(lasting, now) if applying else now
        return [held for held in applying if end > held.latest]

    def describe(self, id_: str) -> str:
        """Return a text about the reservation of a workload; empty if it has none."""
        held = self.holds.get(id_) if self.holds else None
        return holds_what(held, self._world.epoch, self._world.reader(held.namespace)) if held is not None else ""

    def forget(self, id_: str) -> None:
        """Drop the reservation of a workload that was placed or deleted, and forget the workload."""
        self._waiting.pop(id_, None)
        self._vain.pop(id_, None)
        self._given_up.pop(id_, None)
        self._failed.pop(id_, None)
        self._drop(id_)

    def deleted(self, id_: str, now: float) -> None:
        """Forget a workload of which the last pod was deleted."""
        self._now = now
        self.forget(id_)

    def _drop(self, id_: str) -> None:
        """Drop the reservation of a workload that has no place."""
        if self.holds and (held := self.holds.drop(id_)) is not None:
            self._idle[held.namespace] = held.moved_on, self._now

    # ------------------------------------------------------------ checks

    def let_go(self) -> None:
        """Drop the reservations of workloads that were deleted, or that are no longer to be placed."""
        for held in self.holds if self.holds else ():
            if not waits(self._workloads.get(held.workload)):
                self.forget(held.workload)

    def due(
        self, now: float, more: More = always, clock: Callable[[], float] | None = None
    ) -> list[tuple[Workload, str]]:
        """Reserve nodes for workloads that have been pending long enough.

        Work that is not done when ``more`` reports that no time is left continues at the next call. ``clock`` limits
        the time of each part of it.

        Returns:
            The workloads for which other nodes are reserved now, and the reason why each is pending.
        """
        self._now = now
        self.let_go()
        if self._parts.stale:
            self._parts.drop()
            self._seen, self._not_before = None, now + FIRST_RECHECK_SECONDS
        if self._parts.going:
            self._moved |= self._left_at != self._state()
        else:
            if not self._spec.enabled or not self._waiting or now < self._not_before:
                return []
            if now < self._at and self._seen == self._state():
                return []
            self._moved = False
            self._first_began = now if self._first_began is None else -inf
            self._parts.begin(self._look())
        news = self._parts.work(more, clock)
        self._left_at = self._state()
        return news

    def failed(self, now: float) -> str:
        """Abandon a check that raised, and pause the checks of its current workload; return the id of that workload."""
        self._parts.drop()
        self.holds.remove_charges()
        self._let_in.clear()
        self._seen, self._not_before = None, now + FIRST_RECHECK_SECONDS
        if self._looked_at in self._waiting:
            self._failed.setdefault(self._looked_at, Backoff()).fail(now)
            if self.holds:
                self.holds.drop(self._looked_at)
        return self._looked_at

    @property
    def working(self) -> bool:
        """Whether a check was started and has not ended."""
        return self._parts.going

    def _look(self) -> Iterator[tuple[Workload, str] | None]:
        """Check all pending workloads.

        Yields None after each part of the work. Yields each workload for which other nodes are reserved now, with the
        reason why it is pending.
        """
        look = _QueueCheck()
        self._forget_old()
        served: Counter[int] = Counter()
        done: set[int] = set()
        reserved = (self._waiting.get(held.workload) for held in self.holds)
        held = Counter(waiting.priority for waiting in reserved if waiting is not None)
        parts: list[list[_Turn]] = []
        for part in self._sorted_parts():
            if parts:
                yield None
            parts.append(part)
        for number, (*_, waiting) in enumerate(merge(*parts)):
            if number % WORKLOADS_PER_PART == WORKLOADS_PER_PART - 1:
                yield None
            if self.holds.get(waiting.id) is None:
                early = waiting.namespace in self._first and held[waiting.priority] >= self._spec.gangs
                if waiting.priority in done or early:
                    continue
                if look.plans >= MAX_PLANS or (self._first and waiting.namespace in look.planned):
                    if waiting.namespace not in look.passed_over and self._may_plan(waiting):
                        look.passed_over[waiting.namespace] = None
                    continue
            workload = self._workloads.get(waiting.id)
            self._looked_at = waiting.id
            if workload is None or not waits(workload):
                self.forget(waiting.id)
            elif (until := self._out_until(workload)) > self._now:
                look.at = min(look.at, until)
            elif (failed := self._failed.get(waiting.id)) is not None and self._now < failed.until:
                look.at = min(look.at, failed.until)
            elif waiting.id in self._waiting and not self._preempting.claims(waiting.id):
                waited = waiting.since + self._spec.after
                if waited > self._now:
                    look.at = min(look.at, waited)
                    continue
                plans = look.plans
                if (yield from self._serve(workload, look)):
                    yield workload, self._waiting.get(waiting.id, waiting).text
                if look.plans > plans:
                    look.planned.add(waiting.namespace)
                served[waiting.priority] += self.holds.get(waiting.id) is not None
                if served[waiting.priority] >= self._spec.gangs:
                    done.add(waiting.priority)
        still = [namespace for namespace in self._first if namespace in look.passed_over]
        turns = dict.fromkeys((*still, *look.passed_over))
        self._first = {namespace: turn for turn, namespace in enumerate(turns) if namespace not in look.planned}
        self._seen, self._at = None if self._moved else self._state(), look.at
        self._not_before = self._now + min(
            MAX_RECHECK_SECONDS, max(FIRST_RECHECK_SECONDS, PAUSE_SECONDS_PER_POD * look.pods)
        )

    def _sorted_parts(self) -> Iterator[list[_Turn]]:
        """Yield the pending workloads in parts, each of them sorted.

        The order is by priority, then those that were passed over, then by age.
        """
        first, last = self._first, len(self._first)
        pending = list(self._waiting.values())
        for start in range(0, len(pending), SORTED_PER_PART):
            yield sorted(
                (-waiting.priority, first.get(waiting.namespace, last), waiting.since, waiting.id, waiting)
                for waiting in pending[start : start + SORTED_PER_PART]
            )

    def _may_plan(self, waiting: _PendingWorkload) -> bool:
        """Return whether a workload without a reservation would get a plan now if there were any left."""
        if waiting.since + self._spec.after > self._now or self._preempting.claims(waiting.id):
            return False
        vain, failed = self._vain.get(waiting.id), self._failed.get(waiting.id)
        if (vain is not None and self._now < vain.until) or (failed is not None and self._now < failed.until):
            return False
        workload = self._workloads.get(waiting.id)
        return workload is not None and self._out_until(workload) <= self._now and waits(workload)

    def next_due(self) -> float | None:
        """Return when `due` must be called next."""
        if self._parts.going:
            return self._now
        if not self._waiting or not self._spec.enabled:
            return None
        at = self._not_before if self._seen != self._state() else max(self._at, self._not_before)
        return at if at < inf else None

    def first_is_due(self, now: float) -> bool:
        """Return whether the first check of this process is due: younger workloads would take the nodes to reserve."""
        return self._first_began is None and (at := self.next_due()) is not None and at <= now

    def checks_first(self, now: float) -> bool:
        """Return whether decisions wait for the first check, which goes on."""
        began = self._first_began
        return began is not None and now < began + FIRST_CHECK_SECONDS and self.working

    # ------------------------------------------------------------ one workload

    def _serve(self, workload: Workload, look: _QueueCheck) -> Generator[None, None, bool]:
        """Reserve nodes for a workload if possible; return whether its reservation has changed."""
        now, held = self._now, self.holds.get(workload.id)
        if held is not None:
            return (yield from self._keep(workload, held, look))
        since = self._waiting[workload.id].since + self._spec.after_without_estimates
        blind = since <= now
        if not blind:
            look.at = min(look.at, since)
        relaxed_levels = self._relaxed_levels(workload, look)
        state, vain = (self._freed(), blind, relaxed_levels), self._vain.setdefault(workload.id, _FailedReservation())
        if vain.state == state or (now < vain.until and vain.blind == blind):
            look.at = look.at if vain.state == state else min(look.at, vain.until)
            return False
        look.plans += 1
        prospect = yield from self._choosing.plan(workload, self._stubborn if blind else None, lambda: self._now)
        look.pods += self._choosing.looked
        if not self._still_waits(workload):
            return False
        if prospect is None:
            # Other workloads have their turn before the next try.
            vain.times += 1
            pause = doubled(FIRST_FAILED_PAUSE_SECONDS, vain.times, MAX_FAILED_PAUSE_SECONDS)
            vain.blind, vain.state, vain.until = blind, state, self._now + pause
            return False
        self._vain.pop(workload.id, None)
        prospect.relaxed_levels = relaxed_levels
        self._hold(prospect, look)
        return True

    def _keep(self, workload: Workload, held: Reservation, look: _QueueCheck) -> Generator[None, None, bool]:
        """Check whether a reservation is still the best; return whether it has changed."""
        ledger, now = self._world.ledger, self._now
        shared = self._choosing.shared(held.namespace)
        for uid in [uid for uid, (node, _) in held.waits.items() if (e := ledger.get(uid)) is None or e.node != node]:
            _, name = held.waits.pop(uid)
            held.since = now
            # A tenant could create pods of its own, and end one of them each time before the reservation expires. Pods
            # that backfill end all the time, but their end is no progress.
            if not (shared and (name.startswith(f"{held.namespace}/") or uid in held.guests)):
                held.moved_on = now
            held.guests.discard(uid)
        expires = self._expires(held, shared=shared)
        if now >= expires:
            self.holds.drop(workload.id)
            self._given_up[workload.id] = self._barred[workload.namespace] = until = now + self._spec.expires
            self._idle.pop(workload.namespace, None)
            look.at = min(look.at, until)
            return True
        look.at = min(look.at, expires)
        entries = [(uid, entry) for uid in held.waits if (entry := ledger.get(uid)) is not None]
        start = max((self.ends.of(uid, entry, now) for uid, entry in entries), default=now)
        patience = 1 << min(held.moves, MAX_DOUBLINGS)
        margin = max(MIN_REMAINING_SECONDS, (held.start - now) / 10) * patience if held.start < inf else 0.0
        possible = self._choosing.possible(workload, held)
        blind_after = self._spec.after_without_estimates * patience
        stuck = start == inf and now - held.since >= blind_after
        relaxed_levels = self._relaxed_levels(workload, look)
        as_it_was = possible and not stuck and relaxed_levels == held.relaxed_levels and start <= held.start + margin
        if as_it_was or look.plans >= MAX_PLANS:
            held.start = start
            look.at = min(look.at, max(now, start) + MIN_REMAINING_SECONDS if start < inf else held.since + blind_after)
            return False
        if stuck:
            # Pods elsewhere may end where these do not. If there is nothing else, the reservation waits for these
            # again.
            self._stubborn = {uid for uid in self._stubborn if ledger.get(uid) is not None} | held.waits.keys()
            held.since = now
            if not shared:
                held.moved_on = now
        look.plans += 1
        without_end = self._stubborn if start == inf else None
        prospect = yield from self._choosing.plan(workload, without_end, lambda: self._now)
        look.pods += self._choosing.looked
        if prospect is None and self._stubborn:
            self._stubborn.clear()
        if self.holds.get(workload.id) is not held or not self._still_waits(workload):
            return False
        if prospect is None or (possible and not stuck and prospect.start + margin >= start):
            if not possible:
                self._drop(workload.id)
                return True
            held.start, held.relaxed_levels = start, relaxed_levels
            at = self._now + (
                max(MIN_REMAINING_SECONDS, (start - self._now) / 10) if start < inf else MIN_REMAINING_SECONDS
            )
            look.at = min(look.at, at)
            return False
        prospect.moves, prospect.relaxed_levels = held.moves + possible, relaxed_levels
        self._hold(prospect, look)
        return True

    def _hold(self, reservation: Reservation, look: _QueueCheck) -> None:
        shared = self._choosing.shared(reservation.namespace)
        if shared:
            before, idle = self.holds.get(reservation.workload), self._idle.get(reservation.namespace)
            if before is not None:
                reservation.moved_on = before.moved_on
                reservation.guests = before.guests & reservation.waits.keys()
            elif idle is not None:
                reservation.moved_on = idle[0]
        self.holds.put(reservation)
        blind_after = self._spec.after_without_estimates * (1 << min(reservation.moves, MAX_DOUBLINGS))
        look.at = min(
            look.at,
            reservation.start + MIN_REMAINING_SECONDS if reservation.start < inf else reservation.since + blind_after,
            self._expires(reservation, shared=shared),
        )

    def _expires(self, held: Reservation, *, shared: bool) -> float:
        """Return when a reservation expires. ``shared``: whether pods of other namespaces hold GPUs."""
        expected = held.latest if held.start < inf else held.moved_on
        if shared:  # pods may declare an end in years
            expected = min(expected, held.moved_on + self._spec.expires)
        return max(expected, held.moved_on) + self._spec.expires

    def _out_until(self, workload: Workload) -> float:
        """Return until when a workload gets no reservation because one expired."""
        until = self._given_up.get(workload.id, -inf)
        if (barred := self._barred.get(workload.namespace, -inf)) > max(until, self._now):
            return barred if self._choosing.shared(workload.namespace) else until
        return until

    def _forget_old(self) -> None:
        """Forget the namespaces whose reservations ended long ago."""
        self._barred = {namespace: until for namespace, until in self._barred.items() if until > self._now}
        recent = self._now - self._spec.expires
        self._idle = {namespace: idle for namespace, idle in self._idle.items() if idle[1] > recent}

    def _relaxed_levels(self, workload: Workload, look: _QueueCheck) -> int:
        """Return by how many levels ``relax-after`` has relaxed a workload. When it does next, another check is due."""
        if not workload.request.relax_after:
            return 0
        members, layout, now = workload.at(Stage.PENDING)[: least_of(workload)], self._world.layout, self._now
        look.at = min(look.at, next_relaxation(workload, members, layout, now) or inf)
        return wish_of(workload, members, layout, now).steps

    # ------------------------------------------------------------ excluded workloads

    def _applying(self, workload: Workload, now: float) -> list[Reservation]:
        """Return the reservations that apply to a workload that is started now."""
        applying, let_in = self._against(workload, now)
        self._let_in += let_in
        return applying

    def _against(self, workload: Workload, now: float) -> tuple[list[Reservation], list[Reservation]]:
        """Return the reservations that apply to a workload that is started now, and those that do not, as it ends in
        time.
        """
        applying = self.holds.against(workload)
        if not applying:
            return [], []
        end = self.ends.after(lasting_of(workload.at(Stage.PENDING), size_of(workload)), now)
        return [held for held in applying if end > held.latest], [held for held in applying if end <= held.latest]

    # ------------------------------------------------------------ internals

    def _still_waits(self, workload: Workload) -> bool:
        """Whether a workload that was checked in parts is the one that is pending."""
        return workload.id in self._waiting and self._workloads.get(workload.id) is workload and waits(workload)

    def _freed(self) -> Hashable:
        world = self._world
        return world.improvements, world.runs.changes, world.promises.changes, world.estimates.changes

    def _state(self) -> Hashable:
        # New pods matter only if they may have taken reserved room.
        return self._freed(), self._arrived, self._world.ledger.occupied if self.holds else 0
