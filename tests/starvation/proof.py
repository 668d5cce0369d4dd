"""One stream in virtual time, and what is proven of it: the first of each priority starts, and no later than bounded.

What is checked of every job:

- It starts, once no more come.
- If nodes are reserved for it, it starts no later than promised (`Reservation.latest`). The exception is a wait for
  pods that run longer than they said: then it starts when the last of them ends. A job that keeps to its run time
  delays no job beyond what was promised *first*.
- Nodes are not reserved for it at one place after the other: `places`.
- From when none of its priority has waited longer, it starts within `bound`.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, log2
from typing import Final, Literal

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import configured, gang
from tests.scheduling.stream import Run, Stream
from tests.starvation.streams import GPUS, Job
from topo_scheduler.api.objects import Node
from topo_scheduler.scheduling.reserving.ends import MIN_REMAINING_SECONDS
from topo_scheduler.scheduling.reserving.holds import Reservation

Told = Literal["exact", "wrong", "learned", "not"]
"""Where run times come from: exact or wrong ones from jobs, learned ones from earlier jobs of as many GPUs, or none."""
WRONG: Final = (0.1, 0.5, 1.0, 2.0, 10.0)
"""What a job says over what it takes, where it says so wrongly."""
AFTER, BLIND, LOOK = 30.0, 600.0, 30.0
"""`reservation.after`, `afterWithoutEstimates`, and the longest pause between two looks."""
TICK: Final = 1.001
"""Timestamps have whole seconds."""


@dataclass(slots=True)
class _Watched:
    """What was held for a workload: what was promised first and last, where, and the pods it waited for there."""

    first: float
    latest: float
    nodes: frozenset[str]
    waits: set[str] = field(default_factory=set)
    moves: int = 0
    """Moves since the reservation was made, or made again after one that expired."""
    most_moves: int = 0
    lapsed: bool = False


@dataclass(slots=True)
class Outcome:
    """What came of a stream. Seconds; ``wrong`` what did not hold, in words."""

    jobs: int
    waited: int = 0
    wait: float = 0.0
    """What all of them waited together."""
    longest_wait: float = 0.0
    most_waiting: int = 0
    """How many waited at once."""
    held: int = 0
    moves: int = 0
    longest: float = 0.0
    """Run of a job."""
    slowest: float = 0.0
    """Start of a job after it had become the longest pending one of its priority."""
    late: float = -inf
    """Start after what was promised first."""
    utilisation: float = 0.0
    """GPU-seconds used until the last arrival, as a share."""
    wrong: list[str] = field(default_factory=list)


def bound(estimates: Told, longest: float) -> float:
    """Return within how many seconds the first job of a priority starts, if no job runs longer than so many seconds.

    If jobs keep to their run lengths, all that runs when nodes are reserved has ended after one longest run. No other
    job may start there for longer. Elsewhere nodes may be reserved at several places in turn. At each, other jobs may
    start until the promised start, which is at most the longest stated run away. The last of them ends after a longest
    run. Each place is left only if twice as much is gained as by leaving the last one: `Reserving`.
    """
    if estimates == "exact":
        return AFTER + LOOK + longest
    return BLIND + LOOK + places(estimates, longest) * (_says(estimates, longest) + longest)


def places(estimates: Told, longest: float) -> float:
    """Return at how many places nodes may be held for one workload, as those of higher priority take none of them.

    A reservation that expires begins again.
    """
    return 2 + max(0.0, log2((_says(estimates, longest) + longest) / MIN_REMAINING_SECONDS))


def _says(estimates: Told, longest: float) -> float:
    """Return the longest run that is expected of any job, in seconds."""
    return longest * {"exact": 1.0, "wrong": max(WRONG), "learned": 1.0, "not": 0.0}[estimates]


class Proof:
    """A stream that is watched. The engine is asked for what it holds whenever it has come to rest."""

    def __init__(
        self,
        nodes: Sequence[Node],
        jobs: Sequence[Job],
        estimates: Told,
        *,
        priorities: bool = False,
        reserving: bool = True,
    ) -> None:
        """``priorities``: whether those of the jobs count; only the highest is held to what was promised then."""
        self._jobs, self._estimates = jobs, estimates
        self._priority = [job.priority if priorities else 0 for job in jobs]
        spec = f"{{preemption: {{enabled: false}}, reservation: {{enabled: {str(reserving).lower()}}}}}"
        self._stream = Stream(nodes, configured(spec), self._look)
        self._gpus = GPUS * len(nodes)
        dice = random.Random(42)
        self._runs = [self._stream.submit(self._run(number, dice)) for number in range(len(jobs))]
        self._number = {pod.metadata.uid: number for number, run in enumerate(self._runs) for pod in run.pods}
        self._held: dict[int, _Watched] = {}
        self._lines: dict[int, deque[int]] = {}
        for number, priority in enumerate(self._priority):
            self._lines.setdefault(priority, deque()).append(number)
        self._headed: dict[int, float] = {}
        self._open = set(range(len(jobs)))
        self._out = Outcome(len(jobs), longest=max(job.seconds for job in jobs))
        self._bound = bound(estimates, self._out.longest)

    def run(self) -> Outcome:
        """Let everything happen; return what came of it."""
        last = max(job.at for job in self._jobs)
        self._stream.until(last)
        self._out.utilisation = self._stream.busy / (self._gpus * last)
        # All of them one after the other, and the patience of each: by then the last must have started.
        self._stream.until(last + sum(job.seconds + BLIND for job in self._jobs), lambda: not self._open)
        for number in sorted(self._open):
            self._out.wrong.append(f"job {number} of {self._jobs[number].gpus} GPUs never started")
        return self._out

    def _run(self, number: int, dice: random.Random) -> Run:
        job = self._jobs[number]
        # Letters only, so that none is taken for another run of the same.
        name = "job-" + "".join(chr(ord("a") + int(digit)) for digit in str(number))
        pods = gang(job.members, name=name, gpus=job.each) if job.members > 1 else [make_pod(name, gpus=job.gpus)]
        factor = dice.choice(WRONG) if self._estimates == "wrong" else 1.0
        for pod in pods:
            pod.metadata.creation_timestamp, pod.spec.restart_policy = timestamp(job.at), "Never"
            pod.spec.priority = self._priority[number]
            if self._estimates == "learned":
                pod.spec.containers[0].image = "train"  # alike are those of as many pods and GPUs
            elif self._estimates != "not":
                seconds = max(1, round(job.seconds * factor))
                pod.metadata.annotations["topology.scheduler/expected-duration"] = f"{seconds}s"
        return Run(pods, job.at, job.seconds, job.each)

    # ------------------------------------------------------------ watching

    def _look(self, stream: Stream) -> None:
        reservations = {self._number_of(held.workload): held for held in stream.driver.engine.reserving.holds}
        for number in self._open & self._held.keys() - reservations.keys():
            self._held[number].lapsed = True
        for number, reservation in reservations.items():
            self._see(number, reservation)
        for number in [number for run in stream.begun for number in [self._number[run.pods[0].metadata.uid]]]:
            self._judge(number)
        stream.begun.clear()
        self._out.most_waiting = max(self._out.most_waiting, len(stream.driver.engine.queue))
        for line in self._lines.values():
            while line and line[0] not in self._open:
                line.popleft()
            if line and self._jobs[line[0]].at <= stream.now:
                self._headed.setdefault(line[0], stream.now)

    def _number_of(self, workload: str) -> int:
        entry = self._stream.driver.engine.workloads.get(workload)
        assert entry is not None
        return self._number[next(iter(entry.members))]

    def _see(self, number: int, reservation: Reservation) -> None:
        known, nodes = self._held.get(number), frozenset(reservation.nodes)
        if known is None:
            first = reservation.latest if reservation.start < inf else inf
            known = self._held[number] = _Watched(first, reservation.latest, nodes)
        elif (known.nodes, known.latest) != (nodes, reservation.latest):
            known.moves = 0 if known.lapsed else known.moves + 1
            known.most_moves, known.lapsed = max(known.most_moves, known.moves), False
            known.nodes, known.latest = nodes, reservation.latest
            known.waits.clear()
        known.waits.update(reservation.waits)

    def _judge(self, number: int) -> None:
        """Check one job that has started."""
        self._open.discard(number)
        out, job, started = self._out, self._jobs[number], self._runs[number].started
        assert started is not None
        if (wait := started - job.at) > TICK:
            out.waited += 1
            out.wait += wait
            out.longest_wait = max(out.longest_wait, wait)
        since = started - self._headed.get(number, started)
        out.slowest = max(out.slowest, since)
        kept = self._estimates == "exact"
        who = f"job {number} of {job.gpus} GPUs, started at {started:.0f} s,"
        top = self._priority[number] == max(self._priority)
        if top and since > self._bound + TICK:
            out.wrong.append(f"{who} {since:.0f} s after it waited longest; the longest runs {out.longest:.0f} s")
        if (held := self._held.get(number)) is None:
            return
        out.held += 1
        out.moves = max(out.moves, held.most_moves)
        if len(self._lines) == 1 and held.most_moves > places(self._estimates, out.longest):
            out.wrong.append(f"{who} was held nodes at {held.most_moves + 1} places before its reservation expired")
        out.late = max(out.late, started - held.first)
        if started > max((held.latest, *map(self._end, held.waits))) + TICK:
            out.wrong.append(f"{who} was promised to by {held.latest:.0f} s, and all it waited for had ended")
        if kept and top and started > held.first + TICK:
            out.wrong.append(f"{who} was promised to first by {held.first:.0f} s")

    def _end(self, uid: str) -> float:
        started = self._runs[self._number[uid]].started
        return inf if started is None else started + self._jobs[self._number[uid]].seconds
