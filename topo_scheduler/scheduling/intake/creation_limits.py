"""Controllers that never make as many pods at once as their gang needs: why, and the remedy."""

from collections.abc import Sequence
from typing import Final

from topo_scheduler.api.annotations import GANG_SIZE, MAX_GANG_PODS
from topo_scheduler.api.objects import Job
from topo_scheduler.state.pods.workloads import NO_CREATION_LIMIT, CreationLimit

_STATEFUL_SET: Final = CreationLimit(
    "its StatefulSet makes one pod after another unless its podManagementPolicy is Parallel; create it again with"
    " Parallel, as the field can't be changed",
    pods=1,
)
_DEPLOYMENT: Final = CreationLimit(
    "a rolling update of its Deployment makes only maxSurge plus maxUnavailable pods (25% each by default) before"
    " these are ready; set its strategy to Recreate, or maxSurge to 100%",
    pods=MAX_GANG_PODS,
)


def creation_limit(
    size: int, kinds: Sequence[str], job: Job | None, *, all_known: bool, of_one_controller: bool
) -> CreationLimit:
    """Return why so many pods of a gang may never exist at once.

    Of owners other than Jobs only the kind is known: the scheduler does not read their specification.

    Args:
        size: the size of the gang.
        kinds: kinds of the controllers above a pod of the gang, nearest first.
        job: the nearest one, if it is a Job.
        all_known: whether no further controller can be above these.
        of_one_controller: whether only pods of the nearest one are members. Otherwise the pods from before a rolling
            update are members too, so that the gang lacks none.
    """
    if not kinds:
        return NO_CREATION_LIMIT
    if kinds[0] == "StatefulSet" and len(kinds) == 1 and all_known:  # otherwise it is as its owner makes it
        return _STATEFUL_SET
    if not of_one_controller:
        return NO_CREATION_LIMIT
    if job is not None:
        return _of_job(size, job)
    return _DEPLOYMENT if kinds[0] == "ReplicaSet" and "Deployment" in kinds[1:2] else NO_CREATION_LIMIT


def _of_job(size: int, job: Job) -> CreationLimit:
    spec = job.spec
    max_pods = spec.parallelism if spec.completions is None else min(spec.parallelism, spec.completions)
    if size <= max_pods:
        return NO_CREATION_LIMIT
    completions = "" if spec.completions is None else f" and completions {spec.completions}"
    return CreationLimit(
        f"its Job makes at most {max_pods} at once, by parallelism {spec.parallelism}{completions}; write a"
        f" {GANG_SIZE} of at most {max_pods}, or raise these",
        pods=MAX_GANG_PODS,
    )
