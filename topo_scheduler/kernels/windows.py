"""Choice of leaves: all windows of neighbouring leaves that hold a gang, and the best score among sets of leaves."""

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
    """List the narrowest windows within one domain in which ``leaves`` leaves hold the gang.

    A window runs from its first to its last leaf, both used. Its width is ``leaves`` if all used leaves are neighbours,
    and more if leaves between them are full. For each first leaf the function lists only the narrowest window, and of
    all windows only those of minimal width.

    Args:
        leaf_fit: int64[leaves], members that each leaf holds now.
        domains: int64[d + 1], ranges of leaves; a window lies inside one of them.
        leaves: number of leaves that the gang may use, at least 1.
        members: number to place, above 0.
        out_first: int64[leaves], first leaf of each window found.
        out_last: int64[leaves], last leaf of each window found.

    Returns:
        The number of windows, 0 for none.
    """
    window_count = 0
    width = np.int64(2**62)
    largest = np.zeros(leaves, np.int64)
    for domain in range(domains.shape[0] - 1):
        high = domains[domain + 1]
        for first in range(domains[domain], high):
            if leaf_fit[first] == 0:
                continue
            # The largest fits of the window without its first leaf, which is always used; ascending.
            for i in range(leaves):
                largest[i] = 0
            total = leaf_fit[first]
            further_leaves = leaves - 1
            stop = min(high, first + width)
            last = first
            while total < members and last + 1 < stop and further_leaves > 0:
                last += 1
                value = leaf_fit[last]
                if value <= largest[0]:
                    continue
                total += value - largest[0]
                index = 0
                while index + 1 < further_leaves and largest[index + 1] < value:
                    largest[index] = largest[index + 1]
                    index += 1
                largest[index] = value
            if total < members:
                continue
            if last - first + 1 < width:
                width = last - first + 1
                window_count = 0
            out_first[window_count] = first
            out_last[window_count] = last
            window_count += 1
    return window_count


