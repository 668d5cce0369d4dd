"""Expected durations of namespaces whose pods overrun them are not used until the overruns are forgotten."""

from topo_scheduler.state.statistics.duration_claims import HALF_LIFE_SECONDS, MAX_NAMESPACES, Promises, weight_of


def overrun(promises: Promises, namespace: str, count: int, now: float) -> float:
    """Let pods of a namespace run on; return the time after that."""
    for number in range(count):
        promises.began(f"{namespace}-{number}", namespace, now, 600.0, 1.0)
    promises.settle(now + 3600)
    return now + 3600


def test_three_that_overrun_are_too_many_and_that_is_forgotten() -> None:
    promises = Promises()
    now = overrun(promises, "a", 2, 0.0)
    assert promises.believed("a")
    now = overrun(promises, "a", 1, now)
    assert not promises.believed("a")
    assert promises.believed("b")
    promises.settle(now + HALF_LIFE_SECONDS)
    assert promises.believed("a")
    assert promises.changes == 2


def test_a_few_among_many_that_end_in_time_are_tolerated() -> None:
    promises = Promises()
    for number in range(40):
        promises.began(f"kept-{number}", "a", 0.0, 600.0, 1.0)
        promises.ended(f"kept-{number}")
    overrun(promises, "a", 3, 0.0)
    assert promises.believed("a")
    overrun(promises, "a", 3, 4000.0)
    assert not promises.believed("a")


def test_a_pod_has_a_minute_and_a_tenth_more() -> None:
    promises = Promises()
    for number in range(3):
        promises.began(f"p{number}", "a", 0.0, 600.0, 1.0)
    promises.settle(719.0)
    assert promises.believed("a")
    promises.settle(720.0)
    assert not promises.believed("a")


def test_to_say_more_while_it_runs_does_not_help() -> None:
    promises = Promises()
    for number in range(3):
        promises.began(f"p{number}", "a", 0.0, 600.0, 1.0)
        promises.began(f"p{number}", "a", 0.0, 86_400.0, 1.0)
    promises.settle(721.0)
    assert not promises.believed("a")


def test_what_is_remembered_is_bounded() -> None:
    promises = Promises()
    for number in range(2 * MAX_NAMESPACES):
        promises.began(f"p{number}", f"n{number}", 0.0, 600.0, 1.0)
        promises.ended(f"p{number}")
    assert len(promises._heap) <= 2 * 1 + 64
    assert len(promises) <= MAX_NAMESPACES


def test_pods_that_hold_next_to_nothing_do_not_pay_for_those_that_hold_gpus() -> None:
    promises = Promises()
    for number in range(600):
        promises.began(f"tiny-{number}", "a", 0.0, 60.0, weight_of(0, 0.001 / 96))
        promises.ended(f"tiny-{number}")
    for number in range(40):
        promises.began(f"large-{number}", "a", 0.0, 60.0, weight_of(8, 1.0))
    promises.settle(10_000.0)
    assert not promises.believed("a")


def test_a_few_small_overruns_beside_much_that_keeps_its_word_are_tolerated() -> None:
    promises = Promises()
    for number in range(10):
        promises.began(f"large-{number}", "a", 0.0, 60.0, weight_of(8, 1.0))
        promises.ended(f"large-{number}")
    for number in range(8):
        promises.began(f"small-{number}", "a", 0.0, 60.0, weight_of(0, 0.5))
    promises.settle(10_000.0)
    assert promises.believed("a")
