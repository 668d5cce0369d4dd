"""Keeping a gang within what links carry: the roomiest nodes of each domain, as many as its uplink can serve."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.fit import sort_ascending
from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def keep_roomiest(fit: Int64, order: Int64, offsets: Int64, most: Int64) -> None:
    """Leave in each range the rows that hold most, as many as it may have; on a tie the earlier in order.

    Args:
        fit: int64[rows], members a row holds; set to 0 where a row is not kept.
        order: int64[n], rows in order.
        offsets: int64[r + 1], ranges of ``order``.
        most: int64[r], rows that may be kept in each.
    """
    for i in range(offsets.shape[0] - 1):
        low, high = offsets[i], offsets[i + 1]
        used = np.int64(0)
        for p in range(low, high):
            if fit[order[p]] > 0:
                used += 1
        if used <= most[i]:
            continue
        # The fit of the last row that is kept, and how many rows of just that fit are.
        limit = np.int64(2**62)
        alike = np.int64(0)
        if most[i] > 0:
            values = np.empty(high - low, np.int64)
            for p in range(low, high):
                values[p - low] = fit[order[p]]
            sort_ascending(values)
            limit = values[high - low - most[i]]
            alike = most[i]
            for p in range(high - low):
                if values[p] > limit:
                    alike -= 1
        for p in range(low, high):
            row = order[p]
            if fit[row] == limit and alike > 0:
                alike -= 1
            elif fit[row] <= limit:
                fit[row] = 0
