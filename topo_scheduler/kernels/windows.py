"""Choosing leaves: every window of neighbouring leaves that holds a gang, and which of their sets scores best."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.fit import sort_ascending
from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]


@kernel("int64(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])")
def narrowest_windows(
    leaf_fit: Int64, domains: Int64, leaves: int, members: int, out_first: Int64, out_last: Int64
) -> int:
    """List the narrowest windows of leaves within one domain of which some ``leaves`` leaves hold the gang.

    A window runs from its first to its last leaf, both used. It is as wide as ``leaves`` when they are all neighbours,
    wider when leaves between them are full. Among windows of one start only the narrowest is listed; of all starts,
    only those of least width.

    Args:
        leaf_fit: int64[leaves], members each leaf holds now.
        domains: int64[d + 1], ranges of leaves that must not be left.
        leaves: how many leaves the gang may use, at least 1.
        members: how many to place, above 0.
        out_first: int64[leaves], first leaf of each window found.
        out_last: int64[leaves], last leaf of each.

    Returns:
        The number of windows; 0 when there is none.
    """
    found = 0
    width = np.int64(2**62)
    chosen = np.zeros(leaves, np.int64)
    for domain in range(domains.shape[0] - 1):
        high = domains[domain + 1]
        for first in range(domains[domain], high):
            if leaf_fit[first] == 0:
                continue
            # The largest fits of the window, ascending; the first leaf is always among them.
            for i in range(leaves):
                chosen[i] = 0
            total = leaf_fit[first]
            others = leaves - 1
            stop = min(high, first + width)
            last = first
            while total < members and last + 1 < stop and others > 0:
                last += 1
                value = leaf_fit[last]
                if value <= chosen[0]:
                    continue
                total += value - chosen[0]
                at = 0
                while at + 1 < others and chosen[at + 1] < value:
                    chosen[at] = chosen[at + 1]
                    at += 1
                chosen[at] = value
            if total < members:
                continue
            if last - first + 1 < width:
                width = last - first + 1
                found = 0
            out_first[found] = first
            out_last[found] = last
            found += 1
    return found


@kernel("int64(int64[::1], int64, int64, int64, int64, int64[::1])")
def choose_leaves(leaf_fit: Int64, first: int, last: int, leaves: int, members: int, out: Int64) -> int:
    """Write which leaves of a window are used: first and last, then the largest fits, the lower leaf on a tie.

    Args:
        leaf_fit: int64[leaves].
        first: first leaf of the window.
        last: last leaf of the window.
        leaves: how many may be used.
        members: how many to place.
        out: int64[>= leaves], the chosen leaves ascending.

    Returns:
        How many were chosen.
    """
    out[0] = first
    count = 1
    total = leaf_fit[first]
    if last > first:
        out[1] = last
        count = 2
        total += leaf_fit[last]
    while total < members and count < leaves:
        best = np.int64(-1)
        for leaf in range(first + 1, last):
            taken = False
            for i in range(count):
                taken = taken or out[i] == leaf
            if not taken and leaf_fit[leaf] > 0 and (best < 0 or leaf_fit[leaf] > leaf_fit[best]):
                best = np.int64(leaf)
        if best < 0:
            break
        out[count] = best
        count += 1
        total += leaf_fit[best]
    sort_ascending(out[:count])
    return count


@kernel("void(int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[:,::1], int64[::1])")
def choose_sets(
    leaf_fit: Int64, first: Int64, last: Int64, count: int, leaves: int, members: int, out: Int64, out_sizes: Int64
) -> None:
    """Write which leaves of each window are used, as `choose_leaves` does.

    Args:
        leaf_fit: int64[leaves].
        first: int64[>= count], first leaf of each window.
        last: int64[>= count], last leaf of each window.
        count: how many windows.
        leaves: how many leaves may be used.
        members: how many to place.
        out: int64[>= count, >= leaves], the leaves of each window ascending.
        out_sizes: int64[>= count], how many they are.
    """
    for w in range(count):
        out_sizes[w] = choose_leaves(leaf_fit, first[w], last[w], leaves, members, out[w])


@kernel("boolean(int64[:,::1], int64, int64, int64)")
def better(parts: Int64, one: int, other: int, latency: int) -> bool:
    """Return whether one scored set is better than another: less link load where that comes first, then the score.

    Args:
        parts: int64[sets, 6], as `score_sets` writes it.
        one: index of a set.
        other: index of the one it is compared with.
        latency: 1 when link load comes before the score.
    """
    if latency == 1 and parts[one, 5] != parts[other, 5]:
        return bool(parts[one, 5] < parts[other, 5])
    if parts[one, 4] != parts[other, 4]:
        return bool(parts[one, 4] > parts[other, 4])
    return bool(parts[one, 5] < parts[other, 5])


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def least_lost(
    leaves: Int64, asked: int, sizes: Int64, weights: Int64, capacity: Int64, used: Int64, outside: Int64
) -> int:
    """Return which of some leaves, were a gang to take so much of it, loses room for fewest of the usual gangs.

    Of each size it is counted how many fewer fit in what is free: in the leaf where it could hold one, else in the
    domain around it. The first of equals.

    Args:
        leaves: int64[n], n at least 1.
        asked: what is taken.
        sizes: int64[s], what usual gangs ask, above 0.
        weights: int64[s], how usual they are.
        capacity: int64[leaves of the fabric].
        used: int64[leaves of the fabric].
        outside: int64[leaves of the fabric], what is free in the domain around each leaf.

    Returns:
        An index of ``leaves``.
    """
    best, least = np.int64(0), np.int64(2**62)
    for i in range(leaves.shape[0]):
        leaf = leaves[i]
        if i > 0:
            last = leaves[i - 1]
            if capacity[leaf] == capacity[last] and used[leaf] == used[last] and outside[leaf] == outside[last]:
                continue  # as much is lost
        lost = np.int64(0)
        for s in range(sizes.shape[0]):
            size = sizes[s]
            free = capacity[leaf] - used[leaf] if capacity[leaf] >= size else outside[leaf]
            lost += weights[s] * (max(free, np.int64(0)) // size - max(free - asked, np.int64(0)) // size)
        if lost < least:
            best, least = np.int64(i), lost
    return best


@kernel(
    "int64(int64[:,::1], int64[::1], int64, int64, int64, int64[:,::1], int64[::1], int64[::1], int64[::1], int64,"
    " int64, int64[:,::1])"
)
def score_sets(
    sets: Int64,
    sizes: Int64,
    count: int,
    members: int,
    ask: int,
    leaf_facts: Int64,
    parent_capacity: Int64,
    parent_used: Int64,
    weights: Int64,
    strategy: int,
    latency: int,
    out_parts: Int64,
) -> int:
    """Score each set of leaves and return the best one.

    All parts are thousandths. Availability: free share of the common domain after the placement. Alignment: given per
    leaf, averaged over the leaves used. Utilisation: share of the leaves that is used; as it is when consolidated, its
    complement when distributed, and one minus its distance after placement from the mean of all leaves when balanced.
    History: given per leaf, averaged. The best is the one of highest score, then lowest link load, then the first; when
    latency counts, lowest load comes before the score.

    Args:
        sets: int64[>= count, k], the leaves of each set ascending.
        sizes: int64[>= count], how many they are, at least 1.
        count: how many sets.
        members: how many to place.
        ask: what one member asks of the scarce resource (GPUs, or milli-CPU).
        leaf_facts: int64[5, leaves]: capacity and use of the scarce resource, alignment, history, link load.
        parent_capacity: int64[leaves], capacity of the common domain each leaf lies in.
        parent_used: int64[leaves], use of that domain.
        weights: int64[4], in thousandths: availability, alignment, utilisation, history.
        strategy: 0 consolidated, 1 distributed, 2 balanced.
        latency: 1 when link load comes before the score.
        out_parts: int64[>= count, 6]: the four parts, the score, the load.

    Returns:
        Index of the best set.
    """
    weight = np.int64(0)
    for part in range(weights.shape[0]):
        weight += weights[part]
    weight = max(weight, np.int64(1))
    all_capacity = np.int64(0)
    all_used = np.int64(0)
    for leaf in range(leaf_facts.shape[1]):
        all_capacity += leaf_facts[0, leaf]
        all_used += leaf_facts[1, leaf]
    mean = 1000 * all_used // max(all_capacity, np.int64(1))
    best = 0
    for w in range(count):
        chosen = sets[w]
        used = sizes[w]
        capacity = np.int64(0)
        taken = np.int64(0)
        alignment = np.int64(0)
        history = np.int64(0)
        load = np.int64(0)
        for i in range(used):
            capacity += leaf_facts[0, chosen[i]]
            taken += leaf_facts[1, chosen[i]]
            alignment += leaf_facts[2, chosen[i]]
            history += leaf_facts[3, chosen[i]]
            load = max(load, leaf_facts[4, chosen[i]])
        whole = max(parent_capacity[chosen[0]], np.int64(1))
        free = whole - parent_used[chosen[0]] - members * ask
        out_parts[w, 0] = max(np.int64(0), 1000 * free // whole)
        out_parts[w, 1] = alignment // used
        share = 1000 * taken // max(capacity, np.int64(1))
        if strategy == 1:
            share = 1000 - share
        elif strategy == 2:
            share = 1000 - abs(1000 * (taken + members * ask) // max(capacity, np.int64(1)) - mean)
        out_parts[w, 2] = min(np.int64(1000), max(np.int64(0), share))
        out_parts[w, 3] = history // used
        score = np.int64(0)
        for part in range(4):
            score += weights[part] * out_parts[w, part]
        out_parts[w, 4] = score // weight
        out_parts[w, 5] = load
        if w > 0 and better(out_parts, w, best, latency):
            best = w
    return best
