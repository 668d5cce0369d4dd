"""Progress of a simulation on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[int, str, int, int], None]
"""Shows the number of completed runs, the name of the current run, and its workloads that arrived of all."""


@contextmanager
def progress(runs: int) -> Iterator[Show]:
    """Show a progress bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from topo_scheduler.cli.render import VisibleConsole

    screen = VisibleConsole(stderr=True)
    if not screen.is_terminal:
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=screen, transient=True) as bar:
        task = bar.add_task("", total=runs)

        def show(number: int, name: str, arrived: int, total: int) -> None:
            bar.update(task, completed=number + arrived / max(1, total), description=name)

        yield show
