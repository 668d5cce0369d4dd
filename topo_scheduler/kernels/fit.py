"""How many more members fit on each node, and on each leaf."""

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
    """Write how many more members fit on each of ``rows``.

    Args:
        allocatable: int64[rows, resources].
        used: int64[rows, resources], what is taken already.
        columns: int64[c], resources a member asks for (at least one).
        amounts: int64[c], how much of each, above 0.
        eligible: bool[rows], whether the node may be used at all.
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
            many = free // amounts[c]
            if many < fit:
                fit = many
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
    """Bring sums of one resource by leaf up to date where some rows changed.

    Args:
        allocatable: int64[rows, resources].
        requested: int64[rows, resources].
        column: of the resource.
        rows: int64[n], those that changed.
        leaf_of_row: int64[rows], -1 where there is no node.
        row_capacity: int64[rows], as it was summed; written at ``rows``.
        row_used: int64[rows], likewise.
        row_free: int64[rows], likewise.
        capacity: int64[leaves], sums, brought up to date.
        used: int64[leaves], likewise.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        has, holds = allocatable[row, column], requested[row, column]
        leaf = leaf_of_row[row]
        if leaf >= 0:
            capacity[leaf] += has - row_capacity[row]
            used[leaf] += holds - row_used[row]
        row_capacity[row] = has
        row_used[row] = holds
        row_free[row] = has - holds


@kernel("void(int64[::1], int64[::1], int64[::1])")
def sum_domains(values: Int64, domains: Int64, out: Int64) -> None:
    """Write for each leaf the sum over the domain it lies in.

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
    """Write how many members some leaves hold, within the limits a gang has in one leaf.

    Args:
        fit: int64[rows], members a node holds.
        order: int64[n], rows in order.
        offsets: int64[leaves + 1].
        leaves: int64[n], which to count.
        max_nodes: most nodes of one leaf a gang may use; 0 means no limit.
        max_members: most members in one leaf; 0 means no limit.
        out: int64[leaves], written at ``leaves``.
    """
    best = np.zeros(max(max_nodes, np.int64(1)), np.int64)
    for number in range(leaves.shape[0]):
        leaf = leaves[number]
        low, high = offsets[leaf], offsets[leaf + 1]
        total = np.int64(0)
        if max_nodes == 0 or high - low <= max_nodes:
            for p in range(low, high):
                total += fit[order[p]]
        else:
            # The largest max_nodes values, kept ascending.
            for i in range(max_nodes):
                best[i] = 0
            for p in range(low, high):
                value = fit[order[p]]
                if value <= best[0]:
                    continue
                at = 0
                while at + 1 < max_nodes and best[at + 1] < value:
                    best[at] = best[at + 1]
                    at += 1
                best[at] = value
            for i in range(max_nodes):
                total += best[i]
        if max_members > 0 and total > max_members:
            total = max_members
        out[leaf] = total


@kernel("void(int64[::1])")
def sort_ascending(values: Int64) -> None:
    """Sort in place (Shell's method: it compiles in a tenth of the time of NumPy's sort).

    Args:
        values: int64[n].
    """
    gap = values.shape[0] // 2
    while gap > 0:
        for i in range(gap, values.shape[0]):
            value = values[i]
            at = i
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap = 1 if gap == 2 else gap * 5 // 11


@kernel("void(int64[::1], int64[::1], int64, int64[::1])")
def fewest_leaves(leaf_fit: Int64, domains: Int64, members: int, out: Int64) -> None:
    """Write the fewest leaves that hold ``members`` in each domain, 0 where even all of them do not.

    Args:
        leaf_fit: int64[leaves].
        domains: int64[d + 1], ranges of leaves.
        members: how many to place, above 0.
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
