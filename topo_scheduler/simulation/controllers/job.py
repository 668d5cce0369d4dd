"""Jobs: so many pods until so many have succeeded.

As on a real cluster, pods carry a finalizer until they are counted, a pod that is deleted before it finished counts
as failed, and a failure policy may ignore disruptions. Unlike there, a pod that failed is replaced at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Final

from topo_scheduler.simulation.apiserver import Key, ObjectVersion, Store, StoreEvent
from topo_scheduler.simulation.apiserver.objects import (
    Json,
    changed,
    condition,
    controller_of,
    is_deleting,
    is_finished,
    status,
    timestamp,
    with_condition,
)

from .runtime import Controller, ControllerPlan, carry_out, owned, owner_and_owned, pod_of

FINALIZER: Final = "batch.kubernetes.io/job-tracking"
INDEX: Final = "batch.kubernetes.io/job-completion-index"


def plan(job: ObjectVersion, pods: list[ObjectVersion], moment: datetime) -> ControllerPlan:
    """What a job wants, given its pods."""
    state = _counted(job, pods)
    tracked = [pod for pod in pods if _has_finalizer(pod)]
    live = [pod for pod in pods if not is_finished(pod.obj) and not is_deleting(pod.obj)]
    if _over(job):
        return ControllerPlan(delete=live, release=tracked, status=status(job.obj))
    if (end := _end(job, state, live, moment)) is not None:
        return ControllerPlan(delete=live, release=tracked, status=end)
    counted = [pod for pod in tracked if _is_over(job, pod)]
    if job["spec"].get("suspend"):
        return ControllerPlan(delete=live, release=counted, status=_suspended(state, moment))
    leaving = sum(is_deleting(pod.obj) and not is_finished(pod.obj) for pod in pods)
    wanted = _wanted(job["spec"], state.get("succeeded", 0), len(live))
    room = max(wanted - len(live) - (leaving if _is_patient(job) else 0), 0)
    surplus = sorted(live, key=lambda pod: (_is_ready(pod), bool(pod["spec"].get("nodeName"))))
    active = {**state, "active": len(live) + room, "ready": sum(map(_is_ready, live)), "terminating": leaving}
    active.setdefault("startTime", timestamp(moment))
    if condition(job.obj, "Suspended"):
        resumed = {"type": "Suspended", "status": "False", "reason": "JobResumed", "message": "Job resumed"}
        active["conditions"] = with_condition(state.get("conditions"), resumed, moment)
    return ControllerPlan(
        _new_pods(job, pods, state, room), surplus[: max(len(live) - wanted, 0)], counted, _tidy(active)
    )


def _end(job: ObjectVersion, state: Json, live: list[ObjectVersion], moment: datetime) -> Json | None:
    """The job's last status, if it has come to its end."""
    spec, succeeded = job["spec"], state.get("succeeded", 0)
    if state.get("failed", 0) > spec["backoffLimit"]:
        message = "Job has reached the specified backoff limit"
        return _finish(state, moment, ("FailureTarget", "Failed"), "BackoffLimitExceeded", message)
    completions = spec.get("completions")
    if succeeded < completions if completions is not None else not succeeded or live:
        return None
    message = "Reached expected number of succeeded pods"
    done = _finish(state, moment, ("SuccessCriteriaMet", "Complete"), "CompletionsReached", message)
    return {**done, "completionTime": timestamp(moment)}


def _suspended(state: Json, moment: datetime) -> Json:
    halt = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}
    conditions = with_condition(state.get("conditions"), halt, moment)
    return _tidy({**state, "active": 0, "ready": 0, "startTime": None, "conditions": conditions})


def _has_finalizer(pod: ObjectVersion) -> bool:
    return FINALIZER in pod["metadata"].get("finalizers", ())


def _over(job: ObjectVersion) -> bool:
    return any((condition(job.obj, kind) or {}).get("status") == "True" for kind in ("Complete", "Failed"))


def _is_over(job: ObjectVersion, pod: ObjectVersion) -> bool:
    """Whether a pod counts: a Job that only replaces failed pods, as with a failure policy, waits for its end."""
    return is_finished(pod.obj) or (is_deleting(pod.obj) and not _is_patient(job))


def _is_patient(job: ObjectVersion) -> bool:
    """The API server says so of every Job with a failure policy."""
    return bool(job["spec"].get("podReplacementPolicy") == "Failed")


def _is_ready(pod: ObjectVersion) -> bool:
    return (condition(pod.obj, "Ready") or {}).get("status") == "True"


def _wanted(spec: Json, succeeded: int, live: int) -> int:
    """How many pods should be there now; workers of a pool are not replaced once one of them was done."""
    if spec.get("completions") is None:
        return live if succeeded else int(spec["parallelism"])
    return min(int(spec["parallelism"]), max(int(spec["completions"]) - succeeded, 0))


