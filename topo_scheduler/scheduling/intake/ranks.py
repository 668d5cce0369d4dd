"""Ranks: the number of a member within its workload, from the numbers that controllers assign.

A controller numbers the pods that it creates. Several controllers may create one gang: a launcher and workers, or the
Jobs of a JobSet. Such a gang has several sequences of numbers, called series here. Its ranks then run through one
series after the other.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from topo_scheduler.api.groups import (
    GROVE_CLIQUE,
    GROVE_INDEX,
    JOB_INDEX,
    JOBSET_JOB_INDEX,
    KUBEFLOW_INDEX,
    KUBEFLOW_ROLE,
    KUBEFLOW_TYPE,
    LEADERS,
    LWS_WORKER,
    POD_INDEX,
    SERVERS,
    VOLCANO_INDEX,
    VOLCANO_TASK,
)
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.pods.workloads import NO_SERIES, Member, Stage, Workload

Series = tuple[int, str]
_KEYS: Final = frozenset((LWS_WORKER, KUBEFLOW_INDEX, KUBEFLOW_ROLE, VOLCANO_INDEX, GROVE_INDEX, JOB_INDEX, POD_INDEX))


def place_in_series(pod: Pod) -> tuple[Series, int | None]:
    """Return the series of a pod and its number there, None if its controller assigned none."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if _KEYS.isdisjoint(labels) and _KEYS.isdisjoint(annotations):
        return NO_SERIES, None

    def number(key: str) -> int | None:
        value = labels.get(key) or annotations.get(key, "")
        return int(value) if value.isdecimal() and value.isascii() and len(value) < 10 else None

    def text(key: str) -> str:
        return labels.get(key) or annotations.get(key, "")

    by_controller = series_of_controller(pod)
    # Pods of a LeaderWorkerSet also have the index of their StatefulSet, which is that of the group.
    if (index := number(LWS_WORKER)) is not None:
        return (0, ""), index
    if (index := number(KUBEFLOW_INDEX)) is not None:
        return _role(text(KUBEFLOW_TYPE)), index
    if (index := number(VOLCANO_INDEX)) is not None:
        return _role(text(VOLCANO_TASK)), index
    if (index := number(GROVE_INDEX)) is not None:
        return (0, text(GROVE_CLIQUE)), index
    if (index := number(JOB_INDEX)) is not None:
        job = number(JOBSET_JOB_INDEX)
        return (by_controller if job is None else (job, "")), index
    if (index := number(POD_INDEX)) is not None:
        return by_controller, index
    if text(KUBEFLOW_ROLE) in LEADERS:
        return _role(text(KUBEFLOW_ROLE)), 0
    return NO_SERIES, None


def series_of_controller(pod: Pod) -> Series:
    """Return the series of the pods of one controller."""
    controller = pod.metadata.controller
    return 0, controller.name if controller else ""


def _role(name: str) -> Series:
    """Return the series of a role: leaders come first, then parameter servers, then all others."""
    lower = name.lower()
    return (0 if lower in LEADERS else 1 if lower in SERVERS else 2), lower


def give_ranks(workload: Workload, placed: Iterable[tuple[Member, int]]) -> Mapping[str, int]:
    """Return the rank of each member that is placed now, by uid.

    A member keeps the number that its controller assigned, unless two members of the workload share a number. Otherwise
    it gets the lowest free rank. If members share numbers, ranks follow series and number. A member without a number
    gets its rank in order along the network.

    Args:
        workload: the workload of the members.
        placed: members in order, each with the position of its node in the fabric.
    """
    members = list(placed)
    if len(workload.members) == 1:
        return {member.uid: member.index or 0 for member, _ in members}
    seated = {m.rank for m in workload.members.values() if m.stage is not Stage.PENDING}
    if len(members) == 1 and (only := members[0][0]).index is not None and not _shared(workload):
        return {only.uid: only.index}
    if _shared(workload):
        free = _free(seated)
        return {member.uid: next(free) for member, _ in members}
    numbered = {member.uid: member.index for member, _ in members if member.index is not None}
    taken = {m.index for m in workload.members.values() if m.stage is Stage.PENDING and m.index is not None}
    free = _free(seated | taken)
    unranked = [(position, number, member.uid) for number, (member, position) in enumerate(members)]
    unranked.sort()
    return {uid: numbered[uid] if uid in numbered else next(free) for _, _, uid in unranked}


def _free(taken: set[int]) -> Iterator[int]:
    rank = 0
    while True:
        if rank not in taken:
            yield rank
        rank += 1


def _shared(workload: Workload) -> bool:
    """Return whether members of different series have the same number."""
    first: dict[int, Series] = {}
    return any(
        member.index is not None and first.setdefault(member.index, member.series) != member.series
        for member in workload.members.values()
    )
