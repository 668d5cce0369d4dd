"""Order of the workloads that are ready: by priority, then the namespace with the smaller share, then age.

These rules keep one namespace from blocking another:

- A workload that has been pending longer than `FairnessLimits.overdue_after` goes before all others, the oldest first.
  After one such placement the next `PLACEMENTS_BY_SHARE` placements go by share again: an old backlog can't shut out a
  namespace that holds little. So between two placements of overdue workloads there are at most that many others.
  After `OVERDUE_MISSES` attempts without a placement, every second one goes to the others: overdue workloads that fit
  nowhere don't keep them waiting.
- An attempt without a placement costs its namespace none of its share. After `MISSES_BEFORE_TURNS` such attempts in
  a row, namespaces take turns, the one with the oldest turn first. That ends when the one with the smallest share has
  a placement. An attempt that takes many operations counts as several.
- A namespace is passed over if attempts without a placement keep it from having one for `MAX_PASSED_OVER_SECONDS`.
  Then every second attempt goes to the ready workload of the highest priority that the other rules would not try
  anyway. Their placements don't count. After an attempt without a placement each other namespace has one first.
  An attempt of more than `MISS_OPERATIONS` counts here as one without a placement.
- A limit on decisions per second and namespace, a token bucket, where one is configured. A namespace without tokens is
  skipped until it has one, at any priority. So is a namespace whose attempts are expensive (`ExpensiveAttempts`).

Readers of a heap bring it up to date: they drop or replace entries that are no longer true. Invariant: for each
namespace in line the heap of shares has an entry that is not above its current key.
"""

import heapq
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from topo_scheduler.scheduling.queueing.expensive_attempts import ExpensiveAttempts
from topo_scheduler.scheduling.queueing.passed_over import PassedOver

MISSES_BEFORE_TURNS: Final = 10
"""Attempts without a placement in a row after which namespaces take turns."""
MISS_OPERATIONS: Final = 2_000
"""Operations for which an attempt without a placement counts once more, a few milliseconds. Most attempts need less.

An attempt that takes more for each pod that it places counts for those that are passed over, too.
"""
OVERDUE_MISSES: Final = 100
"""Attempts on overdue workloads without a placement after which every second attempt goes to others."""
PLACEMENTS_BY_SHARE: Final = 3
"""Placements by share after the placement of an overdue workload."""
MAX_COMPARED_SHARES: Final = 64
"""Namespaces of one priority whose shares are compared, of those that were passed over."""
MAX_COMPARED_LEVELS: Final = 64
"""Levels of lower priority with ready workloads of which it is read whether a namespace has one."""
MIN_KEPT_LEVELS: Final = 64
"""Levels that are kept at least, with or without workloads: PodGroups may have any priority."""
MIN_KEPT_NAMESPACES: Final = 4096
"""Namespaces whose last turn and tokens are kept at least."""


@dataclass(frozen=True, slots=True)
class Order:
    """Sort key of a workload.

    The higher priority comes first, then the namespace with the smaller share, then the older workload, then the ID.

    Attributes:
        priority: priority of the workload.
        created: creation time, in seconds of the API server's clock.
        id: ID of the workload.
        namespace: namespace of the workload.
        since: time at which the scheduler first saw its oldest pending pod, in seconds of the engine's clock.
        partially_bound: whether it is a gang of which some members are bound and others are not. These gangs come
            before all others of their priority, regardless of shares: their bound members hold resources in vain until
            the other members are bound too.
    """

    priority: int
    created: float
    id: str
    namespace: str = ""
    since: float = 0.0
    partially_bound: bool = False

    @property
    def level(self) -> int:
        """Combines priority and ``partially_bound``. Workloads of a higher level come first."""
        return 2 * self.priority + self.partially_bound


@dataclass(frozen=True, slots=True)
class FairnessLimits:
    """The configured limits.

    Attributes:
        overdue_after: seconds after which a pending workload is overdue.
        rate: decisions per second and namespace; None for no limit.
        burst: decisions at once and namespace.
    """

    overdue_after: float = 600.0
    rate: float | None = None
    burst: int = 100


class HeldShares(Protocol):
    """How much each namespace holds."""

    def share(self, namespace: str) -> int:
        """Return a namespace's share."""
        ...

    def take_changed(self) -> Iterable[str] | None:
        """Return the namespaces whose share may differ since the last call, None when all may."""
        ...


