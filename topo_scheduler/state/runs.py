"""How long earlier runs took, of the same workload and of ones alike: a short record that fades.

A run is what a pod did from its start to its success; of a gang, what the longest of its pods did. The record is in
memory. After a restart it is made again of the pods that succeeded and that the API server still has.
"""

import hashlib
import re
import sys
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf
from typing import Final, NamedTuple

from topo_scheduler.api.annotations import GANG_ID, GANG_SIZE, written_number
from topo_scheduler.api.moments import seconds_of
from topo_scheduler.api.objects import Pod

REMEMBERED: Final = 3
"""Runs of the same workload of which the longest is what the next is expected to take."""
OF_A_CLASS: Final = 20
"""Runs that are remembered of workloads alike."""
LEAST: Final = 3
"""Runs of workloads alike from which on they tell anything."""
SHARE: Final = 0.9
"""Of the runs of workloads alike so many took no longer than what is expected of the next."""
IMAGES_CHARACTERS: Final = 512
"""Characters beyond which the names of images are kept as their hash."""
KEEP: Final = 4096
"""Workloads, and as many classes, that are remembered; the one that ran longest ago goes first."""
_GENERATED: Final = re.compile(r"(?:-(?:[0-9]+|[bcdfghjklmnpqrstvwxz2456789]{5}))+$")
"""Numbers, and the five characters that ``generateName`` adds: Kubernetes chooses them so that they form no words."""


class RunKey(NamedTuple):
    """What a pod is a run of. ``images`` of its containers, in order of the alphabet; empty where none is told."""

    namespace: str
    kind: str
    name: str
    images: str = ""


class Likeness(NamedTuple):
    """Pods that are expected to run about as long. ``members`` of the gang, 1 for a pod alone."""

    namespace: str
    images: str
    members: int
    gpus: int


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """A run that succeeded: ``of`` what tells it from others, ``at`` when it ended and how many ``seconds`` it took."""

    of: str
    at: float
    seconds: float


def run_of(pod: Pod) -> RunKey:
    """Return what a pod is a run of: its controller, else itself, by the name without what was generated of it.

    So are the Jobs of one CronJob, and pods that are submitted again under ``name-1``, ``name-2``.
    """
    meta = pod.metadata
    controller = meta.controller
    kind, name = (controller.kind, controller.name) if controller else ("Pod", meta.name)
    images = ",".join(sorted({one.image for one in pod.spec.containers if one.image}))
    if len(images) > IMAGES_CHARACTERS:
        images = hashlib.sha256(images.encode()).hexdigest()
    return RunKey(meta.namespace, kind, _chosen(name), sys.intern(images))


@lru_cache(maxsize=4096)
def _chosen(name: str) -> str:
    """Return a name without what was generated of it."""
    return _GENERATED.sub("", name) or name


def likeness_of(run: RunKey, members: int, gpus: int) -> Likeness | None:
    """Return which pods a pod is like; None where it is not known how large its gang is (0), or what it runs."""
    return Likeness(run.namespace, run.images, members, gpus) if members and run.images else None


def told_size(pod: Pod) -> int:
    """Return the size of a pod's gang by what stands on it alone, 1 for a pod of no gang, 0 where it is not told."""
    annotations = pod.metadata.annotations
    if GANG_ID not in annotations:
        return 1
    return written_number(annotations, GANG_SIZE) or 0


def ended_of(pod: Pod, seen: float | None) -> CompletedRun | None:
    """Return the run that a pod was; None where it did not succeed, or it is not told how long it took.

    Args:
        pod: the pod.
        seen: when it was seen to end, in seconds since the epoch; None where it had ended before it was seen first.
    """
    began = seconds_of(pod.status.start_time)
    if pod.status.phase != "Succeeded" or began is None:
        return None
    told = [
        ended
        for one in pod.status.container_statuses
        if one.state is not None and one.state.terminated is not None
        if (ended := seconds_of(one.state.terminated.finished_at)) is not None
    ]
    at = max(told, default=seen)
    if at is None:
        return None
    seconds = at - began
    return (
        CompletedRun(pod.metadata.annotations.get(GANG_ID) or pod.metadata.uid, at, seconds) if seconds >= 0 else None
    )


class Runs:
    """Seconds of the last runs that succeeded.

    Source of the idea that the last few runs tell more than the average of all: Tsafrir, Etsion, Feitelson, Backfilling
    using system-generated predictions, TPDS 18(6), 2007. They take the mean of two; here the longest of three counts,
    as to promise too early costs more. Of workloads that are only alike a high quantile of more runs does: one that
    ran for very long among twenty does not tell what the next will take.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[Hashable, tuple[CompletedRun, ...]] = OrderedDict()
        self._alike: OrderedDict[Hashable, tuple[CompletedRun, ...]] = OrderedDict()
        self.changes = 0
        self._usual: dict[tuple[Likeness, float], float] = {}
        """What was worked out since the last run that is new."""

    def __len__(self) -> int:
        return len(self._runs)

    def note(self, run: RunKey, ended: CompletedRun, likeness: Likeness | None = None) -> None:
        """Remember a run. One that is known already counts once, with the longer of the times that are told."""
        known = _remember(self._runs, run[:3], ended, REMEMBERED)
        if likeness is not None:
            known |= _remember(self._alike, likeness, ended, OF_A_CLASS)
        if known:
            self.changes += 1
            self._usual.clear()

    def longest(self, run: RunKey) -> float:
        """Return how long the next run of a workload is expected to take; infinite where nothing is known."""
        return max((one.seconds for one in self._runs.get(run[:3], ())), default=inf)

    def usual(self, likeness: Likeness | None, share: float = SHARE) -> float:
        """Return what so many of the runs of workloads alike took at most; infinite where too few are known."""
        if likeness is None:
            return inf
        found = self._usual.get((likeness, share))
        if found is None:
            known = sorted(one.seconds for one in self._alike.get(likeness, ()))
            found = known[ceil(share * len(known)) - 1] if len(known) >= LEAST else inf
            if len(self._usual) > KEEP:
                self._usual.clear()
            self._usual[likeness, share] = found
        return found


def _overlap(one: CompletedRun, other: CompletedRun) -> bool:
    """Whether two runs were at the same time: pods of one gang, and not a gang that was submitted again."""
    return one.at - one.seconds <= other.at and other.at - other.seconds <= one.at


def _remember(
    where: OrderedDict[Hashable, tuple[CompletedRun, ...]], key: Hashable, ended: CompletedRun, most: int
) -> bool:
    """Put a run into a record; return whether that says anything else now."""
    before = where.get(key, ())
    same = next((one for one in before if one.of == ended.of and _overlap(one, ended)), None)
    if same is not None:
        ended = CompletedRun(ended.of, max(same.at, ended.at), max(same.seconds, ended.seconds))
    others = [one for one in before if one is not same]
    after = tuple(sorted([*others, ended], key=lambda one: (one.at, one.of))[-most:])
    if after == before:
        return False
    where[key] = after
    where.move_to_end(key)
    if len(where) > KEEP:
        where.popitem(last=False)
    return True
