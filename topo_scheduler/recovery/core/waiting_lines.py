"""The order in which Migrations without seats are tried: those that heal first, and namespaces in turn.

Users may create thousands that never find room. So a namespace with many of them pauses after each try without result.
"""

from collections import Counter, OrderedDict, deque
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from topo_scheduler.recovery.model.migration_state import Tracked

MIGRATIONS_WITHOUT_PAUSE: Final = 32
"""Waiting Migrations of a namespace that are tried again without a pause, apart from those that heal."""
PAUSE_PER_MIGRATION_SECONDS: Final = 0.02
"""Pause after a try without result, for each Migration of the namespace beyond these."""
SPARE_ENTRIES: Final = 64
"""Outdated entries of the heap that are kept at least, before it is built again."""


class WaitingLine:
    """Migrations that are due, by namespace. In each step, all of them are tried once, as time allows."""

    def __init__(self) -> None:
        self.sizes: Counter[str] = Counter()
        """Migrations of each namespace in this line, whether they are due or not."""
        self._due: dict[str, dict[str, Tracked]] = {}
        self._left: OrderedDict[str, deque[str]] = OrderedDict()
        """Keys that are tried before the first of the same namespace is tried again; the next namespace first."""

    @property
    def unfinished(self) -> bool:
        """Whether some that were due at the last `start` have not been tried since."""
        return bool(self._left)

    def add(self, tracked: Tracked) -> None:
        """Add a Migration that is due."""
        key, namespace = tracked.migration.key, tracked.migration.metadata.namespace
        due = self._due.setdefault(namespace, {})
        if key not in due and namespace in self._left:
            self._left[namespace].append(key)
        due[key] = tracked

    def discard(self, namespace: str, key: str) -> None:
        """Remove a Migration that is not due any more."""
        due = self._due.get(namespace, {})
        if due.pop(key, None) is not None and not due:
            del self._due[namespace]
            self._left.pop(namespace, None)

    def start(self) -> None:
        """Begin another round for each namespace whose last one is over."""
        rounds = [
            sorted(due.values(), key=lambda tracked: tracked.order)
            for namespace, due in self._due.items()
            if namespace not in self._left
        ]
        for due in sorted(rounds, key=lambda due: due[0].order):
            self._left[due[0].migration.metadata.namespace] = deque(tracked.migration.key for tracked in due)

    def pop(self) -> Tracked | None:
        """Return the next Migration of the namespace whose turn it is; None if all were tried in this round."""
        while self._left:
            namespace, keys = next(iter(self._left.items()))
            key = keys.popleft()
            if keys:
                self._left.move_to_end(namespace)
            else:
                del self._left[namespace]
            if (tracked := self._due.get(namespace, {}).get(key)) is not None:
                return tracked
        return None


class WaitingMigrations:
    """All Migrations without seats, and when each is tried next."""

    def __init__(self) -> None:
        self.healing = WaitingLine()
        """Those that leave failed nodes, and those that make room."""
        self.others = WaitingLine()
        self._lines: dict[str, WaitingLine] = {}
        self._later: dict[str, tuple[float, Tracked]] = {}
        """Those that are not due, with the time from which they are, in seconds."""
        self._heap: list[tuple[float, str]] = []
        """The times of these, and outdated ones."""
        self._now = -inf

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def unfinished(self) -> bool:
        """Whether a step had no time for some that were due."""
        return self.healing.unfinished or self.others.unfinished

    def put(self, tracked: Tracked, *, heals: bool) -> None:
        """Have a Migration tried once its pause is over and its status is written."""
        key, line = tracked.migration.key, self.healing if heals else self.others
        namespace = tracked.migration.metadata.namespace
        if self._lines.get(key) is not line:
            self.remove(key)
            self._lines[key] = line
            line.sizes[namespace] += 1
        at = inf if tracked.writing else tracked.not_before
        self._later.pop(key, None)
        if at <= self._now:
            line.add(tracked)
            return
        line.discard(namespace, key)
        self._later[key] = at, tracked
        if at < inf:
            heappush(self._heap, (at, key))
        self._drop_outdated()

    def remove(self, key: str) -> None:
        """Remove a Migration that holds seats, is over, or is gone."""
        line, namespace = self._lines.pop(key, None), key.partition("/")[0]
        if line is None:
            return
        self._later.pop(key, None)
        line.discard(namespace, key)
        line.sizes[namespace] -= 1
        if not line.sizes[namespace]:
            del line.sizes[namespace]
        self._drop_outdated()

    def wake(self, now: float) -> None:
        """Add those to the lines that are due by now, in seconds."""
        self._now = now
        while (at := self.next_due()) is not None and at <= now:
            _, key = heappop(self._heap)
            _, tracked = self._later.pop(key)
            self._lines[key].add(tracked)

    def next_due(self) -> float | None:
        """Return when the next of those that are not due will be; None if there is none."""
        while self._heap:
            at, key = self._heap[0]
            if (later := self._later.get(key)) is not None and later[0] == at:
                return at
            heappop(self._heap)
        return None

    def pause(self, tracked: Tracked) -> float:
        """Return the pause of a Migration after a try without result, in seconds."""
        if self._lines.get(tracked.migration.key) is not self.others:
            return 0.0
        beyond = self.others.sizes[tracked.migration.metadata.namespace] - MIGRATIONS_WITHOUT_PAUSE
        return PAUSE_PER_MIGRATION_SECONDS * max(0, beyond)

    def _drop_outdated(self) -> None:
        """Build the heap again if it has too many outdated entries."""
        if len(self._heap) > SPARE_ENTRIES + 2 * len(self._later):
            self._heap = [(at, key) for key, (at, _) in self._later.items() if at < inf]
            heapify(self._heap)
