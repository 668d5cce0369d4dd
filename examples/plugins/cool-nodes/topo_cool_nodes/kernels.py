"""Compiled once, when the plugin is loaded: an explicit signature leaves nothing to be compiled during a decision."""

import numba
import numpy as np
import numpy.typing as npt


# nogil: a kernel that holds the interpreter lock stops the whole scheduler while it runs.
@numba.njit("boolean[::1](int64[::1], int64)", nogil=True)  # type: ignore[untyped-decorator]
def cool_enough(celsius: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.bool_]:
    """Return for each temperature whether it is within the limit; -1 is unknown and passes."""
    accepted = np.empty(celsius.shape[0], np.bool_)
    for i in range(celsius.shape[0]):
        accepted[i] = celsius[i] <= limit
    return accepted
