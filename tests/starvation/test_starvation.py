"""A pending job starts in the end, and no later than bounded: parts of what ``python -m tests.starvation`` proves."""

import pytest

from tests.e2e.real_input import data_folder
from tests.scheduling.driver import fabric
from tests.starvation.__main__ import Case, prove
from tests.starvation.proof import Proof, Told
from tests.starvation.streams import Job, names, read


def endless(hours: float = 4) -> list[Job]:
    """Jobs of half a host that come faster than four hosts serve them, and one of all four."""
    small = [Job(4, 120.0 * number, 2400.0) for number in range(int(hours * 30))]
    return sorted([*small, Job(32, 600.0, 3600.0)], key=lambda job: job.at)


@pytest.mark.parametrize("estimates", ["exact", "wrong", "learned", "not"])
def test_a_large_job_among_small_ones_without_end_starts(estimates: Told) -> None:
    outcome = Proof(fabric({"s1/l1": 4}), endless(), estimates).run()
    assert not outcome.wrong
    assert outcome.held


def test_the_proof_sees_it_starve_where_nothing_is_held() -> None:
    outcome = Proof(fabric({"s1/l1": 4}), endless(), "exact", reserving=False).run()
    assert any("of 32 GPUs" in wrong for wrong in outcome.wrong)


@pytest.mark.parametrize(
    "case",
    [
        Case("gavel/2869ce", 1.1, 8, "exact", part=True, job_limit=100),
        Case("gavel/2869ce", 0.95, 1, "wrong", part=True, job_limit=100),
        Case("gavel/11cb48", 1.1, 8, "not", part=True, job_limit=200),
        Case("muri/cluster_trace", 1.1, 8, "not", part=True, job_limit=100),
        Case("muri/trace2", 0.95, 8, "learned", part=True, job_limit=100),
        Case("muri/trace1", 1.1, 1, "exact", part=True, priorities=True, job_limit=100),
        Case("muri/trace2", 1.1, 8, "wrong", part=True, job_limit=100),
        Case("muri/trace2", 1.1, 8, "not", part=True, job_limit=100),
    ],
    ids=str,
)
def test_on_streams_of_real_clusters(case: Case) -> None:
    _, outcome, _, _ = prove(data_folder(), case)
    assert not outcome.wrong
    assert outcome.waited


def test_all_streams_are_read() -> None:
    folder = data_folder()
    jobs = {name: read(folder, name) for name in names(folder)}
    assert len(jobs) == 9
    assert sum(len(stream_jobs) for stream_jobs in jobs.values()) == 15_321
    assert all(job.seconds >= 1 and job.gpus >= 1 for stream_jobs in jobs.values() for job in stream_jobs)
