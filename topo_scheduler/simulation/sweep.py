"""Run many tasks in parallel, on the CPUs of this machine or on a Dask cluster, with the same results.

This process reads the cases once and sends them with the tasks, so workers need no files. If a worker dies, another one
repeats its task. A task whose workers die repeatedly is given up; the others continue.
"""

import pickle
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import resource_tracker
from typing import Any, Final

import zstandard

from topo_scheduler import __version__
from topo_scheduler.simulation import tasks as running
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.tasks import Done, Task

_CONNECT_SECONDS: Final = 10
_MAX_WORKER_DEATHS: Final = 3
"""Dask gives up a task after more worker deaths than this."""


@dataclass(frozen=True, slots=True)
class LostTask:
    """A task that was given up, and why."""

    task: Task
    reason: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """A task sent to a worker. Its cases are packed separately, so a worker unpacks shared cases only once.

    ``version`` is the version of topo-scheduler that packed it.
    """

    version: str
    task: Task
    cases: bytes


def sweep(tasks: Sequence[Task], *, workers: int = 0, address: str = "") -> Iterator[tuple[int, Done | LostTask]]:
    """Run tasks, and yield the position and the outcome of each as it ends.

    Args:
        tasks: the tasks.
        workers: number of processes to start on this machine.
        address: address of the scheduler of a Dask cluster, instead of local workers.

    Raises:
        CaseError: Dask is not installed, or the cluster or a case can't be used.
    """
    parcels = list(_packed(tasks))
    with _client(min(workers, len(tasks)), address) as client:
        from distributed import as_completed

        futures = {client.submit(carry_out, parcel, pure=False): position for position, parcel in enumerate(parcels)}
        for future in as_completed(futures):  # type: ignore[no-untyped-call]
            position = futures[future]
            yield position, _outcome(tasks[position], future)


def carry_out(parcel: Parcel) -> Done:
    """Run a task on a worker; raises as `tasks.run`."""
    if parcel.version != __version__:
        raise CaseError(
            f"--dask: a worker has topo-scheduler {__version__}, here it is {parcel.version}; install the same there"
        )
    cluster, workload = _opened(parcel.cases)
    return running.run(replace(parcel.task, cluster=cluster, workload=workload))


def _packed(tasks: Sequence[Task]) -> Iterator[Parcel]:
    packed_cases: dict[tuple[object, ...], bytes] = {}
    for task in tasks:
        case_key = (*_name(task.cluster), *_name(task.workload), task.seed, task.changes)
        if case_key not in packed_cases:
            packed_cases[case_key] = zstandard.compress(pickle.dumps(running.cases_of(task)))
        yield Parcel(__version__, replace(task, cluster="", workload="", changes=()), packed_cases[case_key])


def _name(case: str | ClusterCase | WorkloadCase) -> tuple[object, ...]:
    return ("spec", case) if isinstance(case, str) else ("value", id(case))


@lru_cache(maxsize=2)
def _opened(cases: bytes) -> tuple[ClusterCase, WorkloadCase]:
    case_pair: tuple[ClusterCase, WorkloadCase] = pickle.loads(zstandard.decompress(cases))
    return case_pair


def _outcome(task: Task, future: Any) -> Done | LostTask:
    from distributed import CancelledError, KilledWorker

    try:
        done: Done = future.result()
    except KilledWorker as error:
        return LostTask(task, f"{1 + error.allowed_failures} workers died while they ran it, probably out of memory")
    except CancelledError:
        return LostTask(
            task, "the Dask scheduler stopped, or cancelled the task; check that it runs, and simulate again"
        )
    except ModuleNotFoundError as error:
        raise CaseError(
            f"--dask: a worker can't import {error.name}; install topo-scheduler {__version__} there"
        ) from error
    return done


@contextmanager
def _client(workers: int, address: str) -> Iterator[Any]:
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise CaseError("--workers, --dask: Dask is not installed; pip install 'topo-scheduler[sweep]'") from error
    settings = {
        "distributed.logging.distributed": "error",
        "distributed.scheduler.allowed-failures": _MAX_WORKER_DEATHS,
    }
    with dask.config.set(settings):
        if not address:
            with ExitStack() as stack:
                with uninterrupted():
                    local = LocalCluster(  # type: ignore[no-untyped-call]
                        n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
                    )
                    stack.enter_context(local)
                yield stack.enter_context(Client(local))  # type: ignore[no-untyped-call]
            return
        try:
            client = Client(address, timeout=_CONNECT_SECONDS)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            raise CaseError(f"--dask: no scheduler of Dask answers at {address}: {error}") from error
        with client:
            if not client.scheduler_info()["workers"]:
                raise CaseError(
                    f"--dask: the scheduler at {address} has no workers; start some with `dask worker {address}`"
                )
            yield client


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer SIGINT, SIGTERM and SIGHUP to the end of the context. Threads and processes started inside ignore SIGINT.

    A terminal sends SIGINT to all processes of a command, but this process must stop its workers itself. A worker that
    receives SIGINT prints a traceback to the screen. A worker that receives it during its start is never stopped.
    """
    received: list[int] = []
    # Start it now: multiprocessing would start it with the first process, and thereby remove the mask in this thread.
    resource_tracker.ensure_running()
    handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    handled = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handled:
        signal.signal(number, lambda number, _: received.append(number))
    # Child processes and threads inherit a mask, but not a handler. Threads without the mask still receive the signal.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handled.items():
            signal.signal(number, handler)
    if received:
        handled[received[0]](received[0], None)
