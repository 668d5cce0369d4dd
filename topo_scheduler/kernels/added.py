"""Addition of the scores of plugins to the scores of sets of leaves."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel
from topo_scheduler.kernels.windows import better

Int64 = npt.NDArray[np.int64]


@kernel("int64(int64[:,::1], int64[::1], int64, int64[:,::1], int64[::1], int64, int64[:,::1], int64[:,::1])")
def weigh_added(
    sets: Int64,
    sizes: Int64,
    count: int,
    added: Int64,
    weights: Int64,
    latency: int,
    parts: Int64,
    out_added: Int64,
) -> int:
    """Add parts of plugins to scored sets of leaves and return the best one, in the order of `score_sets`.

    Args:
        sets: int64[>= count, k], the leaves of each set ascending.
        sizes: int64[>= count], number of leaves in each set, at least 1.
        count: number of sets.
        added: int64[p, leaves], parts of each leaf in thousandths; a set gets the mean of its leaves.
        weights: int64[4 + p], in thousandths: the four parts of `score_sets`, then those of plugins.
        latency: 1 when link load comes before the score.
        parts: int64[>= count, 6], as `score_sets` wrote it; the score is overwritten.
        out_added: int64[>= count, p], the parts of each set.

    Returns:
        Index of the best set.
    """
    weight = max(weights.sum(), np.int64(1))
    best = 0
    for w in range(count):
        score = np.int64(0)
        for part in range(4):
            score += weights[part] * parts[w, part]
        for part in range(added.shape[0]):
            total = np.int64(0)
            for i in range(sizes[w]):
                total += added[part, sets[w, i]]
            out_added[w, part] = total // sizes[w]
            score += weights[4 + part] * out_added[w, part]
        parts[w, 4] = score // weight
        if w > 0 and better(parts, w, best, latency):
            best = w
    return best
