"""Claims about run times of namespaces whose pods overrun them are not used until the overruns are forgotten."""

from math import inf

import pytest

from topo_scheduler.state.statistics.duration_claims import HALF_LIFE_SECONDS, MAX_NAMESPACES, Promises, weight_of

HOUR = 3600.0


def run(
    promises: Promises, uid: str, start: float, seconds: float = 600.0, weight: float = 1.0, in_: str = "a"
) -> None:
    """Let a pod run that claims to take ``seconds``."""
    promises.claimed(uid, in_, seconds)
    promises.began(uid, start, weight)


def keep(promises: Promises, count: int, took: float, weight: float = 1.0) -> float:
    """Let pods run that end in time after ``took`` seconds; return that time."""
    for number in range(count):
        run(promises, f"kept-{number}", 0.0, took, weight)
    promises.settle(took)
    for number in range(count):
        promises.ended(f"kept-{number}")
    return took


def overrun(promises: Promises, count: int, now: float, by: float = 3000.0, weight: float = 1.0) -> float:
    """Let pods take ten minutes and ``by`` seconds that claim to take ten minutes; return the time after that."""
    promises.settle(now)
    for number in range(count):
        run(promises, f"late-{now}-{number}", now, 600.0, weight)
    now += 600.0 + by
    promises.settle(now)
    return now


def end(promises: Promises, count: int, began: float) -> None:
    for number in range(count):
        promises.ended(f"late-{began}-{number}")


def test_three_that_overrun_are_too_many_and_that_is_forgotten() -> None:
    promises = Promises()
    now = overrun(promises, 2, 0.0)
    assert promises.believed("a")
    then, now = now, overrun(promises, 1, now)
    assert not promises.believed("a")
    assert promises.believed("b")
    end(promises, 2, 0.0)
    end(promises, 1, then)
    promises.settle(now)
    assert not promises.believed("a")
    promises.settle(now + HALF_LIFE_SECONDS)
    assert promises.believed("a")
    assert promises.changes == 2


def test_what_still_overruns_is_not_forgotten() -> None:
    promises = Promises()
    now = overrun(promises, 3, 0.0)
    for _ in range(100):
        now += HALF_LIFE_SECONDS
        promises.settle(now)
        assert not promises.believed("a")
    end(promises, 3, 0.0)
    promises.settle(now + HALF_LIFE_SECONDS)
    assert promises.believed("a")


def test_a_few_among_many_that_end_in_time_are_tolerated() -> None:
    promises = Promises()
    now = keep(promises, 40, HOUR)
    then, now = now, overrun(promises, 3, now)
    assert promises.believed("a")
    end(promises, 3, then)
    overrun(promises, 3, now)
    assert not promises.believed("a")


def test_all_that_overrun_by_little_are_tolerated_beside_some_that_do_not() -> None:
    promises = Promises()
    now = keep(promises, 10, HOUR)
    overrun(promises, 20, now, by=150.0)
    assert promises.believed("a")


def test_a_pod_has_a_minute_and_a_tenth_more() -> None:
    promises = Promises()
    for number in range(3):
        run(promises, f"p{number}", 0.0)
    promises.settle(719.0)
    assert promises.believed("a")
    promises.settle(720.0)
    assert not promises.believed("a")


def test_to_say_more_while_it_runs_does_not_help() -> None:
    promises = Promises()
    for number in range(3):
        run(promises, f"p{number}", 0.0)
        run(promises, f"p{number}", 0.0, 86_400.0)
    promises.settle(721.0)
    assert not promises.believed("a")


def test_a_pod_is_held_to_what_it_was_bound_with() -> None:
    promises = Promises()
    for number in range(3):
        promises.claimed(f"p{number}", "a", 600.0)
        promises.claimed(f"p{number}", "a", 86_400.0)
        promises.began(f"p{number}", 0.0, 1.0)
    promises.settle(721.0)
    assert not promises.believed("a")


