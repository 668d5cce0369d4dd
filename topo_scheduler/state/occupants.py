"""Who holds room of a node: what must be known of a pod to choose whether it gives way."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from topo_scheduler.api.objects import Pod

MIRROR: Final = "kubernetes.io/config.mirror"
GRACE: Final = 30.0
"""Seconds a pod has to end where it says nothing of it."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A bound pod. ``started`` seconds since the epoch; ``grace`` seconds it has to end.

    ``fixed``: it does not give way, as it would come right back (a DaemonSet's) or is not the API server's to delete
    (a mirror of a static pod).
    """

    namespace: str
    name: str
    uid: str
    priority: int
    started: float
    grace: float
    terminating: bool
    fixed: bool

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def occupant_of(pod: Pod) -> Occupant:
    """Return who a bound pod is."""
    meta = pod.metadata
    controller = meta.controller
    told = pod.status.start_time or meta.creation_timestamp
    grace = pod.spec.termination_grace_period_seconds
    return Occupant(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        priority=pod.spec.priority,
        started=datetime.fromisoformat(told).timestamp() if told else 0.0,
        grace=GRACE if grace is None else float(grace),
        terminating=meta.deletion_timestamp is not None,
        fixed=MIRROR in meta.annotations or (controller is not None and controller.kind in ("DaemonSet", "Node")),
    )
