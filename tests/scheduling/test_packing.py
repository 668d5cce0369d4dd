"""What places hold of several classes, by the vectors of counts that could not be larger."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.scheduling.placing.model import packing
from topo_scheduler.scheduling.placing.model.packing import Frontier, SearchExhausted, Vector, VectorBudget

counts = st.tuples(*[st.integers(0, 3)] * 3)
frontiers = st.lists(counts, min_size=1, max_size=6)
PLENTY = 10**9


def below(vectors: Frontier, asked: Vector) -> set[Vector]:
    """All vectors that fit where these do."""
    return {
        vector
        for vector in product(*(range(count + 1) for count in asked))
        if any(all(have >= want for have, want in zip(other, vector, strict=True)) for other in vectors)
    }


@given(frontiers, frontiers, counts, st.booleans())
def test_two_places_hold_the_sums_of_what_each_holds(
    left: list[Vector], right: list[Vector], asked: Vector, many: bool
) -> None:
    clip = [tuple(map(min, vector, asked)) for vector in left], [tuple(map(min, vector, asked)) for vector in right]
    first, second = (packing.maximal(vectors, VectorBudget(PLENTY)) for vectors in clip)
    before = packing.MANY_PAIRS
    packing.MANY_PAIRS = 0 if many else before  # type: ignore[misc]
    try:
        both = packing.add(first, second, asked, VectorBudget(PLENTY))
        either = packing.either(first, second, asked, VectorBudget(PLENTY))
    finally:
        packing.MANY_PAIRS = before  # type: ignore[misc]
    sums = {
        tuple(map(min, map(sum, zip(a, b, strict=True)), asked))
        for a in below(first, asked)
        for b in below(second, asked)
    }
    assert below(both, asked) == below(tuple(sums), asked)
    assert below(either, asked) == below(first, asked) | below(second, asked)
    for frontier in (both, either):
        assert list(frontier) == sorted(frontier, reverse=True)
        assert packing.maximal(frontier, VectorBudget(PLENTY)) == frontier, "none is below another"


@given(st.tuples(*[st.integers(0, 6)] * 2), st.tuples(*[st.tuples(*[st.integers(0, 3)] * 2)] * 2), counts)
def test_a_node_holds_what_its_resources_allow(
    free: tuple[int, int], requests: tuple[tuple[int, int], tuple[int, int]], asked: Vector
) -> None:
    asked = asked[:2]
    fitting = {
        vector
        for vector in product(*(range(count + 1) for count in asked))
        if all(sum(n * request[at] for n, request in zip(vector, requests, strict=True)) <= free[at] for at in range(2))
    }
    assert below(packing.of_node(free, requests, asked, VectorBudget(PLENTY)), asked) == fitting


def test_the_work_is_bounded() -> None:
    wide = tuple((n, 20 - n, n % 3) for n in range(20))
    with pytest.raises(SearchExhausted):
        packing.add(wide, wide, (40, 40, 40), VectorBudget(10))
