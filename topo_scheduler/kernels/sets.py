"""Every other set of leaves that a window wider than what is used leaves to choose from."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]


@kernel("int64(int64[::1], int64, int64, int64, int64, int64[:,::1], int64[::1])")
def other_sets(leaf_fit: Int64, count: int, width: int, members: int, looks: int, sets: Int64, sizes: Int64) -> int:
    """Append the sets of leaves that hold the gang in the windows of some sets, as many leaves each, those excepted.

    The first and the last leaf of a window are in each set of it. Sets of a window come in the order of their leaves.

    Args:
        leaf_fit: int64[leaves], members each leaf holds now.
        count: how many sets there are: one a window, all of one size of at least 2.
        width: leaves of a window, more than such a set has.
        members: how many to place.
        looks: sets that are looked at, at most, whether they hold the gang or not.
        sets: int64[n, k], n above ``count``; written from ``count`` on, as far as there is room.
        sizes: int64[n], likewise.

    Returns:
        How many sets there are then.
    """
    found = count
    size = sizes[0]
    free = size - 2
    inner = np.zeros(width, np.int64)
    pick = np.zeros(max(free, np.int64(1)), np.int64)
    for w in range(count):
        first, last = sets[w, 0], sets[w, size - 1]
        some = np.int64(0)
        for leaf in range(first + 1, last):
            if leaf_fit[leaf] > 0:
                inner[some] = leaf
                some += 1
        if some <= free:
            continue
        for i in range(free):
            pick[i] = i
        more = True
        while more:
            if looks == 0 or found == sets.shape[0]:
                return found
            looks -= 1
            total = leaf_fit[first] + leaf_fit[last]
            same = True
            for i in range(free):
                total += leaf_fit[inner[pick[i]]]
                same = same and inner[pick[i]] == sets[w, i + 1]
            if total >= members and not same:
                sets[found, 0] = first
                for i in range(free):
                    sets[found, i + 1] = inner[pick[i]]
                sets[found, size - 1] = last
                sizes[found] = size
                found += 1
            # The next choice in order: the last place that can move on does, those behind it follow.
            at = free - 1
            while at >= 0 and pick[at] == some - free + at:
                at -= 1
            more = at >= 0
            if more:
                pick[at] += 1
                for i in range(at + 1, free):
                    pick[i] = pick[i - 1] + 1
    return found
