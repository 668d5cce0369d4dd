"""Prices of GPU shares, and the worth of the rest of a GPU, from the cutting stock problem.

How can typical shares be cut from the fewest GPUs? A linear program answers this (Gilmore and Gomory, 1961). Its prices
are the part of a GPU that each share costs. For example, 0.47 costs a half where two of them fill a GPU. 0.65 costs two
thirds where three of 0.33 fill a GPU as well. The rest of a GPU is worth the most expensive shares that fit it. A share
that takes more worth from a GPU than its price is a bad fit.

All numbers are integers, so the results are the same everywhere: the inverse of the basis times its determinant
(integer pivoting, Edmonds, 1967), and a knapsack for the next pattern.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.scheduling.extensions.gradient import kernels
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.statistics.typical_pods import MILLIONTHS, Popular, ShareWorth

MAX_SIZES: Final = 24
"""The most sizes of shares with a price of their own, the most popular ones. Others cost what fits in their room."""
MAX_PATTERNS: Final = 200
"""The most patterns to try. The prices are good before they are optimal."""


def share_worth(kinds: Popular) -> ShareWorth:
    """Return the worth of shares and of the rest of GPUs, given the typical pods."""
    demand = dict[int, int]()
    for kind, weight in kinds:
        if kind.share and weight:
            demand[kind.share] = demand.get(kind.share, 0) + weight
    if not demand:
        return ShareWorth.nothing()
    sizes = sorted(sorted(demand, key=lambda size: (-demand[size], size))[:MAX_SIZES])
    prices = cutting_prices(sizes, [demand[size] for size in sizes])
    worth, _ = _filled(sizes, prices)
    price = worth.copy()
    price[sizes] = prices
    return ShareWorth(worth, price)


def cutting_prices(sizes: Sequence[int], demand: Sequence[int]) -> list[int]:
    """Return the price of each size, in millionths of a GPU, when shares are cut from the fewest GPUs.

    Args:
        sizes: thousandths of a GPU, each from 1 to 999, ascending.
        demand: weight of each size, above 0.
    """
    number = len(sizes)
    # At first each GPU is filled with one size. ``inverse`` / ``scale`` is the inverse of the patterns in use.
    fit = [WHOLE_GPU // size for size in sizes]
    scale = 1
    for copies in fit:
        scale *= copies
    inverse = [[scale // fit[i] if i == j else 0 for j in range(number)] for i in range(number)]
    used = [scale // fit[i] * demand[i] for i in range(number)]
    costs = [1] * number
    for _ in range(MAX_PATTERNS):
        prices = [sum(costs[i] * inverse[i][j] for i in range(number)) for j in range(number)]
        negative = next((j for j in range(number) if prices[j] < 0), None)
        if negative is not None:  # it may be cut more often than demanded, at no cost
            pattern, cost = [-(j == negative) for j in range(number)], 0
        else:
            _, pattern = _filled(sizes, [price * MILLIONTHS // scale for price in prices])
            cost = 1
            if sum(price * times for price, times in zip(prices, pattern, strict=True)) <= scale:
                break
        column = [sum(map(int.__mul__, row, pattern)) for row in inverse]
        leaving = -1
        for i in range(number):
            if column[i] > 0 and (leaving < 0 or used[i] * column[leaving] < used[leaving] * column[i]):
                leaving = i
        if leaving < 0:
            break
        pivot, row, amount = column[leaving], inverse[leaving], used[leaving]
        for i in range(number):
            if i != leaving:
                inverse[i] = [(pivot * a - column[i] * b) // scale for a, b in zip(inverse[i], row, strict=True)]
                used[i] = (pivot * used[i] - column[i] * amount) // scale
        costs[leaving], scale = cost, pivot
    return [max(0, sum(costs[i] * inverse[i][j] for i in range(number)) * MILLIONTHS // scale) for j in range(number)]


def _filled(sizes: Sequence[int], values: Sequence[int]) -> tuple[Int64, list[int]]:
    # The worth of each room, and how often each size occurs in the best filling of a whole GPU.
    worth, last = np.empty(WHOLE_GPU + 1, np.int64), np.empty(WHOLE_GPU + 1, np.int64)
    kernels().best_fill(np.array(sizes, np.int64), np.array(values, np.int64), worth, last)
    pattern, room = [0] * len(sizes), WHOLE_GPU
    while room > 0:
        if (item := int(last[room])) < 0:
            room -= 1
        else:
            pattern[item] += 1
            room -= sizes[item]
    return worth, pattern
