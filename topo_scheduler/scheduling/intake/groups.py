"""Which gang a pod belongs to: the first rule that applies wins, and the scheduler warns of contradictions.

The rules in order:

1. ``gang: "false"``
2. this scheduler's gang-name and gang-size
3. the native PodGroup of Kubernetes
4. PodGroups of other schedulers
5. groups whose size is written on the pod
6. labels of controllers that promise a size
7. the Job rule
8. otherwise the pod is placed alone

A group is always one of the pod's own namespace.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.annotations import GANG_NAME, GANG_SIZE, GPU_COUNT, MAX_GANG_PODS, PlacementRequest
from topo_scheduler.api.groups import (
    JOBSET_NAME,
    LWS_GROUP,
    LWS_NAME,
    LWS_SIZE,
    PLUGINS_LABEL,
    SIGS_LABEL,
    SIZED_ON_PODS,
    VOLCANO_ANNOTATIONS,
    VOLCANO_MIN_MEMBER,
    GroupApi,
)
from topo_scheduler.api.objects import Job, OwnerReference, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.text import quoted
from topo_scheduler.state.pods.pod_groups import GroupKey, Groups, PodGroup, Serving

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_BELOW_JOBSET: Final = ("Pod", "Job")
"""Kinds on which a gang-size applies to one Job of a JobSet; on a kind further out it applies to the whole JobSet."""
_LABELS: Final = {
    GroupApi.PLUGINS: (PLUGINS_LABEL,),
    GroupApi.SIGS: (SIGS_LABEL,),
    GroupApi.VOLCANO: VOLCANO_ANNOTATIONS,
}
_FOR_ITSELF: Final = "the pod is placed for itself"
_EVICTS_NOTHING: Final = f"{_FOR_ITSELF}, and no pod is evicted for it"
_KEYS: Final = frozenset(
    (
        LWS_NAME,
        VOLCANO_MIN_MEMBER,
        *(name for name, _ in SIZED_ON_PODS),
        *(key for keys in _LABELS.values() for key in keys),
    )
)
"""All keys that name a group: most pods carry none of them."""


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """The gang of a pod by one rule.

    Attributes:
        said: the source of the claim, for messages.
        id: id of the gang.
        name: name of the gang.
        size: minimum of members at once; None while that is not known.
        named: whether a user chose the group by its name.
        gang: False for pods that are placed one by one.
        group: the PodGroup behind it.
        level: level of the fabric at which all members must share one domain.
        awaits: what must appear first.
        problem: why the pod can't be placed.
    """

    said: str
    id: str = ""
    name: str = ""
    size: int | None = 1
    named: bool = False
    gang: bool = True
    group: PodGroup | None = None
    level: str = ""
    awaits: str = ""
    problem: str = ""

    def contradicts(self, other: "GroupClaim") -> bool:
        """Return whether the scheduler can't follow both claims."""
        if self.size is not None and other.size is not None and self.size != other.size:
            return True
        return self.named and other.named and self.name != other.name


@dataclass(slots=True)
class Grouping:
    """The winning claim of a pod, None for a pod without any, and the warnings to emit."""

    claim: GroupClaim | None = None
    warnings: list[tuple[Reason, str]] = field(default_factory=list)
    doubt: str = ""
    """Why it is unknown which gang a pod belongs to, although the pod names one."""


def find_group(
    pod: Pod,
    job: Job | None,
    request: PlacementRequest,
    groups: Groups,
    since: float,
    bound: Callable[[str], bool] = lambda id_: False,
) -> Grouping:
    """Return which gang a pod belongs to.

    Args:
        pod: a pending pod.
        job: the Job that created it, None if none did.
        request: the annotations of the pod and its owners.
        groups: the PodGroups that exist.
        since: when the pod was first seen, in seconds.
        bound: returns whether pods of a gang are bound, by its id.
    """
    unknown: list[str] = []
    outside = list(_outside(pod, groups, since, unknown, bound)) if _names_any(pod) else []
    if request.gang is False:
        ignored = [claim for claim in outside if claim.named and claim.size != 1]
        warnings = [_conflict('topology.scheduler/gang: "false"', claim) for claim in ignored]
        return Grouping(None, warnings)
    own = _ours(pod, job, request, bool(outside))
    claims = [*([own] if own else []), *outside]
    doubt = "; ".join(unknown)
    if not claims:
        claims = list(_job_rule(pod, job))
    if not claims:
        return Grouping(None, _ignored(unknown, _EVICTS_NOTHING), doubt)
    first, *further = claims
    grouping = Grouping(first, [_conflict(_words(first), other) for other in further if first.contradicts(other)])
    if first is not own:
        grouping.doubt = doubt
    if unknown and first.size == 1:
        grouping.warnings += _ignored(unknown, _EVICTS_NOTHING if grouping.doubt else _FOR_ITSELF)
    return grouping


