"""What is learned about run times, and from how many of them."""

import pytest

from tests.helpers import controlled_by, make_pod, timestamp
from topo_scheduler.api.objects import ContainerState, ContainerStatus, Pod, Terminated
from topo_scheduler.state.statistics.run_times import (
    MAX_WORKLOADS,
    RUNS_PER_CLASS,
    CompletedRun,
    Likeness,
    RunKey,
    Runs,
    ended_of,
    likeness_of,
    recorded_size,
    run_of,
)

RUN = RunKey("default", "Job", "nightly", "train:1")
ALIKE = Likeness("default", "train:1", 4, 8)


def told(runs: Runs, *seconds: float, run: RunKey = RUN, likeness: Likeness | None = ALIKE, since: float = 0) -> None:
    for number, duration in enumerate(seconds):
        runs.note(run, CompletedRun(f"{run.name}-{since + number}", 1000 * (since + number + 1), duration), likeness)


def done(pod: Pod, started: float, finished: float | None) -> Pod:
    pod.status.phase, pod.status.start_time = "Succeeded", timestamp(started)
    if finished is not None:
        pod.status.container_statuses = [
            ContainerStatus("side", ContainerState(Terminated(timestamp(finished - 1)))),
            ContainerStatus("main", ContainerState(Terminated(timestamp(finished)))),
        ]
    return pod


def test_of_a_workload_the_longest_of_the_last_three_counts() -> None:
    runs = Runs()
    told(runs, 900, 100, 300, 200)
    assert runs.longest(RUN) == 300
    assert runs.longest(RunKey("other", "Job", "nightly")) == float("inf")
    assert runs.longest(RUN._replace(images="train:2")) == 300, "another image is another run of the same workload"


def test_of_ones_alike_nine_of_ten_took_no_longer() -> None:
    runs = Runs()
    told(runs, *range(1, 100))
    assert runs.of_similar(ALIKE) == 97, "of 80 to 99 the 18th"
    assert runs.of_similar(ALIKE, 1.0) == 99
    for other in (
        ALIKE._replace(namespace="b"),
        ALIKE._replace(images="x"),
        ALIKE._replace(members=5),
        ALIKE._replace(gpus=1),
    ):
        assert runs.of_similar(other) == float("inf")


def test_one_that_ran_for_very_long_among_many_decides_nothing() -> None:
    runs = Runs()
    told(runs, *[60] * 10, 10**6, *[60] * 9)
    assert runs.of_similar(ALIKE) == 60


def test_two_runs_do_not_suffice_yet() -> None:
    runs = Runs()
    told(runs, 60, 60)
    assert runs.of_similar(ALIKE) == float("inf")
    told(runs, 70, since=2)
    assert runs.of_similar(ALIKE) == 70


def test_the_pods_of_a_gang_are_one_run_and_the_gang_submitted_again_is_another() -> None:
    runs = Runs()
    for number, seconds in enumerate((50, 70, 60, 65)):
        runs.note(RUN, CompletedRun("default/g", 1000 + number, seconds), ALIKE)
    assert runs.longest(RUN) == 70
    assert runs.of_similar(ALIKE) == float("inf"), "one run, not four"
    for at in (2000, 3000, 4000):
        runs.note(RUN, CompletedRun("default/g", at, 10), ALIKE)
    assert runs.longest(RUN) == 10


def test_runs_reported_again_or_in_another_order_change_nothing() -> None:
    ended = [CompletedRun(str(number), 1000 * number, 10.0 * number) for number in range(1, 40)]
    forward, back = Runs(), Runs()
    for completed in ended:
        forward.note(RUN, completed, ALIKE)
    for completed in (*reversed(ended), *ended[:7]):
        back.note(RUN, completed, ALIKE)
    assert (forward.longest(RUN), forward.of_similar(ALIKE)) == (back.longest(RUN), back.of_similar(ALIKE))
    changes = back.changes
    back.note(RUN, ended[-1], ALIKE)
    assert back.changes == changes


def test_so_many_are_remembered_and_no_more() -> None:
    runs = Runs()
    for number in range(MAX_WORKLOADS + 5):
        run = RunKey("default", "Job", f"job{number}", f"image{number}")
        runs.note(run, CompletedRun(str(number), number, 1), likeness_of(run, 1, 1))
    assert len(runs) == MAX_WORKLOADS
    assert runs.longest(RunKey("default", "Job", "job4")) == float("inf")
    assert runs.longest(RunKey("default", "Job", "job5")) == 1
    assert RUNS_PER_CLASS == 20


