"""Who holds room of a node: what must be known of a pod to choose whether it gives way."""

from contextlib import suppress
from dataclasses import dataclass
from math import inf
from sys import intern
from typing import Final

from topo_scheduler.api.annotations import EXPECTED_DURATION
from topo_scheduler.api.durations import MOST_SECONDS, DurationError, parse_duration
from topo_scheduler.api.moments import seconds_of
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.runs import Run, run_of

MIRROR: Final = "kubernetes.io/config.mirror"
GRACE: Final = 30.0
"""Seconds a pod has to end where it says nothing of it."""
LONGEST_WAIT_SECONDS: Final = 600.0
"""Seconds for which room is waited for at most until a pod that is being deleted ends: its owner may choose any grace
period, up to centuries."""
OVERDUE_SECONDS: Final = 60.0
"""Seconds after which a pod that should have ended is not expected to end at any moment."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A bound pod. ``started`` seconds since the epoch; ``grace`` seconds it has to end.

    ``fixed``: it does not give way, as it would come right back (a DaemonSet's) or is not the API server's to delete
    (a mirror of a static pod). ``ends`` when it is expected to end, in seconds since the epoch; infinite where nothing
    tells.
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
    lasts: float = inf
    """Seconds it is expected to run from its start, by what it says itself."""
    deadline: float = inf
    """The same by its ``activeDeadlineSeconds`` alone, which its kubelet enforces."""
    begun: bool = True
    """Whether its kubelet said when it started; before that ``started`` is when it was created."""
    service: bool = False
    """Whether it is started again whenever it ends (``restartPolicy: Always``)."""
    run: Run | None = None
    """What it is a run of."""
    scheduler: str = ""
    """Who placed it."""
    controlled: bool = True
    """Whether a controller makes a new one when it is gone."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    def seconds_to_end(self, wall: float) -> float:
        """Return the seconds that the pod has to end once it is deleted; what is left of them where it is already.

        Infinite where it should have ended long ago: nobody knows when it does. The API server computes a moment
        centuries ago for grace periods that are long enough.

        Args:
            wall: seconds since the epoch.
        """
        if self.terminating and self.ends < inf:
            return max(0.0, self.ends - wall) if wall - self.ends <= OVERDUE_SECONDS else inf
        return self.grace


def occupant_of(pod: Pod) -> Occupant:
    """Return who a bound pod is."""
    meta = pod.metadata
    controller = meta.controller
    begun = seconds_of(pod.status.start_time)
    told = seconds_of(meta.creation_timestamp) if begun is None else begun
    started = told or 0.0
    grace = pod.spec.termination_grace_period_seconds
    return Occupant(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        priority=pod.spec.priority,
        started=started,
        grace=GRACE if grace is None else float(grace),
        terminating=meta.deletion_timestamp is not None,
        fixed=MIRROR in meta.annotations or (controller is not None and controller.kind in ("DaemonSet", "Node")),
        ends=_ends(pod, started) if told is not None else inf,
        lasts=expected_run(pod),
        deadline=deadline_of(pod),
        begun=begun is not None,
        service=pod.spec.restart_policy == "Always",
        run=run_of(pod),
        scheduler=intern(pod.spec.scheduler_name),
        controlled=controller is not None,
    )


def _ends(pod: Pod, started: float) -> float:
    if (deleted := seconds_of(pod.metadata.deletion_timestamp)) is not None:
        return deleted  # its grace period is part of it
    return started + expected_run(pod)


def limit(deadline: int | None) -> float:
    """Return for how many seconds something may run by its ``activeDeadlineSeconds``.

    Infinite where there is none, and where it says no more than that: a Job's may be any number, beyond all calendars.
    """
    return inf if deadline is None or deadline > MOST_SECONDS else float(deadline)


def expected_run(pod: Pod) -> float:
    """Return for how many seconds a pod is expected to run from its start; infinite where nothing tells.

    By its ``activeDeadlineSeconds`` or its annotation ``expected-duration``, whichever is shorter. A value that can't
    be read tells nothing.
    """
    limits = [deadline_of(pod)]
    if (text := pod.metadata.annotations.get(EXPECTED_DURATION)) is not None:
        with suppress(DurationError):
            limits.append(parse_duration(text))
    return min(limits)


def deadline_of(pod: Pod) -> float:
    """Return for how many seconds a pod may run by its own ``activeDeadlineSeconds``; infinite where it has none."""
    deadline = pod.spec.active_deadline_seconds
    return limit(deadline) if deadline is not None and deadline > 0 else inf