def names_of(pod: Pod) -> Iterator[tuple[GroupKey, str]]:
    """Yield the PodGroups that a pod names, and the field, label or annotation that names each."""
    if pod.spec.scheduling_group is not None:
        name = pod.spec.scheduling_group.get("podGroupName")
        yield GroupKey(GroupApi.NATIVE, pod.metadata.namespace, str(name or "")), "spec.schedulingGroup.podGroupName"
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    for api, keys in _LABELS.items():
        for key in keys:
            if name := labels.get(key) or annotations.get(key):
                yield GroupKey(api, pod.metadata.namespace, name), key
                break


def watched_names(pod: Pod) -> list[str]:
    """Return what to follow for a pod because it names PodGroups: their ids, and their APIs."""
    if not _names_any(pod):
        return []
    return [text for key, _ in names_of(pod) for text in (key.id, watched_api(key.api))]


def watched_api(api: GroupApi) -> str:
    """Return the key under which pods that name a PodGroup of an API are indexed."""
    return f"api {api}"


def _names_any(pod: Pod) -> bool:
    metadata = pod.metadata
    plain = _KEYS.isdisjoint(metadata.labels) and _KEYS.isdisjoint(metadata.annotations)
    return not plain or pod.spec.scheduling_group is not None


# ---------------------------------------------------------------- rules


def _ours(pod: Pod, job: Job | None, request: PlacementRequest, named_elsewhere: bool) -> GroupClaim | None:
    """Return the claim of this scheduler's annotations; the size may be that of the Job."""
    namespace, controller = pod.metadata.namespace, pod.metadata.controller
    if request.gang_name:
        source, name = f"annotation {GANG_NAME}", request.gang_name
        size = request.gang_size or job_size(job)
        if size is None:
            return GroupClaim(source, problem=f"it names the gang {name} but no gang-size; add {GANG_SIZE}")
        return GroupClaim(source, f"{namespace}/{name}", name, size, named=True)
    if request.gang_size is None:
        return None
    source = f"annotation {GANG_SIZE}"
    if (jobset := pod.metadata.labels.get(JOBSET_NAME)) and request.gang_size_kind not in _BELOW_JOBSET:
        return GroupClaim(source, f"{namespace}/jobsets.jobset.x-k8s.io/{jobset}", jobset, request.gang_size)
    if controller is not None:
        size = min(request.gang_size, left_of(job))
        return GroupClaim(source, controller_id(pod, controller), controller.name, size)
    if named_elsewhere:
        # The source that named a group another way determined to which gang this size applies.
        return None
    if request.gang_size > 1:
        return GroupClaim(
            source, problem=f"it has a gang-size but neither a controller nor a gang-name; add {GANG_NAME}"
        )
    return GroupClaim(source)


def _outside(
    pod: Pod, groups: Groups, since: float, unknown: list[str], bound: Callable[[str], bool]
) -> Iterator[GroupClaim]:
    """Yield the claims of other sources: PodGroups, sizes on the pod, labels of controllers."""
    for key, where in names_of(pod):
        claim = _pod_group(key, where, groups, since)
        sized = key.api is GroupApi.VOLCANO and _value(pod, VOLCANO_MIN_MEMBER)
        if claim is not None:
            yield claim
        elif not sized and (groups.was_served(key.api) or bound(key.id)):
            awaits = (
                f"{where} names {key.described}, which this API server does not serve any more; install its"
                f" CustomResourceDefinition again, or remove {where}"
            )
            yield GroupClaim(key.described, key.id, key.name, None, named=True, awaits=awaits)
        elif not sized:
            unknown.append(
                f"{where} names {key.described}, which this API server does not serve; install its"
                f" CustomResourceDefinition, or remove {where}"
            )
        else:
            yield _sized(pod, where, key.name, VOLCANO_MIN_MEMBER)
    for name_key, size_key in SIZED_ON_PODS:
        if name := _value(pod, name_key):
            if _value(pod, size_key):
                yield _sized(pod, name_key, name, size_key)
            else:
                unknown.append(f"{name_key} names the group {name} but {size_key} is missing; add it")
    labels = pod.metadata.labels
    if (owner := labels.get(LWS_NAME)) and (group := labels.get(LWS_GROUP)) and _value(pod, LWS_SIZE):
        yield _sized(pod, LWS_NAME, f"{owner}-{group}", LWS_SIZE, api="leaderworkersets.leaderworkerset.x-k8s.io")