class EqualShares:
    """Equal shares: no namespace holds anything."""

    def share(self, _: str) -> int:
        """Return 0."""
        return 0

    def take_changed(self) -> Iterable[str]:
        """Return no namespaces."""
        return ()


LineEntry = tuple[float, str, int]
"""Age, ID and ticket of a workload in the line of its namespace."""
Key = tuple[int, float, str]
"""Share of a namespace, age and ID of the first workload in its line."""


@dataclass(slots=True)
class _PriorityLevel:
    """The workloads of one priority. Partially bound gangs have a level of their own."""

    live: int = 0
    lines: dict[str, list[LineEntry]] = field(default_factory=dict)
    by_share: list[tuple[Key, str]] = field(default_factory=list)
    listed: dict[str, Key] = field(default_factory=dict)
    """The valid key of each namespace in ``by_share``; its other entries there are void."""
    by_turn: list[tuple[int, str]] = field(default_factory=list)
    in_turn: set[str] = field(default_factory=set)
    by_wait: list[tuple[float, float, str, int, str]] = field(default_factory=list)
    misses: int = 0
    by_share_next: int = 0
    """How many of the next placements go by share even if a workload is overdue."""
    overdue_misses: int = 0
    """Attempts on overdue workloads since one of them was placed or none was ready."""
    last_overdue: bool = False
    """Whether the last attempt went to an overdue workload."""


@dataclass(frozen=True, slots=True)
class _TakenWorkload:
    """The attempt on the workload that was taken last. ``overdue``: taken because it had been pending for long.

    ``smallest``: no other namespace with ready workloads of that priority had a smaller share. ``passed_over``: taken
    because its namespace had been passed over.
    """

    level: _PriorityLevel
    rank: int
    overdue: bool
    smallest: bool
    namespace: str
    now: float
    passed_over: bool = False


