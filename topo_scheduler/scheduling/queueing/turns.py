"""Whose turn it is among the workloads that are ready: priority, then the namespace with the smaller share, then age.

Three things keep one namespace from holding up another of the same priority:

- A workload that has waited longer than `FairnessLimits.overdue_after` goes before all others, the longest waiting
  first.
  Once one of them was placed, the next `BY_SHARE` places are given by share again: an old backlog can't shut out who
  holds little. So between two placements of overdue workloads there are at most so many of others.
- An attempt that finds no place costs its namespace nothing of its share. After `MISSES` such attempts in a row,
  namespaces take turns until a place is found, the one first whose last turn is longest ago. An attempt that takes many
  operations counts as several.
- A limit on decisions per second and namespace, a token bucket, where one is configured: a namespace that has none
  left is passed over until it has, whatever its priority.

Every heap is brought up to date where it is read: an entry that says something else than what is true by then is
dropped or put again. Invariant: for each namespace in line the heap of shares has an entry that is not above the truth.
"""

import heapq
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

MISSES: Final = 10
"""Attempts without a place in a row after which namespaces take turns."""
MISS_OPERATIONS: Final = 2_000
"""Operations for which an attempt without a place counts once more, some milliseconds. Ordinary ones stay below."""
BY_SHARE: Final = 3
"""Places given by share after one that was given to an overdue workload."""
KEEP: Final = 4096
"""Namespaces whose last turn and tokens are remembered at least."""


@dataclass(frozen=True, slots=True)
class Order:
    """What decides on a workload's turn.

    The higher priority first, then the namespace with the smaller share, then the older, then the id. ``created`` in
    seconds of the API server's clock, ``since`` when its oldest waiting pod was seen first, in seconds of ours.
    ``half_bound`` gangs come before all others of their priority, whatever their namespace holds: what is bound of them
    holds room to no purpose until the rest is bound too.
    """

    priority: int
    created: float
    id: str
    namespace: str = ""
    since: float = 0.0
    half_bound: bool = False

    @property
    def level(self) -> int:
        """Workloads of a higher level come first."""
        return 2 * self.priority + self.half_bound


@dataclass(frozen=True, slots=True)
class FairnessLimits:
    """What is configured. Seconds, and decisions a second with the most at once; None for no limit."""

    overdue_after: float = 600.0
    rate: float | None = None
    burst: int = 100


class HeldShares(Protocol):
    """Who holds how much."""

    def share(self, namespace: str) -> int:
        """Return a namespace's share."""
        ...

    def take_changed(self) -> Iterable[str] | None:
        """Return the namespaces whose share may differ since the last call, None when all may."""
        ...


class Even:
    """Nobody holds anything."""

    def share(self, _: str) -> int:
        """Return 0."""
        return 0

    def take_changed(self) -> Iterable[str]:
        """Return nobody."""
        return ()


Place = tuple[float, str, int]
"""Age, id and ticket of a workload in the line of its namespace."""
Key = tuple[int, float, str]
"""Share of a namespace, age and id of the first in its line."""


@dataclass(slots=True)
class _Level:
    """The workloads of one priority, those that are half bound apart."""

    live: int = 0
    lines: dict[str, list[Place]] = field(default_factory=dict)
    by_share: list[tuple[Key, str]] = field(default_factory=list)
    listed: dict[str, Key] = field(default_factory=dict)
    """What ``by_share`` says of each namespace; other entries of it are void."""
    by_turn: list[tuple[int, str]] = field(default_factory=list)
    in_turn: set[str] = field(default_factory=set)
    by_wait: list[tuple[float, float, str, int, str]] = field(default_factory=list)
    misses: int = 0
    by_share_next: int = 0
    """How many of the next places are given by share even when somebody is overdue."""


