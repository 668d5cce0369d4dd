"""The controllers of the embedded cluster, reduced to the behaviour that schedulers and users can observe.

``controllers(store)`` returns a runner for all of them::

    async with controllers(server.store):
        ...

Imported by: `simulation`.
"""

from __future__ import annotations

from typing import Final

from topo_scheduler.simulation.apiserver import Store

from . import deployment, disruption, garbage, job, nodes, replicaset, resource_claims, statefulset, volumes
from .runtime import Controller, ControllerPlan, ControllerRunner

_ALL: Final[tuple[Controller, ...]] = (
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
    resource_claims.FROM_TEMPLATES,
    resource_claims.CONTROLLER,
)


def controllers(store: Store, *, garbage_pause_seconds: float = 0.0) -> ControllerRunner:
    """Return a runner for all controllers; the garbage collector pauses between two dependents of one owner."""
    return ControllerRunner(store, [*_ALL, garbage.collector(garbage_pause_seconds)])


__all__ = ["Controller", "ControllerPlan", "ControllerRunner", "controllers"]
