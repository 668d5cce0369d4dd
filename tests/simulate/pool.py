"""How long jobs wait for each other: on a pool, where any free GPU is as good as any other.

There is no fabric there, no leaf to wait for, and nothing is lost in pieces. So jobs wait there only because of their
order. What a cluster adds is the price of its nodes and leaves.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final


@dataclass(frozen=True, slots=True)
class PoolJob:
    """``arrived`` and ``seconds`` it runs in seconds, ``milli`` thousandths of GPUs."""

    arrived: float
    seconds: float
    milli: int


Order = Callable[[PoolJob], float]
OLDEST: Final = "oldest first"
ORDERS: Final[Mapping[str, Order]] = {OLDEST: lambda job: 0.0, "largest first": lambda job: -job.milli}
"""Less is earlier; of equal ones who came first."""


@dataclass(slots=True)
class _Pool:
    """``running``: when each ends, and its thousandths of GPUs, a heap; ``free`` thousandths."""

    free: int
    running: list[tuple[float, int]]

    def start(self, job: PoolJob, now: float) -> float:
        self.free -= job.milli
        heapq.heappush(self.running, (now + job.seconds, job.milli))
        return now

    def end(self, now: float) -> None:
        while self.running and self.running[0][0] <= now:
            self.free += heapq.heappop(self.running)[1]

    def room_for(self, milli: int) -> tuple[float, int]:
        """Return when so many thousandths will be free if no other job starts, and how many more there will be then."""
        free = self.free
        for ends, freed in sorted(self.running):
            free += freed
            if free >= milli:
                return ends, free - milli
        raise ValueError(f"a job asks for {milli} thousandths of GPUs, more than there are")


def waits(jobs: Sequence[PoolJob], milli: int, order: Order = ORDERS[OLDEST]) -> list[float]:
    """Return how long each job waits on so many thousandths of GPUs, in seconds.

    Jobs start in their order. For the first that has no room its moment is held, and others go ahead where that does
    not delay it (EASY backfilling; Lifka, "The ANL/IBM SP Scheduling System", 1995). Run lengths are known.

    Raises:
        ValueError: a job asks for more than there is.
    """
    begun = [inf] * len(jobs)
    line: list[tuple[float, float, int]] = []
    pool = _Pool(milli, [])
    coming = sorted(range(len(jobs)), key=lambda number: jobs[number].arrived)[::-1]
    while coming or line:
        now = min(jobs[coming[-1]].arrived if coming else inf, pool.running[0][0] if pool.running else inf)
        pool.end(now)
        while coming and jobs[coming[-1]].arrived <= now:
            number = coming.pop()
            insort(line, (order(jobs[number]), jobs[number].arrived, number))
        line = _started(jobs, line, pool, now, begun)
    return [start - job.arrived for start, job in zip(begun, jobs, strict=True)]


def _started(
    jobs: Sequence[PoolJob], line: Sequence[tuple[float, float, int]], pool: _Pool, now: float, begun: list[float]
) -> list[tuple[float, float, int]]:
    """Start who can, and return who still waits."""
    held, spare = inf, 0
    rest = []
    for entry in line:
        job = jobs[entry[2]]
        if held == inf and job.milli > pool.free:
            held, spare = pool.room_for(job.milli)
        elif job.milli <= pool.free and (now + job.seconds <= held or job.milli <= spare):
            if now + job.seconds > held:
                spare -= job.milli
            begun[entry[2]] = pool.start(job, now)
            continue
        rest.append(entry)
    return rest
