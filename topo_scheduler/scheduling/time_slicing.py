"""Time slicing: long searches run in slices between decisions, so that decisions need not wait for them.

A search uses a copy of the resources that pods hold, taken at its start. Names, labels and the fabric are not copied.
If they change, the search is dropped and the caller starts it again. The clock of the step limits each slice. Its
readings are recorded, so a replay with the same facts, times and readings gives the same results.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Final, Generic, TypeVar

from topo_scheduler.scheduling.barrier import ATTEMPT_SECONDS
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.operation_budget import OperationBudget, limited

SLICE_OPERATIONS: Final = 4_000_000
"""Maximum operations of one slice, so that no decision has to wait long for it."""
STEP_SECONDS: Final = 0.005
"""Seconds of slices in one step of recovery; one slice may take longer."""
NEXT_STEP_SECONDS: Final = 0.02
"""Seconds from a step of recovery to the next one, while a search is under way."""
T = TypeVar("T")
More = Callable[[], bool]
"""Returns whether there is time for another slice."""


def always() -> bool:
    """Return True: there is always time for another slice."""
    return True


def never() -> bool:
    """Return False: there is no time for another slice."""
    return False


def whole(steps: Generator[None, None, T]) -> T:
    """Run all slices of a search at once; return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result


class SlicedSearch(Generic[T]):
    """Runs one search: an iterator that yields after each slice, with a result or None."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps: Iterator[T | None] | None = None
        self._facts: object = None
        self.stepped_at = 0.0
        """Reading of the clock at the start of the last `step`, in seconds."""

    @property
    def going(self) -> bool:
        """Whether a search is under way."""
        return self._steps is not None

    @property
    def stale(self) -> bool:
        """Whether the search can't go on, because nodes or the fabric have changed since it started."""
        return self._steps is not None and self._facts != self._now()

    def begin(self, steps: Iterator[T | None]) -> None:
        """Start a search."""
        self._steps, self._facts = steps, self._now()

    def drop(self) -> None:
        """Drop the search that is under way."""
        self._steps = None

    def work(self, more: More, clock: Callable[[], float] | None = None) -> list[T]:
        """Run the next slice, and further ones while there is time; return the results.

        Args:
            more: returns whether there is time for another slice.
            clock: measures the time of each slice, in seconds; None for no limit of time.

        Raises:
            OverBudgetError: one slice took too many operations, or too long. The search is dropped, as after any other
                exception.
        """
        results: list[T] = []
        guard = self._world.around.extensions.guard
        while (steps := self._steps) is not None:
            guard.begin()
            try:
                with limited(OperationBudget(SLICE_OPERATIONS, ATTEMPT_SECONDS, clock)):
                    result = next(steps)
            except StopIteration:
                self._steps = None
                break
            except Exception:
                self._steps = None  # a generator that raised can't go on
                raise
            if result is not None:
                results.append(result)
            if not more():
                break
        return results

    def step(self, clock: Callable[[], float]) -> list[T]:
        """Run slices for `STEP_SECONDS`, at least one; return the results.

        Args:
            clock: measures the time of the slices, in seconds; if it stands still, one step does all.

        Raises:
            OverBudgetError: one slice took too many operations, or too long. The search is dropped, as after any other
                exception.
        """
        self.stepped_at = clock()
        return self.work(lambda: clock() - self.stepped_at < STEP_SECONDS, clock)

    def _now(self) -> object:
        nodes = self._world.nodes
        # Pods of DaemonSets change no names, labels or fabric. Tenants may create and delete them all the time.
        return nodes.facts_changes.position - nodes.daemon_charges, self._world.layout.generation
