"""Limits of links on a gang: keep the roomiest nodes of each domain, as many as its uplink can serve."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.fit import sort_ascending
from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def keep_roomiest(fit: Int64, order: Int64, offsets: Int64, max_rows: Int64) -> None:
    """Keep in each range the rows that hold most, up to its limit; of equal rows the earlier ones in order.

    Args:
        fit: int64[rows], members that a row holds; set to 0 for rows that are not kept.
        order: int64[n], rows in order.
        offsets: int64[r + 1], ranges of ``order``.
        max_rows: int64[r], the most rows to keep in each range.
    """
    for i in range(offsets.shape[0] - 1):
        low, high = offsets[i], offsets[i + 1]
        usable_rows = np.int64(0)
        for p in range(low, high):
            if fit[order[p]] > 0:
                usable_rows += 1
        if usable_rows <= max_rows[i]:
            continue
        # The fit of the last row to keep, and the number of rows with exactly that fit to keep.
        threshold = np.int64(2**62)
        equal_left = np.int64(0)
        if max_rows[i] > 0:
            values = np.empty(high - low, np.int64)
            for p in range(low, high):
                values[p - low] = fit[order[p]]
            sort_ascending(values)
            threshold = values[high - low - max_rows[i]]
            equal_left = max_rows[i]
            for p in range(high - low):
                if values[p] > threshold:
                    equal_left -= 1
        for p in range(low, high):
            row = order[p]
            if fit[row] == threshold and equal_left > 0:
                equal_left -= 1
            elif fit[row] <= threshold:
                fit[row] = 0