def _counted(job: ObjectVersion, pods: list[ObjectVersion]) -> Json:
    """The status with the pods counted that are over and not counted yet."""
    state: Json = dict(status(job.obj))
    indexed = job["spec"].get("completionMode") == "Indexed"
    done = parse_indexes(state.get("completedIndexes", ""))
    for pod in pods:
        if not _has_finalizer(pod) or not _is_over(job, pod):
            continue
        if status(pod.obj).get("phase") == "Succeeded":
            state["succeeded"] = state.get("succeeded", 0) + 1
            if indexed:
                done.add(_index_of(pod))
        elif not _is_ignored(job, pod):
            state["failed"] = state.get("failed", 0) + 1
    if indexed:
        state |= {"completedIndexes": format_indexes(done), "succeeded": len(done)}
    return _tidy(state)


def _is_ignored(job: ObjectVersion, pod: ObjectVersion) -> bool:
    """Whether the failure policy says that this failure is not the job's."""
    met = {(c["type"], c["status"]) for c in status(pod.obj).get("conditions") or ()}
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or ()
    return any(
        rule["action"] == "Ignore"
        and any((c["type"], c.get("status", "True")) in met for c in rule.get("onPodConditions") or ())
        for rule in rules
    )


def _finish(state: Json, moment: datetime, kinds: Iterable[str], reason: str, message: str) -> Json:
    conditions = state.get("conditions")
    for kind in kinds:
        final = {"type": kind, "status": "True", "reason": reason, "message": message}
        conditions = with_condition(conditions, {**final, "lastProbeTime": timestamp(moment)}, moment)
    return _tidy({**state, "active": 0, "ready": 0, "terminating": 0, "conditions": conditions})


def _tidy(state: Json) -> Json:
    """Zeros are left out, but for those that the API shows."""
    return {name: v for name, v in state.items() if v or (name in ("ready", "terminating") and v is not None)}


def _new_pods(job: ObjectVersion, pods: list[ObjectVersion], state: Json, count: int) -> list[Json]:
    name = job.key.name
    if job["spec"].get("completionMode") != "Indexed":
        return [pod_of(job, f"{name}-", finalizers=[FINALIZER]) for _ in range(count)]
    taken = parse_indexes(state.get("completedIndexes", ""))
    taken |= {_index_of(pod) for pod in pods if not _is_over(job, pod)}
    free = (index for index in range(job["spec"]["completions"]) if index not in taken)
    return [_indexed_pod(job, index) for index in islice(free, count)]


def _indexed_pod(job: ObjectVersion, index: int) -> Json:
    mark = {INDEX: str(index)}
    pod = pod_of(job, f"{job.key.name}-{index}-", labels=mark, annotations=mark, finalizers=[FINALIZER])
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}
    containers = [{**c, "env": [*(c.get("env") or ()), variable]} for c in pod["spec"]["containers"]]
    return {**pod, "spec": {**pod["spec"], "hostname": f"{job.key.name}-{index}", "containers": containers}}


def _index_of(pod: ObjectVersion) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def parse_indexes(text: str) -> set[int]:
    """``"0-2,5"`` is 0, 1, 2 and 5."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def format_indexes(indexes: set[int]) -> str:
    """As the API writes them: ``"0,1,3-5"``."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _release(store: Store, pod: ObjectVersion) -> None:
    """Let go of a pod that needs no counting any more; it may be gone already."""
    if store.find("pods", *pod.key.address) is not None:
        left = [f for f in pod["metadata"].get("finalizers", ()) if f != FINALIZER]
        store.modify("pods", *pod.key.address, lambda obj: changed(obj, "metadata", finalizers=left or None))


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
    wanted = plan(job, pods, store.clock())
    carry_out(store, job, wanted)
    for pod in wanted.release:  # only once they are counted, so that none is counted twice or never
        _release(store, pod)
    return None


def _left_alone(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Pods that nobody will count any more, since their job has gone."""
    if table == "pods" and event.after is not None and _has_finalizer(event.after):
        owner = controller_of(event.after.obj)
        if owner is None or not store.exists(owner["uid"]):
            yield event.key
    elif table == "jobs.batch" and event.after is None:
        # Its pods may have been deleted before it, as where a namespace is emptied.
        yield from (key for kind, key in store.dependents(event.record["metadata"]["uid"]) if kind == "pods")


def _let_go(store: Store, key: Key) -> float | None:
    if (pod := store.find("pods", *key.address)) is not None:
        _release(store, pod)
    return None


CONTROLLER: Final = Controller("job", owner_and_owned("jobs.batch"), _reconcile)
ORPHANS: Final = Controller("job-orphans", _left_alone, _let_go)
