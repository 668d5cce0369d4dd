"""To which scheduler a Migration belongs. No other one moves its pods, holds seats for it, or writes to it.

It belongs to the scheduler that wrote its status; before that, to the one that its spec names. If neither has a name,
it belongs to the scheduler of the first named pod. What users write is a claim: a scheduler moves only its own pods.

A Migration may belong to none: no pod that it names is bound, or kube-scheduler placed them. No scheduler can carry it
out, but one of them must report that. The scheduler with the default name does so at once, the others only once the
Migration is `UNCLAIMED_SECONDS` old: in most clusters the first has answered by then.
"""

from collections.abc import Callable, Container, Mapping
from typing import Final

from topo_scheduler.api.migrations import Migration
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.scheduling.scheduler_view import SchedulerView

KUBE_SCHEDULER: Final = "default-scheduler"
UNCLAIMED_SECONDS: Final = 30.0
"""Age of a Migration that belongs to no scheduler from which on any scheduler answers it."""

NamedPods = Mapping[tuple[str, str], str]
"""Names of the schedulers of bound pods, by namespace and name of the pod."""


def belongs_here(
    view: SchedulerView,
    migration: Migration,
    wall: float,
    *,
    first: bool,
    bound: Callable[[], NamedPods] | None = None,
) -> bool | None:
    """Return whether a Migration belongs to this scheduler; None if it belongs to none so far.

    Args:
        view: provides the state.
        migration: the Migration.
        wall: seconds since the epoch.
        first: whether this scheduler answers Migrations that belong to none before the others do.
        bound: returns all bound pods; by default they are taken from ``view``, which costs one pass over them.
    """
    owner = migration.scheduler or _scheduler_of_pods(view, migration, bound)
    if owner:
        return owner == view.scheduler_name
    return True if first or wall >= unclaimed_until(migration) else None


def unclaimed_until(migration: Migration) -> float:
    """Return when any scheduler may answer a Migration that belongs to none, in seconds since the epoch."""
    return (seconds_of(migration.metadata.creation_timestamp or "") or 0.0) + UNCLAIMED_SECONDS


def bound_pods(view: SchedulerView, wanted: Container[tuple[str, str]] | None = None) -> NamedPods:
    """Return the bound pods; or only those that are wanted, by namespace and name."""
    occupants = (entry.occupant for _, entry in view.entries() if entry.occupant is not None)
    schedulers = (((occupant.namespace, occupant.name), occupant.scheduler) for occupant in occupants)
    return {pod: scheduler for pod, scheduler in schedulers if wanted is None or pod in wanted}


def _scheduler_of_pods(view: SchedulerView, migration: Migration, bound: Callable[[], NamedPods] | None) -> str:
    """Return the scheduler of the first named pod that any scheduler but kube-scheduler placed; empty for none."""
    namespace = migration.metadata.namespace
    without_uid = {(namespace, pod.name) for pod in migration.spec.pods if not pod.uid}
    by_name: NamedPods = {}
    if without_uid:
        by_name = bound() if bound is not None else bound_pods(view, without_uid)
    for pod in migration.spec.pods:
        name = _scheduler_of(view, pod.uid) if pod.uid else by_name.get((namespace, pod.name), "")
        if name not in ("", KUBE_SCHEDULER):
            return name
    return ""


def _scheduler_of(view: SchedulerView, uid: str) -> str:
    if view.member(uid) is not None:
        return view.scheduler_name  # pending, or seen bound
    entry = view.entry(uid)
    return entry.occupant.scheduler if entry is not None and entry.occupant is not None else ""
