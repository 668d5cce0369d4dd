"""What holds of every run: no GPU is used twice, gangs run whole, and waits are those of a queue."""

from collections import defaultdict
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_pod
from tests.scheduling.storage import LOCAL, claim, using, volume, zoned
from tests.simulate.cases import EVERY, cluster, job, run, share, where
from topo_scheduler.api.storage import ClaimReference
from topo_scheduler.simulation.cases.model import Arrival, ClusterCase
from topo_scheduler.simulation.virtual.history import BEFORE, RunHistory
from topo_scheduler.state.storage.claim_annotations import BIND_COMPLETED

POLICIES = EVERY.split(",")


def check(history: RunHistory) -> None:
    """No node holds more than it has at any moment, no GPU more than itself, and gangs run whole."""
    for node in range(len(history.nodes)):
        stays = [stay for stay in history.stays if stay.node == node]
        for moment in {stay.start for stay in stays}:
            here = [stay for stay in stays if stay.start <= moment < stay.end]
            assert sum(stay.milli for stay in here) <= history.capacity[node]
            devices: dict[int, int] = defaultdict(int)
            for stay in here:
                for device in stay.devices:
                    devices[device] += min(stay.milli, 1000)
            assert all(held <= 1000 for held in devices.values())
            assert all(1000 * device < history.capacity[node] for device in devices)
    for number, outcome in enumerate(history.outcomes):
        stays = [stay for stay in history.stays if stay.job == number]
        assert len(stays) in (0, outcome.pods), "all of a gang, or none"
        assert len({stay.start for stay in stays}) <= 1
        assert (outcome.started < inf) == bool(stays)
        assert all(stay.start == outcome.started >= outcome.arrived for stay in stays)
        assert all(stay.end == outcome.ended for stay in stays)


arrivals = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.one_of(st.none(), st.integers(1, 300)),
        st.integers(1, 5),
        st.integers(0, 8),
        st.sampled_from([None, "0.25", "0.7"]),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(drawn=arrivals, policy=st.sampled_from(POLICIES), latency=st.sampled_from([0.0, 2.5]))
def test_no_gpu_is_used_twice_and_gangs_run_whole(
    drawn: list[tuple[int, int | None, int, int, str | None]], policy: str, latency: float
) -> None:
    jobs = [
        share(f"j{number}", part, float(at), seconds)
        if part and pods == 1
        else job(f"j{number}", float(at), seconds, pods=pods, gpus=gpus)
        for number, (at, seconds, pods, gpus, part) in enumerate(sorted(drawn, key=lambda entry: entry[0]))
    ]
    case = cluster({"s1/l1": 2, "s1/l2": 1, "s2/l1": 2}, sharing=True)
    history = run(policy, case, jobs, latency=latency)
    check(history)
    for arrival, outcome in zip(jobs, history.outcomes, strict=True):
        if arrival.seconds is not None and outcome.started < inf:
            assert outcome.ended == pytest.approx(outcome.started + arrival.seconds)
        if outcome.started < inf:
            assert outcome.started >= outcome.arrived + latency


def by_hand(jobs: list[Arrival], gpus: list[int], capacity: int) -> list[float]:
    """Return the waits on one node: whenever a job comes or ends, the first that fits starts."""
    waits, running, waiting, left = [inf] * len(jobs), list[tuple[float, int]](), list[int](), capacity
    moments = {arrival.at for arrival in jobs}
    while moments:
        now = min(moments)
        moments.discard(now)
        left += sum(held for end, held in running if end == now)
        running = [(end, held) for end, held in running if end != now]
        waiting += [number for number, arrival in enumerate(jobs) if arrival.at == now]
        for number in list(waiting):
            if gpus[number] <= left:
                waiting.remove(number)
                left -= gpus[number]
                end = now + (jobs[number].seconds or inf)
                waits[number] = now - jobs[number].at
                running.append((end, gpus[number]))
                if end < inf:
                    moments.add(end)
    return waits


@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60), st.integers(1, 8)), max_size=10),
    policy=st.sampled_from([name for name in POLICIES if name != "topo"]),
)
def test_waits_are_those_of_a_queue_worked_out_by_hand(drawn: list[tuple[int, int, int]], policy: str) -> None:
    drawn = sorted(drawn, key=lambda entry: entry[0])
    jobs = [job(f"j{n}", float(at), float(seconds), gpus=gpus) for n, (at, seconds, gpus) in enumerate(drawn)]
    history = run(policy, cluster({"s1/l1": 1}), jobs)
    expected = by_hand(jobs, [gpus for _, _, gpus in drawn], 8)
    assert [outcome.started - outcome.arrived for outcome in history.outcomes] == pytest.approx(expected)


def test_a_job_that_can_never_run_is_left_behind() -> None:
    history = run("topo", cluster({"s1/l1": 1}), [job("large", gpus=9), job("small", 5.0, 10.0, gpus=1)])
    assert [outcome.started for outcome in history.outcomes] == [inf, 5.0]
    assert history.end == 15.0


