"""What shares of GPUs are worth, beside all corners of the linear program."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_scheduler.scheduling.placing.small_pods.share_prices import MAX_SIZES, cutting_prices, share_worth
from topo_scheduler.state.statistics.typical_pods import MILLIONTHS, PodKind, in_millionths

demands = st.dictionaries(st.sampled_from([130, 190, 230, 320, 350, 470, 500, 650, 810, 999]), st.integers(1, 50))


def patterns(sizes: list[int]) -> list[tuple[int, ...]]:
    """Every way to fill a GPU."""
    ways = product(*(range(1000 // size + 1) for size in sizes))
    return [way for way in ways if 0 < sum(s * n for s, n in zip(sizes, way, strict=True)) <= 1000]


@given(demands.filter(lambda demand: 1 <= len(demand) <= 3))
@settings(max_examples=30)
def test_no_way_to_fill_a_gpu_costs_more_than_the_gpu_and_the_prices_are_the_highest(demand: dict[int, int]) -> None:
    sizes = sorted(demand)
    prices = cutting_prices(sizes, [demand[size] for size in sizes])
    ways = np.array(patterns(sizes))
    assert (ways @ prices).max() <= MILLIONTHS
    # The best prices are where as many conditions are tight as there are sizes: all these corners.
    whole = [way for way in ways if 1000 - way @ sizes < min(sizes)]
    conditions = np.array([*whole, *np.eye(len(sizes))])
    bounds = np.array([1.0] * len(whole) + [0.0] * len(sizes))
    wanted, best = np.array([demand[size] for size in sizes]), 0.0
    for tight in combinations(range(len(conditions)), len(sizes)):
        chosen = conditions[list(tight)]
        if abs(np.linalg.det(chosen)) < 0.5:  # of whole numbers, so 0 or at least 1
            continue
        corner = np.linalg.solve(chosen, bounds[list(tight)])
        if (corner > -1e-9).all() and (ways @ corner).max() < 1 + 1e-9:
            best = max(best, float(wanted @ corner))
    assert wanted @ prices == pytest.approx(best * MILLIONTHS, rel=1e-5), "rounded down to millionths"


def test_two_that_fill_a_gpu_cost_a_half_each_and_what_fits_beside_many_costs_nothing() -> None:
    worth = share_worth(in_millionths([(PodKind(1000, share=470), 1)]))
    assert worth.price[470] == worth.left[530] == worth.left[939] == 500_000
    assert worth.left[469] == 0, "what is left of two is of no use to anyone"
    small = share_worth(in_millionths([(PodKind(1000, share=810), 9), (PodKind(1000, share=160), 1)]))
    assert (small.price[810], small.price[160]) == (MILLIONTHS, 0)


def test_a_share_of_a_size_that_no_pod_has_costs_what_fits_in_its_room() -> None:
    worth = share_worth(in_millionths([(PodKind(1000, share=250), 1)]))
    assert (worth.price[200], worth.price[300], worth.price[510]) == (0, 250_000, 500_000)


def test_without_shares_nothing_is_worth_anything() -> None:
    for kinds in ((), in_millionths([(PodKind(1000, gpus=1), 1)])):
        assert not share_worth(kinds).left.any()
        assert not share_worth(kinds).price.any()


def test_only_the_most_popular_sizes_have_a_price_of_their_own() -> None:
    rare = [(PodKind(1000, share=size), 1) for size in range(501, 560)]
    worth = share_worth(in_millionths([(PodKind(1000, share=400), 99), *rare]))
    assert worth.price[501 + MAX_SIZES] == worth.left[501 + MAX_SIZES]
    assert share_worth(in_millionths([*reversed(rare), (PodKind(1000, share=400), 99)])).price.tolist() == (
        worth.price.tolist()
    )
