"""Events of gangs whose pods come one by one: each pod soon, the truth in the end, and not much in between."""

from collections import Counter
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduling.driver import Driver, fabric, gang
from topo_scheduler.scheduling.instructions import EmitEvent
from topo_scheduler.scheduling.queueing.unschedulable import (
    MAX_REPORT_DELAY_SECONDS,
    MAX_REPORT_PAUSE_SECONDS,
    REPORT_DELAY_SECONDS,
)


def arrive(d: Driver, size: int, gaps: list[float]) -> list[str]:
    """Let a pod come after each gap, in seconds; return their uids."""
    pods = gang(size)[: len(gaps)]
    for pod, gap in zip(pods, gaps, strict=True):
        pass_time(d, gap)
        d.apply(pod)
    return [pod.metadata.uid for pod in pods]


def pass_time(d: Driver, seconds: float) -> None:
    """Let the engine have its turn whenever it wants one, as the daemon does."""
    until = d.now + seconds
    d.step()
    while (due := d.engine.next_due()) is not None and due <= until:
        d.step(max(0.0, due - d.now))
    d.step(until - d.now)


def last_told(d: Driver) -> dict[str, str]:
    return {said.pod.uid: said.message for said in d.said if isinstance(said, EmitEvent)}


@pytest.mark.parametrize("gap", [1.0, 3.0, 10.0, 60.0, 600.0])
def test_a_gang_that_comes_slowly_gets_a_few_events_a_pod(gap: float) -> None:
    """Otherwise each of 200 pods would get an event for each that came: 20,000 events."""
    d = Driver(fabric({"s1/l1": 4}))
    uids = arrive(d, 201, [gap] * 200)
    late = MAX_REPORT_DELAY_SECONDS if gap < REPORT_DELAY_SECONDS else 2 * gap
    assert set(last_told(d)) >= set(uids[: -2 - int(late / gap)])
    assert len(d.told()) <= 200 * (log2(gap + 2) + 2)
    pass_time(d, 4 * gap + 10)
    assert last_told(d) == dict.fromkeys(uids, "Gang g is waiting for 1 of 201 pods")
    assert len(d.told()) <= 200 * (log2(gap + 2) + 3)
    said = len(d.told())
    pass_time(d, 100_000)
    assert len(d.told()) == said


@pytest.mark.parametrize("size", [64, 256])
def test_pods_of_a_gang_that_are_made_one_after_the_other_get_one_event_with_the_reason(size: int) -> None:
    """kube-controller-manager makes 20 a second; the event says that there is no room, not first which pods lack."""
    d = Driver(fabric({"s1/l1": 4}))
    uids = arrive(d, size, [0.05] * size)
    pass_time(d, 60.0)
    assert Counter(said.pod.uid for said in d.said if isinstance(said, EmitEvent)) == dict.fromkeys(uids, 1)
    (text,) = set(last_told(d).values())
    assert "nodes are available" in text


def test_small_gangs_get_an_event_for_every_pod_that_comes() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    arrive(d, 9, [60.0] * 8)
    pass_time(d, 60.0)
    assert Counter(d.told())["Gang g is waiting for 1 of 9 pods"] == 8
    assert len(d.told()) == sum(range(1, 9))


def test_a_pod_that_is_made_again_and_again_does_not_cause_events_for_all_each_time() -> None:
    """The gang has no room, so events say that to all when it is whole, and that it waits when it is not."""
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(50)
    d.apply(*pods)
    d.step()
    for number in range(100):
        d.delete(pods[0])
        pass_time(d, 5.0)
        pods[0].metadata.uid = f"again-{number}"
        d.apply(pods[0])
        pass_time(d, 5.0)
    assert len(d.told()) <= 50 * 12 + 2 * 100
    d.delete(pods[0])
    pass_time(d, MAX_REPORT_PAUSE_SECONDS + REPORT_DELAY_SECONDS)
    messages = last_told(d)
    assert {messages[pod.metadata.uid] for pod in pods[1:]} == {"Gang g is waiting for 1 of 50 pods"}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 10_000) | st.floats(0, 5), st.sampled_from(["come", "come", "go"])),
        min_size=1,
        max_size=40,
    )
)
def test_each_pod_gets_an_early_event_and_all_get_the_final_count(changes: list[tuple[float, str]]) -> None:
    d = Driver(fabric({"s1/l1": 4}))
    waiting, present, came = gang(50), [], {}
    for gap, what in changes:
        pass_time(d, gap)
        if what == "come":
            present.append(waiting.pop())
            came[present[-1].metadata.uid] = d.now
            d.apply(present[-1])
        elif present:
            d.delete(present.pop(0))
        messages = last_told(d)
        quiet = REPORT_DELAY_SECONDS if gap > REPORT_DELAY_SECONDS else MAX_REPORT_DELAY_SECONDS
        since = d.now - quiet - 0.001
        assert all(pod.metadata.uid in messages for pod in present if came[pod.metadata.uid] < since)
    pass_time(d, MAX_REPORT_PAUSE_SECONDS + REPORT_DELAY_SECONDS + 1)
    lack = f"Gang g is waiting for {50 - len(present)} of 50 pods"
    messages = last_told(d)
    assert {messages[pod.metadata.uid] for pod in present} <= {lack}
    assert len(d.told()) <= len(came) * (log2(MAX_REPORT_PAUSE_SECONDS) + 3)