class Turns:
    """The workloads that are ready to be tried."""

    def __init__(self, shares: HeldShares | None = None, fairness: FairnessLimits | None = None) -> None:
        self._shares: HeldShares = shares if shares is not None else Even()
        self._fairness = fairness if fairness is not None else FairnessLimits()
        self._orders: dict[str, tuple[Order, int]] = {}
        self._levels: dict[int, _Level] = {}
        self._ranked: list[int] = []
        self._tickets = 0
        self._turns = 0
        self._last_turn: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._tokens: dict[str, tuple[float, float]] = {}
        self._held: dict[str, float] = {}
        self._set_aside: dict[str, list[tuple[int, tuple[float, float, str, int, str]]]] = {}
        self._current: tuple[_Level, bool] | None = None

    def __contains__(self, id_: str) -> bool:
        return id_ in self._orders

    def configure(self, fairness: FairnessLimits) -> None:
        """Take over a new configuration; every namespace begins with all its tokens."""
        if fairness != self._fairness:
            self._fairness = fairness
            self._tokens.clear()
            for namespace in list(self._held):
                self._let_go(namespace)

    def put(self, order: Order) -> None:
        """Make a workload ready."""
        self.drop(order.id)
        self._tickets += 1
        ticket = self._tickets
        self._orders[order.id] = (order, ticket)
        namespace = order.namespace
        self._waiting[namespace] = self._waiting.get(namespace, 0) + 1
        level = self._levels.get(order.level)
        if level is None:
            level = self._levels[order.level] = _Level()
            insort(self._ranked, order.level, key=lambda level: -level)
        level.live += 1
        line = level.lines.setdefault(namespace, [])
        heapq.heappush(line, (order.created, order.id, ticket))
        heapq.heappush(level.by_wait, (order.since, order.created, order.id, ticket, namespace))
        if len(level.by_wait) > 2 * level.live + 64:
            self._compact(level)
        if namespace not in self._held and line[0][2] == ticket:
            self._list(level, namespace)

    def drop(self, id_: str) -> None:
        """Take a workload out; its entries in the heaps are void from now on."""
        found = self._orders.pop(id_, None)
        if found is None:
            return
        order, _ = found
        left = self._waiting[order.namespace] = self._waiting[order.namespace] - 1
        if not left:
            del self._waiting[order.namespace]
        level = self._levels[order.level]
        level.live -= 1
        if not level.live:
            level.misses = 0
            for heap in (level.lines, level.by_share, level.listed, level.by_turn, level.in_turn, level.by_wait):
                heap.clear()

    def take(self, now: float) -> str | None:
        """Take out the workload whose turn it is, None when nobody's is."""
        self._current = None
        if not self._orders:
            return None
        for namespace, until in list(self._held.items()):
            if until <= now:
                self._let_go(namespace)
        self._relist()
        for rank in self._ranked:
            level = self._levels[rank]
            found = self._next(level, now) if level.live else None
            if found is not None:
                id_, overdue = found
                self._take_turn(self._orders[id_][0].namespace, now)
                self.drop(id_)
                self._current = (level, overdue)
                return id_
        return None

    def tried(self, *, placed: bool, operations: int = 0) -> None:
        """Note how the attempt ended on the workload that was taken last, and how many operations it took."""
        if self._current is None:
            return
        (level, overdue), self._current = self._current, None
        if placed:
            level.misses = 0
            level.by_share_next = BY_SHARE if overdue else max(0, level.by_share_next - 1)
        elif level.live:
            level.misses += 1 + operations // MISS_OPERATIONS

    @property
    def any_ready(self) -> bool:
        """Whether `take` has somebody to return as of the last call."""
        if not self._held:
            return bool(self._orders)
        return any(namespace not in self._held for namespace in self._waiting)

    def next_due(self) -> float | None:
        """Return when the next namespace that was passed over may go on."""
        return min((until for namespace, until in self._held.items() if namespace in self._waiting), default=None)

    # ------------------------------------------------------------ whose turn it is

    def _next(self, level: _Level, now: float) -> tuple[str, bool] | None:
        if not level.by_share_next and (id_ := self._overdue(level, now)) is not None:
            return id_, True
        namespace = self._longest_ago(level) if level.misses >= MISSES else self._smallest(level)
        head = None if namespace is None else self._head(level, namespace)
        return None if head is None else (head[1], False)

    def _overdue(self, level: _Level, now: float) -> str | None:
        heap = level.by_wait
        while heap:
            since, _, id_, ticket, namespace = heap[0]
            if self._is_live(id_, ticket):
                if now - since < self._fairness.overdue_after:
                    return None
                if namespace not in self._held:
                    return id_
                order, _ = self._orders[id_]
                self._set_aside.setdefault(namespace, []).append((order.level, heap[0]))
            heapq.heappop(heap)
        return None

    def _smallest(self, level: _Level) -> str | None:
        heap = level.by_share
        while heap:
            key, namespace = heap[0]
            if level.listed.get(namespace) == key:
                if self._key(level, namespace) == key:
                    return namespace
                heapq.heappop(heap)
                self._list(level, namespace)
            else:
                heapq.heappop(heap)
        return None

    def _longest_ago(self, level: _Level) -> str | None:
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

    def _take_turn(self, namespace: str, now: float) -> None:
        self._turns += 1
        if len(self._last_turn) > KEEP:
            self._last_turn.clear()
        self._last_turn[namespace] = self._turns
        rate, burst = self._fairness.rate, self._fairness.burst
        if rate is None:
            return
        if len(self._tokens) > KEEP:
            tokens = self._tokens.items()
            self._tokens = {one: (had, at) for one, (had, at) in tokens if had + (now - at) * rate < burst}
        had, at = self._tokens.get(namespace, (float(burst), now))
        left = min(float(burst), had + (now - at) * rate) - 1
        self._tokens[namespace] = (left, now)
        if left < 1:
            self._held[namespace] = now + (1 - left) / rate

    # ------------------------------------------------------------ inside

    def _is_live(self, id_: str, ticket: int) -> bool:
        found = self._orders.get(id_)
        return found is not None and found[1] == ticket

    def _head(self, level: _Level, namespace: str) -> Place | None:
        line = level.lines.get(namespace)
        while line:
            if self._is_live(line[0][1], line[0][2]):
                return line[0]
            heapq.heappop(line)
        level.lines.pop(namespace, None)
        return None

    def _key(self, level: _Level, namespace: str) -> Key | None:
        head = None if namespace in self._held else self._head(level, namespace)
        return None if head is None else (self._shares.share(namespace), head[0], head[1])

    def _list(self, level: _Level, namespace: str) -> None:
        """Put a namespace where it belongs by now."""
        key = self._key(level, namespace)
        if key is None:
            level.listed.pop(namespace, None)
            return
        if level.listed.get(namespace) != key:
            level.listed[namespace] = key
            heapq.heappush(level.by_share, (key, namespace))
            if len(level.by_share) > 4 * len(level.listed) + 64:
                level.by_share = [(key, one) for one, key in level.listed.items()]
                heapq.heapify(level.by_share)
        if namespace not in level.in_turn:
            level.in_turn.add(namespace)
            heapq.heappush(level.by_turn, (self._last_turn.get(namespace, 0), namespace))

    def _relist(self) -> None:
        """Take over shares that changed."""
        changed = self._shares.take_changed()
        for level in self._levels.values():
            if not level.live:
                continue
            names = list(level.lines) if changed is None else [one for one in changed if one in level.lines]
            for namespace in names:
                self._list(level, namespace)

    def _let_go(self, namespace: str) -> None:
        del self._held[namespace]
        for rank, entry in self._set_aside.pop(namespace, ()):
            heapq.heappush(self._levels[rank].by_wait, entry)
        for level in self._levels.values():
            if namespace in level.lines:
                self._list(level, namespace)

    def _compact(self, level: _Level) -> None:
        level.by_wait = [entry for entry in level.by_wait if self._is_live(entry[2], entry[3])]
        heapq.heapify(level.by_wait)
        for namespace, line in level.lines.items():
            level.lines[namespace] = [place for place in line if self._is_live(place[1], place[2])]
            heapq.heapify(level.lines[namespace])