def note_jobs(runs: Runs, namespace: str, numbers: range) -> list[RunKey]:
    """Note a run of each of several jobs of a namespace; return their keys."""
    keys = [RunKey(namespace, "Job", f"job{number}", f"image{number}") for number in numbers]
    for number, key in zip(numbers, keys, strict=True):
        for again in range(3):
            ended = CompletedRun(f"{number}-{again}", 100 * number + again, 1)
            runs.note(key, ended, likeness_of(key, 1, 1))
    return keys


def known(runs: Runs, keys: list[RunKey]) -> tuple[int, int]:
    """Return of how many jobs, and of how many classes, run times are known."""
    likenesses = [likeness_of(key, 1, 1) for key in keys]
    return (
        sum(runs.longest(key) < float("inf") for key in keys),
        sum(runs.of_similar(likeness) < float("inf") for likeness in likenesses),
    )


def test_runs_of_a_namespace_with_many_push_out_none_of_others() -> None:
    runs = Runs()
    victims = [note_jobs(runs, namespace, range(40)) for namespace in ("a", "b")]
    hostile = note_jobs(runs, "hostile", range(100, 100 + MAX_WORKLOADS))
    assert [known(runs, keys) for keys in victims] == [(40, 40), (40, 40)]
    left = MAX_WORKLOADS - 80
    assert known(runs, hostile) == (left, left)
    assert known(runs, hostile[-left:]) == (left, left), "its oldest go"
    assert known(runs, note_jobs(runs, "c", range(40))) == (40, 40)
    assert len(runs) == MAX_WORKLOADS


def test_a_namespace_with_as_many_runs_as_another_loses_its_own() -> None:
    runs = Runs()
    half = MAX_WORKLOADS // 2
    first, second = note_jobs(runs, "a", range(half)), note_jobs(runs, "b", range(half))
    more = note_jobs(runs, "b", range(half, half + 10))
    assert known(runs, first) == (half, half)
    assert known(runs, [*second[10:], *more]) == (half, half)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (make_pod("nightly-28391-x7k2p", owner=controlled_by("Job", "nightly-28391")), ("Job", "nightly")),
        (make_pod("train-7"), ("Pod", "train")),
        (make_pod("12345"), ("Pod", "12345")),
        (make_pod("nightly-1-22222-b2c4d-x"), ("Pod", "nightly-1-22222-b2c4d-x")),
        (make_pod("nightly--22222-b2c4d"), ("Pod", "nightly-")),
        (make_pod("-22222-7"), ("Pod", "-22222-7")),
    ],
)
def test_whose_run_it_is(pod: Pod, expected: tuple[str, str]) -> None:
    assert run_of(pod)[1:3] == expected


@pytest.mark.timeout(20)
@pytest.mark.parametrize("last", ["x", "7"])
def test_names_of_many_generated_parts_take_no_time(last: str) -> None:
    name = "a" + "-22222" * 40 + "-" + last
    assert run_of(make_pod(name)).name == ("a" if last == "7" else name)
    many = "a" + "-1" * 200_000 + "-" + last
    assert run_of(make_pod("a-0", owner=controlled_by("Job", many))).name == ("a" if last == "7" else many)


def test_how_long_a_pod_ran() -> None:
    epoch = 1_700_000_000
    pod = make_pod("p", annotations={"gang-id": "default/g"})
    assert ended_of(done(pod, 100, 160), None) == CompletedRun("default/g", epoch + 160, 60)
    assert ended_of(done(make_pod("p", uid="u"), 100, 160), epoch + 500) == CompletedRun("u", epoch + 160, 60), (
        "not when seen"
    )
    assert ended_of(done(make_pod("p"), 100, None), None) is None, "its end is unknown"
    assert ended_of(done(make_pod("p"), 100, 50), None) is None
    failed = done(make_pod("p"), 100, 160)
    failed.status.phase = "Failed"
    assert ended_of(failed, epoch + 160) is None


def test_the_size_of_a_gang_by_its_pod_alone() -> None:
    assert recorded_size(make_pod("p")) == 1
    assert recorded_size(make_pod("p", annotations={"gang-id": "default/g", "gang-size": "4"})) == 4
    assert recorded_size(make_pod("p", annotations={"gang-id": "uid-job"})) == 0
    assert likeness_of(RUN, 0, 8) is None
    assert likeness_of(RUN._replace(images=""), 4, 8) is None, "what it runs is not told"
