"""Reservation with backfill, as a machine without I/O: for whom nodes are held, which, and who may use them.

Of each priority the workloads that have waited longest are given the place that comes free first (`reservation`), a
few at a time. It is theirs until they are placed, anywhere, or gone. What keeps others off is in `holds`; it does not
apply to those of higher priority, to members that a running gang has lost, and to those who are expected to end in
time. In time is before the moment that was expected when the nodes were chosen: once that has passed nobody is let in
any more, so nobody who runs longer than he said delays the holder but those who were there by then.

A reservation is looked at again when something became free or changed, at a pace that follows what looking costs. It
moves to other nodes when its own can no longer be had, or others are clearly earlier. Each such choice doubles what the
next must gain, and how long it is waited where no end is known. So a workload does not follow estimates that are wrong
from place to place: once it has waited for longer than anybody runs it stays, and all that are there have ended when
the longest of them has. Nothing of it is stored: after a restart nodes are chosen anew.
"""

from collections import Counter
from collections.abc import Generator, Hashable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.api.waiting import ReservationSpec
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import Backoff
from topo_scheduler.scheduling.parts import More, Parts, always
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.placing.levels import next_loosening, wish_of
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.preemption.shares import ReservationShare
from topo_scheduler.scheduling.queueing.standing import least_of, order_of
from topo_scheduler.scheduling.queueing.turns import Order
from topo_scheduler.scheduling.reserving.choosing import Choosing, waits
from topo_scheduler.scheduling.reserving.ends import LATE, Ends, Lasting
from topo_scheduler.scheduling.reserving.holds import Holds, Reservation
from topo_scheduler.scheduling.reserving.outlook import Endings
from topo_scheduler.scheduling.reserving.words import holds_what, kept_off
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.resources import Amounts
from topo_scheduler.state.workloads import Stage, Workload, Workloads

PACE: Final = 2e-3
"""Seconds to the next look for each pod that was looked at."""
LOOK_AGAIN, LOOK_AGAIN_MOST = 1.0, 30.0
"""Seconds between two looks at least, and at most where something changed."""
MOST_PLANS: Final = 4
"""Plans made in one look."""
MOST_DOUBLINGS: Final = 32
"""Of what a move must gain: by then it is longer than anything runs."""
VICTIMS_END_SECONDS: Final = 60.0
"""Seconds within which pods that are evicted have ended, as a rule; who would end in time must do so from then on."""
VAIN, VAIN_MOST = 2.0, 120.0
"""Seconds after which it is looked again for what there was nothing to hold for, doubled each time."""


@dataclass(frozen=True, slots=True)
class _PendingWorkload:
    """A workload without room, in its turn. ``text`` why, as it was told."""

    priority: int
    since: float
    id: str
    text: str

    @property
    def turn(self) -> tuple[int, float, str]:
        return -self.priority, self.since, self.id


@dataclass(slots=True)
class _Vain:
    """How often nothing was found to hold for a workload, on what state, and when it is looked for again."""

    times: int = 0
    blind: bool = False
    state: Hashable = None
    until: float = 0.0


@dataclass(slots=True)
class _Look:
    """What one look at all that wait has come to so far. ``at`` when the next is due whatever happens."""

    plans: int = 0
    pods: int = 0
    at: float = inf


