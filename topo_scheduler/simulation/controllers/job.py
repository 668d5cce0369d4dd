"""The job controller: runs ``parallelism`` pods until ``completions`` have succeeded.

As on a real cluster, pods have a finalizer until they are counted. A pod that is deleted before it finished counts as
failed, and a failure policy may ignore disruptions. Unlike on a real cluster, a failed pod is replaced without delay.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Final

from topo_scheduler.simulation.apiserver import Key, ObjectVersion, Store, StoreEvent
from topo_scheduler.simulation.apiserver.objects import (
    Json,
    condition,
    controller_of,
    is_deleting,
    is_finished,
    is_ready,
    status,
    timestamp,
    with_condition,
)

from .runtime import Controller, ControllerPlan, carry_out, drop_finalizer, owned, owner_and_owned, pod_of

FINALIZER: Final = "batch.kubernetes.io/job-tracking"
INDEX: Final = "batch.kubernetes.io/job-completion-index"


def plan(job: ObjectVersion, pods: list[ObjectVersion], moment: datetime) -> ControllerPlan:
    """Return the plan for a Job, given its pods."""
    counted_status = _counted_status(job, pods)
    tracked = [pod for pod in pods if _has_finalizer(pod)]
    live = [pod for pod in pods if not is_finished(pod.obj) and not is_deleting(pod.obj)]
    if _has_ended(job):
        return ControllerPlan(delete=live, release=tracked, status=status(job.obj))
    if (final_status := _end(job, counted_status, live, moment)) is not None:
        return ControllerPlan(delete=live, release=tracked, status=final_status)
    released = [pod for pod in tracked if _is_over(job, pod)]
    if job["spec"].get("suspend"):
        return ControllerPlan(delete=live, release=released, status=_suspended(counted_status, moment))
    terminating = sum(is_deleting(pod.obj) and not is_finished(pod.obj) for pod in pods)
    desired = _desired_pods(job["spec"], counted_status.get("succeeded", 0), len(live))
    missing = max(desired - len(live) - (terminating if _replaces_failed_only(job) else 0), 0)
    surplus = sorted(live, key=lambda pod: (is_ready(pod.obj), bool(pod["spec"].get("nodeName"))))
    active = {
        **counted_status,
        "active": len(live) + missing,
        "ready": sum(is_ready(pod.obj) for pod in live),
        "terminating": terminating,
    }
    active.setdefault("startTime", timestamp(moment))
    if condition(job.obj, "Suspended"):
        resumed = {"type": "Suspended", "status": "False", "reason": "JobResumed", "message": "Job resumed"}
        active["conditions"] = with_condition(counted_status.get("conditions"), resumed, moment)
    return ControllerPlan(
        _new_pods(job, pods, counted_status, missing), surplus[: max(len(live) - desired, 0)], released, _tidy(active)
    )


def _end(job: ObjectVersion, job_status: Json, live: list[ObjectVersion], moment: datetime) -> Json | None:
    """Return the final status of a Job that has ended, else None."""
    spec, succeeded = job["spec"], job_status.get("succeeded", 0)
    if job_status.get("failed", 0) > spec["backoffLimit"]:
        message = "Job has reached the specified backoff limit"
        return _finish(job_status, moment, ("FailureTarget", "Failed"), "BackoffLimitExceeded", message)
    completions = spec.get("completions")
    if succeeded < completions if completions is not None else not succeeded or live:
        return None
    message = "Reached expected number of succeeded pods"
    final_status = _finish(job_status, moment, ("SuccessCriteriaMet", "Complete"), "CompletionsReached", message)
    return {**final_status, "completionTime": timestamp(moment)}


def _suspended(job_status: Json, moment: datetime) -> Json:
    suspended = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}
    conditions = with_condition(job_status.get("conditions"), suspended, moment)
    return _tidy({**job_status, "active": 0, "ready": 0, "startTime": None, "conditions": conditions})


def _has_finalizer(pod: ObjectVersion) -> bool:
    return FINALIZER in pod["metadata"].get("finalizers", ())


def _has_ended(job: ObjectVersion) -> bool:
    return any((condition(job.obj, kind) or {}).get("status") == "True" for kind in ("Complete", "Failed"))


def _is_over(job: ObjectVersion, pod: ObjectVersion) -> bool:
    """Whether a pod is over. With replacement policy ``Failed``, a terminating pod is not over before it finished."""
    return is_finished(pod.obj) or (is_deleting(pod.obj) and not _replaces_failed_only(job))


def _replaces_failed_only(job: ObjectVersion) -> bool:
    """Whether a Job replaces pods only after they failed; the default of Jobs with a failure policy."""
    return bool(job["spec"].get("podReplacementPolicy") == "Failed")


def _desired_pods(spec: Json, succeeded: int, live: int) -> int:
    """Return the desired number of active pods; without ``completions``, no pod is replaced after the first success."""
    if spec.get("completions") is None:
        return live if succeeded else int(spec["parallelism"])
    return min(int(spec["parallelism"]), max(int(spec["completions"]) - succeeded, 0))


def _counted_status(job: ObjectVersion, pods: list[ObjectVersion]) -> Json:
    """Return the status after counting pods that are over and were not counted yet."""
    job_status: Json = dict(status(job.obj))
    indexed = job["spec"].get("completionMode") == "Indexed"
    completed = parse_indexes(job_status.get("completedIndexes", ""))
    for pod in pods:
        if not _has_finalizer(pod) or not _is_over(job, pod):
            continue
        if status(pod.obj).get("phase") == "Succeeded":
            job_status["succeeded"] = job_status.get("succeeded", 0) + 1
            if indexed:
                completed.add(_index_of(pod))
        elif not _is_ignored(job, pod):
            job_status["failed"] = job_status.get("failed", 0) + 1
    if indexed:
        job_status |= {"completedIndexes": format_indexes(completed), "succeeded": len(completed)}
    return _tidy(job_status)


def _is_ignored(job: ObjectVersion, pod: ObjectVersion) -> bool:
    """Whether the failure policy ignores the failure of a pod."""
    pod_conditions = {(entry["type"], entry["status"]) for entry in status(pod.obj).get("conditions") or ()}
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or ()
    return any(
        rule["action"] == "Ignore"
        and any(
            (entry["type"], entry.get("status", "True")) in pod_conditions
            for entry in rule.get("onPodConditions") or ()
        )
        for rule in rules
    )


def _finish(job_status: Json, moment: datetime, condition_types: Iterable[str], reason: str, message: str) -> Json:
    conditions = job_status.get("conditions")
    for condition_type in condition_types:
        final = {"type": condition_type, "status": "True", "reason": reason, "message": message}
        conditions = with_condition(conditions, {**final, "lastProbeTime": timestamp(moment)}, moment)
    return _tidy({**job_status, "active": 0, "ready": 0, "terminating": 0, "conditions": conditions})


def _tidy(job_status: Json) -> Json:
    """Return a status without zeros, except those that the API shows."""
    return {
        name: value
        for name, value in job_status.items()
        if value or (name in ("ready", "terminating") and value is not None)
    }


def _new_pods(job: ObjectVersion, pods: list[ObjectVersion], job_status: Json, count: int) -> list[Json]:
    name = job.key.name
    if job["spec"].get("completionMode") != "Indexed":
        return [pod_of(job, f"{name}-", finalizers=[FINALIZER]) for _ in range(count)]
    taken = parse_indexes(job_status.get("completedIndexes", ""))
    taken |= {_index_of(pod) for pod in pods if not _is_over(job, pod)}
    free = (index for index in range(job["spec"]["completions"]) if index not in taken)
    return [_indexed_pod(job, index) for index in islice(free, count)]


def _indexed_pod(job: ObjectVersion, index: int) -> Json:
    index_label = {INDEX: str(index)}
    pod = pod_of(job, f"{job.key.name}-{index}-", labels=index_label, annotations=index_label, finalizers=[FINALIZER])
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}
    containers = [
        {**container, "env": [*(container.get("env") or ()), variable]} for container in pod["spec"]["containers"]
    ]
    return {**pod, "spec": {**pod["spec"], "hostname": f"{job.key.name}-{index}", "containers": containers}}


def _index_of(pod: ObjectVersion) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def parse_indexes(text: str) -> set[int]:
    """Return the indexes of a text: ``"0-2,5"`` is 0, 1, 2 and 5."""
    indexes: set[int] = set()
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    return indexes


def format_indexes(indexes: set[int]) -> str:
    """Return indexes in the format of the API: ``"0,1,3-5"``."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _release(store: Store, pod: ObjectVersion) -> None:
    """Remove the tracking finalizer of a counted pod, if the pod still exists."""
    if store.find("pods", *pod.key.address) is not None:
        drop_finalizer(store, "pods", pod, FINALIZER)


