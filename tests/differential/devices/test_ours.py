"""Our allocator against kube-scheduler's: on Kubernetes' own table of cases, and on random ones."""

import pytest

from .comparison import compare
from .generator import random_case
from .oracle import Oracle
from .ours import allocate
from .upstream import compare_upstream

CASES = 500
FIRST_SEED = 2_000_000


def test_on_the_table_of_kubernetes() -> None:
    comparison = compare_upstream(allocate)
    assert comparison.cases > 190
    assert not comparison.differences


@pytest.mark.real
@pytest.mark.timeout(600)
def test_on_random_cases() -> None:
    with Oracle() as oracle:
        comparison = compare(map(random_case, range(FIRST_SEED, FIRST_SEED + CASES)), allocate, oracle)
    assert comparison.cases == CASES
    assert not comparison.differences
    assert len(comparison.order_dependent) < CASES / 50
