"""Which pods of a node must go so that others fit there, at the least cost."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@kernel("boolean(int64[::1], int64[:,::1], int64[::1], boolean[::1])")
def _frees(lack: Int64, amounts: Int64, pods: Int64, taken: Bool) -> bool:
    """Whether what is lacking becomes free when those that are taken go."""
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
    whole: Int64,
    time: Int64,
    started: Int64,
    budget: Int64,
    left: Int64,
    out: Int64,
) -> bool:
    """Write gangs broken, GPU-time, pods and the age of the oldest of those that are taken; whether they may go."""
    out[:] = 0
    out[3] = -np.int64(2**62)
    for i in range(pods.shape[0]):
        if not taken[i]:
            continue
        pod = pods[i]
        out[1] += time[pod]
        out[2] += 1
        out[3] = max(out[3], -started[pod])
        spent = np.int64(0)
        lost = np.int64(0)
        kept = False
        first = True
        for j in range(pods.shape[0]):
            other = pods[j]
            if taken[j] and budget[pod] >= 0 and budget[other] == budget[pod]:
                spent += 1
            if gang[pod] >= 0 and gang[other] == gang[pod]:
                if taken[j]:
                    lost += 1
                    first = first and j >= i
                else:
                    kept = True
        if budget[pod] >= 0 and spent > left[budget[pod]]:
            return False
        if gang[pod] >= 0 and first and lost > slack[gang[pod]]:
            out[0] += 1
            rule = whole[gang[pod], 0]
            if rule > 0:
                if kept or rule > 1:
                    return False
                # The members elsewhere go as well.
                out[1] += whole[gang[pod], 1]
                out[2] += whole[gang[pod], 2]
                out[3] = max(out[3], -whole[gang[pod], 3])
                for j in range(pods.shape[0]):
                    if taken[j] and gang[pods[j]] == gang[pod]:
                        out[1] -= time[pods[j]]
                        out[2] -= 1
    return True


@kernel("boolean(int64[::1], int64[::1])")
def _less(one: Int64, other: Int64) -> bool:
    for part in range(one.shape[0]):
        if one[part] != other[part]:
            return bool(one[part] < other[part])
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
    whole: Int64,
    budget: Int64,
    left: Int64,
) -> None:
    """Take all, then let stay who can: what budgets protect, whole gangs, then pod by pod, the most costly first."""
    taken[:] = True
    for step in range(3):
        for at in range(order.shape[0]):
            i = order[at]
            if not taken[i]:
                continue
            pod = pods[i]
            mine = np.int64(0)
            spent = np.int64(0)
            for j in range(pods.shape[0]):
                if taken[j] and gang[pod] >= 0 and gang[pods[j]] == gang[pod]:
                    mine += 1
                if taken[j] and budget[pod] >= 0 and budget[pods[j]] == budget[pod]:
                    spent += 1
            together = gang[pod] >= 0 and mine > slack[gang[pod]] and (step == 1 or whole[gang[pod], 0] > 0)
            if step == 0 and (budget[pod] < 0 or spent <= left[budget[pod]]):
                continue
            if step == 1 and not together:
                continue
            for j in range(pods.shape[0]):
                if j == i or (together and gang[pods[j]] == gang[pod]):
                    taken[j] = False
            if not _frees(lack, amounts, pods, taken):
                for j in range(pods.shape[0]):
                    if j == i or (together and gang[pods[j]] == gang[pod]):
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
    whole: Int64,
    time: Int64,
    started: Int64,
    budget: Int64,
    left: Int64,
    worst: Int64,
    exact: int,
    at: Int64,
    out_taken: Bool,
    out_cost: Int64,
) -> None:
    """Write for each problem (a node, and what is lacking there) which of its pods go.

    The cost of a set is compared part by part: gangs broken, GPU-time, number of pods, how long the oldest has run;
    on a tie the set that is first in the order of its pods wins. With at most ``exact`` pods every set is tried. With
    more, all are taken and then let stay one by one, the most costly first (as kube-scheduler does); no pod of what is
    left could stay, but another set may cost less.

    Args:
        first: int64[problems], first pod of each.
        last: int64[problems], one beyond its last.
        lack: int64[problems, resources], what must become free; at most 0 where there is enough.
        amounts: int64[pods, resources], what each holds.
        allowed: bool[pods], whether it may go at all.
        gang: int64[pods], -1 for none.
        slack: int64[gangs], members a gang can lose without being broken.
        whole: int64[gangs, 4]: 0, or 1 when it goes whole once broken, or 2 when it would have to and must not; then
            GPU-time, pods and earliest start of all of its members.
        time: int64[pods], GPU-seconds lost.
        started: int64[pods], seconds.
        budget: int64[pods], -1 for none.
        left: int64[budgets], pods each can lose.
        worst: int64[pods], in which order they are let stay, lowest first.
        exact: most pods of a problem for which every set is tried; at most 62.
        at: int64[problems], where a problem's pods begin in ``out_taken``.
        out_taken: bool, one for each pod of each problem.
        out_cost: int64[problems, 4], the four parts; the first is -1 where nothing suffices.
    """
    price = np.zeros(4, np.int64)
    for problem in range(first.shape[0]):
        count = np.int64(0)
        for pod in range(first[problem], last[problem]):
            out_taken[at[problem] + pod - first[problem]] = False
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
        if count <= exact:
            chosen = np.int64(0)
            for down in range(np.int64(1) << count):
                # The earlier pod is the higher bit, so that of equal sets the first in order comes first.
                sets = (np.int64(1) << count) - 1 - down
                for i in range(count):
                    taken[i] = (sets >> (count - 1 - i)) & 1
                if not _frees(lack[problem], amounts, pods, taken):
                    continue
                if _price(pods, taken, gang, slack, whole, time, started, budget, left, price) and (
                    best[0] < 0 or _less(price, best)
                ):
                    best[:] = price
                    chosen = sets
            for i in range(count):
                taken[i] = (chosen >> (count - 1 - i)) & 1
        else:
            order = np.arange(count)
            for i in range(1, count):
                moved = order[i]
                j = i
                while j > 0 and worst[pods[order[j - 1]]] > worst[pods[moved]]:
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = moved
            _reprieve(lack[problem], amounts, pods, taken, order, gang, slack, whole, budget, left)
            if _price(pods, taken, gang, slack, whole, time, started, budget, left, price):
                best[:] = price
        if best[0] >= 0:
            for i in range(count):
                out_taken[at[problem] + pods[i] - first[problem]] = taken[i]