@kernel("int64(int64[::1], int64, int64, int64, int64, int64[::1])")
def choose_leaves(leaf_fit: Int64, first: int, last: int, leaves: int, members: int, out: Int64) -> int:
    """Write the leaves of a window to use: first and last, then those with the largest fit, on a tie the lower leaf.

    Args:
        leaf_fit: int64[leaves].
        first: first leaf of the window.
        last: last leaf of the window.
        leaves: number of leaves that may be used.
        members: number to place.
        out: int64[>= leaves], the chosen leaves ascending.

    Returns:
        The number of chosen leaves.
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
    """Write the leaves of each window to use, as `choose_leaves` does.

    Args:
        leaf_fit: int64[leaves].
        first: int64[>= count], first leaf of each window.
        last: int64[>= count], last leaf of each window.
        count: number of windows.
        leaves: number of leaves that may be used.
        members: number to place.
        out: int64[>= count, >= leaves], the leaves of each window ascending.
        out_sizes: int64[>= count], number of leaves in each set.
    """
    for w in range(count):
        out_sizes[w] = choose_leaves(leaf_fit, first[w], last[w], leaves, members, out[w])


@kernel("boolean(int64[:,::1], int64, int64, int64)")
def better(parts: Int64, candidate: int, best: int, latency: int) -> bool:
    """Return whether one scored set is better than another: lower link load if that comes first, then higher score.

    Args:
        parts: int64[sets, 6 + p], as `score_sets` writes it.
        candidate: index of the set.
        best: index of the set with which it is compared.
        latency: 1 if link load comes before the score, else 0.
    """
    if latency == 1 and parts[candidate, 5] != parts[best, 5]:
        return bool(parts[candidate, 5] < parts[best, 5])
    if parts[candidate, 4] != parts[best, 4]:
        return bool(parts[candidate, 4] > parts[best, 4])
    return bool(parts[candidate, 5] < parts[best, 5])


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def least_lost(
    leaves: Int64, requested: int, sizes: Int64, weights: Int64, capacity: Int64, used: Int64, outside: Int64
) -> int:
    """Return the leaf in which a gang takes the least room from gangs of usual sizes, of equal leaves the first.

    For each usual size, the function counts how many fewer gangs fit the free resources. It counts in the leaf if the
    leaf could hold such a gang, otherwise in the domain around it.

    Args:
        leaves: int64[n], n at least 1.
        requested: amount that the gang takes.
        sizes: int64[s], requests of usual gangs, above 0.
        weights: int64[s], frequency of each size.
        capacity: int64[leaves of the fabric].
        used: int64[leaves of the fabric].
        outside: int64[leaves of the fabric], free amount of the domain around each leaf.

    Returns:
        An index of ``leaves``.
    """
    best, least_loss = np.int64(0), np.int64(2**62)
    for i in range(leaves.shape[0]):
        leaf = leaves[i]
        if i > 0:
            previous = leaves[i - 1]
            if (
                capacity[leaf] == capacity[previous]
                and used[leaf] == used[previous]
                and outside[leaf] == outside[previous]
            ):
                continue  # an equal leaf loses the same amount
        loss = np.int64(0)
        for s in range(sizes.shape[0]):
            size = sizes[s]
            free = capacity[leaf] - used[leaf] if capacity[leaf] >= size else outside[leaf]
            loss += weights[s] * (max(free, np.int64(0)) // size - max(free - requested, np.int64(0)) // size)
        if loss < least_loss:
            best, least_loss = np.int64(i), loss
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
    request: int,
    leaf_facts: Int64,
    parent_capacity: Int64,
    parent_used: Int64,
    weights: Int64,
    strategy: int,
    latency: int,
    out_parts: Int64,
) -> int:
    """Score each set of leaves and return the best one.

    All parts are in thousandths. Availability: free share of the common domain after the placement. Alignment: mean
    over the leaves used. Utilisation: used share of the leaves. Consolidated placement takes it as it is, distributed
    placement takes its complement. Balanced placement takes one minus its distance, after the placement, from the mean
    of all leaves. History and parts of plugins: mean over the leaves used.

    The best set has the highest score, then the lowest link load, then comes first. If latency counts, the lowest load
    comes before the score.

    Args:
        sets: int64[>= count, k], the leaves of each set ascending.
        sizes: int64[>= count], number of leaves in each set, at least 1.
        count: number of sets.
        members: number to place.
        request: request of one member for the scarce resource (GPUs, or milli-CPU).
        leaf_facts: int64[5 + p, leaves]: capacity and use of the scarce resource, alignment, history, link load, and p
            parts of plugins.
        parent_capacity: int64[leaves], capacity of the common domain around each leaf.
        parent_used: int64[leaves], use of that domain.
        weights: int64[4 + p], in thousandths: availability, alignment, utilisation, history, parts of plugins.
        strategy: 0 consolidated, 1 distributed, 2 balanced.
        latency: 1 if link load comes before the score, else 0.
        out_parts: int64[>= count, 6 + p]: the four parts, the score, the load, the parts of plugins.

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
        leaf_count = sizes[w]
        capacity = np.int64(0)
        used_amount = np.int64(0)
        alignment = np.int64(0)
        history = np.int64(0)
        load = np.int64(0)
        for i in range(leaf_count):
            capacity += leaf_facts[0, chosen[i]]
            used_amount += leaf_facts[1, chosen[i]]
            alignment += leaf_facts[2, chosen[i]]
            history += leaf_facts[3, chosen[i]]
            load = max(load, leaf_facts[4, chosen[i]])
        domain_capacity = max(parent_capacity[chosen[0]], np.int64(1))
        free = domain_capacity - parent_used[chosen[0]] - members * request
        out_parts[w, 0] = max(np.int64(0), 1000 * free // domain_capacity)
        out_parts[w, 1] = alignment // leaf_count
        share = 1000 * used_amount // max(capacity, np.int64(1))
        if strategy == 1:
            share = 1000 - share
        elif strategy == 2:
            share = 1000 - abs(1000 * (used_amount + members * request) // max(capacity, np.int64(1)) - mean)
        out_parts[w, 2] = min(np.int64(1000), max(np.int64(0), share))
        out_parts[w, 3] = history // leaf_count
        score = np.int64(0)
        for part in range(4):
            score += weights[part] * out_parts[w, part]
        for part in range(4, weights.shape[0]):
            total = np.int64(0)
            for i in range(leaf_count):
                total += leaf_facts[part + 1, chosen[i]]
            out_parts[w, part + 2] = total // leaf_count
            score += weights[part] * out_parts[w, part + 2]
        out_parts[w, 4] = score // weight
        out_parts[w, 5] = load
        if w > 0 and better(out_parts, w, best, latency):
            best = w
    return best
