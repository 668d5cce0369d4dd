"""Our filters say what kube-scheduler's say, for every pair of a pod and a node."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from topo_scheduler.cli.filtering import filter_snapshot

from .comparison import CASES, Difference, differences, pairs, pending_names, read_case
from .generator import snapshot
from .oracle import Answer, Oracle
from .shrink import shrink

PAIRS = 20_000
FIRST_SEED = 1_000_000

PLUGINS = {
    "NodeUnschedulable",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
    "NodeDeclaredFeatures",
}
"""All that filter but NodeName: a pod that names its node is pending nowhere. It has a case."""

CASE_FILES = sorted(CASES.glob("*.json"))


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as running:
        yield running


@pytest.mark.real
@pytest.mark.timeout(3600)
def test_random_snapshots_get_the_same_answer(oracle: Oracle) -> None:
    compared, seed = 0, FIRST_SEED
    differing: dict[int, list[Difference]] = {}
    while compared < PAIRS:
        case = snapshot(seed)
        if difference := differences(case, oracle.answer(case), filter_snapshot(case)):
            differing[seed] = difference
        compared += pairs(case)
        seed += 1
    assert not differing, f"python -m tests.differential --seed {next(iter(differing))} --pairs 1 makes it small"


@pytest.mark.real
@pytest.mark.timeout(3600)
def test_random_snapshots_reach_every_plugin(oracle: Oracle) -> None:
    said: Counter[str] = Counter()
    accepted = 0
    for seed in range(FIRST_SEED, FIRST_SEED + 100):
        answer = oracle.answer(snapshot(seed))
        accepted += sum(map(len, answer.feasible.values()))
        said.update(reason.partition(":")[0] for reasons in answer.reasons.values() for reason in reasons.values())
    assert set(said) == PLUGINS
    assert min(said.values()) >= 50
    assert 0.2 * said.total() < accepted < 2 * said.total()


@pytest.mark.parametrize("path", CASE_FILES, ids=lambda path: path.stem)
def test_cases_get_the_recorded_answer(path: Path) -> None:
    case = read_case(path)
    recorded = Answer(case["feasible"], case["reasons"])
    assert not differences(case["snapshot"], recorded, filter_snapshot(case["snapshot"])), case["description"]


@pytest.mark.real
@pytest.mark.timeout(3600)
def test_the_recorded_answers_are_kube_schedulers(oracle: Oracle) -> None:
    for path in CASE_FILES:
        case = read_case(path)
        answer = oracle.answer(case["snapshot"])
        assert answer.feasible == case["feasible"], f"{path.name}: {case['description']}"


def test_a_seed_always_gives_the_same_snapshot() -> None:
    assert json.dumps(snapshot(7)) == json.dumps(snapshot(7))
    assert snapshot(7) != snapshot(8)


def test_shrinking_leaves_what_matters() -> None:
    case = snapshot(3)
    name = pending_names(case)[4]

    def holds(smaller: Mapping[str, Any]) -> bool:
        return name in pending_names(smaller) and len(smaller["nodes"]) >= 2

    small = shrink(case, holds)
    assert pending_names(small) == [name]
    assert len(small["nodes"]) == 2
    assert not small["pods"]
    assert set(small["pending"][0]) == {"metadata", "spec", "status"}
