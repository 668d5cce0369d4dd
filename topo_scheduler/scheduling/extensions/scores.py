"""The parts of the built-in score that have a value per leaf.

The other two parts (availability and utilisation) belong to a whole window of leaves. The kernel that weighs all parts,
`kernels.windows.score_sets`, computes them itself.
"""

from collections.abc import Sequence
from typing import Final

from topo_scheduler.scheduling.extensions.extension import Leaves, Request, Score
from topo_scheduler.state.nodes.node_table import Int64


def alignment(leaves: Leaves, request: Request) -> Int64:
    """Return the alignment of each leaf: 0 if it is unlabelled or outside of the preferred domain."""
    aligned = request.aligned * leaves.aligned
    if request.preferred is not None:
        low, high = request.preferred
        aligned[:low] = 0
        aligned[high:] = 0
    return aligned


def history(leaves: Leaves, _: Request) -> Int64:
    """Return the recent success of placements in each leaf."""
    return leaves.record


SCORES: Final[Sequence[Score]] = (
    Score("topologyAlignment", leaves=alignment),
    Score("historicalPerformance", leaves=history),
)
"""Their weights are those of ``scoringWeights``."""