def _reconcile(store: Store, key: Key) -> float | None:
    job = store.find("jobs.batch", *key.address)
    if job is None:
        return None
    pods = owned(store, job)
    if is_deleting(job.obj):
        for pod in pods:
            if _has_finalizer(pod) and (is_deleting(pod.obj) or is_finished(pod.obj)):
                _release(store, pod)
        return None
    job_plan = plan(job, pods, store.clock())
    carry_out(store, job, job_plan)
    for pod in job_plan.release:  # after the status was written, so that each pod is counted exactly once
        _release(store, pod)
    return None


def _orphaned_pods(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Yield pods with a tracking finalizer whose Job was removed."""
    if table == "pods" and event.after is not None and _has_finalizer(event.after):
        owner = controller_of(event.after.obj)
        if owner is None or not store.exists(owner["uid"]):
            yield event.key
    elif table == "jobs.batch" and event.after is None:
        # Its pods may have been deleted before it, for example with their namespace.
        yield from (key for kind, key in store.dependents(event.record["metadata"]["uid"]) if kind == "pods")


def _release_orphan(store: Store, key: Key) -> float | None:
    if (pod := store.find("pods", *key.address)) is not None:
        _release(store, pod)
    return None


CONTROLLER: Final = Controller("job", owner_and_owned("jobs.batch"), _reconcile)
ORPHANS: Final = Controller("job-orphans", _orphaned_pods, _release_orphan)
