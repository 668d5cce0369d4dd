"""The same input and seed give the same result, byte for byte, in this process and in another."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
from msgspec import structs

from tests.cli.conftest import ROOT
from tests.simulate.cases import EVERY, cluster, job, share
from tests.simulate.cases import run as simulated
from topo_scheduler.api.objects import Pod
from topo_scheduler.simulation import tasks
from topo_scheduler.simulation.cases.model import Arrival, WorkloadCase
from topo_scheduler.simulation.policies.names import engine_of, read_policies
from topo_scheduler.simulation.tasks import Task, run

HOUR = 3600.0


def crowd() -> list[Arrival]:
    """Some jobs for a cluster of 4 nodes, more than it holds at a time."""
    return [
        share(f"s{n}", "0.25", n * 7.0, HOUR)
        if n % 5 == 0
        else job(f"j{n}", n * 7.0, 300.0 + 60 * (n % 7), pods=1 + 2 * (n % 3), gpus=1 + n % 8, priority=n % 2)
        for n in range(16)
    ]


def digest(policy: str, seed: int, fill: float | None = None) -> str:
    """Return all that is deterministic of a run, in short."""
    (parsed_policy,) = read_policies(policy)
    case = cluster({"s1/l1": 2, "s2/l1": 2}, sharing=True)
    done = run(Task(parsed_policy, seed, case, WorkloadCase("crowd", tuple(crowd())), fill))
    summary = done.run.model_copy(update={"wall_s": 0.0, "decisions_per_s": 0.0}).model_dump_json()
    return hashlib.sha256(summary.encode() + done.placements).hexdigest()


@pytest.mark.parametrize("policy", EVERY.split(","))
def test_again_it_is_the_same(policy: str) -> None:
    assert digest(policy, 3) == digest(policy, 3)
    assert digest(policy, 3, 1.3) == digest(policy, 3, 1.3)


def test_another_seed_gives_another_order() -> None:
    assert digest("topo", 1, 1.3) != digest("topo", 2, 1.3)
    assert digest("random", 1) != digest("random", 2)


def test_another_process_gives_the_same() -> None:
    script = "from tests.simulate.test_determinism import digest; print(digest('topo', 5), digest('random', 5, 1.3))"
    completed = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.split() == [digest("topo", 5), digest("random", 5, 1.3)]


def test_how_arrivals_are_grouped_in_a_fill_does_not_matter_to_baselines() -> None:
    """They are reported together only where each is tried in its turn all the same."""
    case = cluster({"s1/l1": 3}, sharing=True)
    arrivals = [replace(arrival, seconds=None) for arrival in crowd()]
    apart = [replace(arrival, pods=_in(arrival, f"ns-{number % 2}")) for number, arrival in enumerate(arrivals)]
    placements = [
        [(stay.pod, stay.node, stay.devices) for stay in simulated("best-fit", case, batch, seed=1, fill=1.3).stays]
        for batch in (arrivals, apart)
    ]
    assert placements[0] == placements[1]


@pytest.mark.parametrize("policy", ["topo", "best-fit"])
def test_explanations_change_no_decision(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = digest(policy, 4)

    monkeypatch.setattr(tasks, "engine_of", partial(engine_of, explains=True))
    assert digest(policy, 4) == quiet


def _in(arrival: Arrival, namespace: str) -> tuple[Pod, ...]:
    return tuple(
        structs.replace(pod, metadata=structs.replace(pod.metadata, namespace=namespace)) for pod in arrival.pods
    )