def test_of_those_that_come_at_one_moment_the_first_of_the_source_goes_first() -> None:
    jobs = [job(name, 0.0, 10.0, gpus=8) for name in ("z", "a", "m")]
    for policy in POLICIES:
        history = run(policy, cluster({"s1/l1": 1}), jobs)
        assert [outcome.started for outcome in history.outcomes] == [0.0, 10.0, 20.0], policy


def test_a_job_that_is_preempted_begins_again() -> None:
    jobs = [job("low", 0.0, 100.0, gpus=8), job("high", 40.0, 10.0, gpus=8, priority=5)]
    history = run("topo", cluster({"s1/l1": 1}), jobs)
    low, high = history.outcomes
    assert (high.started, high.ended) == (40.0, 50.0)
    assert (low.started, low.ended, low.restarts) == (0.0, 150.0, 1)
    assert history.evictions == 1


def test_a_pod_that_ran_before_is_preempted_too_and_is_created_again() -> None:
    running_pods = [
        make_pod(f"old-{number}", gpus=4, node="s1-l1-1", phase="Running", annotations={**gang, "rank": str(number)})
        for number, gang in enumerate([{"gang-name": "old", "gang-size": "2"}] * 2)
    ]
    case = replace(cluster({"s1/l1": 1}), pods=tuple(running_pods))
    history = run("topo", case, [job("high", 40.0, 10.0, gpus=8, priority=5)])
    (high,) = history.outcomes
    assert (high.started, high.ended, history.evictions) == (40.0, 50.0, 2)
    before = sorted((stay.pod, stay.start, stay.end) for stay in history.stays if stay.job == BEFORE)
    assert before == [("old-0", 0.0, 40.0), ("old-0", 50.0, inf), ("old-1", 0.0, 40.0), ("old-1", 50.0, inf)]
    check(replace(history, outcomes=[], stays=history.stays))


def test_in_a_fill_a_running_pod_is_preempted_when_the_other_comes() -> None:
    running_pod = make_pod("there", gpus=8, node="s1-l1-1", phase="Running")
    case = replace(cluster({"s1/l1": 2}), pods=(running_pod,))
    history = run("topo", case, [job("low", gpus=8), job("high", gpus=8, priority=5)], fill=1.0)
    assert [outcome.name for outcome in history.outcomes] == ["low", "high"], "as the seed has it"
    assert history.evictions == 1
    assert {(stay.end, stay.start) for stay in history.stays} == {(1.0, 0.0), (inf, 0.0), (inf, 1.0)}


def test_in_a_fill_no_pod_leaves_and_each_is_tried_in_its_turn() -> None:
    jobs = [job(f"j{n}", 0.0, 10.0, gpus=1 + n % 3) for n in range(12)]
    history = run("fgd", cluster({"s1/l1": 1, "s1/l2": 1}), jobs, fill=1.5)
    assert history.order
    assert sum(outcome.milli for outcome in history.outcomes) <= 1.5 * 16_000
    assert all(stay.end == inf and stay.start == stay.job for stay in history.stays)
    assert len({outcome.name for outcome in history.outcomes}) == len(history.outcomes), "each run is another job"
    assert 14_000 <= sum(stay.milli for stay in history.stays) <= 16_000


def test_pods_that_run_already_hold_what_they_have() -> None:
    case = cluster({"s1/l1": 2})
    running_pod = make_pod("there", gpus=8, node="s1-l1-1", phase="Running", scheduler="default-scheduler")
    waits = make_pod("waits", gpus=4)
    case = replace(case, pods=(running_pod, waits))
    history = run("best-fit", case, [job("a", 5.0, 10.0, gpus=4), job("b", 6.0, 10.0, gpus=4)])
    assert where(history)["default/waits"] == ["s1-l1-2"]
    assert [outcome.started for outcome in history.outcomes] == [0.0, 5.0, 15.0]


def test_claims_hold_pods_to_where_their_volumes_are() -> None:
    bound = claim("data", LOCAL)
    bound.spec.volume_name, bound.status.phase = "disk", "Bound"
    bound.metadata.annotations = {BIND_COMPLETED: "yes"}
    disk = volume("disk", node="n2")
    disk.spec.claim_ref = ClaimReference("default", "data", bound.metadata.uid)
    stored = {"persistentvolumeclaims": (bound,), "persistentvolumes": (disk,)}
    case = ClusterCase("small", tuple(zoned("a", "a", "b")), storage=stored)
    arrivals = [
        Arrival("reads", 0.0, 60.0, (using("data", name="reads", uid="reads"),)),
        Arrival("lacks", 0.0, 60.0, (using("none", name="lacks", uid="lacks"),)),
    ]
    for policy in ("topo", "random"):
        assert where(run(policy, case, arrivals)) == {"reads": ["n2"]}
