"""Number of additional members that fit on each node and in each leaf."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@kernel("void(int64[:,::1], int64[:,::1], int64[::1], int64[::1], boolean[::1], int64[::1], int64[::1])")
def fit_rows(
    allocatable: Int64, used: Int64, columns: Int64, amounts: Int64, eligible: Bool, rows: Int64, out: Int64
) -> None:
    """Write the number of additional members that fit on each of ``rows``.

    Args:
        allocatable: int64[rows, resources].
        used: int64[rows, resources], amounts in use.
        columns: int64[c], resources that a member requests (at least one).
        amounts: int64[c], request for each, above 0.
        eligible: bool[rows], whether the node may be used.
        rows: int64[n], rows to compute.
        out: int64[rows], written at ``rows``.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        if not eligible[row]:
            out[row] = 0
            continue
        fit = np.int64(2**62)
        for c in range(columns.shape[0]):
            free = allocatable[row, columns[c]] - used[row, columns[c]]
            if free < amounts[c]:
                fit = np.int64(0)
                break
            copies = free // amounts[c]
            if copies < fit:
                fit = copies
        out[row] = fit


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def sum_ranges(values: Int64, order: Int64, offsets: Int64, out: Int64) -> None:
    """Write the sum of ``values[order[offsets[i]:offsets[i + 1]]]`` for each range i.

    Args:
        values: int64[rows].
        order: int64[n], rows in order.
        offsets: int64[r + 1], ranges of ``order``.
        out: int64[r].
    """
    for i in range(offsets.shape[0] - 1):
        total = np.int64(0)
        for p in range(offsets[i], offsets[i + 1]):
            total += values[order[p]]
        out[i] = total


@kernel(
    "void(int64[:,::1], int64[:,::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1])"
)
def sum_again(
    allocatable: Int64,
    requested: Int64,
    column: int,
    rows: Int64,
    leaf_of_row: Int64,
    row_capacity: Int64,
    row_used: Int64,
    row_free: Int64,
    capacity: Int64,
    used: Int64,
) -> None:
    """Update the sums of one resource by leaf for rows that changed.

    Args:
        allocatable: int64[rows, resources].
        requested: int64[rows, resources].
        column: of the resource.
        rows: int64[n], changed rows.
        leaf_of_row: int64[rows], -1 where there is no node.
        row_capacity: int64[rows], values already in the sums; written at ``rows``.
        row_used: int64[rows], likewise.
        row_free: int64[rows], likewise.
        capacity: int64[leaves], sums to update.
        used: int64[leaves], likewise.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        new_capacity = allocatable[row, column]
        new_used = min(requested[row, column], new_capacity)
        leaf = leaf_of_row[row]
        if leaf >= 0:
            capacity[leaf] += new_capacity - row_capacity[row]
            used[leaf] += new_used - row_used[row]
        row_capacity[row] = new_capacity
        row_used[row] = new_used
        row_free[row] = new_capacity - requested[row, column]


@kernel("void(int64[::1], int64[::1], int64[::1])")
def sum_domains(values: Int64, domains: Int64, out: Int64) -> None:
    """Write for each leaf the sum over its domain.

    Args:
        values: int64[leaves].
        domains: int64[d + 1], ranges of leaves.
        out: int64[leaves].
    """
    for domain in range(domains.shape[0] - 1):
        low, high = domains[domain], domains[domain + 1]
        total = np.int64(0)
        for leaf in range(low, high):
            total += values[leaf]
        for leaf in range(low, high):
            out[leaf] = total


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1])")
def fit_leaves(
    fit: Int64, order: Int64, offsets: Int64, leaves: Int64, max_nodes: int, max_members: int, out: Int64
) -> None:
    """Write the members that leaves hold, within the limits of a gang in one leaf.

    Args:
        fit: int64[rows], members that a node holds.
        order: int64[n], rows in order.
        offsets: int64[leaves + 1].
        leaves: int64[n], leaves to count.
        max_nodes: the most nodes of one leaf that a gang may use; 0 means no limit.
        max_members: the most members in one leaf; 0 means no limit.
        out: int64[leaves], written at ``leaves``.
    """
    largest = np.int64(0)
    for number in range(leaves.shape[0]):
        largest = max(largest, offsets[leaves[number] + 1] - offsets[leaves[number]])
    best = np.zeros(min(max_nodes, largest), np.int64)
    for number in range(leaves.shape[0]):
        leaf = leaves[number]
        low, high = offsets[leaf], offsets[leaf + 1]
        total = np.int64(0)
        if max_nodes == 0 or high - low <= max_nodes:
            for p in range(low, high):
                total += fit[order[p]]
        else:
            # Keep the largest max_nodes values, ascending.
            for i in range(max_nodes):
                best[i] = 0
            for p in range(low, high):
                value = fit[order[p]]
                if value <= best[0]:
                    continue
                index = 0
                while index + 1 < max_nodes and best[index + 1] < value:
                    best[index] = best[index + 1]
                    index += 1
                best[index] = value
            for i in range(max_nodes):
                total += best[i]
        if max_members > 0 and total > max_members:
            total = max_members
        out[leaf] = total


@kernel("void(int64[::1])")
def sort_ascending(values: Int64) -> None:
    """Sort in place, with Shell's method: it compiles in a tenth of the time of NumPy's sort.

    Args:
        values: int64[n].
    """
    gap = values.shape[0] // 2
    while gap > 0:
        for i in range(gap, values.shape[0]):
            value = values[i]
            index = i
            while index >= gap and values[index - gap] > value:
                values[index] = values[index - gap]
                index -= gap
            values[index] = value
        gap = 1 if gap == 2 else gap * 5 // 11


@kernel("void(int64[::1], int64[::1], int64, int64[::1])")
def fewest_leaves(leaf_fit: Int64, domains: Int64, members: int, out: Int64) -> None:
    """Write the fewest leaves that hold ``members`` in each domain, 0 if all its leaves together don't.

    Args:
        leaf_fit: int64[leaves].
        domains: int64[d + 1], ranges of leaves.
        members: number to place, above 0.
        out: int64[d].
    """
    for domain in range(domains.shape[0] - 1):
        low, high = domains[domain], domains[domain + 1]
        total = np.int64(0)
        largest = np.int64(0)
        for leaf in range(low, high):
            total += leaf_fit[leaf]
            largest = max(largest, leaf_fit[leaf])
        out[domain] = 0
        if largest >= members:
            out[domain] = 1
        elif total >= members:
            ordered = leaf_fit[low:high].copy()
            sort_ascending(ordered)
            total = np.int64(0)
            count = np.int64(0)
            while total < members:
                count += 1
                total += ordered[high - low - count]
            out[domain] = count
