"""Jobs that come, run and end in virtual time, placed by an engine; and how well the cluster was used."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.helpers import timestamp
from tests.scheduling.driver import Driver
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.scheduling.instructions import Bind


@dataclass(slots=True)
class Run:
    """A job: its pods, when it comes, and how long it runs. ``started`` None until all of it runs."""

    pods: Sequence[Pod]
    at: float
    seconds: float
    gpus: int
    started: float | None = None


@dataclass
class Stream:
    """An engine and a clock that jumps from event to event.

    ``after_step`` is called with this whenever the engine has come to rest.
    """

    nodes: Iterable[Node]
    config: Configuration | None = None
    after_step: Callable[["Stream"], None] = lambda _: None
    driver: Driver = field(init=False)
    busy: float = 0.0
    """GPU-seconds used so far."""
    running: dict[str, float] = field(default_factory=dict)
    """When each pod that runs will really end, by uid."""
    begun: list[Run] = field(default_factory=list)
    """The jobs that started; a reader may empty it."""

    def __post_init__(self) -> None:
        self.driver = Driver(self.nodes, self.config)
        self._used = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._run_of: dict[str, Run] = {}

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.driver.now

    def submit(self, run: Run) -> Run:
        """Let a job come at its time."""
        self._at(run.at, lambda: self._arrive(run))
        return run

    def until(self, end: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen up to a moment, or until something is the case."""
        while not done():
            due = self.driver.engine.next_due()
            times = [at for at in (due, self._events[0][0] if self._events else None) if at is not None]
            at = max(self.now, min(times, default=end))
            if at >= end:
                self._pass(end)
                return
            self._pass(at)
            while self._events and self._events[0][0] <= at:
                heapq.heappop(self._events)[2]()
            self._settle()

    def _at(self, at: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), what))

    def _pass(self, at: float) -> None:
        self.busy += self._used * (at - self.now)
        self.driver.now = at

    def _arrive(self, run: Run) -> None:
        for pod in run.pods:
            self._run_of[pod.metadata.uid] = run
        self.driver.apply(*run.pods)

    def _settle(self) -> None:
        d = self.driver
        d.forget()
        d.settle()
        for bind in [said for said in d.said if isinstance(said, Bind)]:
            pod = d.pods[bind.pod.uid]
            run = self._run_of[bind.pod.uid]
            pod.status.start_time, pod.status.phase = timestamp(self.now), "Running"
            d.apply(pod)
            self._used += run.gpus
            self.running[bind.pod.uid] = self.now + run.seconds
            if run.started is None and all(member.spec.node_name for member in run.pods):
                run.started = self.now
                self.begun.append(run)
            self._at(self.now + run.seconds, partial(self._end, pod, run))
        self.after_step(self)

    def _end(self, pod: Pod, run: Run) -> None:
        self.driver.finish(pod)
        self.driver.delete(pod)
        self._used -= run.gpus
        del self.running[pod.metadata.uid]