def test_a_start_in_the_future_does_not_help() -> None:
    promises = Promises()
    for number in range(3):
        run(promises, f"p{number}", 1e9)
    promises.settle(721.0)
    assert not promises.believed("a")


def test_a_pod_that_is_not_bound_after_all_claims_nothing() -> None:
    promises = Promises()
    promises.claimed("p", "a", 600.0)
    promises.withdrawn("p")
    assert "p" not in promises
    promises.began("p", 0.0, 1.0)
    run(promises, "q", 0.0)
    promises.withdrawn("q")
    assert "q" in promises, "it runs"


def test_what_is_remembered_is_bounded() -> None:
    promises = Promises()
    for number in range(2 * MAX_NAMESPACES):
        run(promises, f"p{number}", 0.0, in_=f"n{number}")
        promises.ended(f"p{number}")
    assert len(promises._heap) <= 2 * 1 + 64
    assert len(promises) <= MAX_NAMESPACES


def test_namespaces_beyond_the_cap_take_no_record_of_one_whose_pods_overrun() -> None:
    promises = Promises()
    now = overrun(promises, 3, 0.0)
    for number in range(2 * MAX_NAMESPACES):
        run(promises, f"p{number}", now, in_=f"n{number}")
        promises.ended(f"p{number}")
    promises.settle(now + 60)
    assert not promises.believed("a")


def test_of_more_namespaces_that_overrun_than_the_cap_the_rest_are_believed() -> None:
    promises = Promises()
    for number in range(3 * (MAX_NAMESPACES + 9)):
        run(promises, f"p{number}", 0.0, in_=f"n{number // 3}")
    promises.settle(10_000.0)
    assert len(promises._doubted) <= len(promises._records) == MAX_NAMESPACES
    assert not promises.believed(f"n{MAX_NAMESPACES + 8}")
    for number in range(3 * (MAX_NAMESPACES + 9)):
        promises.ended(f"p{number}")
    assert all(record.overdue >= 0 and record.overdue_weight >= 0.0 for record in promises._records.values())
    assert len(promises) <= MAX_NAMESPACES


def test_pods_that_hold_next_to_nothing_do_not_pay_for_those_that_hold_gpus() -> None:
    promises = Promises()
    keep(promises, 600, 60.0, weight_of(0, 0.001 / 96))
    overrun(promises, 40, 60.0, weight=weight_of(8, 1.0))
    assert not promises.believed("a")


@pytest.mark.parametrize(("took", "believed"), [(1.0, False), (2 * HOUR, True)])
def test_pods_that_end_at_once_do_not_pay_for_those_that_overrun_for_hours(took: float, believed: bool) -> None:
    promises = Promises()
    now = keep(promises, 60, took, weight_of(8, 1.0))
    overrun(promises, 3, now, by=2 * HOUR, weight=weight_of(8, 1.0))
    assert promises.believed("a") == believed


def test_a_namespace_loses_belief_while_its_pods_continue_to_overrun() -> None:
    promises = Promises()
    now = keep(promises, 30, HOUR)
    now = overrun(promises, 3, now, by=600.0)
    assert promises.believed("a")
    promises.settle(now + HOUR)
    assert not promises.believed("a")


def test_time_before_the_scheduler_saw_a_pod_run_pays_for_nothing() -> None:
    """Otherwise a start that its owner wrote itself would."""
    promises = Promises()
    run(promises, "old", -1e9, 1e9, 100.0)
    promises.settle(1.0)
    promises.ended("old")
    overrun(promises, 3, 1.0)
    assert not promises.believed("a")


def test_a_few_small_overruns_beside_much_that_keeps_its_word_are_tolerated() -> None:
    promises = Promises()
    now = keep(promises, 10, HOUR, weight_of(8, 1.0))
    overrun(promises, 8, now, weight=weight_of(0, 0.5))
    assert promises.believed("a")


def test_a_pod_without_a_claim_counts_nothing() -> None:
    promises = Promises()
    promises.began("p", 0.0, 1.0)
    promises.settle(inf)
    promises.ended("p")
    assert not len(promises)
