"""Progress of a simulation on a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager


class Silent:
    """No progress bar, for output that is no terminal."""

    def __call__(self, number: int, name: str, arrived: int, total: int) -> None:
        """Show nothing."""


class Shown:
    """A progress bar."""

    def __init__(self, bar: "object", task: int) -> None:
        self._bar, self._task = bar, task

    def __call__(self, number: int, name: str, arrived: int, total: int) -> None:
        """Show the number of completed runs, plus the share of the current run's arrivals."""
        completed = number + arrived / max(1, total)
        self._bar.update(self._task, completed=completed, description=name)  # type: ignore[attr-defined]


@contextmanager
def progress(runs: int) -> Iterator[Silent | Shown]:
    """Show a progress bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from topo_scheduler.cli.render import VisibleConsole

    screen = VisibleConsole(stderr=True)
    if not screen.is_terminal:
        yield Silent()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=screen, transient=True) as bar:
        yield Shown(bar, bar.add_task("", total=runs))
