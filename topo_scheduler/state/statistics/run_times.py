"""Durations of earlier runs of the same workload and of similar workloads: a short record of the latest runs.

A run lasts from the start of a pod to its success; for a gang, the longest run of its pods counts. The record is in
memory. After a restart the scheduler rebuilds it from the succeeded pods that the API server still has.
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
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.timestamps import seconds_of

RUNS_PER_WORKLOAD: Final = 3
"""Runs of the same workload that are kept; the expected duration of the next run is the longest of them."""
RUNS_PER_CLASS: Final = 20
"""Runs of similar workloads that are kept."""
MIN_RUNS: Final = 3
"""Minimum number of runs of similar workloads for an estimate."""
DURATION_QUANTILE: Final = 0.9
"""Quantile of the runs of similar workloads that gives the expected duration of the next run."""
IMAGES_CHARACTERS: Final = 512
"""Characters beyond which image names are replaced by their hash."""
MAX_WORKLOADS: Final = 4096
"""Workloads, and as many classes, that are kept.

Beyond that, the namespace with the most loses the one with its oldest last run: no tenant takes the place of others.
"""
_GENERATED: Final = re.compile(r"[0-9]+|[bcdfghjklmnpqrstvwxz2456789]{5}")
"""Numbers, and the five characters that ``generateName`` appends: Kubernetes picks them so that they form no words."""


class RunKey(NamedTuple):
    """Identity of a recurring job. ``images`` of its containers are sorted; empty without any."""

    namespace: str
    kind: str
    name: str
    images: str = ""


class Likeness(NamedTuple):
    """Pods with similar expected run times. ``members`` of the gang, 1 for a single pod."""

    namespace: str
    images: str
    members: int
    gpus: int


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """A successful run of the gang or pod ``identity``; ``ended_at`` in seconds since the epoch, and its duration."""

    identity: str
    ended_at: float
    seconds: float


def run_of(pod: Pod) -> RunKey:
    """Return the key of a pod's recurring job: its controller, else the pod, by name without generated parts.

    So the Jobs of one CronJob have one key, and so have pods resubmitted as ``name-1``, ``name-2``.
    """
    meta = pod.metadata
    controller = meta.controller
    kind, name = (controller.kind, controller.name) if controller else ("Pod", meta.name)
    images = ",".join(sorted({container.image for container in pod.spec.containers if container.image}))
    if len(images) > IMAGES_CHARACTERS:
        images = hashlib.sha256(images.encode()).hexdigest()
    return RunKey(meta.namespace, kind, _chosen(name), sys.intern(images))


@lru_cache(maxsize=4096)
def _chosen(name: str) -> str:
    """Return a name without its generated parts.

    Part by part: five digits are generated in two ways, and one expression for all parts would try all combinations.
    """
    parts = name.split("-")
    while len(parts) > 1 and _GENERATED.fullmatch(parts[-1]):
        parts.pop()
    return "-".join(parts) or name


def likeness_of(run: RunKey, members: int, gpus: int) -> Likeness | None:
    """Return the class of pods similar to a pod; None if the size of its gang is unknown (0) or its images are."""
    return Likeness(run.namespace, run.images, members, gpus) if members and run.images else None


def recorded_size(pod: Pod) -> int:
    """Return the size of a pod's gang by the pod's own annotations, 1 for a pod without a gang, 0 if unknown."""
    annotations = pod.metadata.annotations
    if GANG_ID not in annotations:
        return 1
    return written_number(annotations, GANG_SIZE) or 0


def finished_at(pod: Pod) -> float | None:
    """Return when the last container of a pod ended, in seconds since the epoch; None if that is unknown."""
    finish_times = (
        finished
        for status in pod.status.container_statuses
        if status.state is not None and status.state.terminated is not None
        if (finished := seconds_of(status.state.terminated.finished_at)) is not None
    )
    return max(finish_times, default=None)


def ended_of(pod: Pod, seen: float | None) -> CompletedRun | None:
    """Return the completed run of a pod; None if it did not succeed or its duration is unknown.

    Args:
        pod: the pod.
        seen: time at which the scheduler saw it end, in seconds since the epoch; None if it was first seen ended.
    """
    start_time = seconds_of(pod.status.start_time)
    if pod.status.phase != "Succeeded" or start_time is None:
        return None
    end_time = finished_at(pod)
    if end_time is None:
        end_time = seen
    if end_time is None or end_time < start_time:
        return None
    identity = pod.metadata.annotations.get(GANG_ID) or pod.metadata.uid
    return CompletedRun(identity, end_time, end_time - start_time)


class _KnownRun:
    """The last runs of workloads, or of classes, by namespace; ``limit`` runs of each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._of_namespace: dict[str, OrderedDict[Hashable, tuple[CompletedRun, ...]]] = {}

    def __len__(self) -> int:
        return self._count

    def get(self, namespace: str, key: Hashable) -> tuple[CompletedRun, ...]:
        """Return the runs of a workload or class; empty without any."""
        records = self._of_namespace.get(namespace)
        return records.get(key, ()) if records is not None else ()

    def add(self, namespace: str, key: Hashable, ended: CompletedRun) -> bool:
        """Add a run; return whether the record changed."""
        previous = self.get(namespace, key)
        same = next((run for run in previous if run.identity == ended.identity and _overlap(run, ended)), None)
        if same is not None:
            ended = CompletedRun(ended.identity, max(same.ended_at, ended.ended_at), max(same.seconds, ended.seconds))
        kept = [earlier for earlier in previous if earlier is not same]
        updated = tuple(sorted([*kept, ended], key=lambda run: (run.ended_at, run.identity))[-self._limit :])
        if updated == previous:
            return False
        records = self._of_namespace.setdefault(namespace, OrderedDict())
        records[key] = updated
        records.move_to_end(key)
        self._count += not previous
        if self._count > MAX_WORKLOADS:
            self._drop_oldest(namespace)
        return True

    def _drop_oldest(self, added: str) -> None:
        """Drop the oldest entry of the namespace with the most; of ``added`` if it has as many as any other."""
        largest = max(self._of_namespace, key=lambda name: (len(self._of_namespace[name]), name == added))
        records = self._of_namespace[largest]
        records.popitem(last=False)
        self._count -= 1
        if not records:
            del self._of_namespace[largest]


