"""Sweeps over processes: the same results as one after another, whichever worker dies."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from topo_scheduler.simulation import sweep as sweeping
from topo_scheduler.simulation.cases.model import CaseError
from topo_scheduler.simulation.policies.names import read_policies
from topo_scheduler.simulation.sweep import LostTask, Parcel, carry_out, sweep
from topo_scheduler.simulation.tasks import Done, Task, run

CLUSTER = "leaf-spine:spines=1,leaves=2,nodes=4,gpus=8"
WORKLOAD = "poisson:rate=60/h,jobs=20,sizes=1|8|16,duration=exponential:mean=10m"


def tasks(*seeds: int) -> list[Task]:
    return [Task(policy, seed, CLUSTER, WORKLOAD) for policy in read_policies("topo,best-fit") for seed in seeds]


def told(done: Done) -> tuple[object, bytes]:
    """What must be the same on every machine: all but the times that its clock took."""
    return done.run.model_copy(update={"wall_s": 0.0, "decisions_per_s": 0.0}), done.placements


@pytest.fixture(scope="module")
def alone() -> list[Done]:
    return [run(task) for task in tasks(1, 2)]


@pytest.mark.slow
class TestProcesses:
    def test_results_are_those_of_one_process(self, alone: list[Done]) -> None:
        results = dict(sweep(tasks(1, 2), workers=2))
        assert sorted(results) == [0, 1, 2, 3]
        for at, expected in enumerate(alone):
            done = results[at]
            assert isinstance(done, Done)
            assert told(done) == told(expected)

    def test_a_cluster_by_its_address_and_a_worker_that_is_killed(self, alone: list[Done]) -> None:
        with cluster() as (client, address):
            results: dict[int, Done | LostTask] = {}
            for at, done in sweep(tasks(1, 2), address=address):
                if not results:  # one is done: kill the worker that is at another one
                    kill_one(client)
                results[at] = done
        for at, expected in enumerate(alone):
            done = results[at]
            assert isinstance(done, Done)
            assert told(done) == told(expected)

    def test_a_task_that_kills_its_workers_is_lost_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sweeping, "carry_out", deadly)
        first, last = tasks(1, 2)[0], replace(tasks(1)[0], seed=666)
        results = dict(sweep([first, last], workers=2))
        assert isinstance(results[0], Done)
        assert isinstance(results[1], LostTask)
        assert "died while they ran it" in results[1].reason
        assert results[1].task.seed == 666

    def test_what_is_not_done_when_the_scheduler_goes_away_is_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sweeping, "carry_out", stuck)
        with cluster() as (client, address):
            results: dict[int, Done | LostTask] = {}
            for at, done in sweep([tasks(1)[0], replace(tasks(1)[0], seed=666)], address=address):
                if not results:
                    client.shutdown()
                results[at] = done
        assert isinstance(results[0], Done)
        assert isinstance(results[1], LostTask)
        assert "the Dask scheduler stopped" in results[1].reason

    def test_workers_do_not_hear_ctrl_c(self) -> None:
        with sweeping._client(1, "") as client:
            (before,) = client.run(interrupted).values()
            assert client.submit(os.getpid).result() == before, "it goes on"

    def test_a_case_that_cannot_be_used_is_reported(self) -> None:
        with pytest.raises(CaseError, match="leaf-spine"):
            list(sweep([replace(tasks(1)[0], cluster="leaf-spine:spines=none")], workers=1))


def test_ctrl_c_while_workers_start_ends_it_once_they_have() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever other tests of this process left
    steps = []
    with pytest.raises(KeyboardInterrupt):
        with sweeping.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            steps.append("started")
        steps.append("not reached")
    assert steps == ["started"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with sweeping.uninterrupted():
        pass


def test_a_signal_while_workers_start_ends_the_process_once_they_have() -> None:
    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    steps = []
    try:
        with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
            with sweeping.uninterrupted():
                signal.raise_signal(signal.SIGTERM)
                steps.append("started")
            steps.append("not reached")
        assert steps == ["started"]
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)


def test_no_dask_scheduler_listens() -> None:
    with pytest.raises(CaseError, match=r"no scheduler of Dask answers at tcp://127\.0\.0\.1:9"):
        list(sweep(tasks(1), address="tcp://127.0.0.1:9"))


def test_a_worker_of_another_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    parcel = next(sweeping._packed(tasks(1)))
    monkeypatch.setattr(sweeping, "__version__", "0.0.1")
    with pytest.raises(CaseError, match=r"a worker has topo-scheduler 0\.0\.1"):
        carry_out(parcel)


def interrupted() -> int:
    """Do to a worker what a terminal does on Ctrl-C; return its process."""
    os.kill(os.getpid(), signal.SIGINT)
    return os.getpid()


def deadly(parcel: Any) -> Done:
    if parcel.task.seed == 666:
        os.kill(os.getpid(), signal.SIGKILL)
    return carry_out(parcel)


def stuck(parcel: Parcel) -> Done:
    """Take long for one task."""
    if parcel.task.seed == 666:
        time.sleep(60)
    return carry_out(parcel)


@contextmanager
def cluster() -> Iterator[tuple[Any, str]]:
    """A Dask cluster of two workers that another program started."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as started,
        Client(started) as client,  # type: ignore[no-untyped-call]
    ):
        yield client, started.scheduler_address


def kill_one(client: Any) -> None:
    """Kill a worker that is busy, as a machine that fails would."""
    pids = client.run(os.getpid)
    busy = [worker for worker, at in client.processing().items() if at]
    os.kill(pids[busy[0] if busy else next(iter(pids))], signal.SIGKILL)
