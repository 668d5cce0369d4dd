"""Objects that raised when they were read are read again after growing pauses, and never lost."""

from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.scheduling.barrier import pause_of
from topo_scheduler.scheduling.intake.unread import OBJECTS_PER_STEP, Unread


def test_the_pause_doubles_with_each_failure_and_begins_again_after_a_success() -> None:
    unread: Unread[str] = Unread()
    now = 0.0
    for times in (1, 2, 3):
        unread.fail("a", f"version {times}", now)
        assert unread.next_due() == now + pause_of(times)
        assert unread.take_due(now + pause_of(times) - 0.001) == []
        now += pause_of(times)
        assert unread.take_due(now) == [f"version {times}"]
    unread.drop("a")
    assert unread.next_due() is None
    unread.fail("a", "again", now)
    assert unread.next_due() == now + pause_of(1)


def test_few_are_read_at_once_the_first_due_first() -> None:
    unread: Unread[int] = Unread()
    for number in range(3 * OBJECTS_PER_STEP):
        unread.fail(str(number), number, number / 1000)
    late = 10_000.0
    taken = []
    while due := unread.take_due(late):
        assert len(due) <= OBJECTS_PER_STEP
        taken += due
        for number in due:
            unread.drop(str(number))
    assert taken == list(range(3 * OBJECTS_PER_STEP))
    assert not unread


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["fail", "drop", "take"]))))
def test_whatever_failed_and_was_not_dropped_is_due_sometime(steps: list[tuple[str, str]]) -> None:
    unread: Unread[str] = Unread()
    failed: set[str] = set()
    for now, (key, step) in enumerate(steps):
        if step == "fail":
            unread.fail(key, key, now)
            failed.add(key)
        elif step == "drop":
            unread.drop(key)
            failed.discard(key)
        else:
            for due in unread.take_due(now):
                unread.fail(due, due, now)
    assert (unread.next_due() is None) == (not failed)
    assert sorted(unread.take_due(1e9)) == sorted(failed)
