"""Many tasks at once, on the CPUs of this machine or on a Dask cluster: the same code, and the same results.

Cases are read here, once, and travel with the tasks, so that workers need no files. A worker that dies costs the
task it was at, which another one begins again; a task of which workers die again and again is given up, alone.
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
_DEATHS: Final = 3
"""Of how many workers a task may be the last before it is given up."""


@dataclass(frozen=True, slots=True)
class LostTask:
    """A task that was given up, and why."""

    task: Task
    why: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """A task on its way, its cases apart: a worker opens those that many tasks share only once.

    ``version`` of topo-scheduler that packed it.
    """

    version: str
    task: Task
    cases: bytes


def sweep(tasks: Sequence[Task], *, workers: int = 0, address: str = "") -> Iterator[tuple[int, Done | LostTask]]:
    """Carry out tasks, and yield the position and the outcome of each as it ends.

    Args:
        tasks: which.
        workers: processes to start on this machine.
        address: of the scheduler of a Dask cluster, instead of these.

    Raises:
        CaseError: Dask is not installed, the cluster can't be used, or a case can't be.
    """
    parcels = list(_packed(tasks))
    with _client(min(workers, len(tasks)), address) as client:
        from distributed import as_completed

        futures = {client.submit(carry_out, one, pure=False): at for at, one in enumerate(parcels)}
        for future in as_completed(futures):
            at = futures[future]
            yield at, _outcome(tasks[at], future)


def carry_out(parcel: Parcel) -> Done:
    """Carry out a task that arrived at a worker; raises as `tasks.run`."""
    if parcel.version != __version__:
        raise CaseError(
            f"--dask: a worker has topo-scheduler {__version__}, here it is {parcel.version}; install the same there"
        )
    cluster, workload = _opened(parcel.cases)
    return running.run(replace(parcel.task, cluster=cluster, workload=workload))


def _packed(tasks: Sequence[Task]) -> Iterator[Parcel]:
    closed: dict[tuple[object, ...], bytes] = {}
    for task in tasks:
        read = (*_name(task.cluster), *_name(task.workload), task.seed, task.changes)
        if read not in closed:
            closed[read] = zstandard.compress(pickle.dumps(running.cases_of(task)))
        yield Parcel(__version__, replace(task, cluster="", workload="", changes=()), closed[read])


def _name(case: str | ClusterCase | WorkloadCase) -> tuple[object, ...]:
    return ("spec", case) if isinstance(case, str) else ("value", id(case))


@lru_cache(maxsize=2)
def _opened(cases: bytes) -> tuple[ClusterCase, WorkloadCase]:
    found: tuple[ClusterCase, WorkloadCase] = pickle.loads(zstandard.decompress(cases))
    return found


def _outcome(task: Task, future: Any) -> Done | LostTask:
    from distributed import CancelledError, KilledWorker

    try:
        done: Done = future.result()
    except KilledWorker as error:
        return LostTask(task, f"{1 + error.allowed_failures} workers died of it, most likely for want of memory")
    except CancelledError:
        return LostTask(task, "the scheduler of Dask went away, or gave it up; see that it runs, and simulate again")
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
    quiet = {"distributed.logging.distributed": "error", "distributed.scheduler.allowed-failures": _DEATHS}
    with dask.config.set(quiet):
        if not address:
            with ExitStack() as begun:
                with uninterrupted():
                    local = LocalCluster(
                        n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
                    )
                    begun.enter_context(local)
                yield begun.enter_context(Client(local))
            return
        try:
            client = Client(address, timeout=_CONNECT_SECONDS)
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
    """Put off Ctrl-C, SIGTERM and SIGHUP until the end. Threads and processes that begin meanwhile hear no Ctrl-C ever.

    A terminal sends it to all processes of a command. It is this one that ends the others, in order: a worker that is
    hit by it writes a traceback over the screen, and one that is hit while it starts is never told to end.
    """
    came: list[int] = []
    # multiprocessing starts this with its first process, in the same thread, and takes the mask away by that.
    resource_tracker.ensure_running()
    handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    handled = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handled:
        signal.signal(number, lambda number, _: came.append(number))
    # A mask passes on to what is begun, a handler does not; and a thread without the mask can still be hit.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handled.items():
            signal.signal(number, handler)
    if came:
        handled[came[0]](came[0], None)
