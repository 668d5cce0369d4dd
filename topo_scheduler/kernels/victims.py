"""Choice of the pods on a node to evict for preemption, at the least cost."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@kernel("boolean(int64[::1], int64[:,::1], int64[::1], boolean[::1])")
def _frees(lack: Int64, amounts: Int64, pods: Int64, taken: Bool) -> bool:
    """Return whether the eviction of the taken pods frees the lacking resources."""
    for resource in range(lack.shape[0]):
        left = lack[resource]
        for i in range(pods.shape[0]):
            if taken[i]:
                left -= amounts[pods[i], resource]
        if left > 0:
            return False
    return True


@kernel(
    "boolean(int64[::1], boolean[::1], int64[::1], int64[::1], int64[:,::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1])"
)
def _price(
    pods: Int64,
    taken: Bool,
    gang: Int64,
    slack: Int64,
    gang_totals: Int64,
    gpu_time: Int64,
    started: Int64,
    budget: Int64,
    budget_left: Int64,
    out: Int64,
) -> bool:
    """Write the cost of the taken pods: gangs broken, GPU-time, pods, age of the oldest. Return whether they may go."""
    out[:] = 0
    out[3] = -np.int64(2**62)
    for i in range(pods.shape[0]):
        if not taken[i]:
            continue
        pod = pods[i]
        out[1] += gpu_time[pod]
        out[2] += 1
        out[3] = max(out[3], -started[pod])
        taken_of_budget = np.int64(0)
        taken_of_gang = np.int64(0)
        gang_keeps_some = False
        first_of_gang = True
        for j in range(pods.shape[0]):
            other = pods[j]
            if taken[j] and budget[pod] >= 0 and budget[other] == budget[pod]:
                taken_of_budget += 1
            if gang[pod] >= 0 and gang[other] == gang[pod]:
                if taken[j]:
                    taken_of_gang += 1
                    first_of_gang = first_of_gang and j >= i
                else:
                    gang_keeps_some = True
        if budget[pod] >= 0 and taken_of_budget > budget_left[budget[pod]]:
            return False
        if gang[pod] >= 0 and first_of_gang and taken_of_gang > slack[gang[pod]]:
            out[0] += 1
            break_rule = gang_totals[gang[pod], 0]
            if break_rule > 0:
                if gang_keeps_some or break_rule > 1:
                    return False
                # Members on other nodes are evicted as well.
                out[1] += gang_totals[gang[pod], 1]
                out[2] += gang_totals[gang[pod], 2]
                out[3] = max(out[3], -gang_totals[gang[pod], 3])
                for j in range(pods.shape[0]):
                    if taken[j] and gang[pods[j]] == gang[pod]:
                        out[1] -= gpu_time[pods[j]]
                        out[2] -= 1
    return True


@kernel("boolean(int64[::1], int64[::1])")
def _less(cost: Int64, other_cost: Int64) -> bool:
    for part in range(cost.shape[0]):
        if cost[part] != other_cost[part]:
            return bool(cost[part] < other_cost[part])
    return False


@kernel(
    "void(int64[::1], int64[:,::1], int64[::1], boolean[::1], int64[::1], int64[::1], int64[::1], int64[:,::1],"
    " int64[::1], int64[::1])"
)
def _reprieve(
    lack: Int64,
    amounts: Int64,
    pods: Int64,
    taken: Bool,
    order: Int64,
    gang: Int64,
    slack: Int64,
    gang_totals: Int64,
    budget: Int64,
    budget_left: Int64,
) -> None:
    """Take all pods, then reprieve: pods protected by budgets, whole gangs, then single pods, the most costly first."""
    taken[:] = True
    for step in range(3):
        for index in range(order.shape[0]):
            i = order[index]
            if not taken[i]:
                continue
            pod = pods[i]
            taken_of_gang = np.int64(0)
            taken_of_budget = np.int64(0)
            for j in range(pods.shape[0]):
                if taken[j] and gang[pod] >= 0 and gang[pods[j]] == gang[pod]:
                    taken_of_gang += 1
                if taken[j] and budget[pod] >= 0 and budget[pods[j]] == budget[pod]:
                    taken_of_budget += 1
            as_gang = (
                gang[pod] >= 0 and taken_of_gang > slack[gang[pod]] and (step == 1 or gang_totals[gang[pod], 0] > 0)
            )
            if step == 0 and (budget[pod] < 0 or taken_of_budget <= budget_left[budget[pod]]):
                continue
            if step == 1 and not as_gang:
                continue
            for j in range(pods.shape[0]):
                if j == i or (as_gang and gang[pods[j]] == gang[pod]):
                    taken[j] = False
            if not _frees(lack, amounts, pods, taken):
                for j in range(pods.shape[0]):
                    if j == i or (as_gang and gang[pods[j]] == gang[pod]):
                        taken[j] = True


@kernel(
    "void(int64[::1], int64[::1], int64[:,::1], int64[:,::1], boolean[::1], int64[::1], int64[::1], int64[:,::1],"
    " int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1], boolean[::1], int64[:,::1])"
)
def cheapest_victims(
    first: Int64,
    last: Int64,
    lack: Int64,
    amounts: Int64,
    allowed: Bool,
    gang: Int64,
    slack: Int64,
    gang_totals: Int64,
    gpu_time: Int64,
    started: Int64,
    budget: Int64,
    budget_left: Int64,
    reprieve_order: Int64,
    max_exact: int,
    out_start: Int64,
    out_taken: Bool,
    out_cost: Int64,
) -> None:
    """Write for each problem (a node, and its lacking resources) the pods to evict.

    Costs of sets are compared part by part: gangs broken, GPU-time, number of pods, running time of the oldest pod. On
    a tie the first set in the order of its pods wins. With at most ``max_exact`` pods, the function tries every set.
    With more pods, it takes all and then reprieves one by one, the most costly first, as kube-scheduler does. Then none
    of the remaining pods could stay, but another set may cost less.

    Args:
        first: int64[problems], first pod of each problem.
        last: int64[problems], one after its last pod.
        lack: int64[problems, resources], amount that must become free; at most 0 if enough is free.
        amounts: int64[pods, resources], requests of each pod.
        allowed: bool[pods], whether the pod may be evicted.
        gang: int64[pods], -1 for none.
        slack: int64[gangs], members that a gang can lose without being broken.
        gang_totals: int64[gangs, 4]: 1 if a broken gang is evicted as a whole, 2 if it would have to be but must not,
            else 0; then GPU-time, number of pods and earliest start of all its members.
        gpu_time: int64[pods], GPU-seconds lost by an eviction.
        started: int64[pods], start time in seconds.
        budget: int64[pods], -1 for none.
        budget_left: int64[budgets], pods that each budget can lose.
        reprieve_order: int64[pods], order of reprieves, lowest first.
        max_exact: the most pods of a problem for which every set is tried; at most 62.
        out_start: int64[problems], index of the first pod of a problem in ``out_taken``.
        out_taken: bool, one entry per pod of each problem.
        out_cost: int64[problems, 4], the four parts; the first is -1 if no set suffices.
    """
    cost = np.zeros(4, np.int64)
    for problem in range(first.shape[0]):
        count = np.int64(0)
        for pod in range(first[problem], last[problem]):
            out_taken[out_start[problem] + pod - first[problem]] = False
            count += allowed[pod]
        pods = np.empty(count, np.int64)
        count = np.int64(0)
        for pod in range(first[problem], last[problem]):
            if allowed[pod]:
                pods[count] = pod
                count += 1
        taken = np.ones(count, np.bool_)
        best = out_cost[problem]
        best[0] = -1
        if not _frees(lack[problem], amounts, pods, taken):
            continue
        if count <= max_exact:
            chosen = np.int64(0)
            for number in range(np.int64(1) << count):
                # The earlier pod is the higher bit, so of equal sets the first in order comes first.
                bits = (np.int64(1) << count) - 1 - number
                for i in range(count):
                    taken[i] = (bits >> (count - 1 - i)) & 1
                if not _frees(lack[problem], amounts, pods, taken):
                    continue
                if _price(pods, taken, gang, slack, gang_totals, gpu_time, started, budget, budget_left, cost) and (
                    best[0] < 0 or _less(cost, best)
                ):
                    best[:] = cost
                    chosen = bits
            for i in range(count):
                taken[i] = (chosen >> (count - 1 - i)) & 1
        else:
            order = np.arange(count)
            for i in range(1, count):
                moved = order[i]
                j = i
                while j > 0 and reprieve_order[pods[order[j - 1]]] > reprieve_order[pods[moved]]:
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = moved
            _reprieve(lack[problem], amounts, pods, taken, order, gang, slack, gang_totals, budget, budget_left)
            if _price(pods, taken, gang, slack, gang_totals, gpu_time, started, budget, budget_left, cost):
                best[:] = cost
        if best[0] >= 0:
            for i in range(count):
                out_taken[out_start[problem] + pods[i] - first[problem]] = taken[i]
