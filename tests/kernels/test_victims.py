"""The cheapest pods of a node, against every set of them; and what is let stay where there are too many to try."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.arrays import grid, ints
from topo_scheduler.kernels.victims import cheapest_victims


class Pod(NamedTuple):
    gpus: int
    cpu: int
    seconds: int
    started: int
    gang: int
    budget: int
    allowed: bool


pods = st.lists(
    st.builds(
        Pod,
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(-1, 1),
        st.integers(-1, 1),
        st.sampled_from([True, True, True, False]),
    ),
    max_size=7,
)
lacks = st.tuples(st.integers(-1, 6), st.integers(-1, 6))
slacks = st.tuples(st.integers(0, 2), st.integers(0, 2))
rules = st.tuples(st.integers(0, 2), st.integers(0, 2))


def solve(
    candidates: Sequence[Pod],
    lack: Sequence[int],
    slack: Sequence[int],
    rule: Sequence[int],
    left: Sequence[int],
    exact: int,
) -> tuple[list[int], list[int]]:
    """Return what the kernel chooses of a node, after one without pods, and its cost."""
    whole = grid([[rule[0], 10, 4, 0], [rule[1], 10, 4, 0]], 4)
    taken = np.zeros(len(candidates), np.bool_)
    cost = np.zeros((2, 4), np.int64)
    cheapest_victims(
        ints([0, 0]),
        ints([0, len(candidates)]),
        grid([[1, 0], list(lack)], 2),
        grid([[pod.gpus, pod.cpu] for pod in candidates], 2),
        np.array([pod.allowed for pod in candidates], np.bool_),
        ints([pod.gang for pod in candidates]),
        ints(slack),
        whole,
        ints([pod.seconds for pod in candidates]),
        ints([pod.started for pod in candidates]),
        ints([pod.budget for pod in candidates]),
        ints(left),
        ints(range(len(candidates))),
        exact,
        ints([0, 0]),
        taken,
        cost,
    )
    assert cost[0, 0] == -1, "no pod to evict"
    return np.flatnonzero(taken).tolist(), cost[1].tolist()


def frees(candidates: Sequence[Pod], chosen: Sequence[int], lack: Sequence[int]) -> bool:
    return sum(candidates[n].gpus for n in chosen) >= lack[0] and sum(candidates[n].cpu for n in chosen) >= lack[1]


def price(
    candidates: Sequence[Pod], chosen: Sequence[int], slack: Sequence[int], rule: Sequence[int], left: Sequence[int]
) -> tuple[int, int, int, int] | None:
    spent = Counter(candidates[n].budget for n in chosen)
    if any(budget >= 0 and count > left[budget] for budget, count in spent.items()):
        return None
    broken, seconds, count = 0, sum(candidates[n].seconds for n in chosen), len(chosen)
    oldest = max((-candidates[n].started for n in chosen), default=-(2**62))
    for gang in (0, 1):
        mine = [n for n in chosen if candidates[n].gang == gang]
        if len(mine) <= slack[gang]:
            continue
        broken += 1
        if rule[gang]:
            if rule[gang] == 2 or any(p.gang == gang and p.allowed and n not in mine for n, p in enumerate(candidates)):
                return None
            seconds += 10 - sum(candidates[n].seconds for n in mine)
            count += 4 - len(mine)
            oldest = max(oldest, 0)
    return broken, seconds, count, oldest


@given(pods, lacks, slacks, rules, st.tuples(st.integers(0, 2), st.integers(0, 2)))
@settings(max_examples=300, deadline=None)
def test_no_set_costs_less(
    candidates: list[Pod], lack: tuple[int, int], slack: tuple[int, int], rule: tuple[int, int], left: tuple[int, int]
) -> None:
    allowed = [n for n, pod in enumerate(candidates) if pod.allowed]
    costs = [
        (cost, list(chosen))
        for size in range(len(allowed) + 1)
        for chosen in combinations(allowed, size)
        if frees(candidates, chosen, lack) and (cost := price(candidates, chosen, slack, rule, left)) is not None
    ]
    victims, least = solve(candidates, lack, slack, rule, left, exact=10)
    if not costs:
        assert least[0] == -1
        assert victims == []
    else:
        assert (tuple(least), victims) == min(costs)


@given(pods, lacks, slacks, rules, st.tuples(st.integers(0, 2), st.integers(0, 2)))
@settings(max_examples=300, deadline=None)
def test_of_many_candidates_no_pod_goes_that_could_stay(
    candidates: list[Pod], lack: tuple[int, int], slack: tuple[int, int], rule: tuple[int, int], left: tuple[int, int]
) -> None:
    chosen, cost = solve(candidates, lack, slack, rule, left, exact=-1)
    if cost[0] == -1:
        assert chosen == []
        return
    assert frees(candidates, chosen, lack)
    assert tuple(cost) == price(candidates, chosen, slack, rule, left)
    for spared in chosen:
        if candidates[spared].gang < 0:
            rest = [n for n in chosen if n != spared]
            assert not frees(candidates, rest, lack)
