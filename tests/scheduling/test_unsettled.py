"""Binds of which the API server never says how they ended are written again, ever more rarely."""

from itertools import pairwise

import pytest

from tests.helpers import make_pod
from topo_scheduler.scheduling.binding.unsettled import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from topo_scheduler.scheduling.instructions import BindOutcome, Withdraw

from .driver import Driver, fabric

LATER = 3_600.0


def unanswered(d: Driver, uid: str, *, hangs: bool = True) -> None:
    """An attempt ends without an answer; if it ``hangs``, the API server answers otherwise."""
    if hangs:
        d.engine.bind_hangs(uid, d.now)
    d.answer(uid, BindOutcome.UNKNOWN)


def attempts(d: Driver, uid: str, until: float, *, hangs: bool = True) -> list[float]:
    """Let each attempt of a bind end at once without an answer; return when they were made."""
    times = [d.now]
    unanswered(d, uid, hangs=hangs)
    while (due := d.engine.next_due()) is not None and due <= until:
        d.step(max(0.0, due - d.now))
        if uid in d.flight:
            times.append(d.now)
            unanswered(d, uid, hangs=hangs)
    return times


def under_way(*names: str, namespace: str = "default") -> tuple[Driver, list[str]]:
    d = Driver(fabric({"s1/l1": 4}))
    d.apply(*(make_pod(name, gpus=1, namespace=namespace) for name in names))
    d.step()
    return d, list(d.flight)


def test_the_pauses_grow_up_to_a_cap_and_none_is_given_up() -> None:
    d, (uid,) = under_way("p")
    times = attempts(d, uid, LATER)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:4] == [FIRST_PAUSE_SECONDS * factor for factor in (1, 2, 4, 8)]
    assert set(pauses[6:]) == {LONGEST_PAUSE_SECONDS}
    assert LATER - times[-1] <= LONGEST_PAUSE_SECONDS
    d.step(LONGEST_PAUSE_SECONDS)
    bind = d.flight[uid]
    d.answer(uid)
    assert d.pods[uid].spec.node_name == bind.node


def test_the_pause_stays_short_while_the_api_server_is_away() -> None:
    d, (uid,) = under_way("p")
    times = attempts(d, uid, 60.0, hangs=False)
    assert {after - before for before, after in pairwise(times)} == {FIRST_PAUSE_SECONDS}


def test_what_the_watch_shows_ends_the_pause_at_once() -> None:
    d, (uid,) = under_way("p")
    bind = d.flight[uid]
    attempts(d, uid, 100.0)
    d.tell_again(d.write(bind))
    d.step(2 * LONGEST_PAUSE_SECONDS)
    assert d.flight == {} and d.engine.outcomes.in_flight == 0
    assert d.engine.next_due() is None


def test_once_one_is_answered_the_others_of_its_namespace_are_written_at_once() -> None:
    d, uids = under_way("p", "q", "r")
    d.apply(make_pod("elsewhere", gpus=1, namespace="other"))
    d.step()
    (other,) = set(d.flight) - set(uids)
    for _ in range(8):
        for uid in list(d.flight):
            unanswered(d, uid)
        d.step(LONGEST_PAUSE_SECONDS)
    for uid in (*uids[1:], other):
        unanswered(d, uid)
    assert list(d.flight) == uids[:1]
    d.answer(uids[0])
    d.step()
    assert set(d.flight) == set(uids[1:]), "those of another namespace go on pausing"


def test_a_bind_that_was_decided_again_is_not_written_twice() -> None:
    """The pause of the earlier decision must not end while the new bind is under way."""
    d, (uid,) = under_way("p")
    unanswered(d, uid)
    pod = d.pods[uid]
    d.delete(pod)
    d.apply(pod)
    d.step()
    assert list(d.flight) == [uid]
    d.forget()
    d.step(2 * FIRST_PAUSE_SECONDS)
    assert d.binds() == []


@pytest.mark.parametrize("first", ["low", "high"])
def test_binds_that_hang_yield_to_pods_of_higher_priority(first: str) -> None:
    d = Driver(fabric({"s1/l1": 2}))
    low = [make_pod(f"low-{number}", gpus=8) for number in range(2)]
    high = make_pod("high", gpus=8, priority=5, namespace="other")
    d.apply(*low)
    d.step()
    uids = list(d.flight)
    if first == "high":
        d.apply(high)
        d.step()
    for uid in uids:
        unanswered(d, uid)
    d.step(0.1)
    if first == "low":
        d.apply(high)
        d.step()
    withdrawn = [said.bind.pod.uid for said in d.said if isinstance(said, Withdraw)]
    assert sorted(withdrawn) == sorted(uids)
    assert not d.where(high), "an attempt may still take effect"
    for uid in withdrawn:
        d.engine.bind_finished(uid, BindOutcome.WITHDRAWN, "it was withdrawn", d.now)
    d.step(0.1)
    assert high.metadata.uid in d.flight
    assert any("higher priority needs the room" in text for text in d.told(low[0]))


def test_binds_that_hang_yield_to_no_pod_of_equal_priority() -> None:
    d, (uid,) = under_way("p")
    unanswered(d, uid)
    d.apply(*(make_pod(f"q-{number}", gpus=8) for number in range(4)))
    d.step()
    assert not any(isinstance(said, Withdraw) for said in d.said)
