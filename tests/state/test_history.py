"""Outcomes of a leaf: neutral until something bad happened, and neutral again when it is long ago."""

from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.state.statistics.placement_outcomes import HALF_LIFE_SECONDS, NEUTRAL_SCORE, History

LEAF, OTHER = ("spine-1", "leaf-1"), ("spine-2", "leaf-1")
outcomes = st.lists(st.tuples(st.floats(0, 600), st.booleans()), max_size=30)


def test_nothing_known_is_neutral() -> None:
    history = History()
    assert history.score(LEAF, 0) == NEUTRAL_SCORE
    history.note(LEAF, 0, good=True)
    assert history.score(LEAF, 0) == NEUTRAL_SCORE
    assert history.known() == ()


def test_a_failure_counts_against_its_leaf_only() -> None:
    history = History()
    history.note(LEAF, 0, good=False)
    assert history.score(LEAF, 0) < NEUTRAL_SCORE
    assert history.score(OTHER, 0) == NEUTRAL_SCORE
    assert history.known() == (LEAF,)


@given(outcomes, st.floats(0, 10**5))
def test_a_score_is_a_share_and_more_failures_never_raise_it(attempts: list[tuple[float, bool]], later: float) -> None:
    now = 0.0
    history, worse = History(), History()
    for wait, good in attempts:
        now += wait
        history.note(LEAF, now, good=good)
        worse.note(LEAF, now, good=False)
    at = now + later
    assert 0 < worse.score(LEAF, at) <= history.score(LEAF, at) <= NEUTRAL_SCORE


@given(st.integers(1, 20), st.floats(0, 10**5), st.floats(0, 10**5))
def test_failures_fade(failures: int, soon: float, after: float) -> None:
    history, same = History(), History()
    for _ in range(failures):
        history.note(LEAF, 0, good=False)
        same.note(LEAF, 0, good=False)
    assert history.score(LEAF, soon) <= same.score(LEAF, soon + after)


def test_a_failure_counts_half_after_the_half_life_and_nothing_in_the_end() -> None:
    history = History()
    for _ in range(4):
        history.note(LEAF, 0, good=False)
    fresh = NEUTRAL_SCORE // 5
    assert history.score(LEAF, 0) == fresh
    assert history.score(LEAF, HALF_LIFE_SECONDS) == NEUTRAL_SCORE // 3
    assert history.score(LEAF, 40 * HALF_LIFE_SECONDS) == NEUTRAL_SCORE
    assert history.known() == ()


def test_completions_outweigh_a_failure() -> None:
    history = History()
    history.note(LEAF, 0, good=False)
    alone = history.score(LEAF, 0)
    for _ in range(10):
        history.note(LEAF, 1, good=True)
    assert alone < history.score(LEAF, 1) < NEUTRAL_SCORE


def test_time_that_stands_still_or_runs_back_changes_nothing() -> None:
    history = History()
    history.note(LEAF, HALF_LIFE_SECONDS, good=False)
    at = history.score(LEAF, HALF_LIFE_SECONDS)
    assert history.score(LEAF, 0) == at
    assert history.score(LEAF, HALF_LIFE_SECONDS) == at


@given(outcomes, st.lists(st.floats(0, 10**4), max_size=20))
def test_looking_changes_nothing(attempts: list[tuple[float, bool]], looks: list[float]) -> None:
    seen, unseen = History(), History()
    now = 0.0
    for wait, good in attempts:
        now += wait
        seen.note(LEAF, now, good=good)
        unseen.note(LEAF, now, good=good)
    end = now + sum(looks)
    for look in looks:
        now += look
        seen.score(LEAF, now)
    assert abs(seen.score(LEAF, end) - unseen.score(LEAF, end)) == 0
