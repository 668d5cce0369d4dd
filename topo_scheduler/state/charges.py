"""What many pods hold, as arrays."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from topo_scheduler.state.resources import Amounts

Int64 = npt.NDArray[np.int64]


def charges_of(held: Iterable[tuple[int, Amounts]]) -> tuple[Int64, Int64, Int64]:
    """Return row, column and amount of each resource that pods hold (int64[n] each), pod by pod."""
    kinds: dict[Amounts, int] = {}
    rows, of = [], []
    for row, amounts in held:
        rows.append(row)
        of.append(kinds.setdefault(amounts, len(kinds)))
    kind = np.array(of, np.int64)
    flat = np.array([one for amounts in kinds for one in amounts], np.int64).reshape(-1, 2)
    sizes = np.array([len(amounts) for amounts in kinds], np.int64)
    # Each pod's range of the result, and where what it holds begins among that of all kinds.
    size, begin = sizes[kind], (np.cumsum(sizes) - sizes)[kind]
    at = np.arange(int(size.sum()), dtype=np.int64) + np.repeat(begin - (np.cumsum(size) - size), size)
    return np.repeat(np.array(rows, np.int64), size), flat[at, 0], flat[at, 1]
