"""Scores of plugins, added to those of windows."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel
from topo_scheduler.kernels.windows import better, choose_leaves

Int64 = npt.NDArray[np.int64]


@kernel(
    "int64(int64[::1], int64[::1], int64, int64[::1], int64, int64, int64[:,::1], int64[::1], int64, int64[:,::1],"
    " int64[:,::1])"
)
def weigh_added(
    first: Int64,
    last: Int64,
    count: int,
    leaf_fit: Int64,
    leaves: int,
    members: int,
    added: Int64,
    weights: Int64,
    latency: int,
    parts: Int64,
    out_added: Int64,
) -> int:
    """Add parts of plugins to scored windows and return the best one, in the order of `score_windows`.

    Args:
        first: int64[count], first leaf of each window.
        last: int64[count], last leaf of each window.
        count: how many windows.
        leaf_fit: int64[leaves].
        leaves: how many leaves a window may use.
        members: how many to place.
        added: int64[p, leaves], a part in thousandths of each leaf; a window has the mean of the leaves it uses.
        weights: int64[4 + p], in thousandths: the four parts of `score_windows`, then these.
        latency: 1 when link load comes before the score.
        parts: int64[count, 6], as `score_windows` wrote it; the score is written anew.
        out_added: int64[count, p], the parts of each window.

    Returns:
        Index of the best window.
    """
    chosen = np.zeros(leaves + 2, np.int64)
    weight = max(weights.sum(), np.int64(1))
    best = 0
    for w in range(count):
        used = choose_leaves(leaf_fit, first[w], last[w], leaves, members, chosen)
        score = np.int64(0)
        for part in range(4):
            score += weights[part] * parts[w, part]
        for part in range(added.shape[0]):
            total = np.int64(0)
            for i in range(used):
                total += added[part, chosen[i]]
            out_added[w, part] = total // used
            score += weights[4 + part] * out_added[w, part]
        parts[w, 4] = score // weight
        if w > 0 and better(parts, w, best, latency):
            best = w
    return best