class Reserving:
    """Who waits for much room, and what is held for them."""

    def __init__(
        self, world: World, workloads: Workloads, attempts: Attempts, preempting: Preempting, spec: ReservationSpec
    ) -> None:
        self.holds = Holds(world)
        self.ends = Ends(world, workloads)
        self._spec = spec
        self._world = world
        self._workloads = workloads
        self._preempting = preempting
        self._choosing = Choosing(world, attempts, preempting, self.holds, Endings(world, workloads, self.ends), spec)
        self._waiting: dict[str, _PendingWorkload] = {}
        self._looked_at = ""
        """The workload that is looked at."""
        self._failed: dict[str, Backoff] = {}
        """Workloads for which a look raised or took too much, and until when none is made."""
        self._vain: dict[str, _Vain] = {}
        self._given_up: dict[str, float] = {}
        """Workloads whose reservation expired, and until when they get no other."""
        self._barred: dict[str, float] = {}
        """Namespaces of these, and until when their other workloads get none while others hold GPUs."""
        self._idle: dict[str, tuple[float, float]] = {}
        """Namespaces whose last reservation ended without its workload being placed: when it had moved on, and ended.

        What a tenant deletes and creates again holds nodes no longer than what stays."""
        self._stubborn: set[str] = set()
        """Pods that were waited for in vain, as they don't say when they end."""
        self._let_in: list[Reservation] = []
        """Of whose nodes the workload that is tried may use what is free, as it ends in time."""
        self._arrived = 0
        self._seen: Hashable = None
        self._at = inf
        self._not_before = -inf
        self._parts: Parts[tuple[Workload, str]] = Parts(world)
        self._now = 0.0
        """The time of the part that is worked at."""
        self._left_at: Hashable = None
        self._moved = False
        """Whether something happened between two parts."""

    def configure(self, spec: ReservationSpec) -> None:
        """Take over a new configuration."""
        self._parts.drop()
        if spec != self._spec:
            self._spec = self._choosing.spec = spec
            self._vain.clear()
            self._seen = None
            if not spec.enabled:
                for held in self.holds:
                    self.holds.drop(held.workload)

    @property
    def gpus(self) -> int:
        """GPUs that are held for workloads that wait, those that others still use included."""
        return sum(held.gpus for held in self.holds)

    def is_large(self, workload: Workload) -> bool:
        """Return whether nodes may be held for a workload that waits."""
        pending = workload.at(Stage.PENDING)
        if not workload.gang:
            return any(member.cls.gpus > 1 for member in pending)
        return self._spec.bare_gangs or workload.group is not None or all(member.controlled for member in pending)

    # ------------------------------------------------------------ attempts

    def count_for(self, workload: Workload, now: float) -> Hashable:
        """Let what is held from a workload count; return what tells it from anything else that is held."""
        self._let_in.clear()
        return self.holds.count_for(self._applying(workload, now)) if self.holds else None

    def shares(self, workload: Workload, now: float) -> list[ReservationShare]:
        """Return what is held, once pods end that are waited for, from a workload that evicts some of them now."""
        started = now + VICTIMS_END_SECONDS
        return [share for held in self._against(workload, started)[0] for share in self.holds.shares(held)]

    def kept_from(self, workload: Workload, now: float) -> list[tuple[int, Amounts]]:
        """Return what would be charged to which rows if a workload were tried now. Changes nothing."""
        row_of = self._world.nodes.row_of
        lacking = [item for held in self._against(workload, now)[0] for item in self.holds.lacking(held).items()]
        return [(row, amounts) for node, amounts in lacking if (row := row_of.get(node)) is not None and amounts]

    def placed(self, workload: Workload, decision: Decision) -> None:
        """Note that a workload has a place: it waits no longer, and where it uses held nodes it is waited for."""
        if self.holds and self.holds.drop(workload.id) is not None:
            self._idle.pop(workload.namespace, None)
        self.forget(workload.id)
        for held in self._let_in:
            for seat in decision.seats:
                if seat.node in held.nodes:
                    self.holds.let_in(held, seat.uid, seat.node, f"{seat.namespace}/{seat.name}")

    def parked(self, workload: Workload, decision: Decision, text: str, now: float) -> str:
        """Note that a workload has no room; return what there is to add to the reason why it waits."""
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
        """Note that a workload has no room; ``order`` its turn, None where nothing is to be held for it."""
        if not self._spec.enabled:
            return
        if order is None:
            self.forget(id_)
            return
        if id_ not in self._waiting:
            self._arrived += 1
        self._waiting[id_] = _PendingWorkload(order.priority, order.since, id_, text)

    def applying(self, order: Order, lasting: Lasting, now: float) -> list[Reservation]:
        """Return what is held from a workload none of whose members runs, if it is started now. Changes nothing."""
        others = [one for one in self.holds if one.workload != order.id and one.priority >= order.priority]
        end = self.ends.after(lasting, now) if others else now
        return [held for held in others if end > held.latest]

    def told(self, id_: str) -> str:
        """Return what is held for a workload, in words; empty where nothing is."""
        held = self.holds.get(id_) if self.holds else None
        return holds_what(held, self._world.epoch, self._world.reader(held.namespace)) if held is not None else ""

    def forget(self, id_: str) -> None:
        """Hold nothing for a workload that is placed or gone."""
        self._waiting.pop(id_, None)
        self._vain.pop(id_, None)
        self._given_up.pop(id_, None)
        self._failed.pop(id_, None)
        self._drop(id_)

    def _drop(self, id_: str) -> None:
        """Hold nothing for a workload that has no place."""
        if self.holds and (held := self.holds.drop(id_)) is not None:
            self._idle[held.namespace] = held.moved_on, self._now

    # ------------------------------------------------------------ looking

    def let_go(self) -> None:
        """Hold nothing for workloads that are gone, or no longer to be placed."""
        for held in self.holds if self.holds else ():
            if not waits(self._workloads.get(held.workload)):
                self.forget(held.workload)

    def due(self, now: float, more: More = always) -> list[tuple[Workload, str]]:
        """Hold nodes for who has waited long enough; return those for whom others are held now, and why they wait.

        What is not done when there is ``more`` time no longer is gone on with at the next call.
        """
        self.let_go()
        self._now = now
        if self._parts.stale:
            self._parts.drop()
            self._seen, self._not_before = None, now + LOOK_AGAIN
        if self._parts.going:
            self._moved |= self._left_at != self._state()
        else:
            if not self._spec.enabled or not self._waiting or now < self._not_before:
                return []
            if now < self._at and self._seen == self._state():
                return []
            self._moved = False
            self._parts.begin(self._look())
        news = self._parts.work(more)
        self._left_at = self._state()
        return news

    def failed(self, now: float) -> str:
        """Give up a look that raised, and look no more for the workload it was at for a while; return its id."""
        self._parts.drop()
        self.holds.count_nobody()
        self._let_in.clear()
        self._seen, self._not_before = None, now + LOOK_AGAIN
        if self._looked_at in self._waiting:
            self._failed.setdefault(self._looked_at, Backoff()).fail(now)
            if self.holds:
                self.holds.drop(self._looked_at)
        return self._looked_at

    @property
    def working(self) -> bool:
        """Whether a look was begun and not ended."""
        return self._parts.going

    def _look(self) -> Iterator[tuple[Workload, str] | None]:
        """Look at all that wait; yields after each part of the work, and for whom other nodes are held."""
        look = _Look()
        self._forget_old()
        served: Counter[int] = Counter()
        done: set[int] = set()
        for one in sorted(self._waiting.values(), key=lambda one: one.turn):
            if one.priority in done or (look.plans >= MOST_PLANS and self.holds.get(one.id) is None):
                continue
            workload = self._workloads.get(one.id)
            self._looked_at = one.id
            if workload is None or not waits(workload):
                self.forget(one.id)
            elif (until := self._out_until(workload)) > self._now:
                look.at = min(look.at, until)
            elif (failed := self._failed.get(one.id)) is not None and self._now < failed.until:
                look.at = min(look.at, failed.until)
            elif one.id in self._waiting and not self._preempting.claims(one.id):
                waited = one.since + self._spec.after
                if waited > self._now:  # who comes later has waited less
                    look.at = min(look.at, waited)
                    done.add(one.priority)
                    continue
                if (yield from self._serve(workload, look)):
                    yield workload, self._waiting.get(one.id, one).text
                served[one.priority] += self.holds.get(one.id) is not None
                if served[one.priority] >= self._spec.gangs:
                    done.add(one.priority)
        self._seen, self._at = None if self._moved else self._state(), look.at
        self._not_before = self._now + min(LOOK_AGAIN_MOST, max(LOOK_AGAIN, PACE * look.pods))

    def next_due(self) -> float | None:
        """Return when `due` must be asked next."""
        if self._parts.going:
            return self._now
        if not self._waiting or not self._spec.enabled:
            return None
        at = self._not_before if self._seen != self._state() else max(self._at, self._not_before)
        return at if at < inf else None

    # ------------------------------------------------------------ one workload

    def _serve(self, workload: Workload, look: _Look) -> Generator[None, None, bool]:
        """See that nodes are held for a workload, if any can be; return whether others are than before."""
        now, held = self._now, self.holds.get(workload.id)
        if held is not None:
            return (yield from self._keep(workload, held, look))
        since = self._waiting[workload.id].since + self._spec.after_without_estimates
        blind = since <= now
        if not blind:
            look.at = min(look.at, since)
        loosened = self._loosened(workload, look)
        state, vain = (self._freed(), blind, loosened), self._vain.setdefault(workload.id, _Vain())
        if vain.state == state or (now < vain.until and vain.blind == blind):
            look.at = look.at if vain.state == state else min(look.at, vain.until)
            return False
        look.plans += 1
        found = yield from self._choosing.plan(workload, self._stubborn if blind else None, lambda: self._now)
        look.pods += self._choosing.looked
        if not self._still_waits(workload):
            return False
        if found is None:
            # Others have their turn before it is tried again.
            vain.times += 1
            vain.blind, vain.state, vain.until = blind, state, self._now + doubled(VAIN, vain.times, VAIN_MOST)
            return False
        self._vain.pop(workload.id, None)
        found.loosened = loosened
        self._hold(found, look)
        return True

    def _keep(self, workload: Workload, held: Reservation, look: _Look) -> Generator[None, None, bool]:
        """Look whether what is held is still what there is to wait for."""
        ledger, now = self._world.ledger, self._now
        for uid in [uid for uid, (node, _) in held.waits.items() if (e := ledger.get(uid)) is None or e.node != node]:
            _, name = held.waits.pop(uid)
            held.since = now
            # A tenant could create pods of its own, and end one of them each time before the reservation expires.
            own = name.startswith(f"{held.namespace}/") and self._choosing.shared(held.namespace)
            held.moved_on = held.moved_on if own else now
        expected = held.latest if held.start < inf else held.moved_on
        expires = max(expected, held.moved_on) + self._spec.expires
        if now >= expires:
            self.holds.drop(workload.id)
            self._given_up[workload.id] = self._barred[workload.namespace] = until = now + self._spec.expires
            self._idle.pop(workload.namespace, None)
            look.at = min(look.at, until)
            return True
        look.at = min(look.at, expires)
        entries = [(uid, entry) for uid in held.waits if (entry := ledger.get(uid)) is not None]
        start = max((self.ends.of(uid, entry, now) for uid, entry in entries), default=now)
        patience = 1 << min(held.moves, MOST_DOUBLINGS)
        margin = max(LATE, (held.start - now) / 10) * patience if held.start < inf else 0.0
        possible = self._choosing.possible(workload, held)
        blind_after = self._spec.after_without_estimates * patience
        stuck = start == inf and now - held.since >= blind_after
        loosened = self._loosened(workload, look)
        as_it_was = possible and not stuck and loosened == held.loosened and start <= held.start + margin
        if as_it_was or look.plans >= MOST_PLANS:
            held.start = start
            look.at = min(look.at, max(now, start) + LATE if start < inf else held.since + blind_after)
            return False
        if stuck:
            # Others may end where these don't; they are waited for again when there is nothing else.
            self._stubborn = {uid for uid in self._stubborn if ledger.get(uid) is not None} | held.waits.keys()
            held.since = now
            if not self._choosing.shared(workload.namespace):
                held.moved_on = now
        look.plans += 1
        without_end = self._stubborn if start == inf else None
        found = yield from self._choosing.plan(workload, without_end, lambda: self._now)
        look.pods += self._choosing.looked
        if found is None and self._stubborn:
            self._stubborn.clear()
        if self.holds.get(workload.id) is not held or not self._still_waits(workload):
            return False
        if found is None or (possible and not stuck and found.start + margin >= start):
            if not possible:
                self._drop(workload.id)
                return True
            held.start, held.loosened = start, loosened
            at = self._now + (max(LATE, (start - self._now) / 10) if start < inf else LATE)
            look.at = min(look.at, at)
            return False
        found.moves, found.loosened = held.moves + possible, loosened
        self._hold(found, look)
        return True

    def _hold(self, found: Reservation, look: _Look) -> None:
        if self._choosing.shared(found.namespace):
            before, idle = self.holds.get(found.workload), self._idle.get(found.namespace)
            if before is not None:
                found.moved_on = before.moved_on
            elif idle is not None:
                found.moved_on = idle[0]
        self.holds.put(found)
        blind_after = self._spec.after_without_estimates * (1 << min(found.moves, MOST_DOUBLINGS))
        look.at = min(look.at, found.start + LATE if found.start < inf else found.since + blind_after)

    def _out_until(self, workload: Workload) -> float:
        """Return until when a workload gets no reservation, as one expired."""
        until = self._given_up.get(workload.id, -inf)
        if (barred := self._barred.get(workload.namespace, -inf)) > max(until, self._now):
            return barred if self._choosing.shared(workload.namespace) else until
        return until

    def _forget_old(self) -> None:
        """Forget the namespaces whose reservations ended long ago."""
        self._barred = {namespace: until for namespace, until in self._barred.items() if until > self._now}
        recent = self._now - self._spec.expires
        self._idle = {namespace: one for namespace, one in self._idle.items() if one[1] > recent}

    def _loosened(self, workload: Workload, look: _Look) -> int:
        """Return by how many levels ``relax-after`` has loosened a workload; when it does next, it is looked again."""
        if not workload.request.relax_after:
            return 0
        members, layout, now = workload.at(Stage.PENDING)[: least_of(workload)], self._world.layout, self._now
        look.at = min(look.at, next_loosening(workload, members, layout, now) or inf)
        return wish_of(workload, members, layout, now).steps

    # ------------------------------------------------------------ who is kept off

    def _applying(self, workload: Workload, now: float) -> list[Reservation]:
        """Return what is held from a workload that is started now."""
        applying, let_in = self._against(workload, now)
        self._let_in += let_in
        return applying

    def _against(self, workload: Workload, now: float) -> tuple[list[Reservation], list[Reservation]]:
        """Return what is held from a workload that is started now, and what is not, as it ends in time."""
        others = self.holds.against(workload)
        if not others:
            return [], []
        end = self.ends.if_started(workload, now)
        return [held for held in others if end > held.latest], [held for held in others if end <= held.latest]

    # ------------------------------------------------------------ inside

    def _still_waits(self, workload: Workload) -> bool:
        """Whether a workload that was looked at in parts is the one that waits."""
        return workload.id in self._waiting and self._workloads.get(workload.id) is workload and waits(workload)

    def _freed(self) -> Hashable:
        return self._world.improvements, self._world.runs.changes, self._world.promises.changes

    def _state(self) -> Hashable:
        # Who came matters only where he may have taken what is held.
        return self._freed(), self._arrived, self._world.ledger.occupied if self.holds else 0
