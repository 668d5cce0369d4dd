"""Occupants of nodes: the facts about a bound pod that decide whether the scheduler may preempt it."""

from contextlib import suppress
from dataclasses import dataclass
from math import inf
from sys import intern
from typing import Final

from topo_scheduler.api.annotations import EXPECTED_DURATION
from topo_scheduler.api.durations import MAX_SECONDS, DurationError, parse_duration
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.state.pods.node_pods import belongs_to_node
from topo_scheduler.state.statistics.run_times import RunKey, run_of

DEFAULT_GRACE_SECONDS: Final = 30.0
"""Grace period in seconds of a pod that sets none."""
LONGEST_WAIT_SECONDS: Final = 600.0
"""Maximum seconds that the scheduler waits for a pod that is being deleted: users may set any grace period, up to
centuries."""
OVERDUE_SECONDS: Final = 60.0
"""Seconds after which a pod that should have ended is not expected to end at any moment."""


@dataclass(frozen=True, slots=True)
class VictimInfo:
    """A bound pod. ``started`` is in seconds since the epoch; ``grace`` is its grace period in seconds.

    ``fixed``: the scheduler does not preempt it. A DaemonSet pod would come right back, and the API server can't delete
    the mirror of a static pod. ``ends`` is its expected end in seconds since the epoch, infinite if
    unknown.
    """

    namespace: str
    name: str
    uid: str
    priority: int
    started: float
    grace: float
    terminating: bool
    fixed: bool
    ends: float = inf
    expected_seconds: float = inf
    """Expected run time from its start in seconds, by its own annotations and deadline."""
    deadline: float = inf
    """Longest run time in seconds by its ``activeDeadlineSeconds`` alone, which its kubelet enforces."""
    start_reported: bool = True
    """Whether its kubelet reported its start; before that ``started`` is its creation time."""
    service: bool = False
    """Whether the kubelet restarts it whenever it ends (``restartPolicy: Always``)."""
    run: RunKey | None = None
    """The recurring job of which the pod is one run."""
    scheduler: str = ""
    """Name of the scheduler that placed it."""
    controlled: bool = True
    """Whether a controller creates a new pod when this one is gone."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    def seconds_to_end(self, wall: float) -> float:
        """Return the seconds until the pod ends if it is deleted now; the remaining seconds if it is already.

        Infinite if the pod should have ended long ago: its end is unknown. For grace periods that are long enough, the
        API server computes a deletion time centuries ago.

        Args:
            wall: current time in seconds since the epoch.
        """
        if self.terminating and self.ends < inf:
            return max(0.0, self.ends - wall) if wall - self.ends <= OVERDUE_SECONDS else inf
        return self.grace


def occupant_of(pod: Pod) -> VictimInfo:
    """Return the occupant of a bound pod."""
    meta = pod.metadata
    started_at = seconds_of(pod.status.start_time)
    start_or_creation = seconds_of(meta.creation_timestamp) if started_at is None else started_at
    started = start_or_creation or 0.0
    grace = pod.spec.termination_grace_period_seconds
    return VictimInfo(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        priority=pod.spec.priority,
        started=started,
        grace=DEFAULT_GRACE_SECONDS if grace is None else float(grace),
        terminating=meta.deletion_timestamp is not None,
        fixed=belongs_to_node(meta),
        ends=_ends(pod, started) if start_or_creation is not None else inf,
        expected_seconds=expected_run(pod),
        deadline=deadline_of(pod),
        start_reported=started_at is not None,
        service=pod.spec.restart_policy == "Always",
        run=run_of(pod),
        scheduler=intern(pod.spec.scheduler_name),
        controlled=meta.controller is not None,
    )


def _ends(pod: Pod, started: float) -> float:
    if (deleted := seconds_of(pod.metadata.deletion_timestamp)) is not None:
        return deleted  # the timestamp includes the grace period
    return started + expected_run(pod)


def limit(deadline: int | None) -> float:
    """Return the longest run time in seconds by an ``activeDeadlineSeconds``.

    Infinite without one, and for values beyond any calendar: that of a Job may be any number.
    """
    return inf if deadline is None or deadline > MAX_SECONDS else float(deadline)


def slow_stop(pod: Pod) -> float:
    """Return the seconds that a pod may still run after its deadline: its grace period beyond the usual one."""
    grace = pod.spec.termination_grace_period_seconds
    return 0.0 if grace is None else max(0.0, grace - DEFAULT_GRACE_SECONDS)


def expected_run(pod: Pod) -> float:
    """Return the expected run time of a pod from its start in seconds; infinite if unknown.

    By its ``activeDeadlineSeconds`` or its annotation ``expected-duration``, whichever is shorter. A value that can't
    be read is ignored.
    """
    limits = [deadline_of(pod)]
    if (text := pod.metadata.annotations.get(EXPECTED_DURATION)) is not None:
        with suppress(DurationError):
            limits.append(parse_duration(text))
    return min(limits)


def deadline_of(pod: Pod) -> float:
    """Return the longest run time of a pod by its own ``activeDeadlineSeconds`` in seconds; infinite without one.

    Then its kubelet stops the pod, which may take its grace period.
    """
    deadline = pod.spec.active_deadline_seconds
    return limit(deadline) + slow_stop(pod) if deadline is not None and deadline > 0 else inf