def _pod_group(key: GroupKey, where: str, groups: Groups, since: float) -> GroupClaim | None:
    """Return the claim of the PodGroup that a pod names; None if its API is not served."""
    native = key.api is GroupApi.NATIVE
    serving = groups.serving(key.api, since)
    if serving is Serving.ABSENT:
        problem = f"{where} names {key.described}, which this API server does not serve; serve it, or name no group"
        return GroupClaim(key.described, problem=problem) if native else None
    if _NAME.fullmatch(key.name) is None:
        problem = (
            f"{where}: {quoted(key.name)} is not the name of a PodGroup; a pod can only join one of its own namespace"
        )
        return GroupClaim(key.described, problem=problem)
    if serving is Serving.UNKNOWN:
        awaits = f"PodGroups of {key.api} are not listed yet"
        return GroupClaim(key.described, key.id, key.name, None, named=True, awaits=awaits)
    group = groups.get(key)
    if group is None:
        return GroupClaim(key.described, key.id, key.name, None, named=True, awaits=f"{key.described} does not exist")
    level = groups.levels.get(group.level_key, "") if group.level_key else ""
    problem = group.problem
    if group.level_key and not level:
        levels = ", ".join(sorted(groups.levels)[:6]) or "none"
        problem = (
            f"{key.described} asks for the topology key {group.level_key}, which is the key of no level of the"
            f" fabric; keys of levels: {levels}"
        )
    gang = group.gang and (group.minimum > 1 or bool(level or group.tiers))
    return GroupClaim(key.described, key.id, key.name, group.minimum, True, gang, group, level, problem=problem)


def _sized(pod: Pod, name_key: str, name: str, size_key: str, api: str = "") -> GroupClaim:
    """Return the claim of a group whose size is written on the pod."""
    text = _value(pod, size_key)
    source = f"{name_key} {name}"
    if re.fullmatch(r"[0-9]{1,6}", text) is None or not 1 <= int(text) <= MAX_GANG_PODS:
        problem = f"{size_key}: {quoted(text)} is not a whole number from 1 to {MAX_GANG_PODS}"
        return GroupClaim(source, problem=problem)
    id_ = f"{pod.metadata.namespace}/{api or name_key.replace('/', '.')}/{name}"
    return GroupClaim(source, id_, name, int(text), named=not api)


def _job_rule(pod: Pod, job: Job | None) -> Iterator[GroupClaim]:
    controller, size = pod.metadata.controller, job_size(job)
    if controller is not None and size is not None:
        yield GroupClaim(f"Job {controller.name}", controller_id(pod, controller), controller.name, size)


def controller_id(pod: Pod, controller: OwnerReference) -> str:
    """Return the id of a pod's controller: a pod can forge any uid, but never another namespace."""
    return f"{pod.metadata.namespace}/{controller.uid}"


def left_of(job: Job | None) -> int:
    """Return the maximum of pods that a Job may still have: none for those that succeeded, or failed for good."""
    if job is None or job.spec.completions is None or not _over(job):
        return MAX_GANG_PODS
    return max(1, job.spec.completions - _over(job))


def _over(job: Job) -> int:
    """Return how many pods of a Job have succeeded, and how many of its indexes have failed for good."""
    return job.status.succeeded + job.status.failed_index_count


def job_size(job: Job | None) -> int | None:
    """Return the gang size of a Job by the Job rule, None if the rule does not apply."""
    if job is None:
        return None
    spec = job.spec
    indexed = spec.completion_mode == "Indexed" and spec.completions == spec.parallelism
    if not indexed and GPU_COUNT not in job.metadata.annotations:
        return None
    if spec.completions is None:
        return max(1, spec.parallelism)
    return max(1, min(spec.parallelism, spec.completions - _over(job)))


# ---------------------------------------------------------------- small parts


def _value(pod: Pod, key: str) -> str:
    return pod.metadata.labels.get(key) or pod.metadata.annotations.get(key, "")


def _ignored(texts: Sequence[str], consequence: str) -> list[tuple[Reason, str]]:
    return [(Reason.GROUP_IGNORED, f"{text}: {consequence}") for text in texts]


def _conflict(words: str, other: GroupClaim) -> tuple[Reason, str]:
    return Reason.GROUP_CONFLICT, f"{words} holds; {_words(other)} says otherwise and is not followed"


def _words(claim: GroupClaim) -> str:
    return claim.said if claim.size is None else f"{claim.said} (size {claim.size})"
