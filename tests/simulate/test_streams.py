"""Gangs in the fewest leaves there are, by brute force; and the runner for real streams."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.real_input import data_folder
from tests.simulate import streams
from tests.simulate.cases import cluster, job, run, where
from topo_scheduler.simulation.cases.amounts import arrival_milli
from topo_scheduler.simulation.cases.model import Arrival, ClusterCase, WorkloadCase
from topo_scheduler.simulation.virtual.history import RunHistory


def fewest(free: dict[str, int], members: int) -> int:
    """Return in how few leaves of one spine, or else of any, so many whole nodes are free: every choice is tried."""
    for same_spine in (True, False):
        for count in range(1, len(free) + 1):
            for leaves in combinations(sorted(free), count):
                if same_spine and len({leaf.split("/")[0] for leaf in leaves}) > 1:
                    continue
                if sum(free[leaf] for leaf in leaves) >= members:
                    return count
    return 0


def spanned(history: RunHistory, name: str) -> set[str]:
    """Return the leaves in which a gang lies, by path."""
    path = {node: "/".join(path) for node, path in zip(history.nodes, history.paths, strict=True)}
    return {path[node] for node in where(history).get(name, [])}


@settings(max_examples=60, deadline=None)
@given(
    leaves=st.lists(st.integers(1, 4), min_size=2, max_size=6),
    split=st.integers(1, 5),
    sizes=st.lists(st.integers(2, 7), min_size=1, max_size=3),
)
def test_every_gang_lies_in_as_few_leaves_as_could_hold_it(leaves: list[int], split: int, sizes: list[int]) -> None:
    shape = {f"s{1 + (number >= split)}/l{number}": nodes for number, nodes in enumerate(leaves)}
    case, gangs = _gangs(shape, sizes)
    history = run("topo", case, gangs)
    for number, size in enumerate(sizes):
        occupied, least = spanned(history, f"g{number}"), fewest(shape, size)
        # One after the other on an empty cluster: each has what the empty cluster could give it.
        assert len(occupied) == least, (shape, sizes, occupied)
        if least and _in_one_spine(shape, size):
            assert len({leaf.split("/")[0] for leaf in occupied}) == 1


def _gangs(shape: dict[str, int], sizes: Sequence[int]) -> tuple[ClusterCase, list[Arrival]]:
    return cluster(shape), [
        job(f"g{number}", at=100.0 * number, seconds=50.0, pods=size, gpus=8) for number, size in enumerate(sizes)
    ]


def _in_one_spine(shape: dict[str, int], size: int) -> bool:
    spines = {leaf.split("/")[0] for leaf in shape}
    return any(sum(nodes for leaf, nodes in shape.items() if leaf.startswith(f"{spine}/")) >= size for spine in spines)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_the_real_fabric_ours_crosses_fewer_leaves_than_all_others() -> None:
    folder = data_folder()
    case = streams.Case("muri/trace2.csv", 1.1, 8, 150)
    policies = ("topo", "greedy", "rack", "best-fit", "random")
    by_policy = {row.policy: row for row in streams.rows(folder, case, policies, (42,))}
    (verdict,) = streams.verdicts(list(by_policy.values()))
    assert verdict.startswith("topo, seed 42: from 64 GPUs on (")
    ours = by_policy.pop("topo").run
    assert by_policy.pop("greedy").run.span == ours.span, "nothing waits in so short a stream"
    assert ours.span.gangs and ours.span.leaves_mean is not None and ours.slowdown is not None
    for row in by_policy.values():
        assert row.run.span.leaves_mean is not None and row.run.slowdown is not None
        assert ours.span.leaves_mean < row.run.span.leaves_mean
        assert ours.span.crossing_leaf <= row.run.span.crossing_leaf
        assert (ours.slowdown.mean or 0) <= (row.run.slowdown.mean or 0)
        assert streams.line(row)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_leaves_that_a_real_stream_fills_large_gangs_wait_less_with_reservations_and_as_much_is_used() -> None:
    folder = data_folder()
    case = streams.Case("muri/trace2.csv", 1.1, 8, 400, leaves=8)
    held, greedy = streams.rows(folder, case, ("topo", "greedy"), (42,))
    assert greedy.steady.utilisation > 80, "it is loaded"
    assert held.steady.utilisation > 0.99 * greedy.steady.utilisation
    assert held.steady.large[2] < 0.8 * greedy.steady.large[2]


def test_large_jobs_are_those_from_so_many_gpus_on_and_one_that_never_runs_waits_for_ever() -> None:
    arrivals = [job("a", seconds=10.0, gpus=8), job("b", seconds=10.0, gpus=8), job("c", seconds=10.0, gpus=1)]
    history = run("topo", cluster({"s/l": 1}), [*arrivals, job("d", pods=2, gpus=8)])
    assert streams.waits_of_large(history.outcomes, 1) == (10.0, inf, inf)
    assert streams.waits_of_large(history.outcomes, 16) == (inf, inf, inf)


def test_waits_are_reported_beside_those_on_a_pool_of_as_many_gpus() -> None:
    cluster_case = cluster({"s/l": 2})
    arrivals = [
        job("a", seconds=7200.0, gpus=8),
        job("b", pods=2, seconds=3600.0, gpus=8),
        job("c", seconds=3600.0, gpus=8),
    ]
    lines = list(
        streams.on_a_pool(streams.Case("x", 1.0, 1, 3, warm_up=0.0), cluster_case, WorkloadCase("x", tuple(arrivals)))
    )
    assert lines == [
        "a pool of as many GPUs, oldest first: wait p99 of large 2.0 h, of all 2.0 h",
        "a pool of as many GPUs, largest first: wait p99 of large 0.0 h, of all 1.0 h",
        "a pool without any but large: 0.0 h",
    ]


def test_a_case_is_read_as_the_simulator_reads_it() -> None:
    case = streams.Case("x", 1.1, 8, 2)
    assert case.workload(Path("/d")) == "/d/gangs/x@jobs=2,gangs=8,durations=annotated,priorities=ignored,load=1.1"
    again = streams.Case("x", 1.1, 1, 0, "unknown", repeat=3)
    assert again.workload(Path("/d")) == "/d/gangs/x@gangs=1,repeat=3,durations=unknown,priorities=ignored,load=1.1"
    assert (case.large, again.large) == (64, 16)


def test_large_jobs_may_have_the_higher_priority() -> None:
    folder = data_folder()
    for first in (False, True):
        _, workload = streams.Case("muri/trace2.csv", 1.1, 8, 30, leaves=16, large_first=first).read(folder)
        priorities = {
            (arrival_milli(arrival) >= 64_000, pod.spec.priority)
            for arrival in workload.arrivals
            for pod in arrival.pods
        }
        assert len(priorities) == 2 and (((True, 1) in priorities) is first)


def test_a_part_of_the_fabric_has_whole_leaves_only() -> None:
    folder = data_folder()
    part = streams.fabric(folder, 16)
    leaves = Counter(
        tuple(node.metadata.labels[f"topology.scheduler/{name}"] for name in ("core", "spine", "leaf"))
        for node in part.nodes
    )
    assert list(leaves.values()) == [8] * 16
    assert len(streams.fabric(folder, 0).nodes) == 847
    with pytest.raises(SystemExit, match="has 68 leaves of 8 hosts, not 69"):
        streams.fabric(folder, 69)


def test_after_the_warm_up_only_those_count_that_came_later() -> None:
    early = [job(f"e{number}", seconds=100.0, gpus=8) for number in range(3)]
    late = [job("l", at=200.0, seconds=50.0, gpus=8), job("m", at=400.0, seconds=50.0, pods=2, gpus=8)]
    history = run("topo", cluster({"s/l": 2}), [*early, *late])
    steady = streams.steady(history, 16, 0.25)
    # On two nodes: the third of the first until 200 s, the late one until 250 s.
    assert steady.utilisation == pytest.approx(100 * (100 + 50) / (2 * 300), abs=1e-3)
    assert [(wait.gpus, wait.workloads) for wait in steady.wait] == [("all", 2), ("5-8", 1), ("9-16", 1)]
    assert steady.large == (0.0, 0.0, 0.0)
    assert steady.share == pytest.approx(2 / 3)
