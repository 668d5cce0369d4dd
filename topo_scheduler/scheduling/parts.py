"""Work that takes longer than decisions can wait for, done in parts between them.

It looks at a copy of what pods hold, made when it is begun. Names, labels and the fabric are not copied: it is given up
when they change, and whoever wants it begins anew. How far it gets at a time is told by the clock of the step, which
records know; so the same facts, times and readings give the same answers.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Final, Generic, TypeVar

from topo_scheduler.scheduling.world import World
from topo_scheduler.state.operation_budget import OperationBudget, limited

PART_OPERATIONS: Final = 4_000_000
"""Operations of one part: what no decision should have to wait for."""
T = TypeVar("T")
More = Callable[[], bool]
"""Whether there is time for another part."""


def always() -> bool:
    """Return that there is time for another part."""
    return True


def whole(steps: Generator[None, None, T]) -> T:
    """Return what work in parts comes to, done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found: T = ended.value
            return found


class Parts(Generic[T]):
    """One piece of work, as an iterator that yields after each part: what was found in it, or None."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps: Iterator[T | None] | None = None
        self._facts: object = None

    @property
    def going(self) -> bool:
        """Whether something is being worked at."""
        return self._steps is not None

    @property
    def stale(self) -> bool:
        """Whether it can't go on: nodes have changed since it was begun."""
        return self._steps is not None and self._facts != self._now()

    def begin(self, steps: Iterator[T | None]) -> None:
        """Work at this from now on."""
        self._steps, self._facts = steps, self._now()

    def drop(self) -> None:
        """Give up what is being worked at."""
        self._steps = None

    def work(self, more: More) -> list[T]:
        """Do the next part, and others as long as there is time; return what was found.

        Raises:
            OverBudgetError: one part took too many operations; the work is given up, as with any other exception.
        """
        found: list[T] = []
        guard = self._world.around.extensions.guard
        while (steps := self._steps) is not None:
            guard.begin()
            try:
                with limited(OperationBudget(PART_OPERATIONS)):
                    one = next(steps)
            except StopIteration:
                self._steps = None
                break
            except Exception:
                self._steps = None  # what raised can't go on
                raise
            if one is not None:
                found.append(one)
            if not more():
                break
        return found

    def _now(self) -> object:
        return self._world.nodes.facts_changes.position, self._world.layout.generation
