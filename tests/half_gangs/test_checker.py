"""The checker itself, without a cluster: from when on it counts, and what is too long."""

import pytest

from .checker import Spells, Standing
from .rounds import CONFIG, DEFAULT_CONFIG, Kind


def half(*bound: str, size: int = 8, name: str = "gang") -> Standing:
    return Standing(name, size, size, frozenset(bound))


def test_a_newly_bound_member_restarts_the_time_until_the_rollback_and_no_other_change_does() -> None:
    spells = Spells()
    spells.look(10.0, [half("a")])
    spells.look(14.0, [half("a", "b")])
    assert (spells.idle.seconds, spells.unbroken.seconds) == (0.0, 4.0)
    spells.look(17.0, [half("b")])  # the other is evicted
    spells.look(18.0, [half("a", "b")])  # and was bound before
    assert (spells.idle.seconds, spells.unbroken.seconds) == (4.0, 8.0)
    assert spells.idle.gang == spells.unbroken.gang == "gang"


def test_a_member_bound_in_the_place_of_an_evicted_one_is_a_new_one() -> None:
    spells = Spells()
    spells.look(0.0, [half("a", "b")])
    spells.look(4.0, [half("a", "c")])
    spells.look(6.0, [half("a", "c")])
    assert (spells.idle.seconds, spells.unbroken.seconds) == (2.0, 6.0)


def test_the_time_of_a_gang_restarts_once_it_was_rolled_back_or_complete() -> None:
    spells = Spells()
    for now, standing in ((0.0, half("a")), (3.0, half()), (4.0, half("a")), (5.0, half("a", size=1))):
        spells.look(now, [standing])
    spells.look(6.0, [half("a")])
    spells.look(7.0, [half("a")])
    assert (spells.idle.seconds, spells.unbroken.seconds) == (1.0, 1.0)


def test_the_longest_spell_of_all_gangs_counts() -> None:
    spells = Spells()
    for now in (0.0, 2.0, 5.0):
        spells.look(now, [half("a", name="early"), *([half("b", name="late")] if now else [])])
    spells.look(9.0, [half("b", name="late")])
    assert (spells.idle.seconds, spells.idle.gang) == (7.0, "late")


@pytest.mark.parametrize("kind", Kind)
def test_five_seconds_after_the_last_bound_member_are_the_limit(kind: Kind) -> None:
    """With 3 s for the control plane, and 2 s more for a leader that has to take over first."""
    takes_over = 2.0 if kind in (Kind.LEADER, Kind.SERVER) else 0.0
    for seconds, problems in ((8.0 + takes_over, 0), (8.1 + takes_over, 1)):
        spells = Spells()
        spells.look(0.0, [half("a")])
        spells.look(0.5, [half("a", "b")])
        spells.look(0.5 + seconds, [half("a", "b")])
        assert sum("after the last member" in problem for problem in kind.too_long(spells)) == problems


@pytest.mark.parametrize(
    ("kind", "limit"), [(Kind.HANGS, 15.0), (Kind.HANGS_DEFAULT, 10.0), (Kind.REFUSES, 10.0), (Kind.LEADER, 10.0)]
)
def test_members_bound_one_after_the_other_do_not_put_it_off_for_ever(kind: Kind, limit: float) -> None:
    for end, problems in ((limit, 0), (limit + 0.1, 1)):
        spells = Spells()
        for number, now in enumerate((0.0, 3.0, 6.0, 9.0, 12.0)):
            if now < end:
                spells.look(now, [half(*(f"m{bound}" for bound in range(number + 1)))])
        spells.look(end, [half("new", "m0")])
        assert len(kind.too_long(spells)) == problems


def test_two_kinds_of_rounds_run_with_the_default_configuration() -> None:
    for kind in Kind:
        assert kind.config == (DEFAULT_CONFIG if "default configuration" in kind else CONFIG)
    assert "clientConnection" not in DEFAULT_CONFIG and "leaderElection" not in DEFAULT_CONFIG
