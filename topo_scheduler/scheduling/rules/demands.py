"""Demands of pods that may be the reason why a workload has no placement: selectors, taints, GPU models, bandwidth."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import (
    GPU_ARCHITECTURE,
    GPU_LOCALITY,
    GPU_MEMORY,
    GPU_MIN_BANDWIDTH,
    MIG_PROFILE,
)
from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.api.objects import Taint, Toleration
from topo_scheduler.api.selectors import NodeAffinity
from topo_scheduler.scheduling.rules.filters import tolerated
from topo_scheduler.state.nodes.node_table import AWAY, NodeTable
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.workloads import Member, Workload

MAX_TAINTS: Final = 8
"""The most taints to examine, those of most nodes first."""


GPU_DEMANDS: Final = {
    "memory_bytes": GPU_MEMORY,
    "architectures": GPU_ARCHITECTURE,
    "mig_profile": MIG_PROFILE,
    "locality": GPU_LOCALITY,
    "bandwidth": GPU_MIN_BANDWIDTH,
}
"""Annotations for what a pod asks of GPUs, by field of `GpuNeeds`."""


@dataclass(frozen=True, slots=True)
class DroppableDemand:
    """One demand. ``drop`` returns a class without it. ``mixes``: without it, a gang may use several GPU models."""

    name: str
    value: str
    drop: Callable[[PodClass], PodClass]
    mixes: bool = False


def demands_of(nodes: NodeTable, workload: Workload, members: Sequence[Member]) -> Iterator[DroppableDemand]:
    """Yield each demand of pending members on nodes."""
    classes = list(dict.fromkeys(member.cls for member in members))
    for pair in sorted({pair for cls in classes for pair in cls.selector}):
        yield DroppableDemand("nodeSelector", f"{pair[0]}={pair[1]}", partial(_unselected, pair))
    if any(cls.affinity is not None and cls.affinity.required is not None for cls in classes):
        yield DroppableDemand("required node affinity", "", _unbound)
    for taint in _taints(nodes, classes):
        yield DroppableDemand("taint", _written(taint), partial(_tolerating, taint))
    models = sorted({model for cls in classes for model in cls.models})
    if models:
        yield DroppableDemand("topology.scheduler/gpu-model", ",".join(models), lambda cls: replace(cls, models=()))
    if workload.gang and not workload.request.gpu_model_mixed and len(nodes.models) > 1:
        yield DroppableDemand("topology.scheduler/gpu-model-mixed", "true", lambda cls: cls, mixes=True)
    yield from _of_gpus(classes)
    if any(cls.bandwidth for cls in classes):
        yield DroppableDemand("topology.scheduler/network-bandwidth", "", lambda cls: replace(cls, bandwidth=0))


def _of_gpus(classes: Sequence[PodClass]) -> Iterator[DroppableDemand]:
    """Yield what the classes require of the GPUs of a node."""
    needs = [cls.gpu_needs for cls in classes if cls.gpu_needs is not None and cls.gpu_needs.required]
    for field, annotation in GPU_DEMANDS.items():
        asked = [value for need in needs if (value := getattr(need, field)) != getattr(GpuNeeds(), field)]
        if asked:
            value = str(asked[0]) if field in ("locality", "mig_profile") else ""
            if field == "architectures":
                value = ",".join(sorted({name for names in asked for name in names}))
            yield DroppableDemand(annotation, value, partial(_less_of_gpus, field))


def _less_of_gpus(field: str, cls: PodClass) -> PodClass:
    needs = cls.gpu_needs
    if needs is None or not needs.required:
        return cls
    less = replace(needs, **{field: getattr(GpuNeeds(), field)})
    return replace(cls, gpu_needs=None if less == GpuNeeds() else less)


def _unselected(pair: tuple[str, str], cls: PodClass) -> PodClass:
    return replace(cls, selector=tuple(item for item in cls.selector if item != pair))


def _unbound(cls: PodClass) -> PodClass:
    return cls if cls.affinity is None else replace(cls, affinity=NodeAffinity(preferred=cls.affinity.preferred))


def _tolerating(taint: Taint, cls: PodClass) -> PodClass:
    return replace(cls, tolerations=cls.tolerations | {Toleration(taint.key, "Equal", taint.value, taint.effect)})


def _taints(nodes: NodeTable, classes: Sequence[PodClass]) -> list[Taint]:
    """Return the taints that exclude any member from any node, those of most nodes first."""
    counts: Counter[Taint] = Counter()
    set_ids, node_counts = np.unique(nodes.taint_set[nodes.exists], return_counts=True)
    for set_id, count in zip(set_ids.tolist(), node_counts.tolist(), strict=True):
        for taint in nodes.taint_sets[set_id]:
            if taint.effect in ("NoSchedule", "NoExecute") and taint.key not in AWAY:
                counts[taint] += count
    not_tolerated = [taint for taint in counts if any(not tolerated(taint, cls.tolerations) for cls in classes)]
    return sorted(not_tolerated, key=lambda taint: (-counts[taint], _written(taint)))[:MAX_TAINTS]


def _written(taint: Taint) -> str:
    """Return a taint in the format of ``kubectl taint``."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