class FairWorkloadQueue:
    """The workloads that are ready to be tried."""

    def __init__(self, shares: HeldShares | None = None, fairness: FairnessLimits | None = None) -> None:
        self._shares: HeldShares = shares if shares is not None else EqualShares()
        self._fairness = fairness if fairness is not None else FairnessLimits()
        self._orders: dict[str, tuple[Order, int]] = {}
        self._levels: dict[int, _PriorityLevel] = {}
        self._ranked: list[int] = []
        self._max_levels = MIN_KEPT_LEVELS
        self._tickets = 0
        self._turns = 0
        self._last_turn: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._passed_over = PassedOver()
        self._tokens: dict[str, tuple[float, float]] = {}
        self._held: dict[str, float] = {}
        self._held_by_call: dict[str, tuple[float, float]] = {}
        """Namespaces that `hold` was called for last, until when, and until when for other reasons; 0 for none."""
        self._skipped: dict[str, list[tuple[int, tuple[float, float, str, int, str]]]] = {}
        self._expensive = ExpensiveAttempts()
        self._current: _TakenWorkload | None = None

    def __contains__(self, id_: str) -> bool:
        return id_ in self._orders

    def configure(self, fairness: FairnessLimits) -> None:
        """Apply a new configuration. Every namespace begins with all its tokens."""
        if fairness != self._fairness:
            self._fairness = fairness
            self._tokens.clear()
            for namespace in list(self._held):
                self._release(namespace)
                self._passed_over.released(namespace)

    def put(self, order: Order) -> None:
        """Make a workload ready."""
        namespace = order.namespace
        if namespace not in self._waiting:
            self._passed_over.newly_ready[namespace] = None
        if (former := self._orders.get(order.id)) is not None:
            if former[0].namespace == namespace:
                self._remove(order.id)  # it stays passed over since then
            else:
                self.drop(order.id)
        self._tickets += 1
        ticket = self._tickets
        self._orders[order.id] = (order, ticket)
        self._waiting[namespace] = self._waiting.get(namespace, 0) + 1
        level = self._levels.get(order.level)
        if level is None:
            self._drop_empty_levels()
            level = self._levels[order.level] = _PriorityLevel()
            insort(self._ranked, order.level, key=lambda level: -level)
        level.live += 1
        line = level.lines.setdefault(namespace, [])
        heapq.heappush(line, (order.created, order.id, ticket))
        heapq.heappush(level.by_wait, (order.since, order.created, order.id, ticket, namespace))
        if len(level.by_wait) > 2 * level.live + 64:
            self._compact(level)
        if namespace not in self._held and line[0][2] == ticket:
            self._insert(level, namespace)

    def drop(self, id_: str) -> None:
        """Remove a workload. Its entries in the heaps are void from now on."""
        if id_ in self._orders:
            namespace = self._remove(id_)
            if namespace not in self._waiting:
                self._passed_over.newly_ready.pop(namespace, None)
                self._passed_over.since.pop(namespace, None)
                self._passed_over.untried.pop(namespace, None)

    def _drop_empty_levels(self) -> None:
        """Drop the levels without a workload, once there are many."""
        if len(self._levels) > self._max_levels:
            self._levels = {rank: level for rank, level in self._levels.items() if level.live}
            self._ranked = [rank for rank in self._ranked if rank in self._levels]
            self._max_levels = 2 * len(self._levels) + MIN_KEPT_LEVELS

    def _remove(self, id_: str) -> str:
        """Remove a workload that is ready; return its namespace, which may get another one at once."""
        order, _ = self._orders.pop(id_)
        remaining = self._waiting[order.namespace] = self._waiting[order.namespace] - 1
        if not remaining:
            del self._waiting[order.namespace]
        level = self._levels[order.level]
        level.live -= 1
        if not level.live:
            level.misses = level.overdue_misses = 0
            for heap in (level.lines, level.by_share, level.listed, level.by_turn, level.in_turn, level.by_wait):
                heap.clear()
        return order.namespace

    def take(self, now: float) -> str | None:
        """Remove and return the workload whose turn it is, or None if none is ready."""
        self._current = None
        if not self._orders:
            return None
        for namespace, until in list(self._held.items()):
            if until <= now:
                self._release(namespace)
                self._passed_over.released(namespace)
        self._apply_changed_shares()
        others = self._passed_over
        if others.newly_ready or others.missed_at is not None:
            others.advance(now)
        if others.missed_by and others.is_due(self._held) and (id_ := self._take_passed_over(now)) is not None:
            return id_
        for rank in self._ranked:
            level = self._levels[rank]
            selected = self._next(level, now) if level.live else None
            if selected is not None:
                id_, overdue = selected
                namespace = self._orders[id_][0].namespace
                by_share = not overdue and level.misses < MISSES_BEFORE_TURNS
                smallest = by_share or namespace == self._smallest_share(level)
                self._take_turn(namespace, now)
                self.drop(id_)
                waits = len(self._ranked) > 1 and namespace in self._waiting and self._waits_below(rank, namespace)
                if not waits and others.since.pop(namespace, None) is not None:
                    others.since[namespace] = others.clock_in_vain  # the time starts again
                    others.untried.pop(namespace, None)
                    others.untried[namespace] = others.clock
                level.last_overdue = overdue
                self._current = _TakenWorkload(level, rank, overdue, smallest, namespace, now)
                return id_
        return None

    def tried(self, *, placed: int, operations: int = 0, charged: int = 0) -> None:
        """Record the result of the attempt on the workload that was taken last: how many pods it ``placed``.

        It took ``operations``. Its namespace is ``charged`` those of all but a search for victims that found some.
        """
        if self._current is None:
            return
        attempt, self._current = self._current, None
        counts = operations > MISS_OPERATIONS * placed or not placed
        self._passed_over.tried(
            attempt.namespace,
            attempt.rank,
            by_rules=not attempt.passed_over,
            in_vain=not placed,
            counts=counts,
            now=attempt.now,
        )
        until = self._expensive.spend(attempt.namespace, charged, attempt.now)
        if until > attempt.now:
            self._held[attempt.namespace] = max(until, self._held.get(attempt.namespace, until))
        if attempt.passed_over:
            return  # it says nothing about the order within its priority
        level = attempt.level
        if placed:
            level.misses = 0 if attempt.smallest else level.misses
            level.by_share_next = PLACEMENTS_BY_SHARE if attempt.overdue else max(0, level.by_share_next - 1)
        elif level.live:
            level.misses += 1 + operations // MISS_OPERATIONS
        if attempt.overdue and level.live:
            level.overdue_misses = 0 if placed else level.overdue_misses + 1 + operations // MISS_OPERATIONS

    def hold(self, namespaces: Collection[str], until: float) -> None:
        """Skip these namespaces until a time in seconds, whatever the reason, and those of the last call no longer.

        That is for the sake of others. So these stay passed over meanwhile.
        """
        former, self._held_by_call = self._held_by_call, {}
        for namespace in namespaces:
            held = self._held.get(namespace, 0.0)
            end, other = former.pop(namespace, (None, 0.0))
            other = other if held == end else held
            self._held[namespace] = max(until, other)
            self._held_by_call[namespace] = self._held[namespace], other
        for namespace, (end, other) in former.items():
            if self._held.get(namespace) != end:
                continue
            if other:
                self._held[namespace] = other
            else:
                self._release(namespace)

    def take_slowed(self) -> list[str]:
        """Return the namespaces that are skipped because their attempts are expensive, each once in a while."""
        return self._expensive.take_slowed()

    @property
    def any_ready(self) -> bool:
        """Whether `take` would return a workload, as of its last call."""
        if not self._held:
            return bool(self._orders)
        return any(namespace not in self._held for namespace in self._waiting)

    def next_due(self) -> float | None:
        """Return when the next skipped namespace has a token again."""
        return min((until for namespace, until in self._held.items() if namespace in self._waiting), default=None)

    # ------------------------------------------------------------ selection

    def _next(self, level: _PriorityLevel, now: float) -> tuple[str, bool] | None:
        others_next = level.last_overdue and level.overdue_misses >= OVERDUE_MISSES
        if not level.by_share_next and not others_next:
            if (id_ := self._overdue(level, now)) is not None:
                return id_, True
            level.overdue_misses = 0
        namespace = self._oldest_turn(level) if level.misses >= MISSES_BEFORE_TURNS else self._smallest_share(level)
        head = None if namespace is None else self._head(level, namespace)
        return None if head is None else (head[1], False)

    def _overdue(self, level: _PriorityLevel, now: float) -> str | None:
        heap = level.by_wait
        while heap:
            since, _, id_, ticket, namespace = heap[0]
            if self._is_live(id_, ticket):
                if now - since < self._fairness.overdue_after:
                    return None
                if namespace not in self._held:
                    return id_
                order, _ = self._orders[id_]
                self._skipped.setdefault(namespace, []).append((order.level, heap[0]))
            heapq.heappop(heap)
        return None

    def _smallest_share(self, level: _PriorityLevel) -> str | None:
        heap = level.by_share
        while heap:
            key, namespace = heap[0]
            if level.listed.get(namespace) == key:
                if self._key(level, namespace) == key:
                    return namespace
                heapq.heappop(heap)
                self._insert(level, namespace)
            else:
                heapq.heappop(heap)
        return None

    def _oldest_turn(self, level: _PriorityLevel) -> str | None:
        heap = level.by_turn
        while heap:
            turn, namespace = heap[0]
            if namespace in self._held or self._head(level, namespace) is None:
                heapq.heappop(heap)
                level.in_turn.discard(namespace)
            elif turn != (last := self._last_turn.get(namespace, 0)):
                heapq.heapreplace(heap, (last, namespace))
            else:
                return namespace
        return None

    def _take_passed_over(self, now: float) -> str | None:
        """Remove and return a workload of the highest priority, but for those that the other rules try anyway."""
        had_attempt = self._passed_over.had_attempt
        for _ in range(2):
            for rank in self._ranked:
                level = self._levels[rank]
                first = self._first_without_attempt(level, rank) if level.live else None
                if first is not None:
                    (_, _, id_), namespace = first
                    self._take_turn(namespace, now)
                    self.drop(id_)
                    self._current = _TakenWorkload(level, rank, False, False, namespace, now, passed_over=True)
                    return id_
            had_attempt.clear()
        return None

    def _first_without_attempt(self, level: _PriorityLevel, rank: int) -> tuple[Key, str] | None:
        """Return the namespace that comes first in a level of those without an attempt, and its key.

        The smallest share counts, of `MAX_COMPARED_SHARES` that have been ready the longest.
        """
        others = self._passed_over
        missed = others.missed_by if rank == others.missed_rank else ""
        while True:
            names = (name for name in level.lines if name != missed and name not in self._held)
            ready = (name for name in names if name not in others.had_attempt and others.may_have_turn(name, rank))
            compared = list(islice(ready, MAX_COMPARED_SHARES))
            keys = [(key, name) for name in compared if (key := self._key(level, name)) is not None]
            if keys or not compared:  # lines without workloads are removed, so that the next ones are compared
                return min(keys, default=None)

    def _take_turn(self, namespace: str, now: float) -> None:
        self._turns += 1
        if len(self._last_turn) > MIN_KEPT_NAMESPACES:
            self._last_turn.clear()
        self._last_turn[namespace] = self._turns
        rate, burst = self._fairness.rate, self._fairness.burst
        if rate is None:
            return
        if len(self._tokens) > MIN_KEPT_NAMESPACES:
            tokens = self._tokens.items()
            self._tokens = {
                name: (tokens_then, counted_at)
                for name, (tokens_then, counted_at) in tokens
                if tokens_then + (now - counted_at) * rate < burst
            }
        tokens_then, counted_at = self._tokens.get(namespace, (float(burst), now))
        remaining = min(float(burst), tokens_then + (now - counted_at) * rate) - 1
        self._tokens[namespace] = (remaining, now)
        if remaining < 1:
            self._held[namespace] = now + (1 - remaining) / rate

    # ------------------------------------------------------------ inside

    def _waits_below(self, rank: int, namespace: str) -> bool:
        """Return whether a namespace has a ready workload of a lower level, of the next `MAX_COMPARED_LEVELS`."""
        first = bisect_right(self._ranked, -rank, key=lambda level: -level)
        lower = (level for rank in islice(self._ranked, first, None) if (level := self._levels[rank]).live)
        return any(self._head(level, namespace) is not None for level in islice(lower, MAX_COMPARED_LEVELS))

    def _is_live(self, id_: str, ticket: int) -> bool:
        entry = self._orders.get(id_)
        return entry is not None and entry[1] == ticket

    def _head(self, level: _PriorityLevel, namespace: str) -> LineEntry | None:
        line = level.lines.get(namespace)
        while line:
            if self._is_live(line[0][1], line[0][2]):
                return line[0]
            heapq.heappop(line)
        level.lines.pop(namespace, None)
        return None

    def _key(self, level: _PriorityLevel, namespace: str) -> Key | None:
        head = None if namespace in self._held else self._head(level, namespace)
        return None if head is None else (self._shares.share(namespace), head[0], head[1])

    def _insert(self, level: _PriorityLevel, namespace: str) -> None:
        """Insert a namespace with its current key."""
        key = self._key(level, namespace)
        if key is None:
            level.listed.pop(namespace, None)
            return
        if level.listed.get(namespace) != key:
            level.listed[namespace] = key
            heapq.heappush(level.by_share, (key, namespace))
            if len(level.by_share) > 4 * len(level.listed) + 64:
                level.by_share = [(key, name) for name, key in level.listed.items()]
                heapq.heapify(level.by_share)
        if namespace not in level.in_turn:
            level.in_turn.add(namespace)
            heapq.heappush(level.by_turn, (self._last_turn.get(namespace, 0), namespace))

    def _apply_changed_shares(self) -> None:
        """Apply changed shares."""
        changed = self._shares.take_changed()
        for level in self._levels.values():
            if not level.live:
                continue
            names = list(level.lines) if changed is None else [name for name in changed if name in level.lines]
            for namespace in names:
                self._insert(level, namespace)

    def _release(self, namespace: str) -> None:
        del self._held[namespace]
        for rank, entry in self._skipped.pop(namespace, ()):
            if rank in self._levels:
                heapq.heappush(self._levels[rank].by_wait, entry)
        for level in self._levels.values():
            if namespace in level.lines:
                self._insert(level, namespace)

    def _compact(self, level: _PriorityLevel) -> None:
        level.by_wait = [entry for entry in level.by_wait if self._is_live(entry[2], entry[3])]
        heapq.heapify(level.by_wait)
        for namespace, line in level.lines.items():
            level.lines[namespace] = [entry for entry in line if self._is_live(entry[1], entry[2])]
            heapq.heapify(level.lines[namespace])
