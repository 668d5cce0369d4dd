"""The built-in score for pods placed alone: where they strand the fewest GPUs for typical pods.

The kernel is imported when the first pod is scored: who only filters need not wait until it is compiled.
"""

from functools import cache
from types import ModuleType
from typing import Final

import numpy as np

from topo_scheduler.api.small_pods import FGD, FRAGMENTATION
from topo_scheduler.scheduling.extensions.extension import WHOLE, Nodes, Request, Score
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.resources import CPU, GPU
from topo_scheduler.state.typical import THRESHOLDS, Typical

HUNDREDTHS: Final = WHOLE // 100
"""The published score is in hundredths."""


@cache
def kernels() -> ModuleType:
    """Return the module of kernels."""
    from topo_scheduler.kernels import fragmentation as module

    return module


def scored(nodes: Nodes, cls: PodClass, typical: Typical, rows: Int64) -> Int64:
    """Return for each row the score in hundredths, and which GPU a share takes there (int64[n, 2])."""
    out = np.empty((len(rows), 2), np.int64)
    kernels().fragmentation(
        nodes.allocatable,
        nodes.requested,
        CPU,
        GPU,
        nodes.gpu_free,
        nodes.gpu_sharing,
        nodes.model,
        rows,
        cls.amount(CPU),
        cls.gpus,
        cls.share,
        typical.pods,
        typical.access,
        THRESHOLDS,
        out,
    )
    return out


def fragmentation(nodes: Nodes, request: Request, rows: Int64) -> Int64:
    """Return how little the pod strands on each row (int64[n]): 500 where that changes nothing, more where less is."""
    assert request.typical is not None
    return scored(nodes, request.cls, request.typical, rows)[:, 0] * HUNDREDTHS


ALONE: Final = (Score(FRAGMENTATION, nodes=fragmentation), Score(FGD, nodes=fragmentation))
"""Scores for pods placed alone."""
