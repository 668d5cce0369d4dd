"""Enumeration of further sets of leaves, in windows with more leaves than a set uses."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]


@kernel("int64(int64[::1], int64, int64, int64, int64, int64[:,::1], int64[::1])")
def other_sets(leaf_fit: Int64, count: int, width: int, members: int, looks: int, sets: Int64, sizes: Int64) -> int:
    """Append all other sets of leaves that hold the gang, in the windows of the given sets and of the same size.

    Each set of a window contains its first and its last leaf. Sets of a window come in the order of their leaves.

    Args:
        leaf_fit: int64[leaves], members that each leaf holds now.
        count: number of given sets: one per window, all of the same size of at least 2.
        width: number of leaves in a window, more than a set has.
        members: number to place.
        looks: the most sets to examine, whether they hold the gang or not.
        sets: int64[n, k], n above ``count``; written from ``count`` on, up to n.
        sizes: int64[n], likewise.

    Returns:
        The number of sets, including the given ones.
    """
    set_count = count
    size = sizes[0]
    free = size - 2
    inner = np.zeros(width, np.int64)
    pick = np.zeros(max(free, np.int64(1)), np.int64)
    for w in range(count):
        first, last = sets[w, 0], sets[w, size - 1]
        usable = np.int64(0)
        for leaf in range(first + 1, last):
            if leaf_fit[leaf] > 0:
                inner[usable] = leaf
                usable += 1
        if usable <= free:
            continue
        for i in range(free):
            pick[i] = i
        has_next = True
        while has_next:
            if looks == 0 or set_count == sets.shape[0]:
                return set_count
            looks -= 1
            total = leaf_fit[first] + leaf_fit[last]
            is_given = True
            for i in range(free):
                total += leaf_fit[inner[pick[i]]]
                is_given = is_given and inner[pick[i]] == sets[w, i + 1]
            if total >= members and not is_given:
                sets[set_count, 0] = first
                for i in range(free):
                    sets[set_count, i + 1] = inner[pick[i]]
                sets[set_count, size - 1] = last
                sizes[set_count] = size
                set_count += 1
            # The next combination: advance the last place that can advance, and reset the places after it.
            place = free - 1
            while place >= 0 and pick[place] == usable - free + place:
                place -= 1
            has_next = place >= 0
            if has_next:
                pick[place] += 1
                for i in range(place + 1, free):
                    pick[i] = pick[i - 1] + 1
    return set_count
