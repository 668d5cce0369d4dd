"""Resources that many pods hold, as arrays."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from topo_scheduler.state.nodes.resources import Amounts

Int64 = npt.NDArray[np.int64]


def charges_of(charges: Iterable[tuple[int, Amounts]]) -> tuple[Int64, Int64, Int64]:
    """Return row, column and amount of each resource that pods hold (int64[n] each), in order of pods."""
    kinds: dict[Amounts, int] = {}
    rows, kind_of_pod = [], []
    for row, amounts in charges:
        rows.append(row)
        kind_of_pod.append(kinds.setdefault(amounts, len(kinds)))
    kinds_of_pods = np.array(kind_of_pod, np.int64)
    pairs = np.array([pair for amounts in kinds for pair in amounts], np.int64).reshape(-1, 2)
    sizes = np.array([len(amounts) for amounts in kinds], np.int64)
    # Each pod's number of entries in the result, and the start of its amounts in ``pairs``.
    sizes_of_pods, starts = sizes[kinds_of_pods], (np.cumsum(sizes) - sizes)[kinds_of_pods]
    index = np.arange(int(sizes_of_pods.sum()), dtype=np.int64) + np.repeat(
        starts - (np.cumsum(sizes_of_pods) - sizes_of_pods), sizes_of_pods
    )
    return np.repeat(np.array(rows, np.int64), sizes_of_pods), pairs[index, 0], pairs[index, 1]
