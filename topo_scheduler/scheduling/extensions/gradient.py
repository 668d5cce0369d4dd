"""The built-in scores for single pods: our own, which leaves most room for typical pods, and FGD for comparison.

The first scored pod imports the kernels: a process that only filters need not wait until they are compiled.
"""

from functools import cache
from types import ModuleType
from typing import Final

import numpy as np

from topo_scheduler.api.small_pods import FGD, FRAGMENTATION
from topo_scheduler.scheduling.extensions.extension import WHOLE, Nodes, Request, Score
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import CPU, GPU
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.statistics.typical_pods import THRESHOLDS, ShareWorth, Typical

HUNDREDTHS: Final = WHOLE // 100
"""Converts the published score, which is in hundredths, to thousandths."""
_NO_SHARES: Final = ShareWorth.nothing()


@cache
def kernels() -> ModuleType:
    """Return the module of kernels for single pods."""
    from topo_scheduler.kernels import small_pods

    return small_pods


def scored(name: str, nodes: Nodes, cls: PodClass, typical: Typical, rows: Int64) -> Int64:
    """Return for each row the score in hundredths, and which GPU a share takes there (int64[n, 2])."""
    out = np.empty((len(rows), 2), np.int64)
    of_node = (nodes.allocatable, nodes.requested, CPU, GPU, nodes.gpu_free, nodes.gpu_sharing, nodes.model, rows)
    of_pod = (cls.amount(CPU), cls.gpus, cls.share, typical.pods, typical.access)
    shares = _NO_SHARES if name == FGD else typical.shares
    kernels().small_pod_scores(*of_node, *of_pod, shares.left, shares.price, name == FGD, THRESHOLDS, out)
    return out


def fragmentation(nodes: Nodes, request: Request, rows: Int64) -> Int64:
    """Return how little the pod leaves unusable on each row (int64[n]): 500 if it makes no difference."""
    assert request.typical is not None
    return scored(FRAGMENTATION, nodes, request.cls, request.typical, rows)[:, 0] * HUNDREDTHS


def fgd(nodes: Nodes, request: Request, rows: Int64) -> Int64:
    """Return how little the pod strands on each row (int64[n]), as FGD published it."""
    assert request.typical is not None
    return scored(FGD, nodes, request.cls, request.typical, rows)[:, 0] * HUNDREDTHS


ALONE: Final = (Score(FRAGMENTATION, nodes=fragmentation), Score(FGD, nodes=fgd))
"""Scores for single pods."""
