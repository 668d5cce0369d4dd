"""The change log: every reader learns every row that changed since it last asked, or has to start over."""

from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.state.nodes.change_log import ChangeLog

events = st.lists(
    st.one_of(st.integers(0, 9), st.just("restart"), st.tuples(st.just("read"), st.integers(0, 2))), max_size=80
)


@given(events, st.integers(1, 8))
def test_no_reader_misses_a_change(steps: list[int | str | tuple[str, int]], keep: int) -> None:
    log = ChangeLog(keep)
    positions = [log.position] * 3
    missed: list[set[int]] = [set(), set(), set()]
    restarted = [False] * 3
    for step in steps:
        if isinstance(step, int):
            log.append(step)
            for rows in missed:
                rows.add(step)
        elif isinstance(step, str):
            log.restart()
            restarted = [True] * 3
        else:
            reader = step[1]
            reported = log.since(positions[reader])
            if reported is not None:
                assert not restarted[reader]
                assert reported.tolist() == sorted(missed[reader]), "each row once, in order"
                assert str(reported.dtype) == "int64"
            positions[reader], missed[reader], restarted[reader] = log.position, set(), False


def test_a_reader_that_is_up_to_date_has_nothing_to_do() -> None:
    log = ChangeLog()
    log.append(3)
    rows = log.since(log.position)
    assert rows is not None
    assert rows.tolist() == []


def test_a_reader_from_before_the_beginning_reads_everything() -> None:
    assert ChangeLog().since(-1) is None


def test_the_log_does_not_grow_without_end_and_is_not_forgotten_too_soon() -> None:
    log = ChangeLog(keep=10)
    for row in range(1000):
        log.append(row % 7)
    recent = log.position - 10
    rows = log.since(recent)
    assert rows is not None, "at least as much as is kept can be read"
    assert log.since(0) is None
