"""Waiting ends on real streams: jobs of the Muri traces on hosts of the Lingjun fabric, in virtual time."""

from math import inf

import numpy as np
import pytest

from tests.e2e.real_input import data
from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import configured, fabric, gang
from tests.scheduling.stream import Run, Stream
from topo_scheduler.api.objects import Node
from topo_scheduler.simulation.cases.muri import read_muri
from topo_scheduler.simulation.cases.reading import read_cluster


def hosts(count: int) -> list[Node]:
    """Return the first hosts of the fabric, leaf by leaf, with 8 GPUs each."""
    return list(read_cluster(str(data("lingjun", "topo.csv"))).nodes[:count])


def stream(jobs: int, nodes: int, load: float, *, reserving: bool, says: bool) -> tuple[list[tuple[int, Run]], float]:
    """Let jobs of the trace come so fast that they ask for ``load`` times what the nodes have; return GPUs and runs.

    With the longest delay of a start after the first promise.
    """
    traced = [(job.gpus, job.at, job.seconds or 0.0) for job in read_muri(data("gangs", "muri", "trace2.csv"))[:jobs]]
    work = sum(gpus * seconds for gpus, _, seconds in traced)
    pace = work / (load * nodes * 8) / max(at for _, at, _ in traced)
    promised: dict[str, float] = {}

    def note(simulation: Stream) -> None:
        for held in simulation.driver.engine.reserving.holds:
            if held.start < inf:
                promised.setdefault(held.workload, held.latest)

    spec = f"{{reservation: {{enabled: {str(reserving).lower()}}}, preemption: {{enabled: false}}}}"
    simulated = Stream(hosts(nodes), configured(spec), note)
    runs = []
    for number, (gpus, at, seconds) in enumerate(traced):
        pods = gang(gpus // 8, name=f"job-{number}") if gpus > 8 else [make_pod(f"job-{number}", gpus=gpus)]
        for pod in pods:
            pod.metadata.creation_timestamp, pod.spec.restart_policy = timestamp(at * pace), "Never"
            if says:
                pod.metadata.annotations["topology.scheduler/expected-duration"] = f"{seconds:.0f}s"
        runs.append((gpus, simulated.submit(Run(pods, at * pace, seconds, min(gpus, 8)))))
    simulated.until(1e9, lambda: all(run.started is not None for _, run in runs))
    late = -inf
    for gpus, run in runs:
        id_ = run.pods[0].metadata.uid if gpus <= 8 else f"default/{run.pods[0].metadata.name.rpartition('-')[0]}"
        if id_ in promised:
            late = max(late, run.at + 3600 * waited(run) - promised[id_])
    return runs, late


def waited(run: Run) -> float:
    """Return the hours a job waited."""
    assert run.started is not None
    return (run.started - run.at) / 3600


def test_large_gangs_wait_less_and_no_gang_starts_later_than_promised() -> None:
    waits = {}
    for reserving in (False, True):
        runs, late = stream(400, 32, 0.95, reserving=reserving, says=True)
        large = np.array([waited(run) for gpus, run in runs if gpus > 8])
        every = np.array([waited(run) for _, run in runs])
        waits[reserving] = large
        print(
            f"reservations {reserving}: {len(large)} gangs of 16 and 32 GPUs waited {large.mean():.1f} h on average and"
            f" {large.max():.1f} h at most; all {len(every)} jobs {every.mean():.1f} h and {every.max():.1f} h"
        )
        # Timestamps have whole seconds.
        assert late <= 1.001
    assert waits[True].max() < waits[False].max()
    assert waits[True].mean() < waits[False].mean()


@pytest.mark.unrecorded
def test_whole_leaves_stay_whole_for_gangs_where_pods_alone_fill_leaves_that_are_broken() -> None:
    waits = {}
    for scoring in ("fragmentation", "fgd"):  # the published score takes the first of equal nodes
        config = configured(f"{{smallPods: {{scoring: {scoring}}}}}")
        simulated = Stream(fabric({"s/l1": 2, "s/l2": 2, "s/l3": 2}), config)
        for name, at, seconds in (("a", 0, 100), ("b", 1, 99), ("long", 2, 9000), ("late", 150, 9000)):
            simulated.submit(Run([make_pod(name, gpus=8, created=at)], at, seconds, 8))
        gangs = [simulated.submit(Run(gang(2, name=name, gpus=8), 200, 1000, 8)) for name in ("one", "two")]
        simulated.until(10_000, lambda gangs=gangs: all(run.started is not None for run in gangs))  # type: ignore[misc]
        waits[scoring] = sorted(round(3600 * waited(run)) for run in gangs)
    assert waits == {"fragmentation": [0, 0], "fgd": [0, 1000]}
