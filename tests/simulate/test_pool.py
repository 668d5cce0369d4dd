"""The pool that waits of real streams are compared with."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulate.pool import ORDERS, PoolJob, waits

GPU = 1000


def _jobs(*specs: tuple[float, float, int]) -> list[PoolJob]:
    return [PoolJob(arrived, seconds, GPU * gpus) for arrived, seconds, gpus in specs]


def test_a_younger_job_goes_ahead_only_where_the_oldest_is_not_delayed() -> None:
    jobs = _jobs((0, 10, 3), (1, 10, 4), (2, 8, 1), (3, 8, 1))
    # The third ends when the first does; the fourth would end a second later.
    assert waits(jobs, 4 * GPU) == [0, 9, 0, 17]


def test_what_the_oldest_leaves_over_may_be_used_for_longer() -> None:
    jobs = _jobs((0, 10, 3), (1, 10, 3), (2, 100, 1))
    assert waits(jobs, 4 * GPU) == [0, 9, 0]


def test_the_largest_may_go_first() -> None:
    jobs = _jobs((0, 10, 2), (1, 10, 1), (2, 10, 2))
    assert waits(jobs, 2 * GPU) == [0, 9, 18]
    assert waits(jobs, 2 * GPU, ORDERS["largest first"]) == [0, 19, 8]


def test_a_job_larger_than_all_is_refused() -> None:
    with pytest.raises(ValueError, match="5000 thousandths of GPUs, more than there are"):
        waits(_jobs((0, 1, 5)), 4 * GPU)


streams = st.lists(
    st.builds(
        PoolJob, st.integers(0, 30).map(float), st.integers(1, 12).map(float), st.integers(1, 6).map(lambda n: n * GPU)
    ),
    max_size=14,
)


@given(jobs=streams, order=st.sampled_from(sorted(ORDERS)))
def test_no_more_is_in_use_than_there_is_and_the_first_in_line_waits_only_for_room(
    jobs: list[PoolJob], order: str
) -> None:
    began = [job.arrived + wait for job, wait in zip(jobs, waits(jobs, 6 * GPU, ORDERS[order]), strict=True)]
    moments = sorted({0.0, *began, *(start + job.seconds for start, job in zip(began, jobs, strict=True))})
    for moment, after in pairwise([*moments, moments[-1] + 1]):
        runs = [job.milli for job, start in zip(jobs, began, strict=True) if start <= moment < start + job.seconds]
        assert sum(runs) <= 6 * GPU
        between = [
            (ORDERS[order](job), job.arrived, number)
            for number, job in enumerate(jobs)
            if job.arrived < after and max(job.arrived, moment) < min(after, began[number])
        ]
        if between:
            assert jobs[min(between)[2]].milli > 6 * GPU - sum(runs)


@given(jobs=streams)
def test_a_job_that_goes_ahead_does_not_delay_the_oldest_that_waits(jobs: list[PoolJob]) -> None:
    began = [job.arrived + wait for job, wait in zip(jobs, waits(jobs, 6 * GPU), strict=True)]
    for number, job in enumerate(jobs):
        older = {place for place, other in enumerate(jobs) if (other.arrived, place) < (job.arrived, number)}
        oldest_since = max([job.arrived, *(began[place] for place in older)])
        # Those that run then and began before, or are older: no job that starts later may keep it from what they free.
        before = [
            (began[place] + other.seconds, other.milli)
            for place, other in enumerate(jobs)
            if place != number and (place in older or began[place] < oldest_since)
        ]
        room_at = min(
            moment
            for moment in (oldest_since, *(end for end, _ in before))
            if moment >= oldest_since and sum(milli for end, milli in before if end > moment) + job.milli <= 6 * GPU
        )
        assert began[number] <= room_at
