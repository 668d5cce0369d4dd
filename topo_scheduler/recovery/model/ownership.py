"""To which scheduler a Migration belongs. No other one moves its pods, holds seats for it, or writes to it.

It belongs to the scheduler that wrote its status; before that, to the one that its spec names. If neither has a name,
it belongs to the scheduler of the first named pod. What users write is a claim: a scheduler moves only its own pods.

Every Migration gets a status, although its scheduler may not run, or may carry out none. If no scheduler has answered
in time, one to which it does not belong reports that. The one with the default name comes first, the others a little
later, so that only one of them writes.

A Migration may also belong to none: no pod that it names is bound, or kube-scheduler placed them.
"""

from collections.abc import Callable, Container, Mapping
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Migration
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.scheduling.scheduler_view import SchedulerView

KUBE_SCHEDULER: Final = "default-scheduler"
UNCLAIMED_SECONDS: Final = 30.0
"""Age from which on a scheduler with another name than the default one answers a Migration that belongs to none."""
UNANSWERED_SECONDS: Final = 300.0
"""Age from which on other schedulers answer a Migration whose scheduler has not answered: longer than a failover."""

NamedPods = Mapping[tuple[str, str], str]
"""Names of the schedulers of bound pods, by namespace and name of the pod."""


def answers_at(
    view: SchedulerView, migration: Migration, *, first: bool, bound: Callable[[], NamedPods] | None = None
) -> float:
    """Return from when on this scheduler answers a Migration, in seconds since the epoch.

    Args:
        view: provides the state.
        migration: the Migration.
        first: whether this scheduler answers before the others if the scheduler of a Migration does not.
        bound: returns all bound pods; by default they are taken from ``view``, which costs one pass over them.

    Returns:
        Minus infinity if the Migration belongs to this scheduler, infinity if another one has answered it.
    """
    if answered := migration.status.scheduler_name:
        return -inf if answered == view.scheduler_name else inf
    owner = _owner(view, migration, bound)
    if owner == view.scheduler_name or (first and not owner):
        return -inf
    created = seconds_of(migration.metadata.creation_timestamp or "") or 0.0
    return created + (UNANSWERED_SECONDS if owner else 0.0) + (0.0 if first else UNCLAIMED_SECONDS)


def reason_not_ours(view: SchedulerView, migration: Migration, *, bound: Callable[[], NamedPods] | None = None) -> str:
    """Return why this scheduler moves no pod for a Migration without a status that it may answer; empty if it may.

    It belongs to another scheduler, which has not answered in time. Arguments are as for `answers_at`.
    """
    owner = _owner(view, migration, bound)
    if owner in ("", view.scheduler_name) or migration.status.scheduler_name:
        return ""
    return (
        f"it belongs to scheduler {owner}, which has not answered in {UNANSWERED_SECONDS / 60:g} minutes: that does not"
        f" run, or carries out no Migrations; {view.scheduler_name} moves no pod for it"
    )


def _owner(view: SchedulerView, migration: Migration, bound: Callable[[], NamedPods] | None) -> str:
    """Return the scheduler that a Migration without a status belongs to; empty for none."""
    return migration.spec.scheduler_name or _scheduler_of_pods(view, migration, bound)


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
