"""Namespaces take turns, each with so many writes at once, and of each object the newest is written."""

from topo_scheduler.kube.fair_lines import FairLines


def lines(each: int = 2) -> FairLines[tuple[str, float]]:
    return FairLines(each, lambda item: item[1])


def test_namespaces_take_turns_and_each_has_so_many_at_once() -> None:
    some = lines()
    for number in range(5):
        some.put("a", f"a{number}", ("", number))
    some.put("b", "b0", ("", 9.0))
    assert some.oldest() == 0.0
    assert [some.take()[0] for _ in range(3)] == ["a0", "b0", "a1"]
    assert some.oldest() is None, "a has two at once"
    some.done("a0")
    assert some.take()[0] == "a2"


def test_of_an_object_that_is_written_nothing_more_is_taken_before_that_has_ended() -> None:
    some = lines()
    some.put("a", "x", ("old", 0.0))
    some.put("a", "x", ("new", 1.0))
    assert some.take() == ("x", ("new", 1.0))
    some.put("a", "x", ("newest", 2.0))
    assert some.oldest() is None
    assert some.get("x") == ("newest", 2.0)
    some.done("x")
    assert some.take() == ("x", ("newest", 2.0))


def test_nothing_is_left_of_what_was_dropped_or_done() -> None:
    some = lines()
    some.put("a", "x", ("", 0.0))
    some.put("b", "y", ("", 0.0))
    some.take()
    some.done("x")
    assert some.drop("y") == ("", 0.0)
    assert some.drop("y") is None
    assert not some._lines and not some._waiting and not some._doing and not some._busy
