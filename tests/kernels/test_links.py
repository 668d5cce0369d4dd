"""The roomiest rows of each range, against a sort."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.kernels.links import keep_roomiest


@given(st.data())
def test_each_range_keeps_as_many_as_it_may_and_those_that_hold_most(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    count = sum(sizes)
    fit = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    order = data.draw(st.permutations(range(count)))
    limits = data.draw(st.lists(st.integers(0, 7), min_size=len(sizes), max_size=len(sizes)))
    offsets = np.cumsum([0, *sizes])
    kept = np.array(fit, np.int64)
    keep_roomiest(kept, np.array(order, np.int64), offsets.astype(np.int64), np.array(limits, np.int64))
    expected = np.zeros(count, np.int64)
    for low, high, many in zip(offsets, offsets[1:], limits, strict=False):
        inside = order[low:high]
        for row in sorted(inside, key=lambda row: (-fit[row], inside.index(row)))[:many]:
            expected[row] = fit[row]
    assert kept.tolist() == expected.tolist()
