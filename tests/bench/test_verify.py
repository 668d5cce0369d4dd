"""The verifier of races finds what is wrong in the objects of the API, and a run in which anything is wrong fails."""

import json
from pathlib import Path

import pytest

from tests.bench import objects
from tests.bench.__main__ import main as bench
from tests.bench.check import main as check
from tests.bench.check import write_baseline
from tests.bench.correct import wrong
from tests.bench.objects import Json
from tests.bench.results import Unusable, write
from tests.bench.synthetic_results import synthetic_parts, synthetic_run
from tests.bench.verify import verify

BANDWIDTH = "topology.scheduler/network-bandwidth"


def job(name: str, members: int, bandwidth: str = "") -> Json:
    body = objects.job(name, members, 8, {BANDWIDTH: bandwidth} if bandwidth else None)
    body["metadata"]["uid"] = f"uid-{name}"
    return body


def placed(owner: Json, *nodes: int) -> list[Json]:
    pods = []
    for index, number in enumerate(nodes):
        pod = objects.member_of_job(owner, index)
        pod["metadata"]["annotations"] = {"topology.scheduler/gang-id": f"job-{owner['metadata']['name']}"}
        pod["spec"]["nodeName"] = f"node-{number}"
        pods.append(pod)
    return pods


def checked(pods: list[Json], *jobs: Json, members: int = 2, complete: bool = True) -> list[str]:
    nodes = [objects.networked(objects.node(number)) for number in range(48)]
    verdict = verify(pods, nodes, jobs, members, complete=complete)
    assert verdict["wrong"] == len(verdict["first"])
    assert (verdict["correct_percent"] == 100.0) == (not verdict["wrong"])
    first: list[str] = verdict["first"]
    return first


def test_what_is_within_all_capacities_is_correct() -> None:
    gang, other = job("one", 2, "100Gb"), job("other", 2)
    pods = [*placed(gang, 0, 1), *placed(other, 2, 3), objects.pod("pending", 8, objects.OURS)]
    assert checked(pods, gang, other) == []


def test_a_node_that_holds_more_than_it_has_is_found() -> None:
    gang, other = job("one", 2), job("other", 2)
    assert checked([*placed(gang, 0, 1), *placed(other, 1, 2)], gang, other) == [
        "node node-1 is over its nvidia.com/gpu"
    ]


def test_a_gang_that_is_not_whole_or_not_in_one_leaf_is_found() -> None:
    gang = job("one", 2)
    assert checked(placed(gang, 0), gang) == ["gang one has 1 of 2 members bound"]
    assert checked(placed(gang, 0), gang, complete=False) == []
    assert checked(placed(gang, 0, 16), gang) == ["gang one is in 2 leaves, 1 hold it"]
    large = job("large", 24)
    assert checked(placed(large, *range(24)), large, members=24) == []


def test_a_node_whose_network_carries_less_than_was_promised_is_found() -> None:
    gang = job("one", 2, "500Gb")
    assert checked(placed(gang, 0, 1), gang) == [
        f"link of spine-0/leaf-0/node-{number} carries 400000 Mbit/s, 500000 were promised" for number in (0, 1)
    ]


def test_an_uplink_that_carries_less_than_two_gangs_were_promised_is_found() -> None:
    jobs = [job(name, 24, "100Gb") for name in ("one", "other")]
    first = placed(jobs[0], *range(24))
    assert checked(first, jobs[0], members=24) == []
    both = [*first, *placed(jobs[1], *range(24, 48))]
    assert checked(both, *jobs, members=24) == ["link of spine-0/leaf-1 carries 800000 Mbit/s, 1600000 were promised"]


def test_a_gang_that_asks_for_bandwidth_and_is_not_marked_is_found() -> None:
    gang = job("one", 2, "500Gb")
    pods = placed(gang, 0, 1)
    for pod in pods:
        del pod["metadata"]["annotations"]
    assert checked(pods, gang) == [f"pod one-{index} asks for bandwidth and bears no gang-id" for index in (0, 1)]


# ---------------------------------------------------------------- what it says counts

RIGHT = {"checked": 4000, "wrong": 0, "correct_percent": 100.0, "first": []}
WRONG = {"checked": 4000, "wrong": 1, "correct_percent": 99.975, "first": ["node n1 is over its nvidia.com/gpu"]}


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"verifier": WRONG}, "plain.here: 99.975 % of 4000 placements are correct, 100 % are wanted: node n1 is over"),
        ({"verifier": RIGHT, "bound": 3999, "wanted": 4000}, "plain.here: 3999 of 4000 pods were bound"),
        ({"broken_rules": 1, "first_broken_rules": ["moved"]}, "plain.here: 1 rules were broken: moved"),
        ({"settled": False}, "plain.here: gangs neither became whole"),
    ],
)
def test_a_run_with_anything_wrong_fails_and_is_no_baseline(
    figures: Json, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline, run = tmp_path / "baseline.json", tmp_path / "run.json"
    write_baseline(synthetic_run(synthetic_parts()), baseline)
    parts = synthetic_parts()
    parts["plain"]["figures"]["right"] = {"verifier": RIGHT, "bound": 8, "wanted": 8, "settled": True}
    assert wrong(parts) == []
    parts["plain"]["figures"]["here"] = figures
    write(run, synthetic_run(parts))
    assert check(["--from", str(run), "--baseline", str(baseline)]) == 1
    assert words in capsys.readouterr().err
    assert bench(["--from", str(run)]) == 1
    assert words in capsys.readouterr().err
    before = json.loads(baseline.read_text())
    with pytest.raises(Unusable, match="wrong placements"):
        write_baseline(synthetic_run(parts), baseline)
    assert json.loads(baseline.read_text()) == before


def test_without_anything_wrong_a_run_passes(tmp_path: Path) -> None:
    write(tmp_path / "run.json", synthetic_run(synthetic_parts()))
    assert bench(["--from", str(tmp_path / "run.json")]) == 0
