"""The controllers of the embedded cluster: small, and each telling only what schedulers and users can see of it.

``controllers(store)`` gives a runner for all of them::

    async with controllers(server.store):
        ...
"""

from __future__ import annotations

from typing import Final

from topo_scheduler.simulation.apiserver import Store

from . import deployment, disruption, garbage, job, nodes, replicaset, statefulset, volumes
from .runtime import Controller, ControllerPlan, ControllerRunner

ALL: Final[tuple[Controller, ...]] = (
    garbage.NAMESPACES,
    nodes.CONTROLLER,
    deployment.CONTROLLER,
    replicaset.CONTROLLER,
    statefulset.CONTROLLER,
    job.CONTROLLER,
    job.ORPHANS,
    disruption.CONTROLLER,
    volumes.CLAIM_CONTROLLER,
    volumes.VOLUME_CONTROLLER,
    volumes.EPHEMERAL,
    garbage.collector(),
)


def controllers(store: Store, *, garbage_pause_seconds: float = 0.0) -> ControllerRunner:
    """All controllers, ready to be started; the garbage collector pauses between two dependents of one owner."""
    return ControllerRunner(store, [*ALL[:-1], garbage.collector(garbage_pause_seconds)])


__all__ = ["ALL", "Controller", "ControllerPlan", "ControllerRunner", "controllers"]
