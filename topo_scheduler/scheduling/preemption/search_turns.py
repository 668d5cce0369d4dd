"""When each workload may search for victims: namespaces pause after a search in vain, their workloads take turns."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.scheduling.preemption.namespace_pauses import Pause

FIRST_RETRY_SECONDS: Final = 1.0
"""Seconds after which workloads that found no victims search again if something changed, doubled each time."""
PAUSE_SECONDS_PER_CANDIDATE: Final = 2e-4
"""Seconds from a search in vain to the next search of the same namespace, per candidate of that search.

With several such namespaces the pause is multiplied by their number: together they search as often as one alone. But it
is multiplied at most by how often the namespace has searched in vain lately: others must not delay its first searches.
"""
REMEMBERED_SECONDS: Final = 60.0
"""Seconds after its pause for which a search in vain of a namespace counts."""


@dataclass(slots=True)
class _DueSearch:
    """A workload that is due for a search: when it comes again, in seconds, and whether it already came too late."""

    at: float
    late: bool = False


class SearchTurns:
    """The order of searches. All times are in seconds."""

    def __init__(self) -> None:
        self.again: dict[str, float] = {}
        """Workloads that are to be tried again, and when."""
        self.asked = -inf
        """When the caller last asked whether anything changed: workloads are not tried again before."""
        self._pauses: dict[str, Pause] = {}
        """Namespaces that searched in vain lately, how often, and until when they search no more."""
        self._lines: dict[str, dict[str, _DueSearch]] = {}
        """Workloads of each namespace that are due for a search, in order."""
        self._line_of: dict[str, str] = {}

    def search_at_once(self, ids: Iterable[str]) -> None:
        """Let workloads search again with the next step."""
        self.again.update(dict.fromkeys(ids, 0.0))

    def take_due(self, now: float) -> list[str]:
        """Return the workloads that are to be tried again by now, once."""
        due = [id_ for id_, at in self.again.items() if at <= now]
        for id_ in due:
            del self.again[id_]
        return due

    def next_due(self) -> float | None:
        """Return when the next workload is to be tried again."""
        return min(self.again.values(), default=None)

    def turn(self, id_: str, namespace: str, own_due: float, now: float) -> float:
        """Return when a workload may search for victims: ``now`` if nothing prevents it.

        After a pause of a namespace, its workloads search in the order in which they were refused during it. Otherwise
        the most urgent workload, if it searches in vain each time, would keep the others from it forever. A workload
        that does not come in time loses its turn. Another workload must notice that twice, because it may only have
        been tried earlier in a step that came late for both.

        Args:
            id_: of the workload.
            namespace: of the workload.
            own_due: when the workload by itself may search.
            now: the current time.
        """
        at = max(own_due, self._until(namespace))
        if own_due > now:
            self.leave(id_)  # no other workload waits for one that may not search yet
        elif at <= now:
            line = self._lines.get(namespace, {})
            first = next(iter(line), id_)
            if first != id_:
                turn = line[first]
                if now < turn.at + FIRST_RETRY_SECONDS:
                    at = now + FIRST_RETRY_SECONDS
                elif not turn.late:
                    turn.at, turn.late, at = now, True, now + FIRST_RETRY_SECONDS
                else:
                    self.leave(first)
                    return self.turn(id_, namespace, own_due, now)
        if at > now and own_due <= now:
            line = self._lines.setdefault(namespace, {})
            if next(iter(line), id_) != id_:
                # It is called when it becomes the first. Until then an attempt would be in vain.
                at = max(at, now + FIRST_RETRY_SECONDS * len(line))
            line[id_] = _DueSearch(at)
            self._line_of[id_] = namespace
        return at

    def leave(self, id_: str) -> None:
        """Give back the turn of a workload, if it has one."""
        namespace = self._line_of.pop(id_, None)
        if namespace is None:
            return
        line = self._lines[namespace]
        was_first = next(iter(line)) == id_
        del line[id_]
        if not line:
            del self._lines[namespace]
        elif was_first:
            self._call_first(namespace)

    def forget(self, id_: str) -> None:
        """Give back the turn of a workload, and do not try it again by itself."""
        if id_ in self._line_of:
            self.leave(id_)
        self.again.pop(id_, None)

    def tried(self, id_: str) -> None:
        """Record that an attempt on a workload ended, perhaps before a search for victims.

        A workload with a turn that is not tried again at a known time gives its turn back: the others of its namespace
        would wait for it.
        """
        if id_ in self._line_of and id_ not in self.again:
            self.leave(id_)

    def rest_after(self, namespace: str, candidate_count: int, now: float) -> None:
        """Delay the next search of a namespace whose search was in vain."""
        recent = now - REMEMBERED_SECONDS
        self._pauses = {delayed: pause for delayed, pause in self._pauses.items() if pause.until > recent}
        own = self._pauses.setdefault(namespace, Pause())
        own.times += 1
        pausing = sum(pause.until > now for pause in self._pauses.values() if pause is not own)
        own.until = now + PAUSE_SECONDS_PER_CANDIDATE * candidate_count * min(pausing + 1, own.times)
        self._call_first(namespace)

    def _until(self, namespace: str) -> float:
        pause = self._pauses.get(namespace)
        return pause.until if pause is not None else 0.0

    def _call_first(self, namespace: str) -> None:
        """Let the first workload that is due for a search come as soon as its namespace may search."""
        for first, turn in self._lines.get(namespace, {}).items():
            turn.at = max(self._until(namespace), self.asked)
            self.again[first] = turn.at
            return