class Runs:
    """Durations of the last successful runs in seconds.

    The last few runs predict better than the average of all: Tsafrir, Etsion, Feitelson, Backfilling using
    system-generated predictions, TPDS 18(6), 2007. They take the mean of two. Here the longest of three counts, as too
    short an estimate costs more. For similar workloads a high quantile of more runs counts: one very long run among
    twenty does not predict the next.
    """

    def __init__(self) -> None:
        self._runs = _KnownRun(RUNS_PER_WORKLOAD)
        self._alike = _KnownRun(RUNS_PER_CLASS)
        self.changes = 0
        self._of_similar: dict[tuple[Likeness, float], float] = {}
        """Estimates computed since the last new run."""

    def __len__(self) -> int:
        return len(self._runs)

    def note(self, run: RunKey, ended: CompletedRun, likeness: Likeness | None = None) -> None:
        """Record a run. A known run counts once, with the longer of its reported durations."""
        changed = self._runs.add(run.namespace, run[:3], ended)
        if likeness is not None:
            changed |= self._alike.add(likeness.namespace, likeness, ended)
        if changed:
            self.changes += 1
            self._of_similar.clear()

    def longest(self, run: RunKey) -> float:
        """Return the expected duration of a workload's next run in seconds; infinite if unknown."""
        return max((completed.seconds for completed in self._runs.get(run.namespace, run[:3])), default=inf)

    def of_similar(self, likeness: Likeness | None, share: float = DURATION_QUANTILE) -> float:
        """Return the quantile ``share`` of the durations of similar workloads in seconds; infinite if too few ran."""
        if likeness is None:
            return inf
        seconds = self._of_similar.get((likeness, share))
        if seconds is None:
            durations = sorted(completed.seconds for completed in self._alike.get(likeness.namespace, likeness))
            seconds = durations[ceil(share * len(durations)) - 1] if len(durations) >= MIN_RUNS else inf
            if len(self._of_similar) > MAX_WORKLOADS:
                self._of_similar.clear()
            self._of_similar[likeness, share] = seconds
        return seconds


def _overlap(run: CompletedRun, other: CompletedRun) -> bool:
    """Whether two runs overlap in time: pods of one gang, and not a resubmitted gang."""
    return run.ended_at - run.seconds <= other.ended_at and other.ended_at - other.seconds <= run.ended_at
