"""Small arrays for kernels, and strategies that draw them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def ints(values: Sequence[int]) -> Int64:
    return np.array(values, np.int64)


def grid(values: Sequence[Sequence[int]], columns: int) -> Int64:
    return np.array(values, np.int64).reshape(len(values), columns)


def offsets(sizes: Sequence[int]) -> Int64:
    """Return the boundaries of ranges of these sizes, from 0."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(ints(sizes), dtype=np.int64)))


small = st.integers(0, 6)
fits = st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 4, 8]), max_size=9)


@st.composite
def leaves_in_domains(draw: st.DrawFn) -> tuple[list[int], Int64]:
    """Members that each leaf holds, and ranges of leaves that are domains."""
    domains = draw(st.lists(fits.filter(bool), min_size=1, max_size=3))
    return [fit for domain in domains for fit in domain], offsets([len(domain) for domain in domains])
