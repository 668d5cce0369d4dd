"""When pods are expected to end: by what they declare, otherwise by how long earlier runs took.

Earlier runs of the same workload come first (`Runs.longest`), then those of similar workloads (`Runs.of_similar`). For
pods that would backfill reserved nodes, the longest of these runs counts. A backfilled pod with too short an estimate
delays the workload that holds the reservation. So pods are held to it, as they are to what they declare: earlier runs
of a namespace whose pods overrun them let no pod in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.scheduling.world import World
from topo_scheduler.state.ledger.ledger import LedgerEntry
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.workloads import Member, Workloads, size_of
from topo_scheduler.state.statistics.run_times import DURATION_QUANTILE, RunKey, likeness_of

MIN_REMAINING_SECONDS: Final = 60.0
"""Minimum seconds that a pod which runs longer than expected is expected to continue."""


@dataclass(frozen=True, slots=True)
class Lasting:
    """What determines how long members of a workload of a ``size`` will run; equal members appear once.

    ``members`` has for each the following:

    - the seconds from the start by all it declares,
    - the seconds by its own deadline alone,
    - when the deadline of its Job ends it, in seconds since the epoch,
    - the run that it belongs to,
    - its GPUs.

    ``namespace`` is the namespace of the members.
    """

    members: tuple[tuple[float, float, float, RunKey | None, int], ...]
    size: int
    namespace: str = ""


def lasting_of(members: Iterable[Member], size: int) -> Lasting:
    """Return what determines how long members of a workload of this size will run."""
    pods = list(members)
    durations = dict.fromkeys((pod.expected_seconds, pod.deadline, pod.ends_by, pod.run, pod.cls.gpus) for pod in pods)
    return Lasting(tuple(durations), size, pods[0].namespace if pods else "")


class Ends:
    """Estimates, in seconds of this process's clock. They are infinite if nothing is known: such a pod never ends."""

    def __init__(self, world: World, workloads: Workloads) -> None:
        self.world = world
        self.workloads = workloads

    def of(self, uid: str, entry: LedgerEntry, now: float) -> float:
        """Return when a pod that holds room is expected to end.

        A pod that runs longer than expected is expected to be as late again, so that the estimate does not change all
        the time. A pod that is being deleted is expected to end at once, but only for `MIN_REMAINING_SECONDS`. Its
        kubelet may need a moment, or never end it.
        """
        end = self.by_what_is_known(uid, entry, now)
        if entry.occupant is not None and entry.occupant.terminating and now - end <= MIN_REMAINING_SECONDS:
            return max(now, end)
        return end if end > now else now + max(MIN_REMAINING_SECONDS, now - end)

    def by_what_is_known(self, uid: str, entry: LedgerEntry, now: float) -> float:
        """Return when a pod that holds room was expected to end when it began; that time may have passed."""
        occupant = entry.occupant
        if occupant is None:
            membership = self.workloads.of_pod(uid)  # its bind is in progress
            if membership is None:
                return inf
            workload, member = membership
            lasts = self._believed(member.namespace, member.expected_seconds, member.deadline, member.ends_by, now)
            return now + self._seconds(lasts, member.run, member.cls.gpus, size_of(workload))
        if occupant.fixed:
            return inf
        if occupant.terminating:
            ends = occupant.ends - self.world.epoch
            return ends if ends < inf else now + occupant.grace
        seconds = self._believed(occupant.namespace, occupant.expected_seconds, occupant.deadline)
        if seconds == inf and occupant.run is not None and not occupant.service:
            seconds = self.world.runs.longest(occupant.run)
            if seconds == inf:
                membership = self.workloads.of_pod(uid)
                gpus = next((amount for column, amount in entry.amounts if column == GPU), 0)
                size = size_of(membership[0]) if membership is not None else 1
                seconds = self.world.runs.of_similar(likeness_of(occupant.run, size, gpus))
        if seconds == inf:
            return inf
        return (occupant.started - self.world.epoch if occupant.start_reported else now) + seconds

    def after(self, lasting: Lasting, now: float) -> float:
        """Return when the last of some members would end if all were started now."""
        size = lasting.size
        namespace = lasting.namespace
        learns = self.world.estimates.believed(namespace)
        seconds = [
            self._seconds(
                self._believed(namespace, lasts, deadline, ends_by, now), run if learns else None, gpus, size, share=1.0
            )
            for lasts, deadline, ends_by, run, gpus in lasting.members
        ]
        return now + max(seconds, default=0.0)

    def hold_to_estimate(self, member: Member, size: int) -> None:
        """Hold a member that backfills reserved nodes to how long earlier runs took, if it is let in by that."""
        if self._believed(member.namespace, member.expected_seconds, member.deadline, member.ends_by) == inf:
            seconds = self._seconds(inf, member.run, member.cls.gpus, size, share=1.0)
            self.world.estimates.claimed(member.uid, member.namespace, seconds)

    def _believed(self, namespace: str, lasts: float, deadline: float, ends_by: float = inf, now: float = 0.0) -> float:
        """Return how long a pod lasts: by its own deadline alone if the scheduler does not believe its namespace."""
        if (lasts == deadline and ends_by == inf) or self.world.promises.believed(namespace):
            return min(lasts, ends_by - self.world.epoch - now)
        return deadline

    def _seconds(
        self, seconds: float, run: RunKey | None, gpus: int, size: int, share: float = DURATION_QUANTILE
    ) -> float:
        """Return how long a pod lasts; by earlier runs if what it declares is infinite."""
        if seconds == inf and run is not None:
            seconds = self.world.runs.longest(run)
            if seconds == inf:
                seconds = self.world.runs.of_similar(likeness_of(run, size, gpus), share)
        return seconds
